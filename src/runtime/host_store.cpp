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

std::size_t HostStore::bytes_of(const Image& image) {
  std::size_t bytes = 0;
  for (const std::size_t used : image.used_bytes) bytes += round_up(used, kPageAlignment);
  return bytes;
}

HostStore::Model HostStore::allocate(const Image& image, const std::string& name) const {
  Model model{.name = name,
              .image = &image,
              .buffer = device_.allocate_host(bytes_of(image), "model " + name),
              .offsets = {},
              .digests = std::vector<std::uint64_t>(image.used_bytes.size())};
  std::size_t offset = 0;
  for (const std::size_t used : image.used_bytes) {
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

ModelId HostStore::add(const Image& image, const std::string& name, const Fill& fill, int threads) {
  Model model = allocate(image, name);
  fill(model.buffer->data(), model.offsets);
  parallel_for(image.used_bytes.size(), threads, [&](int, std::size_t page) {
    model.digests[page] = digest64({model.buffer->data() + model.offsets[page], image.used_bytes[page]});
  });
  return keep(std::move(model));
}

ModelId HostStore::load(const CheckpointIndex& index, const std::string& name, const Image& image, int t,
                        const WeightFormat& format, int threads, LoadTimes* times, const std::function<void()>& poll) {
  Model model = allocate(image, name);
  ShardLoader loader(index, image, t, format, *model.buffer, model.offsets, model.digests);
  const LoadTimes taken = loader.load(threads, poll);
  if (times != nullptr) *times = taken;
  return keep(std::move(model));
}

}  // namespace computron
