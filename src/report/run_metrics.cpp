#include "computron/report/run_metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "computron/base/error.h"
#include "computron/base/json.h"
#include "computron/base/printable.h"

namespace computron {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 16;  // of nested values; ours have 5
constexpr int kMaxRanks = 1 << 20;

// A value and where it stands.
class Field {
 public:
  Field(const Json& json, std::string path, const std::string& file)
      : json_(json), path_(std::move(path)), file_(file) {}

  bool has(const char* key) const { return object().contains(key); }
  Field at(const char* key) const {
    if (!has(key)) fail(key, "is missing: this is not what computron serve --metrics writes");
    return Field(json_.at(key), path_.empty() ? key : path_ + "." + key, file_);
  }

  double number() const {
    if (!json_.is_number()) wrong("a number");
    const auto value = json_.get<double>();
    if (!std::isfinite(value)) wrong("a finite number");
    return value;
  }
  std::optional<double> optional() const { return json_.is_null() ? std::nullopt : std::optional(number()); }
  // Times, rates and the like.
  double amount() const {
    const double value = number();
    if (value < 0) wrong("at least 0");
    return value;
  }
  std::uint64_t count() const {
    if (!json_.is_number_unsigned()) wrong("a whole number of at least 0");
    return json_.get<std::uint64_t>();
  }
  int ranks() const {
    const std::uint64_t value = count();
    if (value < 1 || value > kMaxRanks) wrong(fmt::format("between 1 and {}", kMaxRanks).c_str());
    return static_cast<int>(value);
  }
  bool boolean() const {
    if (!json_.is_boolean()) wrong("true or false");
    return json_.get<bool>();
  }
  std::string string() const {
    if (!json_.is_string()) wrong("a string");
    return json_.get<std::string>();
  }
  // Calls take(field) for each of a list.
  template <class F>
  void each(const F& take) const {
    if (!json_.is_array()) wrong("a list");
    for (std::size_t i = 0; i < json_.size(); ++i) take(Field(json_[i], fmt::format("{}[{}]", path_, i), file_));
  }
  // Calls take(name, field) for each of an object.
  template <class F>
  void each_named(const F& take) const {
    for (const auto& [name, value] : object().items()) take(name, Field(value, path_ + "." + printable(name), file_));
  }

 private:
  const Json& object() const {
    if (!json_.is_object()) wrong("an object");
    return json_;
  }
  [[noreturn]] void wrong(const char* wanted) const {
    const std::string shown = printable(json_.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60));
    throw Error(ExitCode::kData,
                fmt::format("{}: {} should be {}, not {}", file_, path_.empty() ? "the whole" : path_, wanted, shown));
  }
  [[noreturn]] void fail(const char* key, const char* what) const {
    throw Error(ExitCode::kData, fmt::format("{}: {}{}{} {}", file_, path_, path_.empty() ? "" : ".", key, what));
  }

  const Json& json_;
  std::string path_;
  const std::string& file_;
};

DistributionMetrics distribution(const Field& field) {
  DistributionMetrics d{field.at("mean").optional(), field.at("p50").optional(), field.at("p90").optional(),
                        field.at("p99").optional(),  field.at("max").optional(), {}};
  if (field.has("percentiles")) {
    field.at("percentiles").each([&](const Field& value) { d.percentiles.push_back(value.number()); });
  }
  return d;
}

std::vector<std::uint64_t> counts(const Field& field) {
  std::vector<std::uint64_t> values;
  field.each([&](const Field& value) { values.push_back(value.count()); });
  return values;
}

void read_swaps(const Field& swaps, GroupMetrics& group) {
  group.swaps = swaps.at("count").count();
  group.pages = swaps.at("pages").count();
  group.bytes = swaps.at("bytes").count();
  group.link_bytes = swaps.has("link_bytes") ? swaps.at("link_bytes").count() : group.bytes;
  group.busy_s = swaps.at("busy_s").amount();
  group.exposed_s = swaps.at("exposed_s").amount();
  group.gb_per_s_per_rank = swaps.at("gb_per_s_per_rank").optional();
  group.link_fraction = swaps.at("link_fraction").optional();
}

void read_deadlines(const Field& deadlines, GroupMetrics& group) {
  group.deadlines = deadlines.at("total").count();
  group.deadlines_met = deadlines.at("met").count();
  group.deadlines_unserved = deadlines.at("unserved").count();
  group.attainment = deadlines.at("attainment").optional();
}

GroupMetrics group_metrics(const std::string& id, const Field& field) {
  GroupMetrics group;
  group.id = id;
  const Field requests = field.at("requests"), tokens = field.at("tokens"), steps = field.at("steps");
  group.total = requests.at("total").count();
  group.ok = requests.at("ok").count();
  group.failed = requests.at("failed").count();
  if (field.has("deadlines")) read_deadlines(field.at("deadlines"), group);
  group.prompt_tokens = tokens.at("prompt").count();
  group.generated_tokens = tokens.at("generated").count();
  group.generated_per_s = tokens.at("generated_per_s").optional();
  group.latency_s = distribution(field.at("latency_s"));
  group.ttft_s = distribution(field.at("ttft_s"));
  read_swaps(field.at("swaps"), group);
  group.steps = steps.at("count").count();
  if (steps.has("graphs")) group.graphs = steps.at("graphs").count();
  group.step_mean_us = steps.at("mean_us").optional();
  group.step_overhead_us = steps.at("overhead_us").optional();
  if (field.has("open")) group.unfinished = counts(field.at("open"));
  return group;
}

MeshMetrics mesh_of(const Field& field) { return {field.at("tp").ranks(), field.at("pp").ranks()}; }

// "group 1 (tp 2 × pp 1, from rank 2)".
std::string name_of_group(std::size_t index, const MeshMetrics& mesh, const Field& group) {
  return fmt::format("group {} (tp {} × pp {}, from rank {})", index, mesh.tp, mesh.pp, group.at("first_rank").count());
}

void read_groups(const Field& groups, RunMetrics& run) {
  run.meshes.clear();
  groups.each([&run](const Field& group) {
    run.meshes.push_back(mesh_of(group));
    run.rank_groups.push_back(group_metrics(name_of_group(run.rank_groups.size(), run.meshes.back(), group), group));
  });
}

void read_info(const Field& root, RunMetrics& run) {
  run.wall_s = root.at("wall_s").amount();
  const Field mesh = root.at("mesh"), link = root.at("link");
  run.ranks = mesh.at("ranks").ranks();
  run.meshes.assign(static_cast<std::size_t>(mesh.at("groups").ranks()), mesh_of(mesh));
  run.device = root.at("device").string();
  run.link_gb_per_s = link.at("gb_per_s_per_rank").optional();
  run.link_emulated = link.at("emulated").boolean();
}

void read_program(const Field& program, RunMetrics& run) {
  run.version = program.at("version").string();
  if (program.has("commit")) run.commit = program.at("commit").string();
  if (program.has("build")) run.build = program.at("build").string();
  if (program.has("compiler")) run.compiler = program.at("compiler").string();
  if (!program.has("libraries")) return;
  program.at("libraries").each([&](const Field& library) { run.libraries.push_back(library.string()); });
}

void read_additions(const Field& root, RunMetrics& run) {
  if (root.has("computron")) read_program(root.at("computron"), run);
  if (root.has("job") && root.at("job").has("slurm_job_id")) {
    run.slurm_job_id = root.at("job").at("slurm_job_id").string();
  }
  if (root.has("started")) run.started = root.at("started").string();
  if (root.has("host")) run.host = root.at("host").string();
  if (root.has("attempt")) run.attempt = root.at("attempt").count();
  if (root.at("requests").has("before")) run.before = root.at("requests").at("before").count();
  if (root.has("over_time")) {
    run.interval_s = root.at("over_time").at("interval_s").amount();
    run.waiting = counts(root.at("over_time").at("waiting"));
  }
  if (!root.has("configuration")) return;
  root.at("configuration").each_named([&](const std::string& option, const Field& value) {
    run.configuration.emplace_back(option, value.string());
  });
}

PredictedPart predicted_part(const Field& field) {
  const auto value = [&field](const char* key) {
    return field.has(key) ? field.at(key).optional() : std::optional<double>();
  };
  return {value("attainment"), value("mean_latency_s"), value("p99_latency_s"), value("makespan_s"),
          value("swaps_per_s")};
}

PredictedMetrics predicted_metrics(const Field& field) {
  PredictedMetrics predicted;
  if (field.has("basis")) predicted.basis = field.at("basis").string();
  if (field.has("duration_s")) predicted.duration_s = field.at("duration_s").optional();
  if (field.has("requests")) predicted.requests = field.at("requests").optional();
  predicted.all = predicted_part(field);
  if (field.has("groups")) {
    field.at("groups").each([&](const Field& group) { predicted.groups.push_back(predicted_part(group)); });
  }
  if (field.has("models")) {
    field.at("models").each_named(
        [&](const std::string& id, const Field& model) { predicted.models.emplace_back(id, predicted_part(model)); });
  }
  return predicted;
}

Json parse(std::string_view text, const std::string& file) {
  Json value;
  const auto fault = parse_json(text, {.depth = kMaxDepth}, value);
  if (!fault) return value;
  if (fault->kind == JsonFault::Kind::kTooDeep) {
    throw Error(ExitCode::kData, file + ": nested too deep for the figures of a run");
  }
  throw Error(ExitCode::kData, fmt::format("{}: not JSON: {}", file, printable(fault->message)));
}

}  // namespace

RunMetrics parse_run_metrics(std::string_view text, const std::string& file) {
  const Json json = parse(text, file);
  const Field root(json, "", file);
  RunMetrics run;
  read_info(root, run);
  run.job = group_metrics("", root);
  if (root.has("open")) run.job.unfinished = counts(root.at("open"));
  root.at("models").each_named(
      [&](const std::string& id, const Field& field) { run.models.push_back(group_metrics(id, field)); });
  if (root.has("groups")) read_groups(root.at("groups"), run);
  read_additions(root, run);
  if (root.has("predicted")) run.predicted = predicted_metrics(root.at("predicted"));
  return run;
}

}  // namespace computron
