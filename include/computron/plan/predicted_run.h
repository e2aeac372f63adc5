// What a virtual run says of a placement: the same figures as a fast simulation gives (placement/prediction.h), of the
// schedulers that serve.
#pragma once

#include <cstdint>
#include <string>

#include "computron/placement/prediction.h"
#include "computron/plan/virtual_cluster.h"

namespace computron {

// Of a run of requests over `duration_s` seconds, 0 where all are there from the start. Served is a request that ends
// without an error; attained, one that ends by its deadline as well. Swaps are times that fetching a model begins.
Prediction predict(const std::vector<ModelProfile>& models, const ModelPlacement& placement, const VirtualRun& run,
                   double duration_s);

// The prediction of such a run, which is made for it. As VirtualCluster's constructor.
Prediction play(const std::vector<ModelProfile>& models, const ModelPlacement& placement, std::vector<Request> requests,
                double duration_s, const ClusterOptions& options);

// By the same rule as the fast simulation's: more is better. Of attainment, mean latency (of those served) or makespan.
double score_of(Objective objective, const Prediction& prediction);

// "4,612,345 steps in 120.1 s, 26 us each: 20 to decide, 4 the ranks, 2 the rest".
std::string format_times(const VirtualRun& run, const RunTimes& times);

}  // namespace computron
