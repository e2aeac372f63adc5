#include "computron/sched/aging.h"

namespace computron {
namespace {

OldestRequest oldest_until_token(const ModelWork& work) {
  const Request& request = work.oldest();
  const auto* const admitted = work.sequences().oldest();
  const bool waits = admitted == nullptr || &admitted->sequence().request() != &request;
  const int all = request.encodes() ? 0 : request.max_tokens;
  return {request.id, request.part, waits ? all : admitted->sequence().tokens_to_come()};
}

}  // namespace

bool Aging::Watched::is_due(double now_s, double max_wait_s) const {
  const double clock_s = passed_s + (passed_by ? now_s - at_s : 0);
  return (passed_by || passed_s > 0) && clock_s >= max_wait_s;
}

void Aging::age(WorkTable& work, double now_s) {
  std::vector<ModelId> due;
  for (const ModelId model : work.with_work()) {
    const Watched& watched = watched_[model];
    if (!watched.is_due(now_s, max_wait_s_) || work[model].oldest().aged) continue;
    if (watched.oldest == oldest_until_token(work[model])) due.push_back(model);
  }
  for (const ModelId model : due) work.edit(model, [](ModelWork& edited) { edited.age_oldest(); });
}

void Aging::note_pass(const WorkTable& work, std::int32_t least, double now_s) {
  for (const ModelId model : work.with_work()) {
    Watched& watched = watched_[model];
    if (const OldestRequest oldest = oldest_until_token(work[model]); watched.oldest != oldest) {
      watched = {.oldest = oldest};
    } else if (watched.passed_by) {
      watched.passed_s += now_s - watched.at_s;
    }
    watched.passed_by = least < work[model].oldest().urgency();
    watched.at_s = now_s;
  }
}

}  // namespace computron
