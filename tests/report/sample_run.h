// A metrics file as serve writes it, by hand.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

namespace computron::test {

// The figures of the job or of a model; `scale` tells them apart.
inline std::string sample_group(int scale) {
  return fmt::format(
      R"json("requests": {{"total": {0}3, "ok": {0}2, "failed": 1}},
      "deadlines": {{"total": {0}0, "met": {0}, "unserved": 4, "attainment": 0.{0}}},
      "tokens": {{"prompt": {0}00, "generated": {0}50, "generated_per_s": {0}.25}},
      "latency_s": {{"mean": 0.{0}, "p50": 0.{0}, "p90": 0.{0}5, "p99": 0.{0}7, "max": 0.{0}9, "percentiles": [0.1, 0.{0}, 0.{0}9]}},
      "ttft_s": {{"mean": 0.0{0}, "p50": 0.0{0}, "p90": 0.0{0}5, "p99": null, "max": 0.0{0}9, "percentiles": []}},
      "swaps": {{"count": {0}, "pages": {0}0, "bytes": {0}000000, "busy_s": 0.{0}1, "exposed_s": 0.0{0}, "gb_per_s_per_rank": {0}.5,
                 "link_fraction": 0.9{0}, "verified": 0, "refetched": 0}},
      "steps": {{"count": {0}7, "passes": {0}6, "graphs": {0}5, "mean_us": {0}11.5, "overhead_us": {0}.25, "compute_s": 1}},
      "cache": {{"set_asides": 0, "shared_tokens": 0}}, "open": [{0}, {0}, 0])json",
      scale);
}

// The list of groups with these tp and pp.
inline std::string sample_groups(const std::vector<std::pair<int, int>>& meshes) {
  std::string list;
  int first_rank = 0;
  for (const auto& [tp, pp] : meshes) {
    list += fmt::format(R"json({}{{"tp": {}, "pp": {}, "first_rank": {}, "models": ["a"], {}}})json",
                        list.empty() ? "" : ", ", tp, pp, first_rank, sample_group(1));
    first_rank += tp * pp;
  }
  return "\"groups\": [" + list + "]";
}

inline std::string sample_run(const std::string& model = "a") {
  return fmt::format(
      R"json({{"computron": {{"version": "9.8.7", "commit": "c0ffee", "build": "Release", "compiler": "12", "libraries": ["Open MPI 4", "<l>"]}},
      "job": {{"slurm_job_id": "7_<j>"}}, "started": "2026-11-22T01:02:03Z", "host": "node1", "wall_s": 12.5,
      "mesh": {{"ranks": 4, "tp": 2, "pp": 2, "groups": 1}}, "device": "cpu (1 thread)",
      "link": {{"gb_per_s_per_rank": 2.0, "emulated": true}}, {},
      "over_time": {{"interval_s": 0.5, "waiting": [3, 1, 0]}},
      "configuration": {{"max-seqs": "8", "output": "<out>.jsonl"}},
      "models": {{"{}": {{{}}}, "b": {{{}}}}}}})json",
      sample_group(3), model, sample_group(1), sample_group(2));
}

// Of two groups, with what was predicted of them.
inline std::string predicted_run() {
  std::string run = sample_run();
  run.insert(run.find("\"over_time\""), sample_groups({{2, 1}, {1, 2}}) + ", " + R"json("predicted": {
      "basis": "Gamma <arrivals>", "duration_s": 12.5, "requests": 33, "attainment": 0.25, "mean_latency_s": 0.2,
      "p99_latency_s": 0.37, "makespan_s": 10, "swaps_per_s": 0.24,
      "groups": [{"attainment": 0.5, "swaps_per_s": 0}, {"attainment": 1, "swaps_per_s": 0.125}],
      "models": {"a": {"attainment": 0.75}, "b": {"requests": 3, "attainment": 0.1, "mean_latency_s": 0.4}}},
      )json");
  return run;
}

}  // namespace computron::test
