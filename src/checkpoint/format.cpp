#include "format.h"

#include <fmt/format.h>

#include <cctype>

namespace computron::format {
namespace {

bool is_name_character(unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; }

// Layout of a 16-bit float: sign in bit 15, then the exponent, then the mantissa.
void make_half(hid_t type, std::size_t exponent_bits, const hdf5::Subject& subject) {
  const std::size_t mantissa_bits = 15 - exponent_bits;
  H5_CHECK(subject, H5Tset_fields, type, 15, mantissa_bits, exponent_bits, 0, mantissa_bits);
  H5_CHECK(subject, H5Tset_precision, type, 16);
  H5_CHECK(subject, H5Tset_size, type, 2);
  H5_CHECK(subject, H5Tset_ebias, type, (std::size_t{1} << (exponent_bits - 1)) - 1);
}

}  // namespace

std::optional<std::string> fault_of_name(std::string_view name) {
  if (name.empty()) return "empty name";
  if (name.size() > kMaxNameBytes) return fmt::format("name of {} bytes (limit {})", name.size(), kMaxNameBytes);
  if (name == "." || name == "..") return "reserved name";
  for (const unsigned char c : name) {
    if (!is_name_character(c)) return fmt::format("character 0x{:02x} in a name", c);
  }
  return std::nullopt;
}

std::size_t tensor_bytes(const std::vector<std::size_t>& shape, DType dtype, const hdf5::Subject& subject) {
  if (shape.empty() || shape.size() > kMaxRank) {
    subject.fail(fmt::format("{} dimensions (1 to {} are allowed)", shape.size(), kMaxRank));
  }
  std::size_t bytes = size_of(dtype);
  for (const std::size_t extent : shape) {
    if (extent == 0) subject.fail("a dimension is zero");
    if (__builtin_mul_overflow(bytes, extent, &bytes)) subject.fail("size overflows");
  }
  return bytes;
}

hdf5::Id file_type(DType dtype, const hdf5::Subject& subject) {
  hdf5::Id type(H5_CHECK(subject, H5Tcopy, H5T_IEEE_F32LE), H5Tclose);
  if (dtype == DType::kF16) make_half(type, 5, subject);
  if (dtype == DType::kBF16) make_half(type, 8, subject);
  return type;
}

std::optional<DType> dtype_of(hid_t stored, const hdf5::Subject& subject) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (H5_CHECK(subject, H5Tequal, stored, file_type(dtype, subject)) > 0) return dtype;
  }
  return std::nullopt;
}

}  // namespace computron::format
