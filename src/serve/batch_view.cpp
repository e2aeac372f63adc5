#include "computron/serve/batch_view.h"

#include <algorithm>
#include <utility>

namespace computron {
namespace {

constexpr std::size_t kPastSeconds = 10;  // that rates are over
// A launcher hands a signal to every rank: what follows the first within this time asks for the same.
constexpr double kSameRequest_s = 0.5;

}  // namespace

BatchView::BatchView(std::vector<const BatchCounts*> batches, Metrics& metrics, std::vector<std::string> models,
                     double start_s, const ViewOptions& options)
    : batches_(std::move(batches)),
      metrics_(metrics),
      models_(std::move(models)),
      start_s_(start_s),
      known_before_(options.done_before),
      done_before_(options.done_before),
      progress_line_(options.progress_line, start_s),
      status_writer_(options.status_file, options.progress_file) {
  for (const BatchCounts* batch : batches_) {
    known_before_ += batch->known_before;
    done_before_ += batch->done_before;
  }
}

void BatchView::step_done(const std::vector<Report>& reports) {
  for (const Report& report : reports) sampled_tokens_ += report.rows.size();
}

void BatchView::show(const Activity& activity, double now) {
  if (progress_line_.due(start_s_ + now)) progress_line_.update(start_s_ + now, progress(activity));
  if (metrics_.queues().due(now)) metrics_.queues().note(now, queues());
  update_status(activity, now);
}

// Once a second what rates are taken from and the status file; the status on request.
void BatchView::update_status(const Activity& activity, double now) {
  dispatcher_ = activity.dispatcher;
  if (past_.empty() || now >= past_.back().time_s + 1) {
    if (past_.size() > kPastSeconds) past_.pop_front();
    if (status_writer_.has_file()) status_writer_.put(status(activity, now), /*print=*/false);
    past_.push_back(counts(now));
  }
  if (activity.status_requests == status_requests_) return;
  status_requests_ = activity.status_requests;
  if (status_s_ >= 0 && now < status_s_ + kSameRequest_s) return;
  status_s_ = now;
  status_writer_.put(status(activity, now), /*print=*/true);
}

void BatchView::end(const char* how, double now) {
  progress_line_.finish(start_s_ + now, progress({}));
  if (!status_writer_.has_file()) return;
  JobStatus last = status({.dispatcher = dispatcher_}, now);
  last.end = how;
  status_writer_.put(std::move(last), /*print=*/false);
}

JobCounts BatchView::counts(double now) const {
  const ModelMetrics all = metrics_.counts();
  return {now, metrics_.finished(), sampled_tokens_, all.steps.count, all.swaps.count, all.swaps.bytes};
}

JobStatus BatchView::status(const Activity& activity, double now) const {
  const ProgressLine::State state = progress(activity);
  JobStatus status{.counts = counts(now),
                   .before = past_.empty() ? JobCounts{} : past_.front(),
                   .total = state.total,
                   .total_known = state.total_known,
                   .failed = metrics_.failed(),
                   .known_before = known_before_,
                   .done_before = done_before_};
  const std::vector<QueueDepth> queues = this->queues();
  for (std::size_t i = 0; i < models_.size(); ++i) {
    const auto model = static_cast<ModelId>(i);
    status.models.push_back({models_[i], queues[i], metrics_.finished(model),
                             activity.dispatcher != nullptr ? activity.dispatcher->resident_ratio(model) : 0});
  }
  for (const GroupActivity& group : activity.groups) {
    GroupStatus& of_group = status.groups.emplace_back();
    if (activity.dispatcher != nullptr)
      of_group.open = activity.dispatcher->scheduler(status.groups.size() - 1).open().count();
    if (!group.running) continue;
    of_group.running = models_[*group.running];
    of_group.swapping = group.swapping;
  }
  return status;
}

ProgressLine::State BatchView::progress(const Activity& activity) const {
  ProgressLine::State state{.done = metrics_.finished(),
                            .total_known = true,
                            .model = running_models(activity),
                            .swapping = std::ranges::any_of(activity.groups, &GroupActivity::swapping)};
  for (const BatchCounts* batch : batches_) {
    state.total += batch->reader->lines_seen() - batch->reader->lines_skipped();
    state.total_known &= batch->reader->finished();
    state.generated_tokens += batch->generated_tokens;
  }
  return state;
}

std::vector<QueueDepth> BatchView::queues() const {
  std::vector<QueueDepth> sums(models_.size());
  for (const BatchCounts* batch : batches_) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i].waiting += batch->queues[i].waiting;
      sums[i].running += batch->queues[i].running;
    }
  }
  return sums;
}

// Of the groups, in their order.
std::string BatchView::running_models(const Activity& activity) const {
  std::string names;
  for (const GroupActivity& group : activity.groups) {
    if (group.running) names += (names.empty() ? "" : ", ") + models_[*group.running];
  }
  return names;
}

}  // namespace computron
