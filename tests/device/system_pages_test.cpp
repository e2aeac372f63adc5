// Memory of a system whose pages have 64 KiB, as a Grace's often do: this process is told so, and cuts its memory at
// multiples of them. Whether it does is seen in the real pages, which are the same size or smaller.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "computron/base/memory.h"
#include "src/device/mapped_pages.h"

// Instead of the C library's: of what is linked here computron_base alone asks.
extern "C" int getpagesize() noexcept { return 65536; }

namespace computron {
namespace {

constexpr std::size_t kPage = 65536, kMiB = std::size_t{1} << 20;

std::size_t real_page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

bool is_mapped(std::byte* at) { return msync(at, real_page(), MS_ASYNC) == 0; }

// How many bytes from `at` on exist, of one page.
std::size_t existing(std::byte* at) {
  std::vector<unsigned char> there(kPage / real_page());
  EXPECT_EQ(mincore(at, kPage, there.data()), 0);
  return static_cast<std::size_t>(std::ranges::count_if(there, [](unsigned char page) { return (page & 1) != 0; })) *
         real_page();
}

TEST(SystemPages, OfWhichAPartIsNeededStay) {
  auto pages = MappedPages::map(4 * kMiB);
  ASSERT_TRUE(pages);
  pages->trim(5 * 4096);
  EXPECT_TRUE(is_mapped(pages->data() + kPage - real_page()));
  EXPECT_FALSE(is_mapped(pages->data() + kPage));
  EXPECT_FALSE(is_mapped(pages->data() + 4 * kMiB - real_page()));
}

TEST(SystemPages, AreMadeWhole) {
  auto pages = MappedPages::map(kMiB);
  ASSERT_TRUE(pages);
  madvise(pages->data(), kMiB, MADV_NOHUGEPAGE);
  ASSERT_TRUE(pages->populate(3 * kPage + 5000, 3 * kPage + 5001));
  EXPECT_EQ(existing(pages->data() + 2 * kPage), 0u);
  EXPECT_EQ(existing(pages->data() + 3 * kPage), kPage);
  EXPECT_EQ(existing(pages->data() + 4 * kPage), 0u);
}

TEST(SystemPages, AreNoMoreThanWereAskedForWhenTheyAreGone) {
  std::byte* data = nullptr;
  {
    auto pages = MappedPages::map(5 * 4096);
    ASSERT_TRUE(pages);
    data = pages->data();
    EXPECT_TRUE(is_mapped(data + kPage - real_page()));
  }
  EXPECT_FALSE(is_mapped(data + kPage - real_page()));
}

}  // namespace
}  // namespace computron
