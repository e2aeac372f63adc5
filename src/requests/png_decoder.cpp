#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>

#include "src/requests/image_decoders.h"

namespace computron {
namespace {

constexpr std::size_t kMaxChunkBytes = std::size_t{1} << 20;  // of a text or profile, which nobody looks at

class PngReader {
 public:
  PngReader(std::span<const std::uint8_t> bytes, int max_side) : left_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, ignore);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) throw std::bad_alloc();
    png_set_read_fn(png_, this, take);
    png_set_user_limits(png_, static_cast<png_uint_32>(max_side), static_cast<png_uint_32>(max_side));
    png_set_chunk_malloc_max(png_, kMaxChunkBytes);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  // Both false when the file is bad; why() then says what is wrong.
  bool read_header() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_info(png_, info_);
    png_set_strip_16(png_);
    png_set_palette_to_rgb(png_);
    png_set_expand_gray_1_2_4_to_8(png_);
    png_set_gray_to_rgb(png_);
    png_set_strip_alpha(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }
  bool read_rows(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_image(png_, rows);
    return true;
  }

  std::size_t width() const { return png_get_image_width(png_, info_); }
  std::size_t height() const { return png_get_image_height(png_, info_); }
  std::size_t row_bytes() const { return png_get_rowbytes(png_, info_); }
  const char* why() const { return message_; }

 private:
  [[noreturn]] static void fail(png_structp png, png_const_charp why) {
    auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(reader->message_, sizeof reader->message_, "%s", why);
    png_longjmp(png, 1);
  }
  static void ignore(png_structp, png_const_charp) {}
  static void take(png_structp png, png_bytep out, std::size_t count) {
    auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > reader->left_.size()) png_error(png, "the file ends early");
    std::memcpy(out, reader->left_.data(), count);
    reader->left_ = reader->left_.subspan(count);
  }

  std::span<const std::uint8_t> left_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  char message_[128] = "";
};

}  // namespace

RgbImage decode_png(std::span<const std::uint8_t> bytes, const std::string& path, const ImageLimits& limits) {
  PngReader reader(bytes, limits.max_side);
  if (!reader.read_header()) refuse_image(path, reader.why());
  check_image_size(path, reader.width(), reader.height(), limits);
  RgbImage image{static_cast<int>(reader.width()), static_cast<int>(reader.height()), {}};
  if (reader.row_bytes() != 3 * reader.width()) refuse_image(path, "its pixels are not of a known kind");
  image.pixels.resize(reader.row_bytes() * reader.height());
  std::vector<png_bytep> rows(reader.height());
  for (std::size_t y = 0; y < rows.size(); ++y) rows[y] = image.pixels.data() + y * reader.row_bytes();
  if (!reader.read_rows(rows.data())) refuse_image(path, reader.why());
  return image;
}

}  // namespace computron
