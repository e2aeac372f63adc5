#include "computron/dispatch/job_record.h"

#include <algorithm>
#include <cmath>

#include "computron/base/digest.h"

namespace computron {
namespace {

// Calls visit(field) for the numbers that are written as they are in a file of that version, in their order.
template <class Options, class Visitor>
void for_each_number(Options& o, std::uint32_t version, Visitor&& visit) {
  visit(o.frames);
  visit(o.host_slots);
  visit(o.max_batch_tokens);
  visit(o.max_seqs);
  visit(o.steps_in_flight);
  visit(o.prefix_caching);
  visit(o.max_waiting);
  visit(o.max_waiting_bytes);
  visit(o.on_late);
  visit(o.fetch_ahead_s);
  visit(o.costs.link_bytes_per_s);
  visit(o.costs.memory_bytes_per_s);
  visit(o.costs.flops_per_s);
  visit(o.costs.step_s);
  if (version > 5) visit(o.adapter_slots);
}

void put_size(ByteWriter& out, std::size_t size) { out.put(static_cast<std::uint32_t>(size)); }

// --- Layouts ----------------------------------------------------------------------------------------------------

void put(ByteWriter& out, const WeightType& type) {
  out.put(type.values);
  out.put(type.codes);
  out.put(type.scales);
  out.put(type.group);
}

void check(const WeightType& type) {
  const bool scaled = type.scales <= DType::kE4M3 && is_scale(type.scales) && type.group >= WeightType::kSmallestGroup;
  const bool known = type.quantised() ? is_code(type.codes) && scaled : type == WeightType(type.values);
  ensure(is_plain(type.values) && known, "a layout has weights of an unknown type");
}

WeightType get_type(ByteReader& in) {
  WeightType type;
  type.values = in.get<DType>();
  type.codes = in.get<DType>();
  type.scales = in.get<DType>();
  type.group = in.get<int>();
  check(type);
  return type;
}

void put(ByteWriter& out, const ShardLayout& layout) {
  out.put(layout.page_bytes);
  put(out, layout.types.most());
  out.put(layout.cache_dtype);
  out.put(layout.plan.layers);
  out.put(layout.plan.kv_heads);
  out.put(layout.plan.config.head_dim);
  put_size(out, static_cast<std::size_t>(std::ranges::count_if(layout.plan.tensors, &ShardTensor::is_multiplied)));
  for (const ShardTensor& tensor : layout.plan.tensors) {
    if (!tensor.is_multiplied()) continue;
    out.put(tensor.rows);
    out.put(tensor.columns);
    put(out, tensor.type);
  }
  out.put_list(layout.used_bytes);
  out.put_list(layout.link_bytes);
  out.put_list(layout.uses);
  out.put_list(layout.over_before);
  out.put_list(layout.contents);
  out.put_list(layout.adapter_pages);
  out.put_list(std::span(layout.family ? &*layout.family : nullptr, layout.family ? 1 : 0));
  out.put(layout.slot_bytes);
}

ShardLayout get_layout(ByteReader& in, std::uint32_t version) {
  ShardLayout layout;
  layout.page_bytes = in.get<std::size_t>();
  // Up to version 2 a model's weights had one type, a plain one.
  const WeightType most = version > 2 ? get_type(in) : WeightType(in.get<DType>());
  check(most);
  layout.types = most;
  layout.cache_dtype = in.get<DType>();
  ensure(is_plain(layout.cache_dtype), "a layout has a cache of an unknown type");
  layout.plan.layers = in.get<int>();
  layout.plan.kv_heads = in.get<int>();
  layout.plan.config.head_dim = in.get<int>();
  const auto tensors = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < tensors; ++i) {
    const int rows = in.get<int>(), columns = in.get<int>();
    layout.plan.tensors.push_back({.name = {},
                                   .role = TensorRole::kGemmWeight,
                                   .rows = rows,
                                   .columns = columns,
                                   .parts = {},
                                   .type = version > 2 ? get_type(in) : most});
  }
  layout.used_bytes = in.get_list<std::size_t>();
  if (version > 1) layout.link_bytes = in.get_list<std::size_t>();
  layout.uses = in.get_list<PageId>();
  layout.over_before = in.get_list<std::int64_t>();
  if (version > 3) layout.contents = in.get_list<Digest128>();
  if (version > 4) layout.adapter_pages = in.get_list<PageId>();
  const auto families = version > 4 ? in.get_list<Digest128>() : std::vector<Digest128>();
  ensure(families.size() <= 1, "a layout is of several families");
  if (!families.empty()) layout.family = families.front();
  if (version > 5) layout.slot_bytes = in.get<std::size_t>();
  const auto fits_slot = [&layout](PageId page) {
    return layout.slot_bytes == 0 ||
           (static_cast<std::size_t>(page) < layout.used_bytes.size() && layout.used_bytes[page] <= layout.slot_bytes);
  };
  ensure(std::ranges::all_of(layout.adapter_pages, fits_slot), "a page of an adapter fits no slot");
  ensure(layout.contents.empty() || layout.contents.size() == layout.used_bytes.size(),
         "a layout tells the contents of other pages");
  ensure(layout.link_bytes.empty() || std::ranges::equal(layout.link_bytes, layout.used_bytes, std::less_equal()),
         "a layout has link bytes of other pages, or more than they use");
  const auto there = [&layout](PageId page) { return page < layout.used_bytes.size(); };
  ensure(layout.page_bytes > 0 && !layout.uses.empty() && layout.uses.size() == layout.over_before.size() &&
             std::ranges::all_of(layout.uses, there),
         "a layout uses pages that it does not have");
  ensure(std::ranges::all_of(layout.adapter_pages, there) &&
             std::ranges::adjacent_find(layout.adapter_pages, std::greater_equal()) == layout.adapter_pages.end(),
         "an adapter's pages are not there, or out of order");
  return layout;
}

// --- Steps ------------------------------------------------------------------------------------------------------

void put(ByteWriter& out, const ReleasePoint& point) {
  out.put(point.step);
  out.put(point.use);
}

ReleasePoint get_point(ByteReader& in) {
  ReleasePoint point;
  point.step = in.get<StepId>();
  point.use = in.get<PageUse>();
  return point;
}

// Frames and slots are counted: which ones they were decides nothing any more.
void put(ByteWriter& out, const StagePlan& plan) {
  put_size(out, plan.caches.size());
  for (const CacheChange& change : plan.caches) {
    out.put(change.model);
    out.put(change.kind);
    put_size(out, change.slots.size());
    put(out, change.after);
  }
  put_size(out, plan.fetches.size());
  for (const Fetch& fetch : plan.fetches) {
    out.put(fetch.model);
    out.put(fetch.page);
    put(out, fetch.after);
  }
}

StagePlan get_plan(ByteReader& in) {
  StagePlan plan;
  const auto changes = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < changes; ++i) {
    CacheChange& change = plan.caches.emplace_back();
    change.model = in.get<ModelId>();
    change.kind = in.get<CacheChange::Kind>();
    const auto slots = in.get<std::uint32_t>();
    ensure(change.kind <= CacheChange::kDropOffloaded && slots < (1U << 28), "unknown cache change");
    change.slots.resize(slots);
    change.after = get_point(in);
  }
  const auto fetches = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < fetches; ++i) {
    Fetch& fetch = plan.fetches.emplace_back();
    fetch.model = in.get<ModelId>();
    fetch.page = in.get<PageId>();
    fetch.after = get_point(in);
  }
  return plan;
}

// --- Events -----------------------------------------------------------------------------------------------------

void put(ByteWriter& out, const RecordedRequest& r) {
  out.put(r.submitted_s);
  out.put(r.flags);
  out.put(r.id);
  out.put(r.part);
  out.put(r.model);
  out.put(r.task);
  out.put(r.prompt_tokens);
  out.put(r.max_tokens);
  out.put(r.values);
  out.put(r.arrival_s);
  out.put(r.deadline_s);
  out.put_list(r.prefix);
  if ((r.flags & RecordedRequest::kClass) == 0) return;
  out.put(r.priority);
  out.put(r.tenant);
}

void get(ByteReader& in, RecordedRequest& r) {
  r.submitted_s = in.get<double>();
  r.flags = in.get<std::uint8_t>();
  r.id = in.get<RequestId>();
  r.part = in.get<std::uint32_t>();
  r.model = in.get<ModelId>();
  r.task = in.get<Task>();
  r.prompt_tokens = in.get<std::uint32_t>();
  r.max_tokens = in.get<std::int32_t>();
  r.values = in.get<std::int32_t>();
  r.arrival_s = in.get<double>();
  r.deadline_s = in.get<double>();
  r.prefix = in.get_list<std::uint32_t>();
  if ((r.flags & RecordedRequest::kClass) != 0) {
    r.priority = in.get<std::int32_t>();
    r.tenant = in.get<std::uint64_t>();
  }
  ensure(r.task <= Task::kClassify && r.prompt_tokens > 0 && r.prompt_tokens < (1U << 28), "request out of range");
}

void put(ByteWriter& out, const RecordedInputEnd& end) {
  out.put(end.time_s);
  out.put(end.closed);
  out.put(end.deferred);
}

void get(ByteReader& in, RecordedInputEnd& end) {
  end.time_s = in.get<double>();
  end.closed = in.get<std::uint8_t>() != 0;
  end.deferred = in.get<std::uint8_t>() != 0;
}

void put(ByteWriter& out, const RecordedStep& step) {
  out.put(step.sent_s);
  out.put(step.group);
  out.put(step.id);
  out.put(step.model);
  out.put(step.rows);
  out.put(step.swaps);
  out.put_list(step.begun);
  put_size(out, step.stages.size());
  for (const StagePlan& plan : step.stages) put(out, plan);
}

void get(ByteReader& in, RecordedStep& step) {
  step.sent_s = in.get<double>();
  step.group = in.get<std::uint32_t>();
  step.id = in.get<StepId>();
  step.model = in.get<ModelId>();
  step.rows = in.get<std::uint32_t>();
  step.swaps = in.get<std::uint32_t>();
  step.begun = in.get_list<RequestId>();
  const auto stages = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < stages; ++i) step.stages.push_back(get_plan(in));
  ensure(step.rows < (1U << 28), "step out of range");
}

void put(ByteWriter& out, const RecordedReport& report) {
  out.put(report.reported_s);
  out.put(report.group);
  out.put(report.step);
  put_size(out, report.stages.size());
  for (const auto& [times, exposed_s] : report.stages) {
    out.put(times.compute_s);
    out.put(times.link_bytes);
    out.put(times.link_busy_s);
    out.put(exposed_s);
  }
}

void get(ByteReader& in, RecordedReport& report) {
  report.reported_s = in.get<double>();
  report.group = in.get<std::uint32_t>();
  report.step = in.get<StepId>();
  const auto stages = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < stages; ++i) {
    auto& [times, exposed_s] = report.stages.emplace_back();
    times.compute_s = in.get<double>();
    times.link_bytes = in.get<std::size_t>();
    times.link_busy_s = in.get<double>();
    exposed_s = in.get<double>();
  }
}

void put(ByteWriter& out, const RecordedCompletion& c) {
  out.put(c.id);
  out.put(c.part);
  out.put(c.group);
  out.put(c.generated_tokens);
  out.put(c.failed);
  out.put(c.first_token_s);
  out.put(c.finished_s);
}

void get(ByteReader& in, RecordedCompletion& c) {
  c.id = in.get<RequestId>();
  c.part = in.get<std::uint32_t>();
  c.group = in.get<std::uint32_t>();
  c.generated_tokens = in.get<std::int32_t>();
  c.failed = in.get<std::uint8_t>() != 0;
  c.first_token_s = in.get<double>();
  c.finished_s = in.get<double>();
}

void put(ByteWriter& out, const RecordEnd& end) {
  out.put(end.time_s);
  out.put(end.why);
}

void get(ByteReader& in, RecordEnd& end) {
  end.time_s = in.get<double>();
  end.why = in.get<RecordEnd::Why>();
  ensure(end.why <= RecordEnd::kTooSlow, "unknown end of a record");
}

// The event of kind `kind`, the index in the variant.
template <std::size_t kKind = 0>
RecordedEvent get_event(ByteReader& in, std::uint8_t kind) {
  if constexpr (kKind < std::variant_size_v<RecordedEvent>) {
    if (kind != kKind) return get_event<kKind + 1>(in, kind);
    std::variant_alternative_t<kKind, RecordedEvent> event;
    get(in, event);
    return event;
  } else {
    throw Error(ExitCode::kInternal, "unknown kind of event");
  }
}

// --- The header -------------------------------------------------------------------------------------------------

void put(ByteWriter& out, const RecordHeader::Group& group) {
  out.put(group.tp);
  out.put(group.pp);
  out.put(group.first_rank);
  for_each_number(group.options, kRecordVersion, [&out](const auto& number) { out.put(number); });
  put_size(out, group.models.size());
  for (const RecordHeader::Model& model : group.models) {
    out.put(model.job_model);
    out.put_list(model.layouts);
    out.put(model.pinned);
    out.put(model.priority);
  }
}

RecordHeader::Group get_group(ByteReader& in, const RecordHeader& header, std::uint32_t version) {
  RecordHeader::Group group;
  group.tp = in.get<int>();
  group.pp = in.get<int>();
  group.first_rank = in.get<int>();
  for_each_number(group.options, version, [&in]<class T>(T& number) { number = in.get<T>(); });
  ensure(group.options.adapter_slots >= 0, "a pool has fewer slots than none");
  const auto models = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < models; ++i) {
    RecordHeader::Model& model = group.models.emplace_back();
    model.job_model = in.get<ModelId>();
    model.layouts = in.get_list<std::uint32_t>();
    model.pinned = in.get<std::uint8_t>() != 0;
    model.priority = in.get<int>();
    const auto there = [&header](std::uint32_t layout) { return layout < header.layouts.size(); };
    ensure(model.job_model < header.models.size() && std::cmp_equal(model.layouts.size(), group.pp) &&
               std::ranges::all_of(model.layouts, there),
           "a group has a model that is not there");
  }
  ensure(group.tp > 0 && group.pp > 0 && !group.models.empty() && group.options.on_late <= OnLate::kReject,
         "group out of range");
  return group;
}

}  // namespace

int RecordHeader::ranks() const {
  int ranks = 0;
  for (const Group& group : groups) ranks = std::max(ranks, group.first_rank + group.tp * group.pp);
  return ranks;
}

Step RecordedStep::step() const {
  Step step;
  step.id = id;
  step.model = model;
  step.stages = stages;
  if (rows > 0) step.chunks.emplace_back().tokens.resize(rows);
  return step;
}

RecordedRequest recorded(const Request& request, double now_s, bool deferred, bool with_prefix, std::uint64_t salt) {
  const auto flag = [](bool set, RecordedRequest::Flag bit) { return static_cast<std::uint8_t>(set ? bit : 0); };
  RecordedRequest r;
  r.submitted_s = now_s;
  r.flags = flag(deferred, RecordedRequest::kDeferred) | flag(request.echo, RecordedRequest::kEcho) |
            flag(request.logprobs >= 0, RecordedRequest::kLogprobs) |
            flag(request.sampling.penalises(), RecordedRequest::kPenalises) |
            flag(request.long_factors, RecordedRequest::kLongFactors) |
            flag(request.priority != 0 || request.tenant != 0, RecordedRequest::kClass);
  r.id = request.id;
  r.part = request.part;
  r.model = request.model;
  r.task = request.task;
  r.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  r.max_tokens = request.max_tokens;
  r.values = request.values;
  r.arrival_s = request.arrival_s;
  r.deadline_s = request.deadline_s;
  r.priority = request.priority;
  r.tenant = request.tenant == 0 ? 0 : hash_tuple(request.tenant, salt);
  if (!with_prefix) return r;
  const std::span<const TokenId> prompt = request.prompt;
  for (std::size_t at = 0; at + RecordedRequest::kPrefixTokens <= prompt.size(); at += RecordedRequest::kPrefixTokens) {
    const auto tokens = std::as_bytes(prompt.subspan(at, RecordedRequest::kPrefixTokens));
    r.prefix.push_back(static_cast<std::uint32_t>(digest64(tokens, salt)));
  }
  return r;
}

RecordedStep recorded(std::uint32_t group, const PlannedStep& planned, double now_s) {
  RecordedStep step;
  step.sent_s = now_s;
  step.group = group;
  step.id = planned.step.id;
  step.model = planned.step.model;
  step.rows = static_cast<std::uint32_t>(planned.step.rows());
  step.swaps = static_cast<std::uint32_t>(planned.swaps.size());
  step.begun = planned.begun;
  step.stages = planned.step.stages;
  return step;
}

RecordedCompletion recorded(const Completion& completion) {
  return {.id = completion.id,
          .part = completion.part,
          .group = completion.group,
          .generated_tokens = completion.generated_tokens,
          .failed = !completion.error_code.empty(),
          .first_token_s = completion.first_token_s,
          .finished_s = completion.finished_s};
}

std::vector<std::byte> encode_layout(const ShardLayout& layout) {
  ByteWriter out;
  put(out, layout);
  return out.take();
}

std::vector<std::byte> encode(const RecordHeader& header) {
  ByteWriter out;
  for (const std::string* text : {&header.program, &header.host, &header.started, &header.policy}) {
    out.put_string(*text);
  }
  out.put(header.max_wait_s);
  put_size(out, header.models.size());
  for (const std::string& id : header.models) out.put_string(id);
  put_size(out, header.layouts.size());
  for (const ShardLayout& layout : header.layouts) put(out, layout);
  put_size(out, header.groups.size());
  for (const RecordHeader::Group& group : header.groups) put(out, group);
  return out.take();
}

RecordHeader decode_header(std::span<const std::byte> payload, std::uint32_t version) {
  ByteReader in(payload);
  RecordHeader header;
  for (std::string* text : {&header.program, &header.host, &header.started, &header.policy}) *text = in.get_string();
  header.max_wait_s = in.get<double>();
  const auto models = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < models; ++i) header.models.push_back(in.get_string());
  const auto layouts = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < layouts; ++i) header.layouts.push_back(get_layout(in, version));
  const auto groups = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < groups; ++i) header.groups.push_back(get_group(in, header, version));
  in.expect_end();
  ensure(!header.groups.empty(), "a record of no group");
  return header;
}

std::vector<std::byte> encode(const RecordedEvent& event) {
  ByteWriter out;
  out.put(static_cast<std::uint8_t>(event.index()));
  std::visit([&out](const auto& content) { put(out, content); }, event);
  return out.take();
}

RecordedEvent decode_event(std::span<const std::byte> payload) {
  ByteReader in(payload);
  const auto kind = in.get<std::uint8_t>();
  RecordedEvent event = get_event(in, kind);
  in.expect_end();
  return event;
}

std::uint32_t check_value(std::span<const std::byte> payload) { return static_cast<std::uint32_t>(digest64(payload)); }

std::vector<std::byte> frame_head(std::span<const std::byte> payload) {
  ByteWriter out;
  put_size(out, payload.size());
  out.put(check_value(payload));
  return out.take();
}

}  // namespace computron
