// The header of a record of one group, two ranks a stage, whose models are a page each.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "computron/dispatch/job_record.h"

namespace computron::test {

inline RecordHeader one_page_header(std::vector<std::string> models, bool shares_prefixes = false) {
  RecordHeader header;
  header.models = std::move(models);
  ShardLayout& layout = header.layouts.emplace_back();
  layout.page_bytes = 4096;
  layout.used_bytes = {4096};
  layout.uses = {0};
  layout.over_before = {-1};
  RecordHeader::Group& group = header.groups.emplace_back();
  group.tp = 2;
  group.options.prefix_caching = shares_prefixes;
  for (ModelId model = 0; model < header.models.size(); ++model) {
    group.models.push_back({.job_model = model, .layouts = {0}});
  }
  return header;
}

}  // namespace computron::test
