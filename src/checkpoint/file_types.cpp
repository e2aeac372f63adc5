#include "src/checkpoint/file_types.h"

namespace computron::format {
namespace {

// Layout of a 16-bit float: sign in bit 15, then the exponent, then the mantissa.
void make_half(hid_t type, std::size_t exponent_bits, const Subject& subject) {
  const std::size_t mantissa_bits = 15 - exponent_bits;
  H5_CHECK(subject, H5Tset_fields, type, 15, mantissa_bits, exponent_bits, 0, mantissa_bits);
  H5_CHECK(subject, H5Tset_precision, type, 16);
  H5_CHECK(subject, H5Tset_size, type, 2);
  H5_CHECK(subject, H5Tset_ebias, type, (std::size_t{1} << (exponent_bits - 1)) - 1);
}

}  // namespace

hdf5::Id file_type(DType dtype, const Subject& subject) {
  if (!is_plain(dtype)) {
    return {H5_CHECK(subject, H5Tcopy, dtype == DType::kInt8 ? H5T_STD_I8LE : H5T_STD_U8LE), H5Tclose};
  }
  hdf5::Id type(H5_CHECK(subject, H5Tcopy, H5T_IEEE_F32LE), H5Tclose);
  if (dtype == DType::kF16) make_half(type, 5, subject);
  if (dtype == DType::kBF16) make_half(type, 8, subject);
  return type;
}

std::optional<DType> dtype_of(hid_t stored, const Subject& subject) {
  for (const DType dtype : kPlainDTypes) {
    if (H5_CHECK(subject, H5Tequal, stored, file_type(dtype, subject)) > 0) return dtype;
  }
  return std::nullopt;
}

std::vector<std::size_t> dataset_shape(std::vector<std::size_t> tensor, DType dtype) {
  if (two_in_a_byte(dtype)) tensor.back() /= 2;
  return tensor;
}

std::vector<std::size_t> tensor_shape(std::vector<std::size_t> dataset, DType dtype, const Subject& subject) {
  if (!two_in_a_byte(dtype) || dataset.empty()) return dataset;
  if (__builtin_mul_overflow(dataset.back(), std::size_t{2}, &dataset.back())) subject.fail("size overflows");
  return dataset;
}

}  // namespace computron::format
