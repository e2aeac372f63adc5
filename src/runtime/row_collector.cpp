#include "computron/runtime/row_collector.h"

#include <algorithm>
#include <cstring>

#include "computron/base/bytes.h"
#include "computron/base/error.h"
#include "computron/comm/tags.h"

namespace computron {
namespace {

constexpr std::size_t kDrawBytes = sizeof(Candidate) + 3 * sizeof(double) + sizeof(std::uint32_t);

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <class T>
std::vector<T> values_of(std::span<const std::byte> bytes) {
  ensure(bytes.size() % sizeof(T) == 0, "a message between ranks ends within a value");
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// All tokens of a slice, or its candidates where these hold all that can be drawn from it.
const std::vector<Candidate>& tokens_of(const Draw& draw) { return draw.slice.empty() ? draw.candidates : draw.slice; }

// Whether a row may need more than what is offered at first.
bool may_ask(const Batch& batch) {
  return std::any_of(batch.sampling.begin(), batch.sampling.end(),
                     [](const RowSampling& row) { return row.draws && row.truncates(); });
}

}  // namespace

std::vector<SampledRow> RowCollector::collect(const Batch& batch, const std::vector<LogitSummary>& logits,
                                              const std::vector<Draw>& draws) {
  if (logits.empty()) return {};
  const TraceSpan span(trace_, TraceTrack::kCommunication, "sample", {}, {"rows", logits.size()});
  if (mesh_.t == 0) return sample(batch, logits, draws);
  send(encode(batch, logits, draws), 0);
  if (may_ask(batch)) answer(draws);
  return {};
}

std::vector<SampledRow> RowCollector::sample(const Batch& batch, const std::vector<LogitSummary>& logits,
                                             const std::vector<Draw>& draws) {
  std::vector<Offer> others;
  for (int t = 1; t < mesh_.shape.tp; ++t) others.push_back(decode(batch, receive(t, max_bytes(batch))));
  std::vector<SampledRow> rows;
  std::vector<std::uint32_t> unclear;
  const auto parts_of = [&](std::size_t i) {
    std::vector<const LogitSummary*> parts{&logits[i]};
    for (const Offer& other : others) parts.push_back(&other.logits[i]);
    return parts;
  };
  for (std::size_t i = 0; i < logits.size(); ++i) {
    rows.push_back(sample_greedy(parts_of(i), batch.top[i]));
    if (batch.sampling.empty() || !batch.sampling[i].draws || !rows.back().finite) continue;
    std::vector<const Draw*> offered{&draws[i]};
    for (const Offer& other : others) offered.push_back(&other.draws[i]);
    if (const auto drawn = draw(batch.sampling[i], offered)) {
      take_drawn(*drawn, parts_of(i), rows.back());
    } else {
      unclear.push_back(static_cast<std::uint32_t>(i));
    }
  }
  if (!may_ask(batch)) return rows;
  std::vector<std::vector<Candidate>> whole = whole_rows(unclear, draws);
  for (std::size_t k = 0; k < unclear.size(); ++k) {
    const std::size_t i = unclear[k];
    take_drawn(draw_from_all(batch.sampling[i], std::move(whole[k])), parts_of(i), rows[i]);
  }
  return rows;
}

// [wanted] the row's tokens on all ranks.
std::vector<std::vector<Candidate>> RowCollector::whole_rows(const std::vector<std::uint32_t>& wanted,
                                                             const std::vector<Draw>& draws) {
  std::vector<std::vector<Candidate>> rows;
  for (const std::uint32_t i : wanted) {
    rows.push_back(tokens_of(draws[i]));
  }
  for (int t = 1; t < mesh_.shape.tp; ++t) send(bytes_of(wanted), t);
  for (int t = 1; t < mesh_.shape.tp; ++t) {
    for (std::vector<Candidate>& row : rows) {
      const auto slice = values_of<Candidate>(receive(t, max_slice_ * sizeof(Candidate)));
      row.insert(row.end(), slice.begin(), slice.end());
    }
  }
  return rows;
}

void RowCollector::answer(const std::vector<Draw>& draws) {
  const auto wanted = values_of<std::uint32_t>(receive(0, draws.size() * sizeof(std::uint32_t)));
  for (const std::uint32_t i : wanted) {
    send(bytes_of(tokens_of(draws.at(i))), 0);
  }
}

std::vector<std::byte> RowCollector::encode(const Batch& batch, const std::vector<LogitSummary>& logits,
                                            const std::vector<Draw>& draws) {
  ByteWriter out;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    out.put(logits[i]);
    if (batch.sampling.empty() || !batch.sampling[i].draws) continue;
    out.put(draws[i].best);
    out.put(draws[i].score);
    out.put(draws[i].max);
    out.put(draws[i].mass);
    out.put_list(draws[i].candidates);
  }
  return out.take();
}

RowCollector::Offer RowCollector::decode(const Batch& batch, std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  Offer offer{{}, std::vector<Draw>(batch.output_rows.size())};
  for (std::size_t i = 0; i < batch.output_rows.size(); ++i) {
    offer.logits.push_back(in.get<LogitSummary>());
    if (batch.sampling.empty() || !batch.sampling[i].draws) continue;
    Draw& draw = offer.draws[i];
    draw.best = in.get<Candidate>();
    draw.score = in.get<double>();
    draw.max = in.get<float>();
    draw.mass = in.get<double>();
    draw.candidates = in.get_list<Candidate>();
  }
  in.expect_end();
  return offer;
}

std::size_t RowCollector::max_bytes(const Batch& batch) {
  std::size_t bytes = batch.output_rows.size() * sizeof(LogitSummary);
  for (const RowSampling& row : batch.sampling) {
    bytes += kDrawBytes + (row.truncates() ? Draw::kCandidates * sizeof(Candidate) : 0);
  }
  return bytes;
}

void RowCollector::send(std::span<const std::byte> bytes, int to) {
  MessageRequest request = mesh_.tensor.send(bytes, to, tags::kLogitSummary);
  progress_.wait_until([&request] { return request.done(); });
}

std::vector<std::byte> RowCollector::receive(int from, std::size_t max_bytes) {
  std::vector<std::byte> bytes(max_bytes);
  MessageRequest request = mesh_.tensor.receive(bytes, from, tags::kLogitSummary);
  progress_.wait_until([&request] { return request.done(); });
  bytes.resize(request.received_bytes());
  return bytes;
}

}  // namespace computron
