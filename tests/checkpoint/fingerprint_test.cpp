#include "computron/checkpoint/fingerprint.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>

#include "tests/checkpoint/sample.h"

namespace computron::test {
namespace {

TEST(Fingerprint, TellsFilesOfOtherLengthsAndOtherEndsApart) {
  const Folder folder;
  const std::string path = folder.file("m.h5");
  const auto of = [&](const std::vector<char>& bytes) {
    write_file(path, bytes);
    return file_fingerprint(path);
  };
  std::vector<char> bytes(300'000, 'a');
  const std::string first = of(bytes);
  EXPECT_THAT(first, testing::StartsWith("300000 bytes, "));
  EXPECT_EQ(of(bytes), first);
  for (const std::size_t changed : {std::size_t{0}, std::size_t{65'535}, std::size_t{234'464}, bytes.size() - 1}) {
    std::vector<char> other = bytes;
    other[changed] = 'b';
    EXPECT_NE(of(other), first) << changed;
  }
  EXPECT_NE(of(std::vector<char>(300'001, 'a')), first);
  EXPECT_NE(of({}), of({'a'}));
}

// A FIFO that nobody writes to would be waited for.
TEST(Fingerprint, OfWhatIsNoFileIsRefusedAtOnce) {
  const Folder folder;
  const std::string fifo = folder.file("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, folder.file("absent"), std::string("/dev/zero")}) {
    ExitCode code{};
    EXPECT_THAT(message_of([&] { file_fingerprint(path); }, &code), testing::StartsWith(path));
    EXPECT_EQ(code, ExitCode::kNoInput) << path;
  }
}

}  // namespace
}  // namespace computron::test
