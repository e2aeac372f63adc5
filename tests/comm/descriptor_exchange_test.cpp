#include "computron/comm/descriptor_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>

#include "computron/device/device.h"
#include "tests/support/no_more_files.h"

namespace computron {
namespace {

using testing::HasSubstr;

// A file that holds the number of its rank.
FileDescriptor numbered(int rank) {
  FileDescriptor file = make_shared_memory(sizeof rank);
  EXPECT_EQ(pwrite(file.get(), &rank, sizeof rank, 0), static_cast<ssize_t>(sizeof rank));
  return file;
}

int number_in(const FileDescriptor& file) {
  int number = -1;
  EXPECT_EQ(pread(file.get(), &number, sizeof number, 0), static_cast<ssize_t>(sizeof number));
  return number;
}

std::ptrdiff_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

class DescriptorExchange : public testing::Test {
 protected:
  // All but this one.
  std::vector<int> others() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < node_.size(); ++rank) {
      if (rank != node_.rank()) ranks.push_back(rank);
    }
    return ranks;
  }
  Communicator node_ = Communicator::world();
};

TEST_F(DescriptorExchange, GivesEachWhatItWants) {
  const auto before = open_files();
  {
    const FileDescriptor mine = numbered(node_.rank());
    const ExchangedDescriptors got = exchange_descriptors(node_, mine.get(), others());
    EXPECT_EQ(got.refusal, "");
    ASSERT_EQ(static_cast<int>(got.of.size()), node_.size());
    EXPECT_FALSE(got.of[node_.rank()]);
    for (const int rank : others()) EXPECT_EQ(number_in(got.of[rank]), rank);
    EXPECT_EQ(open_files(), before + node_.size());
  }
  EXPECT_EQ(open_files(), before);
}

// One rank gives to all others, which have nothing to give.
TEST_F(DescriptorExchange, WorksInOneDirection) {
  const int giver = node_.size() - 1;
  const bool gives = node_.rank() == giver;
  const FileDescriptor mine = gives ? numbered(giver) : FileDescriptor();
  const std::vector<int> wanted = gives ? std::vector<int>{} : std::vector<int>{giver};
  const ExchangedDescriptors got = exchange_descriptors(node_, mine.get(), wanted);
  EXPECT_EQ(got.refusal, "");
  for (const int rank : wanted) EXPECT_EQ(number_in(got.of[rank]), giver);
}

TEST_F(DescriptorExchange, OfNobodyWhoWantsSomethingTakesNoSocket) {
  const ExchangedDescriptors got = exchange_descriptors(node_, -EPERM, {});
  EXPECT_EQ(got.refusal, "");
  for (const FileDescriptor& file : got.of) EXPECT_FALSE(file);
}

TEST_F(DescriptorExchange, SaysToAllWhatOneHasNot) {
  if (node_.size() == 1) GTEST_SKIP() << "nobody to give to";
  const FileDescriptor mine = numbered(node_.rank());
  const bool poor = node_.rank() == node_.size() - 1;
  const ExchangedDescriptors got = exchange_descriptors(node_, poor ? -EPERM : mine.get(), others());
  EXPECT_THAT(got.refusal, HasSubstr(std::strerror(EPERM)));
  for (const FileDescriptor& file : got.of) EXPECT_FALSE(file);
}

// What a system says that refuses sockets: here, since the process may open no further file.
TEST_F(DescriptorExchange, SaysToAllWhatOneIsRefused) {
  if (node_.size() == 1) GTEST_SKIP() << "nobody to give to";
  const FileDescriptor mine = numbered(node_.rank());
  node_.barrier();  // MPI has opened what it needs
  std::optional<test::NoMoreFiles> poor;
  if (node_.rank() == 0) poor.emplace();
  const ExchangedDescriptors got = exchange_descriptors(node_, mine.get(), others());
  poor.reset();
  EXPECT_THAT(got.refusal, HasSubstr(std::strerror(EMFILE)));
  for (const FileDescriptor& file : got.of) EXPECT_FALSE(file);
  node_.barrier();
}

}  // namespace
}  // namespace computron
