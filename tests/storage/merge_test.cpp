// computron merge without --requests, over shards beside which their jobs have left OUT.done. The rest: tests/apps.
#include "computron/storage/merge.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "computron/storage/result_journal.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

class MergeOfShards : public testing::Test {
 protected:
  // A finished output of `--shard SHARD`, or of a whole input, with results of `lines`.
  std::string finished(const std::string& name, const std::string& shard, const std::vector<RequestId>& lines) {
    const Settings settings = shard.empty() ? Settings{} : Settings{{"--shard", shard}};
    FoundOutput output = claim_output(folder_ / name, folder_ / "in.jsonl", settings);
    ResultJournal journal = std::get<ClaimedOutput>(std::move(output)).begin();
    for (const RequestId line : lines) {
      journal.note_line(line, Digest128{});
      journal.write(
          fmt::format("{{\"id\":\"batch_req_{0}\",\"custom_id\":\"r{0}\",\"response\":null,\"error\":null}}\n", line),
          std::vector{line});
    }
    std::move(journal).finish();
    return folder_ / name;
  }
  std::uint64_t merge(const std::vector<std::string>& shards) {
    return merge_results({.output = folder_ / "all", .shards = shards, .requests = {}});
  }
  void refused(const std::string& part, const std::vector<std::string>& shards) {
    expect_error(ExitCode::kData, part, [&] { merge(shards); });
  }

  TemporaryFolder folder_;
};

TEST_F(MergeOfShards, NamesThoseThatAreMissing) {
  const std::string first = finished("k.0", "0/3", {0, 3}), second = finished("k.1", "1/3", {1}),
                    third = finished("k.2", "2/3", {});
  refused(fmt::format("1 of the 3 shards are missing, as '{}.done' says: 2/3", first), {first, second});
  refused("2 of the 3 shards are missing, as '" + second + ".done' says: 0/3, 2/3", {second});
  EXPECT_EQ(merge({first, second, third}), 3u);
  // One whose job has left no word may be any of them.
  const std::string silent = folder_.write("k.other", read_file(third));
  EXPECT_EQ(merge({first, second, silent}), 3u);
  std::filesystem::remove(first + ".done");
  EXPECT_EQ(merge({first, second, third}), 3u);
  const std::string one_of_many = finished("m.0", "0/1000", {0});
  refused("999 of the 1000 shards are missing, as '" + one_of_many +
              ".done' says: 1/1000, 2/1000, 3/1000, 4/1000, 5/1000, 6/1000, 7/1000, 8/1000, 9/1000, 10/1000, ...",
          {one_of_many});
}

TEST_F(MergeOfShards, NamesThoseOfAnotherCut) {
  const std::string third = finished("k.0", "0/3", {0, 3}), fourth = finished("k.1", "1/4", {1, 5}),
                    whole = finished("whole", "", {7});
  refused(fmt::format("'{}' is shard 0/3 and '{}' is shard 1/4", third, fourth), {third, fourth});
  refused(fmt::format("'{}' is the whole of an input and '{}' is shard 0/3", whole, third), {whole, third});
  EXPECT_EQ(merge({whole}), 1u);
}

// OUT.done speaks of the file that lay there when it was made.
TEST_F(MergeOfShards, BelievesNoSignOfAnotherFile) {
  const std::string shard = finished("k.0", "0/3", {0, 3});
  const std::string replaced = read_file(finished("other", "", {0, 1, 2}));
  folder_.write("k.0", replaced);
  EXPECT_EQ(merge({shard}), 3u);
}

}  // namespace
}  // namespace computron
