#include "computron/checkpoint/writer.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "tests/checkpoint/sample.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

CheckpointWriter sample_writer(const std::string& path) { return {path, "opt", "{}", sample_tensors()}; }

TEST(CheckpointWriterTest, UnfinishedLeavesNothing) {
  const Folder folder;
  {
    const CheckpointWriter writer = sample_writer(folder.file("m.h5"));
    EXPECT_TRUE(std::filesystem::exists(folder.file("m.h5.partial")));
  }
  EXPECT_FALSE(std::filesystem::exists(folder.file("m.h5.partial")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("m.h5")));
}

TEST(CheckpointWriterTest, FinishNamesWhatIsMissing) {
  const Folder folder;
  CheckpointWriter writer = sample_writer(folder.file("m.h5"));
  writer.write(0, 0, pattern(bytes_of(sample_tensors()[0]), 0));
  writer.write(1, 0, pattern(2 << 20, 1));
  ExitCode code{};
  EXPECT_THAT(message_of([&] { writer.finish(); }, &code),
              AllOf(HasSubstr("'layers.0.mlp.down.weight'"), HasSubstr("chunk 2")));
  EXPECT_EQ(code, ExitCode::kInternal);
  EXPECT_FALSE(std::filesystem::exists(folder.file("m.h5")));
}

TEST(CheckpointWriterTest, RefusesPiecesThatAreNotWholeChunks) {
  const Folder folder;
  CheckpointWriter writer = sample_writer(folder.file("m.h5"));
  const auto data = pattern(bytes_of(sample_tensors()[0]) + 1, 0);
  const auto write = [&](std::size_t tensor, std::size_t offset, std::size_t bytes) {
    return message_of([&] { writer.write(tensor, offset, std::span(data).first(bytes)); });
  };
  EXPECT_NE(write(0, 1, kDigestChunkBytes), "");
  EXPECT_NE(write(0, 0, kDigestChunkBytes - 4), "");
  EXPECT_NE(write(0, 0, data.size()), "");
  EXPECT_NE(write(9, 0, kDigestChunkBytes), "");
  EXPECT_EQ(write(0, kDigestChunkBytes, kDigestChunkBytes), "");
}

TEST(CheckpointWriterTest, ReplacesAFileOnlyWhenWhole) {
  const Folder folder;
  write_file(folder.file("m.h5"), {'o', 'l', 'd'});
  write_file(folder.file("m.h5.partial"), {'l', 'e', 'f', 't', 'o', 'v', 'e', 'r'});
  { const CheckpointWriter unfinished = sample_writer(folder.file("m.h5")); }
  EXPECT_EQ(read_file(folder.file("m.h5")).size(), 3u);
  write_sample(folder.file("m.h5"));
  EXPECT_EQ(read_checkpoint_index(folder.file("m.h5")).architecture, "opt");
}

TEST(CheckpointWriterTest, OneWriterAtATime) {
  const Folder folder;
  const CheckpointWriter first = sample_writer(folder.file("m.h5"));
  ExitCode code{};
  EXPECT_THAT(message_of([&] { sample_writer(folder.file("m.h5")); }, &code), HasSubstr("another process"));
  EXPECT_EQ(code, ExitCode::kCannotCreate);
  EXPECT_TRUE(std::filesystem::exists(folder.file("m.h5.partial")));
}

TEST(CheckpointWriterTest, PlacesThatCannotBeCreated) {
  const Folder folder;
  ExitCode code{};
  EXPECT_THAT(message_of([&] { sample_writer(folder.file("none/m.h5")); }, &code), HasSubstr("none/m.h5"));
  EXPECT_EQ(code, ExitCode::kCannotCreate);
  std::filesystem::create_directory(folder.file("m.h5"));
  EXPECT_THAT(message_of([&] { sample_writer(folder.file("m.h5")); }, &code), HasSubstr("regular file"));
  EXPECT_EQ(code, ExitCode::kCannotCreate);
}

TEST(CheckpointWriterTest, DoesNotFollowALinkAtTheFinalName) {
  const Folder folder;
  write_file(folder.file("target"), {'x'});
  std::filesystem::create_symlink(folder.file("target"), folder.file("m.h5"));
  std::filesystem::create_symlink(folder.file("target"), folder.file("n.h5.partial"));
  EXPECT_THROW(sample_writer(folder.file("m.h5")), Error);
  ExitCode code{};
  EXPECT_NE(message_of([&] { sample_writer(folder.file("n.h5")); }, &code), "");
  EXPECT_EQ(code, ExitCode::kPermission);
  EXPECT_EQ(read_file(folder.file("target")).size(), 1u);
}

TEST(CheckpointWriterTest, RefusesTensorsThatNoReaderWouldTake) {
  const Folder folder;
  const auto declare = [&](std::vector<TensorDeclaration> tensors) {
    return message_of([&] { CheckpointWriter(folder.file("m.h5"), "opt", "{}", tensors); });
  };
  EXPECT_THAT(declare({{"a/b", DType::kF32, {1}}}), HasSubstr("a/b"));
  EXPECT_THAT(declare({{"..", DType::kF32, {1}}}), HasSubstr("reserved"));
  EXPECT_THAT(declare({{"", DType::kF32, {1}}}), HasSubstr("empty"));
  EXPECT_THAT(declare({{"w", DType::kF32, {}}}), HasSubstr("0 dimensions"));
  EXPECT_THAT(declare({{"w", DType::kF32, {1, 1, 1, 1, 1}}}), HasSubstr("5 dimensions"));
  EXPECT_THAT(declare({{"w", DType::kF32, {4, 0}}}), HasSubstr("zero"));
  EXPECT_THAT(declare({{"w", DType::kF32, {std::size_t{1} << 40, std::size_t{1} << 40}}}), HasSubstr("overflows"));
  EXPECT_THAT(declare({{"w", DType::kInt8, {32, 32}}}), HasSubstr("groups of 0"));
  EXPECT_THAT(declare({{"w", DType::kInt8, {32, 32}, false, 17}}), HasSubstr("groups of 17"));
  EXPECT_THAT(declare({{"w", DType::kInt8, {32}, false, 32}}), HasSubstr("1 dimensions"));
  EXPECT_THAT(declare({{"w", DType::kInt4, {32, 31}, true, 32}}), HasSubstr("int4 lie two in a byte"));
  EXPECT_THAT(declare({{"w", DType::kF32, {1}}, {"w", DType::kF32, {1}}}), HasSubstr("twice"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("m.h5.partial")));
}

TEST(CheckpointWriterTest, SaysAtOnceThatThereIsNoRoom) {
  const Folder folder;
  ExitCode code{};
  const std::vector<TensorDeclaration> huge = {{"w", DType::kF32, {std::size_t{1} << 24, std::size_t{1} << 19}}};
  EXPECT_THAT(message_of([&] { CheckpointWriter(folder.file("m.h5"), "opt", "{}", huge); }, &code),
              HasSubstr("m.h5.partial"));
  EXPECT_EQ(code, ExitCode::kIo);
  EXPECT_FALSE(std::filesystem::exists(folder.file("m.h5.partial")));
}

}  // namespace
}  // namespace computron::test
