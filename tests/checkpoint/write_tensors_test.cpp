// Tensors that are quantised on the way into a checkpoint: the same codes and scales as of each row alone, however the
// tensor lies and wherever its pieces begin.
#include "computron/checkpoint/write_tensors.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>

#include "computron/base/convert.h"
#include "computron/base/quantise.h"
#include "tests/checkpoint/sample.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Codes of more than one chunk, whose bounds are neither those of rows nor of groups where they are transposed.
constexpr std::size_t kOut = 1102, kIn = 1952;

// Weight (o, i), bell-shaped over some places, exact in bfloat16.
float weight_at(std::size_t o, std::size_t i) {
  const std::size_t mixed = (o * 2654435761u + i * 40503u) % 65521;
  return f32_from_bf16(bf16_from_f32(static_cast<float>(mixed % 251 + mixed % 241 + mixed % 239) / 9000.0f - 0.04f));
}

TensorToWrite weight(const std::string& name, DType codes, int group, bool transposed, DType values = DType::kBF16) {
  const std::vector<std::size_t> shape = transposed ? std::vector{kIn, kOut} : std::vector{kOut, kIn};
  return {{name, codes, shape, transposed, group}, values};
}

std::vector<TensorToWrite> all_kinds() {
  std::vector<TensorToWrite> tensors = {{{"plain", DType::kF16, {kOut, kIn}}, DType::kF16}};
  for (const bool transposed : {false, true}) {
    const std::string end = transposed ? "_transposed" : "";
    for (const DType codes : kQuantisedTo) {
      tensors.push_back(weight(std::string(name_of(codes)) + end, codes, 32, transposed));
    }
    tensors.push_back(weight("row" + end, DType::kInt8, WeightType::kWholeRow, transposed));
    tensors.push_back(weight("fp8_row" + end, DType::kFp8, WeightType::kWholeRow, transposed));
    tensors.push_back(weight("f32" + end, DType::kInt8, 32, transposed, DType::kF32));
    tensors.push_back(weight("other_group" + end, DType::kInt8, 48, transposed));  // the last of a row is shorter
  }
  return tensors;
}

// Elements [first, last) of a tensor as stored.
std::vector<std::byte> values_of(const TensorToWrite& tensor, std::size_t first, std::size_t last) {
  const std::size_t columns = tensor.declaration.shape.back();
  std::vector<float> values;
  for (std::size_t i = first; i < last; ++i) {
    const std::size_t line = i / columns, column = i % columns;
    values.push_back(tensor.declaration.transposed ? weight_at(column, line) : weight_at(line, column));
  }
  std::vector<std::byte> bytes(values.size() * size_of(tensor.values));
  convert_elements(reinterpret_cast<const std::byte*>(values.data()), DType::kF32, bytes.data(), tensor.values,
                   values.size());
  return bytes;
}

// Makes elements anew for every read; `spoil` may change one.
struct Source {
  const std::vector<TensorToWrite>& tensors;
  std::size_t bad_tensor = ~std::size_t{0}, bad_element = 0;
  std::vector<std::vector<std::byte>> buffers = std::vector<std::vector<std::byte>>(64);

  std::span<const std::byte> read(int thread, std::size_t tensor, std::size_t first, std::size_t last) {
    auto& buffer = buffers[static_cast<std::size_t>(thread)] = values_of(tensors[tensor], first, last);
    if (tensor == bad_tensor && first <= bad_element && bad_element < last) {
      const std::uint16_t infinity = 0x7f80;
      std::memcpy(&buffer[2 * (bad_element - first)], &infinity, sizeof infinity);
    }
    return buffer;
  }
};

void write(const std::string& path, const std::vector<TensorToWrite>& tensors, int threads, Source source) {
  CheckpointWriter writer(path, "opt", "{}", declarations_of(tensors));
  std::atomic<std::size_t> written = 0;
  write_tensors(writer, tensors, threads,
                {[&](int thread, std::size_t tensor, std::size_t first, std::size_t last) {
                   return source.read(thread, tensor, first, last);
                 },
                 [&](std::size_t bytes) { written += bytes; }});
  writer.finish();
  EXPECT_EQ(written, bytes_to_write(tensors));
}

std::vector<std::byte> bytes_of_tensor(const CheckpointIndex& index, const std::string& name) {
  const TensorEntry& entry = index.tensors.at(name);
  return read_tensor(TensorReader(index), entry, 0, entry.bytes, 8 << 20);
}

int code_at(DType type, const std::vector<std::byte>& codes, std::size_t i) {
  if (type != DType::kInt4) return std::to_integer<int>(codes[i]);
  return std::to_integer<int>(codes[i / 2]) >> (i % 2 == 0 ? 0 : 4) & 15;
}

// Row `o` of the weight alone, against what is stored.
void expect_row(const TensorToWrite& tensor, std::size_t o, const std::vector<std::byte>& codes,
                const std::vector<std::byte>& scales) {
  const auto& [name, dtype, shape, transposed, declared_group, factor] = tensor.declaration;
  const std::size_t in = transposed ? shape.front() : shape.back(), out = transposed ? shape.back() : shape.front();
  const std::size_t group = std::min(static_cast<std::size_t>(declared_group), in), groups = ceil_div(in, group);
  std::vector<float> row(in);
  for (std::size_t i = 0; i < in; ++i) row[i] = weight_at(o, i);
  std::vector<std::byte> row_codes(bytes_of(dtype, in));
  std::vector<std::uint16_t> row_scales(groups);
  quantise_row(row, group, dtype, row_codes.data(), row_scales.data());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < in; ++i) {
    wrong += code_at(dtype, row_codes, i) != code_at(dtype, codes, transposed ? i * out + o : o * in + i);
  }
  for (std::size_t g = 0; g < groups; ++g) {
    std::uint16_t scale;
    std::memcpy(&scale, &scales[2 * (transposed ? g * out + o : o * groups + g)], sizeof scale);
    wrong += scale != row_scales[g];
  }
  EXPECT_EQ(wrong, 0u) << name << ", row " << o;
}

TEST(WriteTensors, CodesAndScalesAreThoseOfEachRow) {
  const Folder folder;
  const auto tensors = all_kinds();
  write(folder.file("m.h5"), tensors, 64, {tensors});  // so many threads have pieces of one chunk
  const CheckpointIndex index = read_checkpoint_index(folder.file("m.h5"));
  EXPECT_EQ(index.tensors.size(), 2 * tensors.size() - 1);
  EXPECT_EQ(bytes_of_tensor(index, "plain"), values_of(tensors[0], 0, kOut * kIn));
  for (std::size_t t = 1; t < tensors.size(); ++t) {
    const std::string& name = tensors[t].declaration.name;
    const auto codes = bytes_of_tensor(index, name), scales = bytes_of_tensor(index, scales_name(name));
    EXPECT_EQ(index.tensors.at(name).group, tensors[t].declaration.group);
    EXPECT_EQ(index.tensors.at(scales_name(name)).transposed, tensors[t].declaration.transposed);
    for (std::size_t o = 0; o < kOut; o += 29) expect_row(tensors[t], o, codes, scales);
    expect_row(tensors[t], kOut - 1, codes, scales);
  }
}

// In several pieces, none of which has whole columns.
TEST(WriteTensors, AGroupMayBeAWholeColumnOfInt4) {
  constexpr std::size_t kColumns = 70'000;
  const Folder folder;
  const std::vector<TensorToWrite> tensors = {{{"w", DType::kInt4, {32, kColumns}, true, 32}, DType::kBF16}};
  write(folder.file("m.h5"), tensors, 64, {tensors});
  const CheckpointIndex index = read_checkpoint_index(folder.file("m.h5"));
  const auto codes = bytes_of_tensor(index, "w"), scales = bytes_of_tensor(index, scales_name("w"));
  for (std::size_t o = 0; o < kColumns; o += 997) expect_row(tensors[0], o, codes, scales);
}

TEST(WriteTensors, ThreadsDoNotChangeTheFile) {
  const Folder folder;
  const auto tensors = all_kinds();
  for (const int threads : {1, 4}) {
    write(folder.file(std::to_string(threads)), tensors, threads, {tensors});
    EXPECT_EQ(read_file(folder.file(std::to_string(threads))), read_file(folder.file("1"))) << threads;
  }
}

TEST(WriteTensors, RefusesWhatIsNoNumberByName) {
  const Folder folder;
  const auto tensors = all_kinds();
  for (std::size_t t = 1; t < tensors.size(); ++t) {
    if (tensors[t].values == DType::kF32 || tensors[t].declaration.dtype != DType::kInt8) continue;
    const bool transposed = tensors[t].declaration.transposed;
    Source source{tensors};
    source.bad_tensor = t;
    source.bad_element = transposed ? 1900 * kOut + 7 : 7 * kIn + 1900;
    ExitCode code{};
    EXPECT_THAT(
        message_of([&] { write(folder.file("m.h5"), tensors, 3, source); }, &code),
        AllOf(HasSubstr(tensors[t].declaration.name + ": NaN or an infinity"), HasSubstr("output 7, input 1900")));
    EXPECT_EQ(code, ExitCode::kConfig);
    EXPECT_FALSE(std::filesystem::exists(folder.file("m.h5")));
  }
}

TEST(WriteTensors, CountsBits) {
  EXPECT_EQ(bits_of_quantised({weight("w", DType::kInt8, 32, false)}), 8.5);
  EXPECT_EQ(bits_of_quantised({weight("w", DType::kInt4, 32, true)}), 4.5);
  EXPECT_EQ(bits_of_quantised({{{"plain", DType::kF16, {4}}, DType::kF16}}), 0);
}

TEST(WriteTensors, ManyThreadsAreMoreThanFit) {
  const auto wide = [](DType codes, DType values) {
    return std::vector<TensorToWrite>{{{"w", codes, {65536, 16384}, true, 32}, values}};
  };
  EXPECT_EQ(threads_to_write(wide(DType::kInt8, DType::kBF16), 2), 2);
  EXPECT_LT(threads_to_write(wide(DType::kInt4, DType::kF32), 1024), 32);
  EXPECT_EQ(threads_to_write({{{"w", DType::kF32, {65536, 16384}}, DType::kF32}}, 1024), 64);
}

}  // namespace
}  // namespace computron::test
