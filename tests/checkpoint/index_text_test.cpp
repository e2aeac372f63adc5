// The helper's answer as hostile text: what an index says comes back, anything else is refused with the line.
#include "src/checkpoint/index_text.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/checkpoint/sample.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::size_t kFileBytes = 9 << 20;

CheckpointIndex sample_index() {
  CheckpointIndex index;
  index.path = "m.h5";
  index.file_bytes = kFileBytes;
  index.architecture = "opt";
  index.config_json = "{\"a\":\n\"Größe\"}";
  TensorEntry tensor;
  tensor.name = "w";
  tensor.shape = {1 << 19, 2};
  tensor.offset = 4096;
  tensor.bytes = 4 << 20;
  tensor.digests.resize(4, Digest128{0x01, 0xfe});
  index.tensors.emplace("w", tensor);
  FileEntry file;
  file.name = "vocab.json";
  file.offset = 8 << 20;
  file.bytes = 10;
  file.digests.resize(1);
  index.tokenizer.emplace("vocab.json", file);
  return index;
}

std::string fault_of(const std::string& text) {
  ExitCode code{};
  const std::string message = message_of([&] { parse_index_text(text, "m.h5", kFileBytes); }, &code);
  EXPECT_EQ(code, ExitCode::kData) << message;
  EXPECT_THAT(message, StartsWith("m.h5: "));
  return message;
}

// The sample's text with a part replaced.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = index_text(sample_index());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(IndexText, ComesBack) {
  const CheckpointIndex index = sample_index();
  EXPECT_EQ(parse_index_text(index_text(index), "m.h5", kFileBytes).serialize(), index.serialize());
  EXPECT_LT(index_text(index).size(), index_text_limit(kFileBytes));
}

TEST(IndexText, ARefusalIsTheHelpersError) {
  ExitCode code{};
  const auto refusal_of = [&](const Error& error) {
    return message_of([&] { parse_index_text(index_text(error), "m.h5", kFileBytes); }, &code);
  };
  EXPECT_EQ(refusal_of(CheckpointError("m.h5: tensor 'w': bad")), "m.h5: tensor 'w': bad");
  EXPECT_EQ(code, ExitCode::kData);
  refusal_of(Error(ExitCode::kNoInput, "m.h5: gone"));
  EXPECT_EQ(code, ExitCode::kNoInput);
  EXPECT_EQ(refusal_of(Error(ExitCode::kOk, "\x1b[2J\n")), "\\x1b[2J\\x0a");  // no other code, nothing for a terminal
  EXPECT_EQ(code, ExitCode::kData);
  EXPECT_LE(refusal_of(CheckpointError(std::string(100000, 'x'))).size(), 4096u);
}

TEST(IndexText, EveryTruncationIsRefused) {
  const std::string text = index_text(sample_index());
  for (std::size_t length = 0; length < text.size(); ++length) fault_of(text.substr(0, length));
}

TEST(IndexText, LinesThatAreWrong) {
  EXPECT_THAT(fault_of("computron-index 2\n"), HasSubstr("line 1"));
  EXPECT_THAT(fault_of(changed("bytes 9437184", "bytes 9437185")), AllOf(HasSubstr("9437184"), HasSubstr("9437185")));
  EXPECT_THAT(fault_of(changed("bytes 9437184", "bytes -1")), HasSubstr("'-1' is no number"));
  EXPECT_THAT(fault_of(changed("bytes 9437184", "bytes 9437184 ")), HasSubstr("too many words"));
  EXPECT_THAT(fault_of(changed("config ", "konfig ")), HasSubstr("'konfig' instead of 'config'"));
  EXPECT_THAT(fault_of(changed("6f7074", "6f707")), HasSubstr("half a byte"));
  EXPECT_THAT(fault_of(changed("6f7074", "6f70zz")), HasSubstr("not hexadecimal"));
  EXPECT_THAT(fault_of(changed("6f7074", std::string(2 * 65537, '0'))), HasSubstr("too long"));
  EXPECT_THAT(fault_of(changed("tensor w", "thing w")), HasSubstr("'thing' is no part of an index"));
  EXPECT_THAT(fault_of(changed("tensor w", "tensor ../w")), HasSubstr("0x2f"));
  EXPECT_THAT(fault_of(changed("w f32", "w f64")), HasSubstr("'f64' is no type"));
  EXPECT_THAT(fault_of(changed("f32 0", "f32 2")), HasSubstr("transposed"));
  EXPECT_THAT(fault_of(changed("524288x2", "524288x")), HasSubstr("'' is no number"));
  EXPECT_THAT(fault_of(changed("524288x2", "524288x2x1x1x1")), HasSubstr("too many dimensions"));
  EXPECT_THAT(fault_of(changed("end 1 1", "end 2 1")), HasSubstr("another number of tensors"));
  EXPECT_THAT(fault_of(changed("end 1 1\n", "end 1 1\nend 1 1\n")), HasSubstr("something follows"));
  const std::string text = index_text(sample_index());
  const std::size_t begin = text.find("tensor"), end = text.find("file ");
  EXPECT_THAT(fault_of(changed("tensor w", text.substr(begin, end - begin) + "tensor w")), HasSubstr("there before"));
}

// An index with a quantised weight "q" [64, 256] and its scales.
CheckpointIndex quantised_index(DType codes, int group, bool transposed = false) {
  CheckpointIndex index = sample_index();
  TensorEntry tensor;
  tensor.name = "q";
  tensor.dtype = codes;
  tensor.shape = {64, 256};
  tensor.transposed = transposed;
  tensor.group = group;
  tensor.offset = 5 << 20;
  tensor.bytes = bytes_of(codes, 64 * 256);
  tensor.digests.resize(1);
  index.tensors.emplace("q", tensor);
  tensor.name = scales_name("q");
  tensor.dtype = DType::kE8M0;
  tensor.shape = scales_shape(tensor.shape, transposed, std::max(group, 1));
  tensor.group = 0;
  tensor.offset = 6 << 20;
  tensor.bytes = tensor.shape[0] * tensor.shape[1];
  index.tensors.emplace(tensor.name, tensor);
  return index;
}

TEST(IndexText, QuantisedTensorsComeBack) {
  for (const DType codes : kCodeDTypes) {
    for (const int group : {16, 32, 256, WeightType::kWholeRow}) {
      const CheckpointIndex index = quantised_index(codes, group);
      const CheckpointIndex again = parse_index_text(index_text(index), "m.h5", kFileBytes);
      EXPECT_EQ(again.serialize(), index.serialize());
      EXPECT_EQ(again.tensors.at("q").group, group);
      EXPECT_EQ(CheckpointIndex::deserialize(index.serialize()).tensors.at("q").group, group);
    }
  }
}

// A weight [64, 256] of NVFP4; its factor goes to the bit.
CheckpointIndex index_with_factor(double factor) {
  CheckpointIndex index = quantised_index(DType::kFp4, 16);
  index.tensors.at("q.scales").dtype = DType::kE4M3;
  index.tensors.at("q.scales").factor = factor;
  return index;
}

TEST(IndexText, FactorsComeBack) {
  for (const double factor : {1.0, 0.0, 1.0 / 3, 5e-324, 1e30}) {
    const CheckpointIndex again = parse_index_text(index_text(index_with_factor(factor)), "m.h5", kFileBytes);
    EXPECT_EQ(again.tensors.at("q.scales").factor, factor);
    EXPECT_EQ(CheckpointIndex::deserialize(again.serialize()).tensors.at("q.scales").factor, factor);
  }
}

TEST(IndexText, FactorsThatCannotBe) {
  for (const double factor : {-1.0, HUGE_VAL, std::nan(""), 1e36}) {
    EXPECT_THAT(fault_of(index_text(index_with_factor(factor))),
                AllOf(HasSubstr("tensor 'q.scales'"), HasSubstr("negative or not finite")));
  }
  EXPECT_THAT(fault_of(changed("w f32 ", "w e4m3 ")), HasSubstr("e4m3 without a factor"));
  EXPECT_THAT(fault_of(changed("w f32 ", "w e4m3:3ff ")), HasSubstr("not of 64 bits"));
  EXPECT_THAT(fault_of(changed("w f32 ", "w e4m3:3ff000000000000g ")), HasSubstr("not hexadecimal"));
}

TEST(IndexText, GroupsThatCannotBe) {
  const auto refusal = [](int group, bool transposed = false) {
    return fault_of(index_text(quantised_index(DType::kInt8, group, transposed)));
  };
  EXPECT_THAT(refusal(0), AllOf(HasSubstr("tensor 'q'"), HasSubstr("groups of 0")));
  EXPECT_THAT(refusal(17), HasSubstr("groups of 17 of 256 values"));
  EXPECT_THAT(refusal(8), HasSubstr("groups of 8"));
  EXPECT_THAT(refusal(272), HasSubstr("groups of 272 of 256 values"));
  EXPECT_THAT(refusal(80, /*transposed=*/true), HasSubstr("groups of 80 of 64 values"));
  EXPECT_THAT(fault_of(changed("w f32 ", "w f32:32 ")), HasSubstr("f32 in groups of 32"));
  EXPECT_THAT(fault_of(changed("w f32 ", "w int8:-32 ")), HasSubstr("'-32' is no number"));
  EXPECT_THAT(fault_of(changed("w f32 ", "w int8:4294967328 ")), HasSubstr("too long"));
  EXPECT_THAT(fault_of(changed("w f32 ", "w int8: ")), HasSubstr("'' is no number"));
  EXPECT_THAT(fault_of(changed("w f32 ", "w int5:32 ")), HasSubstr("'int5' is no type"));
}

TEST(IndexText, CodesOfAnotherLengthThanTheirShape) {
  EXPECT_THAT(fault_of(changed("w f32 ", "w int8:row ")), HasSubstr("its shape needs 1048576"));
  EXPECT_THAT(fault_of(changed("w f32 ", "w int4:row ")), HasSubstr("its shape needs 524288"));
  std::string text = changed("w f32 ", "w int4:row ");
  text.replace(text.find("524288x2"), 8, "524288x3");
  EXPECT_THAT(fault_of(text), HasSubstr("a last dimension of 3, but int4 lie two in a byte"));
  text.replace(text.find("524288x3"), 8, "1048576");
  EXPECT_THAT(fault_of(text), HasSubstr("codes of 1 dimensions"));
}

// Whatever HDF5 is made to say, nothing is read outside the file, twice, or without its digest.
TEST(IndexText, EntriesThatCannotBe) {
  const auto refusal = [](const std::string& from, const std::string& to) { return fault_of(changed(from, to)); };
  EXPECT_THAT(refusal("4194304 524288x2", "4194304 524288x3"), HasSubstr("4194304 bytes stored, its shape needs"));
  EXPECT_THAT(refusal("524288x2", "4611686018427387904x4"), HasSubstr("size overflows"));
  EXPECT_THAT(refusal("524288x2", "524288x0"), HasSubstr("a dimension is zero"));
  EXPECT_THAT(refusal("0 4096 4194304", "0 9437180 4194304"), HasSubstr("outside the file"));
  EXPECT_THAT(refusal("0 4096 4194304", "0 18446744073709551615 4194304"), HasSubstr("outside the file"));
  EXPECT_THAT(refusal("8388608 10", "4100 10"), AllOf(HasSubstr("'w' and 'vocab.json' overlap")));
  EXPECT_THAT(refusal("8388608 10", "8388608 0"), HasSubstr("0 bytes"));
  EXPECT_THAT(refusal(" 01fe",
                      " 00000000000000000000000000000000"
                      "01fe"),
              HasSubstr("5 digests for 4 chunks"));
}

}  // namespace
}  // namespace computron::test
