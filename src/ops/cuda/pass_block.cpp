#include "src/ops/cuda/pass_block.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "computron/base/types.h"
#include "src/ops/cuda/staging.h"

namespace computron {
namespace {

constexpr std::size_t kLeastClass = 256;  // bytes; a multiple of what arrays are aligned to
constexpr std::size_t kLeastBlock = std::size_t{1} << 20;

}  // namespace

void PassBlock::begin() {
  inputs_.clear();
  results_.clear();
  layout_.clear();
  input_bytes_ = 0;
}

void PassBlock::add_input(std::span<const std::byte> values) {
  if (!values.empty()) inputs_.push_back({values.data(), values.size()});
}

std::size_t PassBlock::add_result(std::size_t bytes) {
  results_.push_back({nullptr, bytes});
  return results_.size() - 1;
}

void PassBlock::lay_out() {
  std::size_t end = 0;
  const auto place = [&](std::vector<Array>& arrays) {
    for (Array& array : arrays) {
      array.place = end;
      const std::size_t size_class = std::max(std::bit_ceil(array.bytes), kLeastClass);
      layout_.append(reinterpret_cast<const char*>(&size_class), sizeof size_class);
      end += size_class;
    }
  };
  place(inputs_);
  input_bytes_ = end;
  place(results_);
  make_room(input_bytes_, end);
  layout_.append(reinterpret_cast<const char*>(&input_bytes_), sizeof input_bytes_);
  layout_.append(reinterpret_cast<const char*>(&generation_), sizeof generation_);
  for (const Array& array : inputs_) std::memcpy(pinned_->data() + array.place, array.host, array.bytes);
}

void PassBlock::make_room(std::size_t inputs, std::size_t all) {
  const auto room_for = [](std::size_t bytes) { return std::max(std::bit_ceil(bytes), kLeastBlock); };
  const bool fits = pinned_ != nullptr && pinned_->bytes() >= all && on_device_->bytes() >= inputs;
  if (fits) return;
  ++generation_;
  on_device_ = device_.allocate(std::max(room_for(inputs), on_device_ ? on_device_->bytes() : 0), "inputs of passes");
  pinned_ = device_.allocate_host(std::max(room_for(all), pinned_ ? pinned_->bytes() : 0), "inputs of passes");
  mapped_ = mapped_address(*pinned_);
}

void PassBlock::upload(CudaComputeStream& stream) const {
  if (input_bytes_ > 0) copy_up(stream, on_device_->data(), pinned_->data(), mapped_, input_bytes_);
}

const std::byte* PassBlock::find(std::span<const std::byte> values) const {
  if (values.empty()) return nullptr;
  const std::byte* const begin = values.data();
  const auto found = std::ranges::find_if(inputs_, [&](const Array& input) {
    return begin >= input.host && begin + values.size() <= input.host + input.bytes;
  });
  return found == inputs_.end() ? nullptr : on_device_->data() + found->place + (begin - found->host);
}

}  // namespace computron
