// How small pages of weights become when they are coded, and how fast they are coded and decoded (perf/README.md,
// "Coded"): Markdown tables on stdout. Ends with 1 when a target is missed.
//
//   perf_coded ROUNDS FOLDER...     of measuring; folders of trained models, each with a model.safetensors
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "computron/base/time.h"
#include "computron/base/vectors.h"
#include "computron/checkpoint/safetensors.h"
#include "kernels/cpu/coded_page.h"
#include "kernels/cpu/pack.h"
#include "src/device/cpu/streaming_copy.h"

using namespace computron;
using namespace computron::kernels;

namespace {

using Page = std::vector<std::byte>;

constexpr std::size_t kPageBytes = std::size_t{16} << 20;
constexpr int kRows = 2048;
constexpr int kPlaces = 12;  // of each page in memory, taken in turn, so that none is in a cache
constexpr double kStd = 0.02;

// ---- what is coded

// The value at (row, column) of a matrix; called row by row.
using Weight = std::function<double(int row, int column)>;

void store_value(double value, DType dtype, std::byte* out) {
  const auto single = static_cast<float>(value);
  if (dtype == DType::kF32) {
    std::memcpy(out, &single, sizeof single);
    return;
  }
  const std::uint16_t half = dtype == DType::kBF16 ? bf16_from_f32(single) : f16_from_f32(single);
  std::memcpy(out, &half, sizeof half);
}

// A matrix of rows × columns as it lies in pages.
Page packed_panels(const std::byte* matrix, int rows, int columns, DType dtype) {
  Page packed(packed_bytes(rows, columns, dtype));
  pack(packed.data(), padded_depth(columns, dtype), dtype, 0, rows, 0, columns, matrix, columns, 1);
  return packed;
}

Page matrix_of(int rows, int columns, DType dtype, const Weight& weight) {
  Page matrix(static_cast<std::size_t>(rows) * columns * size_of(dtype));
  std::byte* at = matrix.data();
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column, at += size_of(dtype)) {
      store_value(weight(row, column), dtype, at);
    }
  }
  return packed_panels(matrix.data(), rows, columns, dtype);
}

// As many columns as make a page.
Page page_of(DType dtype, const Weight& weight) {
  return matrix_of(kRows, static_cast<int>(kPageBytes / kRows / size_of(dtype)), dtype, weight);
}

Page gaussian(DType dtype) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(0, kStd);
  return page_of(dtype, [&](int, int) { return normal(random); });
}

// A standard deviation for each row, from kStd / 4 to 4 kStd.
Page row_wise_std(DType dtype) {
  std::mt19937_64 random(2);
  std::normal_distribution<double> normal(0, kStd);
  std::uniform_real_distribution<double> octaves(-2, 2);
  double scale = 1;
  return page_of(dtype, [&](int, int column) {
    if (column == 0) scale = std::exp2(octaves(random));
    return scale * normal(random);
  });
}

Page student_t(DType dtype) {
  std::mt19937_64 random(3);
  std::student_t_distribution<double> heavy_tailed(3);
  return page_of(dtype, [&](int, int) { return kStd * heavy_tailed(random); });
}

// Matrices of 500 × 40, whose panels are padded to 512 × 64.
Page padded(DType dtype) {
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal(0, kStd);
  Page page;
  while (page.size() < kPageBytes) {
    const Page one = matrix_of(500, 40, dtype, [&](int, int) { return normal(random); });
    page.insert(page.end(), one.begin(), one.end());
  }
  return page;
}

Page random_bits() {
  std::mt19937_64 random(5);
  Page page(kPageBytes);
  for (std::size_t i = 0; i < page.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t bits = random();
    std::memcpy(page.data() + i, &bits, sizeof bits);
  }
  return page;
}

Page as_type(const Page& halves, DType dtype) {
  Page values(halves.size() / 2 * size_of(dtype));
  for (std::size_t i = 0; i < halves.size() / 2; ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, halves.data() + 2 * i, sizeof half);
    store_value(f32_from_f16(half), dtype, values.data() + i * size_of(dtype));
  }
  return values;
}

// All matrices of models that are stored in float16.
Page trained(std::span<const std::string> folders, DType dtype) {
  Page page;
  for (const std::string& folder : folders) {
    const SafetensorsFile file(folder + "/model.safetensors");
    for (const auto& [name, entry] : file.entries()) {
      if (entry.shape.size() != 2 || entry.usable_dtype() != DType::kF16) continue;
      Page halves(entry.end - entry.begin);
      file.read(entry, entry.begin, halves);
      const Page packed = packed_panels(as_type(halves, dtype).data(), static_cast<int>(entry.shape[0]),
                                        static_cast<int>(entry.shape[1]), dtype);
      page.insert(page.end(), packed.begin(), packed.end());
    }
  }
  return page;
}

// ---- sizes

struct Coded {
  Page bytes;
  std::size_t size = 0;
  std::span<const std::byte> page() const { return std::span(bytes).first(size); }
};

Coded coded(const Page& page, DType dtype) {
  const std::vector<BlockEncoding> encodings(coded_blocks(page.size()), encoding_of(dtype));
  Coded coded{Page(most_coded_bytes(page.size())), 0};
  coded.size = encode_page(page, encodings, coded.bytes.data());
  return coded;
}

// Bits that the numbers in `counts` carry, if each is independent of the others.
double information(const std::map<std::uint32_t, double>& counts) {
  double all = 0, bits = 0;
  for (const auto& [number, count] : counts) all += count;
  for (const auto& [number, count] : counts) bits += count * std::log2(all / count);
  return bits;
}

// Bits a value: of exponents what they carry within a block, and all others.
double entropy(const Page& page, DType dtype) {
  const std::size_t bytes = size_of(dtype), exponent_bits = dtype == DType::kF16 ? 5 : 8;
  double bits = 0;
  for (std::size_t block = 0; block < page.size(); block += kCodedBlockBytes) {
    std::map<std::uint32_t, double> exponents;
    for (std::size_t at = block; at < std::min(block + kCodedBlockBytes, page.size()); at += bytes) {
      std::uint32_t value = 0;
      std::memcpy(&value, page.data() + at, bytes);
      ++exponents[value >> (8 * bytes - 1 - exponent_bits) & ((1u << exponent_bits) - 1)];
    }
    bits += information(exponents);
  }
  return bits * static_cast<double>(bytes) / static_cast<double>(page.size()) +
         static_cast<double>(8 * bytes - exponent_bits);
}

std::string_view verdict(bool has_target, bool met) { return !has_target ? "" : met ? "met" : "missed"; }

class Sizes {
 public:
  Sizes() {
    fmt::print("| weights | type | entropy, bits a value | coded, bits a value | raw ÷ coded | target | |\n");
    fmt::print("|---|---|---|---|---|---|---|\n");
  }

  // `most`: bits a value; 0: no target.
  void row(std::string_view name, const Page& page, DType dtype, double most) {
    const auto raw = static_cast<double>(page.size());
    const auto size = static_cast<double>(coded(page, dtype).size);
    const double bits = 8 * size * static_cast<double>(size_of(dtype)) / raw;
    met_ = met_ && (most == 0 || bits <= most);
    fmt::print("| {} | {} | {:.2f} | {:.2f} | {:.3f} | {} | {} |\n", name, name_of(dtype), entropy(page, dtype), bits,
               raw / size, most == 0 ? "" : fmt::format("≤ {:.5g}", most), verdict(most > 0, bits <= most));
  }
  bool met() const { return met_; }

 private:
  bool met_ = true;
};

bool print_sizes(std::span<const std::string> folders) {
  Sizes sizes;
  sizes.row("Gaussian", gaussian(DType::kBF16), DType::kBF16, 11.4);
  sizes.row("trained", trained(folders, DType::kBF16), DType::kBF16, 11.4);
  sizes.row("row-wise std", row_wise_std(DType::kBF16), DType::kBF16, 11.7);
  sizes.row("Student-t 3", student_t(DType::kBF16), DType::kBF16, 0);
  sizes.row("500 × 40, padded", padded(DType::kBF16), DType::kBF16, 0);
  sizes.row("Gaussian", gaussian(DType::kF16), DType::kF16, 14.5);
  sizes.row("trained", trained(folders, DType::kF16), DType::kF16, 14.5);
  sizes.row("Gaussian", gaussian(DType::kF32), DType::kF32, 27.5);
  sizes.row("zeros", Page(kPageBytes), DType::kBF16, 0);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    sizes.row("random bits", random_bits(), dtype, 1.002 * 8 * static_cast<double>(size_of(dtype)));
  }
  return sizes.met();
}

// ---- rates

// A page in several places, and as many places to decode it to.
struct Places {
  explicit Places(const Page& page, DType dtype)
      : encodings(coded_blocks(page.size()), encoding_of(dtype)),
        raw(kPlaces, page),
        coded_pages(kPlaces),
        out(kPlaces) {
    for (int i = 0; i < kPlaces; ++i) {
      coded_pages[i] = coded(page, dtype);
      out[i].resize(most_coded_bytes(page.size()) + kLine);
    }
  }
  // Aligned.
  std::byte* out_at(int place) {
    auto* const begin = out[static_cast<std::size_t>(place)].data();
    return begin + (kLine - reinterpret_cast<std::uintptr_t>(begin) % kLine) % kLine;
  }

  static constexpr std::size_t kLine = 64;
  std::vector<BlockEncoding> encodings;
  std::vector<Page> raw;
  std::vector<Coded> coded_pages;
  std::vector<Page> out;
};

double median(std::vector<double> x) {
  std::ranges::sort(x);
  return (x[(x.size() - 1) / 2] + x[x.size() / 2]) / 2;
}

double seconds_of(const std::function<void()>& work) {
  const double begin = now_s();
  work();
  return now_s() - begin;
}

struct IsaRates {
  CodedIsa isa;
  std::string_view name;
  double least;  // of a non-temporal copy
  std::vector<double> decode_s = {}, encode_s = {}, share = {};
};

std::vector<IsaRates> measured_isas() {
  std::vector<IsaRates> isas = {{CodedIsa::kAvx2, "AVX2", 0.75}};
  if (best_coded_isa() == CodedIsa::kAvx512) isas.push_back({CodedIsa::kAvx512, "AVX-512 VBMI2", 0.85});
  return isas;
}

// A line after the other, past the caches. `to` is aligned to lines.
void copy_in_order(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += sizeof(__m256i)) {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), some);
  }
  _mm_sfence();
}

class Rounds {
 public:
  Rounds(const Page& page, DType dtype) : page_(page), places_(page, dtype) {}

  // Copies and decodes one after the other, each in a place that was not touched for long.
  void decode_round(std::vector<IsaRates>& isas) {
    const double copy_s = std::min(copied_s(streaming_copy), copied_s(copy_in_order));
    copy_s_.push_back(copy_s);
    for (IsaRates& rates : isas) {
      rates.decode_s.push_back(seconds_of([&] { decode(next(), rates.isa); }));
      rates.share.push_back(copy_s / rates.decode_s.back());
    }
    std::rotate(isas.begin(), isas.begin() + 1, isas.end());
  }
  void encode_round(std::vector<IsaRates>& isas) {
    for (IsaRates& rates : isas) rates.encode_s.push_back(seconds_of([&] { encode(next(), rates.isa); }));
  }
  // Of what was decoded last.
  void check() {
    ensure(std::memcmp(places_.out_at(turn_), page_.data(), page_.size()) == 0, "a page was decoded wrongly");
  }
  double copy_s() const { return median(copy_s_); }
  double coded_ratio() const {
    return static_cast<double>(places_.coded_pages.front().size) / static_cast<double>(page_.size());
  }

 private:
  int next() { return turn_ = (turn_ + 1) % kPlaces; }

  double copied_s(void (*copy)(std::byte*, const std::byte*, std::size_t)) {
    const int place = next();
    return seconds_of([&] { copy(places_.out_at(place), places_.raw[place].data(), page_.size()); });
  }
  void decode(int place, CodedIsa isa) {
    const bool good = decode_blocks(places_.coded_pages[place].page(), page_.size(), 0, coded_blocks(page_.size()),
                                    places_.out_at(place), Stores::kStreaming, isa);
    ensure(good, "a coded page was refused");
  }
  void encode(int place, CodedIsa isa) {
    const std::size_t size = encode_page(places_.raw[place], places_.encodings, places_.out_at(place), isa);
    ensure(size == places_.coded_pages[place].size, "two encoders differ");
  }

  const Page& page_;
  Places places_;
  int turn_ = 0;
  std::vector<double> copy_s_;
};

bool print_rates(std::string_view name, const Page& page, DType dtype, int rounds) {
  Rounds measured(page, dtype);
  std::vector<IsaRates> isas = measured_isas();
  for (int i = 0; i < rounds; ++i) measured.decode_round(isas);
  measured.check();
  for (int i = 0; i < rounds; ++i) measured.encode_round(isas);
  std::sort(isas.begin(), isas.end(), [](const IsaRates& a, const IsaRates& b) { return a.isa < b.isa; });
  bool met = true;
  const double gigabytes = 1e-9 * static_cast<double>(page.size());
  for (const IsaRates& rates : isas) {
    const double share = median(rates.share);
    const bool has_target = dtype == DType::kBF16;
    met = met && (!has_target || share >= rates.least);
    fmt::print("| {} | {} | {} | {:.1f} | {:.1f} | {:.2f} | {} | {} | {:.1f} |\n", name, name_of(dtype), rates.name,
               gigabytes / measured.copy_s(), gigabytes / median(rates.decode_s), share,
               has_target ? fmt::format("≥ {}", rates.least) : "", verdict(has_target, share >= rates.least),
               gigabytes / median(rates.encode_s));
  }
  return met;
}

bool print_all_rates(int rounds) {
  fmt::print(
      "\n| weights | type | instructions | copy, GB/s | decode, GB/s | decode ÷ copy | target | | encode, GB/s |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
  bool met = print_rates("Gaussian", gaussian(DType::kBF16), DType::kBF16, rounds);
  met = print_rates("row-wise std", row_wise_std(DType::kBF16), DType::kBF16, rounds) && met;
  met = print_rates("Gaussian", gaussian(DType::kF16), DType::kF16, rounds) && met;
  met = print_rates("Gaussian", gaussian(DType::kF32), DType::kF32, rounds) && met;
  met = print_rates("random bits", random_bits(), DType::kBF16, rounds) && met;
  return met;
}

// A core that reads memory all the time, as a pass with few rows reads weights.
class Reader {
 public:
  Reader() : bytes_(kBytes / sizeof(std::uint64_t), 1), thread_([this](const std::stop_token& stop) { run(stop); }) {}
  // Bytes so far.
  double read() const { return static_cast<double>(read_.load(std::memory_order_relaxed)); }

 private:
  static constexpr std::size_t kBytes = std::size_t{512} << 20, kPiece = std::size_t{1} << 20;
  void run(const std::stop_token& stop) {
    volatile std::uint64_t sum = 0;
    for (std::size_t at = 0; !stop.stop_requested(); at = (at + kPiece / sizeof(std::uint64_t)) % bytes_.size()) {
      sum = sum + std::reduce(bytes_.begin() + static_cast<std::ptrdiff_t>(at),
                              bytes_.begin() + static_cast<std::ptrdiff_t>(at + kPiece / sizeof(std::uint64_t)));
      read_.fetch_add(kPiece, std::memory_order_relaxed);
    }
  }
  std::vector<std::uint64_t> bytes_;
  std::atomic<std::size_t> read_ = 0;
  std::jthread thread_;
};

// What a swap may hope for while passes read memory: the copy of a raw page and the decoding of a coded one, and what
// that takes of the link.
void print_rates_beside_reader(int rounds) {
  const Page page = gaussian(DType::kBF16);
  Rounds measured(page, DType::kBF16);
  std::vector<IsaRates> isas = measured_isas();
  isas.erase(isas.begin(), isas.end() - 1);
  const Reader reader;
  const double begin_s = now_s(), before = reader.read();
  for (int i = 0; i < rounds; ++i) measured.decode_round(isas);
  const double read_rate = (reader.read() - before) / (now_s() - begin_s);
  const double bytes = static_cast<double>(page.size()), decode_rate = bytes / median(isas[0].decode_s);
  fmt::print(
      "\n| beside a core that reads memory | GB/s |\n|---|---|\n"
      "| copy of raw pages | {:.1f} |\n| decode, {} | {:.1f} |\n| of the link, coded | {:.1f} |\n"
      "| that core | {:.1f} |\n",
      1e-9 * bytes / measured.copy_s(), isas[0].name, 1e-9 * decode_rate, 1e-9 * decode_rate * measured.coded_ratio(),
      1e-9 * read_rate);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) throw Error(ExitCode::kUsage, "perf_coded ROUNDS FOLDER...");
  const std::vector<std::string> folders(argv + 2, argv + argc);
  const bool small = print_sizes(folders);
  const bool fast = print_all_rates(std::stoi(argv[1]));
  print_rates_beside_reader(std::stoi(argv[1]));
  return small && fast ? 0 : 1;
} catch (const Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return static_cast<int>(error.code());
}
