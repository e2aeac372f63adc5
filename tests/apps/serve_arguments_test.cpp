// Arguments that computron serve refuses while it reads them, before there are ranks.
#include <gmock/gmock.h>

#include "tests/apps/program.h"

namespace computron::test {
namespace {

using testing::HasSubstr;

class ServeArguments : public ProgramTest {
 protected:
  Outcome serve_with(const std::string& option, const std::string& value) const {
    return run(
        {"serve", "--model", "a=" + file("a.h5"), "--requests", file("in"), "--output", file("out"), option, value});
  }
};

TEST_F(ServeArguments, WaitsAndRatesArePositiveNumbers) {
  for (const char* option : {"--max-wait", "--link-gbps", "--slo"}) {
    for (const char* value : {"0", "-1", "nan", "inf", "soon", "1e400", "3s"}) {
      const Outcome refused = serve_with(option, value);
      EXPECT_EQ(refused.code, 64) << value;
      EXPECT_THAT(refused.errors, HasSubstr(std::string(option) + ": " + value + " is not a positive number"));
    }
  }
}

TEST_F(ServeArguments, ChatFormatsHaveNamesAndDatesAreDays) {
  for (const char* date : {"2026-02-30", "today", "9 Feb 2026"}) {
    const Outcome refused = serve_with("--chat-date", date);
    EXPECT_EQ(refused.code, 64) << date;
    EXPECT_THAT(refused.errors, HasSubstr(std::string("--chat-date: '") + date + "' is no date such as 2024-07-26"));
  }
  const Outcome refused = serve_with("--chat-format", "llama99");
  EXPECT_EQ(refused.code, 64);
  EXPECT_THAT(refused.errors, HasSubstr("--chat-format: 'llama99' is none of chatml, gemma2, "));
}

TEST_F(ServeArguments, MemoryOfGuidesIsNoneOrEnough) {
  for (const char* size : {"1", "64MiB", "191MiB"}) {
    const Outcome refused = serve_with("--guide-memory", size);
    EXPECT_EQ(refused.code, 64) << size;
    EXPECT_THAT(refused.errors,
                HasSubstr("--guide-memory: '" + std::string(size) + "' is less than 192.00 MiB, which three guides"));
  }
  EXPECT_THAT(serve_with("--guide-memory", "much").errors, HasSubstr("--guide-memory: 'much' is not a size"));
  for (const char* size : {"0", "192MiB"}) EXPECT_NE(serve_with("--guide-memory", size).code, 64) << size;
}

TEST_F(ServeArguments, StandInTheManualWithWhatElseMatters) {
  const std::string page = run({"man"}).output;
  std::size_t at = 0;
  for (const char* part : {".SH COMMANDS", "\\-\\-requests", ".SH EXIT STATUS", ".B 75", ".SH ENVIRONMENT", ".B TMPDIR",
                           ".B SLURM_JOB_ID", ".SH FILES", "OUT.journal", ".SH SIGNALS", ".B SIGUSR1", ".SH EXAMPLES",
                           "ROSTER=models.json,REQUESTS=requests.jsonl,OUTPUT=results.jsonl"}) {
    const std::size_t found = page.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << " is missing, or stands in another place";
    at = found;
  }
}

TEST_F(ServeArguments, WholeNumbersDoNotOverflow) {
  for (const char* option : {"--tp", "--threads", "--max-seqs", "--max-batch-tokens", "--max-line-bytes", "--seed"}) {
    for (const char* value : {"99999999999999999999999", "many"}) {
      const Outcome refused = serve_with(option, value);
      EXPECT_EQ(refused.code, 64) << option << " " << value;
      EXPECT_THAT(refused.errors, HasSubstr(option));
    }
  }
}

TEST_F(ServeArguments, ConfigurationFilesAreCheckedLikeTheCommandLine) {
  const auto refused = [&](const std::string& text, const std::string& part) {
    const Outcome outcome = serve_with("--config", write("serve.toml", text));
    EXPECT_EQ(outcome.code, 64) << text;
    EXPECT_THAT(outcome.errors, testing::AllOf(HasSubstr(file("serve.toml")), HasSubstr(part)));
  };
  refused("no-such-option = 1\n", "computron serve has no option 'no-such-option'");
  refused("tp = 99999999999999999999999\n", "--tp");
  refused("max-wait = \"soon\"\n", "soon is not a positive number");
  refused("[bench]\ntp = 1\n", "'bench.tp'");
  refused(std::string("\0\xff[[[=\n", 7), "no option");
  EXPECT_EQ(serve_with("--config", file("none.toml")).code, 64);
}

// Options that exclude each other on the command line.
TEST_F(ServeArguments, TheCommandLineWinsOverWhatItExcludesInTheFile) {
  const auto with = [&](const std::string& text, const std::vector<std::string>& more) {
    std::vector<std::string> command{
        "serve", "--requests", file("in"), "--output", file("out"), "--config", write("serve.toml", text)};
    command.insert(command.end(), more.begin(), more.end());
    return run(command);
  };
  const std::string model = "a=" + file("none.h5");
  const Outcome models = with("models = '" + file("list.json") + "'\n", {"--model", model});
  EXPECT_NE(models.code, 0);
  EXPECT_THAT(models.errors, testing::Not(HasSubstr("list.json")));
  const Outcome placement = with("placement = '" + file("groups.json") + "'\n", {"--model", model, "--tp", "1"});
  EXPECT_NE(placement.code, 0);
  EXPECT_THAT(placement.errors, testing::Not(HasSubstr("groups.json")));
  const Outcome both = with("placement = 'groups.json'\ntp = 1\n", {"--model", model});
  EXPECT_EQ(both.code, 64);
  EXPECT_THAT(both.errors, HasSubstr("serve.toml: 'tp' excludes another option of the file"));
}

// Each of these would destroy the other's file, the journal of results among them.
TEST_F(ServeArguments, NoFileIsWrittenForTwoUses) {
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command{"serve", "--model", "a=" + file("a.h5"), "--requests", file("in")};
    command.insert(command.end(), more.begin(), more.end());
    return run(command);
  };
  const std::string out = file("out"), other = file("x/../out");
  const std::vector<std::vector<std::string>> refused = {
      {"--output", out, "--progress", out},
      {"--output", out, "--status", other},
      {"--output", out, "--metrics", out + ".partial"},
      {"--output", out, "--progress", out + ".journal"},
      {"--output", out, "--trace", out + ".done"},
      {"--output", out + ".partial", "--status", out},
      {"--output", out, "--record", out},
      {"--output", out, "--status", file("p"), "--progress", file("p")},
      {"--output", out, "--metrics", file("p.partial"), "--progress", file("p")},
      {"--output", out, "--progress", file("in")},
      {"--output", out, "--metrics", file("./in")},
      {"--output", out, "--requests", "-", "--output", other}};
  for (const auto& more : refused) {
    const Outcome outcome = with(more);
    EXPECT_EQ(outcome.code, 64) << more.back();
    EXPECT_THAT(outcome.errors, HasSubstr(more[more.size() - 2] + " " + more.back() + ": '" + file("")));
    EXPECT_THAT(outcome.errors, HasSubstr("' is a file of --"));
  }
  EXPECT_NE(
      with({"--output", out, "--progress", out + ".progress", "--status", file("s"), "--metrics", file("m")}).code, 64);
}

TEST_F(ServeArguments, PoliciesHaveNames) {
  const Outcome refused = serve_with("--policy", "lifo");
  EXPECT_EQ(refused.code, 64);
  EXPECT_THAT(refused.errors, HasSubstr("lifo not in {fifo,balanced,throughput}"));
}

TEST_F(ServeArguments, WhatIsDoneAboutLateRequestsHasNames) {
  const Outcome refused = serve_with("--on-late", "cancel");
  EXPECT_EQ(refused.code, 64);
  EXPECT_THAT(refused.errors, HasSubstr("cancel not in {serve,drop,reject}"));
}

}  // namespace
}  // namespace computron::test
