// Intel AMX: sixteen rows at once, for bfloat16, where the processor has it.
//
// The packed weights and the KV cache lie as the tile registers want them. Sums run along the steps as everywhere here,
// so that a row's result does not depend on the rows beside it; rows beyond the last are computed and not looked at.
#pragma once

#include "lanes.h"

#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace penstock {

constexpr int kTileRows = 16;
constexpr int kTileWords = 16;  // of a row: 32 elements
constexpr int kTileBytes = kTileWords * sizeof(Word);

template <class Type>
struct Tiles {
  static constexpr bool kAvailable = false;
};

#if defined(__AMX_BF16__)
// Four tiles of sums, two of left operands, two of right ones: these with 32 elements along the summed dimension, or 16.
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

  // Asks the system for the tile registers, once per process; false where it refuses.
  static bool request() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }

  // What each thread does first: `halves` where 16 elements of the summed dimension are taken at a time, not 32.
  static void configure(bool halves) { halves ? _tile_loadconfig(&kHalves) : _tile_loadconfig(&kWhole); }

  // The sums are R x C tiles, R or C 1 or 2: of 16 R rows and 16 C lanes. Strides are in words from here on.
  template <int R, int C>
  static void zero() {
    settle();
    _tile_zero(0);
    if constexpr (C > 1) _tile_zero(1);
    if constexpr (R > 1) _tile_zero(2);
    if constexpr (R > 1 && C > 1) _tile_zero(3);
  }

  template <int R, int C>
  static void load(const float* sums, int stride) {
    const size_t bytes = stride * sizeof(float);
    settle();
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

  // sums += left x right, over as many words as a tile has steps.
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
  // Constants, because compilers (GCC 12) drop stores that only the tile instructions read: they do not know of it.
  static constexpr TileConfig kWhole{false}, kHalves{true};

  // So before tiles are loaded, what is to be read is made to be in memory.
  static void settle() { asm volatile("" ::: "memory"); }
};
#endif

}  // namespace penstock
