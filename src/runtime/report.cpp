#include "computron/runtime/report.h"

#include "computron/base/bytes.h"

namespace computron {
namespace {

constexpr std::size_t kRowBytes = 32 + TopLogits::kTop * 8;

void put(ByteWriter& out, const SampledRow& row) {
  out.put(row.token);
  out.put(row.logprob);
  out.put(row.target_logprob);
  out.put(static_cast<std::uint8_t>(row.finite));
  out.put(static_cast<std::uint8_t>(row.top.size()));
  for (const auto& [token, logprob] : row.top) {
    out.put(token);
    out.put(logprob);
  }
}

SampledRow get_row(ByteReader& in) {
  SampledRow row;
  row.token = in.get<TokenId>();
  row.logprob = in.get<float>();
  row.target_logprob = in.get<float>();
  row.finite = in.get<std::uint8_t>() != 0;
  const auto top = in.get<std::uint8_t>();
  for (int i = 0; i < top; ++i) {
    const auto token = in.get<TokenId>();
    row.top.emplace_back(token, in.get<float>());
  }
  return row;
}

}  // namespace

std::vector<std::byte> Report::encode() const {
  ByteWriter out;
  out.put(step);
  out.put(digest);
  out.put(received);
  out.put(link_bytes);
  out.put(frame_bytes);
  out.put(busy_s);
  out.put(pages_verified);
  out.put(pages_refetched);
  out.put(exposed_s);
  out.put(compute_s);
  out.put(static_cast<std::uint8_t>(launched_as_graph));
  out.put(static_cast<std::uint32_t>(rows.size()));
  for (const SampledRow& row : rows) put(out, row);
  out.put(static_cast<std::uint32_t>(encoded.size()));
  for (const std::vector<float>& values : encoded) out.put_list(values);
  return out.take();
}

Report Report::decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  Report report;
  report.step = in.get<StepId>();
  report.digest = in.get<StateDigest>();
  report.received = in.get<std::uint64_t>();
  report.link_bytes = in.get<std::uint64_t>();
  report.frame_bytes = in.get<std::uint64_t>();
  report.busy_s = in.get<double>();
  report.pages_verified = in.get<std::uint64_t>();
  report.pages_refetched = in.get<std::uint64_t>();
  report.exposed_s = in.get<double>();
  report.compute_s = in.get<double>();
  report.launched_as_graph = in.get<std::uint8_t>() != 0;
  const auto rows = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < rows; ++i) report.rows.push_back(get_row(in));
  const auto encoded = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < encoded; ++i) report.encoded.push_back(in.get_list<float>());
  in.expect_end();
  return report;
}

std::size_t Report::max_bytes(int rows, int encoded_rows, std::size_t values) {
  static const std::size_t without_rows = Report().encode().size();
  return without_rows + kRowBytes * static_cast<std::size_t>(rows) +
         sizeof(std::uint32_t) * static_cast<std::size_t>(encoded_rows) + sizeof(float) * values;
}

}  // namespace computron
