// Reads requests (JSONL in the OpenAI batch format) beside serving: a thread splits lines in constant memory, parses
// each into a Request or a failure, and queues them for the progress loop. A bad line costs only itself.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "computron/base/digest.h"
#include "computron/base/file_descriptor.h"
#include "computron/guided/guide_spec.h"
#include "computron/requests/model_list.h"
#include "computron/sched/request.h"
#include "computron/storage/line_history.h"
#include "computron/storage/seen_ids.h"
#include "computron/storage/shard.h"
#include "computron/text/chat_format.h"
#include "computron/text/generated_text.h"

namespace computron {

class LineRereader;
class Spool;
struct InputLine;

struct ReaderLimits {
  std::size_t max_line_bytes = std::size_t{8} << 20;
  int max_depth = 64;
  // Parsed lines waiting for the loop, and bytes of their prompts and images; the thread pauses beyond.
  std::size_t max_queued = 4096;
  std::size_t max_queued_bytes = std::size_t{64} << 20;
  int default_max_tokens = 16;
  std::uint64_t seed = 0;      // of requests that draw tokens and give none
  std::string no_guides = {};  // why requests that ask for guided answers are refused; empty: they are served
  Shard shard = {};            // lines of other parts are read for their custom_id only
};

struct RequestFailure {
  int status = 400;
  std::string code;  // invalid_json, invalid_utf8, line_too_long, ...
  std::string message;
};

// The sequences that make a line's result together, in its order: their parts are 0, 1, ...
using RequestParts = std::vector<Request>;

// How a line's tokens become text again.
struct TextOutput {
  struct Prompt {
    std::vector<TokenId> context = {};  // decoding_context() of its tokens
    std::string text = {};              // as given, where it comes back (echo)
  };
  std::shared_ptr<const Tokenizer> tokenizer = {};  // null: tokens are named by their numbers
  StopStrings stops = {};
  std::uint32_t min_tokens = 0;
  std::vector<Prompt> prompts = {};
  std::size_t per_prompt = 1;  // parts
  bool chat = false;
  Reasoning reasoning = Reasoning::kNone;  // how a chat's answer shows its thoughts
  bool include_reasoning = true;           // they come back
  bool echo = false;                       // the prompt comes back in front of each text
  int logprobs = -1;                       // as asked for: the best N of each token; -1: none
  int prompt_logprobs = -1;                // of each token of the prompt; -1: none

  const Prompt& prompt_of(std::size_t part) const { return prompts.at(part / per_prompt); }
};

// What the embeddings, or scores of classes, of a line's parts become in its result.
struct PooledOutput {
  enum Form : std::uint8_t { kEach, kScores, kRanking };  // an entry a part; a score of each pair; documents by score
  Form form = kEach;
  bool base64 = false;     // how an embedding is written
  bool activation = true;  // false: the scores of classes as the model gives them
  int dimensions = 0;      // of an embedding, that are kept; 0: all
  // kScores, kRanking by cosine: so many first parts are first texts, one of all second ones or one of each; 0: each
  // part is a pair, and its score that of the one class.
  std::size_t firsts = 0;
  std::size_t top_n = 0;                    // kRanking: documents that come back; 0: all
  std::vector<std::string> documents = {};  // kRanking: the texts that come back; or empty
};

// A line of the input, by which it can be read again.
struct LinePlace {
  RequestId line = 0;        // 0-based line number, blank lines counted
  std::uint64_t begin = 0;   // of its first byte in the input
  std::uint64_t bytes = 0;   // without the line's end
  std::uint64_t digest = 0;  // of number and bytes: LineHistory::digest_of()
};

// One non-blank input line. The custom_id is known for failures too where the line could be read that far.
struct IncomingRequest {
  RequestId line = 0;  // 0-based line number in the file, blank lines counted
  Digest128 key{};     // of the line's bytes
  LinePlace place = {};
  std::optional<std::string> custom_id;
  std::string model;                                        // as asked for; may be unknown
  PooledOutput pooled = {};                                 // of embeddings and scores
  std::vector<std::vector<TokenId>> prompt_token_ids = {};  // to come back with each prompt's choices; or none
  TextOutput text = {};                                     // of completions
  std::variant<RequestParts, RequestFailure> content;
};

// Parses single lines; keeps the custom_ids it has seen to refuse duplicates, and what it has warned of. Pure
// otherwise.
class RequestParser {
 public:
  // Relative paths of images begin in `image_folder`.
  RequestParser(std::vector<ServedModel> models, ReaderLimits limits, std::string image_folder = ".");
  // `line` without its newline, in which only line 0 may begin with a byte order mark. Whatever is wrong with the line
  // becomes a RequestFailure.
  IncomingRequest parse(RequestId line_number, std::string_view line);
  // A line that was parsed before: its custom_id is no duplicate, and nobody is warned again.
  IncomingRequest parse_again(RequestId line_number, std::string_view line);
  // One for the same job that has seen no line, for another thread.
  RequestParser fresh() const { return {models_, limits_, image_folder_}; }
  // For a line of `bytes` > max_line_bytes, of which only the custom_id was kept, if it was found.
  IncomingRequest refuse_long(RequestId line_number, std::size_t bytes, std::optional<std::string> custom_id);
  // A line that has its result already, or is another shard's: its custom_id counts for duplicates.
  void skip(std::string_view line);
  void skip_long(const std::optional<std::string>& custom_id);
  // So many lines are about to come.
  void expect(std::size_t lines) { seen_ids_.reserve(lines); }

 private:
  enum class Time : std::uint8_t { kFirst, kAgain };
  IncomingRequest parse(RequestId line_number, std::string_view line, Time time);
  RequestParts read(IncomingRequest& incoming, std::string_view line, Time time);
  void warn_unknown_fields(RequestId line_number, const std::vector<std::string>& names);
  void warn_unknown_model(const std::string& name);

  std::vector<ServedModel> models_;
  ReaderLimits limits_;
  std::string image_folder_;
  std::size_t max_prompt_ = 0;                    // tokens; the longest that any model takes
  std::vector<std::optional<Encoder>> encoders_;  // [model] that has a tokenizer
  GuideChecker guides_;
  SeenIds seen_ids_;
  bool warned_unknown_fields_ = false;
  bool warned_unknown_model_ = false;
};

// The same Error{kNoInput} as RequestReader's, before there is one. Reads nothing.
void check_input(const std::string& path);

class RequestReader {
 public:
  // Opens `path` ("-": stdin) and starts the thread. Error{kNoInput} naming `path` unless it is a regular file, or a
  // standard input that is neither a folder nor a terminal. `history` (borrowed) tells which lines are done and not
  // handed out again; a line that is not what it was then is an Error{kData}, one that is done and not of this shard an
  // Error{kConfig}. Standard input goes through `spool`.
  RequestReader(const std::string& path, RequestParser parser, ReaderLimits limits,
                const LineHistory* history = nullptr, std::shared_ptr<Spool> spool = nullptr);
  ~RequestReader();  // stops the thread, also when it waits for input

  // The next request if one is ready; never blocks. Rethrows a reading error (Error{kIo}) once what was read before it
  // has been handed out.
  std::optional<IncomingRequest> poll();
  // True when the input has ended and everything was handed out.
  bool finished();
  // How many bytes standard input had, where it goes through a spool; to be asked once finished().
  std::optional<std::uint64_t> spooled_bytes() const;
  // Reads lines of its input again; lives as long as this does. Null where that is not possible: standard input without
  // a spool.
  LineRereader* rereader() const { return rereader_.get(); }
  // Non-blank lines of the shard seen so far; the total once the input has ended. Those with a result already count.
  std::uint64_t lines_seen() const { return lines_seen_.load(std::memory_order_relaxed); }
  std::uint64_t lines_skipped() const { return lines_skipped_.load(std::memory_order_relaxed); }

 private:
  void run();
  void read_all();
  void check_launcher() const;
  void check_all_there(RequestId lines) const;
  void check_blank(RequestId begin, RequestId end) const;
  bool take(const InputLine& line);
  void skip(const InputLine& line);
  bool take_others(const InputLine& line);
  bool wait_for_input() const;
  bool deliver(IncomingRequest request);

  std::string path_;
  FileDescriptor input_;
  FileDescriptor wake_;  // eventfd: tells the thread to stop while it waits in poll(2)
  RequestParser parser_;
  ReaderLimits limits_;
  const LineHistory* history_;
  std::shared_ptr<Spool> spool_;
  pid_t launcher_;  // that hands on standard input; 0: none
  std::unique_ptr<LineRereader> rereader_;
  RequestId next_line_ = 0;  // the thread's: behind the last that was not blank
  std::atomic<std::uint64_t> lines_seen_{0};
  std::atomic<std::uint64_t> lines_skipped_{0};

  std::mutex mutex_;  // guards what follows
  std::condition_variable space_;
  std::deque<IncomingRequest> queue_;
  std::size_t queued_bytes_ = 0;
  bool ended_ = false;
  bool stopping_ = false;
  std::exception_ptr failure_;

  std::thread thread_;
};

}  // namespace computron
