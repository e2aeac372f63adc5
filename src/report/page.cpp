#include "computron/report/page.h"

#include <fmt/format.h>

#include <algorithm>

#include "computron/report/text.h"
#include "src/report/page_style.h"
#include "src/report/sections.h"

namespace computron {
namespace {

std::string title_of(const ReportContent& content) {
  if (!content.title.empty()) return content.title;
  if (content.run || content.trace) return "Computron: report of a run";
  const std::string& own = content.studies.empty() ? content.title : content.studies.front().title;
  return own.empty() ? "Computron: scaling study" : own;
}

// "tp 2 × pp 2"; "4 groups of tp 1 × pp 1"; "tp 2 × pp 1 + 2 groups of tp 1 × pp 1".
std::string meshes_of(const RunMetrics& run) {
  std::string text;
  for (auto first = run.meshes.begin(), end = first; first != run.meshes.end(); first = end) {
    end = std::find_if(first, run.meshes.end(), [first](const MeshMetrics& mesh) { return mesh != *first; });
    if (!text.empty()) text += " + ";
    if (end - first > 1) text += fmt::format("{} groups of ", end - first);
    text += fmt::format("tp {} × pp {}", first->tp, first->pp);
  }
  return text;
}

// "4 ranks: tp 2 × pp 2 · cpu · links emulated at 2 GB/s a rank".
std::string info_of(const RunMetrics& run) {
  std::string text = fmt::format("{} rank{}: {}", run.ranks, run.ranks == 1 ? "" : "s", meshes_of(run));
  text += " · " + run.device;
  if (run.link_gb_per_s) {
    text += fmt::format(" · {}links of {:.3g} GB/s a rank", run.link_emulated ? "emulated " : "", *run.link_gb_per_s);
  }
  if (!run.host.empty()) text += " · " + run.host;
  if (!run.started.empty()) text += " · " + run.started;
  if (!run.version.empty()) text += " · computron " + run.version;
  return text;
}

std::string head(const ReportContent& content) {
  std::string text = fmt::format("<header>\n<h1>{}</h1>\n", escape_markup(title_of(content)));
  if (content.run) text += fmt::format("<p class=\"facts\">{}</p>\n", escape_markup(info_of(*content.run)));
  return text + "</header>\n";
}

std::string run_sections(const ReportContent& content, const ModelColours& colours) {
  if (!content.run) return {};
  const RunMetrics& run = *content.run;
  return run_summary(run, content.trace) + section("Models", model_table(run)) + prediction_section(run) +
         latency_section(run, colours);
}

}  // namespace

ModelColours::ModelColours(const ReportContent& content) {
  std::vector<std::pair<std::uint64_t, std::string>> models;  // requests, id
  if (content.run) {
    for (const GroupMetrics& model : content.run->models) models.emplace_back(model.total, model.id);
  }
  if (content.trace) {
    for (const std::string& id : content.trace->models) {
      const bool known =
          std::any_of(models.begin(), models.end(), [&](const auto& model) { return model.second == id; });
      if (!known) models.emplace_back(0, id);
    }
  }
  if (models.size() > static_cast<std::size_t>(kPaletteColours)) {
    std::stable_sort(models.begin(), models.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  }
  for (const auto& [requests, id] : models) {
    const std::string colour = palette_class(colours_.size());
    colours_.emplace(id, colour);
    if (colour != kOtherClass) coloured_.push_back(id);
  }
}

const std::string& ModelColours::of(const std::string& model) const {
  static const std::string other = kOtherClass;
  const auto found = colours_.find(model);
  return found == colours_.end() ? other : found->second;
}

std::string ModelColours::others_name() const {
  return fmt::format("{} other model{}", others(), others() == 1 ? "" : "s");
}

std::string figure(const std::string& heading, const std::string& svg, const std::string& caption, bool wide) {
  return fmt::format("<figure{}>\n<h3>{}</h3>\n{}<figcaption>{}</figcaption>\n</figure>\n",
                     wide ? " class=\"wide\"" : "", escape_markup(heading), svg, escape_markup(caption));
}

std::string figures(const std::string& content) {
  return content.empty() ? "" : "<div class=\"figures\">\n" + content + "</div>\n";
}

std::string section(const std::string& heading, const std::string& content) {
  if (content.empty()) return {};
  return fmt::format("<section>\n<h2>{}</h2>\n{}</section>\n", escape_markup(heading), content);
}

std::string data(const std::string& key, double value, const std::string& text) {
  return fmt::format("<span data-figure=\"{}\" data-value=\"{}\">{}</span>", escape_markup(key), value,
                     escape_markup(text));
}

std::string data(const std::string& key, const std::optional<double>& value, std::string (*format)(double)) {
  return value ? data(key, *value, format(*value)) : "–";
}

std::string report_page(const ReportContent& content) {
  const ModelColours colours(content);
  std::string body = head(content) + run_sections(content, colours);
  if (content.trace) body += trace_section(*content.trace, content.run, colours);
  if (content.run) body += section("Queue", figures(queue_figure(*content.run, colours)));
  for (const StudyFile& study : content.studies) body += study_sections(study);
  if (content.run) body += configuration_section(*content.run);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n"
      "<style>\n:root{{color-scheme:light dark;{}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{}}}}}\n"
      "{}{}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
      escape_markup(title_of(content)), page_colours(), page_dark_colours(), chart_style(), kPageStyle, body);
}

}  // namespace computron
