#include <algorithm>
#include <array>

#include "computron/base/utf8.h"
#include "src/text/text_finder.h"
#include "src/text/token_model.h"
#include "src/text/work_limit.h"

namespace computron {
namespace {

constexpr double kUnknownPenalty = 10;  // below the lowest score

class UnigramModel : public TokenModel {
 public:
  UnigramModel(const Vocabulary& vocabulary, UnigramOptions options)
      : options_(std::move(options)), ids_(vocabulary.all()) {
    check_finder_size(vocabulary, "Unigram");
    for (const auto& [text, id] : ids_) finder_.add(text, static_cast<std::size_t>(id));
    unknown_score_ = *std::min_element(options_.scores.begin(), options_.scores.end()) - kUnknownPenalty;
    for (unsigned byte = 0; byte < 256; ++byte) {
      byte_tokens_[byte] = vocabulary.id_of(byte_token(static_cast<unsigned char>(byte)));
    }
  }

  void encode(std::string_view word, EncodeScratch& scratch, std::vector<TokenId>& out) const override {
    if (scratch.cache.find(word, out)) return;
    const std::size_t before = out.size();
    find_best_ways(word, scratch.ways);
    trace_back(word, scratch);
    for (; !scratch.pieces.empty(); scratch.pieces.pop_back()) put(word, scratch.pieces.back(), out);
    scratch.cache.put(word, out.data() + before, out.size() - before);
  }

 private:
  using Way = EncodeScratch::Way;
  using Piece = EncodeScratch::Piece;

  // Viterbi: ways[end] is the last token of the best way to there. Of ways that are as good the one whose last token
  // begins first counts.
  void find_best_ways(std::string_view word, std::vector<Way>& ways) const {
    ways.assign(word.size() + 1, Way{});
    for (std::size_t begin = 0; begin < word.size();) {
      WorkLimit::check();
      std::size_t end_of_character = begin;
      next_character(word, end_of_character);
      bool stands_alone = false;
      finder_.each_at(word, begin, [&](std::size_t end, std::size_t token) {
        offer(ways, begin, end, static_cast<TokenId>(token), options_.scores[token]);
        stands_alone = stands_alone || end == end_of_character;
      });
      if (!stands_alone) offer(ways, begin, end_of_character, options_.unknown, unknown_score_);
      begin = end_of_character;
    }
  }

  static void offer(std::vector<Way>& ways, std::size_t begin, std::size_t end, TokenId token, double score) {
    const double sum = score + ways[begin].score;
    Way& way = ways[end];
    if (way.token == kNoToken || sum > way.score) way = {sum, static_cast<std::uint32_t>(end - begin), token};
  }

  // The pieces of the best way, the last one first; a run of unknown ones is one.
  void trace_back(std::string_view word, EncodeScratch& scratch) const {
    scratch.pieces.clear();
    for (std::size_t end = word.size(); end > 0;) {
      const Way& way = scratch.ways[end];
      const std::size_t begin = end - way.bytes;
      const bool fuses =
          way.token == options_.unknown && !scratch.pieces.empty() && scratch.pieces.back().token == options_.unknown;
      if (!fuses) scratch.pieces.push_back({{begin, end}, way.token});
      scratch.pieces.back().range.begin = begin;
      end = begin;
    }
  }

  void put(std::string_view word, const Piece& piece, std::vector<TokenId>& out) const {
    if (piece.token != options_.unknown) {
      out.push_back(piece.token);
      return;
    }
    const std::string_view text = word.substr(piece.range.begin, piece.range.size());
    const auto whole = ids_.find(text);
    if (whole != ids_.end()) {
      out.push_back(whole->second);
    } else if (has_byte_tokens(text)) {
      for (const char c : text) out.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
    } else {
      out.push_back(options_.unknown);
    }
  }

  bool has_byte_tokens(std::string_view text) const {
    return options_.byte_fallback && std::all_of(text.begin(), text.end(), [this](char c) {
             return byte_tokens_[static_cast<unsigned char>(c)] != kNoToken;
           });
  }

  UnigramOptions options_;
  TokensByText ids_;
  TextFinder finder_;
  double unknown_score_ = 0;
  std::array<TokenId, 256> byte_tokens_{};
};

}  // namespace

std::unique_ptr<TokenModel> make_unigram_model(const Vocabulary& vocabulary, UnigramOptions options) {
  return std::make_unique<UnigramModel>(vocabulary, std::move(options));
}

}  // namespace computron
