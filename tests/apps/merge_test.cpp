// computron merge, as a person runs it, over result lines as the program writes them.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/apps/program.h"

namespace computron::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class MergeTest : public ProgramTest {
 protected:
  // Results of lines with custom_ids "r0", "r1", ...
  static std::string results(const std::vector<int>& lines) {
    std::string text;
    for (const int line : lines) text += result(line, fmt::format("\"r{}\"", line));
    return text;
  }
  static std::string result(int line, const std::string& id) {
    return fmt::format(R"({{"id":"batch_req_{}","custom_id":{},"response":{{"status_code":200}},"error":null}})"
                       "\n",
                       line, id);
  }
  static std::string requests(const std::vector<int>& ids) {
    std::string text;
    for (const int id : ids) text += fmt::format("{{\"custom_id\":\"r{}\"}}\n", id);
    return text;
  }
  void refused(int code, const std::string& part, std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "merge");
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, code) << outcome.errors;
    EXPECT_THAT(outcome.errors, HasSubstr(part));
    EXPECT_EQ(outcome.output, "");
  }
  bool exists(const std::string& name) const { return std::filesystem::exists(file(name)); }
};

TEST_F(MergeTest, PutsResultsInTheOrderOfTheRequests) {
  write("s0", results({4, 0, 2}));
  write("s1", results({5, 1, 3}));
  write("empty", "");
  write("requests", requests({0, 1, 2, 3, 4, 5}));
  const Outcome merged =
      run({"merge", file("out"), file("s0"), file("s1"), file("empty"), "--requests", file("requests")});
  EXPECT_EQ(merged.code, 0) << merged.errors;
  EXPECT_THAT(merged.output, HasSubstr("6 results of 3 shards"));
  EXPECT_EQ(read_file(file("out")), results({0, 1, 2, 3, 4, 5}));
  EXPECT_FALSE(exists("out.partial"));
}

TEST_F(MergeTest, PassesOverTheSignsOfFinishedOutputs) {
  write("s.0", results({0}));
  write("s.0.done", "a sign");
  write("s.1.done", results({1}));  // of nothing that is named
  const Outcome merged = run({"merge", file("out"), file("s.0"), file("s.0.done"), file("s.1.done")});
  EXPECT_EQ(merged.code, 0) << merged.errors;
  EXPECT_THAT(merged.output, HasSubstr("2 results of 2 shards"));
  write("taken", "");
  write("taken.done", "a sign");
  refused(73, "taken.done", {file("taken"), file("s.0")});
}

// Blank lines have numbers but no results; what is no JSON has a result, and an id if one can be made out.
TEST_F(MergeTest, KnowsRequestsThatAreNone) {
  write("requests", "\n{\"custom_id\": \"\\u0061\", \n  \t\n{ no JSON\n{\"custom_id\":\"z\"}");
  const std::string all = result(1, "\"a\"") + result(3, "null") + result(4, "\"z\"");
  write("s", all);
  EXPECT_EQ(run({"merge", file("out"), file("s"), "--requests", file("requests")}).code, 0);
  EXPECT_EQ(read_file(file("out")), all);
}

TEST_F(MergeTest, NamesRequestsWithoutOneResultEach) {
  write("requests", requests({0, 1, 2, 3}));
  write("out", "of an earlier day\n");
  write("s0", results({0, 2}));
  write("again", results({2}));
  write("s1", results({1, 3}));
  write("short", results({3}));
  write("other", result(1, "\"x\"") + results({3, 7}));
  const std::string with = "--requests", all = file("requests"), out = file("out");
  refused(65, fmt::format("1 requests have two results: line 2 ('r2') in '{}' and '{}'", file("s0"), file("again")),
          {out, file("s0"), file("again")});
  refused(65, "1 requests have no result: line 1\n", {out, file("s0"), file("short"), with, all});
  refused(65, "1 results have no request: line 7 ('r7')", {out, file("s0"), file("other"), with, all});
  refused(65, "1 results have another custom_id than their request: line 1 ('x')",
          {out, file("s0"), file("other"), with, all});
  EXPECT_EQ(read_file(out), "of an earlier day\n");

  std::vector<int> many(15);
  for (int i = 0; i < 15; ++i) many[i] = i;
  write("requests", requests(many));
  refused(65,
          "11 requests have no result: line 4, line 5, line 6, line 7, line 8, line 9, line 10, line 11, line 12, "
          "line 13, ...",
          {out, file("s0"), file("s1"), with, all});
}

// What the shell makes of s.[0-9]*.
TEST_F(MergeTest, NamesShardsThatAreNotFinished) {
  write("s.0", results({0}));
  write("s.0.done", "a sign");
  for (const char* name : {"s.1.journal", "s.1.lock", "s.2.journal", "s.2.partial", "s.3.lock"}) write(name, "");
  const std::string expected = fmt::format(
      "3 shards are not finished; run their jobs again: '{0}1' (there is '{0}1.journal'), '{0}2' (there is "
      "'{0}2.partial'), '{0}3' (there is '{0}3.lock')\n",
      file("s."));
  refused(66, expected,
          {file("out"), file("s.0"), file("s.0.done"), file("s.1.journal"), file("s.1.lock"), file("s.2.journal"),
           file("s.2.partial"), file("s.3.lock")});
  refused(66, fmt::format("'{}'", file("s.2.partial")), {file("out"), file("s.0"), file("s.2")});
  write("s.0.lock", "");  // of somebody who runs the command again
  EXPECT_EQ(run({"merge", file("out"), file("s.0"), file("s.0.done"), file("s.0.lock")}).code, 0);
  write("mine.partial", results({1}));  // a name like any other: there is a `mine`
  write("mine", "");
  EXPECT_EQ(run({"merge", file("out"), file("s.0"), file("mine.partial")}).code, 0);
  EXPECT_EQ(read_file(file("out")), results({0, 1}));
}

TEST_F(MergeTest, NamesWhatIsNoResult) {
  write("good", results({0}));
  write("torn", results({1}) + "{\"id\":\"batch_req_2\"");
  write("strange", results({1}) + "{\"custom_id\":\"r1\"}\n");
  refused(65, fmt::format("'{}': line 1 is torn", file("torn")), {file("out"), file("good"), file("torn")});
  refused(65, fmt::format("'{}': line 1 is no result", file("strange")), {file("out"), file("strange")});
  refused(66, "is a directory", {file("out"), file(".")});
  refused(66, "cannot read", {file("out"), file("good"), "--requests", file("missing")});
  EXPECT_FALSE(exists("out"));
}

TEST_F(MergeTest, OutputIsItsOwnersAloneAsShardsAre) {
  namespace fs = std::filesystem;
  write("s", results({0}));
  write("out", "of an earlier day, open to all\n");
  write("out.partial", "what a killed merge of then left\n");
  fs::permissions(file("out.partial"), fs::perms(0644));
  const Outcome merged = run({"merge", file("out"), file("s")});
  EXPECT_EQ(merged.code, 0) << merged.errors;
  EXPECT_EQ(fs::status(file("out")).permissions(), fs::perms(0600));
  EXPECT_EQ(read_file(file("out")), results({0}));
  EXPECT_EQ(run({"merge", file("new"), file("s")}).code, 0);
  EXPECT_EQ(fs::status(file("new")).permissions(), fs::perms(0600));
}

TEST_F(MergeTest, OverwritesNothingThatIsInUse) {
  write("s", results({0}));
  write("requests", requests({0}));
  refused(73, "it is the input", {file("s"), file("s")});
  refused(73, "it is the input", {file("requests"), file("s"), "--requests", file("requests")});
  write("out.journal", "");
  write("out.partial", "mine\n");
  refused(73, "output of a serving job", {file("out"), file("s")});
  EXPECT_EQ(read_file(file("out.partial")), "mine\n");
  refused(64, "shards", {file("out")});
}

}  // namespace
}  // namespace computron::test
