// Two vectors as one, for long chains of operations: out-of-order execution overlaps the chains of two vectors that
// follow each other, but too little of them to keep the multipliers busy. Everything is local to the including file
// (isa.h).
#pragma once

namespace computron::kernels {
namespace {

// As Lanes8 (simd.h) and Lanes16 (simd512.h); each half has the bits that L would give it.
template <class L>
struct PairLanes {
  struct V {
    typename L::V low, high;
  };
  using Bf16 = typename L::Bf16;
  static constexpr int kCount = 2 * L::kCount;

  template <class T>
  static V load(const T* p) {
    return {L::load(p), L::load(p + L::kCount)};
  }
  template <class T>
  static void store(T* p, V x) {
    L::store(p, x.low);
    L::store(p + L::kCount, x.high);
  }
  template <class T>
  static V load_first(const T* p, int count) {
    if (count <= L::kCount) return {load_some(p, count), L::splat(0)};
    return {L::load(p), L::load_first(p + L::kCount, count - L::kCount)};
  }
  template <class T>
  static void store_first(T* p, V x, int count) {
    if (count <= L::kCount) return store_some(p, x.low, count);
    L::store(p, x.low);
    L::store_first(p + L::kCount, x.high, count - L::kCount);
  }

  static V splat(float x) { return {L::splat(x), L::splat(x)}; }
  static V add(V a, V b) { return {L::add(a.low, b.low), L::add(a.high, b.high)}; }
  static V sub(V a, V b) { return {L::sub(a.low, b.low), L::sub(a.high, b.high)}; }
  static V mul(V a, V b) { return {L::mul(a.low, b.low), L::mul(a.high, b.high)}; }
  static V div(V a, V b) { return {L::div(a.low, b.low), L::div(a.high, b.high)}; }
  static V fma(V a, V b, V c) { return {L::fma(a.low, b.low, c.low), L::fma(a.high, b.high, c.high)}; }
  static V max(V a, V b) { return {L::max(a.low, b.low), L::max(a.high, b.high)}; }
  static V min(V a, V b) { return {L::min(a.low, b.low), L::min(a.high, b.high)}; }
  static V negate(V x) { return {L::negate(x.low), L::negate(x.high)}; }
  static V magnitude(V x) { return {L::magnitude(x.low), L::magnitude(x.high)}; }
  static V with_sign(V x, V of) { return {L::with_sign(x.low, of.low), L::with_sign(x.high, of.high)}; }
  static V by_sign(V x, V negative, V otherwise) {
    return {L::by_sign(x.low, negative.low, otherwise.low), L::by_sign(x.high, negative.high, otherwise.high)};
  }
  static V exp(V x) { return {L::exp(x.low), L::exp(x.high)}; }
  static V nearest_integer(V x) { return {L::nearest_integer(x.low), L::nearest_integer(x.high)}; }
  static V times_exp2(V x, V n) { return {L::times_exp2(x.low, n.low), L::times_exp2(x.high, n.high)}; }

 private:
  template <class T>
  static typename L::V load_some(const T* p, int count) {
    return count == L::kCount ? L::load(p) : L::load_first(p, count);
  }
  template <class T>
  static void store_some(T* p, typename L::V x, int count) {
    count == L::kCount ? L::store(p, x) : L::store_first(p, x, count);
  }
};

}  // namespace
}  // namespace computron::kernels
