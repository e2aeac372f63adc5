// A batch: requests from a file or stdin, results to a file, metrics of the requests; what is seen of it while it is
// served is batch_view.h's.
//
// The reader and the writer have threads of their own and exchange plain queues with the progress loop. Where too many
// requests wait to be scheduled, lines are read, checked and deferred (DeferredInput); reading pauses while too many
// results wait for the disk.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "computron/requests/request_reader.h"
#include "computron/serve/batch_view.h"
#include "computron/serve/deferred_input.h"
#include "computron/serve/front_end.h"
#include "computron/serve/metrics.h"
#include "computron/serve/step_recorder.h"
#include "computron/storage/result_writer.h"

namespace computron {

struct BatchOptions {
  bool replay = false;  // requests arrive at their `arrival` times; without it, at the start of the job
  bool live = false;    // without `replay`: requests arrive when they are read
  std::optional<ViewOptions> view = ViewOptions{};  // none: whoever has several batches shows them all
  std::vector<int> priorities = {};                 // [model]; empty: all are 0
  std::size_t ahead = 64;            // lines of a model that are submitted though there is no room (DeferredRequests)
  StepRecorder* recorder = nullptr;  // borrowed: is told what is submitted and what ends; null: nobody
  RequestId first_id = 0;            // of its lines, where several batches have one dispatcher (several_inputs.h)
};

class BatchFrontEnd : public FrontEnd {
 public:
  // Borrows the first three. `start_s`: now_s() at the start of the job's clock. `models` by ModelId.
  BatchFrontEnd(RequestReader& reader, ResultWriter& writer, Metrics& metrics, std::vector<ServedModel> models,
                double start_s, const BatchOptions& options);

  bool take_input(Dispatcher& dispatcher, double now) override;
  bool input_open() const override { return !closed_ && (!reader_.finished() || deferred_.any_coming()); }
  std::string unfinished() const override;
  void put_results(std::vector<Completion> completions, double now) override;
  void show(const Activity& activity, double now) override {
    if (view_) view_->show(activity, now);
  }
  Ticket begin(const std::vector<RequestId>& requests) override;
  bool noted(Ticket ticket) override { return writer_.noted(ticket); }
  void step_done(const std::vector<Report>& reports, double /*now*/) override {
    if (view_) view_->step_done(reports);
  }
  void check() override { writer_.check(); }
  void finish(double now) override;  // ensures that no request is without a result
  void stop(bool in_order, double now) override;

  // The parts of take_input(), for whoever has several batches. What has been read, or read again.
  bool take_lines(Dispatcher& dispatcher, double now);
  bool all_read() const { return reader_.finished(); }
  void note_all_read();  // to the journal
  bool any_deferred() const { return !deferred_.empty(); }
  bool has_suspects() const { return !suspects_.empty(); }
  bool any_unfinished() const { return !unfinished_lines_.empty(); }
  // The next one; no line is unfinished.
  void take_suspect(Dispatcher& dispatcher, double now);
  bool is_live() const { return options_.live; }
  // For a BatchView; they grow as it goes on.
  const BatchCounts& counts() const { return counts_; }

 private:
  // A line without a result yet.
  struct UnfinishedLine {
    IncomingRequest incoming;       // of its requests is left what tells how to write the result
    std::vector<Completion> parts;  // by Completion::part
    std::size_t missing = 0;        // of them
    bool begun = false;
    bool ahead = false;   // it was deferred, and submitted ahead of its turn
    Ticket noted_by = 0;  // of the note that it has begun
    ModelId model = 0;
    std::int32_t priority = 0;
  };

  // How a line comes to be submitted.
  struct Turn {
    double now = 0;
    bool deferred = false;  // it had waited for room
    bool ahead = false;     // as in UnfinishedLine
  };

  void put_result(const UnfinishedLine& line);
  void take(IncomingRequest incoming, Dispatcher& dispatcher, double now);
  bool take_deferred(Dispatcher& dispatcher, double now);
  void submit(IncomingRequest incoming, double arrival_s, const Turn& turn, Dispatcher& dispatcher);
  double arrival_of(const IncomingRequest& incoming, double now) const;
  void leave_queue(const UnfinishedLine& line);
  void fail(const IncomingRequest& incoming, const RequestFailure& failure, bool with_deadline = false);
  bool note_input_end(Dispatcher& dispatcher, double now);
  void close_input(Dispatcher& dispatcher, double now);
  bool may_read(const Dispatcher& dispatcher);

  RequestReader& reader_;
  ResultWriter& writer_;
  Metrics& metrics_;
  std::vector<ServedModel> models_;
  BatchOptions options_;

  std::map<RequestId, UnfinishedLine> unfinished_lines_;  // by line; of those that were submitted
  DeferredInput deferred_;
  // Requests that may be what took the job down: each runs alone, when the input has ended and all others are done.
  std::deque<IncomingRequest> suspects_;
  bool alone_ = false;  // one of these runs
  bool any_deferred_ = false;
  bool input_ended_ = false;
  bool closed_ = false;
  BatchCounts counts_;
  std::optional<BatchView> view_;
};

}  // namespace computron
