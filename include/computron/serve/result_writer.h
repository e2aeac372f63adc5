// Writes results (JSONL in the OpenAI batch output format) beside serving, a line a request, in completion order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "computron/base/file_descriptor.h"
#include "computron/sched/request.h"
#include "computron/serve/request_reader.h"

namespace computron {

// One result line, without the newline.
//   {"id": "batch_req_<line>", "custom_id": ..., "response": {"status_code": 200, "request_id": "req_<line>",
//    "body": {...}}, "error": null}
// A completion's body is interface.md's: id, object, model, choices[{index, text, token_ids, finish_reason, logprobs}],
// usage. With echo the prompt comes first in text, token_ids and logprobs. Several prompts have their choices one after
// the other, `n` each. `text` is empty where the checkpoint carries no tokenizer; a token's string in logprobs is then
// "token:<id>", and else what it adds to a text, or "bytes:\x.." if that is no whole character; text_offset counts
// characters of `text`. A stop string ends the text before it and is a part of token_ids, logprobs and usage. A chat's
// body is OpenAI's chat.completion, with token_ids. Log-probabilities are the shortest decimals that read
// back as the same float32; minus infinity is written as -9999, as vLLM does.
// An embedding's body is OpenAI's: {object: list, data: [{object: embedding, index, embedding}], model, usage}; a
// classification's is vLLM's: {id, object: list, created: 0, model, data: [{index, label, probs, num_classes}], usage},
// probs the softmax of the scores. Vectors are decimals like those above, or base64 of little-endian float32.
// A request that failed has status_code 4xx (500 for numerical_error), body null and error {code, message, line};
// <line> and `line` are the 0-based line number in the input. `parts`: the completions of all parts of the request, in
// their order; one that failed fails the line. `request` holds its RequestParts, of which task and logprobs are looked
// at; `config` is its model's.
std::string format_result(const IncomingRequest& request, std::span<const Completion> parts, const ModelConfig& config);
std::string format_failure(const IncomingRequest& request, const RequestFailure& failure);

// Lines go to OUT.partial; finish() renames it to OUT, so that OUT's existence means that it is complete.
class ResultWriter {
 public:
  // Error{kCannotCreate} or {kPermission} naming the path: parent missing, a directory, a symlink, the input itself.
  // Truncates an OUT.partial that an earlier run left; an earlier OUT stays until finish() replaces it.
  ResultWriter(const std::string& path, const std::string& input_path,
               std::size_t max_queued_bytes = std::size_t{64} << 20);
  ~ResultWriter();  // writes what is queued, leaves OUT.partial

  // Queues a line; blocks only while more than `max_queued_bytes` wait for the disk. Throws like check().
  void write(std::string line);
  // Bytes waiting; the engine stops admitting work while it is high.
  std::size_t queued_bytes();
  // Throws the thread's error, if it has one (Error{kIo} with path, cause and bytes written). Never blocks.
  void check();
  // Writes everything out, fsyncs, renames, fsyncs the folder. Call once, last. Error{kIo} leaves OUT.partial.
  void finish();
  // Lines that have reached the file.
  std::uint64_t lines_written();

 private:
  void run();
  void write_queued(std::unique_lock<std::mutex>& lock);
  void stop();

  std::string path_;
  std::string partial_path_;
  FileDescriptor fd_;
  std::size_t max_queued_bytes_;
  std::uint64_t bytes_written_ = 0;  // the thread's own

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_;
  std::condition_variable space_;
  std::deque<std::string> queue_;
  std::size_t queued_bytes_ = 0;
  std::uint64_t lines_written_ = 0;
  bool stopping_ = false;
  std::exception_ptr failure_;

  std::thread thread_;
};

}  // namespace computron
