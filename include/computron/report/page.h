// One self-contained HTML page about a run, its trace and scaling studies. Pure: text in, text out.
//
// What comes from the metrics file carries its key and value as it stands there (data-figure, data-value), so that a
// program can read them back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "computron/report/run_metrics.h"
#include "computron/report/study.h"
#include "computron/report/trace_spans.h"

namespace computron {

struct ReportContent {
  std::string title;  // empty: one is made
  std::optional<RunMetrics> run = {};
  std::optional<RunTrace> trace = {};
  std::vector<StudyFile> studies = {};
};

std::string report_page(const ReportContent& content);

}  // namespace computron
