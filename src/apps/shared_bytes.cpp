#include "src/apps/shared_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>

#include "computron/base/size.h"
#include "computron/checkpoint/index_helper.h"
#include "computron/device/device.h"
#include "computron/model/checkpoint_check.h"
#include "computron/ops/ops.h"
#include "computron/runtime/page_contents.h"
#include "computron/runtime/shared_pages.h"

namespace computron {
namespace {

struct File {
  std::string path;
  CheckpointIndex index;
  ShardPlan plan;
  WeightTypes types = DType::kF32;
  ShardLayout layout = {};
};

File read(const std::string& path) {
  CheckpointIndex index = read_index_apart(path);
  try {
    const ModelConfig config = ModelConfig::from_json(index.config_json);
    check_tensors(config, index);
    const WeightTypes types(config, index);
    return {path, std::move(index), ShardPlan::make(config, {1, 1}, /*stage=*/0), types};
  } catch (const ConfigError& error) {
    const std::string what = error.what();
    throw ConfigError(what.starts_with(path) ? what : fmt::format("{}: {}", path, what));
  }
}

// Of a file, and those of its pages that no earlier one has.
struct Share {
  std::size_t pages = 0, bytes = 0, new_pages = 0, new_bytes = 0;
  Share& operator+=(const Share& other) {
    pages += other.pages;
    bytes += other.bytes;
    new_pages += other.new_pages;
    new_bytes += other.new_bytes;
    return *this;
  }
};

std::vector<Share> shares_of(const std::deque<File>& files) {
  std::vector<const ShardLayout*> layouts;
  for (const File& file : files) layouts.push_back(&file.layout);
  const SharedPages shared(layouts);
  std::vector<Share> shares;
  for (ModelId model = 0; model < layouts.size(); ++model) {
    Share& share = shares.emplace_back();
    for (PageId page = 0; page < static_cast<PageId>(layouts[model]->pages()); ++page) {
      const std::size_t bytes = layouts[model]->used_bytes[page];
      const bool is_new = shared.first({model, page}) == PageRef{model, page};
      share += {1, bytes, is_new ? std::size_t{1} : 0, is_new ? bytes : 0};
    }
  }
  return shares;
}

void print_text(const std::deque<File>& files, const std::vector<Share>& shares, std::size_t page_bytes) {
  fmt::print("pages of {} on one rank, as a CPU lays them out\n", format_size(page_bytes));
  fmt::print("{:>8}{:>14}{:>22}  file\n", "pages", "bytes", "not in those above");
  const auto line = [](const Share& share, const std::string& name) {
    fmt::print("{:>8}{:>14}{:>8}{:>14}  {}\n", share.pages, format_size(share.bytes), share.new_pages,
               format_size(share.new_bytes), name);
  };
  Share all;
  for (std::size_t i = 0; i < files.size(); ++i) {
    line(shares[i], files[i].path);
    all += shares[i];
  }
  line(all, "together");
}

void print_json(const std::deque<File>& files, const std::vector<Share>& shares, std::size_t page_bytes) {
  nlohmann::ordered_json out{{"page_bytes", page_bytes}, {"files", nlohmann::ordered_json::array()}};
  for (std::size_t i = 0; i < files.size(); ++i) {
    out["files"].push_back({{"file", files[i].path},
                            {"pages", shares[i].pages},
                            {"bytes", shares[i].bytes},
                            {"new_pages", shares[i].new_pages},
                            {"new_bytes", shares[i].new_bytes}});
  }
  fmt::print("{}\n", out.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

void show_shared_bytes(const std::vector<std::string>& paths, std::size_t page_bytes, bool json) {
  const std::unique_ptr<WeightFormat> format = make_cpu_weight_format();
  std::deque<File> files;
  std::size_t largest_block = 0;
  for (const std::string& path : paths) {
    const File& file = files.emplace_back(read(path));
    largest_block = std::max(largest_block, ShardLayout::largest_block_bytes(file.plan, *format, file.types));
  }
  if (page_bytes == 0) {
    page_bytes = default_page_bytes(make_cpu_device({})->default_page_bytes(), largest_block, /*common_block=*/1);
  }
  for (File& file : files) {
    file.layout = ShardLayout::make(file.plan, *format, file.types, page_bytes);
    file.layout.contents = page_contents(file.index, file.layout, /*tp=*/1);
  }
  const std::vector<Share> shares = shares_of(files);
  json ? print_json(files, shares, page_bytes) : print_text(files, shares, page_bytes);
}

}  // namespace computron
