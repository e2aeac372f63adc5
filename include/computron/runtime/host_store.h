// The pages of a rank's shard of every model, in host memory. Written once by the loader, read-only afterwards.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "computron/checkpoint/reader.h"
#include "computron/device/device.h"
#include "computron/model/image.h"

namespace computron {

class HostStore {
 public:
  explicit HostStore(Device& device) : device_(device) {}

  // Takes an image's pages: `fill(pages, offsets)` writes page p at pages + offsets[p] into zeroed memory, which then
  // becomes read-only. Models are numbered in the order of adding. Error{kSystem} naming `what` without memory.
  using Fill = std::function<void(std::byte* pages, const std::vector<std::size_t>& offsets)>;
  ModelId add(const Image& image, const std::string& what, const Fill& fill);

  // Reads rank t's slices of the checkpoint, verifies their digests and packs them into pages. `threads` read and
  // pack side by side. Holds one piece of a tensor a thread beside the pages, never a whole tensor. CheckpointError or
  // Error{kSystem}.
  ModelId load(const CheckpointIndex& index, const Image& image, int t, const WeightFormat& format, int threads);

  const std::byte* page(ModelId model, PageId page) const {
    return models_[model].buffer->data() + models_[model].offsets[page];
  }
  std::size_t page_used_bytes(ModelId model, PageId page) const { return models_[model].image->used_bytes[page]; }
  // Host bytes that an image's pages take.
  static std::size_t bytes_of(const Image& image);

 private:
  struct Model {
    const Image* image;
    std::unique_ptr<HostBuffer> buffer;
    std::vector<std::size_t> offsets;  // [page], 4096-aligned
  };
  Device& device_;
  std::vector<Model> models_;
};

}  // namespace computron
