// Pictures against what Pillow and transformers make of the same files (tests/fixtures), other kinds of files as the
// two libraries write them, and files that mean harm.
// jpeglib.h wants <cstdio> before it.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
// clang-format on
#include <gmock/gmock.h>
#include <png.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <tuple>

#include "computron/base/base64.h"
#include "src/requests/image_file.h"
#include "src/requests/image_values.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

using Bytes = std::vector<std::uint8_t>;

const std::string kFixtures = COMPUTRON_FIXTURES;

Bytes bytes_of(const std::string& path) {
  const std::string text = read_file(path);
  return {text.begin(), text.end()};
}

// A tensor of the fixtures' expected.safetensors.
template <class Value>
std::vector<Value> expected(const std::string& name) {
  static const std::string file = read_file(kFixtures + "/vit/expected.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  const std::size_t entry = file.find('"' + name + '"'), offsets = file.find("\"data_offsets\":[", entry);
  std::size_t begin = 0, end = 0;
  if (entry == std::string::npos ||
      std::sscanf(file.c_str() + offsets, "\"data_offsets\":[%zu,%zu]", &begin, &end) != 2) {
    ADD_FAILURE() << name << " is not in the fixtures";
    return {};
  }
  std::vector<Value> values((end - begin) / sizeof(Value));
  std::memcpy(values.data(), file.data() + sizeof header + header + begin, end - begin);
  return values;
}

ModelConfig fixture_config() {
  return ModelConfig::from_hf_json(read_file(kFixtures + "/vit/config.json"), std::nullopt,
                                   read_file(kFixtures + "/vit/preprocessor_config.json"));
}

template <class Value>
double largest_difference(const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return 1e9;
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double(a[i]) - double(b[i])));
  return most;
}

// What is refused, and why.
void expect_refused(const std::string& part, const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "not refused; expected '" << part << "'";
  } catch (const RequestError& error) {
    EXPECT_EQ(error.error_code(), "invalid_request");
    EXPECT_EQ(error.status(), 400);
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

// --- Against the fixtures ---------------------------------------------------------------------------------------

TEST(ImageFile, PngsGivePillowsPixels) {
  for (const std::string name : {"image.png", "tall.png"}) {
    const RgbImage image = read_image_file(kFixtures + "/vit/" + name);
    EXPECT_EQ(image.pixels, expected<std::uint8_t>("rgb." + name)) << name;
  }
}

TEST(ImageFile, JpegsGivePillowsPixelsAlmost) {
  const RgbImage image = read_image_file(kFixtures + "/vit/image.jpg");
  EXPECT_EQ(image.width, 53);
  EXPECT_EQ(image.height, 41);
  EXPECT_LE(largest_difference(image.pixels, expected<std::uint8_t>("rgb.image.jpg")), 2);
}

TEST(ImageValues, AreTransformers) {
  const ModelConfig config = fixture_config();
  const float step = 1 / 255.0f / *std::min_element(config.image_std.begin(), config.image_std.end());
  for (const auto& [name, tolerance] :
       {std::tuple("image.png", 1e-6f), std::tuple("tall.png", 1e-6f), std::tuple("image.jpg", 2 * step)}) {
    const std::vector<float> values = image_values(read_image_file(kFixtures + "/vit/" + name), config);
    EXPECT_LE(largest_difference(values, expected<float>(std::string("pixels.") + name)), tolerance) << name;
  }
}

// --- Resizing and patches ---------------------------------------------------------------------------------------

RgbImage grey(int width, int height, const Bytes& values) {
  RgbImage image{width, height, {}};
  for (const std::uint8_t value : values) image.pixels.insert(image.pixels.end(), 3, value);
  return image;
}

Bytes first_channel(const RgbImage& image) {
  Bytes values;
  for (std::size_t i = 0; i < image.pixels.size(); i += 3) values.push_back(image.pixels[i]);
  return values;
}

// By Pillow 13: Image.fromarray(...).resize(...).
TEST(Resize, IsPillows) {
  const RgbImage ramp = grey(7, 1, {0, 10, 255, 3, 77, 200, 128});
  EXPECT_THAT(first_channel(resize(ramp, 3, 1, Resampling::kBilinear)), ElementsAre(59, 92, 148));
  EXPECT_THAT(first_channel(resize(ramp, 3, 1, Resampling::kBicubic)), ElementsAre(56, 98, 145));
  EXPECT_THAT(first_channel(resize(ramp, 10, 1, Resampling::kBilinear)),
              ElementsAre(0, 5, 71, 243, 91, 29, 83, 169, 168, 128));
  EXPECT_THAT(first_channel(resize(ramp, 10, 1, Resampling::kBicubic)),
              ElementsAre(0, 0, 66, 254, 87, 3, 82, 182, 174, 124));
  const RgbImage square = grey(3, 3, {0, 255, 9, 80, 31, 200, 255, 1, 60});
  EXPECT_THAT(first_channel(resize(square, 2, 5, Resampling::kBilinear)),
              ElementsAre(96, 101, 82, 115, 62, 137, 121, 78, 160, 38));
  EXPECT_THAT(first_channel(resize(square, 2, 5, Resampling::kBicubic)),
              ElementsAre(102, 102, 79, 122, 56, 139, 124, 69, 172, 21));
  EXPECT_EQ(resize(square, 3, 3, Resampling::kBicubic).pixels, square.pixels);
  const RgbImage tall = grey(2, 7, {0, 255, 9, 80, 31, 200, 255, 1, 60, 90, 13, 240, 77, 5});
  EXPECT_THAT(first_channel(resize(tall, 3, 3, Resampling::kBilinear)),
              ElementsAre(10, 89, 168, 128, 108, 87, 46, 85, 124));
  EXPECT_THAT(first_channel(resize(tall, 3, 3, Resampling::kBicubic)),
              ElementsAre(0, 91, 183, 134, 109, 84, 42, 84, 125));
}

TEST(Patches, AreRowsOfFlattenedChannelsBehindTheClassToken) {
  ModelConfig config;
  config.image_size = 5;  // a pixel beyond the last whole patch
  config.patch_size = 2;
  config.channels = 2;
  std::vector<float> values;
  for (int channel = 0; channel < 2; ++channel) {
    for (int y = 0; y < 5; ++y) {
      for (int x = 0; x < 5; ++x) values.push_back(static_cast<float>(100 * channel + 10 * y + x));
    }
  }
  const std::vector<float> patches = cut_into_patches(values, config);
  ASSERT_EQ(patches.size(), 5u * 8u);
  const auto row = [&](int n) { return std::vector<float>(patches.begin() + 8 * n, patches.begin() + 8 * (n + 1)); };
  EXPECT_THAT(row(0), Each(0));
  EXPECT_THAT(row(1), ElementsAre(0, 1, 10, 11, 100, 101, 110, 111));
  EXPECT_THAT(row(2), ElementsAre(2, 3, 12, 13, 102, 103, 112, 113));
  EXPECT_THAT(row(3), ElementsAre(20, 21, 30, 31, 120, 121, 130, 131));
  EXPECT_THAT(row(4), ElementsAre(22, 23, 32, 33, 122, 123, 132, 133));
}

// --- Kinds of files ---------------------------------------------------------------------------------------------

Bytes made_png(png_uint_32 format, int width, int height, const void* pixels, const void* colours = nullptr,
               int count = 0) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = format;
  image.colormap_entries = static_cast<png_uint_32>(count);
  Bytes bytes(1 << 16);
  png_alloc_size_t size = bytes.size();
  EXPECT_TRUE(png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels, 0, colours)) << image.message;
  bytes.resize(size);
  return bytes;
}

// Greys of 2 bits, interlaced.
Bytes interlaced_png(int side, std::vector<Bytes> rows) {
  Bytes bytes;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &bytes,
      [](png_structp p, png_bytep data, std::size_t count) {
        auto* out = static_cast<Bytes*>(png_get_io_ptr(p));
        out->insert(out->end(), data, data + count);
      },
      nullptr);
  const auto size = static_cast<png_uint_32>(side);
  png_set_IHDR(png, info, size, size, 2, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_ADAM7, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_bytep> pointers;
  for (Bytes& row : rows) pointers.push_back(row.data());
  png_set_rows(png, info, pointers.data());
  png_write_png(png, info, PNG_TRANSFORM_PACKING, nullptr);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

TEST(ImageFile, AllKindsOfPngsBecomeRgb) {
  const auto pixels = [](const Bytes& file) { return decode_image(file, "x.png").pixels; };
  const Bytes greys = {0, 100, 200, 255};
  EXPECT_THAT(pixels(made_png(PNG_FORMAT_GRAY, 2, 2, greys.data())),
              ElementsAre(0, 0, 0, 100, 100, 100, 200, 200, 200, 255, 255, 255));
  const Bytes clear = {10, 20, 30, 0, 40, 50, 60, 128};
  EXPECT_THAT(pixels(made_png(PNG_FORMAT_RGBA, 2, 1, clear.data())), ElementsAre(10, 20, 30, 40, 50, 60))
      << "transparency is dropped, not laid over something";
  const Bytes colours = {1, 2, 3, 4, 5, 6}, indices = {1, 0, 1};
  EXPECT_THAT(pixels(made_png(PNG_FORMAT_RGB_COLORMAP, 3, 1, indices.data(), colours.data(), 2)),
              ElementsAre(4, 5, 6, 1, 2, 3, 4, 5, 6));
  const Bytes shady = {1, 2, 3, 0, 4, 5, 6, 99};
  EXPECT_THAT(pixels(made_png(PNG_FORMAT_RGBA_COLORMAP, 3, 1, indices.data(), shady.data(), 2)),
              ElementsAre(4, 5, 6, 1, 2, 3, 4, 5, 6));
  const std::vector<std::uint16_t> wide = {0x1234, 0xff80, 0x00ff};
  EXPECT_THAT(pixels(made_png(PNG_FORMAT_LINEAR_RGB, 1, 1, wide.data())), ElementsAre(0x12, 0xff, 0x00));
  EXPECT_THAT(pixels(interlaced_png(3, {{0, 1, 2}, {3, 2, 1}, {0, 0, 3}})),
              ElementsAreArray(grey(3, 3, {0, 85, 170, 255, 170, 85, 0, 0, 255}).pixels));
}

// All pixels alike; `space` has so many components.
Bytes made_jpeg(J_COLOR_SPACE space, int components, int side, Bytes pixel, bool progressive = false) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* data = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &data, &size);
  info.image_width = info.image_height = static_cast<JDIMENSION>(side);
  info.input_components = components;
  info.in_color_space = space;
  jpeg_set_defaults(&info);
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  Bytes row;
  for (int x = 0; x < side; ++x) row.insert(row.end(), pixel.begin(), pixel.end());
  JSAMPROW rows[] = {row.data()};
  while (info.next_scanline < info.image_height) jpeg_write_scanlines(&info, rows, 1);
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  Bytes bytes(data, data + size);
  std::free(data);
  return bytes;
}

TEST(ImageFile, GreyAndProgressiveJpegsBecomeRgb) {
  const RgbImage shades = decode_image(made_jpeg(JCS_GRAYSCALE, 1, 9, {77}), "x.jpg");
  EXPECT_EQ(shades.pixels.size(), 3u * 81);
  EXPECT_THAT(shades.pixels, Each(77));
  const RgbImage slow = decode_image(made_jpeg(JCS_RGB, 3, 9, {99, 99, 99}, /*progressive=*/true), "x.jpg");
  EXPECT_EQ(slow.pixels.size(), 3u * 81);
  EXPECT_THAT(slow.pixels, Each(99));
}

TEST(ImageFile, CmykJpegsAreRefused) {
  expect_refused("'x.jpg': a CMYK JPEG is not read; convert it to RGB", [] {
    decode_image(made_jpeg(JCS_CMYK, 4, 9, {1, 2, 3, 4}), "x.jpg");
  });
}

// --- Files that mean harm ---------------------------------------------------------------------------------------

TEST(HostileImages, WhatIsNoImageIsNamed) {
  const TemporaryFolder folder;
  const auto refused = [](const std::string& path, const std::string& why) {
    expect_refused("body.image: '" + path + "': " + why, [&] { read_image_file(path); });
  };
  refused(folder / "none.png", "No such file or directory");
  refused(folder.write("empty.png", ""), "neither a PNG nor a JPEG");
  refused(folder.write("text.png", "hello"), "neither a PNG nor a JPEG");
  refused(folder.write("head.png", "\x89PNG\r\n\x1a\n"), "");
  refused(folder.write("head.jpg", "\xff\xd8\xff"), "");
  refused(std::filesystem::path(folder / "none.png").parent_path().string(), "it is a directory, not a regular file");
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  refused(folder / "fifo", "it is a FIFO, not a regular file");
}

TEST(HostileImages, LimitsHold) {
  const Bytes png = bytes_of(kFixtures + "/vit/image.png"), jpeg = bytes_of(kFixtures + "/vit/image.jpg");
  for (const Bytes& file : {png, jpeg}) {
    expect_refused("53 x 41 pixels; at most 2172 together",
                   [&] { decode_image(file, "x", {.max_pixels = 53 * 41 - 1}); });
    EXPECT_EQ(decode_image(file, "x", {.max_pixels = 53 * 41, .max_side = 53}).width, 53);
    expect_refused("", [&] { decode_image(file, "x", {.max_side = 52}); });
  }
  expect_refused("the file has 1.77 KiB; at most 1.00 KiB are read",
                 [] { read_image_file(kFixtures + "/vit/image.png", {.max_bytes = 1024}); });
  expect_refused("", [] {
    decode_image(made_jpeg(JCS_RGB, 3, 9, {99, 99, 99}, /*progressive=*/true), "x", {.max_scans = 2});
  });
}

TEST(HostileImages, AHeaderCannotAskForMemory) {
  Bytes jpeg = bytes_of(kFixtures + "/vit/image.jpg");
  const std::uint8_t frame[] = {0xff, 0xc0};
  const auto found = std::search(jpeg.begin(), jpeg.end(), std::begin(frame), std::end(frame));
  ASSERT_LT(found - jpeg.begin() + 9, std::ssize(jpeg));
  found[5] = found[7] = 0xfe;  // of height and width
  expect_refused("pixels; at most 33554432 together", [&] { decode_image(jpeg, "x"); });
}

// Cut anywhere or with bytes changed, a file gives pixels or a refusal; sanitizers watch.
TEST(HostileImages, DamageIsRefusedOrHarmless) {
  std::mt19937 random(4);
  for (const std::string name : {"image.png", "image.jpg"}) {
    const Bytes whole = bytes_of(kFixtures + "/vit/" + name);
    int refused = 0;
    const auto decode = [&](const Bytes& file) {
      try {
        const RgbImage image = decode_image(file, name);
        EXPECT_EQ(image.pixels.size(), std::size_t{3} * image.width * image.height);
      } catch (const RequestError& error) {
        EXPECT_THAT(error.what(), HasSubstr(name));
        ++refused;
      }
    };
    for (std::size_t size = 0; size + 40 < whole.size(); size += 7) decode({whole.begin(), whole.begin() + size});
    EXPECT_EQ(refused, (whole.size() - 40 + 6) / 7) << "every file that ends early";
    for (int i = 0; i < 300; ++i) {
      Bytes file = whole;
      for (int edits = 1 + i % 3; edits > 0; --edits)
        file[random() % file.size()] = static_cast<std::uint8_t>(random());
      decode(file);
    }
  }
}

}  // namespace
}  // namespace computron
