// How fast one core turns text into tokens and back (perf/README.md, "Tokenizers"): a Markdown table on stdout.
//
//   perf_tokenizers TEXT FOLDER...     a text file; folders with tokenizers' files
//
// The text goes in pieces of 4 KiB, as prompts do, once through a new encoder, so that its cache of words begins empty.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "computron/base/time.h"
#include "computron/text/tokenizer.h"

using namespace computron;

namespace {

constexpr std::size_t kPieceBytes = 4096;
constexpr int kRounds = 5;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(ExitCode::kNoInput, fmt::format("cannot read {}", path.string()));
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Tokenizer tokenizer_of(const std::filesystem::path& folder) {
  TokenizerFiles files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "vocab.txt"}) {
    if (std::filesystem::exists(folder / name)) files[name] = read_file(folder / name);
  }
  return Tokenizer(files);
}

// Cut behind lines, so that characters stay whole.
std::vector<std::string> pieces_of(const std::string& text) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t line = text.find('\n', at + kPieceBytes);
    const std::size_t end = line == std::string::npos ? text.size() : line + 1;
    pieces.push_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

struct Timings {
  double encode_s = 1e9, decode_s = 1e9;  // the best of the rounds
  std::size_t tokens = 0;
};

Timings measure(const Tokenizer& tokenizer, const std::vector<std::string>& pieces) {
  Timings timings;
  for (int round = 0; round < kRounds; ++round) {
    Encoder encoder(tokenizer);
    std::vector<std::vector<TokenId>> encoded;
    const double start = now_s();
    for (const std::string& piece : pieces) encoded.push_back(encoder.encode(piece));
    const double half = now_s();
    std::size_t bytes = 0;
    for (const auto& tokens : encoded) bytes += tokenizer.decode(tokens).size();
    const double end = now_s();
    timings.encode_s = std::min(timings.encode_s, half - start);
    timings.decode_s = std::min(timings.decode_s, end - half);
    timings.tokens = 0;
    for (const auto& tokens : encoded) timings.tokens += tokens.size();
    ensure(bytes > 0, "text became nothing");
  }
  return timings;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) throw Error(ExitCode::kUsage, "perf_tokenizers TEXT FOLDER...");
  const std::string text = read_file(argv[1]);
  const std::vector<std::string> pieces = pieces_of(text);
  fmt::print(
      "| tokenizer | tokens in it | text, MB | bytes a token | encode, MB/s | decode, MB/s "
      "|\n|---|---|---|---|---|---|\n");
  for (int i = 2; i < argc; ++i) {
    const Tokenizer tokenizer = tokenizer_of(argv[i]);
    const Timings timings = measure(tokenizer, pieces);
    const double megabytes = 1e-6 * static_cast<double>(text.size());
    fmt::print("| {} | {} | {:.1f} | {:.2f} | {:.1f} | {:.1f} |\n", std::filesystem::path(argv[i]).filename().string(),
               tokenizer.tokens_end(), megabytes, 1e6 * megabytes / static_cast<double>(timings.tokens),
               megabytes / timings.encode_s, megabytes / timings.decode_s);
  }
} catch (const Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return static_cast<int>(error.code());
}
