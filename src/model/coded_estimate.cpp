#include "computron/model/coded_estimate.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "computron/base/convert.h"
#include "computron/checkpoint/reader.h"
#include "computron/ops/coded_size.h"

namespace computron {
namespace {

struct SampledRows {
  std::size_t rows = 0, width = 0;  // width: elements of a stored row
  std::vector<std::byte> values;    // [rows, width]
};

// A stored row is a row of the tensor, or a column of one that is stored transposed.
std::size_t rows_to_sample(const TensorEntry& entry, std::size_t rows, std::size_t width, DType dtype, bool packed,
                           int row_block, std::size_t sample_bytes) {
  const auto block = static_cast<std::size_t>(packed && !entry.transposed ? row_block : 1);
  const std::size_t fit = sample_bytes / (width * size_of(dtype)) / block * block;
  return std::min(std::max(fit, block), rows);
}

SampledRows sample(const TensorReader& reader, const TensorEntry& entry, DType dtype, bool packed, int row_block,
                   std::size_t sample_bytes) {
  const std::size_t elements = entry.bytes / size_of(entry.dtype);
  const std::size_t all_rows = entry.shape.size() > 1 ? std::max<std::size_t>(entry.shape.front(), 1) : 1;
  SampledRows sampled;
  sampled.width = elements / all_rows;
  if (sampled.width == 0) return sampled;
  sampled.rows = rows_to_sample(entry, all_rows, sampled.width, dtype, packed, row_block, sample_bytes);
  const std::size_t begin = (all_rows - sampled.rows) / 2 * sampled.width, count = sampled.rows * sampled.width;
  sampled.values.resize(count * size_of(dtype));
  const std::size_t size = size_of(entry.dtype);
  reader.read(entry, begin * size, (begin + count) * size, sample_bytes,
              [&](std::size_t at, std::span<const std::byte> bytes) {
                convert_elements(bytes.data(), entry.dtype, sampled.values.data() + at / size * size_of(dtype), dtype,
                                 bytes.size() / size);
              });
  return sampled;
}

// As a weight of as many rows and columns lies in a page.
std::vector<std::byte> packed(const SampledRows& sampled, bool transposed, const WeightFormat& format, DType dtype) {
  const auto rows = static_cast<int>(transposed ? sampled.width : sampled.rows);
  const auto columns = static_cast<int>(transposed ? sampled.rows : sampled.width);
  std::vector<std::byte> panel(format.panel_bytes(rows, columns, dtype));
  format.pack(panel.data(), columns, dtype, 0, rows, 0, columns, sampled.values.data(), transposed ? 1 : sampled.width,
              transposed ? sampled.width : 1);
  return panel;
}

double share_coded(std::span<const std::byte> values, DType dtype) {
  if (values.empty()) return 1;
  const double share = static_cast<double>(coded_bytes(values, dtype)) / static_cast<double>(values.size());
  return std::min(share, 1.0);
}

}  // namespace

CodedEstimate::CodedEstimate(const CheckpointIndex& index, const WeightFormat& format, const WeightTypes& types,
                             std::size_t sample_bytes)
    : format_(format) {
  const TensorReader reader(index);
  DType input = DType::kF32;  // of the weight before, whose adapter is kept as that
  for (const TensorSpec& spec : tensor_specs(ModelConfig::from_json(index.config_json))) {
    const TensorEntry& entry = index.tensors.at(spec.name);
    const bool is_weight = spec.role == TensorRole::kGemmWeight;
    if (is_weight) input = format.input_dtype(types.of(spec.name));
    if (is_weight && types.of(spec.name).quantised()) {  // which are kept as they are
      add(spec.name, entry.bytes + index.tensors.at(scales_name(spec.name)).bytes, /*share=*/1);
      continue;
    }
    const bool is_low_rank = spec.role == TensorRole::kTable && spec.name.find(".lora_") != std::string::npos;
    const DType dtype = is_weight ? types.of(spec.name).values : is_low_rank ? input : DType::kF32;
    const SampledRows sampled = sample(reader, entry, dtype, is_weight, format.row_block(), sample_bytes);
    add(spec.name, entry.bytes / size_of(entry.dtype) * size_of(dtype),
        share_coded(is_weight ? packed(sampled, entry.transposed, format, dtype) : sampled.values, dtype));
  }
}

void CodedEstimate::add(const std::string& name, std::size_t bytes, double share) {
  shares_[name] = share;
  total_bytes_ += bytes;
  total_coded_bytes_ += share * static_cast<double>(bytes);
}

std::size_t CodedEstimate::total_coded_bytes() const {
  return static_cast<std::size_t>(std::llround(total_coded_bytes_));
}

// The mean over the stored tensors that it is made of.
double CodedEstimate::share_of(const ShardTensor& tensor) const {
  double sum = 0;
  for (const TensorPart& part : tensor.parts) sum += shares_.at(part.source);
  return tensor.parts.empty() ? 1 : sum / static_cast<double>(tensor.parts.size());
}

std::vector<std::size_t> CodedEstimate::link_bytes(const ShardLayout& layout) const {
  std::vector<double> saved(layout.used_bytes.size(), 0);  // [page]
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const ShardTensor& tensor = layout.plan.tensors[i];
    if (tensor.same_as >= 0) continue;  // its pages have been counted
    const double saving = 1 - share_of(tensor);
    for (const PanelPlace& panel : layout.tensors[i].panels) {
      const std::size_t bytes =
          tensor.role == TensorRole::kGemmWeight
              ? format_.panel_bytes(panel.rows, tensor.columns, tensor.type)
              : size_of(tensor.type.values) * static_cast<std::size_t>(panel.rows) * tensor.columns;
      saved[panel.page] += saving * static_cast<double>(bytes);
    }
  }
  std::vector<std::size_t> link_bytes = layout.used_bytes;
  for (std::size_t page = 0; page < saved.size(); ++page) link_bytes[page] -= static_cast<std::size_t>(saved[page]);
  return link_bytes;
}

}  // namespace computron
