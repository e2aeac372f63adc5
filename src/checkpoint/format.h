// The names and limits of the checkpoint format that reader and writer share. Private to src/checkpoint.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "computron/base/types.h"
#include "computron/checkpoint/index.h"
#include "src/checkpoint/subject.h"

namespace computron::format {

// Root attributes.
inline constexpr char kVersion[] = "format_version";     // int32
inline constexpr char kArchitecture[] = "architecture";  // fixed-length UTF-8
inline constexpr char kConfig[] = "config";              // fixed-length UTF-8, JSON
// Root groups.
inline constexpr char kTensors[] = "tensors";      // a dataset a tensor, no groups within
inline constexpr char kTokenizer[] = "tokenizer";  // a dataset a file, no groups within; may be absent
// Attributes of a tensor; a file of the tokenizer, a dataset uint8 [bytes], has the first.
inline constexpr char kDigests[] = "xxh3_128";       // uint8 [chunks][16]
inline constexpr char kTransposed[] = "transposed";  // int32, 0 or 1
// And of a tensor that is not of plain values. Its dataset is int8 for int8 and uint8 otherwise; of int4 and fp4 the
// last dimension is half the tensor's, the first of two codes in a byte's low half.
inline constexpr char kCodes[] = "codes";    // fixed-length string: "int8", "fp8", ...; of scales "e8m0" or "e4m3"
inline constexpr char kGroup[] = "group";    // int32, of codes: values along `in` that share a scale; 0: a whole row
inline constexpr char kFactor[] = "factor";  // float64, of e4m3: what all scales are multiplied by

inline constexpr std::size_t kMaxStringBytes = 64 << 10;
inline constexpr std::size_t kMaxNameBytes = 256;
inline constexpr std::size_t kMaxTensors = 100000;
inline constexpr std::size_t kMaxRank = 4;

// Why `name` may not name a tensor; nullopt if it may. Characters A-Z a-z 0-9 . _ - within one path component.
std::optional<std::string> fault_of_name(std::string_view name);

// Bytes of a tensor of 1 to kMaxRank dimensions, none zero; throws `subject` on anything else, on an odd last dimension
// of codes that lie two in a byte and on overflow.
std::size_t tensor_bytes(const std::vector<std::size_t>& shape, DType dtype, const Subject& subject);
// Codes have two dimensions and groups of so many values as kernels take, or whole rows; nothing else has groups.
// Throws `subject` otherwise.
void check_group(const TensorEntry& tensor, const Subject& subject);
// Only e4m3 has a factor other than one; it is no less than zero and makes no scale that is not finite. Throws
// `subject` otherwise.
void check_factor(const TensorEntry& tensor, const Subject& subject);

}  // namespace computron::format
