// What earlier attempts of a job did with each line of its input: read, done, suspected. Fixed once the job runs.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "computron/base/digest.h"
#include "computron/base/types.h"

namespace computron {

class LineHistory {
 public:
  // The line was read, and these were its bytes (XXH3-128, of which half is kept).
  void note(RequestId line, const Digest128& key);
  // Its result is there, or not any more.
  void set_done(RequestId line, bool done);
  // It was running when the job went down so often that it must run by itself; or did so even then.
  void suspect(RequestId line) { suspects_.insert(line); }
  void give_up(RequestId line) { given_up_.insert(line); }

  bool known(RequestId line) const;
  // False if the line was read before, and was another one then.
  bool fits(RequestId line, const Digest128& key) const;
  bool done(RequestId line) const;
  bool suspected(RequestId line) const { return suspects_.contains(line); }
  bool given_up(RequestId line) const { return given_up_.contains(line); }

  std::uint64_t lines_done() const { return lines_done_; }
  std::uint64_t lines_known() const { return lines_known_; }
  // Of all lines that are known: the sum of their own digests.
  std::uint64_t digest() const { return digest_; }
  static std::uint64_t digest_of(RequestId line, const Digest128& key);
  std::optional<RequestId> last_known() const;

 private:
  struct Line {
    std::uint64_t key = 0;
    bool known = false;
    bool done = false;
  };
  static constexpr std::size_t kBlock = 1024;
  using Block = std::array<Line, kBlock>;

  const Line* find(RequestId line) const;

  std::map<RequestId, Block> blocks_;  // by line ÷ kBlock: 16 bytes a line
  std::set<RequestId> suspects_, given_up_;
  std::uint64_t lines_done_ = 0, lines_known_ = 0, digest_ = 0;
};

}  // namespace computron
