// Quantised models in device memory for one of them: what is answered is what is answered with room for all, and by
// plain models of the same values.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "computron/ops/ops.h"
#include "kernels/cpu/quantised_panel.h"
#include "tests/apps/serve_job.h"
#include "tests/support/test_device.h"

namespace computron::test {
namespace {

using nlohmann::json;

constexpr int kModels = 4;
constexpr int kRequests = 2 * kModels;
constexpr int kPageKib = 64;
const TinyModel kModel = {.layers = 2, .heads = 8, .head_dim = 16, .ffn = 512, .vocab = 192};

struct Mesh {
  int tp, frames;
};

class QuantisedSwap : public ::testing::TestWithParam<Mesh> {
 protected:
  QuantisedSwap() {
    DType values = DType::kBF16;
    if (on_cpu()) {
      values = make_cpu_ops(*make_cpu_device({}))->weight_type({values, DType::kInt8, DType::kBF16, 32}).values;
    }
    // CUDA devices refuse scales of two levels.
    const WeightType types[kModels] = {{values, DType::kInt8, DType::kBF16, 32},
                                       {values, DType::kFp8, DType::kF32, 128},
                                       {values, DType::kInt4, DType::kF16, 64},
                                       on_cpu() ? WeightType{values, DType::kFp4, DType::kE4M3, 16}
                                                : WeightType{values, DType::kFp4, DType::kE8M0, 32}};
    for (int m = 0; m < kModels; ++m) {
      write_quantised_pair(path(m, "codes"), path(m, "values"), opt_config(kModel), types[m], 31 + m);
    }
  }
  std::string path(int m, const std::string& kind) const { return folder_ / fmt::format("{}{}.h5", kind, m); }

  // Request i is for model i mod kModels, one at a time: prompts of decoding's few rows, and of more for models whose
  // codes have no order of sums of their own on CUDA then (kernels/cuda/gemm.h).
  ServeJob job(int frames, const std::string& kind) const {
    ServeJob job{.tp = GetParam().tp, .more = {"--max-seqs", "1", "--policy", "fifo", "--coded", "off"}};
    for (int m = 0; m < kModels; ++m) job.models.push_back({fmt::format("model{}", m), path(m, kind)});
    for (int i = 0; i < kRequests; ++i) {
      job.lines.push_back(completion_line(fmt::format("r{}", i), fmt::format("model{}", i % kModels),
                                          random_prompt(kModel, i % 2 == 1 ? 20 + i : 1 + i * 7 % 16, i), 3,
                                          {{"logprobs", 3}, {"echo", i % 2 == 1}, {"ignore_eos", true}}));
    }
    const int page_kib = kind == "values" ? 2 * kPageKib : kPageKib;  // which hold 64 rows of float32
    job.device_memory = fmt::format("{}KiB", frames * page_kib);
    job.page_size = fmt::format("{}KiB", page_kib);
    return job;
  }

  TemporaryFolder folder_;
};

// exact: whether log-probabilities belong to an answer, of all models or of that of fp8 alone.
std::map<std::string, std::string> answers(const Results& results, bool exact = true) {
  std::map<std::string, std::string> all;
  for (const std::string& id : results.custom_ids()) {
    const json& choice = results.choice(id);
    const bool of_fp8 = std::stoi(id.substr(1)) % kModels == 1;
    all[id] = json{choice.at("token_ids"), exact || of_fp8 ? choice.at("logprobs") : json()}.dump();
  }
  return all;
}

TEST_P(QuantisedSwap, SwappedIsResidentAndWhatTheirValuesAnswer) {
  const Served unswapped = serve_ok(job(200, "codes"), folder_);
  const auto resident = answers(unswapped.results);
  ASSERT_EQ(resident.size(), static_cast<std::size_t>(kRequests));
  const Served swapped = serve_ok(job(GetParam().frames, "codes"), folder_);
  EXPECT_EQ(answers(swapped.results), resident);
  EXPECT_EQ(swapped.metrics.at("swaps").at("count"), kRequests);
  // Codes that a CPU multiplies as integers give other bits than their values, but the same tokens.
  const bool bits = !on_cpu() || !kernels::multiplies_integers({DType::kF32, DType::kInt8, DType::kBF16, 32});
  EXPECT_EQ(answers(serve_ok(job(200, "values"), folder_).results, bits), answers(unswapped.results, bits));
}

INSTANTIATE_TEST_SUITE_P(Meshes, QuantisedSwap, ::testing::Values(Mesh{1, 12}, Mesh{2, 8}),
                         [](const auto& test) { return fmt::format("tp{}", test.param.tp); });

}  // namespace
}  // namespace computron::test
