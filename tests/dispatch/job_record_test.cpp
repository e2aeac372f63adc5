#include "computron/dispatch/job_record.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <span>

#include "computron/base/digest.h"

namespace computron {
namespace {

template <class Event>
Event through_bytes(const Event& event) {
  return std::get<Event>(decode_event(encode(RecordedEvent(event))));
}

ShardLayout layout_of(int pages) {
  ShardLayout layout;
  layout.page_bytes = 16384;
  layout.types = WeightType(DType::kBF16, DType::kFp4, DType::kE4M3, 16);
  layout.cache_dtype = DType::kF16;
  layout.plan.layers = 3;
  layout.plan.kv_heads = 2;
  layout.plan.config.head_dim = 64;
  layout.plan.tensors.push_back({.name = "norm", .role = TensorRole::kVector, .rows = 7, .columns = 1, .parts = {}});
  layout.plan.tensors.push_back({.name = "w",
                                 .role = TensorRole::kGemmWeight,
                                 .rows = 9,
                                 .columns = 5,
                                 .parts = {},
                                 .type = layout.types.most()});
  for (int p = 0; p < pages; ++p) {
    layout.used_bytes.push_back(static_cast<std::size_t>(1000 + p));
    layout.uses.push_back(static_cast<PageId>(p));
    layout.over_before.push_back(p - 1);
  }
  return layout;
}

RecordHeader some_header() {
  RecordHeader header{.program = "1.2", .host = "node7", .started = "2026-01-01T00:00:00Z", .policy = "fifo"};
  header.max_wait_s = 17;
  header.models = {"a", "b"};
  header.layouts = {layout_of(3), layout_of(5)};
  header.layouts[0].link_bytes = {700, 1001, 0};
  RecordHeader::Group& group = header.groups.emplace_back();
  group.tp = 2;
  group.pp = 2;
  group.first_rank = 4;
  group.options = {.frames = 10,
                   .host_slots = 3,
                   .max_batch_tokens = 99,
                   .max_seqs = 5,
                   .steps_in_flight = 4,
                   .prefix_caching = true,
                   .max_waiting = 77,
                   .max_waiting_bytes = 88,
                   .on_late = OnLate::kReject,
                   .fetch_ahead_s = 0.5,
                   .costs = {.link_bytes_per_s = 1, .memory_bytes_per_s = 2, .flops_per_s = 3, .step_s = 4}};
  group.models.push_back({.job_model = 1, .layouts = {0, 1}, .pinned = true, .priority = -2});
  return header;
}

TEST(JobRecord, HeaderComesBack) {
  const RecordHeader header = some_header(), back = decode_header(encode(header));
  EXPECT_EQ(encode(back), encode(header));
  EXPECT_EQ(back.host, "node7");
  EXPECT_EQ(back.policy, "fifo");
  EXPECT_EQ(back.models, header.models);
  EXPECT_EQ(back.ranks(), 8);
  const SchedulerOptions& options = back.groups.at(0).options;
  EXPECT_EQ(options.frames, 10);
  EXPECT_EQ(options.max_waiting, 77u);
  EXPECT_EQ(options.on_late, OnLate::kReject);
  EXPECT_EQ(options.costs.step_s, 4);
  EXPECT_TRUE(back.groups[0].models.at(0).pinned);
  EXPECT_EQ(back.groups[0].models[0].priority, -2);
}

// What passes, transfers and caches are predicted from.
TEST(JobRecord, LayoutsHoldWhatCostsAndCachesAreMadeOf) {
  const ShardLayout layout = layout_of(5), back = decode_header(encode(some_header())).layouts.at(1);
  EXPECT_EQ(back.used_bytes, layout.used_bytes);
  EXPECT_EQ(back.uses, layout.uses);
  EXPECT_EQ(back.over_before, layout.over_before);
  EXPECT_TRUE(back.link_bytes.empty());
  EXPECT_EQ(decode_header(encode(some_header())).layouts.at(0).link_bytes, some_header().layouts[0].link_bytes);
  const KvGeometry cache = KvGeometry::make(layout), of_back = KvGeometry::make(back);
  EXPECT_EQ(of_back.slot_bytes, cache.slot_bytes);
  EXPECT_EQ(of_back.layers, cache.layers);
  const CostOptions options{.memory_bytes_per_s = 1e18, .flops_per_s = 1, .step_s = 0};
  const CostModel costs({{&layout}}, options), of_both({{&back}}, options);
  EXPECT_EQ(of_both.stage_pass_s(0, 0, 3), 3 * 2.0 * 9 * 5);
  EXPECT_EQ(of_both.stage_pass_s(0, 0, 3), costs.stage_pass_s(0, 0, 3));
}

// Up to version 2 a layout says the type of all its weights, a plain one, and no tensor's.
std::vector<std::byte> without_types(std::vector<std::byte> header) {
  const WeightType type = layout_of(1).types.most();
  ByteWriter codes;
  codes.put(type.codes);
  codes.put(type.scales);
  codes.put(type.group);
  const auto find = [&](std::size_t from) {
    const auto begin = header.begin() + static_cast<std::ptrdiff_t>(from);
    return std::search(begin, header.end(), codes.bytes().begin(), codes.bytes().end());
  };
  const auto length = static_cast<std::ptrdiff_t>(codes.bytes().size());
  const auto after_layouts = header.erase(find(0), find(0) + length);
  for (auto at = find(static_cast<std::size_t>(after_layouts - header.begin())); at != header.end();) {
    at = header.erase(at - 1, at + length);
    at = find(static_cast<std::size_t>(at - header.begin()));
  }
  return header;
}

RecordHeader with_plain_types(RecordHeader header) {
  for (ShardLayout& layout : header.layouts) {
    layout.types = layout.types.most().values;
    for (ShardTensor& tensor : layout.plan.tensors) tensor.type = layout.types.most();
  }
  return header;
}

// Removes what an earlier version does not have: `bytes` bytes from where the two differ on.
void erase_at_difference(std::vector<std::byte>& header, const RecordHeader& other, std::size_t bytes) {
  const auto at = std::ranges::mismatch(header, encode(other)).in1;
  header.erase(at, at + static_cast<std::ptrdiff_t>(bytes));
}

// Up to version 5 neither a layout nor the scheduler knows slots. Of one layout and one group.
std::vector<std::byte> without_slots(const RecordHeader& header) {
  std::vector<std::byte> bytes = encode(header);
  RecordHeader other = header;
  other.groups[0].options.adapter_slots ^= 0x01010101;
  erase_at_difference(bytes, other, sizeof(int));
  other = header;
  other.layouts[0].slot_bytes ^= 0x0101010101010101;
  erase_at_difference(bytes, other, sizeof(std::size_t));
  return bytes;
}

// Up to version 4 a layout does not tell its family, nor its adapter's pages: the lengths of two lists are not there.
std::vector<std::byte> without_families(const RecordHeader& header) {
  RecordHeader other = header;
  other.layouts[0].adapter_pages.push_back(0);
  std::vector<std::byte> bytes = without_slots(header);
  erase_at_difference(bytes, other, 2 * sizeof(std::uint32_t));
  return bytes;
}

// Up to version 3 it does not tell what its pages hold: the length of a list is not there.
std::vector<std::byte> without_contents(const RecordHeader& header) {
  RecordHeader telling = header;
  telling.layouts[0].contents.resize(telling.layouts[0].used_bytes.size());
  std::vector<std::byte> bytes = without_families(header);
  erase_at_difference(bytes, telling, sizeof(std::uint32_t));
  return bytes;
}

TEST(JobRecord, LayoutsTellWhatTheirPagesHoldAndTheirFamily) {
  RecordHeader header = some_header();
  header.layouts[0].family = digest128({});
  header.layouts[0].adapter_pages = {0, 2};
  EXPECT_EQ(decode_header(encode(header)).layouts[0].family, header.layouts[0].family);
  EXPECT_EQ(decode_header(encode(header)).layouts[0].adapter_pages, header.layouts[0].adapter_pages);
  for (std::size_t page = 0; page < header.layouts[0].used_bytes.size(); ++page) {
    header.layouts[0].contents.push_back(digest128(std::as_bytes(std::span(&page, 1))));
  }
  EXPECT_EQ(decode_header(encode(header)).layouts[0].contents, header.layouts[0].contents);
  for (const std::vector<PageId>& wrong : {std::vector<PageId>{0, 3}, {2, 0}, {1, 1}}) {
    RecordHeader of_wrong = header;
    of_wrong.layouts[0].adapter_pages = wrong;
    EXPECT_THROW(decode_header(encode(of_wrong)), Error);
  }
  header.layouts[0].contents.pop_back();
  EXPECT_THROW(decode_header(encode(header)), Error);
}

TEST(JobRecord, LayoutsTellTheirSlotsAndSchedulersHowManyThereAre) {
  RecordHeader header = some_header();
  header.layouts[0].slot_bytes = 4096;
  header.groups[0].options.adapter_slots = 7;
  const RecordHeader back = decode_header(encode(header));
  EXPECT_EQ(back.layouts[0].slot_bytes, 4096u);
  EXPECT_EQ(back.layouts[1].slot_bytes, 0u);
  EXPECT_EQ(back.groups[0].options.adapter_slots, 7);
  RecordHeader of_wrong = header;
  of_wrong.layouts[0].adapter_pages = {0};
  of_wrong.layouts[0].slot_bytes = of_wrong.layouts[0].used_bytes[0] - 1;
  EXPECT_THROW(decode_header(encode(of_wrong)), Error);
  header.groups[0].options.adapter_slots = -1;
  EXPECT_THROW(decode_header(encode(header)), Error);
}

// Version 4 tells what pages hold, version 5 a family and an adapter's pages, too.
TEST(JobRecord, HeadersOfVersionsWithoutFamiliesOrSlotsAreRead) {
  RecordHeader header = some_header();
  header.layouts.resize(1);
  header.groups[0].models[0].layouts = {0, 0};
  for (std::size_t page = 0; page < header.layouts[0].used_bytes.size(); ++page) {
    header.layouts[0].contents.push_back(digest128(std::as_bytes(std::span(&page, 1))));
  }
  const std::vector<std::byte> fourth = without_families(header);
  EXPECT_EQ(encode(decode_header(fourth, /*version=*/4)), encode(header));
  EXPECT_THROW(decode_header(fourth), Error);
  header.layouts[0].family = digest128({});
  header.layouts[0].adapter_pages = {0, 2};
  const std::vector<std::byte> fifth = without_slots(header);
  EXPECT_EQ(encode(decode_header(fifth, /*version=*/5)), encode(header));
  EXPECT_THROW(decode_header(fifth), Error);
}

// Version 1 has no link bytes: the length of their list is not there.
TEST(JobRecord, HeadersOfEarlierVersionsAreRead) {
  RecordHeader with = some_header();
  with.layouts.resize(1);
  with.groups[0].models[0].layouts = {0, 0};
  RecordHeader without = with;
  without.layouts[0].link_bytes.clear();
  const std::vector<std::byte> longer = without_contents(with);
  std::vector<std::byte> first = without_contents(without);
  const auto length = std::ranges::mismatch(first, longer).in1;
  first.erase(length, length + sizeof(std::uint32_t));
  const RecordHeader back = decode_header(without_types(first), /*version=*/1);
  EXPECT_EQ(encode(back), encode(with_plain_types(without)));
  EXPECT_THROW(decode_header(first), Error);
  const RecordHeader second = decode_header(without_types(longer), /*version=*/2);
  EXPECT_EQ(encode(second), encode(with_plain_types(with)));
}

TEST(JobRecord, HeadersThatContradictThemselvesAreNone) {
  const auto refused = [](auto&& change) {
    RecordHeader header = some_header();
    change(header);
    EXPECT_THROW(decode_header(encode(header)), Error);
  };
  refused([](RecordHeader& header) { header.groups.clear(); });
  refused([](RecordHeader& header) { header.layouts[0].link_bytes[2] = header.layouts[0].used_bytes[2] + 1; });
  refused([](RecordHeader& header) { header.groups[0].models[0].job_model = 2; });
  refused([](RecordHeader& header) { header.groups[0].models[0].layouts[1] = 2; });
  refused([](RecordHeader& header) { header.groups[0].models[0].layouts.pop_back(); });
  refused([](RecordHeader& header) { header.layouts[0].uses[1] = 3; });
  refused([](RecordHeader& header) { header.layouts[0].over_before.pop_back(); });
  refused([](RecordHeader& header) { header.layouts[0].page_bytes = 0; });
  refused([](RecordHeader& header) { header.layouts[0].link_bytes = {1}; });
  std::vector<std::byte> longer = encode(some_header());
  longer.push_back({});
  EXPECT_THROW(decode_header(longer), Error);
}

TEST(JobRecord, EventsComeBack) {
  Request request;
  request.id = 5;
  request.part = 2;
  request.model = 1;
  request.task = Task::kEmbed;
  request.prompt = {1, 2, 3};
  request.max_tokens = 9;
  request.values = 4;
  request.arrival_s = 0.5;
  request.deadline_s = 2;
  request.echo = true;
  request.logprobs = 0;
  request.long_factors = true;
  request.priority = Request::kInteractive;
  request.tenant = 77;
  const RecordedRequest r = through_bytes(recorded(request, 0.75, /*deferred=*/true, /*with_prefix=*/false, 1));
  EXPECT_EQ(r.submitted_s, 0.75);
  EXPECT_EQ(r.flags, RecordedRequest::kDeferred | RecordedRequest::kEcho | RecordedRequest::kLogprobs |
                         RecordedRequest::kLongFactors | RecordedRequest::kClass);
  EXPECT_EQ(r.id, 5u);
  EXPECT_EQ(r.part, 2u);
  EXPECT_EQ(r.model, 1u);
  EXPECT_EQ(r.task, Task::kEmbed);
  EXPECT_EQ(r.prompt_tokens, 3u);
  EXPECT_EQ(r.max_tokens, 9);
  EXPECT_EQ(r.values, 4);
  EXPECT_EQ(r.arrival_s, 0.5);
  EXPECT_EQ(r.deadline_s, 2);
  EXPECT_TRUE(r.prefix.empty());
  EXPECT_EQ(r.priority, -1);
  EXPECT_EQ(r.tenant, through_bytes(recorded(request, 0, false, false, /*salt=*/1)).tenant);
  EXPECT_NE(r.tenant, through_bytes(recorded(request, 0, false, false, /*salt=*/2)).tenant) << "no name can be guessed";
  request.priority = 0;
  request.tenant = 0;
  EXPECT_EQ(through_bytes(recorded(request, 0, false, false, 1)).flags & RecordedRequest::kClass, 0);

  PlannedStep planned;
  planned.step.id = 12;
  planned.step.model = 1;
  planned.step.chunks.resize(2);
  planned.step.chunks[0].tokens = {1, 2, 3};
  planned.step.chunks[1].tokens = {4};
  planned.swaps = {1};
  planned.begun = {5, 6};
  planned.step.stages.resize(2);
  planned.step.stages[1].fetches.push_back({.model = 1, .page = 3, .frame = 8, .after = {.step = 4, .use = 2}});
  planned.step.stages[0].caches.push_back({.model = 0, .taken = 2, .kind = CacheChange::kOffload, .slots = {3, 4}});
  const RecordedStep s = through_bytes(recorded(1, planned, 1.5));
  EXPECT_EQ(s.sent_s, 1.5);
  EXPECT_EQ(s.group, 1u);
  EXPECT_EQ(s.swaps, 1u);
  EXPECT_EQ(s.begun, planned.begun);
  const Step step = s.step();
  EXPECT_EQ(step.id, 12u);
  EXPECT_EQ(step.model, 1u);
  EXPECT_EQ(step.rows(), 4);
  ASSERT_EQ(step.stages.size(), 2u);
  ASSERT_EQ(step.stages[1].fetches.size(), 1u);
  EXPECT_EQ(step.stages[1].fetches[0].page, 3u);
  EXPECT_EQ(step.stages[1].fetches[0].after, (ReleasePoint{4, 2}));
  ASSERT_EQ(step.stages[0].caches.size(), 1u);
  EXPECT_EQ(step.stages[0].caches[0].kind, CacheChange::kOffload);
  EXPECT_EQ(step.stages[0].caches[0].slots.size(), 2u);

  const RecordedReport report = through_bytes(RecordedReport{
      .reported_s = 2, .group = 1, .step = 12, .stages = {{{.compute_s = 1, .link_bytes = 2, .link_busy_s = 3}, 4}}});
  ASSERT_EQ(report.stages.size(), 1u);
  EXPECT_EQ(report.stages[0].times.link_bytes, 2u);
  EXPECT_EQ(report.stages[0].exposed_s, 4);

  Completion completion;
  completion.id = 5;
  completion.generated_tokens = 3;
  completion.error_code = "deadline_exceeded";
  completion.finished_s = 9;
  completion.group = 1;
  const RecordedCompletion c = through_bytes(recorded(completion));
  EXPECT_TRUE(c.failed);
  EXPECT_EQ(c.generated_tokens, 3);
  EXPECT_EQ(c.finished_s, 9);
  EXPECT_EQ(through_bytes(RecordEnd{.time_s = 3, .why = RecordEnd::kLimit}).why, RecordEnd::kLimit);
  EXPECT_TRUE(through_bytes(RecordedInputEnd{.time_s = 3, .closed = true}).closed);
}

TEST(JobRecord, EveryShorterPayloadIsNone) {
  const std::vector<std::byte> payload = encode(RecordedEvent(RecordedRequest{.prompt_tokens = 1, .prefix = {1, 2}}));
  for (std::size_t length = 0; length < payload.size(); ++length) {
    EXPECT_THROW(decode_event(std::span(payload).first(length)), Error) << length;
  }
}

// Tokens cannot be read from it, and beginnings that are equal are seen to be.
TEST(JobRecord, PromptsAreHashesAndOnlyWherePrefixesAreShared) {
  constexpr std::size_t kBlock = RecordedRequest::kPrefixTokens;
  Request one, other;
  for (std::size_t i = 0; i < 3 * kBlock - 1; ++i) one.prompt.push_back(static_cast<TokenId>(i));
  other.prompt = one.prompt;
  other.prompt[kBlock] = 1000;
  const RecordedRequest a = recorded(one, 0, false, /*with_prefix=*/true, 7),
                        b = recorded(other, 0, false, /*with_prefix=*/true, 7),
                        salted = recorded(one, 0, false, /*with_prefix=*/true, 8);
  ASSERT_EQ(a.prefix.size(), 2u);
  EXPECT_EQ(a.prefix[0], b.prefix[0]);
  EXPECT_NE(a.prefix[1], b.prefix[1]);
  EXPECT_NE(a.prefix[0], salted.prefix[0]);
  EXPECT_TRUE(recorded(one, 0, false, /*with_prefix=*/false, 7).prefix.empty());
}

}  // namespace
}  // namespace computron
