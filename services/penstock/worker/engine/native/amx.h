// Intel AMX: products of 16 rows at a time, for bfloat16.
//
// The packed weights and the KV cache have the layout of the tile registers. Sums run along the steps, as in the SIMD
// code, so that a row's result does not depend on the rows beside it. Rows beyond the last are computed and ignored.
#pragma once

#include "simd.h"

#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace penstock {

constexpr int kTileRows = 16;
constexpr int kTileWords = 16;  // words of a row: 32 elements
constexpr int kTileBytes = kTileWords * sizeof(Word);

template <class Type>
struct Tiles {
  static constexpr bool kAvailable = false;
};

#if defined(__AMX_BF16__)
// Four tiles of sums, two of left and two of right operands, with 32 or 16 elements along the summed dimension.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr explicit TileConfig(bool halves) {
    for (int tile = 0; tile < 8; ++tile) bytes[tile] = kTileBytes, rows[tile] = kTileRows;
    if (halves) bytes[4] = bytes[5] = kTileBytes / 2, rows[6] = rows[7] = kTileRows / 2;
  }
};

template <>
struct Tiles<BFloat16> {
  static constexpr bool kAvailable = true;

  // Requests the tile registers from the system, once per process. Returns false if it denies them.
  static bool request_permission() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }

  // Configures the tiles of the calling thread; `halves`: 16 elements along the summed dimension instead of 32.
  static void configure(bool halves) { halves ? _tile_loadconfig(&kHalfConfig) : _tile_loadconfig(&kFullConfig); }

  // The sums are R x C tiles, with R and C 1 or 2: 16 R rows and 16 C lanes. Strides below are in words.
  template <int R, int C>
  static void zero() {
    compiler_barrier();
    _tile_zero(0);
    if constexpr (C > 1) _tile_zero(1);
    if constexpr (R > 1) _tile_zero(2);
    if constexpr (R > 1 && C > 1) _tile_zero(3);
  }

  template <int R, int C>
  static void load(const float* sums, int stride) {
    const size_t bytes = stride * sizeof(float);
    compiler_barrier();
    _tile_loadd(0, sums, bytes);
    if constexpr (C > 1) _tile_loadd(1, sums + kLanes, bytes);
    if constexpr (R > 1) _tile_loadd(2, sums + kTileRows * stride, bytes);
    if constexpr (R > 1 && C > 1) _tile_loadd(3, sums + kTileRows * stride + kLanes, bytes);
  }

  template <int R, int C>
  static void store(float* sums, int stride) {
    const size_t bytes = stride * sizeof(float);
    _tile_stored(0, sums, bytes);
    if constexpr (C > 1) _tile_stored(1, sums + kLanes, bytes);
    if constexpr (R > 1) _tile_stored(2, sums + kTileRows * stride, bytes);
    if constexpr (R > 1 && C > 1) _tile_stored(3, sums + kTileRows * stride + kLanes, bytes);
  }

  // sums += left x right, over the words of one tile row.
  template <int R, int C>
  static void multiply_add(const Word* left, int stride, const Word* const (&right)[C], int step_stride) {
    const size_t bytes = stride * sizeof(Word), step_bytes = step_stride * sizeof(Word);
    _tile_loadd(6, right[0], step_bytes);
    if constexpr (C > 1) _tile_loadd(7, right[1], step_bytes);
    _tile_loadd(4, left, bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (C > 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (R > 1) {
      _tile_loadd(5, left + kTileRows * stride, bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (C > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }

 private:
  // Constants, because GCC 12 drops stores that only tile instructions read.
  static constexpr TileConfig kFullConfig{false}, kHalfConfig{true};

  // Forces pending stores to memory before tiles are loaded.
  static void compiler_barrier() { asm volatile("" ::: "memory"); }
};
#endif

}  // namespace penstock
