#include "computron/runtime/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "computron/base/digest.h"

namespace computron {
namespace {

constexpr std::uint32_t kMagic = 0x50455453;  // "STEP"
// Of most messages: beside their chunks, and of a chunk of one token.
constexpr std::size_t kReservedBytes = 512, kBytesOfAToken = 24;

// The texts of guides stand in front of the chunks, once each; a chunk says which by its place there, from 1 on.
constexpr std::uint16_t kNoGuide = 0;
constexpr std::size_t kMostGuides = 0xffff;

using GuideTexts = std::vector<std::shared_ptr<const std::string>>;

// On the side that sends: the texts of a step's chunks in the order in which they come first.
class GuideTable {
 public:
  explicit GuideTable(const std::vector<SequenceChunk>& chunks) {
    for (const SequenceChunk& chunk : chunks) {
      if (chunk.sampling && chunk.sampling->guide) add(*chunk.sampling->guide);
    }
  }

  std::uint16_t place_of(const SamplingParams& p) const { return p.guide ? places_.at(*p.guide) : kNoGuide; }
  void put(ByteWriter& out) const {
    out.put(static_cast<std::uint16_t>(texts_.size()));
    for (const std::string* text : texts_) out.put_string(*text);
  }

 private:
  void add(const std::string& text) {
    if (!places_.try_emplace(text, static_cast<std::uint16_t>(texts_.size() + 1)).second) return;
    ensure(!text.empty() && texts_.size() < kMostGuides, "a step has an empty guide, or too many");
    texts_.push_back(&text);
  }

  std::vector<const std::string*> texts_;  // of the chunks
  std::unordered_map<std::string_view, std::uint16_t> places_;
};

// On the side that receives: chunks share the texts.
GuideTexts get_guides(ByteReader& in) {
  GuideTexts texts;
  const auto count = in.get<std::uint16_t>();
  for (std::uint16_t i = 0; i < count; ++i) {
    texts.push_back(std::make_shared<const std::string>(in.get_string()));
    ensure(!texts.back()->empty(), "a guide of a step is empty");
  }
  return texts;
}

std::shared_ptr<const std::string> guide_at(const GuideTexts& guides, std::uint16_t place) {
  if (place == kNoGuide) return nullptr;
  if (place > guides.size()) {
    throw Error(ExitCode::kInternal,
                fmt::format("internal: a sequence chunk names guide {} of a step with {}", place, guides.size()));
  }
  return guides[place - 1u];
}

// Calls visit(field) for what is sent as it is.
template <class Params, class Visitor>
void for_each_number(Params& p, Visitor&& visit) {
  visit(p.temperature);
  visit(p.top_k);
  visit(p.top_p);
  visit(p.min_p);
  visit(p.repetition_penalty);
  visit(p.frequency_penalty);
  visit(p.presence_penalty);
  visit(p.min_tokens);
  visit(p.prompt_tokens);
  visit(p.key);
}

void put(ByteWriter& out, const SamplingParams& p, const GuideTable& guides) {
  for_each_number(p, [&out](const auto& number) { out.put(number); });
  out.put_list(p.stop_tokens);
  out.put(static_cast<std::uint32_t>(p.logit_bias.size()));
  for (const auto& [token, bias] : p.logit_bias) {
    out.put(token);
    out.put(bias);
  }
  out.put(guides.place_of(p));
  out.put_list(p.generated);
}

SamplingParams get_sampling(ByteReader& in, const GuideTexts& guides) {
  SamplingParams p;
  for_each_number(p, [&in]<class T>(T& number) { number = in.get<T>(); });
  p.stop_tokens = in.get_list<TokenId>();
  const auto biases = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < biases; ++i) {
    const auto token = in.get<TokenId>();
    p.logit_bias.emplace_back(token, in.get<float>());
  }
  p.guide = guide_at(guides, in.get<std::uint16_t>());
  p.generated = in.get_list<TokenId>();
  return p;
}

// What a chunk has beside its sequence, start and output: a byte in front says which. Most chunks of most steps are one
// token of a sequence that generates, and have nothing of it.
enum Part : std::uint8_t {
  kTokens = 1,  // not just one
  kNewBlocks = 2,
  kTop = 4,
  kAfterLast = 8,
  kValues = 16,
  kSampling = 32,
  kTokenTypes = 64,
  kPatches = 128,
};

constexpr std::uint8_t kLongFactors = 128, kRider = 64;  // in the byte of the output

std::uint8_t parts_of(const SequenceChunk& c, bool first_stage) {
  int parts = 0;
  if (c.tokens.size() != 1) parts |= kTokens;
  if (!c.new_blocks.empty()) parts |= kNewBlocks;
  if (c.top != 0) parts |= kTop;
  if (c.after_last != -1) parts |= kAfterLast;
  if (c.values != 0) parts |= kValues;
  if (c.sampling) parts |= kSampling;
  if (!c.token_type_ids.empty()) parts |= kTokenTypes;
  if (!c.patches.empty() && first_stage) parts |= kPatches;
  return static_cast<std::uint8_t>(parts);
}

void put(ByteWriter& out, const SequenceChunk& c, const GuideTable& guides, bool first_stage) {
  const std::uint8_t parts = parts_of(c, first_stage);
  out.put(parts);
  out.put(c.sequence);
  out.put(c.start);
  out.put(static_cast<std::uint8_t>(c.output | (c.long_factors ? kLongFactors : 0) | (c.rider ? kRider : 0)));
  if (c.rider) out.put(*c.rider);
  (parts & kTokens) != 0 ? out.put_list(c.tokens) : out.put(c.tokens.front());
  if ((parts & kNewBlocks) != 0) out.put_list(c.new_blocks);
  if ((parts & kTop) != 0) out.put(c.top);
  if ((parts & kAfterLast) != 0) out.put(c.after_last);
  if ((parts & kValues) != 0) out.put(c.values);
  if ((parts & kSampling) != 0) put(out, *c.sampling, guides);
  if ((parts & kTokenTypes) != 0) out.put_list(c.token_type_ids);
  if ((parts & kPatches) != 0) out.put_list(c.patches);
}

SequenceChunk get_chunk(ByteReader& in, const GuideTexts& guides) {
  SequenceChunk c;
  const auto parts = in.get<std::uint8_t>();
  c.sequence = in.get<SequenceId>();
  c.start = in.get<std::uint32_t>();
  const auto output = in.get<std::uint8_t>();
  c.output = static_cast<SequenceChunk::Output>(output & ~(kLongFactors | kRider));
  c.long_factors = (output & kLongFactors) != 0;
  if ((output & kRider) != 0) c.rider = in.get<ModelId>();
  c.tokens = (parts & kTokens) != 0 ? in.get_list<TokenId>() : std::vector{in.get<TokenId>()};
  if ((parts & kNewBlocks) != 0) c.new_blocks = in.get_list<std::uint32_t>();
  if ((parts & kTop) != 0) c.top = in.get<std::uint8_t>();
  if ((parts & kAfterLast) != 0) c.after_last = in.get<TokenId>();
  if ((parts & kValues) != 0) c.values = in.get<std::uint32_t>();
  if ((parts & kSampling) != 0) c.sampling = get_sampling(in, guides);
  if ((parts & kTokenTypes) != 0) c.token_type_ids = in.get_list<std::int32_t>();
  if ((parts & kPatches) != 0) c.patches = in.get_list<float>();
  ensure(c.output <= SequenceChunk::kScores && !c.tokens.empty(), "sequence chunk out of range");
  ensure(c.token_type_ids.empty() || c.token_type_ids.size() == c.tokens.size(), "a token lacks its segment");
  return c;
}

void put(ByteWriter& out, const StagePlan& plan) {
  out.put(static_cast<std::uint32_t>(plan.caches.size()));
  for (const CacheChange& change : plan.caches) {
    out.put(change.model);
    out.put(change.taken);
    out.put_list(change.added);
    out.put(change.kind);
    out.put_list(change.slots);
    out.put(change.after.step);
    out.put(change.after.use);
  }
  out.put(static_cast<std::uint32_t>(plan.fetches.size()));
  for (const Fetch& f : plan.fetches) {
    out.put(f.model);
    out.put(f.page);
    out.put(f.frame);
    out.put(f.after.step);
    out.put(f.after.use);
  }
}

StagePlan get_plan(ByteReader& in) {
  StagePlan plan;
  const auto changes = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < changes; ++i) {
    CacheChange change;
    change.model = in.get<ModelId>();
    change.taken = in.get<std::uint32_t>();
    change.added = in.get_list<FrameId>();
    change.kind = in.get<CacheChange::Kind>();
    ensure(change.kind <= CacheChange::kDropOffloaded, "unknown kind of cache change");
    change.slots = in.get_list<HostSlot>();
    change.after.step = in.get<StepId>();
    change.after.use = in.get<PageUse>();
    plan.caches.push_back(std::move(change));
  }
  const auto fetches = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < fetches; ++i) {
    Fetch f;
    f.model = in.get<ModelId>();
    f.page = in.get<PageId>();
    f.frame = in.get<FrameId>();
    f.after.step = in.get<StepId>();
    f.after.use = in.get<PageUse>();
    plan.fetches.push_back(f);
  }
  return plan;
}

bool is_encoded(const SequenceChunk& c) {
  return c.output == SequenceChunk::kPooledEmbedding || c.output == SequenceChunk::kScores;
}

}  // namespace

int Step::logit_rows() const {
  int rows = 0;
  for (const SequenceChunk& c : chunks) {
    if (c.output == SequenceChunk::kLast) rows += 1;
    if (c.output == SequenceChunk::kAll) rows += static_cast<int>(c.tokens.size());
  }
  return rows;
}

int Step::encoded_rows() const { return static_cast<int>(std::count_if(chunks.begin(), chunks.end(), is_encoded)); }

std::size_t Step::encoded_values() const {
  return std::accumulate(chunks.begin(), chunks.end(), std::size_t{0},
                         [](std::size_t sum, const SequenceChunk& c) { return sum + (is_encoded(c) ? c.values : 0); });
}

int Step::rows() const {
  return std::accumulate(chunks.begin(), chunks.end(), 0,
                         [](int sum, const SequenceChunk& c) { return sum + static_cast<int>(c.tokens.size()); });
}

std::vector<ModelChunks> Step::by_model() const {
  std::vector<ModelChunks> models;
  for (std::size_t first = 0, end = 0; first < chunks.size(); first = end) {
    const ModelId of = model_of(chunks[first]);
    while (end < chunks.size() && model_of(chunks[end]) == of) ++end;
    models.push_back({of, std::span(chunks).subspan(first, end - first)});
  }
  return models;
}

std::vector<std::byte> Step::encode(int stage) const {
  ByteWriter out;
  out.reserve(kReservedBytes + kBytesOfAToken * chunks.size());
  out.put(kMagic);
  out.put(id);
  out.put(kind);
  out.put(model);
  out.put(predicted_s);
  out.put_list(closed);
  const GuideTable guides(chunks);
  guides.put(out);
  out.put(static_cast<std::uint32_t>(chunks.size()));
  for (const SequenceChunk& chunk : chunks) put(out, chunk, guides, stage == 0);
  put(out, stages.empty() ? StagePlan{} : stages[stage]);
  return out.take();
}

Step Step::decode(std::span<const std::byte> bytes, int stage, int stages) {
  ByteReader in(bytes);
  ensure(in.get<std::uint32_t>() == kMagic, "message is not a step");
  Step step;
  step.digest = digest64(bytes);
  step.id = in.get<StepId>();
  step.kind = in.get<Kind>();
  ensure(step.kind <= kStop, "unknown kind of step");
  step.model = in.get<ModelId>();
  step.predicted_s = in.get<float>();
  step.closed = in.get_list<SequenceId>();
  const GuideTexts guides = get_guides(in);
  const auto chunks = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < chunks; ++i) step.chunks.push_back(get_chunk(in, guides));
  step.stages.resize(stages);
  step.stages[stage] = get_plan(in);
  in.expect_end();
  return step;
}

}  // namespace computron
