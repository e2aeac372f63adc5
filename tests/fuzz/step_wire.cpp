// Any bytes as a step (for the stage that the first byte says, of three) and as a done record: refused with an error of
// ours, or something no larger than its bytes that is the same again once it has been sent on.
#include <cstdint>
#include <span>

#include "computron/runtime/report.h"
#include "computron/runtime/step.h"
#include "tests/fuzz/expect.h"

namespace {

using computron::Report;
using computron::Step;

constexpr int kStages = 3;

void check_step(std::span<const std::byte> bytes, int stage) {
  const Step step = Step::decode(bytes, stage, kStages);
  const computron::StagePlan& plan = step.stages.at(static_cast<std::size_t>(stage));
  expect(step.chunks.size() + step.closed.size() + plan.caches.size() + plan.fetches.size() <= bytes.size(),
         "everything takes a byte");
  expect(step.logit_rows() <= step.rows() && static_cast<std::size_t>(step.rows()) <= bytes.size(), "a row is a token");
  for (const auto& chunk : step.chunks) {
    expect(!chunk.tokens.empty(), "no chunk is empty");
    expect(!chunk.sampling || !chunk.sampling->guide || !chunk.sampling->guide->empty(), "a guide is a text");
  }
  const auto sent = step.encode(stage);
  expect(sent.size() <= bytes.size(), "nothing is added");
  expect(Step::decode(sent, stage, kStages).encode(stage) == sent, "a step comes back");
}

void check_report(std::span<const std::byte> bytes) {
  const Report report = Report::decode(bytes);
  const auto sent = report.encode();
  expect(sent.size() == bytes.size(), "nothing is added or lost");
  expect(Report::decode(sent).encode() == sent, "a report comes back");
}

template <class Check>
void refuse_or(Check&& check) {
  try {
    check();
  } catch (const computron::Error& error) {
    expect(error.code() == computron::ExitCode::kInternal, "what another rank sends is never the user's fault");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  refuse_or([&] { check_step(bytes, data[0] % kStages); });
  refuse_or([&] { check_report(bytes); });
  return 0;
}
