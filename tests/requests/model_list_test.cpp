#include "computron/requests/model_list.h"

#include "tests/requests/requests_support.h"

namespace computron {
namespace {

TEST(ModelArguments, SplitAtTheFirstEqualsSign) {
  const auto entries = parse_model_arguments({"opt-a=models/a.h5", "org/b_1.2=dir=x/b.h5"});
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].id, "opt-a");
  EXPECT_EQ(entries[0].path, "models/a.h5");
  EXPECT_EQ(entries[1].id, "org/b_1.2");
  EXPECT_EQ(entries[1].path, "dir=x/b.h5");
}

TEST(ModelArguments, SeveralIdsMayNameOneFile) {
  EXPECT_EQ(parse_model_arguments({"a=m.h5", "b=m.h5"})[1].path, "m.h5");
  const auto with_adapter = parse_model_arguments({"a=x/m.h5+y+z/lora.h5", "b=a+b.h5"});
  EXPECT_EQ(with_adapter[0].path, "x/m.h5");
  EXPECT_EQ(with_adapter[0].adapter, "y+z/lora.h5");
  EXPECT_EQ(with_adapter[1].path, "a+b.h5");
  EXPECT_EQ(with_adapter[1].adapter, "");
}

TEST(ModelArguments, FilesThatAreThereTellWhereANameEnds) {
  const TemporaryFolder folder;
  const std::string whole = folder.write("a.h5+b.h5", ""), base = folder.write("c.h5+d.h5", "");
  const auto entries = parse_model_arguments({"a=" + whole, "b=" + base + "+x.h5", "c=" + base + "+x.h5+y.h5"});
  EXPECT_EQ(entries[0].path, whole);
  EXPECT_EQ(entries[0].adapter, "");
  EXPECT_EQ(entries[1].path, base);
  EXPECT_EQ(entries[1].adapter, "x.h5");
  EXPECT_EQ(entries[2].path, base);
  EXPECT_EQ(entries[2].adapter, "x.h5+y.h5");
}

TEST(ModelArguments, BadItemsAreNamed) {
  const auto refused = [](const std::string& item, const std::string& part) {
    expect_error(ExitCode::kUsage, part, [&] { parse_model_arguments({"good=x.h5", item}); });
    expect_error(ExitCode::kUsage, item.substr(0, 20), [&] { parse_model_arguments({"good=x.h5", item}); });
  };
  refused("model.h5", "ID=FILE");
  refused("=model.h5", "model id");
  refused("a b=model.h5", "model id");
  refused("a\nb=model.h5", "model id");
  refused(std::string(129, 'x') + "=model.h5", "model id");
  refused("a=", "path");
  refused("a=m.h5+", "BASE.h5+ADAPTER.h5");
  refused("good=y.h5", "taken");
}

TEST(ModelArguments, LongestIdIsAccepted) {
  EXPECT_EQ(parse_model_arguments({std::string(128, 'x') + "=m.h5"})[0].id.size(), 128u);
}

TEST(ModelList, ReadsEveryKeyAndResolvesPaths) {
  const TemporaryFolder folder;
  const auto file = folder.write("models.json", R"([{"id": "a", "path": "sub/a.h5", "pinned": true, "priority": -3,
                                                    "slo": 2.5, "chat_format": "chatml", "adapter": "lora.h5"},
                                                    {"path": "/abs/b.h5", "id": "b"}])");
  const auto entries = read_model_list(file);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].path, folder / "sub/a.h5");
  EXPECT_EQ(entries[0].adapter, folder / "lora.h5");
  EXPECT_TRUE(entries[0].pinned);
  EXPECT_EQ(entries[0].priority, -3);
  EXPECT_EQ(entries[0].slo_s, 2.5);
  EXPECT_EQ(entries[0].chat_format, "chatml");
  EXPECT_EQ(entries[1].path, "/abs/b.h5");
  EXPECT_EQ(entries[1].adapter, "");
  EXPECT_FALSE(entries[1].pinned);
  EXPECT_EQ(entries[1].priority, 0);
  EXPECT_EQ(entries[1].slo_s, 0) << "none";
}

TEST(ModelList, MissingFileOrFolderIsNoInput) {
  const TemporaryFolder folder;
  expect_error(ExitCode::kNoInput, folder / "none.json", [&] { read_model_list(folder / "none.json"); });
  expect_error(ExitCode::kNoInput, "not a regular file", [&] { read_model_list(folder / ""); });
}

TEST(ModelList, BadContentNamesFileEntryAndKey) {
  const TemporaryFolder folder;
  const auto refused = [&folder](const std::string& text, const std::string& part) {
    const auto file = folder.write("bad.json", text);
    expect_error(ExitCode::kUsage, part, [&] { read_model_list(file); });
    expect_error(ExitCode::kUsage, file, [&] { read_model_list(file); });
  };
  refused("", "parse error");
  refused("[{\"id\": \"a\",]", "column");
  refused("{}", "list");
  refused("[]", "at least one");
  refused("[5]", "entry 0: must be an object");
  refused(R"([{"path": "a.h5"}])", "entry 0: id: must be a string");
  refused(R"([{"id": 5, "path": "a.h5"}])", "entry 0: id: must be a string");
  refused(R"([{"id": "a"}])", "entry 0: path: must be a string");
  refused(R"([{"id": "a", "path": ""}])", "entry 0: path: names no file");
  refused(R"([{"id": "a", "path": "a\u0000.h5"}])", "entry 0: path: names no file");
  refused(R"([{"id": "../a b", "path": "a.h5"}])", "entry 0: '../a b' is no model id");
  refused(R"([{"id": "a", "path": "a.h5"}, {"id": "a", "path": "b.h5"}])", "entry 1: the model id 'a' is taken");
  refused(R"([{"id": "a", "path": "a.h5", "pinned": 1}])", "pinned: must be true or false");
  refused(R"([{"id": "a", "path": "a.h5", "priority": 1.5}])", "priority: must be an integer");
  refused(R"([{"id": "a", "path": "a.h5", "priority": 3000000000}])", "priority: must be an integer");
  refused(R"([{"id": "a", "path": "a.h5", "priority": 18446744073709551615}])", "priority: must be an integer");
  refused(R"([{"id": "a", "path": "a.h5", "chat_format": "chat99"}])", "entry 0: chat_format: 'chat99' is none of ");
  for (const char* slo : {"0", "-1", "\"2\"", "true", "null"}) {
    refused(R"([{"id": "a", "path": "a.h5", "slo": )" + std::string(slo) + "}]",
            "entry 0: slo: must be a finite number of seconds, more than 0");
  }
  refused(R"([{"id": "a", "path": "a.h5", "priorty": 1}])", "unknown key 'priorty'");
}

}  // namespace
}  // namespace computron
