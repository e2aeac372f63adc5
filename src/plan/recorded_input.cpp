#include "src/plan/recorded_input.h"

#include <limits>
#include <memory>

namespace computron {
namespace {

// Ends a sequence with so many tokens, as a stop token did.
class EndsAfter : public TokenWatch {
 public:
  explicit EndsAfter(int tokens) : left_(tokens) {}
  bool ends_with(TokenId /*token*/) override { return --left_ <= 0; }

 private:
  int left_;
};

// Prompts that begin alike begin alike again, where that was recorded; no others do.
std::vector<TokenId> prompt_of(const RecordedRequest& recorded) {
  std::vector<TokenId> prompt(recorded.prompt_tokens, static_cast<TokenId>(recorded.id & 0x7fffffff));
  for (std::size_t i = 0; i < recorded.prefix.size() * RecordedRequest::kPrefixTokens && i < prompt.size(); ++i) {
    prompt[i] = static_cast<TokenId>(recorded.prefix[i / RecordedRequest::kPrefixTokens] & 0x7fffffff);
  }
  return prompt;
}

Request request_of(const RecordedRequest& recorded, const RecordedCompletion& end) {
  const auto has = [&recorded](RecordedRequest::Flag flag) { return (recorded.flags & flag) != 0; };
  Request request;
  request.id = recorded.id;
  request.part = recorded.part;
  request.model = recorded.model;
  request.task = recorded.task;
  request.prompt = prompt_of(recorded);
  request.max_tokens = recorded.max_tokens;
  request.values = recorded.values;
  request.echo = has(RecordedRequest::kEcho);
  request.logprobs = has(RecordedRequest::kLogprobs) ? 0 : -1;
  if (has(RecordedRequest::kPenalises)) request.sampling.frequency_penalty = 1;
  request.long_factors = has(RecordedRequest::kLongFactors);
  request.arrival_s = recorded.arrival_s;
  request.deadline_s = recorded.deadline_s;
  request.priority = recorded.priority;
  request.tenant = recorded.tenant;
  const bool stopped = !end.failed && end.generated_tokens > 0 && end.generated_tokens < recorded.max_tokens;
  if (stopped) request.watch = std::make_shared<EndsAfter>(end.generated_tokens);
  return request;
}

}  // namespace

RecordedInput::RecordedInput(const Record& record) : record_(record) {
  for (const RecordedCompletion& end : record.completions) ends_.emplace(std::pair(end.id, end.part), &end);
}

// Of the next one: when it was, and whether it waits for room instead.
bool RecordedInput::is_due(double now_s) const {
  if (next_ == record_.inputs.size()) return true;
  const Record::Input& input = record_.inputs[next_];
  if (const auto* request = std::get_if<RecordedRequest>(&input)) {
    return (request->flags & RecordedRequest::kDeferred) != 0 || request->submitted_s <= now_s;
  }
  const auto& end = std::get<RecordedInputEnd>(input);
  return end.deferred || end.time_s <= now_s;
}

double RecordedInput::due_s() const {
  if (closed_ || full_) return std::numeric_limits<double>::infinity();
  if (is_due(0)) return 0;
  const Record::Input& input = record_.inputs[next_];
  const auto* request = std::get_if<RecordedRequest>(&input);
  return request != nullptr ? request->submitted_s : std::get<RecordedInputEnd>(input).time_s;
}

void RecordedInput::feed(Dispatcher& dispatcher, double now_s) {
  full_ = false;
  while (!closed_ && !full_ && is_due(now_s)) full_ = !feed_next(dispatcher);
}

// False: there is no room for it. Behind the last one the input is closed, should its end not be recorded.
bool RecordedInput::feed_next(Dispatcher& dispatcher) {
  if (next_ == record_.inputs.size()) {
    dispatcher.close_input();
    return closed_ = true;
  }
  const Record::Input& input = record_.inputs[next_];
  if (const auto* request = std::get_if<RecordedRequest>(&input)) {
    const auto end = ends_.find({request->id, request->part});
    if (end != ends_.end()) {
      if (dispatcher.is_full()) return false;
      dispatcher.submit(request_of(*request, *end->second));
    }
  } else if (!std::get<RecordedInputEnd>(input).closed) {
    dispatcher.note_input_end();
  }
  ++next_;
  return true;
}

}  // namespace computron
