// Damaged files: every flipped bit of a tensor is found and named, damaged metadata is refused or has no effect.
#include <gmock/gmock.h>

#include "tests/checkpoint/sample.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Damage, AFlippedBitInAnyChunkIsFoundAndNamed) {
  const Folder folder;
  const std::string path = folder.file("m.h5");
  write_sample(path);
  const auto index = read_checkpoint_index(path);
  const TensorReader reader(index);
  for (const auto& [name, tensor] : index.tensors) {
    for (std::size_t chunk = 0; chunk < tensor.digests.size(); ++chunk) {
      const std::size_t at = std::min(chunk * kDigestChunkBytes + 77777 * chunk, tensor.bytes - 1);
      flip_bit(path, tensor.offset + at, static_cast<int>(chunk % 8));
      ExitCode code{};
      EXPECT_THAT(message_of([&] { read_tensor(reader, tensor, 0, tensor.bytes, 2 << 20); }, &code),
                  AllOf(StartsWith(path), HasSubstr("'" + name + "'"),
                        HasSubstr("chunk " + std::to_string(chunk) + " of"), HasSubstr(to_hex(tensor.digests[chunk]))));
      EXPECT_EQ(code, ExitCode::kData);
      flip_bit(path, tensor.offset + at, static_cast<int>(chunk % 8));
      EXPECT_EQ(read_tensor(reader, tensor, 0, tensor.bytes, 2 << 20).size(), tensor.bytes);
    }
  }
}

// Nothing of a damaged chunk reaches the sink, not even when the wanted part of it is sound.
TEST(Damage, SinkSeesOnlyVerifiedBytes) {
  const Folder folder;
  const std::string path = folder.file("m.h5");
  write_sample(path);
  const auto index = read_checkpoint_index(path);
  const TensorEntry& tensor = index.tensors.at("embedding.tokens.weight");
  flip_bit(path, tensor.offset + kDigestChunkBytes + 5, 0);
  std::size_t seen = 0;
  const auto count = [&](std::size_t, std::span<const std::byte> piece) { seen += piece.size(); };
  EXPECT_THROW(TensorReader(index).read(tensor, 0, kDigestChunkBytes + 4, 1, count), CheckpointError);
  EXPECT_EQ(seen, kDigestChunkBytes);
}

TEST(Damage, AnyOtherLengthIsRefused) {
  const Folder folder;
  const std::string path = folder.file("m.h5");
  write_sample(path);
  const std::size_t bytes = std::filesystem::file_size(path);
  for (const std::size_t length : {std::size_t{0}, std::size_t{7}, std::size_t{40}, std::size_t{600}, bytes / 2,
                                   bytes - 1, bytes + 1, bytes + 4096}) {
    std::filesystem::resize_file(path, length);
    ExitCode code{};
    EXPECT_THAT(message_of([&] { read_checkpoint_index(path); }, &code), StartsWith(path)) << length;
    EXPECT_EQ(code, ExitCode::kData) << length;
    write_sample(path);
  }
  std::filesystem::resize_file(path, bytes - 1);
  EXPECT_THAT(message_of([&] { read_checkpoint_index(path); }),
              AllOf(HasSubstr("truncated"), HasSubstr(std::to_string(bytes)), HasSubstr(std::to_string(bytes - 1))));
}

TEST(Damage, FilesThatAreNoInput) {
  const Folder folder;
  ExitCode code{};
  EXPECT_THAT(message_of([&] { read_checkpoint_index(folder.file("none.h5")); }, &code), HasSubstr("No such file"));
  EXPECT_EQ(code, ExitCode::kNoInput);
  std::filesystem::create_directory(folder.file("folder.h5"));
  EXPECT_THAT(message_of([&] { read_checkpoint_index(folder.file("folder.h5")); }, &code), HasSubstr("regular file"));
  EXPECT_EQ(code, ExitCode::kNoInput);
  write_file(folder.file("text.h5"), std::vector<char>(5000, 'x'));
  EXPECT_THAT(message_of([&] { read_checkpoint_index(folder.file("text.h5")); }, &code), HasSubstr("not an HDF5 file"));
  EXPECT_EQ(code, ExitCode::kData);
}

// Whether the bytes at `offset` belong to a tensor.
bool is_data(const CheckpointIndex& index, std::size_t offset) {
  for (const auto& [name, tensor] : index.tensors) {
    if (offset >= tensor.offset && offset < tensor.offset + tensor.bytes) return true;
  }
  return false;
}

// Places of metadata: bytes outside tensors that are not zero (most of the rest is padding), every third of them.
std::vector<std::size_t> metadata_places(const CheckpointIndex& index, const std::vector<char>& bytes) {
  std::vector<std::size_t> places;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (bytes[at] != 0 && !is_data(index, at)) places.push_back(at);
  }
  std::vector<std::size_t> some;
  for (std::size_t i = 0; i < places.size(); i += 3) some.push_back(places[i]);
  return some;
}

TEST(Damage, MetadataIsRefusedOrReadsAsBefore) {
  const Folder folder;
  const std::string path = folder.file("m.h5");
  write_sample(path);
  const auto index = read_checkpoint_index(path);
  const auto original = index.serialize();
  std::size_t refused = 0;
  const auto places = metadata_places(index, read_file(path));
  for (std::size_t i = 0; i < places.size(); ++i) {
    const int bit = static_cast<int>(i % 8);
    flip_bit(path, places[i], bit);
    const auto what = message_of([&] { EXPECT_EQ(read_checkpoint_index(path).serialize(), original) << places[i]; });
    if (!what.empty()) {
      ++refused;
      EXPECT_THAT(what, StartsWith(path));
    }
    flip_bit(path, places[i], bit);
  }
  EXPECT_GT(places.size(), 200u);
  EXPECT_GT(refused, places.size() / 2);
}

}  // namespace
}  // namespace computron::test
