#include "computron/runtime/row_collector.h"

#include <algorithm>
#include <cstring>

#include "computron/base/bytes.h"
#include "computron/base/error.h"
#include "computron/comm/tags.h"

namespace computron {
namespace {

constexpr std::size_t kSampleBytes = sizeof(Candidate) + 3 * sizeof(double) + sizeof(std::uint32_t);

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

// A rank's part of row i: of each slice all tokens, or only the candidates where these hold all that can be drawn.
std::vector<Candidate> tokens_of(const std::vector<SliceSample>& samples, int slices, std::size_t i) {
  std::vector<Candidate> tokens;
  for (int slice = 0; slice < slices; ++slice) {
    const SliceSample& sample = samples.at(i * slices + slice);
    const std::vector<Candidate>& own = sample.slice.empty() ? sample.candidates : sample.slice;
    tokens.insert(tokens.end(), own.begin(), own.end());
  }
  return tokens;
}

// Whether t = 0 may need more of a row than the offers.
bool may_ask(const Batch& batch) {
  return std::any_of(batch.sampling.begin(), batch.sampling.end(),
                     [](const RowSampling& row) { return row.samples && row.truncates(); });
}

}  // namespace

std::vector<SampledRow> RowCollector::collect(const Batch& batch, int slices, std::vector<TopLogits> logits,
                                              std::vector<SliceSample> samples) {
  if (logits.empty()) return {};
  const TraceSpan span(trace_, TraceTrack::kCommunication, "sample", {}, {"rows", batch.output_rows.size()});
  Offer own{std::move(logits), std::move(samples)};
  if (mesh_.t == 0) return sample(batch, slices, std::move(own));
  send(encode(batch, slices, own), 0);
  if (may_ask(batch)) answer(slices, own.samples);
  return {};
}

std::vector<const TopLogits*> RowCollector::Table::logits_of(std::size_t i) const {
  std::vector<const TopLogits*> parts;
  for (const Offer& rank : ranks) {
    for (int slice = 0; slice < slices; ++slice) parts.push_back(&rank.logits[i * slices + slice]);
  }
  return parts;
}

std::vector<const SliceSample*> RowCollector::Table::samples_of(std::size_t i) const {
  std::vector<const SliceSample*> parts;
  for (const Offer& rank : ranks) {
    for (int slice = 0; slice < slices; ++slice) parts.push_back(&rank.samples[i * slices + slice]);
  }
  return parts;
}

std::vector<SampledRow> RowCollector::sample(const Batch& batch, int slices, Offer own) {
  Table table{.ranks = {}, .slices = slices};
  table.ranks.push_back(std::move(own));
  for (int t = 1; t < mesh_.shape.tp; ++t) {
    table.ranks.push_back(decode(batch, slices, receive(t, max_bytes(batch, slices))));
  }
  std::vector<SampledRow> rows;
  std::vector<std::uint32_t> unclear;
  for (std::size_t i = 0; i < batch.output_rows.size(); ++i) {
    const auto logits = table.logits_of(i);
    rows.push_back(sample_greedy(logits, batch.top[i]));
    if (batch.sampling.empty() || !batch.sampling[i].samples || !rows.back().finite) continue;
    if (const auto sampled = sample_from_slices(batch.sampling[i], table.samples_of(i))) {
      take_sampled(*sampled, logits, rows.back());
    } else {
      unclear.push_back(static_cast<std::uint32_t>(i));
    }
  }
  if (!may_ask(batch)) return rows;
  std::vector<std::vector<Candidate>> whole = whole_rows(unclear, table);
  for (std::size_t k = 0; k < unclear.size(); ++k) {
    const std::size_t i = unclear[k];
    take_sampled(sample_from_all(batch.sampling[i], std::move(whole[k])), table.logits_of(i), rows[i]);
  }
  return rows;
}

// [wanted] The tokens of those rows, of all ranks.
std::vector<std::vector<Candidate>> RowCollector::whole_rows(const std::vector<std::uint32_t>& wanted,
                                                             const Table& table) {
  for (int t = 1; t < mesh_.shape.tp; ++t) send(bytes_of(wanted), t);
  std::vector<std::vector<Candidate>> rows;
  for (const std::uint32_t i : wanted) rows.push_back(tokens_of(table.ranks.front().samples, table.slices, i));
  for (int t = 1; t < mesh_.shape.tp; ++t) {
    for (std::vector<Candidate>& row : rows) {
      const auto slice = values_of<Candidate>(receive(t, max_slice_ * sizeof(Candidate)));
      row.insert(row.end(), slice.begin(), slice.end());
    }
  }
  return rows;
}

void RowCollector::answer(int slices, const std::vector<SliceSample>& samples) {
  const auto wanted = values_of<std::uint32_t>(receive(0, samples.size() * sizeof(std::uint32_t)));
  for (const std::uint32_t i : wanted) send(bytes_of(tokens_of(samples, slices, i)), 0);
}

std::vector<std::byte> RowCollector::encode(const Batch& batch, int slices, const Offer& offer) {
  ByteWriter out;
  for (std::size_t k = 0; k < offer.logits.size(); ++k) {
    out.put(offer.logits[k]);
    if (batch.sampling.empty() || !batch.sampling[k / slices].samples) continue;
    const SliceSample& sample = offer.samples[k];
    out.put(sample.best);
    out.put(sample.score);
    out.put(sample.max);
    out.put(sample.sum_exp);
    out.put_list(sample.candidates);
  }
  return out.take();
}

RowCollector::Offer RowCollector::decode(const Batch& batch, int slices, std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const std::size_t count = batch.output_rows.size() * slices;
  Offer offer{{}, std::vector<SliceSample>(count)};
  for (std::size_t k = 0; k < count; ++k) {
    offer.logits.push_back(in.get<TopLogits>());
    if (batch.sampling.empty() || !batch.sampling[k / slices].samples) continue;
    SliceSample& sample = offer.samples[k];
    sample.best = in.get<Candidate>();
    sample.score = in.get<double>();
    sample.max = in.get<float>();
    sample.sum_exp = in.get<double>();
    sample.candidates = in.get_list<Candidate>();
  }
  in.expect_end();
  return offer;
}

std::size_t RowCollector::max_bytes(const Batch& batch, int slices) {
  std::size_t bytes = batch.output_rows.size() * sizeof(TopLogits);
  for (const RowSampling& row : batch.sampling) {
    bytes += kSampleBytes + (row.truncates() ? SliceSample::kCandidates * sizeof(Candidate) : 0);
  }
  return bytes * slices;
}

void RowCollector::send(std::span<const std::byte> bytes, int to) {
  MessageRequest request = mesh_.tensor.send(bytes, to, tags::kTopLogits);
  progress_.wait_until([&request] { return request.done(); });
}

std::vector<std::byte> RowCollector::receive(int from, std::size_t max_bytes) {
  std::vector<std::byte> bytes(max_bytes);
  MessageRequest request = mesh_.tensor.receive(bytes, from, tags::kTopLogits);
  progress_.wait_until([&request] { return request.done(); });
  bytes.resize(request.received_bytes());
  return bytes;
}

}  // namespace computron
