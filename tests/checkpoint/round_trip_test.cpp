// What a CheckpointWriter wrote, read_checkpoint_index and TensorReader give back, and HDF5 reads it as numbers.
#include <gmock/gmock.h>
#include <hdf5.h>

#include <thread>

#include "tests/checkpoint/sample.h"

namespace computron::test {
namespace {

using testing::HasSubstr;

TEST(RoundTrip, IndexSaysWhatWasDeclared) {
  const Folder folder;
  write_sample(folder.file("m.h5"));
  const CheckpointIndex index = read_checkpoint_index(folder.file("m.h5"));
  EXPECT_EQ(index.path, folder.file("m.h5"));
  EXPECT_EQ(index.file_bytes, std::filesystem::file_size(index.path));
  EXPECT_EQ(index.architecture, "opt");
  EXPECT_EQ(index.config_json, kSampleConfig);
  ASSERT_EQ(index.tensors.size(), sample_tensors().size());
  for (const TensorDeclaration& declared : sample_tensors()) {
    const TensorEntry& stored = index.tensors.at(declared.name);
    EXPECT_EQ(stored.name, declared.name);
    EXPECT_EQ(stored.dtype, declared.dtype) << declared.name;
    EXPECT_EQ(stored.shape, declared.shape) << declared.name;
    EXPECT_EQ(stored.transposed, declared.transposed) << declared.name;
    EXPECT_EQ(stored.group, declared.group) << declared.name;
    EXPECT_EQ(stored.factor, declared.factor) << declared.name;
    EXPECT_EQ(stored.bytes, bytes_of(declared)) << declared.name;
    EXPECT_EQ(stored.digests.size(), ceil_div(stored.bytes, kDigestChunkBytes)) << declared.name;
  }
}

TEST(RoundTrip, LargeTensorsAreAligned) {
  const Folder folder;
  write_sample(folder.file("m.h5"));
  const auto index = read_checkpoint_index(folder.file("m.h5"));
  EXPECT_EQ(index.tensors.at("embedding.tokens.weight").offset % kDigestChunkBytes, 0u);
  EXPECT_EQ(index.tensors.at("layers.0.mlp.down.weight").offset % kDigestChunkBytes, 0u);
}

TEST(RoundTrip, AnyRangeInAnyPieces) {
  const Folder folder;
  write_sample(folder.file("m.h5"));
  const auto index = read_checkpoint_index(folder.file("m.h5"));
  const TensorReader reader(index);
  const auto declared = sample_tensors();
  for (unsigned t = 0; t < declared.size(); ++t) {
    const TensorEntry& tensor = index.tensors.at(declared[t].name);
    const auto expected = pattern(tensor.bytes, t);
    for (const std::size_t piece : {std::size_t{1}, std::size_t{3} << 20, std::size_t{64} << 20}) {
      EXPECT_EQ(read_tensor(reader, tensor, 0, tensor.bytes, piece), expected) << tensor.name;
      const std::size_t begin = tensor.bytes / 3, end = tensor.bytes * 5 / 6;
      const std::vector<std::byte> part(expected.begin() + begin, expected.begin() + end);
      EXPECT_EQ(read_tensor(reader, tensor, begin, end, piece), part) << tensor.name;
    }
  }
}

std::vector<CarriedFile> sample_tokenizer() {
  return {{"tokenizer.json", "{}"}, {"vocab.txt", std::string(kDigestChunkBytes + 5, 'v')}};
}

void write_with_tokenizer(const std::string& path, const std::vector<CarriedFile>& tokenizer) {
  CheckpointWriter writer(path, "opt", "{}", {{"w", DType::kF32, {2}}}, tokenizer);
  writer.write(0, 0, pattern(8, 0));
  writer.finish();
}

TEST(RoundTrip, FilesOfTheTokenizer) {
  const Folder folder;
  write_with_tokenizer(folder.file("m.h5"), sample_tokenizer());
  const auto index = CheckpointIndex::deserialize(read_checkpoint_index(folder.file("m.h5")).serialize());
  const TensorReader reader(index);
  ASSERT_EQ(index.tokenizer.size(), 2u);
  for (const CarriedFile& file : sample_tokenizer())
    EXPECT_EQ(reader.read(index.tokenizer.at(file.name)), file.content);
  EXPECT_EQ(read_tensor(reader, index.tensors.at("w"), 0, 8, 8), pattern(8, 0));
  flip_bit(folder.file("m.h5"), index.tokenizer.at("vocab.txt").offset + kDigestChunkBytes, 3);
  EXPECT_THAT(message_of([&] { reader.read(index.tokenizer.at("vocab.txt")); }),
              testing::AllOf(HasSubstr("tokenizer file 'vocab.txt': chunk 1 of 2"), HasSubstr("is damaged")));
}

TEST(RoundTrip, FilesThatCannotBeCarried) {
  const Folder folder;
  const auto refusal = [&](const std::vector<CarriedFile>& files) {
    return message_of([&] { write_with_tokenizer(folder.file("m.h5"), files); });
  };
  EXPECT_THAT(refusal({{"a", ""}}), HasSubstr("tokenizer file 'a': 0 bytes"));
  EXPECT_THAT(refusal({{"a", "x"}, {"a", "y"}}), HasSubstr("'a' is given twice"));
  EXPECT_THAT(refusal({{"a/b", "x"}}), HasSubstr("character 0x2f"));
  EXPECT_THAT(refusal(std::vector<CarriedFile>(33, {"a", "x"})), HasSubstr("33 files"));
}

TEST(RoundTrip, EmptyRangeReadsNothing) {
  const Folder folder;
  write_sample(folder.file("m.h5"));
  const auto index = read_checkpoint_index(folder.file("m.h5"));
  const TensorReader reader(index);
  EXPECT_TRUE(read_tensor(reader, index.tensors.at("patches"), 4, 4, 1 << 20).empty());
}

TEST(RoundTrip, PiecesAreNoLargerThanAsked) {
  const Folder folder;
  write_sample(folder.file("m.h5"));
  const auto index = read_checkpoint_index(folder.file("m.h5"));
  const TensorEntry& tensor = index.tensors.at("embedding.tokens.weight");
  TensorReader(index).read(tensor, 100, tensor.bytes, 1, [](std::size_t, std::span<const std::byte> piece) {
    EXPECT_LE(piece.size(), kDigestChunkBytes);
  });
}

TEST(RoundTrip, ThreadsWriteAndReadPieces) {
  const Folder folder;
  const std::size_t chunks = 16;
  const TensorDeclaration declared{"w", DType::kF16, {chunks, kDigestChunkBytes / 2}, false};
  const auto expected = pattern(bytes_of(declared), 0);
  {
    CheckpointWriter writer(folder.file("m.h5"), "opt", "{}", {declared});
    std::vector<std::jthread> threads;
    for (std::size_t first = 0; first < 4; ++first) {
      threads.emplace_back([&, first] {
        for (std::size_t chunk = first; chunk < chunks; chunk += 4) {
          const std::size_t at = chunk * kDigestChunkBytes;
          writer.write(0, at, std::span(expected).subspan(at, kDigestChunkBytes));
        }
      });
    }
    threads.clear();
    writer.finish();
  }
  const auto index = read_checkpoint_index(folder.file("m.h5"));
  const TensorReader reader(index);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back(
        [&] { EXPECT_EQ(read_tensor(reader, index.tensors.at("w"), 0, expected.size(), 2 << 20), expected); });
  }
}

TEST(RoundTrip, SameContentSameFile) {
  const Folder folder;
  write_sample(folder.file("a.h5"));
  write_sample(folder.file("b.h5"));
  EXPECT_EQ(read_file(folder.file("a.h5")), read_file(folder.file("b.h5")));
}

// HDF5's own conversion of each 16-bit type to float agrees with ours.
TEST(RoundTrip, Hdf5ReadsNumbers) {
  const Folder folder;
  const std::vector<float> values = {0.0f, 1.0f, -2.5f, 0.0078125f, 1024.0f, -0.15625f};
  std::vector<std::uint16_t> f16, bf16;
  for (const float value : values) f16.push_back(f16_from_f32(value));
  for (const float value : values) bf16.push_back(bf16_from_f32(value));
  {
    CheckpointWriter writer(folder.file("m.h5"), "opt", "{}",
                            {{"f32", DType::kF32, {6}}, {"f16", DType::kF16, {6}}, {"bf16", DType::kBF16, {6}}});
    writer.write(0, 0, std::as_bytes(std::span(values)));
    writer.write(1, 0, std::as_bytes(std::span(f16)));
    writer.write(2, 0, std::as_bytes(std::span(bf16)));
    writer.finish();
  }
  const hid_t file = H5Fopen(folder.file("m.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  for (const char* name : {"/tensors/f32", "/tensors/f16", "/tensors/bf16"}) {
    const hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    std::vector<float> read(values.size());
    EXPECT_GE(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, read.data()), 0);
    EXPECT_EQ(read, values) << name;
    H5Dclose(dataset);
  }
  H5Fclose(file);
}

TEST(TensorReaderTest, RefusesAFileThatChangedItsSize) {
  const Folder folder;
  write_sample(folder.file("m.h5"));
  auto index = read_checkpoint_index(folder.file("m.h5"));
  std::filesystem::resize_file(index.path, index.file_bytes - 1);
  ExitCode code{};
  EXPECT_THAT(message_of([&] { TensorReader reader(index); }, &code), HasSubstr(std::to_string(index.file_bytes)));
  EXPECT_EQ(code, ExitCode::kNoInput);
  std::filesystem::remove(index.path);
  EXPECT_THAT(message_of([&] { TensorReader reader(index); }, &code), HasSubstr(index.path));
  EXPECT_EQ(code, ExitCode::kNoInput);
}

}  // namespace
}  // namespace computron::test
