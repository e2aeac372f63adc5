// The record of a job: what its dispatcher was given, which steps its schedulers sent when, and what the ranks reported
// of them. `serve --record` writes it (serve/step_recorder.h), `simulate --steps` plays it again (plan/record.h).
//
//   file:    kRecordMagic, kRecordVersion, frame of the RecordHeader, frame of an event, frame of an event, ...
//   frame:   length of the payload [4 bytes], check value of it [4], payload
//
// Events stand in the order in which rank 0 met them, so that of two events it is known which came before the other.
// A file may end anywhere: what whole frames it begins with is a record. Tokens, texts and results are not in it; where
// prefixes are shared, every 16 tokens of a prompt have a salted hash. Times are seconds after the start of the job,
// models of requests bear the job's numbers, those of steps the group's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "computron/sched/scheduler.h"

namespace computron {

inline constexpr std::string_view kRecordMagic = "CMPTRREC";
// Read, too: 1, layouts without link bytes; 2, of which all weights have one type; 3, which do not tell what pages
// hold; 4, nor their families and adapters' pages; 5, whose adapters' pages all lie in frames; 6, whose requests have
// no priority and no tenant.
inline constexpr std::uint32_t kRecordVersion = 7;
inline constexpr std::size_t kFrameHeadBytes = 8;

// What decides, and what there was to decide with.
struct RecordHeader {
  struct Model {
    ModelId job_model = 0;
    std::vector<std::uint32_t> layouts = {};  // [stage] which of the header's
    bool pinned = false;
    int priority = 0;
  };
  struct Group {
    int tp = 1, pp = 1, first_rank = 0;
    SchedulerOptions options = {};
    std::vector<Model> models = {};  // by the group's numbers
  };
  std::string program = {}, host = {}, started = {};
  std::string policy = {};
  double max_wait_s = 0;
  std::vector<std::string> models = {};   // ids, by the job's numbers
  std::vector<ShardLayout> layouts = {};  // of which the plan holds only what the scheduler and the costs ask for
  std::vector<Group> groups = {};

  int ranks() const;
  std::size_t page_bytes() const { return layouts.front().page_bytes; }
};

// A request as the dispatcher got it.
struct RecordedRequest {
  enum Flag : std::uint8_t {
    kDeferred = 1,  // it had waited outside for room, and was submitted as soon as there was some
    kEcho = 2,
    kLogprobs = 4,
    kPenalises = 8,     // SamplingParams::penalises()
    kLongFactors = 16,  // Request::long_factors
    kClass = 32,        // it has a priority or a tenant; since version 7
  };
  double submitted_s = 0;
  std::uint8_t flags = 0;
  RequestId id = 0;
  std::uint32_t part = 0;
  ModelId model = 0;
  Task task = Task::kComplete;
  std::uint32_t prompt_tokens = 0;
  std::int32_t max_tokens = 0;
  std::int32_t values = 0;
  double arrival_s = 0, deadline_s = kNoDeadline;
  std::int32_t priority = 0;
  std::uint64_t tenant = 0;
  std::vector<std::uint32_t> prefix = {};  // a hash for every kPrefixTokens tokens; empty unless prefixes are shared

  static constexpr std::size_t kPrefixTokens = 16;
};

// The dispatcher was told that the input has ended, or that nothing follows at all.
struct RecordedInputEnd {
  double time_s = 0;
  bool closed = false;
  bool deferred = false;  // behind requests that were: not a matter of this time
};

struct RecordedStep {
  double sent_s = 0;
  std::uint32_t group = 0;
  StepId id = 0;
  ModelId model = 0;
  std::uint32_t rows = 0;  // of its pass; 0: none
  std::uint32_t swaps = 0;
  std::vector<RequestId> begun = {};
  std::vector<StagePlan> stages = {};

  // What a mesh in virtual time makes of it: one chunk stands for all.
  Step step() const;
};

// Every rank of the group has executed its oldest step.
struct RecordedReport {
  // Of the slowest rank of a stage.
  struct Stage {
    StageTimes times = {};
    double exposed_s = 0;  // stalled for pages so far
  };
  double reported_s = 0;
  std::uint32_t group = 0;
  StepId step = 0;
  std::vector<Stage> stages = {};
};

struct RecordedCompletion {
  RequestId id = 0;
  std::uint32_t part = 0;
  std::uint32_t group = 0;
  std::int32_t generated_tokens = 0;
  bool failed = false;
  double first_token_s = 0, finished_s = 0;
};

// Nothing is recorded behind this.
struct RecordEnd {
  enum Why : std::uint8_t { kAllDone, kStopped, kLimit, kTooSlow };
  double time_s = 0;
  Why why = kAllDone;
};

using RecordedEvent =
    std::variant<RecordedRequest, RecordedInputEnd, RecordedStep, RecordedReport, RecordedCompletion, RecordEnd>;

// `salt` of the hashes of prompts; `with_prefix`: prefixes are shared.
RecordedRequest recorded(const Request& request, double now_s, bool deferred, bool with_prefix, std::uint64_t salt);
RecordedStep recorded(std::uint32_t group, const PlannedStep& planned, double now_s);
RecordedCompletion recorded(const Completion& completion);

// The layout as the scheduler, the cost model and virtual ranks need it: pages, uses, cache, operations.
std::vector<std::byte> encode_layout(const ShardLayout& layout);

// Payloads of frames. Error{kInternal} for bytes that are none.
std::vector<std::byte> encode(const RecordHeader& header);
// Of a file of that version.
RecordHeader decode_header(std::span<const std::byte> payload, std::uint32_t version = kRecordVersion);
std::vector<std::byte> encode(const RecordedEvent& event);
RecordedEvent decode_event(std::span<const std::byte> payload);

// What stands in front of a payload in a file.
std::vector<std::byte> frame_head(std::span<const std::byte> payload);
std::uint32_t check_value(std::span<const std::byte> payload);

}  // namespace computron
