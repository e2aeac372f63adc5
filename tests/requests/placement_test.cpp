// Placement files: what is read, and that whatever is wrong is named.
#include "computron/requests/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PlacementFile : public testing::Test {
 protected:
  Placement read(const std::string& text) { return read_placement(folder_.write("placement.json", text)); }

  // Why `text` is refused; empty if it is not.
  std::string fault(const std::string& text) {
    try {
      read(text);
      return {};
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
  }

  TemporaryFolder folder_;
};

TEST_F(PlacementFile, GroupsStandInTheirOrder) {
  const Placement placement = read(R"({"groups": [{"tp": 2, "models": ["a", "b"]},
                                                  {"pp": 3, "models": ["b"], "layers": {"b": [1, 2, 3]}}]})");
  EXPECT_THAT(placement.models, IsEmpty());
  ASSERT_EQ(placement.groups.size(), 2u);
  EXPECT_EQ(placement.groups[0].tp, 2);
  EXPECT_EQ(placement.groups[0].pp, 1);
  EXPECT_THAT(placement.groups[0].models, ElementsAre("a", "b"));
  EXPECT_EQ(placement.groups[1].tp, 1);
  EXPECT_EQ(placement.groups[1].pp, 3);
  EXPECT_THAT(placement.groups[1].layers.at("b"), ElementsAre(1, 2, 3));
  EXPECT_EQ(to_string(placement.groups), "tp 2 x pp 1: a, b; tp 1 x pp 3: b (1 + 2 + 3 layers)");
}

TEST_F(PlacementFile, MayBringItsModels) {
  const Placement placement =
      read(R"({"models": [{"id": "a", "path": "a.h5", "pinned": true}], "groups": [{"models": ["a"]}]})");
  ASSERT_EQ(placement.models.size(), 1u);
  EXPECT_EQ(placement.models[0].id, "a");
  EXPECT_THAT(placement.models[0].path, testing::EndsWith("/a.h5"));
  EXPECT_TRUE(placement.models[0].pinned);
}

TEST_F(PlacementFile, MaySayWhatIsPredicted) {
  EXPECT_EQ(
      read(R"({"groups": [{"models": ["a"]}], "predicted": {"attainment": 0.9, "p99_latency_s": null}})").predicted,
      R"({"attainment":0.9,"p99_latency_s":null})");
  EXPECT_EQ(read(R"({"groups": [{"models": ["a"]}]})").predicted, "");
}

TEST_F(PlacementFile, NamesWhatIsWrong) {
  const std::pair<const char*, const char*> faults[] = {
      {R"([])", "must be an object"},
      {R"({"groups": []})", "groups: must be a list of at least one group"},
      {R"({"group": [{"models": ["a"]}]})", "unknown key 'group' (known: models, groups, predicted)"},
      {R"({"groups": [{"models": ["a"]}, {"tp": 0, "models": ["a"]}]})", "group 1: tp: must be at least 1"},
      {R"({"groups": [{"models": ["a"], "pp": 1.5}]})", "group 0: pp: must be an integer"},
      {R"({"groups": [{"models": []}]})", "group 0: models: must be a list of at least one model id"},
      {R"({"groups": [{"tp": 1}]})", "group 0: models"},
      {R"({"groups": [{"models": ["a", 1]}]})", "group 0: models"},
      {R"({"groups": [{"models": ["a", "a"]}]})", "'a' is there twice"},
      {R"({"groups": [{"models": ["a"], "size": 2}]})", "unknown key 'size' (known: tp, pp, models, layers)"},
      {R"({"groups": [{"models": ["a"], "pp": 2, "layers": {"b": [1, 1]}}]})", "'b' is no model of the group"},
      {R"({"groups": [{"models": ["a"], "pp": 2, "layers": {"a": [1]}}]})", "layers of a: must be a list of 2 numbers"},
      {R"({"groups": [{"models": ["a"], "pp": 2, "layers": {"a": [2, 0]}}]})", "must be a list of 2 numbers"},
      {R"({"models": [{"id": "a"}], "groups": [{"models": ["a"]}]})", "models, entry 0: path: must be a string"},
      {R"({"groups": [{"models": ["a"]}], "predicted": 1})", "predicted: must be an object"},
      {R"({"groups": [{"models": ["a"]}], "predicted": {"makespan_s": "long"}})",
       "predicted, makespan_s: must be a number"},
      {R"({"groups": [{"models": ["a"]})", "placement '"},
  };
  for (const auto& [text, why] : faults) EXPECT_THAT(fault(text), HasSubstr(why)) << text;
}

TEST_F(PlacementFile, IsToBeThere) {
  try {
    read_placement("/nowhere/placement.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNoInput);
    EXPECT_THAT(error.what(), HasSubstr("cannot read the placement '/nowhere/placement.json'"));
  }
}

}  // namespace
}  // namespace computron
