// The models of a job: `--model ID=FILE.h5 ...` or `--models FILE.json`.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "computron/model/config.h"
#include "computron/sched/request.h"
#include "computron/text/chat_format.h"
#include "computron/text/tokenizer.h"

namespace computron {

struct ModelEntry {
  std::string id;            // [A-Za-z0-9._/-]{1,128}, unique
  std::string path;          // several ids may name one file
  std::string adapter = {};  // file of an adapter that is computed beside the model in `path`; empty: none
  bool pinned = false;
  int priority = 0;
  double slo_s = 0;              // deadline of requests that give none: seconds after their arrival; 0: none
  std::string chat_format = {};  // by name; empty: the checkpoint's, or its tokenizer's
  std::optional<ChatFormat::Date> chat_date = {};  // that chat templates take for today
};

bool is_model_id(std::string_view id);
// Each item is "ID=FILE.h5", or "ID=BASE.h5+ADAPTER.h5"; where names have ".h5+" in them, files that are there decide.
// Error{kUsage} naming the item.
std::vector<ModelEntry> parse_model_arguments(const std::vector<std::string>& items);
// A JSON list of {"id", "path", "adapter"?, "pinned"?, "priority"?, "slo"?, "chat_format"?}; relative paths are
// relative to the list's folder. Error{kNoInput} or {kUsage} naming file, entry and key.
std::vector<ModelEntry> read_model_list(const std::string& file);

// What the front end knows of a loaded model.
struct ServedModel {
  std::string id;
  ModelConfig config;
  std::shared_ptr<const Tokenizer> tokenizer = {};  // null: only token ids are taken
  std::string tokenizer_fault = {};                 // why it has none; empty: its checkpoint carries none
  double deadline_s = kNoDeadline;                  // of requests that give none (Request)
  std::string chat_format = {};                     // asked for by name; empty: the tokenizer's own
  std::optional<ChatFormat::Date> chat_date = {};   // ModelEntry's
  std::shared_ptr<const ChatFormat> chat = {};      // null: conversations are refused
  std::string chat_fault = {};                      // why
};

}  // namespace computron
