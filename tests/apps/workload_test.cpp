// computron workload, as a person runs it.
#include <gmock/gmock.h>

#include "tests/apps/program.h"

namespace computron::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class WorkloadTest : public ProgramTest {};

TEST_F(WorkloadTest, WritesTheSameLinesToAFileAndToStandardOutput) {
  const Outcome shown = run({"workload", "--model", "a=10", "--model", "b=2.5", "--cv", "2", "--seed", "3"});
  ASSERT_EQ(shown.code, 0) << shown.errors;
  EXPECT_THAT(shown.output, StartsWith(R"({"custom_id":)"));
  const Outcome written = run({"workload", "--models", "a,b", "--rates", "10,2.5", "--cv", "2", "--seed", "3",
                               "--output", file("requests.jsonl")});
  ASSERT_EQ(written.code, 0) << written.errors;
  EXPECT_THAT(written.output, HasSubstr("requests in 30 s"));
  EXPECT_EQ(read_file(file("requests.jsonl")), shown.output);
}

// Whether it fits the buffer of the stream or not.
TEST_F(WorkloadTest, AFullDeviceAsStandardOutputIsAnErrorOfWriting) {
  for (const char* rate : {"0.1", "100"}) {
    const Outcome outcome = run_into("/dev/full", {"workload", "--model", std::string("a=") + rate});
    EXPECT_EQ(outcome.code, 74) << rate;
    EXPECT_THAT(outcome.errors, HasSubstr("standard output cannot be written"));
  }
}

TEST_F(WorkloadTest, ArgumentsAtFaultAreNamed) {
  const auto refused = [this](std::vector<std::string> arguments, const std::string& part) {
    arguments.insert(arguments.begin(), "workload");
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 64) << part;
    EXPECT_THAT(outcome.errors, HasSubstr(part));
  };
  refused({}, "--model");
  refused({"--model", "a=fast"}, "a=fast");
  refused({"--model", "a=1", "--models", "b", "--rates", "1"}, "--models");
  refused({"--models", "a,b", "--rates", "1"}, "--rates");
  refused({"--model", "a=1", "--cv", "-1"}, "--cv");
  refused({"--model", "a=1", "--cv", "much"}, "--cv");
}

}  // namespace
}  // namespace computron::test
