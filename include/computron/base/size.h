// Byte counts as people write them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace computron {

// "512MiB", "2GiB", "1.5GB", "4096", "64k"; binary and decimal suffixes. Throws Error{kUsage} naming `text`.
std::size_t parse_size(std::string_view text);

// "1.50 GiB", "512.00 MiB", "17 B".
std::string format_size(std::size_t bytes);

}  // namespace computron
