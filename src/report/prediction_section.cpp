// What computron plan expected of a job, beside what the job came to.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "computron/report/text.h"
#include "src/report/sections.h"

namespace computron {
namespace {

using Known = std::optional<double>;

constexpr double kAlike = .1;  // difference up to which requests may be those of the prediction

std::string ratio_text(double value) { return fmt::format("{:.2f}", value); }

// Three cells: predicted, measured, and how many times as much that is.
std::string pair_cells(const std::string& key, const Known& predicted, const std::string& measured_text,
                       const Known& measured, std::string (*format)(double)) {
  const bool has_ratio = predicted && measured && *predicted > 0;
  return fmt::format("<td class=\"g\">{}</td><td>{}</td><td>{}</td>", data(key, predicted, format), measured_text,
                     has_ratio ? ratio_text(*measured / *predicted) : "–");
}

Known swaps_per_s(const GroupMetrics& group, double wall_s) {
  return wall_s > 0 ? Known(static_cast<double>(group.swaps) / wall_s) : std::nullopt;
}

// `key`: where the part stands in the metrics file, ending with a dot or empty.
std::string part_row(const std::string& name, const std::string& key, const PredictedPart& predicted,
                     const GroupMetrics& measured, const RunMetrics& run) {
  const std::string own = "predicted." + key;
  const auto cells = [&](const char* predicted_key, const Known& expected, const std::string& measured_key,
                         const Known& found, std::string (*format)(double)) {
    return pair_cells(own + predicted_key, expected, data(measured_key, found, format), found, format);
  };
  const bool of_job = key.empty();
  std::string row = of_job ? "<tr class=\"all\">" : "<tr>";
  row += "<td>" + escape_markup(name) + "</td>";
  row += cells("attainment", predicted.attainment, key + "deadlines.attainment", measured.attainment, format_percent);
  row +=
      cells("mean_latency_s", predicted.mean_latency_s, key + "latency_s.mean", measured.latency_s.mean, format_time);
  row += cells("p99_latency_s", predicted.p99_latency_s, key + "latency_s.p99", measured.latency_s.p99, format_time);
  row += cells("makespan_s", predicted.makespan_s, "wall_s", of_job ? Known(run.wall_s) : std::nullopt, format_time);
  const Known swaps = swaps_per_s(measured, run.wall_s);
  row +=
      pair_cells(own + "swaps_per_s", predicted.swaps_per_s, swaps ? format_number(*swaps) : "–", swaps, format_number);
  return row + "</tr>\n";
}

bool differ(double measured, double predicted) { return std::abs(measured - predicted) > kAlike * predicted; }

// Where the job's requests cannot be those of the prediction. Of requests that wait for each other from the start on
// the rate is what the job does, not what it is asked.
std::string other_requests_note(const RunMetrics& run, const PredictedMetrics& predicted) {
  std::string differences;
  const auto total = static_cast<double>(run.job.total);
  if (predicted.requests && differ(total, *predicted.requests)) {
    differences += fmt::format("{} instead of {}", format_number(total), format_number(*predicted.requests));
  }
  const double duration_s = predicted.duration_s.value_or(0);
  const bool sets_pace = duration_s > predicted.all.makespan_s.value_or(duration_s);
  if (predicted.requests && sets_pace && run.wall_s > 0) {
    const double rate_per_s = *predicted.requests / duration_s, own_per_s = total / run.wall_s;
    if (differ(own_per_s, rate_per_s)) {
      differences += fmt::format("{}{} a second instead of {}", differences.empty() ? "" : ", ",
                                 format_number(own_per_s), format_number(rate_per_s));
    }
  }
  if (differences.empty()) return {};
  return fmt::format(
      "<p class=\"note bad\">The requests of this job are not those of the prediction: {}. The figures do not say how "
      "good it was.</p>\n",
      differences);
}

constexpr const char* kPredictionHead =
    "<tr class=\"groups\"><th></th><th class=\"group g\" colspan=\"3\">in time</th>"
    "<th class=\"group g\" colspan=\"3\">mean latency</th><th class=\"group g\" colspan=\"3\">p99 latency</th>"
    "<th class=\"group g\" colspan=\"3\">makespan</th><th class=\"group g\" colspan=\"3\">swaps a second</th></tr>\n";

std::string heads() {
  std::string row = "<tr><th></th>";
  for (int i = 0; i < 5; ++i) row += "<th class=\"g\">predicted</th><th>measured</th><th>ratio</th>";
  return kPredictionHead + row + "</tr>\n";
}

std::string group_rows(const RunMetrics& run, const PredictedMetrics& predicted) {
  std::string rows;
  for (std::size_t g = 0; g < std::min(predicted.groups.size(), run.rank_groups.size()); ++g) {
    rows += part_row(run.rank_groups[g].id, fmt::format("groups.{}.", g), predicted.groups[g], run.rank_groups[g], run);
  }
  return rows;
}

std::string model_rows(const RunMetrics& run, const PredictedMetrics& predicted) {
  std::string rows;
  for (const GroupMetrics& model : run.models) {
    const auto own = std::ranges::find(predicted.models, model.id, &std::pair<std::string, PredictedPart>::first);
    if (own == predicted.models.end()) continue;
    rows += part_row(model.id, "models." + model.id + ".", own->second, model, run);
  }
  return rows;
}

}  // namespace

std::string prediction_section(const RunMetrics& run) {
  if (!run.predicted) return {};
  const PredictedMetrics& predicted = *run.predicted;
  const std::string basis =
      predicted.basis.empty() ? "" : fmt::format(" Predicted of: {}.", escape_markup(predicted.basis));
  return section(
      "Predicted and measured",
      other_requests_note(run, predicted) +
          fmt::format(
              "<div class=\"scroll\"><table>\n<thead>{}</thead>\n<tbody>\n{}{}{}</tbody></table></div>\n"
              "<p class=\"note\">Ratio: measured over predicted. Makespan: until the last request has ended, and the "
              "wall time of the job. Predictions are of passes that are alike, one a request.{}</p>\n",
              heads(), part_row("all", "", predicted.all, run.job, run), group_rows(run, predicted),
              model_rows(run, predicted), basis));
}

}  // namespace computron
