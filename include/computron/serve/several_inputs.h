// Several inputs of one job, each a batch with an output and a journal of its own: a file, say, and beside it what
// comes over standard input. To the dispatcher they are one: lines of input k have the ids k · 2^48 + line. As far as
// they are there, requests of all inputs are submitted in turn; the job ends when all inputs have.
//
// A policy that wants to know all requests first waits for the files, not for standard input. A request that may be
// what took the job down runs alone, behind the end of every input.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "computron/serve/batch_front_end.h"

namespace computron {

class SeveralInputs : public FrontEnd {
 public:
  static constexpr RequestId first_id(std::size_t input) { return RequestId{input} << 48; }

  // One at least, without views of their own; BatchOptions::first_id of each is first_id(its place). Their metrics are
  // the same. `view`: of them all. `recorder`: theirs, or null.
  SeveralInputs(std::vector<std::unique_ptr<BatchFrontEnd>> inputs, std::unique_ptr<BatchView> view,
                StepRecorder* recorder);

  bool take_input(Dispatcher& dispatcher, double now) override;
  bool input_open() const override;
  std::string unfinished() const override;
  void put_results(std::vector<Completion> completions, double now) override;
  void show(const Activity& activity, double now) override { view_->show(activity, now); }
  Ticket begin(const std::vector<RequestId>& requests) override;
  bool noted(Ticket ticket) override;
  void step_done(const std::vector<Report>& reports, double /*now*/) override { view_->step_done(reports); }
  void check() override;
  void finish(double now) override;
  void stop(bool in_order, double now) override;

 private:
  // Of each input that has something in it.
  using Tickets = std::vector<std::pair<std::size_t, Ticket>>;

  static std::size_t input_of(RequestId id) { return static_cast<std::size_t>(id >> 48); }
  bool note_input_end(Dispatcher& dispatcher, double now);
  bool any_of_inputs(bool (BatchFrontEnd::*is)() const) const;
  bool all_read() const;
  bool files_read() const;

  std::vector<std::unique_ptr<BatchFrontEnd>> inputs_;
  std::unique_ptr<BatchView> view_;
  StepRecorder* recorder_;
  bool any_deferred_ = false;
  bool input_ended_ = false, closed_ = false;
  std::map<Ticket, Tickets> tickets_;  // that have not been noted
  Ticket last_ticket_ = 0;
};

}  // namespace computron
