#include "src/ops/cuda/pass_block.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "computron/base/types.h"
#include "src/ops/cuda/staging.h"

namespace computron {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kLeastBlock = std::size_t{1} << 20;

// A power of two.
std::size_t class_of(std::size_t bytes) { return bytes == 0 ? 0 : std::max(std::bit_ceil(bytes), kAlignment); }

}  // namespace

void PassBlock::begin() {
  inputs_.clear();
  results_.clear();
  layout_.clear();
  input_bytes_ = 0;
}

void PassBlock::add_input(std::span<const std::byte> values) { inputs_.push_back({values.data(), values.size()}); }

std::size_t PassBlock::add_result(std::size_t bytes) {
  results_.push_back({nullptr, bytes});
  return results_.size() - 1;
}

void PassBlock::lay_out() {
  std::size_t end = 0;
  const auto place = [&](Array& array, std::size_t room) {
    array.place = end;
    end += room;
    layout_.append(reinterpret_cast<const char*>(&room), sizeof room);  // an array of nothing has no room
  };
  for (Array& input : inputs_) place(input, class_of(input.bytes));
  input_bytes_ = end;
  for (Array& result : results_) place(result, round_up(result.bytes, kAlignment));
  make_room(input_bytes_, end);
  layout_.append(reinterpret_cast<const char*>(&input_bytes_), sizeof input_bytes_);
  layout_.append(reinterpret_cast<const char*>(&generation_), sizeof generation_);
  for (const Array& input : inputs_) {
    if (input.bytes > 0) std::memcpy(pinned_->data() + input.place, input.host, input.bytes);
  }
}

void PassBlock::make_room(std::size_t inputs, std::size_t all) {
  const auto room_for = [](std::size_t bytes) { return std::max(std::bit_ceil(bytes), kLeastBlock); };
  const bool fits = pinned_ != nullptr && pinned_->bytes() >= all && on_device_->bytes() >= inputs;
  if (fits) return;
  ++generation_;
  const std::size_t on_device = std::max(room_for(inputs), on_device_ ? on_device_->bytes() : 0);
  const std::size_t pinned = std::max(room_for(all), pinned_ ? pinned_->bytes() : 0);
  on_device_.reset();  // before there is more
  pinned_.reset();
  on_device_ = device_.allocate(on_device, "inputs of passes");
  pinned_ = device_.allocate_host(pinned, "inputs and results of passes");
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
