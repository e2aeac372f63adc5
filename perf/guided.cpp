// What guiding an answer costs beside a decode step (perf/README.md, "Guided"): Markdown tables on stdout.
//
//   perf_guided FOLDER SCHEMAS [STEP_MS]    a folder with a tokenizer's files; lines with "schema" and "valid"
//                                           (tests/fixtures/guided/schemas.jsonl); a decode step of eight sequences
//
// Of each schema: compiling; and the time to find what may come next, before every token of answers that are tokens of
// valid texts, in the first sequence that is guided so (every mask is new) and in the second.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "computron/base/error.h"
#include "computron/base/size.h"
#include "computron/guided/guide.h"
#include "computron/guided/guide_spec.h"
#include "computron/text/tokenizer.h"
#include "kernels/cpu/sample.h"

using namespace computron;

namespace {

constexpr int kRows = 8, kRounds = 5;

// Of this thread: the machine may have other things to do.
double thread_s() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class Work>
double time_of(Work&& work) {
  const double start = thread_s();
  work();
  return thread_s() - start;
}

Tokenizer tokenizer_of(const std::filesystem::path& folder) {
  TokenizerFiles files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"}) {
    std::ifstream in(folder / name, std::ios::binary);
    if (in) files[name] = {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  return Tokenizer(files);
}

std::vector<std::string> texts_of(const Tokenizer& tokenizer) {
  std::vector<std::string> texts(static_cast<std::size_t>(tokenizer.tokens_end()));
  for (TokenId t = 0; t < tokenizer.tokens_end(); ++t) {
    if (!tokenizer.is_special(t)) texts[static_cast<std::size_t>(t)] = tokenizer.token_bytes(t);
  }
  return texts;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}
double at_share(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

// Seconds before each token of the answers.
std::vector<double> mask_times(const std::shared_ptr<Guide>& guide, const std::vector<std::vector<TokenId>>& answers) {
  std::vector<double> times;
  TokenMask mask;
  for (const auto& answer : answers) {
    GuidedText text;
    for (const TokenId token : answer) {
      times.push_back(time_of([&] { text.allow(*guide, {}, mask); }));
      if ((mask[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1) == 0) {
        throw Error(ExitCode::kInternal, "a token of a valid text is not allowed");
      }
      text.append(token);
    }
  }
  return times;
}

// Drawing a token of a row that a mask bans most of, less drawing it of the whole row.
void draw_times(std::size_t vocab, const TokenMask& mask) {
  std::vector<float> logits(vocab), scratch;
  for (std::size_t i = 0; i < vocab; ++i) logits[i] = static_cast<float>((i * 2654435761u) % 1000) * 0.01f;
  RowSampling row{.samples = true, .temperature = 1, .key = 7};
  const auto best = [&] {
    double least = 1;
    for (int i = 0; i < 20; ++i) {
      least =
          std::min(least, time_of([&] { kernels::sample(logits.data(), static_cast<int>(vocab), 0, row, scratch); }));
    }
    return least;
  };
  const double free_s = best();
  row.allowed = mask;
  fmt::print("\nDrawing a token of a row: {:.0f} µs, of a guided one {:.0f} µs.\n", 1e6 * free_s, 1e6 * best());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "perf_guided FOLDER SCHEMAS [STEP_MS]\n");
    return 64;
  }
  const Tokenizer tokenizer = tokenizer_of(argv[1]);
  const double step_ms = argc > 3 ? std::stod(argv[3]) : 52;
  const std::vector<std::string> texts = texts_of(tokenizer);
  std::shared_ptr<const TokenTrie> trie;
  const double trie_s = time_of([&] { trie = std::make_shared<const TokenTrie>(texts, texts.size()); });
  fmt::print("A vocabulary of {} tokens; its tree takes {:.0f} ms, once a model, and {} ({:.0f} bytes a token).\n\n",
             texts.size(), 1e3 * trie_s, format_size(trie->bytes()),
             static_cast<double>(trie->bytes()) / static_cast<double>(texts.size()));
  fmt::print(
      "| schema | states | compiled, ms | tokens | first sequence: mean, p99, most, µs | second: mean, most, µs | "
      "takes |\n");
  fmt::print("|---|---|---|---|---|---|---|\n");
  Encoder encoder(tokenizer);
  std::vector<double> first, second;
  double compile_most_s = 0;
  TokenMask last;
  std::ifstream lines(argv[2]);
  for (std::string line; std::getline(lines, line);) {
    const auto example = nlohmann::ordered_json::parse(line);
    const std::string text = schema_guide(example["schema"].dump());
    std::shared_ptr<const Grammar> grammar;
    double compile_s = 1;
    for (int i = 0; i < kRounds; ++i) compile_s = std::min(compile_s, time_of([&] { grammar = compile_guide(text); }));
    compile_most_s = std::max(compile_most_s, compile_s);
    std::vector<std::vector<TokenId>> answers;
    for (const auto& value : example["valid"]) {
      answers.push_back(encoder.encode(value.dump(), /*special_tokens=*/false));
      answers.push_back(encoder.encode(value.dump(2), /*special_tokens=*/false));
    }
    const auto guide = std::make_shared<Guide>(trie, grammar);
    const auto cold = mask_times(guide, answers), warm = mask_times(guide, answers);
    first.insert(first.end(), cold.begin(), cold.end());
    second.insert(second.end(), warm.begin(), warm.end());
    fmt::print("| {} | {} | {:.2f} | {} | {:.0f}, {:.0f}, {:.0f} | {:.1f}, {:.1f} | {} |\n",
               example["name"].get<std::string>(), grammar->nodes.size(), 1e3 * compile_s, cold.size(),
               1e6 * mean(cold), 1e6 * at_share(cold, 0.99), 1e6 * at_share(cold, 1), 1e6 * mean(warm),
               1e6 * at_share(warm, 1), format_size(guide->bytes()));
    GuidedText().allow(*guide, {}, last);
  }
  const auto share = [&](double row_s) { return 100 * kRows * 1e3 * row_s / step_ms; };
  fmt::print("\nMost for a schema to compile: {:.2f} ms (target 100 ms).\n", 1e3 * compile_most_s);
  fmt::print(
      "Masks of {} rows beside a step of {:.0f} ms: {:.2f} % where every mask is new, {:.3f} % where none is "
      "(target 5 %); {:.2f} % if all rows meet the slowest {:.0f} µs at once.\n",
      kRows, step_ms, share(mean(first)), share(mean(second)), share(at_share(first, 1)), 1e6 * at_share(first, 1));
  draw_times(texts.size(), last);
  return share(mean(first)) <= 5 && compile_most_s <= 0.1 ? 0 : 1;
}
