#include "computron/sched/work_table.h"

namespace computron {

WorkTable::WorkTable(std::vector<ModelWork> models)
    : models_(std::move(models)),
      with_work_(models_.size()),
      with_running_(models_.size()),
      with_cache_(models_.size()),
      edited_{ModelList(models_.size()), ModelList(models_.size())},
      counted_(models_.size()) {
  for (ModelId model = 0; model < models_.size(); ++model) follow(model);
}

void WorkTable::follow(ModelId model) {
  const ModelWork& work = models_[model];
  const AdmittedSequences& sequences = work.sequences();
  with_work_.set(model, work.to_admit() > 0 || sequences.sums().totals().unfinished > 0);
  with_running_.set(model, sequences.running() > 0);
  with_cache_.set(model, work.cache().count() > 0);
  for (ModelList& edited : edited_) edited.insert(model);
  Counted& counted = counted_[model];
  waiting_ += work.waiting().size() - counted.waiting;
  waiting_bytes_ += work.waiting().bytes() - counted.bytes;
  const std::size_t preempted = sequences.count(AdmittedSequences::State::kPreempted);
  preempted_ += preempted - counted.preempted;
  counted = {work.waiting().size(), work.waiting().bytes(), preempted};
}

}  // namespace computron
