// Scaling studies: CSV files of one row a run and metric, their tables and plots.
//
// Columns, by name in the first line that is no comment, in any order, others are ignored: study, ranks, tp, pp,
// metric, value, unit; and, where they are known, mesh, groups, repeat, bound (of the value, in its unit), check ("ok"
// or what is wrong), host, commit, date. A line "# key: text" says something of the whole file: `links` ("emulated, 1
// GB/s a rank") and `machine` stand on every plot, `title` above them. A study whose name holds "weak" has work that
// grows with the ranks, any other one the same work at all.
#pragma once

#include <istream>
#include <optional>
#include <string>
#include <vector>

#include "computron/report/chart.h"

namespace computron {

// Repeated runs of one mesh on one host.
struct StudyCell {
  int ranks = 1, tp = 1, pp = 1, groups = 1;
  std::string host;
  std::vector<double> values;  // of all repeats, ascending
  std::vector<double> bounds;  // of those that have one
  std::string check;           // "ok", or the first other text; empty: none of the rows has one

  double median() const;
  std::optional<double> bound() const;  // the median, too
};

struct StudyMetric {
  std::string name, unit;
  std::vector<StudyCell> cells;  // by host as these come in the file, then by ranks

  bool is_time() const;  // less is better; else a rate
  const StudyCell* find(const StudyCell& like) const;
};

struct Study {
  std::string name;
  bool weak = false;
  std::vector<StudyMetric> metrics;  // the first is what speed-up and efficiency are of

  // Of the first metric, against the cell with the fewest ranks of the same host. Speed-up: how much faster the same
  // work was done, of a weak study how much more work was done in the same time. Absent without such a cell.
  std::optional<double> speed_up(const StudyCell& cell) const;
  std::optional<double> efficiency(const StudyCell& cell) const;
  const StudyCell* base_of(const StudyCell& cell) const;
};

struct StudyFile {
  std::string title, links, machine;  // empty: not said
  std::vector<std::string> notes;     // comments of other keys or none
  std::vector<Study> studies;
};

// `file` is named in what is wrong, with line and column: Error{kData}.
StudyFile read_study_file(std::istream& in, const std::string& file);

// Value ÷ bound or bound ÷ value, what is 1 at the bound and less short of it. Absent without a bound.
std::optional<double> share_of_bound(const StudyMetric& metric, const StudyCell& cell);

struct StudyChart {
  std::string name;  // for a file: "<study>-speed-up"
  Chart chart;
};
// The first metric, speed-up and efficiency over ranks, with ideal lines; further metrics of the study after them.
std::vector<StudyChart> charts_of(const Study& study, const StudyFile& file);

}  // namespace computron
