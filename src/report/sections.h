// The parts of the page.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "computron/report/page.h"

namespace computron {

// A colour a model, the same in all charts: those with most requests have one of their own.
class ModelColours {
 public:
  explicit ModelColours(const ReportContent& content);

  const std::string& of(const std::string& model) const;
  bool own(const std::string& model) const { return of(model) != kOtherClass; }
  // Models with a colour of their own, in the order of the colours; how many have none.
  const std::vector<std::string>& coloured() const { return coloured_; }
  std::size_t others() const { return colours_.size() - coloured_.size(); }
  std::string others_name() const;

 private:
  std::map<std::string, std::string> colours_;  // by model
  std::vector<std::string> coloured_;
};

// <figure> with a heading, an SVG and a line below that says how to read it. `wide`: over both columns.
std::string figure(const std::string& heading, const std::string& svg, const std::string& caption, bool wide = false);
std::string figures(const std::string& content);  // a grid of such
std::string section(const std::string& heading, const std::string& content);
// A value of the metrics file: `key` and `value` as they stand there, shown as `text`.
std::string data(const std::string& key, double value, const std::string& text);
std::string data(const std::string& key, const std::optional<double>& value, std::string (*format)(double));

std::string run_summary(const RunMetrics& run, const std::optional<RunTrace>& trace);  // cards
std::string model_table(const RunMetrics& run);
std::string prediction_section(const RunMetrics& run);  // empty where nothing was predicted
std::string latency_section(const RunMetrics& run, const ModelColours& colours);
std::string queue_figure(const RunMetrics& run, const ModelColours& colours);
std::string configuration_section(const RunMetrics& run);

std::string trace_section(const RunTrace& trace, const std::optional<RunMetrics>& run, const ModelColours& colours);

std::string study_sections(const StudyFile& file);

}  // namespace computron
