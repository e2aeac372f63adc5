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
  for (const char* option : {"--max-wait", "--link-gbps"}) {
    for (const char* value : {"0", "-1", "nan", "inf", "soon", "1e400", "3s"}) {
      const Outcome refused = serve_with(option, value);
      EXPECT_EQ(refused.code, 64) << value;
      EXPECT_THAT(refused.errors, HasSubstr(std::string(option) + ": " + value + " is not a positive number"));
    }
  }
}

TEST_F(ServeArguments, PoliciesHaveNames) {
  const Outcome refused = serve_with("--policy", "lifo");
  EXPECT_EQ(refused.code, 64);
  EXPECT_THAT(refused.errors, HasSubstr("lifo not in {fifo,balanced,throughput}"));
}

}  // namespace
}  // namespace computron::test
