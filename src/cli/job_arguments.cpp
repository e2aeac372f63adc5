#include "src/cli/job_arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "src/cli/option_checks.h"
#include "src/cli/option_groups.h"

namespace computron {
namespace {

DeviceChoice parse_device(const std::string& text) {
  if (text == "auto") return DeviceChoice::kAuto;
  return text == "cpu" ? DeviceChoice::kCpu : DeviceChoice::kGpu;
}

CodedChoice parse_coded(const std::string& text) {
  if (text == "auto") return CodedChoice::kAuto;
  return text == "on" ? CodedChoice::kOn : CodedChoice::kOff;
}

TransportChoice parse_transport(const std::string& text) {
  if (text == "auto") return TransportChoice::kAuto;
  return text == "mpi" ? TransportChoice::kStaged : TransportChoice::kDirect;
}

}  // namespace

PolicyChoice parse_policy(const std::string& text) {
  for (const PolicyChoice policy : {PolicyChoice::kFifo, PolicyChoice::kBalanced, PolicyChoice::kThroughput}) {
    if (text == name_of(policy)) return policy;
  }
  throw Error(ExitCode::kUsage, fmt::format("unknown policy '{}' (known: fifo, balanced, throughput)", text));
}

// A placement may bring its own model list.
void JobArguments::read_models() {
  options.models = model_list.empty() ? parse_model_arguments(models) : read_model_list(model_list);
  if (!placement.empty()) {
    Placement file = read_placement(placement);
    options.placement = std::move(file.groups);
    options.predicted = std::move(file.predicted);
    if (!file.models.empty() && !options.models.empty()) {
      throw Error(ExitCode::kUsage,
                  fmt::format("placement '{}' has models of its own: give no --model and no --models", placement));
    }
    if (!file.models.empty()) options.models = std::move(file.models);
  }
  if (options.models.empty()) throw Error(ExitCode::kUsage, "no models: give --model ID=FILE or --models FILE");
}

void JobArguments::complete() {
  read_models();
  if (!device_memory.empty()) options.device_memory_bytes = size_of("--device-memory", device_memory);
  options.measure_page_size = page_size == "auto";
  if (!page_size.empty() && page_size != "auto") options.page_bytes = size_of("--page-size", page_size);
  if (!idle.empty()) options.idle = IdlePolicy::parse(idle);
  if (!host_cache.empty()) options.host_cache_bytes = size_of("--host-cache", host_cache);
  options.policy = parse_policy(policy);
  options.coded = parse_coded(coded);
  options.share_host_pages = host_pages == "shared";
  options.share_model_pages = model_pages == "shared";
  if (verify_swap != "auto") options.verify_swap = parse_verify_swap(verify_swap);
  options.device = parse_device(device);
  options.transport = parse_transport(transport);
}

void add_job_options(CLI::App& app, JobArguments& a) {
  JobOptions& o = a.options;
  auto* model =
      app.add_option("--model", a.models, "A model to serve, as ID=FILE.h5 or ID=BASE.h5+ADAPTER.h5; repeat for more");
  app.add_option("--models", a.model_list,
                 "A model list: JSON list of id, path and optional adapter, pinned, priority, slo")
      ->excludes(model);
  app.add_option("--tp", o.tp, "Tensor-parallel ranks a stage (default: all ranks)")->check(CLI::PositiveNumber);
  app.add_option("--pp", o.pp, "Pipeline stages (default: 1)")->check(CLI::PositiveNumber);
  app.add_option("--device", a.device, "auto (GPUs where every rank has one for itself), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_flag("--share-gpu", o.share_gpu, "Ranks may have the same GPU (slow: for tests)");
  app.add_flag("--tf32", o.tf32, "GPUs multiply float32 weights with 10 bits of mantissa");
  app.add_option("--transport", a.transport, "Between GPUs: nccl, mpi (through host memory), or auto")
      ->check(CLI::IsMember({"auto", "nccl", "mpi"}));
  app.add_option("--device-memory", a.device_memory, "Pool of a rank, weights and cache together (e.g. 2GiB)");
  app.add_option("--page-size", a.page_size,
                 "Bytes of a page (default: 8 MiB on cpu, 64 MiB on cuda, more for wide models); auto: with which the "
                 "copies that are measured at the start let passes end first");
  app.add_option("--link-gbps", o.link_gb_per_s, "Hold each rank's copies to this many GB/s (emulated link)")
      ->check(positive_number());
  app.add_option("--policy", a.policy, "Which model runs next: fifo, balanced or throughput")
      ->check(CLI::IsMember({"fifo", "balanced", "throughput"}));
  app.add_option("--max-wait", o.max_wait_s,
                 "Seconds after which goes first what is passed by; balanced: a waiting model")
      ->check(positive_number());
  app.add_option("--host-pages", a.host_pages,
                 "Ranks of a node that need the same pages hold them once (shared) or each for itself (private)")
      ->check(CLI::IsMember({"shared", "private"}));
  app.add_option("--model-pages", a.model_pages,
                 "Pages that models have in common are one page (shared), or each model has its own (private)")
      ->check(CLI::IsMember({"shared", "private"}));
  app.add_option("--host-cache", a.host_cache,
                 "Host memory of a rank for caches of swapped-out models (default: an eighth of the pool)");
  app.add_option("--coded", a.coded,
                 "Pages coded, to the bit, in host memory and on the link: on, off, or auto: where every rank decodes "
                 "well above the rate of its link")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  app.add_option("--verify-swap", a.verify_swap,
                 "Pages digested in device memory before use: off, first (copy of each), every (copy), or auto: first "
                 "on cpu, off on cuda")
      ->check(CLI::IsMember({"auto", "off", "first", "every"}));
  app.add_flag("--reproducible", o.reproducible,
               "The same bits at tp 1, 2, 4 and 8: sums over ranks in one fixed tree");
  app.add_option("--threads", o.threads, "Compute threads of a rank (default: cores / ranks of the node)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--idle", a.idle, "What a waiting rank does: spin, yield or sleep:US");
  group_options(app, "Models", {"--model", "--models"});
  group_options(app, "Mesh and devices",
                {"--tp", "--pp", "--device", "--share-gpu", "--tf32", "--transport", "--link-gbps", "--reproducible",
                 "--threads", "--idle"});
  group_options(
      app, "Memory",
      {"--device-memory", "--page-size", "--host-pages", "--model-pages", "--host-cache", "--coded", "--verify-swap"});
  group_options(app, "Scheduling", {"--policy", "--max-wait"});
}

void add_group_options(CLI::App& app, JobArguments& a) {
  auto* placement =
      app.add_option("--placement", a.placement,
                     "Which models are served by which ranks: a JSON file of groups with tp, pp and models each");
  app.add_option("--groups", a.options.groups, "Equal groups of tp x pp ranks, each with every model (default: 1)")
      ->check(CLI::PositiveNumber);
  for (const char* of_all : {"--tp", "--pp", "--groups"}) placement->excludes(app.get_option(of_all));
  group_options(app, "Mesh and devices", {"--groups", "--placement"});
}

}  // namespace computron
