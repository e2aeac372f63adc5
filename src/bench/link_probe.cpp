#include "src/bench/link_probe.h"

#include <algorithm>

#include "computron/base/bytes.h"
#include "computron/base/time.h"

namespace computron {
namespace {

std::vector<const ShardLayout*> own_layouts(const Job& job) {
  std::vector<const ShardLayout*> layouts;
  for (const ModelShape& shape : job.models().shapes()) layouts.push_back(shape.layouts[job.mesh().stage]);
  return layouts;
}

int most_pages(const std::vector<const ShardLayout*>& layouts) {
  int pages = 0;
  for (const ShardLayout* layout : layouts) pages = std::max(pages, layout->pages());
  return pages;
}

}  // namespace

LinkProbe::LinkProbe(Job& job)
    : job_(job),
      layouts_(own_layouts(job)),
      copy_stream_(job.device().make_copy_stream(
          {.coded = job.host().coding() == PageCoding::kCoded ? job.plan().page_bytes : 0})),
      compute_(job.device().make_compute_stream(job.progress())),
      pool_(job.device(), most_pages(layouts_), job.plan().page_bytes),
      offload_area_(job.device(), /*slots=*/0, job.plan().page_bytes),
      swapper_(job.host(), offload_area_, pool_, *copy_stream_, *compute_) {
  if (job.options().link_gb_per_s == 0) return;
  plain_device_ = make_cpu_device({});  // a link is emulated on the CPU only
  memory_ = plain_device_->make_copy_stream();
}

void LinkProbe::measure(int rounds) {
  const Communicator& world = job_.mesh().job;
  for (int round = 0; round < rounds; ++round) {
    const ModelId model = next_;
    next_ = (next_ + 1) % static_cast<ModelId>(layouts_.size());
    world.barrier();
    rates_.plain.push_back(copy_plain(*copy_stream_, model));
    world.barrier();
    rates_.fetch.push_back(fetch(model));
    world.barrier();
    rates_.memory.push_back(memory_ ? copy_plain(*memory_, model) : rates_.plain.back());
  }
  world.barrier();
}

// A model's pages lie one after the other in host memory, small gaps between them, which are copied too.
double LinkProbe::copy_plain(CopyStream& stream, ModelId model) {
  const std::span<const std::byte> memory = job_.host().memory(model);
  ensure(memory.size() <= static_cast<std::size_t>(most_pages(layouts_)) * job_.plan().page_bytes,
         "a model's pages and what lies between them are larger than all frames");
  const double start = now_s();
  stream.copy_to_device(pool_.base(), memory.data(), memory.size());
  stream.synchronize();
  return static_cast<double>(memory.size()) / (now_s() - start);
}

double LinkProbe::fetch(ModelId model) {
  std::vector<Transfer> fetches;
  std::size_t bytes = 0;  // that cross the link
  for (PageId page = 0; page < static_cast<PageId>(layouts_[model]->pages()); ++page) {
    fetches.push_back({.frame = static_cast<FrameId>(page), .model = model, .place = page});
    bytes += job_.host().page_link_bytes(model, page);
  }
  const double start = now_s();
  swapper_.submit(fetches);
  copy_stream_->synchronize();
  return static_cast<double>(bytes) / (now_s() - start);
}

std::vector<LinkRates> LinkProbe::gather() const {
  ByteWriter out;
  for (const auto* rates : {&rates_.plain, &rates_.fetch, &rates_.memory}) out.put_list(*rates);
  std::vector<LinkRates> all;
  for (const std::vector<std::byte>& bytes : job_.mesh().job.all_gather(out.take())) {
    ByteReader in(bytes);
    LinkRates& rates = all.emplace_back();
    for (auto* list : {&rates.plain, &rates.fetch, &rates.memory}) *list = in.get_list<double>();
  }
  return all;
}

}  // namespace computron
