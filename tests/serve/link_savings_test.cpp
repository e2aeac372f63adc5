#include "src/serve/link_savings.h"

#include <gmock/gmock.h>

namespace computron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ShardLayout layout_of(std::vector<std::size_t> used_bytes) {
  ShardLayout layout;
  layout.used_bytes = std::move(used_bytes);
  return layout;
}

TEST(LinkSavings, APageTakesTheMostOfItsRanks) {
  ShardLayout a = layout_of({100, 100, 50}), b = layout_of({80});
  LinkSavings savings;
  for (const std::vector<std::uint32_t>& of_rank : {std::vector<std::uint32_t>{30, 31, 0, 5}, {33, 29, 2, 6}}) {
    savings.note(&a, of_rank);
    savings.note(&b, std::span(of_rank).subspan(3));
  }
  savings.set_link_bytes();
  EXPECT_THAT(a.link_bytes, ElementsAre(70, 71, 50));
  EXPECT_THAT(b.link_bytes, ElementsAre(75));
}

TEST(LinkSavings, WhereNothingIsSavedLayoutsStayAsTheyWere) {
  ShardLayout none = layout_of({100, 100}), of_one_rank = layout_of({100}), zeros = layout_of({100});
  LinkSavings savings;
  savings.note(&none, {});
  savings.note(&of_one_rank, std::vector<std::uint32_t>{30});
  savings.note(&of_one_rank, {});
  savings.note(&zeros, std::vector<std::uint32_t>{0});
  savings.set_link_bytes();
  EXPECT_THAT(none.link_bytes, IsEmpty());
  EXPECT_THAT(of_one_rank.link_bytes, IsEmpty());
  EXPECT_THAT(zeros.link_bytes, IsEmpty());
}

}  // namespace
}  // namespace computron
