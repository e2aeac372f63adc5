// LoRA adapters against peft: the models that `computron convert --merge` made of tests/fixtures/adapters and their
// bases, computed on every mesh of as many ranks as there are, held against the logits that peft computed in float32
// with the adapter beside the base (tests/fixtures/make_adapters.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/runtime/family_measures.h"
#include "tests/runtime/family_model.h"
#include "tests/runtime/family_results.h"
#include "tests/support/beside.h"

namespace computron::test {
namespace {

std::filesystem::path fixtures() { return COMPUTRON_ADAPTER_FIXTURES; }

std::vector<std::string> adapter_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures())) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

// All ranks go through all adapters and meshes in the same order, whatever fails.
TEST(Adapters, MergedComputeWhatPeftComputes) {
  const Communicator world = Communicator::world();
  ASSERT_GE(adapter_names().size(), 7u);
  for (const MeshShape shape : meshes(world.size())) {
    for (const std::string& adapter : adapter_names()) {
      SCOPED_TRACE(fmt::format("{} on {}x{}", adapter, shape.tp, shape.pp));
      Model model(shape, beside_test("adapters") / (adapter + ".h5"), world);
      if (model.multiplied_as() == DType::kBF16) continue;
      const FamilyFixture expected(fixtures() / adapter / "expected.safetensors", "");
      const std::vector<Result> results = compute(model, expected);
      EXPECT_GE(results.size(), 3u);
      for (const Result& result : results) {
        if (!model.reports()) continue;
        EXPECT_LE(distance(result.actual, result.expected), model.tolerance()) << result.name;
      }
    }
  }
}

}  // namespace
}  // namespace computron::test
