#include "computron/model/coded_estimate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "computron/checkpoint/index_helper.h"
#include "computron/model/checkpoint_check.h"
#include "tests/support/tiny_checkpoint.h"

namespace computron::test {
namespace {

// A model of bfloat16 whose weights have a few blocks each, in the mesh's shards.
class CodedEstimateTest : public ::testing::Test {
 protected:
  CodedEstimateTest() {
    std::filesystem::create_directories(folder_);
    const TinyModel model{.heads = 8, .head_dim = 32, .ffn = 1024, .vocab = 2048, .dtype = DType::kBF16};
    write_tiny_checkpoint(path_, model);
    config_ = opt_config(model);
    index_ = read_index_apart(path_);
  }
  ~CodedEstimateTest() override { std::filesystem::remove_all(folder_); }
  ShardLayout layout(const MeshShape& mesh, int stage, std::size_t page_bytes = std::size_t{1} << 20) const {
    return ShardLayout::make(ShardPlan::make(config_, mesh, stage), *format_, DType::kBF16, page_bytes);
  }

  std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / ("coded" + std::to_string(getpid()));
  std::string path_ = folder_ / "m.h5";
  ModelConfig config_;
  CheckpointIndex index_;
  std::unique_ptr<WeightFormat> format_ = make_cpu_weight_format();
};

TEST_F(CodedEstimateTest, Bfloat16TakesAboutSeventyPercent) {
  const CodedEstimate estimate(index_, *format_, DType::kBF16);
  const double share = static_cast<double>(estimate.total_coded_bytes()) / static_cast<double>(estimate.total_bytes());
  EXPECT_GT(share, 0.65);
  EXPECT_LT(share, 0.78);
}

// However it is cut, the pages together gain what the tensors gain, and none is larger than it was.
TEST_F(CodedEstimateTest, PagesTakeWhatTheirTensorsGain) {
  const CodedEstimate estimate(index_, *format_, DType::kBF16);
  const double share = static_cast<double>(estimate.total_coded_bytes()) / static_cast<double>(estimate.total_bytes());
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{2, 1}, MeshShape{2, 2}}) {
    std::size_t used = 0, link = 0;
    for (int stage = 0; stage < mesh.pp; ++stage) {
      ShardLayout shard = layout(mesh, stage);
      shard.link_bytes = estimate.link_bytes(shard);
      ASSERT_EQ(shard.link_bytes.size(), shard.used_bytes.size());
      for (PageId page = 0; page < shard.used_bytes.size(); ++page) {
        EXPECT_LE(shard.link_bytes[page], shard.used_bytes[page]);
        EXPECT_GT(shard.link_bytes[page], 0u);
      }
      used += shard.total_used_bytes();
      link += shard.total_link_bytes();
    }
    EXPECT_NEAR(static_cast<double>(link) / static_cast<double>(used), share, 0.03) << mesh.tp << " x " << mesh.pp;
  }
}

// A small sample says about as much of weights that are alike throughout.
TEST_F(CodedEstimateTest, ASmallerSampleSaysTheSame) {
  const CodedEstimate all(index_, *format_, DType::kBF16), some(index_, *format_, DType::kBF16, 64 << 10);
  EXPECT_NEAR(static_cast<double>(some.total_coded_bytes()), static_cast<double>(all.total_coded_bytes()),
              0.02 * static_cast<double>(all.total_coded_bytes()));
}

// Of what a page of float32 holds where a processor does not multiply bfloat16, half the bits are zero.
TEST_F(CodedEstimateTest, CountsInTheTypeThatPagesHold) {
  const CodedEstimate wide(index_, *format_, DType::kF32), narrow(index_, *format_, DType::kBF16);
  EXPECT_GT(wide.total_bytes(), narrow.total_bytes() * 3 / 2);
  EXPECT_LT(wide.total_coded_bytes(), wide.total_bytes());
}

}  // namespace
}  // namespace computron::test
