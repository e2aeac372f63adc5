// stalled_job MODEL POLICY INPUT WATCHDOG FOLDER: a job of one request whose rank 0 does not hear that its input is
// complete. All ranks look up and tell each other so, and no step is in hand.
//
//   INPUT over   nobody outside sends any more: the job waits for itself
//         open   somebody may, and says after four deadlines of a step that he does not: the job ends in order
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "computron/base/log.h"
#include "computron/base/time.h"
#include "computron/comm/mpi.h"
#include "computron/serve/engine.h"
#include "computron/serve/group_schedulers.h"

namespace computron {
namespace {

class OpenEnd : public FrontEnd {
 public:
  OpenEnd(bool open, double open_s) : open_(open), closes_s_(now_s() + open_s) {}

  bool take_input(Dispatcher& dispatcher, double /*now*/) override {
    if (std::exchange(begins_, false)) {
      Request request;
      request.prompt = {1, 2, 3};
      request.max_tokens = 4;
      request.ignore_eos = true;
      dispatcher.submit(std::move(request));
      return true;
    }
    if (!open_ || now_s() < closes_s_) return false;
    open_ = false;
    dispatcher.close_input();
    return true;
  }
  bool input_open() const override { return open_; }
  std::string unfinished() const override { return "two lines are held back"; }
  void put_results(std::vector<Completion> /*completions*/, double /*now*/) override {}

 private:
  bool begins_ = true;
  bool open_;
  double closes_s_;
};

PolicyChoice policy_named(std::string_view name) {
  for (const PolicyChoice policy : {PolicyChoice::kFifo, PolicyChoice::kThroughput}) {
    if (name_of(policy) == name) return policy;
  }
  return PolicyChoice::kBalanced;
}

struct Options {
  std::string model;
  PolicyChoice policy = PolicyChoice::kBalanced;
  bool open = false;
  double watchdog = 1;
  std::string folder;
};

void run(const Options& options, Communicator world) {
  const WatchdogLimits limits = WatchdogLimits{}.times(options.watchdog);
  Heartbeat heartbeat(world, {.limits = limits, .folder = options.folder});
  JobOptions of_job;
  of_job.models = {{.id = "tiny", .path = options.model}};
  of_job.tp = world.size();
  of_job.device = DeviceChoice::kCpu;
  of_job.device_memory_bytes = std::size_t{8} << 20;
  of_job.page_bytes = std::size_t{64} << 10;
  of_job.threads = 1;
  of_job.policy = options.policy;
  const JobHeartbeat of_rank(heartbeat);
  Job job(std::move(of_job), std::move(world), of_rank);
  if (job.mesh().rank != 0) {
    run_worker(job, of_rank);
  } else {
    GroupSchedulers schedulers(job);
    Metrics metrics(job.models().names());
    OpenEnd front_end(options.open, 4 * limits.step);
    Engine(job, schedulers.dispatcher(), front_end, metrics, now_s(), Drain{}, of_rank).run();
  }
  heartbeat.recorder().remove();
}

}  // namespace
}  // namespace computron

int main(int argc, char** argv) {
  using namespace computron;
  if (argc != 6) return static_cast<int>(ExitCode::kUsage);
  const Options options{.model = argv[1],
                        .policy = policy_named(argv[2]),
                        .open = argv[3] == std::string("open"),
                        .watchdog = std::atof(argv[4]),
                        .folder = argv[5]};
  MpiSession session(&argc, &argv);
  Communicator world = Communicator::world();
  const int rank = world.rank();
  init_logging(rank, /*quiet=*/true);
  try {
    run(options, std::move(world));
    return 0;
  } catch (const Error& error) {
    report_failure(rank, error.what());
    MpiSession::abort(error.code());
  }
}
