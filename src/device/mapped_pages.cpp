#include "src/device/mapped_pages.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "computron/base/error.h"
#include "computron/base/memory.h"
#include "computron/base/size.h"
#include "computron/base/types.h"

namespace computron {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, which headers older than Linux 6.1 do not name

std::size_t whole_pages(std::size_t bytes) { return round_up(std::max<std::size_t>(bytes, 1), system_page_bytes()); }

// `mapped` bytes aligned to a huge page: more is mapped and the ends are given back.
std::byte* map_aligned(std::size_t mapped, int protection, int flags = 0) {
  void* start = mmap(nullptr, mapped + kHugePage, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  auto* first = static_cast<std::byte*>(start);
  const std::size_t head = (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) % kHugePage;
  if (head > 0) munmap(first, head);
  munmap(first + head + mapped, kHugePage - head);
  return first + head;
}

// True where every page of [data, data + bytes) could be made to exist.
bool populate_part(std::byte* data, std::size_t bytes) {
  if (bytes == 0 || madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  for (std::size_t at = 0; at < bytes; at += system_page_bytes()) {              // a system older than Linux 5.14
    __atomic_fetch_or(reinterpret_cast<char*>(data + at), 0, __ATOMIC_RELAXED);  // a write that changes nothing
  }
  return true;
}

}  // namespace

std::optional<MappedPages> MappedPages::map(std::size_t bytes) {
  if (bytes > available_memory().bytes) return std::nullopt;
  return map_private(bytes, /*flags=*/0);
}

std::optional<MappedPages> MappedPages::reserve(std::size_t bytes) { return map_private(bytes, MAP_NORESERVE); }

std::optional<MappedPages> MappedPages::map_private(std::size_t bytes, int flags) {
  const std::size_t mapped = whole_pages(bytes);
  auto* data = map_aligned(mapped, PROT_READ | PROT_WRITE, flags);
  if (data == nullptr) return std::nullopt;
  madvise(data, mapped, MADV_HUGEPAGE);  // a wish: small pages serve as well
  return MappedPages(data, bytes, mapped, /*shared=*/false);
}

std::optional<MappedPages> MappedPages::map_shared(int memory, std::size_t offset, std::size_t bytes) {
  const std::size_t mapped = whole_pages(bytes);
  auto* data = map_aligned(mapped, PROT_NONE);
  if (data == nullptr) return std::nullopt;
  MappedPages pages(data, bytes, mapped, /*shared=*/true);
  const void* placed =
      mmap(data, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, static_cast<off_t>(offset));
  if (placed == MAP_FAILED) return std::nullopt;
  madvise(data, mapped, MADV_HUGEPAGE);
  return pages;
}

MappedPages::MappedPages(MappedPages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      mapped_(other.mapped_),
      shared_(other.shared_) {}

MappedPages::~MappedPages() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

bool MappedPages::populate(int threads) {
  const std::size_t part = round_up(ceil_div(mapped_, static_cast<std::size_t>(threads)), kHugePage);
  std::atomic<bool> all = true;
  std::vector<std::jthread> workers;
  for (std::size_t at = 0; at < mapped_; at += part) {
    workers.emplace_back([=, this, &all] {
      if (!populate_part(data_ + at, std::min(part, mapped_ - at))) all = false;
    });
  }
  workers.clear();
  return all;
}

bool MappedPages::populate(std::size_t begin, std::size_t end) {
  const std::size_t page = system_page_bytes(), first = begin / page * page;
  return populate_part(data_ + first, std::min(round_up(end, page), mapped_) - first);
}

void MappedPages::give_back(std::size_t begin, std::size_t end) {
  const std::size_t page = system_page_bytes(), first = round_up(begin, page), last = end / page * page;
  if (first < last) madvise(data_ + first, last - first, shared_ ? MADV_REMOVE : MADV_DONTNEED);
}

void MappedPages::trim(std::size_t bytes) {
  ensure(bytes <= bytes_, "a mapping is to be trimmed to more than it has");
  const std::size_t kept = whole_pages(bytes);
  bytes_ = bytes;
  if (kept >= mapped_) return;
  give_back(kept, mapped_);
  munmap(data_ + kept, mapped_ - kept);
  mapped_ = kept;
}

// Independent of what /sys/kernel/mm/transparent_hugepage says (madvise(2)); refused by a system older than Linux 6.1.
void MappedPages::collapse() {
  if (shared_) madvise(data_, mapped_ / kHugePage * kHugePage, kCollapse);
}

void MappedPages::make_read_only() {
  if (mprotect(data_, mapped_, PROT_READ) == 0) return;
  throw Error(ExitCode::kSystem,
              fmt::format("cannot make {} of host memory read-only: {}", format_size(bytes_), std::strerror(errno)));
}

}  // namespace computron
