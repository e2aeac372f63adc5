#include "computron/checkpoint/write_tensors.h"

#include <algorithm>
#include <memory>

#include "computron/base/parallel.h"
#include "src/checkpoint/format.h"
#include "src/checkpoint/quantised_tensor.h"

namespace computron {
namespace {

// What all threads' values and codes may take together. A piece that is better large is as large as that allows.
constexpr std::size_t kBufferBytes = std::size_t{256} << 20;
constexpr std::size_t kLargestPiece = std::size_t{64} << 20;
constexpr int kMostThreads = 64;

// A part of a tensor that is read and written at once.
struct Piece {
  std::size_t tensor;
  std::size_t begin, end;  // bytes as written
};

std::size_t stored_bytes(const TensorDeclaration& tensor) {
  return format::tensor_bytes(tensor.shape, tensor.dtype, Subject{tensor.name});
}

// What a piece of so many bytes of a tensor takes in memory, the values that are read with it counted in.
std::size_t memory_of(const TensorToWrite& tensor, std::size_t bytes) {
  if (!tensor.quantised()) return tensor.has_codes() ? 2 * bytes : bytes;
  const QuantisedTensor quantised(tensor.declaration, tensor.values);
  const std::size_t columns = tensor.declaration.shape.back();
  // A piece of the middle, which touches groups that begin before it and end behind it.
  const std::size_t more = quantised.cover({columns, columns + 1}).size();
  const std::size_t elements = quantised.elements_of(0, bytes).end + 2 * more;
  return elements * size_of(tensor.values) + bytes_of(tensor.declaration.dtype, elements);
}

// Groups along the lines of a tensor make pieces read more than they write: the larger, the less.
bool wants_large_pieces(const TensorToWrite& tensor) {
  return tensor.large_pieces || (tensor.quantised() && tensor.declaration.transposed);
}

std::size_t piece_bytes(const TensorToWrite& tensor, std::size_t share) {
  std::size_t bytes = wants_large_pieces(tensor) ? kLargestPiece : kDigestChunkBytes;
  while (bytes > kDigestChunkBytes && memory_of(tensor, bytes) > share) bytes -= kDigestChunkBytes;
  return bytes;
}

std::vector<Piece> pieces_of(const std::vector<TensorToWrite>& tensors, int threads) {
  const std::size_t share = kBufferBytes / static_cast<std::size_t>(threads);
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t bytes = stored_bytes(tensors[i].declaration), most = piece_bytes(tensors[i], share);
    for (std::size_t at = 0; at < bytes; at += most) pieces.push_back({i, at, std::min(at + most, bytes)});
  }
  return pieces;
}

// Where it is quantised: how far that is.
std::vector<std::unique_ptr<QuantisedTensor>> quantised_of(const std::vector<TensorToWrite>& tensors) {
  std::vector<std::unique_ptr<QuantisedTensor>> quantised(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].quantised()) continue;
    quantised[i] = std::make_unique<QuantisedTensor>(tensors[i].declaration, tensors[i].values);
  }
  return quantised;
}

// The number that the writer has for each tensor.
std::vector<std::size_t> numbers_of(const std::vector<TensorToWrite>& tensors) {
  std::vector<std::size_t> numbers;
  std::size_t next = 0;
  for (const TensorToWrite& tensor : tensors) {
    numbers.push_back(next);
    next += tensor.quantised() ? 2 : 1;
  }
  return numbers;
}

class TensorWriting {
 public:
  TensorWriting(CheckpointWriter& writer, const std::vector<TensorToWrite>& tensors, int threads,
                const TensorValues& values)
      : writer_(writer),
        tensors_(tensors),
        values_(values),
        threads_(threads),
        pieces_(pieces_of(tensors, threads)),
        numbers_(numbers_of(tensors)),
        quantised_(quantised_of(tensors)),
        codes_(static_cast<std::size_t>(threads)) {}

  // Whole columns of large tensors fit into no buffer: these tensors are read twice.
  void find_peaks() {
    std::vector<Piece> pieces;
    std::ranges::copy_if(pieces_, std::back_inserter(pieces), [&](const Piece& piece) {
      return quantised_[piece.tensor] != nullptr && quantised_[piece.tensor]->needs_peaks();
    });
    parallel_for(pieces.size(), threads_, [&](int thread, std::size_t item) {
      QuantisedTensor& tensor = *quantised_[pieces[item].tensor];
      const ElementRange covered = tensor.cover(tensor.elements_of(pieces[item].begin, pieces[item].end));
      tensor.find_peaks(covered, values_.read(thread, pieces[item].tensor, covered.begin, covered.end));
    });
  }

  void write() {
    parallel_for(pieces_.size(), threads_, [&](int thread, std::size_t item) {
      const Piece& piece = pieces_[item];
      quantised_[piece.tensor] != nullptr ? write_quantised(thread, piece) : write_plain(thread, piece);
    });
  }

 private:
  void write_plain(int thread, const Piece& piece) {
    const std::size_t bits = bits_of(tensors_[piece.tensor].declaration.dtype);
    put(numbers_[piece.tensor], piece.begin,
        values_.read(thread, piece.tensor, piece.begin * 8 / bits, piece.end * 8 / bits));
  }

  void write_quantised(int thread, const Piece& piece) {
    QuantisedTensor& tensor = *quantised_[piece.tensor];
    const ElementRange elements = tensor.elements_of(piece.begin, piece.end);
    const ElementRange covered = tensor.cover(elements);
    const auto values = values_.read(thread, piece.tensor, covered.begin, covered.end);
    const std::size_t number = numbers_[piece.tensor];
    put(number, piece.begin, tensor.quantise(elements, values, codes_[static_cast<std::size_t>(thread)]));
    if (!tensor.finish_piece(elements)) return;
    const std::vector<std::uint16_t> scales = tensor.take_scales();
    put(number + 1, 0, std::as_bytes(std::span(scales)));
  }

  void put(std::size_t number, std::size_t offset, std::span<const std::byte> bytes) {
    writer_.write(number, offset, bytes);
    if (values_.written) values_.written(bytes.size());
  }

  CheckpointWriter& writer_;
  const std::vector<TensorToWrite>& tensors_;
  const TensorValues& values_;
  int threads_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> numbers_;                         // by tensor
  std::vector<std::unique_ptr<QuantisedTensor>> quantised_;  // by tensor; null: plain
  std::vector<std::vector<std::byte>> codes_;                // by thread
};

}  // namespace

std::vector<TensorDeclaration> declarations_of(const std::vector<TensorToWrite>& tensors) {
  std::vector<TensorDeclaration> declarations;
  for (const TensorToWrite& tensor : tensors) {
    declarations.push_back(tensor.declaration);
    if (tensor.quantised()) declarations.push_back(scales_of(tensor.declaration));
  }
  return declarations;
}

int threads_to_write(const std::vector<TensorToWrite>& tensors, int threads) {
  std::size_t least = 1;
  for (const TensorToWrite& tensor : tensors) least = std::max(least, memory_of(tensor, kDigestChunkBytes));
  const auto fitting = static_cast<int>(std::clamp<std::size_t>(kBufferBytes / least, 1, kMostThreads));
  return std::min(threads, fitting);
}

void write_tensors(CheckpointWriter& writer, const std::vector<TensorToWrite>& tensors, int threads,
                   const TensorValues& values) {
  TensorWriting writing(writer, tensors, threads, values);
  writing.find_peaks();
  writing.write();
}

std::size_t bytes_to_write(const std::vector<TensorToWrite>& tensors) {
  std::size_t bytes = 0;
  for (const TensorDeclaration& tensor : declarations_of(tensors)) bytes += stored_bytes(tensor);
  return bytes;
}

double bits_of_quantised(const std::vector<TensorToWrite>& tensors) {
  std::size_t bytes = 0, elements = 0;
  bool of_codes = false;  // the tensor before it has codes: it has their scales
  for (const TensorDeclaration& tensor : declarations_of(tensors)) {
    const bool codes = is_code(tensor.dtype);
    if (codes || of_codes) bytes += stored_bytes(tensor);
    if (codes) elements += tensor.shape.front() * tensor.shape.back();
    of_codes = codes;
  }
  return elements == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(elements);
}

}  // namespace computron
