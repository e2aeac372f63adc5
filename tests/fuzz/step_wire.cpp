// Any bytes as a step (for the stage that the first byte says, of three) and as a done record: refused with an error of
// ours, or something no larger than its bytes that is the same again once it has been sent on.
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "computron/runtime/report.h"
#include "computron/runtime/step.h"
#include "tests/fuzz/expect.h"

namespace {

using computron::Report;
using computron::Step;

constexpr int kStages = 3;

using computron::SequenceChunk;

std::shared_ptr<const std::string> guide_of(const SequenceChunk& chunk) {
  return chunk.sampling ? chunk.sampling->guide : nullptr;
}

// Every chunk has the text that it had, and those that have one text have it once.
void check_guides(const std::vector<SequenceChunk>& sent, const std::vector<SequenceChunk>& received,
                  std::size_t most_bytes) {
  std::map<std::string, const std::string*> texts;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const auto mine = guide_of(sent[i]), theirs = guide_of(received[i]);
    expect((mine == nullptr) == (theirs == nullptr), "a guided chunk stays one, and no other becomes one");
    if (mine == nullptr) continue;
    expect(!mine->empty() && *mine == *theirs, "a guide is a text, and comes back");
    const auto [place, is_new] = texts.try_emplace(*theirs, theirs.get());
    expect(place->second == theirs.get(), "one text is held once");
    bytes += is_new ? theirs->size() : 0;
  }
  expect(bytes <= most_bytes, "texts are no larger than what they came in");
}

void check_step(std::span<const std::byte> bytes, int stage) {
  const Step step = Step::decode(bytes, stage, kStages);
  const computron::StagePlan& plan = step.stages.at(static_cast<std::size_t>(stage));
  expect(step.chunks.size() + step.closed.size() + plan.caches.size() + plan.fetches.size() <= bytes.size(),
         "everything takes a byte");
  expect(step.logit_rows() <= step.rows() && static_cast<std::size_t>(step.rows()) <= bytes.size(), "a row is a token");
  for (const auto& chunk : step.chunks) expect(!chunk.tokens.empty(), "no chunk is empty");
  const auto sent = step.encode(stage);
  expect(sent.size() <= bytes.size(), "nothing is added");
  const Step received = Step::decode(sent, stage, kStages);
  expect(received.encode(stage) == sent, "a step comes back");
  expect(received.chunks.size() == step.chunks.size(), "so do its chunks");
  check_guides(step.chunks, received.chunks, sent.size());
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
