#include "computron/serve/several_inputs.h"

#include <algorithm>

namespace computron {

SeveralInputs::SeveralInputs(std::vector<std::unique_ptr<BatchFrontEnd>> inputs, std::unique_ptr<BatchView> view,
                             StepRecorder* recorder)
    : inputs_(std::move(inputs)), view_(std::move(view)), recorder_(recorder) {}

bool SeveralInputs::take_input(Dispatcher& dispatcher, double now) {
  if (closed_) return false;
  bool took = false;
  for (const auto& input : inputs_) {
    took |= input->take_lines(dispatcher, now);
    any_deferred_ |= input->any_deferred();
    if (input->all_read()) input->note_all_read();
  }
  if (took || note_input_end(dispatcher, now)) return true;
  if (!all_read() || any_of_inputs(&BatchFrontEnd::any_deferred)) return false;
  const auto suspected = std::ranges::find_if(inputs_, [](const auto& input) { return input->has_suspects(); });
  if (suspected != inputs_.end()) {
    if (any_of_inputs(&BatchFrontEnd::any_unfinished)) return false;
    (*suspected)->take_suspect(dispatcher, now);
    return true;
  }
  dispatcher.close_input();
  closed_ = true;
  if (recorder_ != nullptr) recorder_->input_ended(/*closed=*/true, any_deferred_, now);
  return true;
}

// False if it was known before, or is not yet.
bool SeveralInputs::note_input_end(Dispatcher& dispatcher, double now) {
  if (input_ended_ || !(all_read() || (files_read() && dispatcher.waits_for_input(now)))) return false;
  input_ended_ = true;
  dispatcher.note_input_end();
  if (recorder_ != nullptr) recorder_->input_ended(/*closed=*/false, /*deferred=*/false, now);
  return true;
}

bool SeveralInputs::any_of_inputs(bool (BatchFrontEnd::*is)() const) const {
  return std::ranges::any_of(inputs_, [is](const auto& input) { return ((*input).*is)(); });
}

bool SeveralInputs::all_read() const {
  return std::ranges::all_of(inputs_, [](const auto& input) { return input->all_read(); });
}

bool SeveralInputs::files_read() const {
  return std::ranges::all_of(inputs_, [](const auto& input) { return input->is_live() || input->all_read(); });
}

bool SeveralInputs::input_open() const { return !closed_ && any_of_inputs(&BatchFrontEnd::input_open); }

std::string SeveralInputs::unfinished() const {
  std::string text;
  for (const auto& input : inputs_) text += (text.empty() ? "" : "; of the next one ") + input->unfinished();
  return text;
}

void SeveralInputs::put_results(std::vector<Completion> completions, double now) {
  std::vector<std::vector<Completion>> by_input(inputs_.size());
  for (Completion& completion : completions) by_input.at(input_of(completion.id)).push_back(std::move(completion));
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (!by_input[i].empty()) inputs_[i]->put_results(std::move(by_input[i]), now);
  }
}

Ticket SeveralInputs::begin(const std::vector<RequestId>& requests) {
  std::vector<std::vector<RequestId>> by_input(inputs_.size());
  for (const RequestId request : requests) by_input.at(input_of(request)).push_back(request);
  Tickets tickets;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const Ticket ticket = by_input[i].empty() ? 0 : inputs_[i]->begin(by_input[i]);
    if (ticket != 0) tickets.emplace_back(i, ticket);
  }
  if (tickets.empty()) return 0;
  tickets_.emplace(++last_ticket_, std::move(tickets));
  return last_ticket_;
}

bool SeveralInputs::noted(Ticket ticket) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return true;
  const auto is_noted = [this](const auto& of_input) { return inputs_[of_input.first]->noted(of_input.second); };
  if (!std::ranges::all_of(found->second, is_noted)) return false;
  tickets_.erase(found);
  return true;
}

void SeveralInputs::check() {
  for (const auto& input : inputs_) input->check();
}

void SeveralInputs::finish(double now) {
  view_->end("finished", now);
  for (const auto& input : inputs_) input->finish(now);
}

void SeveralInputs::stop(bool in_order, double now) {
  view_->end("stopped", now);
  for (const auto& input : inputs_) input->stop(in_order, now);
}

}  // namespace computron
