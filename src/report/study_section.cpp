#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "computron/report/text.h"
#include "src/report/sections.h"

namespace computron {
namespace {

std::string cell(const std::string& content) { return "<td>" + content + "</td>"; }

std::string optional(const std::optional<double>& value, std::string (*format)(double)) {
  return value ? format(*value) : "–";
}

// "1.23 ±0.4 %": the larger way from the median to an end of what was measured.
std::string measured(const StudyCell& cell) {
  const double median = cell.median();
  if (cell.values.size() < 2 || median == 0) return format_number(median);
  const double spread = std::max(median - cell.values.front(), cell.values.back() - median);
  return fmt::format("{} <small>±{:.1f} %</small>", format_number(median), 100 * spread / std::abs(median));
}

std::string check_cell(const std::string& check) {
  if (check.empty()) return cell("–");
  return check == "ok" ? cell("ok") : cell("<span class=\"bad\">" + escape_markup(check) + "</span>");
}

bool has_bounds(const StudyMetric& metric) {
  for (const StudyCell& cell : metric.cells) {
    if (cell.bound()) return true;
  }
  return false;
}

bool has_groups(const Study& study) {
  const std::vector<StudyCell>& cells = study.metrics.front().cells;
  return std::any_of(cells.begin(), cells.end(), [](const StudyCell& cell) { return cell.groups > 1; });
}

std::string head_of(const Study& study, bool hosts) {
  std::string head = hosts ? "<th>host</th>" : "";
  head += has_groups(study) ? "<th>ranks</th><th>groups</th>" : "<th>ranks</th>";
  head += "<th>tp</th><th>pp</th>";
  for (const StudyMetric& metric : study.metrics) {
    head += fmt::format("<th>{}{}</th>", escape_markup(metric.name),
                        metric.unit.empty() ? "" : "<br>" + escape_markup(metric.unit));
    if (has_bounds(metric)) head += "<th>% of<br>bound</th>";
    if (&metric == &study.metrics.front()) {
      head += fmt::format("<th>{}speed-up</th><th>efficiency</th>", study.weak ? "scaled<br>" : "");
    }
  }
  return "<tr>" + head + "<th>runs</th><th>check</th></tr>\n";
}

// The first thing that is wrong with any metric of the mesh, else whether something was checked.
std::string check_of(const Study& study, const StudyCell& mesh) {
  std::string check;
  for (const StudyMetric& metric : study.metrics) {
    const StudyCell* cell = metric.find(mesh);
    if (cell && !cell->check.empty() && (check.empty() || check == "ok")) check = cell->check;
  }
  return check;
}

// `host`: what stands in the column of hosts, if there is one.
std::string row_of(const Study& study, const StudyCell& mesh, const std::optional<std::string>& host) {
  std::string row = host ? cell(escape_markup(*host)) : "";
  row += cell(fmt::format("{}", mesh.ranks));
  if (has_groups(study)) row += cell(fmt::format("{}", mesh.groups));
  row += cell(fmt::format("{}", mesh.tp)) + cell(fmt::format("{}", mesh.pp));
  for (const StudyMetric& metric : study.metrics) {
    const StudyCell* found = metric.find(mesh);
    row += cell(found ? measured(*found) : "–");
    if (has_bounds(metric)) row += cell(found ? optional(share_of_bound(metric, *found), format_percent) : "–");
    if (&metric == &study.metrics.front()) {
      row +=
          cell(optional(study.speed_up(mesh), format_number)) + cell(optional(study.efficiency(mesh), format_percent));
    }
  }
  return "<tr>" + row + cell(fmt::format("{}", mesh.values.size())) + check_cell(check_of(study, mesh)) + "</tr>\n";
}

std::string base_note(const Study& study) {
  const StudyCell& base = study.metrics.front().cells.front();
  return fmt::format(
      "<p class=\"note\">Medians, ± the farthest run. Speed-up and efficiency are of {} against {} rank{} ({}tp {} × "
      "pp "
      "{}) of the same host{}. % of bound: bound ÷ time, or rate ÷ bound.</p>\n",
      escape_markup(study.metrics.front().name), base.ranks, base.ranks == 1 ? "" : "s",
      base.groups > 1 ? fmt::format("{} groups of ", base.groups) : "", base.tp, base.pp,
      study.weak ? "; the work grows with the ranks" : "; the same work everywhere");
}

std::string study_section(const Study& study, const StudyFile& file) {
  const std::vector<StudyCell>& cells = study.metrics.front().cells;
  const bool hosts = cells.front().host != cells.back().host;
  std::string rows, plots;
  std::string last;  // a host is named once
  for (const StudyCell& mesh : cells) {
    rows += row_of(study, mesh, hosts ? std::optional(mesh.host == last ? "" : mesh.host) : std::nullopt);
    last = mesh.host;
  }
  for (const StudyChart& made : charts_of(study, file)) {
    plots += figure(made.chart.title, to_svg(made.chart, ChartPlace::kPage), made.chart.subtitle);
  }
  return section(study.name,
                 fmt::format("<div class=\"scroll\"><table class=\"study\">\n<thead>{}</thead>\n<tbody>\n{}</tbody>"
                             "</table></div>\n{}{}",
                             head_of(study, hosts), rows, base_note(study), figures(plots)));
}

}  // namespace

std::string study_sections(const StudyFile& file) {
  std::string text;
  for (const Study& study : file.studies) text += study_section(study, file);
  std::string notes;
  for (const std::string& note : file.notes) notes += escape_markup(note) + "<br>";
  return text + (notes.empty() ? "" : "<p class=\"note\">" + notes + "</p>\n");
}

}  // namespace computron
