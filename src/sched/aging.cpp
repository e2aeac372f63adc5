#include "computron/sched/aging.h"

namespace computron {

void Aging::age(WorkTable& work, double now_s) {
  std::vector<ModelId> due;
  for (const ModelId model : work.with_work()) {
    const Watched& watched = watched_[model];
    const Request& oldest = work[model].oldest();
    if (watched.is(oldest) && !oldest.aged && now_s - *watched.since_s >= max_wait_s_) due.push_back(model);
  }
  for (const ModelId model : due) work.edit(model, [](ModelWork& edited) { edited.age_oldest(); });
}

void Aging::note_pass(const WorkTable& work, std::int32_t least, double now_s) {
  for (const ModelId model : work.with_work()) {
    Watched& watched = watched_[model];
    const Request& oldest = work[model].oldest();
    if (work[model].oldest_in_flight() || oldest.urgency() <= least) {
      watched.since_s.reset();
    } else if (!watched.is(oldest)) {
      watched = {oldest.id, oldest.part, now_s};
    }
  }
}

}  // namespace computron
