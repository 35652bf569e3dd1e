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
// Eight tiles of 16 rows; with `halves` the last two have 16 elements along the summed dimension instead of 32.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr explicit TileConfig(bool halves) {
    for (int tile = 0; tile < 8; ++tile) bytes[tile] = kTileBytes, rows[tile] = kTileRows;
    if (halves) bytes[6] = kTileBytes / 2, rows[7] = kTileRows / 2;
  }
};

template <>
struct Tiles<BFloat16> {
  static constexpr bool kAvailable = true;

  // Sums of 32 rows and two panels: [tile of rows][panel][row][lane].
  using Square = float[2][2][kTileRows][kLanes];

  // Asks the system for the tile registers, once per process; false where it refuses.
  static bool request() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }

  // What each thread does before `multiply`.
  static void configure_products() { _tile_loadconfig(&kWhole); }

  // What each thread does before `score` and `add_values`.
  static void configure_attention() { _tile_loadconfig(&kHalves); }

  // sums += left x (first, second) over `steps` words, for one tile of rows or for two.
  template <int RowTiles>
  static void multiply(const Word* left, int stride, const Word* first, const Word* second, int steps, Square& sums) {
    const size_t bytes = size_t(stride) * sizeof(Word);
    const Word* lower = left + size_t(kTileRows) * stride;
    settle();
    _tile_loadd(0, sums[0][0], kTileBytes);
    _tile_loadd(1, sums[0][1], kTileBytes);
    if constexpr (RowTiles == 2) {
      _tile_loadd(2, sums[1][0], kTileBytes);
      _tile_loadd(3, sums[1][1], kTileBytes);
    }
    for (int step = 0; step < steps; step += kTileWords) {
      _tile_loadd(6, first + step * kLanes, kTileBytes);
      _tile_loadd(7, second + step * kLanes, kTileBytes);
      _tile_loadd(4, left + step, bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (RowTiles == 2) {
        _tile_loadd(5, lower + step, bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, sums[0][0], kTileBytes);
    _tile_stored(1, sums[0][1], kTileBytes);
    if constexpr (RowTiles == 2) {
      _tile_stored(2, sums[1][0], kTileBytes);
      _tile_stored(3, sums[1][1], kTileBytes);
    }
  }

  // Scores of 16 queries with 16 positions, `words` along the head: whole tiles and at most one half.
  static void score(const Word* queries, const Word* keys, size_t key_stride, int words, float* scores, int stride) {
    settle();
    _tile_zero(0);
    int word = 0;
    for (; word + kTileWords <= words; word += kTileWords) {
      _tile_loadd(4, queries + word, words * sizeof(Word));
      _tile_loadd(5, keys + word * key_stride, key_stride * sizeof(Word));
      _tile_dpbf16ps(0, 4, 5);
    }
    if (word < words) {
      _tile_loadd(6, queries + word, words * sizeof(Word));
      _tile_loadd(7, keys + word * key_stride, key_stride * sizeof(Word));
      _tile_dpbf16ps(0, 6, 7);
    }
    _tile_stored(0, scores, stride * sizeof(float));
  }

  // sums[16 queries][`columns` x 16 elements] += weights x values, over blocks of 16 positions.
  template <class ValuesAt>
  static void add_values(const Word* weights, int weight_stride, int blocks, int columns, int size, float* sums,
                         ValuesAt values_at) {
    const size_t bytes = size * sizeof(float), weight_bytes = weight_stride * sizeof(Word);
    settle();
    _tile_loadd(0, sums, bytes);
    if (columns > 1) _tile_loadd(1, sums + kLanes, bytes);
    if (columns > 2) _tile_loadd(2, sums + 2 * kLanes, bytes);
    if (columns > 3) _tile_loadd(3, sums + 3 * kLanes, bytes);
    for (int block = 0; block < blocks; ++block) {
      const Word* values = values_at(block);
      _tile_loadd(6, weights + block * kTileWords / 2, weight_bytes);
      _tile_loadd(7, values, bytes);
      _tile_dpbf16ps(0, 6, 7);
      if (columns > 1) {
        _tile_loadd(7, values + kLanes, bytes);
        _tile_dpbf16ps(1, 6, 7);
      }
      if (columns > 2) {
        _tile_loadd(7, values + 2 * kLanes, bytes);
        _tile_dpbf16ps(2, 6, 7);
      }
      if (columns > 3) {
        _tile_loadd(7, values + 3 * kLanes, bytes);
        _tile_dpbf16ps(3, 6, 7);
      }
    }
    _tile_stored(0, sums, bytes);
    if (columns > 1) _tile_stored(1, sums + kLanes, bytes);
    if (columns > 2) _tile_stored(2, sums + 2 * kLanes, bytes);
    if (columns > 3) _tile_stored(3, sums + 3 * kLanes, bytes);
  }

 private:
  // Constants, because compilers (GCC 12) drop stores that only the tile instructions read: they do not know of it.
  static constexpr TileConfig kWhole{false}, kHalves{true};

  // So before tiles are loaded, what is to be read is made to be in memory.
  static void settle() { asm volatile("" ::: "memory"); }
};
#endif

}  // namespace penstock
