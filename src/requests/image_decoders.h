// The two libraries behind image_file.h. Both leave by longjmp when a file is bad, so each is driven by a class that
// owns what the library allocates, and by functions that hold nothing with a destructor.
#pragma once

#include <span>
#include <string>

#include "src/requests/image_file.h"

namespace computron {

[[noreturn]] void refuse_image(const std::string& path, const std::string& why);

// Throws unless such an image may be decoded.
void check_image_size(const std::string& path, std::size_t width, std::size_t height, const ImageLimits& limits);

RgbImage decode_png(std::span<const std::uint8_t> bytes, const std::string& path, const ImageLimits& limits);
RgbImage decode_jpeg(std::span<const std::uint8_t> bytes, const std::string& path, const ImageLimits& limits);

}  // namespace computron
