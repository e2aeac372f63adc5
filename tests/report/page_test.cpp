#include "computron/report/page.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <sstream>

#include "computron/report/text.h"
#include "tests/report/sample_run.h"

namespace computron {
namespace {

using test::sample_run;
using ::testing::HasSubstr;
using ::testing::Not;

// key → value of the figures that the page shows.
std::map<std::string, double> figures_of(const std::string& page) {
  static const std::regex figure(R"re(data-figure="([^"]*)" data-value="([^"]*)")re");
  std::map<std::string, double> figures;
  for (std::sregex_iterator at(page.begin(), page.end(), figure), end; at != end; ++at) {
    const double value = std::stod((*at)[2]);
    const auto [found, is_new] = figures.emplace((*at)[1], value);
    EXPECT_EQ(found->second, value) << "shown twice, differently: " << (*at)[1];
  }
  return figures;
}

std::string page_of(const std::string& run) {
  ReportContent content;
  content.run = parse_run_metrics(run, "m.json");
  return report_page(content);
}

TEST(Page, FiguresAreThoseOfTheMetrics) {
  const auto figures = figures_of(page_of(sample_run()));
  EXPECT_EQ(figures.at("wall_s"), 12.5);
  EXPECT_EQ(figures.at("requests.ok"), 32);
  EXPECT_EQ(figures.at("requests.failed"), 1);
  EXPECT_EQ(figures.at("tokens.generated_per_s"), 3.25);
  EXPECT_EQ(figures.at("latency_s.p99"), 0.37);
  EXPECT_EQ(figures.at("deadlines.attainment"), 0.3);
  EXPECT_EQ(figures.at("deadlines.met"), 3);
  EXPECT_EQ(figures.at("deadlines.unserved"), 4);
  EXPECT_EQ(figures.at("models.b.deadlines.attainment"), 0.2);
  EXPECT_EQ(figures.at("swaps.exposed_s"), 0.03);
  EXPECT_EQ(figures.at("swaps.link_fraction"), 0.93);
  EXPECT_EQ(figures.at("steps.overhead_us"), 3.25);
  EXPECT_EQ(figures.at("steps.graphs"), 35);
  EXPECT_EQ(figures.at("models.a.latency_s.p90"), 0.15);
  EXPECT_EQ(figures.at("models.b.swaps.bytes"), 2000000);
  EXPECT_FALSE(figures.contains("ttft_s.p99")) << "it is null";
}

TEST(Page, OfAResumedJobSaysWhatItsFiguresAreOf) {
  EXPECT_THAT(page_of(sample_run()), Not(HasSubstr("attempt")));
  std::string run = sample_run();
  const std::string started = "\"started\"", failed = "\"failed\": 1";
  run.replace(run.find(started), 0, "\"attempt\": 2, ").replace(run.find(failed), 0, "\"before\": 5, ");
  const std::string page = page_of(run);
  EXPECT_THAT(std::regex_replace(page, std::regex("<span[^>]*>|</span>"), ""),
              HasSubstr("33 here, 5 by earlier attempts (attempt 2)"));
  EXPECT_EQ(figures_of(page).at("requests.before"), 5);
  EXPECT_THAT(page, HasSubstr("all figures are those of its attempt 2 alone"));
}

// The page without the marks of its figures.
std::string text_of(const std::string& page) { return std::regex_replace(page, std::regex("<span[^>]*>|</span>"), ""); }

TEST(Page, SaysWhatCrossedTheLinksWherePagesAreCoded) {
  std::string run = sample_run();
  EXPECT_THAT(text_of(page_of(run)), Not(HasSubstr("over the links")));
  run.insert(run.find("\"busy_s\""), "\"link_bytes\": 2100000, ");
  const std::string page = page_of(run);
  EXPECT_EQ(figures_of(page).at("swaps.bytes"), 3000000);
  EXPECT_EQ(figures_of(page).at("swaps.link_bytes"), 2100000);
  EXPECT_THAT(text_of(page), HasSubstr("over the links"));
}

TEST(Page, ShowsWhatWasPredictedBesideWhatCame) {
  EXPECT_THAT(page_of(sample_run()), Not(HasSubstr("Predicted and measured")));
  const std::string page = page_of(test::predicted_run()), text = text_of(page);
  const auto figures = figures_of(page);
  EXPECT_EQ(figures.at("predicted.attainment"), .25);
  EXPECT_EQ(figures.at("predicted.makespan_s"), 10);
  EXPECT_EQ(figures.at("predicted.groups.1.swaps_per_s"), .125);
  EXPECT_EQ(figures.at("predicted.models.b.mean_latency_s"), .4);
  EXPECT_FALSE(figures.contains("predicted.models.a.mean_latency_s"));
  const auto row = [](const std::string& name, const std::string& cells) { return "<td>" + name + "</td>" + cells; };
  const auto cells = [](const char* predicted, const char* measured, const char* ratio) {
    return fmt::format("<td class=\"g\">{}</td><td>{}</td><td>{}</td>", predicted, measured, ratio);
  };
  // 30 % of deadlines were met, latencies were .3 and .37 s, and 3 swaps in 12.5 s.
  EXPECT_THAT(text, HasSubstr(row("all", cells("25.0 %", "30.0 %", "1.20") + cells("200 ms", "300 ms", "1.50") +
                                             cells("370 ms", "370 ms", "1.00") + cells("10 s", "12.5 s", "1.25") +
                                             cells("0.240", "0.240", "1.00"))));
  // Nothing stands beside a makespan of a group. Nothing over 0 is a ratio.
  EXPECT_THAT(text, HasSubstr(row("group 0 (tp 2 × pp 1, from rank 0)", cells("50.0 %", "10.0 %", "0.20"))));
  EXPECT_THAT(text, HasSubstr(cells("–", "–", "–") + cells("0", "0.0800", "–") + "</tr>"));
  EXPECT_THAT(text, HasSubstr(row("b", cells("10.0 %", "20.0 %", "2.00") + cells("400 ms", "200 ms", "0.50"))));
  EXPECT_THAT(text, HasSubstr("Predicted of: Gamma &lt;arrivals&gt;."));
  EXPECT_THAT(text, Not(HasSubstr("are not those of the prediction")));
}

// The job of the sample had 33 requests in 12.5 s.
TEST(Page, SaysWhereOtherRequestsWerePredicted) {
  const auto page = [](const std::string& requests, const std::string& duration, const std::string& makespan) {
    std::string run = test::predicted_run();
    const auto set = [&run](const std::string& from, const std::string& to) {
      const auto at = run.find(from);
      ASSERT_NE(at, run.npos);
      run.replace(at, from.size(), to);
    };
    set("\"duration_s\": 12.5, \"requests\": 33", "\"duration_s\": " + duration + ", \"requests\": " + requests);
    set("\"makespan_s\": 10", "\"makespan_s\": " + makespan);
    return text_of(page_of(run));
  };
  const auto other = HasSubstr("are not those of the prediction");
  EXPECT_THAT(page("35", "12.5", "10"), Not(other));
  EXPECT_THAT(page("50", "12.5", "10"), HasSubstr("are not those of the prediction: 33 instead of 50, 2.64 a second"));
  EXPECT_THAT(page("330", "125", "10"), HasSubstr("prediction: 33 instead of 330. The"));
  EXPECT_THAT(page("33", "20", "10"), HasSubstr("prediction: 2.64 a second instead of 1.65"));
  // All were there from the start: a job that takes longer is no other one.
  EXPECT_THAT(page("33", "5", "5"), Not(other));
}

TEST(Page, StandsAlone) {
  const std::string page = page_of(sample_run());
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  for (const char* foreign : {"http:", "https:", "<script", "@import", "url(", "src="}) {
    EXPECT_THAT(page, Not(HasSubstr(foreign)));
  }
  for (const char* heading : {"Models", "Latency", "Queue", "Configuration"}) {
    EXPECT_THAT(page, HasSubstr(fmt::format("<h2>{}</h2>", heading)));
  }
}

TEST(Page, ForeignTextIsNoMarkup) {
  const std::string evil = "</title><img src=x onerror=alert(1)>\\\"'";
  const std::string id = parse_run_metrics(sample_run(evil), "m.json").models[0].id;
  std::istringstream csv("study,ranks,tp,pp,metric,value,unit\n<b>s,1,1,1,<i>m,1,<u>\n# links: <blink>\n");
  ReportContent content;
  content.title = "<h1>";
  content.run = parse_run_metrics(sample_run(evil), "m.json");
  content.studies.push_back(read_study_file(csv, "s.csv"));
  const std::string page = report_page(content);
  for (const char* raw : {"<img", "<b>s", "<i>", "<u>", "<blink>", "<out>", "<l>", "<j>", "<h1><h1>"})
    EXPECT_THAT(page, Not(HasSubstr(raw)));
  EXPECT_THAT(page, HasSubstr(escape_markup(id)));
  EXPECT_THAT(page, HasSubstr("&lt;out&gt;.jsonl"));
  EXPECT_THAT(
      page, HasSubstr("commit c0ffee · build Release · compiler 12 · Open MPI 4 · &lt;l&gt; · Slurm job 7_&lt;j&gt;"));
}

// A trace of `ranks` ranks that take turns between models without a pause.
RunTrace busy_trace(int ranks, int spans) {
  RunTrace trace;
  for (int model = 0; model < 12; ++model) trace.models.push_back(fmt::format("model {}", model));
  for (int rank = 0; rank < ranks; ++rank) {
    RankSpans& of_rank = trace.ranks[rank];
    for (int i = 0; i < spans; ++i) {
      const TraceTime time{i * 1e-3, i * 1e-3 + 0.7e-3};
      of_rank.steps.push_back({time, static_cast<std::uint32_t>(i * 7 % 12)});
      of_rank.copies.push_back({time, static_cast<std::uint32_t>(i % 12), 100000});
    }
  }
  trace.end_s = spans * 1e-3;
  return trace;
}

TEST(Page, OfAHugeTraceStaysSmall) {
  for (const int ranks : {4, 64, 200}) {
    ReportContent content;
    content.trace = busy_trace(ranks, ranks == 4 ? 20000 : 1500);
    const std::string page = report_page(content);
    EXPECT_LT(page.size(), std::size_t{2} << 20) << ranks;
    EXPECT_THAT(page, HasSubstr("Copying beside computing"));
  }
}

TEST(Page, NamesTheMeshOfEveryGroup) {
  ReportContent content;
  content.run = parse_run_metrics(sample_run(), "m.json");
  const auto facts = [&content](std::vector<MeshMetrics> meshes) {
    content.run->meshes = std::move(meshes);
    return report_page(content);
  };
  EXPECT_THAT(facts({{2, 2}}), HasSubstr("4 ranks: tp 2 × pp 2 · cpu"));
  EXPECT_THAT(facts({{1, 1}, {1, 1}}), HasSubstr("4 ranks: 2 groups of tp 1 × pp 1 · cpu"));
  EXPECT_THAT(facts({{2, 1}, {1, 1}, {1, 1}}), HasSubstr("4 ranks: tp 2 × pp 1 + 2 groups of tp 1 × pp 1 · cpu"));
}

TEST(Page, OfAnEmptyTraceSaysSo) {
  ReportContent content;
  content.trace.emplace().ranks[0];
  EXPECT_THAT(report_page(content), HasSubstr("holds no span"));
}

TEST(Page, AStudyIsATable) {
  std::istringstream csv(
      "study,ranks,tp,pp,metric,value,unit,bound,check\n"
      "strong,1,1,1,swap,8,s,7.6,ok\nstrong,2,2,1,swap,4,s,3.8,ok\nstrong,4,4,1,swap,2.5,s,1.9,differs\n");
  ReportContent content;
  content.studies.push_back(read_study_file(csv, "s.csv"));
  const std::string page = report_page(content);
  EXPECT_THAT(page, HasSubstr("<td>4</td><td>4</td><td>1</td><td>2.50</td><td>76.0 %</td><td>3.20</td><td>80.0 %</td>"
                              "<td>1</td><td><span class=\"bad\">differs</span></td>"));
  EXPECT_THAT(page, Not(HasSubstr("<th>groups</th>")));
}

TEST(Page, AStudyNamesItsGroups) {
  std::istringstream csv(
      "study,ranks,tp,pp,groups,metric,value,unit\n"
      "strong,4,4,1,1,time,2,s\nstrong,4,1,1,4,time,1,s\nstrong,4,2,1,2,time,4,s\n");
  ReportContent content;
  content.studies.push_back(read_study_file(csv, "s.csv"));
  const std::string page = report_page(content);
  EXPECT_THAT(page, HasSubstr("<th>ranks</th><th>groups</th><th>tp</th><th>pp</th>"));
  EXPECT_THAT(page, HasSubstr("<td>4</td><td>4</td><td>1</td><td>1</td><td>1</td><td>2</td>"));
  EXPECT_THAT(page, HasSubstr("<td>4</td><td>2</td><td>2</td><td>1</td><td>4</td><td>0.500</td>"));
  EXPECT_THAT(page, HasSubstr("4 ranks, 4 groups of tp 1 × pp 1: 1 s"));
}

}  // namespace
}  // namespace computron
