#include "computron/report/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <tuple>

#include "computron/base/error.h"
#include "computron/base/printable.h"

namespace computron {
namespace {

constexpr std::size_t kLongestLine = std::size_t{1} << 20;
constexpr int kMaxRanks = 1 << 20;

using Fields = std::vector<std::string>;

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") - first + 1));
}

// RFC 4180 but for line breaks in quotes. Nothing if a quote is left open.
std::optional<Fields> split(std::string_view line) {
  Fields fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (quoted && line[i] == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[i++];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  if (quoted) return std::nullopt;
  for (std::string& field : fields) field = trimmed(field);
  return fields;
}

// One row, by the names of the columns.
class Row {
 public:
  Row(const std::map<std::string, std::size_t>& columns, Fields fields, std::string place)
      : columns_(columns), fields_(std::move(fields)), place_(std::move(place)) {}

  std::string text(const char* column) const {
    const auto found = columns_.find(column);
    return found == columns_.end() ? std::string() : fields_[found->second];
  }
  std::string name(const char* column) const {
    const std::string value = text(column);
    if (value.empty()) wrong(column, "a name");
    return value;
  }
  std::optional<double> optional(const char* column) const {
    const std::string value = text(column);
    if (value.empty()) return std::nullopt;
    double number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(number)) wrong(column, "a number");
    return number;
  }
  double number(const char* column) const {
    const std::optional<double> value = optional(column);
    if (!value) wrong(column, "a number");
    return *value;
  }
  int count(const char* column) const {
    const double value = number(column);
    if (value < 1 || value > kMaxRanks || value != std::floor(value)) wrong(column, "a whole number from 1 on");
    return static_cast<int>(value);
  }
  int count_or_1(const char* column) const { return text(column).empty() ? 1 : count(column); }

 private:
  [[noreturn]] void wrong(const char* column, const char* wanted) const {
    throw Error(ExitCode::kData,
                fmt::format("{}: {} should be {}, not '{}'", place_, column, wanted, printable(text(column))));
  }

  const std::map<std::string, std::size_t>& columns_;
  Fields fields_;
  std::string place_;
};

std::tuple<const std::string&, int, int, int, int> order_of(const StudyCell& cell) {
  return {cell.host, cell.ranks, cell.groups, cell.pp, cell.tp};
}

bool is_ok(const std::string& check) {
  for (const char* ok : {"ok", "OK", "pass", "passed", "PASSED", "yes", "true", "1"}) {
    if (check == ok) return true;
  }
  return false;
}

template <class T>
T& named(std::vector<T>& list, const std::string& name) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const T& item) { return item.name == name; });
  if (found != list.end()) return *found;
  list.emplace_back().name = name;
  return list.back();
}

class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  void take_line(const std::string& line) {
    ++line_;
    if (line.size() > kLongestLine) fail("is longer than 1 MiB");
    const std::string text = trimmed(line);
    if (text.empty()) return;
    if (text.starts_with('#')) return take_comment(trimmed(std::string_view(text).substr(1)));
    auto fields = split(text);
    if (!fields) fail("has a quote that does not end");
    columns_.empty() ? take_head(*fields) : take_row(std::move(*fields));
  }

  StudyFile finish() {
    if (columns_.empty()) throw Error(ExitCode::kData, file_ + ": empty: a study begins with a line of column names");
    if (study_.studies.empty()) throw Error(ExitCode::kData, file_ + ": no row but the names of the columns");
    for (Study& study : study_.studies) {
      for (StudyMetric& metric : study.metrics) finish(metric);
    }
    return std::move(study_);
  }

 private:
  void take_comment(const std::string& comment) {
    const std::size_t colon = comment.find(':');
    const std::string key = comment.substr(0, colon);
    const std::string value = colon == std::string::npos ? "" : trimmed(std::string_view(comment).substr(colon + 1));
    if (key == "links") {
      study_.links = value;
    } else if (key == "machine") {
      study_.machine = value;
    } else if (key == "title") {
      study_.title = value;
    } else if (!comment.empty()) {
      study_.notes.push_back(comment);
    }
  }

  void take_head(const Fields& names) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (!columns_.emplace(names[i], i).second) fail(fmt::format("names the column '{}' twice", printable(names[i])));
    }
    for (const char* name : {"study", "ranks", "tp", "pp", "metric", "value", "unit"}) {
      if (!columns_.contains(name)) fail(fmt::format("has no column '{}': these are not the columns of a study", name));
    }
  }

  void take_row(Fields fields) {
    if (fields.size() != columns_.size()) {
      fail(fmt::format("has {} fields, the line of column names {}", fields.size(), columns_.size()));
    }
    const Row row(columns_, std::move(fields), fmt::format("{}: line {}", file_, line_));
    Study& study = named(study_.studies, row.name("study"));
    study.weak = study.name.find("weak") != std::string::npos;
    StudyMetric& metric = named(study.metrics, row.name("metric"));
    if (!metric.unit.empty() && metric.unit != row.text("unit")) {
      fail(fmt::format("gives metric '{}' in {}, an earlier one in {}", printable(metric.name),
                       printable(row.text("unit")), printable(metric.unit)));
    }
    metric.unit = row.text("unit");
    add(row, metric);
  }

  void add(const Row& row, StudyMetric& metric) {
    StudyCell like{
        row.count("ranks"), row.count("tp"), row.count("pp"), row.count_or_1("groups"), row.text("host"), {}, {}, {}};
    const auto same = [&](const StudyCell& cell) { return order_of(cell) == order_of(like); };
    auto cell = std::find_if(metric.cells.begin(), metric.cells.end(), same);
    if (cell == metric.cells.end()) cell = metric.cells.insert(metric.cells.end(), like);
    if (std::find(hosts_.begin(), hosts_.end(), like.host) == hosts_.end()) hosts_.push_back(like.host);
    cell->values.push_back(row.number("value"));
    if (const auto bound = row.optional("bound")) cell->bounds.push_back(*bound);
    note_check(row.text("check"), *cell);
  }

  static void note_check(const std::string& check, StudyCell& cell) {
    if (check.empty()) return;
    if (cell.check.empty() || cell.check == "ok") cell.check = is_ok(check) ? "ok" : check;
  }

  void finish(StudyMetric& metric) const {
    for (StudyCell& cell : metric.cells) std::sort(cell.values.begin(), cell.values.end());
    const auto host = [&](const StudyCell& cell) { return std::find(hosts_.begin(), hosts_.end(), cell.host); };
    std::sort(metric.cells.begin(), metric.cells.end(), [&](const StudyCell& a, const StudyCell& b) {
      return a.host == b.host ? order_of(a) < order_of(b) : host(a) < host(b);
    });
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ExitCode::kData, fmt::format("{}: line {} {}", file_, line_, what));
  }

  const std::string& file_;
  std::size_t line_ = 0;
  std::map<std::string, std::size_t> columns_;
  std::vector<std::string> hosts_;  // in the order of the file
  StudyFile study_;
};

}  // namespace

double StudyCell::median() const { return median_of(values); }

std::optional<double> StudyCell::bound() const {
  return bounds.empty() ? std::nullopt : std::optional(median_of(bounds));
}

bool StudyMetric::is_time() const {
  return unit == "s" || unit == "ms" || unit == "us" || unit == "µs" || unit == "ns" || unit == "min";
}

const StudyCell* StudyMetric::find(const StudyCell& like) const {
  for (const StudyCell& cell : cells) {
    if (order_of(cell) == order_of(like)) return &cell;
  }
  return nullptr;
}

const StudyCell* Study::base_of(const StudyCell& cell) const {
  for (const StudyCell& other : metrics.front().cells) {
    if (other.host == cell.host) return &other;  // sorted by ranks
  }
  return nullptr;
}

std::optional<double> Study::speed_up(const StudyCell& cell) const {
  const StudyCell* base = base_of(cell);
  const StudyCell* measured = metrics.front().find(cell);
  if (!base || !measured) return std::nullopt;
  const bool is_time = metrics.front().is_time();
  const double from = base->median(), to = measured->median();
  const double ratio = is_time ? from / to : to / from;
  const double more_work = weak && is_time ? double(cell.ranks) / base->ranks : 1;
  return std::isfinite(ratio) && ratio > 0 ? std::optional(ratio * more_work) : std::nullopt;
}

std::optional<double> Study::efficiency(const StudyCell& cell) const {
  const std::optional<double> gain = speed_up(cell);
  if (!gain) return std::nullopt;
  return *gain * base_of(cell)->ranks / cell.ranks;
}

std::optional<double> share_of_bound(const StudyMetric& metric, const StudyCell& cell) {
  const std::optional<double> bound = cell.bound();
  if (!bound || *bound <= 0 || cell.median() <= 0) return std::nullopt;
  return metric.is_time() ? *bound / cell.median() : cell.median() / *bound;
}

StudyFile read_study_file(std::istream& in, const std::string& file) {
  Reader reader(file);
  for (std::string line; std::getline(in, line);) reader.take_line(line);
  return reader.finish();
}

}  // namespace computron
