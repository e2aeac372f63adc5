// Memory straight from the system, anonymous or shared between processes: pools and host pages lie in it.
#pragma once

#include <cstddef>
#include <optional>

namespace computron {

// Move-only owner of a mapping. Pages are zero, and huge ones where the system has them.
class MappedPages {
 public:
  // Pages appear when they are first touched. Aligned to 2 MiB. Nothing where the system refuses, or where less
  // memory is available than this would fill.
  static std::optional<MappedPages> map(std::size_t bytes);
  // The same where less will be touched than `bytes`: nobody asks how much is available.
  static std::optional<MappedPages> reserve(std::size_t bytes);
  // Bytes [offset, offset + bytes) of `memory` (make_shared_memory(); borrowed for the call), which other processes
  // map, too; `offset` is a multiple of 2 MiB. Aligned to 2 MiB. Nothing where the system refuses.
  static std::optional<MappedPages> map_shared(int memory, std::size_t offset, std::size_t bytes);
  MappedPages(MappedPages&& other) noexcept;
  MappedPages& operator=(MappedPages&&) = delete;
  ~MappedPages();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  // Makes every page exist, by `threads` threads, so that no later access faults. False where memory runs out.
  bool populate(int threads);
  // The same for the system's pages that [begin, end) lies in. Thread-safe, and may come twice.
  bool populate(std::size_t begin, std::size_t end);
  // Ends the mapping behind the first `bytes` and gives back what lies there, of shared memory for all.
  void trim(std::size_t bytes);
  // Makes pages that exist huge ones, of shared memory alone: what the system does for anonymous memory when it is
  // first touched is often turned off for shared memory, or finds no room. A wish: small pages serve as well.
  void collapse();
  // From here on a write kills the process. Error{kSystem} where the system refuses.
  void make_read_only();

 private:
  // The memory of the system's pages that lie wholly in [begin, end).
  void give_back(std::size_t begin, std::size_t end);
  static std::optional<MappedPages> map_private(std::size_t bytes, int flags);
  MappedPages(std::byte* data, std::size_t bytes, std::size_t mapped, bool shared)
      : data_(data), bytes_(bytes), mapped_(mapped), shared_(shared) {}

  std::byte* data_;
  std::size_t bytes_;   // asked for
  std::size_t mapped_;  // whole pages
  bool shared_;
};

}  // namespace computron
