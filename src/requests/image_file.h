// Pictures in files: PNG (libpng) and JPEG (libjpeg-turbo), as Pillow's Image.open(...).convert("RGB") reads them:
// palettes and greys become colours, transparency is dropped, of 16 bits the upper 8 count, orientation tags do not.
// Files are of unknown origin: what they may take is bounded, and whatever is wrong with one is a RequestError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace computron {

struct RgbImage {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> pixels;  // [height, width, 3]
};

struct ImageLimits {
  std::size_t max_bytes = std::size_t{32} << 20;  // of the file
  std::size_t max_pixels = std::size_t{1} << 25;  // 33 million: 96 MiB decoded, 200 MiB more while a JPEG is
  int max_side = 1 << 16;
  int max_scans = 64;  // of a progressive JPEG; a usual one has 10
};

// RequestError{invalid_request} naming the file: not readable, not a regular file, neither kind, damaged, too large.
RgbImage read_image_file(const std::string& path, const ImageLimits& limits = {});
// The same for what the file `path` holds.
RgbImage decode_image(std::span<const std::uint8_t> bytes, const std::string& path, const ImageLimits& limits = {});

}  // namespace computron
