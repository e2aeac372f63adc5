#include "computron/placement/profile_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ProfilesFile : public testing::Test {
 protected:
  ProfileFile read(const std::string& text) { return read_profiles(folder_.write("profiles.json", text)); }

  // With one model "a" whose only shape has these keys.
  std::string with_shape(const std::string& keys) { return R"({"models": [{"id": "a", "shapes": [{)" + keys + "}]}]}"; }
  // Why `text` is refused.
  std::string fault(const std::string& text) {
    try {
      read(text);
      return "it is not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
  }

  TemporaryFolder folder_;
};

TEST_F(ProfilesFile, HasModelsAndTheMachine) {
  const ProfileFile file = read(R"({
    "machine": {"device_memory": "13GiB", "host_memory": 480e9, "ranks_per_node": 8, "link_gbps": 12.5,
                "page_size": "16MiB", "stage_penalty": 0.009, "constant_s": 0.011},
    "models": [{"id": "a", "shapes": [{"stage_s": [0.25], "stage_bytes": ["5.5GB"]},
                                      {"pp": 2, "tp": 4, "stage_s": [0.125, 1], "stage_bytes": [7, 8], "layers": [3, 4]}]},
               {"id": "b/2", "shapes": [{"tp": 2, "stage_s": [1], "stage_bytes": [0]}]}]})");
  EXPECT_EQ(file.machine.device_bytes, std::int64_t{13} << 30);
  EXPECT_EQ(file.machine.host_bytes, 480'000'000'000);
  EXPECT_EQ(file.machine.ranks_per_node, 8);
  EXPECT_DOUBLE_EQ(file.machine.link_bytes_per_s, 12.5e9);
  EXPECT_EQ(file.machine.page_bytes, 1 << 24);
  EXPECT_DOUBLE_EQ(file.machine.stage_penalty, .009);
  EXPECT_DOUBLE_EQ(file.machine.constant_s, .011);
  ASSERT_EQ(file.models.size(), 2u);
  EXPECT_EQ(file.models[0].id, "a");
  ASSERT_EQ(file.models[0].shapes.size(), 2u);
  const ShapeProfile& alone = file.models[0].shapes.at({1, 1});
  EXPECT_THAT(alone.stage_s, ElementsAre(.25f));
  EXPECT_THAT(alone.stage_bytes, ElementsAre(5'500'000'000));
  EXPECT_THAT(alone.layers, IsEmpty());
  const ShapeProfile& staged = file.models[0].shapes.at({4, 2});
  EXPECT_THAT(staged.stage_s, ElementsAre(.125f, 1.f));
  EXPECT_THAT(staged.stage_bytes, ElementsAre(7, 8));
  EXPECT_THAT(staged.layers, ElementsAre(3, 4));
  EXPECT_EQ(file.models[1].id, "b/2");
  EXPECT_NO_THROW(check_profiles(file.models));
}

TEST_F(ProfilesFile, MaySayWhatEachPassTakes) {
  const ProfileFile file = read(R"({"machine": {"step_latency_s": 5e-5}, "models": [{"id": "a", "shapes": [
    {"pp": 2, "stage_s": [1, 2], "stage_bytes": [7, 8], "cache_token_bytes": [512, "1KiB"], "operation_bytes": [3, 4], "frame_bytes": [9, 8], "measured": false,
     "passes": [{"rows": 1, "stage_s": [0.5, 0.25]}, {"rows": 64, "stage_s": [1, 2]}]}]}]})");
  EXPECT_DOUBLE_EQ(file.machine.step_latency_s, 5e-5);
  const ShapeProfile& shape = file.models[0].shapes.at({1, 2});
  EXPECT_FALSE(shape.measured);
  EXPECT_THAT(shape.cache_token_bytes, ElementsAre(512, 1024));
  EXPECT_THAT(shape.operation_bytes, ElementsAre(3, 4));
  EXPECT_THAT(shape.frame_bytes, ElementsAre(9, 8));
  ASSERT_EQ(shape.passes.size(), 2u);
  EXPECT_EQ(shape.passes[0].rows, 1);
  EXPECT_THAT(shape.passes[0].stage_s, ElementsAre(.5f, .25f));
  EXPECT_EQ(shape.passes[1].rows, 64);
  EXPECT_NO_THROW(check_profiles(file.models));
  const ShapeProfile by_hand = read(with_shape(R"("stage_s": [1], "stage_bytes": [1])")).models[0].shapes.at({1, 1});
  EXPECT_TRUE(by_hand.measured);
  EXPECT_THAT(by_hand.passes, IsEmpty());
  EXPECT_THAT(by_hand.cache_token_bytes, IsEmpty());
  EXPECT_THAT(by_hand.operation_bytes, IsEmpty());
}

TEST_F(ProfilesFile, NeedNotSayAnythingOfTheMachine) {
  const ProfileFile file = read(with_shape(R"("stage_s": [1], "stage_bytes": [1])"));
  EXPECT_EQ(file.machine.device_bytes, 0);
  EXPECT_EQ(file.machine.link_bytes_per_s, 0);
}

TEST_F(ProfilesFile, CutsWhatItKnowsLayerByLayer) {
  const char* const text = R"({"machine": {"link_gbps": 1e-9, "absent_share": %s}, "models": [{"id": "a",
    "by_layer": [{"tp": 2, "pp": [1, 2], "embedding": {"s": 1, "bytes": 40}, "hop_s": 0.5, "head": {"s": 3, "bytes": 2},
                  "blocks": [{"count": 4, "s": 2, "bytes": 10}, {"s": 3, "bytes": 10}]}],
    "shapes": [{"stage_s": [20], "stage_bytes": [92]}]}]})";
  const auto model = [&](const char* absent_share) {
    std::string own = text;
    own.replace(own.find("%s"), 2, absent_share);
    return read(own).models[0];
  };
  const ModelProfile computing = model("0");
  ASSERT_EQ(computing.shapes.size(), 3u);
  EXPECT_THAT(computing.shapes.at({2, 1}).stage_s, ElementsAre(15.f));
  EXPECT_THAT(computing.shapes.at({2, 1}).layers, IsEmpty());
  const ShapeProfile& staged = computing.shapes.at({2, 2});
  EXPECT_THAT(staged.layers, ElementsAre(3, 2));
  EXPECT_THAT(staged.stage_s, ElementsAre(7.5f, 8.f));
  EXPECT_THAT(staged.stage_bytes, ElementsAre(70, 22));
  // Where every pass finds its model absent the bytes decide: a second each.
  EXPECT_THAT(model("1").shapes.at({2, 2}).stage_bytes, ElementsAre(50, 42));
  EXPECT_THAT(staged.link_bytes, IsEmpty());
}

// Every pass finds its model absent, and a byte takes a second: raw, the last block's bytes stand against all others.
TEST_F(ProfilesFile, CutsByWhatCodedLayersTakeOverTheLink) {
  const auto shapes = [&](const char* link_bytes) {
    const std::string blocks =
        fmt::format(R"([{{"count": 3, "s": 1, "bytes": 10}}, {{"s": 1, "bytes": 40{}}}])", link_bytes);
    return read(R"({"machine": {"link_gbps": 1e-9, "absent_share": 1}, "models": [{"id": "a", "by_layer": [
      {"pp": [1, 2], "embedding": {"s": 1, "bytes": 8, "link_bytes": 5}, "head": {"s": 1, "bytes": 4, "link_bytes": "3B"},
       "blocks": )" +
                blocks + "}]}]}")
        .models[0]
        .shapes;
  };
  const auto raw = shapes(""), coded = shapes(R"(, "link_bytes": 11)");
  EXPECT_THAT(raw.at({1, 2}).layers, ElementsAre(3, 1));
  EXPECT_THAT(raw.at({1, 2}).link_bytes, ElementsAre(35, 43));
  EXPECT_THAT(coded.at({1, 2}).layers, ElementsAre(2, 2));
  EXPECT_THAT(coded.at({1, 2}).stage_bytes, ElementsAre(28, 54)) << "in frames they are decoded";
  EXPECT_THAT(coded.at({1, 2}).link_bytes, ElementsAre(25, 24));
  EXPECT_THAT(coded.at({1, 1}).link_bytes, ElementsAre(49));
}

TEST_F(ProfilesFile, NamesWhatIsWrong) {
  const std::string fine = R"("stage_s": [1], "stage_bytes": [1])";
  const std::pair<std::string, const char*> faults[] = {
      {"[]", "must be an object"},
      {"{", "profiles '"},
      {"{}", "models: must be a list of at least one model"},
      {R"({"models": [], "links": 1})", "unknown key 'links' (known: machine, models)"},
      {R"({"models": [{"shapes": []}]})", "model 0: id: must be a string"},
      {R"({"models": [{"id": "a b", "shapes": []}]})", "model 0 ('a b'): id: must be 1 to 128"},
      {R"({"models": [{"id": "a", "shapes": []}]})", "model 0 ('a'): shapes: must be a list of at least one shape"},
      {R"({"models": [{"id": "a", "shapes": [{)" + fine + R"(}]}, {"id": "a", "shapes": [{)" + fine + "}]}]}",
       "model 1: id: 'a' is there twice"},
      {R"({"models": [{"id": "a", "shapes": [{)" + fine + R"(}, {"tp": 1, )" + fine + "}]}]}",
       "shape 1 (tp 1 x pp 1): such a shape is there twice"},
      {with_shape(fine + R"(, "dp": 2)"), "unknown key 'dp'"},
      {with_shape(fine + R"(, "tp": 0)"), "tp: must be at least 1"},
      {with_shape(fine + R"(, "pp": -1)"), "pp: must be at least 1"},
      {with_shape(fine + R"(, "tp": 1073741824)"), "model 0 ('a'), shape 0: tp: must be at most 65536"},
      {with_shape(fine + R"(, "pp": 1073741824)"), "model 0 ('a'), shape 0: pp: must be at most 65536"},
      {with_shape(fine + R"(, "tp": 65536, "pp": 65536)"),
       "shape 0 (tp 65536 x pp 65536): tp, pp: their product must be at most 65536"},
      {with_shape(R"("stage_s": [1], "stage_bytes": [1125899906842625])"),
       "shape 0 (tp 1 x pp 1): stage_bytes: must be at most 1125899906842624 bytes"},
      {R"({"machine": {"host_memory": 4e18}})", "machine: host_memory: must be at most"},
      {R"({"models": [{"id": "a", "by_layer": [{"pp": [1], "blocks": [{"s": 1, "bytes": 4e18}]}]}]})",
       "model 0 ('a'), by_layer 0, blocks: bytes: must be at most"},
      {R"({"models": [{"id": "a", "by_layer": [{"pp": [1], "blocks": [{"s": 1, "bytes": 1e15, "count": 2}]}]}]})",
       "by_layer 0 (tp 1 x pp 1): bytes: of a stage at most 1125899906842624"},
      {R"({"models": [{"id": "a", "by_layer": [{"tp": 65536, "pp": [2], "blocks": [{"s": 1, "count": 2}]}]}]})",
       "by_layer 0 (tp 65536 x pp 2): tp, pp: their product"},
      {with_shape(fine + R"(, "pp": 2)"), "shape 0 (tp 1 x pp 2): stage_s: must be a list of 2, one a stage"},
      {with_shape(R"("stage_s": [1], "stage_bytes": [])"), "stage_bytes: must be a list of 1"},
      {with_shape(R"("stage_s": [0], "stage_bytes": [1])"), "stage_s: must be seconds above 0"},
      {with_shape(R"("stage_s": ["1"], "stage_bytes": [1])"), "stage_s: must be seconds above 0"},
      {with_shape(R"("stage_s": [1e-60], "stage_bytes": [1])"), "stage_s: must be seconds above 0"},
      {with_shape(R"("stage_s": [1e60], "stage_bytes": [1])"), "stage_s: must be seconds above 0"},
      {with_shape(R"("stage_s": [1], "stage_bytes": [1.5])"), "stage_bytes: must be a whole number of bytes"},
      {with_shape(R"("stage_s": [1], "stage_bytes": [-1])"), "stage_bytes: must be a whole number of bytes"},
      {with_shape(R"("stage_s": [1], "stage_bytes": [1e30])"), "stage_bytes: must be a whole number of bytes"},
      {with_shape(R"("stage_s": [1], "stage_bytes": ["much"])"), "stage_bytes: must be a whole number of bytes"},
      {with_shape(fine + R"(, "layers": [0])"), "layers: must be numbers of layers above 0"},
      {with_shape(fine + R"(, "layers": [1, 1])"), "layers: must be a list of 1"},
      {R"({"models": [{"id": "a", "by_layer": [{"pp": [1], "blocks": [{"s": 1, "bytes": 7, "link_bytes": 8}]}]}]})",
       "by_layer 0, blocks: link_bytes: must not be more than bytes"},
      {R"({"models": [{"id": "a", "by_layer": [{"pp": [1], "blocks": []}]}]})", "by_layer 0: blocks: must be a list"},
      {R"({"models": [{"id": "a", "by_layer": [{"pp": [2], "blocks": [{"s": 1}]}]}]})",
       "by_layer 0: pp: must be 1 to 1"},
      {R"({"models": [{"id": "a", "by_layer": [{"pp": [1], "blocks": [{"bytes": 1}]}]}]})",
       "blocks: s: must be seconds"},
      {R"({"models": [{"id": "a", "by_layer": [{"pp": [1, 1], "blocks": [{"s": 1}]}]}]})",
       "(tp 1 x pp 1): such a shape"},
      {R"({"models": [{"id": "a", "by_layer": [{"pp": [1], "blocks": [{"s": 1, "count": 99999}]}]}]})", "at most 1000"},
      {R"({"models": [{"id": "a", "by_layer": [{"pp": [1], "head": {"time": 1}, "blocks": [{"s": 1}]}]}]})",
       "by_layer 0, head: unknown key 'time'"},
      {R"({"machine": {"absent_share": 1.5}})", "absent_share: must be at most 1"},
      {R"({"machine": {"step_latency_s": -1}})", "step_latency_s: must be a number that is not negative"},
      {with_shape(R"("stage_s": [1], "stage_bytes": [1], "link_bytes": [1, 2])"), "link_bytes: must be a list of 1"},
      {with_shape(R"("stage_s": [1], "stage_bytes": [1], "link_bytes": [2])"),
       "link_bytes: must not be more than stage_bytes"},
      {with_shape(R"("stage_s": [1], "stage_bytes": [1], "measured": 1)"), "measured: must be true or false"},
      {with_shape(R"("stage_s": [1], "stage_bytes": [1], "cache_token_bytes": [1, 2])"),
       "cache_token_bytes: must be a list of 1"},
      {with_shape(R"("stage_s": [1], "stage_bytes": [2], "frame_bytes": [1])"), "frame_bytes: must not be less"},
      {with_shape(R"("stage_s": [1], "stage_bytes": [1], "passes": [])"),
       "passes: must be a list of at least one pass"},
      {with_shape(R"("stage_s": [1], "stage_bytes": [1], "passes": [{"stage_s": [1]}])"),
       "pass 0: rows: must be more than"},
      {with_shape(
           R"("stage_s": [1], "stage_bytes": [1], "passes": [{"rows": 2, "stage_s": [1]}, {"rows": 2, "stage_s": [1]}])"),
       "pass 1: rows: must be more than"},
      {with_shape(R"("stage_s": [1], "stage_bytes": [1], "passes": [{"rows": 1, "stage_s": [0]}])"),
       "pass 0: stage_s: must be seconds"},
      {R"({"machine": {"memory": 1}})", "machine: unknown key 'memory'"},
      {R"({"machine": {"link_gbps": -1}})", "machine: link_gbps: must be a number that is not negative"},
      {R"({"machine": {"ranks_per_node": 0}})", "machine: ranks_per_node: must be at least 1"},
      {R"({"machine": {"host_memory": "a lot"}})", "machine: host_memory: must be a whole number of bytes"},
  };
  for (const auto& [text, why] : faults) EXPECT_THAT(fault(text), HasSubstr(why)) << text;
}

TEST_F(ProfilesFile, SaysWhatModelsShare) {
  const std::string text = R"({"models": [
    {"id": "a", "family": "f", "shapes": [{"pp": 2, "stage_s": [1, 1], "stage_bytes": [10, "20B"], "link_bytes": [9, 8],
      "frame_bytes": [12, 20], "slot_bytes": "4KiB",
      "shared": [{"part": "lower", "stage_bytes": [7, 0], "link_bytes": [6, 0], "frame_bytes": [8, 0]},
                 {"part": "words", "stage_bytes": [1, "1B"]}]}]},
    {"id": "b", "shapes": [{"pp": 2, "stage_s": [1, 1], "stage_bytes": [2, 2],
      "shared": [{"part": "words", "stage_bytes": [1, %s]}]}]}]})";
  const auto with = [&](const char* bytes) {
    std::string own = text;
    return own.replace(own.find("%s"), 2, bytes);
  };
  const ProfileFile file = read(with("1"));
  EXPECT_EQ(file.models[0].family, "f");
  EXPECT_EQ(file.models[1].family, "");
  const ShapeProfile& shape = file.models[0].shapes.at({1, 2});
  EXPECT_EQ(shape.slot_bytes, 4096);
  ASSERT_EQ(shape.shared.size(), 2u);
  EXPECT_EQ(shape.shared[0].name, "lower");
  EXPECT_THAT(shape.shared[0].stage_bytes, ElementsAre(7, 0));
  EXPECT_THAT(shape.shared[0].stage_link_bytes(), ElementsAre(6, 0));
  EXPECT_THAT(shape.shared[0].stage_frame_bytes(), ElementsAre(8, 0));
  EXPECT_THAT(shape.shared[1].stage_link_bytes(), ElementsAre(1, 1));
  EXPECT_EQ(profile_text(read(profile_text(file))), profile_text(file));
  EXPECT_THAT(profile_text(file), HasSubstr(R"("shared": [)"));
  EXPECT_THAT(fault(with("2")), HasSubstr("'words' is of another size in another model"));
  EXPECT_THAT(fault(with("3")), HasSubstr("what is shared has more bytes than all"));
  EXPECT_THAT(fault(with("-1")), HasSubstr("shared 0: stage_bytes: must be a whole number of bytes"));
  EXPECT_THAT(fault(with("1, 1")), HasSubstr("shared 0: stage_bytes: must be a list of 2"));
  const std::string fine = R"("stage_s": [1], "stage_bytes": [1], "shared": )";
  EXPECT_THAT(fault(with_shape(fine + "[]")), HasSubstr("shared: must be a list of at least one part"));
  EXPECT_THAT(fault(with_shape(fine + R"([{"part": "", "stage_bytes": [1]}])")), HasSubstr("part: must be a name"));
  EXPECT_THAT(fault(with_shape(fine + R"([{"part": "a", "bytes": [1]}])")), HasSubstr("unknown key 'bytes'"));
  EXPECT_THAT(fault(with_shape(fine + R"([{"part": "a", "stage_bytes": [1], "frame_bytes": [0]}])")),
              HasSubstr("frame_bytes: must not be less"));
}

// Numbers that have no short decimal form, too.
TEST_F(ProfilesFile, ReadsBackWhatItWrites) {
  const ShapeProfile all{.stage_s = {1 / 3.f, 2e-7f},
                         .stage_bytes = {1, kMostStageBytes},
                         .link_bytes = {0, kMostStageBytes - 1},
                         .layers = {3, 4},
                         .passes = {{1, {0.1f, 1e-9f}}, {2048, {12345.678f, 1e6f}}},
                         .operation_bytes = {7, 5},
                         .cache_token_bytes = {512, 0},
                         .measured = false};
  const ShapeProfile plain{.stage_s = {0.25f}, .stage_bytes = {7}};
  const ProfileFile written{.machine = {.device_bytes = 5'000'000'001,
                                        .host_bytes = std::int64_t{1} << 50,
                                        .ranks_per_node = 8,
                                        .link_bytes_per_s = 12.3e9,
                                        .page_bytes = 8 << 20,
                                        .stage_penalty = 0.009,
                                        .constant_s = 1 / 3.0,
                                        .absent_share = 0.5,
                                        .step_latency_s = 4.2e-5},
                            .models = {{"a/b", {{{1, 1}, plain}, {{4, 2}, all}}}, {"c", {{{2, 1}, plain}}}}};
  const ProfileFile read_back = read(profile_text(written));
  EXPECT_EQ(profile_text(read_back), profile_text(written));
  EXPECT_EQ(read_back.machine.device_bytes, written.machine.device_bytes);
  EXPECT_EQ(read_back.machine.host_bytes, written.machine.host_bytes);
  EXPECT_EQ(read_back.machine.ranks_per_node, 8);
  EXPECT_DOUBLE_EQ(read_back.machine.link_bytes_per_s, 12.3e9);
  EXPECT_EQ(read_back.machine.page_bytes, 8 << 20);
  EXPECT_EQ(read_back.machine.stage_penalty, 0.009);
  EXPECT_EQ(read_back.machine.constant_s, 1 / 3.0);
  EXPECT_EQ(read_back.machine.absent_share, 0.5);
  EXPECT_EQ(read_back.machine.step_latency_s, 4.2e-5);
  ASSERT_EQ(read_back.models.size(), 2u);
  EXPECT_EQ(read_back.models[0].id, "a/b");
  EXPECT_EQ(read_back.models[1].shapes.at({2, 1}).stage_s, plain.stage_s);
  const ShapeProfile& shape = read_back.models[0].shapes.at({4, 2});
  EXPECT_EQ(shape.link_bytes, all.link_bytes);
  EXPECT_TRUE(read_back.models[0].shapes.at({1, 1}).link_bytes.empty());
  EXPECT_EQ(shape.stage_s, all.stage_s);
  EXPECT_EQ(shape.stage_bytes, all.stage_bytes);
  EXPECT_EQ(shape.layers, all.layers);
  EXPECT_EQ(shape.operation_bytes, all.operation_bytes);
  EXPECT_EQ(shape.cache_token_bytes, all.cache_token_bytes);
  EXPECT_FALSE(shape.measured);
  ASSERT_EQ(shape.passes.size(), 2u);
  EXPECT_EQ(shape.passes[1].rows, 2048);
  EXPECT_EQ(shape.passes[1].stage_s, all.passes[1].stage_s);
}

TEST_F(ProfilesFile, IsToBeThere) {
  expect_error(ExitCode::kNoInput, "cannot read the profiles '/nowhere/p.json'",
               [] { read_profiles("/nowhere/p.json"); });
}

}  // namespace
}  // namespace computron
