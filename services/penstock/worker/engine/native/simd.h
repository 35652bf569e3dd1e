// SIMD vectors of 16 float32 lanes, and the multiply-add that all heavy loops use.
//
// A *word* is 32 bits of an operand: one float32, or two bfloat16 neighbours along the summed dimension. Multiply-add
// takes one word of the left operand for all lanes and one word per lane of the right operand. Each lane sums in the
// order of the summed dimension, so a result never depends on the rows and columns computed beside it.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace penstock {

constexpr int kLanes = 16;

using Word = uint32_t;
typedef float Lanes __attribute__((vector_size(64), aligned(64), may_alias));
typedef int32_t IntLanes __attribute__((vector_size(64), aligned(64), may_alias));
typedef float UnalignedLanes __attribute__((vector_size(64), aligned(4), may_alias));

inline Lanes load(const void* from) { return *static_cast<const UnalignedLanes*>(from); }
inline void store(void* to, Lanes value) { *static_cast<UnalignedLanes*>(to) = value; }
inline Lanes broadcast(float value) { return Lanes{} + value; }
inline int min_of(int a, int b) { return a < b ? a : b; }
inline int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Prefetches words into the second-level cache.
inline void prefetch(const Word* from, int words) {
  for (int word = 0; word < words; word += kLanes) __builtin_prefetch(from + word, 0, 2);
}

inline Lanes max(Lanes a, Lanes b) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_max_ps((__m512)a, (__m512)b);  // compilers do not derive it from the other form
#else
  return a > b ? a : b;
#endif
}

// The first `count` lanes of x, and `other` in the lanes after them.
inline Lanes select_first(int count, Lanes x, float other) {
  const IntLanes lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < count ? x : broadcast(other);
}

// Combines all lanes with f, by halving in a fixed order.
template <class F>
inline float reduce_lanes(Lanes x, F f) {
  x = f(x, __builtin_shuffle(x, IntLanes{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}));
  x = f(x, __builtin_shuffle(x, IntLanes{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11}));
  x = f(x, __builtin_shuffle(x, IntLanes{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13}));
  x = f(x, __builtin_shuffle(x, IntLanes{1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14}));
  return x[0];
}

inline float sum_lanes(Lanes x) {
  return reduce_lanes(x, [](Lanes a, Lanes b) { return a + b; });
}

inline float max_lane(Lanes x) { return reduce_lanes(x, max); }

// 2^x for x up to 127, about 0 below -126: 2^n * 2^f with a polynomial for f in [-0.5, 0.5] (Cephes exp2f).
inline Lanes exp2(Lanes x) {
  x = max(x, broadcast(-126.0f));
  const Lanes shifter = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, in the lowest bits
  const Lanes shifted = x + shifter;
  const Lanes f = x - (shifted - shifter);
  Lanes p = broadcast(1.535336188319500e-4f);
  p = p * f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.0f;
  return (Lanes)((IntLanes)p + ((IntLanes)shifted << 23));
}

constexpr float kLog2E = 1.44269504f;

inline Lanes exp(Lanes x) { return exp2(-max(-x * kLog2E, broadcast(-127.0f))); }

struct Float32 {
  using Element = float;
  static constexpr int kElementsPerWord = 1;  // elements per word

  static Lanes multiply_add(Lanes sum, Word left, Lanes right) {
    float value;
    memcpy(&value, &left, sizeof value);
    return sum + value * right;
  }
  static void write(Element* to, Lanes values) { store(to, values); }
  static float widen(Element value) { return value; }
  static Element narrow(float value) { return value; }
};

#if defined(__AVX512BF16__)
struct BFloat16 {
  using Element = uint16_t;
  static constexpr int kElementsPerWord = 2;

  static Lanes multiply_add(Lanes sum, Word left, Lanes right) {
    return (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(left), (__m512bh)(__m512)right);
  }
  static void write(Element* to, Lanes values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh((__m512)values));
  }
  static float widen(Element value) {
    const Word bits = Word(value) << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
  }
  static Element narrow(float value) {  // to nearest, ties to even
    Word bits;
    memcpy(&bits, &value, sizeof bits);
    return Element((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
};
#endif

// sums[row][column] += left[row][step] * right[column][step], for each of `steps` words. Strides are in words.
template <class Type, int R, int C>
inline __attribute__((always_inline)) void accumulate(Lanes (&sums)[R][C], const Word* left, size_t row_stride,
                                                      const Word* const (&right)[C], size_t step_stride, int steps) {
  for (int step = 0; step < steps; ++step) {
    Lanes columns[C];
    for (int c = 0; c < C; ++c) columns[c] = load(right[c] + step * step_stride);
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c)
        sums[r][c] = Type::multiply_add(sums[r][c], left[r * row_stride + step], columns[c]);
  }
}

template <int N>
struct GroupSize {
  static constexpr int value = N;
};

// Calls f(GroupSize<n>, start) over 0..count: groups of `Max`, then one smaller group with the rest.
template <int Max, class F>
inline void for_each_group(int count, F f) {
  int start = 0;
  for (; start + Max <= count; start += Max) f(GroupSize<Max>{}, start);
  if constexpr (Max > 1)
    if (start < count) for_each_group<Max - 1>(count - start, [&](auto n, int from) { f(n, start + from); });
}

}  // namespace penstock
