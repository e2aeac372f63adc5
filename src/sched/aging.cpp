#include "computron/sched/aging.h"

#include <algorithm>
#include <limits>

namespace computron {

void Aging::age(WorkTable& work, double now_s) {
  std::int32_t least = std::numeric_limits<std::int32_t>::max();
  for (const ModelId model : work.with_work()) least = std::min(least, work[model].urgency());
  std::vector<ModelId> due;
  for (const ModelId model : work.with_work()) {
    const Request& oldest = work[model].oldest();
    Watched& watched = watched_[model];
    const std::pair request(oldest.id, oldest.part);
    if (watched.request != request || oldest.urgency() <= least) watched = {request, now_s};
    if (now_s - watched.since_s >= max_wait_s_) due.push_back(model);
  }
  for (const ModelId model : due) work.edit(model, [](ModelWork& edited) { edited.age_oldest(); });
}

void Aging::note_pass(ModelId model, std::span<const ModelWork::Handle> members, double now_s) {
  Watched& watched = watched_[model];
  for (const ModelWork::Handle& member : members) {
    const Request& request = member->sequence().request();
    if (watched.request == std::pair(request.id, request.part)) watched.since_s = now_s;
  }
}

}  // namespace computron
