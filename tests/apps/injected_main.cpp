// The program `computron_injected`: computron, which breaks down as its options of `serve` say; --inject-gflops is one
// of `profile`, too.
//
//   --inject-flip RANK:COPY[:TIMES]      on that rank, what that copy over the link wrote is damaged at its first TIMES
//                                        (1) attempts, by a bit; on the CPU, and on an emulated GPU
//   --inject-host-flip RANK:PAGE:BIT     on that rank, once all is loaded, that bit of what host memory holds of a page
//                                        of the first model is another
//   --inject-mismatch RANK:NAME          that rank tells another value of everything it compares whose name begins so
//   --inject-divergence RANK:STEP:FIELD  that rank reports another digest of its state from that step on
//   --inject-late-notes S                notes of what begins are down only so many seconds after they were asked for
//   --inject-max-waiting N               so many requests wait in the schedulers, and the other lines are deferred
//   --inject-crash LINE                  the process ends when a step has computed on the request of that line
//   --inject-copy-s S                    a copy is measured to take so many seconds, whatever its size
//   --inject-gflops RATE                 every rank computes as slowly as a processor of so many 10^9 operations a
//                                        second
//   --inject-overheads TP:FACTOR[,...]   with that: on a mesh of that tp passes take so many times their share
#include <fmt/format.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "computron/base/digest.h"
#include "computron/base/error.h"
#include "computron/base/time.h"
#include "src/apps/program.h"
#include "tests/support/emulated_processor.h"
#include "tests/support/flip_bit.h"

namespace computron::test {
namespace {

// A front end that is another's in all that it does not override.
class AroundFrontEnd : public FrontEnd {
 public:
  // Borrows `front_end`.
  explicit AroundFrontEnd(FrontEnd& front_end) : front_end_(front_end) {}

  bool take_input(Dispatcher& dispatcher, double now) override { return front_end_.take_input(dispatcher, now); }
  bool input_open() const override { return front_end_.input_open(); }
  std::string unfinished() const override { return front_end_.unfinished(); }
  void put_results(std::vector<Completion> completions, double now) override {
    front_end_.put_results(std::move(completions), now);
  }
  void step_planned(const Step& step, double now) override { front_end_.step_planned(step, now); }
  void step_done(const std::vector<Report>& reports, double now) override { front_end_.step_done(reports, now); }
  void show(const Activity& activity, double now) override { front_end_.show(activity, now); }
  Ticket begin(const std::vector<RequestId>& requests) override { return front_end_.begin(requests); }
  bool noted(Ticket ticket) override { return front_end_.noted(ticket); }
  void check() override { front_end_.check(); }
  void finish(double now) override { front_end_.finish(now); }
  void stop(bool in_order, double now) override { front_end_.stop(in_order, now); }

 private:
  FrontEnd& front_end_;
};

// A front end whose process is killed once a step has computed on request `crash`.
class CrashingFrontEnd : public AroundFrontEnd {
 public:
  CrashingFrontEnd(FrontEnd& front_end, RequestId crash) : AroundFrontEnd(front_end), crash_(crash) {}

  // As if the request's own step had done it, which waits for the note: a step before it may be the one that is done.
  void step_done(const std::vector<Report>& reports, double now) override {
    AroundFrontEnd::step_done(reports, now);
    if (begun_ && noted(*begun_)) std::raise(SIGKILL);
  }
  Ticket begin(const std::vector<RequestId>& requests) override {
    const Ticket ticket = AroundFrontEnd::begin(requests);
    const bool begins = std::find(requests.begin(), requests.end(), crash_) != requests.end();
    if (begins && !begun_) begun_ = ticket;
    return ticket;
  }

 private:
  RequestId crash_;
  std::optional<Ticket> begun_;
};

// A front end whose notes are said to be down only `late_s` after they were asked for.
class LateFrontEnd : public AroundFrontEnd {
 public:
  LateFrontEnd(FrontEnd& front_end, double late_s) : AroundFrontEnd(front_end), late_s_(late_s) {}

  Ticket begin(const std::vector<RequestId>& requests) override {
    const Ticket ticket = AroundFrontEnd::begin(requests);
    asked_s_.emplace(ticket, now_s());
    return ticket;
  }
  bool noted(Ticket ticket) override {
    const auto asked = asked_s_.find(ticket);
    return AroundFrontEnd::noted(ticket) && (asked == asked_s_.end() || now_s() >= asked->second + late_s_);
  }

 private:
  double late_s_;
  std::map<Ticket, double> asked_s_;
};

// Of --inject-flip.
struct Flip {
  int rank = 0, copy = 0, times = 1;
};

Error wrong(const char* option, const std::string& text, const char* form) {
  return Error(ExitCode::kUsage, fmt::format("{}: '{}' is not {}", option, text, form));
}

// "2:1.36,4:1.49"; empty: none.
std::map<int, double> parse_overheads(const std::string& text) {
  std::map<int, double> by_tp;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    int tp = 0, end = 0;
    double factor = 0;
    const int fields = std::sscanf(item.c_str(), "%d:%lf%n", &tp, &factor, &end);
    if (fields != 2 || item.size() != static_cast<std::size_t>(end) || tp < 1 || !(factor > 0)) {
      throw wrong("--inject-overheads", text, "TP:FACTOR[,TP:FACTOR]");
    }
    by_tp[tp] = factor;
  }
  return by_tp;
}

std::optional<Flip> parse_flip(const std::string& text) {
  if (text.empty()) return std::nullopt;
  Flip flip;
  int end = 0, end_of_times = 0;
  const int fields =
      std::sscanf(text.c_str(), "%d:%d%n:%d%n", &flip.rank, &flip.copy, &end, &flip.times, &end_of_times);
  if (fields < 2 || text.size() != static_cast<std::size_t>(fields == 3 ? end_of_times : end)) {
    throw wrong("--inject-flip", text, "RANK:COPY[:TIMES]");
  }
  return flip;
}

class Injections : public ServeHooks {
 public:
  void add_options(CLI::App& program) {
    CLI::App& serve = *program.get_subcommand("serve");
    serve.add_option("--inject-flip", flip_);
    serve.add_option("--inject-host-flip", host_flip_);
    serve.add_option("--inject-mismatch", mismatch_);
    serve.add_option("--inject-divergence", divergence_);
    serve.add_option("--inject-crash", crash_);
    serve.add_option("--inject-late-notes", late_notes_s_);
    serve.add_option("--inject-max-waiting", max_waiting_);
    serve.add_option("--inject-copy-s", copy_s_);
    for (const char* command : {"serve", "profile"}) {
      CLI::App& app_of_ranks = *program.get_subcommand(command);
      auto* gflops = app_of_ranks.add_option("--inject-gflops", gflops_)->check(CLI::PositiveNumber);
      app_of_ranks.add_option("--inject-overheads", overheads_)->needs(gflops);
    }
  }

  void compare(int rank, std::vector<RankProperty>& properties) override {
    const std::size_t colon = mismatch_.find(':');
    if (colon == mismatch_.npos || mismatch_.substr(0, colon) != std::to_string(rank)) return;
    for (RankProperty& property : properties) {
      if (property.name.starts_with(mismatch_.substr(colon + 1))) property.value += " (not the same)";
    }
  }

  CopyHook copy_hook(int this_rank) override {
    const std::optional<Flip> flip = parse_flip(flip_);
    if (!flip || flip->rank != this_rank) return {};
    return [flip = *flip](std::uint64_t copy, int attempt, std::span<std::byte> written) {
      const bool damages = copy == static_cast<std::uint64_t>(flip.copy) && attempt < flip.times;
      if (damages) flip_some_bit(written, hash_tuple(copy, attempt));
    };
  }

  void loaded(int this_rank, const HostStore& host) override {
    const std::optional<Flip> flip = parse_flip(flip_);
    if (flip && flip->rank == this_rank) {
      const std::string copy = fmt::format("{}:{}", flip->copy, flip->times);
      setenv("COMPUTRON_EMULATED_FLIP", copy.c_str(), /*overwrite=*/1);  // tests/emulated_gpu: from here on
    }
    if (host_flip_.empty()) return;
    int rank = 0, end = 0;
    unsigned page = 0, bit = 0;
    const int fields = std::sscanf(host_flip_.c_str(), "%d:%u:%u%n", &rank, &page, &bit, &end);
    if (fields != 3 || host_flip_.size() != static_cast<std::size_t>(end)) {
      throw wrong("--inject-host-flip", host_flip_, "RANK:PAGE:BIT");
    }
    if (rank != this_rank) return;
    const HostPage stored = host.page(0, page);
    auto* const damaged = const_cast<std::byte*>(stored.data) + bit / 8 % stored.link_bytes;
    auto* const system_page = damaged - reinterpret_cast<std::uintptr_t>(damaged) % 4096;
    ensure(mprotect(system_page, 4096, PROT_READ | PROT_WRITE) == 0, "host pages cannot be damaged");
    *damaged ^= std::byte{1} << (bit % 8);
    ensure(mprotect(system_page, 4096, PROT_READ) == 0, "host pages cannot be made read-only again");
  }

  // The other costs are those of a fast link, so that nothing depends on the machine.
  void measured(int /*rank*/, MeasuredCosts& costs) override {
    if (!copy_s_) return;
    costs = {.copies = {.copy_s = *copy_s_, .bytes_per_s = 1e10, .event_s = 0}, .compute_s_per_byte = 1e-10};
  }

  void schedule(SchedulerOptions& options) override {
    options.max_waiting = max_waiting_.value_or(options.max_waiting);
  }

  PageSourceWrapper page_wrapper(Progress& progress) override {
    if (gflops_ == 0) return {};
    processor_.emplace(with_overheads(profile_of_rate(1e9 * gflops_), parse_overheads(overheads_)), progress);
    return processor_->wrapper();
  }

  void executed(int this_rank, Report& report) override {
    if (divergence_.empty()) return;
    int rank = 0, step = 0, end = 0;
    const int fields = std::sscanf(divergence_.c_str(), "%d:%d:%n", &rank, &step, &end);
    if (fields != 2 || end == 0) throw wrong("--inject-divergence", divergence_, "RANK:STEP:FIELD");
    if (rank != this_rank || report.step < static_cast<StepId>(step)) return;
    static const std::map<std::string, std::uint64_t StateDigest::*> kFields = {
        {"lengths", &StateDigest::lengths},
        {"page_table", &StateDigest::page_table},
        {"sequences", &StateDigest::sequences}};
    ++(report.digest.*kFields.at(divergence_.substr(static_cast<std::size_t>(end))));
  }

  std::unique_ptr<FrontEnd> around(FrontEnd& front_end) override {
    if (late_notes_s_ > 0) return std::make_unique<LateFrontEnd>(front_end, late_notes_s_);
    if (!crash_) return nullptr;
    return std::make_unique<CrashingFrontEnd>(front_end, *crash_);
  }

 private:
  std::string flip_, host_flip_, mismatch_, divergence_, overheads_;
  std::optional<RequestId> crash_;
  std::optional<std::size_t> max_waiting_;
  std::optional<double> copy_s_;
  double late_notes_s_ = 0, gflops_ = 0;
  std::optional<EmulatedProcessor> processor_;
};

}  // namespace
}  // namespace computron::test

int main(int argc, char** argv) {
  computron::test::Injections injections;
  return computron::run_program(argc, argv, injections, [&](CLI::App& app) { injections.add_options(app); });
}
