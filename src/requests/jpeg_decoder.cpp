// jpeglib.h wants <cstdio> before it.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <csetjmp>

#include "src/requests/image_decoders.h"

namespace computron {
namespace {

class JpegReader {
 public:
  explicit JpegReader(int max_scans) : max_scans_(max_scans) {
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = this;
    errors_.error_exit = fail;
    errors_.emit_message = [](j_common_ptr, int) {};  // damage that still gives pixels: Pillow takes it too
    progress_.progress_monitor = watch;
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // All false when the file is bad; why() then says what is wrong. `bytes` must outlive the reader.
  bool read_header(std::span<const std::uint8_t> bytes) {
    if (setjmp(escape_) != 0) return false;
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, bytes.data(), bytes.size());
    info_.src->fill_input_buffer = [](j_decompress_ptr info) -> boolean {
      ERREXIT(info, JERR_INPUT_EOF);
      return FALSE;
    };
    jpeg_read_header(&info_, TRUE);
    return true;
  }
  bool start() {
    if (setjmp(escape_) != 0) return false;
    info_.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info_);
    return true;
  }
  bool read_rows(std::uint8_t* pixels) {
    if (setjmp(escape_) != 0) return false;
    while (info_.output_scanline < info_.output_height) {
      JSAMPROW row = pixels + std::size_t{3} * info_.output_width * info_.output_scanline;
      jpeg_read_scanlines(&info_, &row, 1);
    }
    return true;
  }

  int width() const { return static_cast<int>(info_.image_width); }
  int height() const { return static_cast<int>(info_.image_height); }
  bool is_cmyk() const { return info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK; }
  const char* why() const { return message_; }

 private:
  [[noreturn]] static void fail(j_common_ptr info) {
    auto* reader = static_cast<JpegReader*>(info->client_data);
    info->err->format_message(info, reader->message_);
    std::longjmp(reader->escape_, 1);
  }
  // A small file may ask for the whole picture to be gone over thousands of times.
  static void watch(j_common_ptr info) {
    if (!info->is_decompressor) return;
    const auto* reader = static_cast<const JpegReader*>(info->client_data);
    if (reader->info_.input_scan_number > reader->max_scans_) ERREXIT(info, JERR_BAD_PROGRESSION);
  }

  int max_scans_;
  jpeg_decompress_struct info_ = {};
  jpeg_error_mgr errors_ = {};
  jpeg_progress_mgr progress_ = {};
  std::jmp_buf escape_ = {};
  char message_[JMSG_LENGTH_MAX] = "";
};

}  // namespace

RgbImage decode_jpeg(std::span<const std::uint8_t> bytes, const std::string& path, const ImageLimits& limits) {
  JpegReader reader(limits.max_scans);
  if (!reader.read_header(bytes)) refuse_image(path, reader.why());
  check_image_size(path, static_cast<std::size_t>(reader.width()), static_cast<std::size_t>(reader.height()), limits);
  if (reader.is_cmyk()) refuse_image(path, "a CMYK JPEG is not read; convert it to RGB");
  RgbImage image{reader.width(), reader.height(), {}};
  if (!reader.start()) refuse_image(path, reader.why());
  image.pixels.resize(std::size_t{3} * image.width * image.height);
  if (!reader.read_rows(image.pixels.data())) refuse_image(path, reader.why());
  return image;
}

}  // namespace computron
