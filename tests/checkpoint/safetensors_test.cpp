// The rules of safetensors, one by one: what is sound is read, everything else is refused by the name of the fault.
#include "computron/checkpoint/safetensors.h"

#include <gmock/gmock.h>

#include "computron/checkpoint/model_folder.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/safetensors_file.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// Why a file is refused; empty if it is not.
std::string refusal(const std::string& bytes) {
  const Folder folder;
  write_text(folder.file("m.safetensors"), bytes);
  ExitCode code = ExitCode::kData;
  const std::string message = message_of([&] { SafetensorsFile(folder.file("m.safetensors")); }, &code);
  EXPECT_EQ(code, ExitCode::kData) << message;
  EXPECT_THAT(message, testing::AnyOf("", StartsWith(folder.file("m.safetensors"))));
  return message;
}

std::string refusal_of(const std::string& header, std::size_t data_bytes = 8) {
  return refusal(safetensors_file(header, std::string(data_bytes, 'x')));
}

constexpr char kSound[] = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

TEST(Safetensors, ReadsWhatAnotherProgramWrote) {
  const Folder folder;
  write_text(folder.file("m"), safetensors_file({counting("a", {2, 3}, 1),
                                                 {"ids", "I64", {1, 2}, std::string(16, 7)},
                                                 {"empty", "F16", {0, 4}, ""},
                                                 counting("scalar", {}, 9)}));
  const SafetensorsFile file(folder.file("m"));
  ASSERT_EQ(file.entries().size(), 4u);
  EXPECT_EQ(file.entries().at("a").usable_dtype(), DType::kF32);
  EXPECT_EQ(file.entries().at("ids").usable_dtype(), std::nullopt);
  EXPECT_EQ(file.entries().at("ids").dtype, "I64");
  EXPECT_THAT(file.entries().at("ids").shape, ElementsAre(1, 2));
  EXPECT_THAT(file.entries().at("scalar").shape, IsEmpty());
  float values[2] = {};
  file.read(file.entries().at("a"), file.entries().at("a").begin + 8, std::as_writable_bytes(std::span(values)));
  EXPECT_THAT(values, ElementsAre(3, 4));
  EXPECT_THAT(message_of([&] { file.read(file.entries().at("a"), 20, std::as_writable_bytes(std::span(values))); }),
              HasSubstr("outside a tensor"));
}

TEST(Safetensors, SoundHeaders) {
  EXPECT_EQ(refusal_of(kSound), "");
  EXPECT_EQ(refusal_of(std::string(kSound) + "      "), "");  // padded with spaces
  EXPECT_EQ(refusal_of("{}", 0), "");
  EXPECT_EQ(refusal_of(R"({"__metadata__":{"a":"b"}})", 0), "");
  // In any order, with a tensor of no bytes between the others.
  EXPECT_EQ(refusal_of(R"({"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]},
                           "n":{"dtype":"BF16","shape":[3,0],"data_offsets":[4,4]},
                           "a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"}})"),
            "");
}

TEST(Safetensors, LengthOfTheHeader) {
  EXPECT_THAT(refusal("1234567"), HasSubstr("too short"));
  EXPECT_THAT(refusal(std::string("\x09\0\0\0\0\0\0\0{}", 10)), HasSubstr("header of 9 bytes in a file of 10"));
  EXPECT_THAT(refusal(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)), HasSubstr("limit 100000000"));
  EXPECT_THAT(refusal(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)), HasSubstr("100000001 bytes (limit"));
}

TEST(Safetensors, Json) {
  EXPECT_THAT(refusal_of(std::string(" ") + kSound), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(refusal_of(""), HasSubstr("does not begin"));
  EXPECT_THAT(refusal_of(R"({"a":)"), HasSubstr("no valid JSON"));
  EXPECT_THAT(refusal_of(std::string(kSound) + "x"), HasSubstr("no valid JSON"));
  EXPECT_THAT(refusal_of(std::string(kSound) + '\0'), HasSubstr("a zero byte at 54"));
  EXPECT_THAT(refusal_of("{\"\xff\":1}"), HasSubstr("UTF-8"));
  EXPECT_THAT(refusal_of(R"({"a":1})"), AllOf(HasSubstr("tensor 'a'"), HasSubstr("a number is not expected")));
  EXPECT_THAT(refusal_of(R"({"a":[]})"), HasSubstr("a list is not expected"));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":null}})"), HasSubstr("null is not expected"));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":{}}})"), HasSubstr("an object is not expected"));
  EXPECT_THAT(refusal_of(R"({"a":{"shape":[[)"), HasSubstr("a list is not expected"));
  EXPECT_THAT(refusal_of(R"({"a":{"shape":[2.0]}})"), HasSubstr("no integer"));
  EXPECT_THAT(refusal_of(R"({"a":{"shape":[-1]}})"), HasSubstr("a negative number"));
  EXPECT_THAT(refusal_of(R"({"a":{"shape":[18446744073709551616]}})"), HasSubstr("no integer of 64 bits"));
  EXPECT_THAT(refusal_of("{\"a\\u0007\":1}"), HasSubstr("tensor 'a\\x07'"));  // one line, whatever the name
}

TEST(Safetensors, Metadata) {
  EXPECT_THAT(refusal_of(R"({"__metadata__":{"a":1}})", 0), HasSubstr("a number is not expected"));
  EXPECT_THAT(refusal_of(R"({"__metadata__":{"a":{}}})", 0), HasSubstr("an object is not expected"));
  EXPECT_THAT(refusal_of(R"({"__metadata__":"a"})", 0), HasSubstr("a string is not expected"));
}

TEST(Safetensors, DuplicateKeys) {
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                             "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
              HasSubstr("the key 'a' stands twice"));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
              HasSubstr("the key 'dtype' stands twice"));
  EXPECT_THAT(refusal_of(R"({"__metadata__":{"k":"1","k":"2"}})", 0), HasSubstr("the key 'k' stands twice"));
  EXPECT_THAT(refusal_of(R"({"__metadata__":{},"__metadata__":{}})", 0), HasSubstr("'__metadata__' stands twice"));
}

TEST(Safetensors, PartsOfATensor) {
  EXPECT_THAT(refusal_of(R"({"a":{"shape":[2],"data_offsets":[0,8]}})"), HasSubstr("tensor 'a': 'dtype' is missing"));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})"), HasSubstr("'shape' is missing"));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":"F32","shape":[2]}})"), HasSubstr("'data_offsets' is missing"));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})"),
              HasSubstr("unknown key 'x'"));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":"f32","shape":[2],"data_offsets":[0,8]}})"),
              HasSubstr("unknown dtype 'f32'"));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8]}})"), HasSubstr("1 numbers instead"));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})"), HasSubstr("more than 2"));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]}})"),
              HasSubstr("more than 16 numbers in 'shape'"));
}

TEST(Safetensors, Sizes) {
  const auto sized = [](const char* dtype, const char* shape, const char* offsets) {
    return refusal_of(
        fmt::format(R"({{"a":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}}}})", dtype, shape, offsets));
  };
  EXPECT_EQ(sized("F32", "2,1", "0,8"), "");
  EXPECT_EQ(sized("F4", "4,4", "0,8"), "");
  EXPECT_THAT(sized("F32", "3", "0,8"), HasSubstr("8 bytes stored, its shape and dtype need 12"));
  EXPECT_THAT(sized("F16", "3", "0,8"), HasSubstr("need 6"));
  EXPECT_THAT(sized("F4", "17", "0,8"), HasSubstr("no whole number of bytes"));
  EXPECT_THAT(sized("F32", "4611686018427387904,4", "0,8"), HasSubstr("overflows"));
  EXPECT_THAT(sized("F32", "2", "8,0"), HasSubstr("outside the 8 bytes"));
  EXPECT_THAT(sized("F32", "3", "0,12"), HasSubstr("bytes 0 to 12 are outside the 8 bytes"));
  EXPECT_THAT(sized("F32", "2", "18446744073709551608,18446744073709551615"), HasSubstr("outside"));
}

TEST(Safetensors, CoverOfTheData) {
  const std::string two = R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{}]}},)"
                          R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{}]}}}})";
  const auto covered = [&](int a, const char* at_a, int b, const char* at_b) {
    return refusal_of(fmt::format(fmt::runtime(two), a, at_a, b, at_b));
  };
  EXPECT_EQ(covered(4, "0,4", 4, "4,8"), "");
  EXPECT_THAT(covered(3, "0,3", 4, "4,8"), AllOf(HasSubstr("tensor 'b'"), HasSubstr("bytes 3 to 4 before it")));
  EXPECT_THAT(covered(5, "0,5", 4, "4,8"), AllOf(HasSubstr("tensor 'b'"), HasSubstr("within the tensor before it")));
  EXPECT_THAT(covered(7, "1,8", 0, "8,8"), HasSubstr("tensor 'a': bytes 0 to 1 before it"));
  EXPECT_THAT(covered(4, "0,4", 3, "4,7"), HasSubstr("7 bytes of data are described, the file has 8"));
  EXPECT_THAT(covered(8, "0,8", 0, "4,4"), HasSubstr("tensor 'b': begins at byte 4, within"));
}

TEST(Safetensors, FileThatIsCutWhileItIsRead) {
  const Folder folder;
  write_text(folder.file("m"), safetensors_file({counting("a", {4096}, 0)}));
  const SafetensorsFile file(folder.file("m"));
  std::filesystem::resize_file(folder.file("m"), 8192);
  std::vector<std::byte> bytes(16384);
  EXPECT_THAT(message_of([&] { file.read(file.entries().at("a"), 0, bytes); }), HasSubstr("the file ends within"));
}

std::string index_refusal(const std::string& json) {
  ExitCode code = ExitCode::kData;
  const auto message = message_of([&] { parse_safetensors_index(json, "index.json"); }, &code);
  EXPECT_EQ(code, ExitCode::kData);
  return message;
}

std::string refusal_of_shard(const std::string& file) {
  return index_refusal(fmt::format(R"({{"weight_map":{{"t":"{}"}}}})", file));
}

TEST(SafetensorsIndex, ReadsTheMapAndPassesTheRest) {
  const auto map = parse_safetensors_index(
      R"({"metadata":{"total_size":9,"x":[null,true,-1,1.5,{"weight_map":{"no":"no"}}]},"weight_map":{"a":"1.safetensors"}})",
      "i");
  EXPECT_THAT(map, ElementsAre(testing::Pair("a", "1.safetensors")));
}

// Qwen3-235B-A22B of GPTQ has so many.
TEST(SafetensorsIndex, HoldsTheTensorsOfALargeMixtureWithQuantisedExperts) {
  constexpr std::size_t kTensors = 144'384;
  std::string json = R"({"weight_map":{)";
  for (std::size_t i = 0; i < kTensors; ++i) json += fmt::format(R"({}"{}":"m.safetensors")", i > 0 ? "," : "", i);
  EXPECT_EQ(parse_safetensors_index(json + "}}", "i").size(), kTensors);
}

TEST(SafetensorsIndex, NamesStayInTheFolder) {
  EXPECT_EQ(refusal_of_shard("model-00001-of-00002.safetensors"), "");
  EXPECT_THAT(refusal_of_shard("../m.safetensors"), AllOf(HasSubstr("tensor 't'"), HasSubstr("a path")));
  EXPECT_THAT(refusal_of_shard("/etc/m.safetensors"), HasSubstr("a path"));
  EXPECT_THAT(refusal_of_shard("a\\\\m.safetensors"), HasSubstr("a path"));
  EXPECT_THAT(refusal_of_shard("m\\u0000.safetensors"), HasSubstr("control characters"));
  EXPECT_THAT(refusal_of_shard(".safetensors"), HasSubstr("hidden"));
  EXPECT_THAT(refusal_of_shard(".."), HasSubstr("not the name of a safetensors file"));
  EXPECT_THAT(refusal_of_shard(""), HasSubstr("not the name of a safetensors file"));
  EXPECT_THAT(refusal_of_shard("pytorch_model.bin"), HasSubstr("not the name of a safetensors file"));
}

TEST(SafetensorsIndex, Shape) {
  EXPECT_THAT(index_refusal("{}"), HasSubstr("'weight_map' is missing"));
  EXPECT_THAT(index_refusal("[]"), HasSubstr("a list is not expected"));
  EXPECT_THAT(index_refusal("\"x\""), HasSubstr("a string is not expected"));
  EXPECT_THAT(index_refusal(R"({"weight_map":{}})"), HasSubstr("is empty"));
  EXPECT_THAT(index_refusal(R"({"weight_map":"x"})"), HasSubstr("a string is not expected"));
  EXPECT_THAT(index_refusal(R"({"weight_map":[{"a":"m.safetensors"}]})"), HasSubstr("a list is not expected"));
  EXPECT_THAT(index_refusal(R"({"weight_map":{"a":{"b":"m.safetensors"}}})"), HasSubstr("an object is not expected"));
  EXPECT_THAT(index_refusal(R"({"weight_map":{"a":1}})"), HasSubstr("a number is not expected"));
  EXPECT_THAT(index_refusal(R"({"weight_map":{"a":"m.safetensors","a":"n.safetensors"}})"),
              HasSubstr("'a' stands twice"));
  EXPECT_THAT(index_refusal(R"({"weight_map":{"a":"m.safetensors"},"weight_map":{"b":"m.safetensors"}})"),
              HasSubstr("'weight_map' stands twice"));
  EXPECT_THAT(index_refusal("{\"x\":" + std::string(20, '[')), HasSubstr("nested deeper than 16"));
  EXPECT_THAT(index_refusal("{\"weight_map\":"), HasSubstr("no valid JSON"));
}

// A folder with two shards and an index that says where tensors a and b are.
struct Shards {
  Folder folder;
  std::string message(const std::string& a = "1", const std::string& b = "2") const {
    write_text(folder.file("model.safetensors.index.json"),
               fmt::format(R"({{"weight_map":{{"a":"{}.safetensors","b":"{}.safetensors"}}}})", a, b));
    return message_of([&] { SafetensorsFolder{ModelFolder(folder.file(""))}; });
  }
  void put(const std::string& shard, const std::vector<StoredTensor>& tensors) const {
    write_text(folder.file(shard + ".safetensors"), safetensors_file(tensors));
  }
};

TEST(SafetensorsFolder, TensorsAreWhereTheIndexSays) {
  const Shards shards;
  shards.put("1", {counting("a", {2}, 1)});
  shards.put("2", {counting("b", {2}, 2), counting("c", {2}, 3)});
  EXPECT_EQ(shards.message(), "");
  const SafetensorsFolder folder{ModelFolder(shards.folder.file(""))};
  EXPECT_EQ(folder.tensors().size(), 2u);
  EXPECT_EQ(folder.tensors().at("b").file->path(), std::filesystem::canonical(shards.folder.file("2.safetensors")));
  EXPECT_THAT(folder.unlisted(), ElementsAre("c"));
  EXPECT_THAT(shards.message("2", "2"), AllOf(HasSubstr("'a' is not in 2.safetensors"), HasSubstr("index.json says")));
  EXPECT_THAT(shards.message("3", "2"), AllOf(HasSubstr("3.safetensors"), HasSubstr("No such file")));
  shards.put("2", {counting("a", {2}, 2), counting("b", {2}, 3)});
  EXPECT_THAT(shards.message(), HasSubstr("'a' too, which model.safetensors.index.json says is in 1.safetensors"));
}

TEST(SafetensorsFolder, LinksLeadNowhereElse) {
  const Shards shards;
  shards.put("1", {counting("a", {2}, 1)});
  const std::string elsewhere = shards.folder.file("") + "../computron_elsewhere_" + std::to_string(getpid());
  write_text(elsewhere, safetensors_file({counting("b", {2}, 2)}));
  std::filesystem::create_symlink(elsewhere, shards.folder.file("2.safetensors"));
  EXPECT_THAT(shards.message(),
              AllOf(HasSubstr("2.safetensors"), HasSubstr("leads out of the folder"), HasSubstr("--dereference")));
  std::filesystem::rename(elsewhere, shards.folder.file("real"));
  std::filesystem::remove(shards.folder.file("2.safetensors"));
  std::filesystem::create_symlink("real", shards.folder.file("2.safetensors"));
  EXPECT_EQ(shards.message(), "");
}

// REPO/snapshots/REVISION/config.json is a link to REPO/blobs/DIGEST.
TEST(SafetensorsFolder, TheCacheOfTheHub) {
  const Folder repo;
  write_text(repo.file("blobs/0123"), "text");
  write_text(repo.file("refs/main"), "main");
  std::filesystem::create_directories(repo.file("snapshots/abc"));
  std::filesystem::create_symlink("../../blobs/0123", repo.file("snapshots/abc/config.json"));
  std::filesystem::create_symlink("../../refs/main", repo.file("snapshots/abc/stray.json"));
  const ModelFolder folder(repo.file("snapshots/abc"));
  EXPECT_EQ(folder.read("config.json", 4), "text");
  EXPECT_THAT(message_of([&] { folder.read("config.json", 3); }), HasSubstr("4 bytes (limit 3)"));
  EXPECT_THAT(message_of([&] { folder.read("stray.json", 100); }), HasSubstr("leads out of the folder"));
}

TEST(SafetensorsFolder, OtherFormatsAreRefusedByName) {
  const auto with = [](const std::string& name) {
    const Folder folder;
    write_text(folder.file(name), "x");
    return message_of([&] { SafetensorsFolder{ModelFolder(folder.file(""))}; });
  };
  EXPECT_THAT(with("config.json"), HasSubstr("no model.safetensors"));
  EXPECT_THAT(with("pytorch_model.bin"),
              AllOf(HasSubstr("pytorch_model.bin is a Python pickle"), HasSubstr("save_pretrained")));
  EXPECT_THAT(with("model.pt"), HasSubstr("pickle"));
  EXPECT_THAT(with("model.Q4_K_M.gguf"), HasSubstr("quantised"));
  EXPECT_THAT(with("adapter_model.safetensors"), HasSubstr("--adapter"));
  EXPECT_THAT(message_of([] { ModelFolder("/nonexistent"); }), HasSubstr("/nonexistent"));
}

}  // namespace
}  // namespace computron::test
