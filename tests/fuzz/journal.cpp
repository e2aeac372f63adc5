// Any bytes as a journal and the results beside it (parts of the input, divided by its first two bytes): what is kept
// of the results are whole lines within them, and whoever continues from there finds the same lines done.
#include <cstdint>
#include <string>
#include <string_view>

#include "src/storage/journal_recovery.h"
#include "tests/fuzz/expect.h"

namespace {

using computron::Recovered;
namespace journal = computron::journal;

computron::ReadAt reader_of(const std::string& text) {
  return [&text](std::uint64_t offset, std::size_t count) {
    return offset < text.size() ? text.substr(offset, count) : std::string();
  };
}

// The records as they are, whatever their checks say: otherwise most inputs would end at the first.
std::string with_checks(std::string_view bytes) {
  std::string sound;
  while (bytes.size() > 3) {
    const std::size_t size = bytes[0] & 0xff;
    std::string body(bytes.substr(1, size));
    bytes.remove_prefix(std::min(bytes.size(), size + 1));
    if (!body.empty()) sound += journal::frame(body);
  }
  return sound;
}

void check(const std::string& records, const std::string& results) {
  const Recovered found = computron::recover(reader_of(records), reader_of(results), results.size(), 3);
  expect(found.journal_bytes <= records.size() && found.committed <= found.kept(), "parts of what is there");
  expect(found.kept() <= results.size(), "nothing is kept that is not there");
  expect(found.kept() == 0 || results[found.kept() - 1] == '\n', "whole lines");
  std::string repaired = records.substr(0, found.journal_bytes);
  if (found.header && found.header->version != journal::kVersion) return;
  repaired += journal::encode(journal::Open{.attempt = 9, .epoch = 9, .kept = found.committed, .holder = ""});
  for (const journal::Commit& commit : found.tail) repaired += journal::encode(commit);
  const std::string kept = results.substr(0, found.kept());
  const Recovered again = computron::recover(reader_of(repaired), reader_of(kept), kept.size(), 3);
  expect(again.journal_bytes == repaired.size(), "what was repaired is sound");
  expect(again.kept() == found.kept() && again.committed == found.kept(), "the same results are kept");
  expect(again.history.lines_done() == found.history.lines_done(), "the same lines are done");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t journal_bytes = std::min<std::size_t>(data[0] + 256u * data[1], size - 2);
  const std::string_view records = all.substr(2, journal_bytes);
  const std::string results(all.substr(2 + journal_bytes));
  check(std::string(records), results);
  check(with_checks(records), results);
  return 0;
}
