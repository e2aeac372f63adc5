// An index as flat text: what the helper that has read an HDF5 file tells the process that must not trust it.
// Private to src/checkpoint.
//
//   computron-index 1
//   bytes 51380224                       of the file
//   architecture 6f7074                  hexadecimal
//   config 7b7d                          hexadecimal
//   tensor NAME f32 0 4096 16384 64x64 DIGESTS        type, transposed, offset, bytes, shape, hexadecimal
//   file NAME 65536 512 DIGESTS                       offset, bytes
//   end 1 1                              how many tensors and files there were
//
// A type is that of the elements, of codes with their group: int8:32, fp8:row
//
// or, of a file that is refused, the exit code and the message in hexadecimal:
//
//   computron-index 1
//   error 65 6d2e68353a...
#pragma once

#include <string>
#include <string_view>

#include "computron/checkpoint/index.h"

namespace computron {

std::string index_text(const CheckpointIndex& index);
std::string index_text(const Error& error);

// Believes nothing. `path` and `file_bytes` are what the caller knows of the file itself. Throws the helper's Error if
// that is what the text says, CheckpointError naming the line at fault if it is no index, or not one of such a file.
CheckpointIndex parse_index_text(std::string_view text, const std::string& path, std::size_t file_bytes);

// More bytes than any index of such a file has as text.
std::size_t index_text_limit(std::size_t file_bytes);

}  // namespace computron
