#include "computron/sched/sequence.h"

#include <gmock/gmock.h>

#include <cmath>

namespace computron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr int kBlock = 4;

CacheBlocks blocks_of(int count, bool keeps = false) {
  CacheBlocks blocks(kBlock, keeps);
  blocks.resize(count);
  return blocks;
}

Request make_request(std::vector<TokenId> prompt, int max_tokens) {
  return {
      .id = 9, .model = 1, .prompt = std::move(prompt), .max_tokens = max_tokens, .stop_tokens = {}, .arrival_s = 0.5};
}

SampledRow row(TokenId token, float logprob = -1, float target_logprob = 0) {
  SampledRow r{.token = token, .logprob = logprob, .target_logprob = target_logprob, .top = {}};
  for (int k = 0; k < 5; ++k) r.top.emplace_back(token + k, logprob - static_cast<float>(k));
  return r;
}

std::vector<TokenId> tokens_of(const std::vector<ScoredToken>& scored) {
  std::vector<TokenId> tokens;
  for (const ScoredToken& token : scored) tokens.push_back(token.token);
  return tokens;
}

// A sequence with blocks enough, driven by hand.
struct Drive {
  explicit Drive(Request request, std::vector<TokenId> eos = {2}) : sequence(std::move(request), 1, eos) {}

  SequenceChunk chunk(int max_tokens = 100) { return sequence.next_chunk(max_tokens, blocks); }
  // Rows that the sequence did not consume.
  std::size_t rows(std::vector<SampledRow> list, double now_s = 1) {
    PassResults left{.rows = list};
    sequence.take_results(left, now_s);
    return left.rows.size();
  }
  // One decode step.
  void sample(TokenId token, double now_s = 1) {
    chunk();
    rows({row(token)}, now_s);
  }
  Completion end() {
    EXPECT_TRUE(sequence.finished());
    return sequence.take_completion();
  }

  CacheBlocks blocks = blocks_of(20);
  Sequence sequence;
};

TEST(Sequence, ThePromptIsOneChunkAndEveryTokenAnother) {
  Drive d(make_request({5, 6, 7}, 3));
  const SequenceChunk prompt = d.chunk();
  EXPECT_EQ(prompt.sequence, 1u);
  EXPECT_EQ(prompt.start, 0u);
  EXPECT_THAT(prompt.tokens, ElementsAre(5, 6, 7));
  EXPECT_EQ(prompt.output, SequenceChunk::kLast);
  EXPECT_EQ(prompt.top, 0);
  EXPECT_EQ(prompt.after_last, -1);
  EXPECT_EQ(d.rows({row(11)}), 0u);

  const SequenceChunk next = d.chunk();
  EXPECT_EQ(next.start, 3u);
  EXPECT_THAT(next.tokens, ElementsAre(11));
  EXPECT_EQ(next.output, SequenceChunk::kLast);
  EXPECT_EQ(d.rows({row(12)}), 0u);
  EXPECT_EQ(d.sequence.pending_tokens(), 1);
}

TEST(Sequence, ALongPromptComesInPiecesAndOnlyTheLastHasLogits) {
  Drive d(make_request({1, 3, 4, 5, 6, 7, 8}, 2));
  const SequenceChunk first = d.chunk(3);
  EXPECT_THAT(first.tokens, ElementsAre(1, 3, 4));
  EXPECT_EQ(first.output, SequenceChunk::kNone);
  EXPECT_EQ(d.rows({row(99)}), 1u) << "a row of another sequence";
  const SequenceChunk second = d.chunk(3);
  EXPECT_EQ(second.start, 3u);
  EXPECT_THAT(second.tokens, ElementsAre(5, 6, 7));
  EXPECT_EQ(second.output, SequenceChunk::kNone);
  d.rows({});
  const SequenceChunk third = d.chunk(3);
  EXPECT_THAT(third.tokens, ElementsAre(8));
  EXPECT_EQ(third.output, SequenceChunk::kLast);
  EXPECT_EQ(d.rows({row(11), row(12)}), 1u);
  EXPECT_THAT(d.chunk(3).tokens, ElementsAre(11));
}

TEST(Sequence, BlocksJoinAsTheSequenceGrows) {
  Drive d(make_request({1, 3, 4, 5, 6}, 5));
  d.blocks.allocate();
  EXPECT_THAT(d.chunk(4).new_blocks, ElementsAre(1));
  d.rows({});
  EXPECT_THAT(d.chunk(4).new_blocks, ElementsAre(2));
  d.rows({row(11)});
  for (const TokenId token : {12, 13, 14}) {  // positions 5, 6, 7 of the second block
    EXPECT_THAT(d.chunk().new_blocks, IsEmpty());
    d.rows({row(token)});
  }
  EXPECT_THAT(d.chunk().new_blocks, ElementsAre(3));
  EXPECT_THAT(d.sequence.blocks(), ElementsAre(1, 2, 3));
  EXPECT_EQ(d.blocks.available(), 16);
}

TEST(Sequence, BlocksRunningOutIsAnError) {
  Drive d(make_request({1, 3, 4, 5, 6}, 5));
  d.blocks = blocks_of(1);
  EXPECT_THROW(d.chunk(), Error);
}

TEST(Sequence, NeedsCacheForAllButTheLastToken) {
  EXPECT_EQ(make_request({1, 3, 4}, 5).cache_tokens(), 7);
  EXPECT_EQ(make_request({1, 3, 4}, 1).cache_tokens(), 3);
  EXPECT_EQ(make_request({1, 3, 4}, 0).cache_tokens(), 3);
}

TEST(Sequence, OneStepAtATime) {
  Drive d(make_request({5}, 3));
  EXPECT_FALSE(d.sequence.in_flight());
  d.chunk();
  EXPECT_TRUE(d.sequence.in_flight());
  EXPECT_THROW(d.chunk(), Error);
  d.rows({row(11)});
  EXPECT_FALSE(d.sequence.in_flight());
}

TEST(Sequence, CatchesUpWhenItHasComputedMoreThanItLost) {
  Drive drive(make_request({5, 6, 7}, 5));
  drive.sample(10);
  drive.sample(11);  // four tokens computed
  EXPECT_FALSE(drive.sequence.catching_up());
  drive.sequence.restart(2);
  EXPECT_TRUE(drive.sequence.catching_up());
  drive.chunk(2);
  drive.rows({});
  drive.sequence.restart(3);  // again, half way
  drive.chunk(4);
  drive.rows({});
  EXPECT_TRUE(drive.sequence.catching_up()) << "as far as before is no progress";
  drive.sample(12);
  EXPECT_FALSE(drive.sequence.catching_up());
}

TEST(Sequence, EndsAtMaxTokens) {
  Drive d(make_request({5, 6}, 2));
  d.sample(11, 1.5);
  EXPECT_FALSE(d.sequence.finished());
  d.sample(12, 2.5);
  const Completion c = d.end();
  EXPECT_THAT(tokens_of(c.tokens), ElementsAre(11, 12));
  EXPECT_EQ(c.finish_reason, FinishReason::kLength);
  EXPECT_EQ(c.id, 9u);
  EXPECT_EQ(c.model, 1u);
  EXPECT_EQ(c.prompt_tokens, 2);
  EXPECT_EQ(c.generated_tokens, 2);
  EXPECT_THAT(c.prompt, IsEmpty());
  EXPECT_EQ(c.arrival_s, 0.5);
  EXPECT_EQ(c.first_token_s, 1.5);
  EXPECT_EQ(c.error_code, "");
  EXPECT_FALSE(c.tokens[0].has_logprob);
  EXPECT_THAT(c.tokens[0].top, IsEmpty());
}

TEST(Sequence, EndOfSequenceStopsAndIsNotGivenBack) {
  Drive d(make_request({5}, 10), {2, 3});
  d.sample(11);
  d.sample(3);
  const Completion c = d.end();
  EXPECT_THAT(tokens_of(c.tokens), ElementsAre(11));
  EXPECT_EQ(c.finish_reason, FinishReason::kStop);
  EXPECT_EQ(c.generated_tokens, 2) << "the stopping token cost a step";
}

TEST(Sequence, StopTokensStopLikeEndOfSequence) {
  Request request = make_request({5}, 10);
  request.stop_tokens = {40};
  Drive stopped(request);
  stopped.sample(40);
  EXPECT_EQ(stopped.end().finish_reason, FinishReason::kStop);
  Drive ended(request);
  ended.sample(2);
  EXPECT_EQ(ended.end().finish_reason, FinishReason::kStop);
}

TEST(Sequence, IgnoredEndOfSequenceIsATokenLikeOthersButStopTokensStillStop) {
  Request request = make_request({5}, 10);
  request.ignore_eos = true;
  request.stop_tokens = {40};
  Drive d(request);
  d.sample(2);
  EXPECT_FALSE(d.sequence.finished());
  d.sample(40);
  EXPECT_THAT(tokens_of(d.end().tokens), ElementsAre(2));
}

TEST(Sequence, AStopAtTheLastAllowedTokenIsAStop) {
  Drive d(make_request({5}, 1));
  d.sample(2);
  EXPECT_EQ(d.end().finish_reason, FinishReason::kStop);
}

// A stop token in the prompt ends nothing.
// Ends a sequence at a token and notes what it sees.
struct NotedTokens : TokenWatch {
  bool ends_with(TokenId token) override {
    seen.push_back(token);
    return token == 12;
  }
  std::vector<TokenId> seen;
};

TEST(Sequence, AWatchSeesEveryTokenOnceAndEndsItWithOne) {
  const auto watch = std::make_shared<NotedTokens>();
  Request request = make_request({12}, 9);
  request.watch = watch;
  Drive d(request);
  d.sample(10);
  d.sequence.restart(2);  // its cache is gone: the tokens stay
  d.chunk();
  d.rows({row(11)});
  d.sample(12);
  const Completion completion = d.end();
  EXPECT_THAT(watch->seen, ElementsAre(10, 11, 12));
  EXPECT_THAT(tokens_of(completion.tokens), ElementsAre(10, 11, 12));
  EXPECT_EQ(completion.finish_reason, FinishReason::kStop);
  EXPECT_EQ(completion.generated_tokens, 3);
}

TEST(Sequence, OnlyGeneratedTokensStop) {
  Drive d(make_request({2, 2}, 1));
  d.sample(11);
  EXPECT_EQ(d.end().finish_reason, FinishReason::kLength);
}

TEST(Sequence, LogprobsComeWithEveryToken) {
  Request request = make_request({5}, 2);
  request.logprobs = 3;
  Drive d(request);
  EXPECT_EQ(d.chunk().top, 3);
  d.rows({row(11, -0.5f)});
  d.sample(12);
  const Completion c = d.end();
  EXPECT_TRUE(c.tokens[0].has_logprob);
  EXPECT_EQ(c.tokens[0].logprob, -0.5f);
  EXPECT_THAT(c.tokens[0].top, ElementsAre(Pair(11, -0.5f), Pair(12, -1.5f), Pair(13, -2.5f)));
  EXPECT_THAT(c.prompt, IsEmpty());
}

TEST(Sequence, NoCandidatesWantedGivesTheTokensOwnLogprobAlone) {
  Request request = make_request({5}, 1);
  request.logprobs = 0;
  Drive d(request);
  EXPECT_EQ(d.chunk().top, 0);
  d.rows({row(11, -0.5f)});
  const Completion c = d.end();
  EXPECT_TRUE(c.tokens[0].has_logprob);
  EXPECT_THAT(c.tokens[0].top, IsEmpty());
}

TEST(Sequence, EchoGivesThePromptBack) {
  Request request = make_request({5, 6}, 1);
  request.echo = true;
  Drive d(request);
  EXPECT_EQ(d.chunk().output, SequenceChunk::kLast) << "nobody asked for the prompt's logprobs";
  d.rows({row(11)});
  const Completion c = d.end();
  EXPECT_THAT(tokens_of(c.prompt), ElementsAre(5, 6));
  EXPECT_FALSE(c.prompt[1].has_logprob);
}

TEST(Sequence, EchoWithLogprobsScoresThePromptAcrossChunks) {
  Request request = make_request({5, 6, 7, 8, 9}, 1);
  request.echo = true;
  request.logprobs = 2;
  Drive d(request);
  const SequenceChunk first = d.chunk(2);
  EXPECT_EQ(first.output, SequenceChunk::kAll);
  EXPECT_EQ(first.after_last, 7);
  EXPECT_EQ(d.rows({row(20, -1, -0.6f), row(21, -1, -0.7f), row(99)}), 1u);
  const SequenceChunk second = d.chunk(2);
  EXPECT_EQ(second.after_last, 9);
  d.rows({row(22, -1, -0.8f), row(23, -1, -0.9f)});
  const SequenceChunk third = d.chunk(2);
  EXPECT_EQ(third.output, SequenceChunk::kAll);
  EXPECT_EQ(third.after_last, -1);
  d.rows({row(30, -3)});

  const Completion c = d.end();
  EXPECT_FALSE(c.prompt[0].has_logprob);
  EXPECT_THAT(c.prompt[0].top, IsEmpty());
  const float expected[] = {0, -0.6f, -0.7f, -0.8f, -0.9f};
  for (int i = 1; i < 5; ++i) {
    EXPECT_TRUE(c.prompt[i].has_logprob) << i;
    EXPECT_EQ(c.prompt[i].logprob, expected[i]) << i;
    ASSERT_THAT(c.prompt[i].top, SizeIs(2)) << i;
    EXPECT_EQ(c.prompt[i].top[0].first, 19 + i) << i;
  }
  EXPECT_THAT(tokens_of(c.tokens), ElementsAre(30));
  EXPECT_EQ(c.tokens[0].logprob, -3);
}

TEST(Sequence, AfterAScoredPromptTokensComeOneByOne) {
  Request request = make_request({5, 6}, 3);
  request.echo = true;
  request.logprobs = 0;
  Drive d(request);
  d.chunk();
  d.rows({row(20), row(21)});
  const SequenceChunk next = d.chunk();
  EXPECT_EQ(next.output, SequenceChunk::kLast);
  EXPECT_THAT(next.tokens, ElementsAre(21));
}

TEST(Sequence, NothingToGenerateScoresThePromptAndEnds) {
  Request request = make_request({5, 6}, 0);
  request.echo = true;
  request.logprobs = 1;
  EXPECT_FALSE(request.needs_no_pass());
  Drive d(request);
  d.chunk();
  d.rows({row(6, -1, -0.25f), row(21)});
  const Completion c = d.end();
  EXPECT_EQ(c.prompt[1].logprob, -0.25f);
  EXPECT_THAT(c.tokens, IsEmpty());
  EXPECT_EQ(c.generated_tokens, 0);
  EXPECT_EQ(c.finish_reason, FinishReason::kLength);
}

TEST(Sequence, EchoAloneNeedsNoPass) {
  Request request = make_request({5, 6}, 0);
  request.echo = true;
  EXPECT_TRUE(request.needs_no_pass());
  EXPECT_FALSE(make_request({5}, 1).needs_no_pass());
}

TEST(Sequence, ARowThatIsNotFiniteEndsItWithAnError) {
  Drive d(make_request({5}, 5));
  d.sample(11);
  d.chunk();
  SampledRow bad = row(12);
  bad.finite = false;
  EXPECT_EQ(d.rows({bad, row(13)}), 1u) << "its row is consumed all the same";
  const Completion c = d.end();
  EXPECT_EQ(c.error_code, "numerical_error");
  EXPECT_NE(c.error_message, "");
  EXPECT_EQ(c.generated_tokens, 1);
}

TEST(Sequence, ATokenThatNoGuideAllowsEndsItWithAnError) {
  Request request = make_request({5, 6}, 9);
  request.sampling.guide = std::make_shared<const std::string>("ra+");
  Drive drive(std::move(request));
  const SequenceChunk first = drive.chunk();
  ASSERT_TRUE(first.sampling);
  EXPECT_EQ(*first.sampling->guide, "ra+");
  EXPECT_THAT(first.sampling->generated, IsEmpty());
  EXPECT_THAT(first.sampling->stop_tokens, ElementsAre(2));
  drive.rows({row(7)});
  drive.chunk();
  drive.rows({row(-1)});
  const Completion done = drive.end();
  EXPECT_EQ(done.error_code, "guide_dead_end");
  EXPECT_EQ(done.generated_tokens, 1);
}

// Ranks that have forgotten a guided sequence are told what it has generated.
TEST(Sequence, AGuidedSequenceThatBeginsAgainTellsItsTokens) {
  Request request = make_request({5, 6}, 9);
  request.sampling.guide = std::make_shared<const std::string>("ra+");
  Drive drive(std::move(request));
  drive.sample(7);
  drive.sample(8);
  drive.sequence.restart(3);
  const SequenceChunk again = drive.chunk();
  ASSERT_TRUE(again.sampling);
  EXPECT_THAT(again.sampling->generated, ElementsAre(7, 8));
  EXPECT_EQ(again.sampling->prompt_tokens, 2u);
}

TEST(Sequence, OneBadRowOfAScoredPromptIsEnough) {
  Request request = make_request({5, 6, 7}, 1);
  request.echo = true;
  request.logprobs = 0;
  Drive d(request);
  d.chunk();
  std::vector<SampledRow> rows{row(1), row(2), row(3)};
  rows[0].finite = false;
  EXPECT_EQ(d.rows(rows), 0u);
  EXPECT_EQ(d.end().error_code, "numerical_error");
}

TEST(Sequence, TooFewRowsIsAnError) {
  Drive d(make_request({5}, 5));
  d.chunk();
  EXPECT_THROW(d.rows({}), Error);
}

// --- Encoders ---------------------------------------------------------------------------------------------------

Request encoder_request(Task task) {
  Request request = make_request({5, 6, 7}, 16);
  request.task = task;
  request.part = 3;
  request.values = 2;
  request.token_type_ids = {0, 1, 1};
  request.patches = {0.5f, 1.5f};
  return request;
}

TEST(Sequence, AnEncodersInputIsOneChunkThatIsNeverCut) {
  for (const Task task : {Task::kEmbed, Task::kClassify}) {
    Drive d(encoder_request(task));
    EXPECT_FALSE(d.sequence.request().needs_no_pass());
    EXPECT_EQ(d.sequence.request().cache_tokens(), 3) << "nothing is generated";
    EXPECT_FALSE(d.sequence.fits_in(2));
    EXPECT_TRUE(d.sequence.fits_in(3));
    EXPECT_THROW(d.chunk(2), Error);
    const SequenceChunk chunk = d.chunk(3);
    EXPECT_THAT(chunk.tokens, ElementsAre(5, 6, 7));
    EXPECT_THAT(chunk.token_type_ids, ElementsAre(0, 1, 1));
    EXPECT_THAT(chunk.patches, ElementsAre(0.5f, 1.5f));
    EXPECT_EQ(chunk.output, task == Task::kEmbed ? SequenceChunk::kPooledEmbedding : SequenceChunk::kScores);
    EXPECT_EQ(chunk.values, 2u);
    EXPECT_TRUE(d.sequence.ends_in_flight());
  }
}

TEST(Sequence, AnEncodersValuesEndIt) {
  Drive d(encoder_request(Task::kEmbed));
  d.chunk();
  const std::vector<std::vector<float>> values = {{1, 2}, {3, 4}};
  PassResults results{.encoded = values};
  d.sequence.take_results(results, 4.5);
  EXPECT_THAT(results.encoded, SizeIs(1)) << "another's";
  const Completion c = d.end();
  EXPECT_THAT(c.values, ElementsAre(1, 2));
  EXPECT_EQ(c.part, 3u);
  EXPECT_EQ(c.prompt_tokens, 3);
  EXPECT_EQ(c.generated_tokens, 0);
  EXPECT_EQ(c.first_token_s, 4.5);
}

Request embedder_request(std::vector<TokenId> tokens) {
  Request request = make_request(std::move(tokens), 16);
  request.task = Task::kEmbed;
  request.values = 2;
  request.in_chunks = true;
  return request;
}

TEST(Sequence, AnEmbeddersInputMayBeCutAndItsLastChunkHasTheResult) {
  Drive d(embedder_request({5, 6, 7, 8, 9}));
  EXPECT_TRUE(d.sequence.fits_in(1));
  const std::vector<std::vector<float>> values = {{1, 2}};
  PassResults results{.encoded = values};
  for (int i = 0; i < 2; ++i) {
    const SequenceChunk chunk = d.chunk(2);
    EXPECT_EQ(chunk.output, SequenceChunk::kNone);
    EXPECT_EQ(chunk.values, 0u);
    EXPECT_FALSE(d.sequence.ends_in_flight());
    d.sequence.take_results(results, 1);
    EXPECT_THAT(results.encoded, SizeIs(1)) << "a chunk without a result took one";
    EXPECT_FALSE(d.sequence.finished());
  }
  const SequenceChunk last = d.chunk(2);
  EXPECT_EQ(last.start, 4u);
  EXPECT_EQ(last.output, SequenceChunk::kPooledEmbedding);
  EXPECT_EQ(last.values, 2u);
  EXPECT_TRUE(d.sequence.ends_in_flight());
  d.sequence.take_results(results, 4.5);
  EXPECT_THAT(d.end().values, ElementsAre(1, 2));
}

TEST(Sequence, OnlyAnEmbeddingOfOneRowMayBeginBehindAPrefix) {
  for (const bool of_all_rows : {false, true}) {
    Request request = embedder_request({5, 6, 7, 8, 9, 10});
    request.of_all_rows = of_all_rows;
    EXPECT_EQ(request.may_reuse_prefix(), !of_all_rows);
    Request whole = request;
    whole.in_chunks = false;
    EXPECT_FALSE(whole.may_reuse_prefix()) << "an encoder's tokens see those behind them";
  }
}

TEST(Sequence, AValueThatIsNotFiniteEndsItWithAnError) {
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    Drive d(encoder_request(Task::kClassify));
    d.chunk();
    const std::vector<std::vector<float>> values = {{1, bad}};
    PassResults results{.encoded = values};
    d.sequence.take_results(results, 1);
    EXPECT_THAT(results.encoded, IsEmpty());
    const Completion c = d.end();
    EXPECT_EQ(c.error_code, "numerical_error");
    EXPECT_THAT(c.values, IsEmpty());
  }
}

TEST(Sequence, AnotherNumberOfValuesIsAnError) {
  for (const std::vector<std::vector<float>>& values : {std::vector<std::vector<float>>{}, {{1, 2, 3}}}) {
    Drive d(encoder_request(Task::kClassify));
    d.chunk();
    PassResults results{.encoded = values};
    EXPECT_THROW(d.sequence.take_results(results, 1), Error);
  }
}

}  // namespace
}  // namespace computron
