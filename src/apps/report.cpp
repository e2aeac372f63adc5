// computron report: metrics, traces and studies of runs as one page for people.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>

#include "computron/base/error.h"
#include "computron/report/page.h"
#include "computron/storage/files.h"
#include "src/apps/commands.h"

namespace computron {
namespace {

struct ReportOptions {
  std::string output;
  std::string metrics;
  std::string trace;
  std::vector<std::string> studies;
  std::string title;
  std::string svg;
};

std::ifstream open(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) {
    throw Error(ExitCode::kNoInput,
                fmt::format("cannot read {}: {}", path,
                            std::filesystem::exists(path) ? "not a readable file" : "no such file"));
  }
  return file;
}

std::string read_all(const std::string& path) {
  std::ifstream file = open(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Each plot as NAME.svg; plots of one name are numbered.
void write_plots(const std::string& folder, const std::vector<StudyFile>& studies) {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);  // what cannot be written in it is an error that names the file
  std::map<std::string, int> names;
  for (const StudyFile& file : studies) {
    for (const Study& study : file.studies) {
      for (const StudyChart& plot : charts_of(study, file)) {
        const int number = ++names[plot.name];
        const std::string name = number == 1 ? plot.name : fmt::format("{}-{}", plot.name, number);
        write_file_atomically(fmt::format("{}/{}.svg", folder, name), to_svg(plot.chart, ChartPlace::kFile));
      }
    }
  }
}

void run_report(const ReportOptions& options) {
  if (options.metrics.empty() && options.trace.empty() && options.studies.empty()) {
    throw Error(ExitCode::kUsage, "report: nothing to report: give --metrics, --trace or --study");
  }
  if (!options.svg.empty() && options.studies.empty()) {
    throw Error(ExitCode::kUsage, "report: --svg writes the plots of a --study, and there is none");
  }
  ReportContent content{.title = options.title};
  if (!options.metrics.empty()) content.run = parse_run_metrics(read_all(options.metrics), options.metrics);
  if (!options.trace.empty()) {
    std::ifstream file = open(options.trace);
    content.trace = read_run_trace(file, options.trace);
  }
  for (const std::string& path : options.studies) {
    std::ifstream file = open(path);
    content.studies.push_back(read_study_file(file, path));
  }
  if (!options.svg.empty()) write_plots(options.svg, content.studies);
  write_file_atomically(options.output, report_page(content));
}

}  // namespace

void add_report(CLI::App& app) {
  auto* command = app.add_subcommand("report", "Make one HTML page of metrics, a trace and scaling studies");
  const auto options = std::make_shared<ReportOptions>();
  command->add_option("output", options->output, "The page, OUT.html: self-contained, printable")->required();
  command->add_option("--metrics", options->metrics, "What serve --metrics wrote");
  command->add_option("--trace", options->trace, "What serve --trace wrote");
  command->add_option("--study", options->studies, "A scaling study, CSV: a row a run and metric; repeat for more")
      ->allow_extra_args(false);
  command->add_option("--title", options->title, "Title of the page");
  command->add_option("--svg", options->svg, "Write each plot of the studies to this folder, too, as SVG");
  command->callback([options] { run_report(*options); });
}

}  // namespace computron
