#include "computron/runtime/host_store.h"

#include "computron/base/digest.h"
#include "computron/base/parallel.h"
#include "src/runtime/shard_loader.h"

namespace computron {
namespace {

constexpr std::size_t kPageAlignment = 4096;

}  // namespace

LoadTimes& LoadTimes::operator+=(const LoadTimes& other) {
  read_s += other.read_s;
  verify_s += other.verify_s;
  memory_s += other.memory_s;
  widen_s += other.widen_s;
  pack_s += other.pack_s;
  digest_s += other.digest_s;
  return *this;
}

std::size_t HostStore::bytes_of(const ShardLayout& layout) {
  std::size_t bytes = 0;
  for (const std::size_t used : layout.used_bytes) bytes += round_up(used, kPageAlignment);
  return bytes;
}

HostStore::Model HostStore::allocate(const ShardLayout& layout, const std::string& name) const {
  Model model{.name = name,
              .layout = &layout,
              .buffer = device_.allocate_host(bytes_of(layout), "model " + name),
              .offsets = {},
              .digests = std::vector<std::uint64_t>(layout.used_bytes.size())};
  std::size_t offset = 0;
  for (const std::size_t used : layout.used_bytes) {
    model.offsets.push_back(offset);
    offset += round_up(used, kPageAlignment);
  }
  return model;
}

ModelId HostStore::keep(Model model) {
  model.buffer->make_read_only();
  models_.push_back(std::move(model));
  return static_cast<ModelId>(models_.size() - 1);
}

ModelId HostStore::add(const ShardLayout& layout, const std::string& name, const Fill& fill, int threads) {
  Model model = allocate(layout, name);
  fill(model.buffer->data(), model.offsets);
  parallel_for(layout.used_bytes.size(), threads, [&](int, std::size_t page) {
    model.digests[page] = digest64({model.buffer->data() + model.offsets[page], layout.used_bytes[page]});
  });
  return keep(std::move(model));
}

ModelId HostStore::load(const CheckpointIndex& index, const std::string& name, const ShardLayout& layout, int t,
                        const WeightFormat& format, int threads, LoadTimes* times, const std::function<void()>& poll) {
  Model model = allocate(layout, name);
  ShardLoader loader(index, layout, t, format, *model.buffer, model.offsets, model.digests);
  const LoadTimes taken = loader.load(threads, poll);
  if (times != nullptr) *times = taken;
  return keep(std::move(model));
}

}  // namespace computron
