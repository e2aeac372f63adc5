// `computron simulate PROFILES`: requests played against a placement, pass by pass.
#pragma once

#include <string>

#include "computron/plan/virtual_cluster.h"
#include "src/apps/arrival_options.h"

namespace CLI {
class App;
}

namespace computron {

inline ArrivalOptions arrivals_to_play() {
  ArrivalOptions options;
  options.command = "simulate";
  options.searches = false;
  return options;
}

struct PlacementRunOptions {
  std::string profiles, placement, json;
  int groups = 1, tp = 1, pp = 1;
  ArrivalOptions requests = arrivals_to_play();
  std::string request_file;         // instead of them; empty: none
  bool replay = false;              // at the times that it says
  std::string written_requests;     // where those that are played are written to; empty: nowhere
  int vocab = 1000;                 // of their prompts
  double slo_s = 0, slo_scale = 0;  // 0: no deadlines
  std::string on_late = "serve";
  std::string device_memory, page_size, host_cache;  // empty: as the profiles say
  double link_gb_per_s = 0;
  int max_batch_tokens = 0;  // 0: usual_batch_tokens()
  ClusterOptions cluster;
  bool quiet = false;
};

// `options` must live as long as `app`.
void add_placement_run_options(CLI::App& app, PlacementRunOptions& options);

// Prints what the schedulers would make of the requests, and writes it if asked to. Error{kUsage} naming the option
// that is missing or wrong, those of the files, and ConfigError where a model does not fit.
void run_placement(const PlacementRunOptions& options);

}  // namespace computron
