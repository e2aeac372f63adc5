// The pages of a shard in host memory, coded where they gain by it, one behind the other as they are complete: so they
// take what they take, and not more. What the arena may take at most, as the shard does raw, is address space only.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "computron/device/device.h"
#include "computron/model/shard_layout.h"
#include "computron/runtime/host_store.h"
#include "kernels/cpu/coded_page.h"
#include "src/runtime/first_touch.h"

namespace computron {

// What the blocks of a layout's pages hold, [page][block]: the type of GEMM weights, float32 of tables and vectors;
// raw, which is not coded, where a block has some of both.
std::vector<std::vector<BlockEncoding>> block_encodings(const ShardLayout& layout);

class CodedArena {
 public:
  // Fills `memory` from `begin` on and tells in stored[page] what became of the page. `threads`: those that add pages.
  // `model` names the model in errors. Borrows `layout`, `memory` and `stored`.
  CodedArena(const ShardLayout& layout, std::string model, HostBuffer& memory, std::size_t begin,
             std::vector<StoredPage>& stored, int threads);

  // Each page once, from any thread of number `thread`. `raw`: its bytes, which may be given back afterwards: what was
  // put is decoded and digested, so that nothing is lost unnoticed. Error{kSystem} where memory runs out, {kInternal}
  // where the page does not come back.
  void add(PageId page, std::span<const std::byte> raw, int thread, LoadTimes& times);
  // Of `memory`, what is used.
  std::size_t end() const { return end_; }

 private:
  // Digested and encoded, or copied, decoded and digested, at a time: in the second-level cache all the while.
  static constexpr std::size_t kBytesTogether = 32 * kCodedBlockBytes;

  // A thread's.
  class Scratch {
   public:
    explicit Scratch(std::size_t coded_bytes);
    std::byte* coded() const { return coded_.get(); }              // a coded page
    std::byte* decoded() const { return decoded_->bytes.data(); }  // kBytesTogether of a page

   private:
    struct alignas(64) Lines {
      std::array<std::byte, kBytesTogether> bytes;
    };
    std::unique_ptr<std::byte[]> coded_;
    std::unique_ptr<Lines> decoded_;
  };

  // Leaves the coded page in `scratch`; it is not in the arena yet.
  StoredPage encode(PageId page, std::span<const std::byte> raw, const Scratch& scratch, LoadTimes& times) const;
  void put(PageId page, const StoredPage& stored, std::span<const std::byte> raw, const Scratch& scratch,
           LoadTimes& times) const;

  const std::string model_;
  HostBuffer& memory_;
  FirstTouch touch_;
  std::vector<StoredPage>& stored_;
  std::vector<std::vector<BlockEncoding>> codes_;  // [page][block]
  std::vector<Scratch> scratch_;                   // [thread]
  std::atomic<std::size_t> end_;
};

}  // namespace computron
