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
