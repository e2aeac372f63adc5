// Operations whose elements do not depend on each other. Each is a body over (row, column) that a grid of threads runs
// on the device, and a test runs in two loops on the host.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "computron/kernels/types.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/quantised_tiles.h"
#include "kernels/cuda/runs.h"

struct CUstream_st;

namespace computron::kernels::cuda {

COMPUTRON_HOST_DEVICE inline std::size_t at(int row, int columns, int column) {
  return static_cast<std::size_t>(row) * columns + column;
}

// Rows [rows, columns] of T, one behind the other.
template <class T>
struct PlainRows {
  int columns;
  COMPUTRON_HOST_DEVICE float value(const std::byte* data, int row, int column) const {
    return widen(reinterpret_cast<const T*>(data)[at(row, columns, column)]);
  }
};

// out[r, c] = weight[tokens[r] - first_token, c], zero where there is no such row (with `writes_zeros`); rows of no run
// are left alone. Weight: [vocab, columns], as Rows says: PlainRows or QuantisedTiles.
template <class Rows>
struct Embed {
  const TokenId* tokens;
  TokenId first_token;
  int vocab;
  bool writes_zeros;
  int columns;
  float* out;
  Rows weight;
  RowRuns runs;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    const std::int64_t row = std::int64_t{tokens[r]} - first_token;
    if (row < 0 || row >= vocab) {
      if (writes_zeros) out[at(r, columns, c)] = 0;
    } else if (const RowRun* run = runs.with_row(static_cast<int>(row))) {
      out[at(r, columns, c)] = weight.value(run->data, static_cast<int>(row) - run->row_begin, c);
    }
  }
};

// inout[r, c] += table[rows[r] + offset, c] where a run holds that row.
struct AddRows {
  const std::int32_t* rows;
  int offset;
  int columns;
  float* inout;
  RowRuns runs;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    const int row = rows[r] + offset;
    const RowRun* run = runs.with_row(row);
    if (run == nullptr) return;
    inout[at(r, columns, c)] += reinterpret_cast<const float*>(run->data)[at(row - run->row_begin, columns, c)];
  }
};

// inout += x + bias; bias may be null.
struct AddResidual {
  const float* x;
  const float* bias;
  int columns;
  float* inout;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    const float addend = bias == nullptr ? x[at(r, columns, c)] : x[at(r, columns, c)] + bias[c];
    inout[at(r, columns, c)] += addend;
  }
};

// out[r, c] = in[rows[r], first + c]; without `rows`, in[r, first + c].
template <class From, class To>
struct CopyRows {
  const From* in;
  int in_columns;
  const std::int32_t* rows;
  int first;
  To* out;
  int columns;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    const From value = in[at(rows == nullptr ? r : rows[r], in_columns, first + c)];
    narrow(widen(value), out[at(r, columns, c)]);
  }
};

// The same without a look at the values: NaN keep their bits.
template <class T>
struct CopyRows<T, T> {
  const T* in;
  int in_columns;
  const std::int32_t* rows;
  int first;
  T* out;
  int columns;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    out[at(r, columns, c)] = in[at(rows == nullptr ? r : rows[r], in_columns, first + c)];
  }
};

// out[r, c] = gate of in[r, c] and in[r, columns + c].
template <class From, class To>
struct ActivateGate {
  Gate gate;
  const From* in;
  int columns;
  To* out;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    const From *own = in + at(r, 2 * columns, c), *up = own + columns;
    narrow(activate_gate(gate, widen(*own), widen(*up)), out[at(r, columns, c)]);
  }
};

// Four neighbours, read and written at once: a thread has as many bytes under way as memory needs.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T values[4];
};
template <class T>
COMPUTRON_HOST_DEVICE Four<T>& four_at(T* rows, int row, int columns, int column) {
  return *reinterpret_cast<Four<T>*>(rows + at(row, columns, column));
}
template <class T>
COMPUTRON_HOST_DEVICE const Four<T>& four_at(const T* rows, int row, int columns, int column) {
  return *reinterpret_cast<const Four<T>*>(rows + at(row, columns, column));
}

// ActivateGate of columns 4 c, ..., 4 c + 3. Columns are a multiple of four, arrays aligned to 16 bytes.
template <class From, class To>
struct ActivateGateFours {
  ActivateGate<From, To> each;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    const int columns = each.columns;
    const Four<From> gate = four_at(each.in, r, 2 * columns, 4 * c);
    const Four<From> up = four_at(each.in, r, 2 * columns, columns + 4 * c);
    Four<To> out;
    for (int i = 0; i < 4; ++i) {
      narrow(activate_gate(each.gate, widen(gate.values[i]), widen(up.values[i])), out.values[i]);
    }
    four_at(each.out, r, columns, 4 * c) = out;
  }
};

// inout[r, c] += σ(gates[r]) × x[r, c].
struct AddGated {
  const float* x;
  const float* gates;
  int columns;
  float* inout;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    inout[at(r, columns, c)] = fmaf(gated(1.0f, gates[r]), x[at(r, columns, c)], inout[at(r, columns, c)]);
  }
};

// out[r, first + c] = activation(out[r, first + c] + bias[first + c]) of what the library has narrowed; bias may be
// null.
template <class T>
struct BiasActivate {
  Activation activation;
  const float* bias;
  int first;
  int out_columns;
  T* out;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const { finish(out[at(r, out_columns, first + c)], first + c); }
  COMPUTRON_HOST_DEVICE void finish(T& value, int column) const {
    const float sum = bias == nullptr ? widen_clamped(value) : widen_clamped(value) + bias[column];
    narrow(activate(activation, sum), value);
  }
};

// BiasActivate of 16 bytes: columns kPiece × c, ..., kPiece × c + kPiece - 1. `first` and `out_columns` are multiples
// of kPiece, out is aligned to 16 bytes.
template <class T>
struct BiasActivatePieces {
  static constexpr int kPiece = 16 / sizeof(T);
  BiasActivate<T> each;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    struct alignas(16) Piece {
      T values[kPiece];
    };
    const int column = each.first + kPiece * c;
    auto& piece = *reinterpret_cast<Piece*>(each.out + at(r, each.out_columns, column));
    Piece own = piece;
    for (int i = 0; i < kPiece; ++i) each.finish(own.values[i], column + i);
    piece = own;
  }
};

// inout[rows[i], c] += weights[i] × in[i, c]; no row comes twice.
struct ScatterAdd {
  const float* in;
  const std::int32_t* rows;
  const float* weights;
  int columns;
  float* inout;

  COMPUTRON_HOST_DEVICE void operator()(int i, int c) const {
    float& sum = inout[at(rows[i], columns, c)];
    sum = fmaf(in[at(i, columns, c)], weights[i], sum);
  }
};

// The same for rows that come several times: a column's `count` terms one after the other. Over one row.
struct ScatterAddInOrder {
  ScatterAdd each;
  int count;

  COMPUTRON_HOST_DEVICE void operator()(int, int c) const {
    for (int i = 0; i < count; ++i) each(i, c);
  }
};

// The same for rows that come in runs, each to another place: run r is of i in [begins[r], begins[r + 1]), and its
// terms are added one after the other. Over the runs.
struct ScatterAddRuns {
  ScatterAdd each;
  const std::int32_t* begins;

  COMPUTRON_HOST_DEVICE void operator()(int run, int c) const {
    const int first = begins[run], end = begins[run + 1];
    float& out = each.inout[at(each.rows[first], each.columns, c)];
    float sum = out;
    for (int i = first; i < end; ++i) sum = fmaf(each.in[at(i, each.columns, c)], each.weights[i], sum);
    out = sum;
  }
};

// inout[r, c] *= factor.
struct Scale {
  float factor;
  int columns;
  float* inout;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const { inout[at(r, columns, c)] *= factor; }
};

// inout[r, c] = cap × tanh(inout[r, c] / cap).
struct SoftCap {
  float cap;
  int columns;
  float* inout;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    float& x = inout[at(r, columns, c)];
    x = cap * tanhf(x / cap);
  }
};

// out[r, c] = cos, out[r, half + c] = sin of the rounded product of position and frequency, for c < half.
struct RotaryAngles {
  const std::int32_t* positions;
  const float* frequencies;
  int half;
  float* out;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    const auto angle = static_cast<double>(static_cast<float>(positions[r]) * frequencies[c]);
    out[at(r, 2 * half, c)] = static_cast<float>(cos(angle));
    out[at(r, 2 * half, half + c)] = static_cast<float>(sin(angle));
  }
};

// Applies RoPE to pair c of row r: element i of a head with element i + half, c = head × half + i over queries and
// keys.
struct ApplyRope {
  const float* angles;  // [rows, 2 half]
  int half;
  int head_dim;
  int columns;
  float* qkv;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    const int head = c / half, i = c % half;
    float& x = qkv[at(r, columns, head_dim * head + i)];
    float& y = qkv[at(r, columns, head_dim * head + half + i)];
    const float cosine = angles[at(r, 2 * half, i)], sine = angles[at(r, 2 * half, half + i)];
    const float u = fmaf(x, cosine, -y * sine), v = fmaf(y, cosine, x * sine);
    x = u;
    y = v;
  }
};

// Runs body(r, c) for r < rows, c < columns. Defined in elements.cu for the bodies above.
template <class Body>
void for_each_element(CUstream_st* stream, int rows, int columns, const Body& body);

}  // namespace computron::kernels::cuda
