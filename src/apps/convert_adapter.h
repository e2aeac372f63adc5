// What `computron convert` does with adapters: from PEFT's files to an adapter's checkpoint, and from that and its base
// to a merged model.
#pragma once

#include <string>

namespace computron {

struct AdapterFiles {
  std::string base;     // checkpoint of the model
  std::string adapter;  // PEFT's folder, or an adapter's checkpoint
  std::string output;
  int threads = 1;
};

// Error as PeftAdapter, and of the base's file.
void convert_adapter(const AdapterFiles& files);
// Error as check_adapter_fits(); ConfigError if the base is quantised.
void merge_adapter(const AdapterFiles& files);

}  // namespace computron
