#include "src/model/folder_tensors.h"

#include <fmt/format.h>

#include <algorithm>

#include "computron/base/printable.h"

namespace computron {

FolderTensors::FolderTensors(const Family& family, const SafetensorsFolder& weights, Differences& differences)
    : weights_(weights) {
  for (const auto& [name, tensor] : weights.tensors()) {
    const auto [named, fresh] = names_.emplace(family.plain_name(name), name);
    if (fresh) continue;
    differences.add(fmt::format("'{}' and '{}' are the same tensor", printable(named->second), printable(name)));
  }
}

const SafetensorsTensor* FolderTensors::find(const std::string& plain) const {
  const auto named = names_.find(plain);
  return named == names_.end() ? nullptr : &weights_.tensors().at(named->second);
}

std::string FolderTensors::name_of(const std::string& plain) const {
  const auto named = names_.find(plain);
  return printable(named == names_.end() ? plain : named->second);
}

std::vector<std::size_t> shape_in_files(const TensorSpec& spec, const SourceTensor& source) {
  std::vector<std::size_t> shape = spec.shape;
  if (spec.transposed) std::swap(shape.front(), shape.back());
  shape.front() = source.fused.total > 0 ? source.fused.total : shape.front() * static_cast<std::size_t>(source.parts);
  if (source.transposed) std::swap(shape.front(), shape.back());
  if (source.matrices > 1) shape.insert(shape.begin(), static_cast<std::size_t>(source.matrices));
  return shape;
}

namespace {

// Blocks of outputs, whose elements follow each other, are lines of the matrix.
MatrixSource fused_matrix(const TensorSpec& spec, const FusedRows& fused, MatrixSource matrix) {
  const std::size_t in = spec.shape.size() == 2 ? spec.shape.back() : 1;
  matrix.rows = spec.shape.front() / fused.block;
  matrix.columns = fused.block * in;
  matrix.stride = fused.stride * in;
  matrix.first = fused.first * in;
  return matrix;
}

}  // namespace

MatrixSource matrix_of(const TensorSpec& spec, const SourceTensor& source, const SafetensorsTensor& stored,
                       DType dtype) {
  MatrixSource matrix{.file = stored.file, .entry = stored.entry, .dtype = dtype};
  const auto part = static_cast<std::size_t>(source.part), parts = static_cast<std::size_t>(source.parts);
  const bool fused = source.fused.total > 0;
  ensure(!fused || !source.transposed, "a fused tensor that is stored transposed");
  ensure(!fused || !spec.transposed, "a fused tensor of which a part is stored transposed");
  if (fused) return fused_matrix(spec, source.fused, matrix);
  matrix.columns = matrix.stride = spec.shape.back();
  matrix.rows = spec.shape.size() == 2 ? spec.shape.front() : 1;
  const std::size_t before = static_cast<std::size_t>(source.matrix) * parts * matrix.elements();
  if (spec.shape.size() == 1) {
    matrix.first = before + (source.interleaved ? part : part * matrix.columns);
    if (source.interleaved) {
      std::swap(matrix.rows, matrix.columns);
      matrix.stride = parts;
    }
    return matrix;
  }
  const std::size_t out = spec.transposed ? matrix.columns : matrix.rows;
  const std::size_t in = spec.transposed ? matrix.rows : matrix.columns;
  matrix.transposed = source.transposed != spec.transposed;
  const std::size_t between = source.transposed ? 1 : in;  // elements from one output to the next
  matrix.stride = source.transposed ? out * parts : source.interleaved ? in * parts : in;
  matrix.first = before + part * (source.interleaved ? between : between * out);
  if (source.interleaved && source.transposed) matrix.step = parts;
  ensure(matrix.step == 1 || matrix.transposed, "outputs that are taken by turns are to be stored as they lie");
  return matrix;
}

bool same_bytes(const SafetensorsTensor& a, const SafetensorsTensor& b) {
  constexpr std::size_t kPiece = 1 << 20;
  if (a.entry->dtype != b.entry->dtype || a.entry->shape != b.entry->shape) return false;
  std::vector<std::byte> of_a(kPiece), of_b(kPiece);
  const std::size_t bytes = a.entry->end - a.entry->begin;
  for (std::size_t at = 0; at < bytes; at += kPiece) {
    const std::size_t count = std::min(kPiece, bytes - at);
    a.file->read(*a.entry, a.entry->begin + at, std::span(of_a).first(count));
    b.file->read(*b.entry, b.entry->begin + at, std::span(of_b).first(count));
    if (!std::equal(of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(count), of_b.begin())) return false;
  }
  return true;
}

}  // namespace computron
