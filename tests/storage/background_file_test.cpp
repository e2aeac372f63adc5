#include "computron/storage/background_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/storage/failing_calls.h"

namespace computron {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

class BackgroundFileTest : public testing::Test {
 protected:
  BackgroundFileTest() : path_(testing::TempDir() + "background_" + std::to_string(getpid())) {}
  ~BackgroundFileTest() override { std::filesystem::remove(path_); }
  std::string content() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string path_;
};

TEST_F(BackgroundFileTest, HoldsAllThatWasPutInOrder) {
  std::string all;
  {
    BackgroundFile file(path_);
    for (int i = 0; i < 100000; ++i) {
      const std::string number = std::to_string(i);
      EXPECT_TRUE(file.put(bytes_of(number), bytes_of(",")));
      all += number + ',';
    }
  }
  EXPECT_EQ(content(), all);
}

TEST_F(BackgroundFileTest, ReplacesWhatWasThere) {
  std::ofstream(path_) << "of an earlier attempt, and longer";
  BackgroundFile file(path_);
  file.put(bytes_of("new"), {});
  file.close();
  EXPECT_EQ(content(), "new");
  EXPECT_EQ(file.fault(), "");
}

TEST_F(BackgroundFileTest, WhatDoesNotFitBehindASlowDiskIsRefusedWhole) {
  std::atomic<bool> slow = true;
  FailingCalls calls;
  calls.fail_while([&slow] {
    while (slow) usleep(100);
    return 0;
  });
  BackgroundFile file(path_, /*most_waiting_bytes=*/10, calls);
  EXPECT_TRUE(file.put(bytes_of("0123"), bytes_of("4567")));
  EXPECT_FALSE(file.put(bytes_of("ab"), bytes_of("cdefghijkl")));
  slow = false;
  file.close();
  EXPECT_EQ(content(), "01234567");
}

TEST_F(BackgroundFileTest, ADiskThatFailsEndsTheFileAndNothingElse) {
  for (const int error : {EIO, ENOSPC}) {
    FailingCalls calls;
    calls.fail_while([error] { return error; });
    BackgroundFile file(path_, 100, calls);
    EXPECT_TRUE(file.put(bytes_of("lost"), {}));
    while (file.fault().empty()) usleep(100);
    EXPECT_THAT(file.fault(), testing::HasSubstr(path_));
    EXPECT_THAT(file.fault(), testing::HasSubstr(std::strerror(error)));
    EXPECT_TRUE(file.put(bytes_of(std::string(1000, 'x')), {}));  // takes no room
    file.close();
    EXPECT_EQ(content(), "");
  }
}

TEST_F(BackgroundFileTest, AFolderThatIsNotThereIsSaidAtOnce) {
  EXPECT_THROW(BackgroundFile("/nowhere/at/all"), Error);
  EXPECT_THROW(BackgroundFile{testing::TempDir()}, Error);
}

}  // namespace
}  // namespace computron
