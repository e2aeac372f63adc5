#include "computron/checkpoint/index.h"

#include "tests/checkpoint/sample.h"

namespace computron::test {
namespace {

TEST(CheckpointIndexTest, SurvivesBeingSentRound) {
  const Folder folder;
  write_sample(folder.file("m.h5"));
  const CheckpointIndex index = read_checkpoint_index(folder.file("m.h5"));
  const auto bytes = index.serialize();
  const CheckpointIndex copy = CheckpointIndex::deserialize(bytes);
  EXPECT_EQ(copy.serialize(), bytes);
  EXPECT_EQ(copy.path, index.path);
  EXPECT_EQ(copy.file_bytes, index.file_bytes);
  EXPECT_EQ(copy.architecture, index.architecture);
  EXPECT_EQ(copy.config_json, index.config_json);
  const TensorEntry& sent = copy.tensors.at("layers.0.mlp.down.weight");
  const TensorEntry& original = index.tensors.at("layers.0.mlp.down.weight");
  EXPECT_EQ(sent.dtype, DType::kBF16);
  EXPECT_EQ(sent.shape, original.shape);
  EXPECT_TRUE(sent.transposed);
  EXPECT_EQ(sent.offset, original.offset);
  EXPECT_EQ(sent.bytes, original.bytes);
  EXPECT_EQ(sent.digests, original.digests);
}

// And a model in one file is what it was before there were models in two, since journals know it by a digest.
TEST(CheckpointIndexTest, TellsWhatLiesInASecondFile) {
  const Folder folder;
  write_sample(folder.file("m.h5"));
  CheckpointIndex index = read_checkpoint_index(folder.file("m.h5"));
  const std::size_t of_one_file = index.serialize().size();
  index.second_path = "adapter.h5";
  index.second_file_bytes = 77;
  index.tensors.at("layers.0.mlp.down.weight").in_second_file = true;
  const CheckpointIndex copy = CheckpointIndex::deserialize(index.serialize());
  EXPECT_EQ(copy.second_path, "adapter.h5");
  EXPECT_EQ(copy.second_file_bytes, 77u);
  for (const auto& [name, tensor] : copy.tensors) {
    EXPECT_EQ(tensor.in_second_file, name == "layers.0.mlp.down.weight") << name;
  }
  EXPECT_EQ(index.serialize().size(), of_one_file + 4 + 10 + 8 + index.tensors.size());
}

TEST(CheckpointIndexTest, RefusesShortAndLongMessages) {
  CheckpointIndex index;
  index.path = "m.h5";
  auto bytes = index.serialize();
  bytes.push_back(std::byte{0});
  EXPECT_THROW(CheckpointIndex::deserialize(bytes), Error);
  bytes.resize(bytes.size() - 2);
  EXPECT_THROW(CheckpointIndex::deserialize(bytes), Error);
}

}  // namespace
}  // namespace computron::test
