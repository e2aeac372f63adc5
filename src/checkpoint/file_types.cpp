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
  hdf5::Id type(H5_CHECK(subject, H5Tcopy, H5T_IEEE_F32LE), H5Tclose);
  if (dtype == DType::kF16) make_half(type, 5, subject);
  if (dtype == DType::kBF16) make_half(type, 8, subject);
  return type;
}

std::optional<DType> dtype_of(hid_t stored, const Subject& subject) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (H5_CHECK(subject, H5Tequal, stored, file_type(dtype, subject)) > 0) return dtype;
  }
  return std::nullopt;
}

}  // namespace computron::format
