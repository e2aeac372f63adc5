// computron plan: which groups of ranks there should be, and which models in which.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "computron/base/error.h"
#include "computron/base/stop.h"
#include "computron/base/time.h"
#include "computron/placement/exact_search.h"
#include "computron/placement/group_search.h"
#include "computron/placement/prediction.h"
#include "computron/storage/files.h"
#include "src/apps/commands.h"
#include "src/apps/plan_options.h"
#include "src/apps/rescoring.h"

namespace computron {
namespace {

std::string outcome_text(Objective objective, double attainment, double mean_latency_s, double makespan_s) {
  switch (objective) {
    case Objective::kAttainment:
      return fmt::format("{:.2f} % in time", 100 * attainment);
    case Objective::kMeanLatency:
      return fmt::format("mean latency {:.4g} s", mean_latency_s);
    case Objective::kMakespan:
      return fmt::format("makespan {:.4g} s", makespan_s);
  }
  return {};
}

// Stops at a signal and when the time is over; says what has been found so far.
SearchWatch watch_of(const PlanOptions& options, Objective objective, double start_s) {
  SearchWatch watch;
  watch.stop = [limit_s = options.time_limit_s, start_s] {
    return stop_signals() > 0 || (limit_s > 0 && now_s() - start_s > limit_s);
  };
  if (options.quiet) return watch;
  watch.better = [objective, start_s](const ScoredPlacement& found) {
    const SimulationResult& result = found.result;
    fmt::print(stderr, "plan: {}, {} groups, after {:.1f} s\n",
               outcome_text(objective, result.attainment(), result.mean_latency_s(), result.makespan_s),
               found.placement.size(), now_s() - start_s);
  };
  return watch;
}

// Why the search ended before it was done; empty if it was not.
std::string stopped_by(const PlanOptions& options, const PlacementEvaluator& evaluator) {
  if (stop_signals() > 0) return "stopped by " + stop_signal_name();
  return evaluator.stopped() ? fmt::format("stopped after {:g} s", options.time_limit_s) : std::string();
}

bool has_ranks_for(const SearchProblem& problem, const ModelProfile& model) {
  return std::ranges::any_of(model.shapes,
                             [&problem](const auto& entry) { return entry.first.ranks() <= problem.ranks; });
}

// Models in no group, and why: lines, if any.
std::string absent_text(const SearchProblem& problem, const ModelPlacement& placement, const std::string& stopped) {
  const auto replicas = replicas_by_model(problem, placement);
  std::string without_shape, others;
  for (std::size_t m = 0; m < problem.models.size(); ++m) {
    if (replicas[m] > 0) continue;
    std::string& ids = has_ranks_for(problem, problem.models[m]) ? others : without_shape;
    ids += (ids.empty() ? "" : ", ") + problem.models[m].id;
  }
  std::string text;
  if (!without_shape.empty()) {
    text += fmt::format("in no group, as no profile is of {} ranks or fewer: {}\n", problem.ranks, without_shape);
  }
  if (others.empty()) return text;
  const char* const why = stopped.empty() ? "for want of room" : "the search was stopped before";
  return text + fmt::format("in no group, {}: {}\n", why, others);
}

ModelPlacement placement_of(const PlacementEvaluator& evaluator, const ModelPlacement& found,
                            const std::string& stopped) {
  ModelPlacement placement = as_job(evaluator.problem(), found);
  if (placement.empty() && stopped.empty()) throw ConfigError("plan: no model fits any group: more memory is needed");
  if (placement.empty()) throw Error(ExitCode::kStopped, "plan: " + stopped + " before a placement was found");
  return placement;
}

void print_plan(const PlacementEvaluator& evaluator, const ModelPlacement& placement, const Prediction& prediction,
                const std::string& basis, const std::string& stopped) {
  const SearchProblem& problem = evaluator.problem();
  fmt::print("{}\n", placement_table(group_specs(placement, problem.models), prediction));
  fmt::print("predicted: {}; {}\n",
             outcome_text(problem.objective, prediction.attainment, prediction.mean_latency_s, prediction.makespan_s),
             prediction_line(prediction));
  fmt::print("of: {}\n", basis);
  const int ranks = ranks_of(placement);
  if (ranks < problem.ranks)
    fmt::print("{} ranks are of no use: start the job with {}\n", problem.ranks - ranks, ranks);
  fmt::print("{}", absent_text(problem, placement, stopped));
}

// What was found, and how: "58 simulations".
struct Answer {
  ScoredPlacement best;
  std::string how;
};

Answer find_placement(const PlanOptions& options, PlacementEvaluator& evaluator) {
  if (!options.exact) {
    ScoredPlacement best = search_placement(evaluator);
    return {std::move(best), fmt::format("{} simulations", evaluator.simulations())};
  }
  ExactAnswer exact = search_exactly(evaluator);
  const char* const proven =
      exact.proven ? "no placement has a shorter makespan" : "a shorter makespan may be possible";
  return {std::move(exact.best), fmt::format("{}: {} of {:g} possible placements simulated", proven, exact.placements,
                                             possible_placements(evaluator.problem()))};
}

struct Chosen {
  ModelPlacement placement;
  Prediction prediction;
  std::string basis;
  std::size_t played = 0;
};

// The best of the search, as its own simulator sees it; or, played pass by pass, the best of the best.
Chosen choose(PlacementEvaluator& evaluator, const ModelPlacement& found, const ArrivalSets& sets,
              const PlanOptions& options, const MachineProfile& machine, const std::string& stopped) {
  const std::string basis = basis_of(options.requests, evaluator.problem().models);
  Rescoring rescoring(evaluator, {.placements = static_cast<std::size_t>(options.exact ? 0 : options.rescore),
                                  .prompt_tokens = options.requests.prompt_tokens,
                                  .max_tokens = options.requests.max_tokens,
                                  .policy = options.policy,
                                  .max_seqs = options.max_seqs,
                                  .max_batch_tokens = options.max_batch_tokens,
                                  .latency_s = machine.step_latency_s,
                                  .stop = [] { return stop_signals() > 0; }});
  const auto best = rescoring.best();
  if (!best || stop_signals() > 0) {
    ModelPlacement placement = best ? *best : placement_of(evaluator, found, stopped);
    Prediction prediction = predict(evaluator, placement, sets.test, sets.duration_s);
    return {std::move(placement), std::move(prediction), basis, rescoring.played()};
  }
  std::string part;
  Prediction prediction = rescoring.predict(*best, sets.test, sets.duration_s, part);
  return {*best, std::move(prediction), basis + part + ", played pass by pass", rescoring.played()};
}

void run_plan(const PlanOptions& options) {
  const ProfileFile profiles = read_profiles(options.profiles);
  if (!options.output.empty()) check_creatable(options.output, options.profiles);
  const auto models = models_of(options.requests, profiles.models, options.profiles);
  ArrivalSets sets = arrivals_of(options.requests, models);
  if (sets.training.empty() || sets.test.empty()) throw Error(ExitCode::kUsage, "plan: there are no requests");
  SearchProblem problem = problem_of(options, profiles.machine, models, std::move(sets.training));
  const Objective objective = problem.objective;
  catch_stop_signals(1);
  const double start_s = now_s();
  PlacementEvaluator evaluator(std::move(problem), watch_of(options, objective, start_s));
  const Answer answer = find_placement(options, evaluator);
  const std::string stopped = stopped_by(options, evaluator);
  const double searched_s = now_s();

  const Chosen chosen = choose(evaluator, answer.best.placement, sets, options, profiles.machine, stopped);
  print_plan(evaluator, chosen.placement, chosen.prediction, chosen.basis, stopped);
  fmt::print("search: {} in {:.1f} s{}{}\n", answer.how, searched_s - start_s, stopped.empty() ? "" : ", ", stopped);
  if (chosen.played > 0) {
    fmt::print("played: {} placements, and the best of them again, in {:.1f} s\n", chosen.played, now_s() - searched_s);
  }
  if (options.output.empty()) return;
  write_file_atomically(options.output,
                        placement_file(group_specs(chosen.placement, models), models, chosen.prediction, chosen.basis));
}

}  // namespace

void add_plan(CLI::App& app) {
  auto* command = app.add_subcommand("plan", "Find groups of ranks, and which models each should serve");
  const auto options = std::make_shared<PlanOptions>();
  command->footer(
      "Searches by simulating passes, first come first served, one pass a request; the best placements are then "
      "played\n"
      "by the schedulers that serve (--rescore). ^C and --time-limit end the search with the best so far. What is "
      "printed and written is predicted of requests that the search has not seen; of "
      "those of\n"
      "--known there are no others.");
  add_plan_options(*command, *options);
  command->callback([options, command] {
    check_plan_options(*command, *options);
    note_given(*command, options->requests);
    run_plan(*options);
  });
}

}  // namespace computron
