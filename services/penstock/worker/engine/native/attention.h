// Attention over a paged KV cache, for one KV head and all query heads that share it.
//
// One layer's cache, in words. K: [blocks][kv_heads][head_size / kPair][block_size], V: [blocks][kv_heads]
// [block_size / kPair][head_size]. So 16 positions are the lanes of a score, 16 elements of the head those of a value.
//
// Softmax is online (Milakov and Gimelshein 2018) over chunks of positions that begin at fixed places, so that a row's
// result does not depend on which other rows its step computes, nor on how its prompt was split into steps.
#pragma once

#include <cmath>

#include "lanes.h"
#include "tiles.h"

namespace penstock {

constexpr int kChunk = 256;  // positions
constexpr int kAhead = 32;   // positions: how far ahead keys are asked for

template <class Type>
struct LayerCache {
  Word* k;
  Word* v;
  int kv_heads, head_size, block_size;

  size_t head_words() const { return size_t(head_size) * block_size / Type::kPair; }
  Word* k_head(int block, int head) const { return k + (size_t(block) * kv_heads + head) * head_words(); }
  Word* v_head(int block, int head) const { return v + (size_t(block) * kv_heads + head) * head_words(); }

  void write(int block, int offset, int head, const float* key, const float* value) const {
    constexpr int P = Type::kPair;
    auto* keys = reinterpret_cast<typename Type::Element*>(k_head(block, head));
    auto* values = reinterpret_cast<typename Type::Element*>(v_head(block, head));
    for (int i = 0; i < head_size; ++i) {
      keys[(i / P * block_size + offset) * P + i % P] = Type::narrow(key[i]);
      values[(offset / P * head_size + i) * P + offset % P] = Type::narrow(value[i]);
    }
  }
};

// What one thread needs to attend for up to `rows` queries.
struct AttentionScratch {
  float* scores;   // [rows][kChunk]
  Word* weights;   // [rows][kChunk / kPair]
  float* sums;     // [rows][head_size]
  float* total;    // [rows][kLanes]
  float* largest;  // [rows], times scale and log2(e), as the next two
  float* now;      // [rows], of this chunk
  float* shrink;   // [rows], what earlier sums are to be multiplied by
};

template <class Type>
class Attention {
 public:
  Attention(const LayerCache<Type>& cache, const int32_t* table, int head, const AttentionScratch& scratch, bool tiles)
      : cache_(cache),
        table_(table),
        head_(head),
        scratch_(scratch),
        tiles_(tiles),
        scale_(kLog2E / std::sqrt(float(cache.head_size))) {}

  // queries: `rows` x head_size / kPair words, `per_position` of them for each position from `first` on.
  void attend(const Word* queries, int rows, int per_position, int first) {
    const int size = cache_.head_size;
    for (int r = 0; r < rows; ++r) scratch_.largest[r] = -INFINITY;
    memset(scratch_.sums, 0, sizeof(float) * rows * size);
    memset(scratch_.total, 0, sizeof(float) * rows * kLanes);
    const int end = first + (rows - 1) / per_position + 1;
    for (int start = 0; start < end; start += kChunk) {
      const int count = round_up(end - start < kChunk ? end - start : kChunk, kLanes);
      score(queries, rows, start, count);
      weigh(rows, per_position, first - start, count);
      add_values(rows, start, count);
    }
  }

 private:
  static int row_tiles(int rows) { return (rows + kTileRows - 1) / kTileRows; }

  // Of the 16 positions from this one on.
  const Word* keys_at(int position) const {
    return cache_.k_head(table_[position / cache_.block_size], head_) + position % cache_.block_size;
  }
  const Word* values_at(int position) const {
    const int row = position % cache_.block_size / Type::kPair;
    return cache_.v_head(table_[position / cache_.block_size], head_) + row * cache_.head_size;
  }

  void score(const Word* queries, int rows, int start, int count) {
    if constexpr (Tiles<Type>::kAvailable)
      if (tiles_) return score_by_tiles(queries, rows, start, count);
    score_by_lanes(queries, rows, start, count);
  }

  void score_by_tiles(const Word* queries, int rows, int start, int count) {
    const int words = cache_.head_size / Type::kPair, tile_words = words % kTileWords ? kTileWords / 2 : kTileWords;
    const bool is_alone = rows <= kTileRows;  // else others have read the same: it is near
    Tiles<Type>::configure(tile_words < kTileWords);
    in_groups<2>(count / kLanes, [&](auto blocks, int block) {
      constexpr int C = decltype(blocks)::value;
      const Word* keys[C];
      for (int c = 0; c < C; ++c) {
        const int position = (block + c) * kLanes;
        keys[c] = keys_at(start + position);
        if (is_alone && position + kAhead < count) prefetch(keys_at(start + position + kAhead), words * kLanes);
        if (is_alone) prefetch(values_at(start + position), words * kLanes);
      }
      in_groups<2>(row_tiles(rows), [&](auto n, int tile) {
        constexpr int R = decltype(n)::value;
        const Word* left = queries + tile * kTileRows * words;
        Tiles<Type>::template zero<R, C>();
        for (int word = 0; word < words; word += tile_words) {
          const Word* right[C];
          for (int c = 0; c < C; ++c) right[c] = keys[c] + word * cache_.block_size;
          Tiles<Type>::template multiply_add<R, C>(left + word, words, right, cache_.block_size);
        }
        Tiles<Type>::template store<R, C>(scratch_.scores + tile * kTileRows * kChunk + block * kLanes, kChunk);
      });
    });
  }

  void score_by_lanes(const Word* queries, int rows, int start, int count) {
    const int words = cache_.head_size / Type::kPair;
    in_groups<4>(count / kLanes, [&](auto blocks, int block) {
      constexpr int C = decltype(blocks)::value;
      const Word* keys[C];
      for (int c = 0; c < C; ++c) keys[c] = keys_at(start + (block + c) * kLanes);
      in_groups<4>(rows, [&](auto n, int r) {
        constexpr int R = decltype(n)::value;
        Lanes sums[R][C] = {};
        accumulate<Type, R, C>(sums, queries + r * words, words, keys, cache_.block_size, words);
        for (int i = 0; i < R; ++i)
          for (int c = 0; c < C; ++c) store(scratch_.scores + (r + i) * kChunk + (block + c) * kLanes, sums[i][c]);
      });
    });
  }

  // Turns scores into weights relative to the largest score so far. Rows are taken together in each of the three passes,
  // so that a processor is at several of them while it waits for one.
  void weigh(int rows, int per_position, int first, int count) {
    for (int r = 0; r < rows; ++r) scratch_.now[r] = largest_of(r, seen_by(first + r / per_position, count));
    for (int r = 0; r < rows; r += kLanes) {
      const Lanes before = load(scratch_.largest + r), now = max(load(scratch_.now + r), before);
      store(scratch_.largest + r, now);
      store(scratch_.shrink + r, exp2(before - now));
    }
    for (int r = 0; r < rows; ++r) {
      if (scratch_.shrink[r] != 1.0f) shrink(r);
      weigh_row(r, seen_by(first + r / per_position, count), count);
    }
  }

  // How many of `count` positions the query sees that is at position `last` of them, or before them all.
  static int seen_by(int last, int count) { return last < 0 ? 0 : least(last + 1, count); }

  float largest_of(int row, int seen) const {
    const float* scores = scratch_.scores + row * kChunk;
    const int whole = seen / kLanes * kLanes;
    Lanes most = whole < seen ? first_of(seen - whole, load(scores + whole), -INFINITY) : broadcast(-INFINITY);
    for (int i = 0; i < whole; i += kLanes) most = max(most, load(scores + i));
    return largest(most) * scale_;
  }

  void shrink(int row) {
    const float by = scratch_.shrink[row];
    float *sums = scratch_.sums + row * cache_.head_size, *total = scratch_.total + row * kLanes;
    for (int i = 0; i < cache_.head_size; i += kLanes) store(sums + i, load(sums + i) * by);
    store(total, load(total) * by);
  }

  void weigh_row(int row, int seen, int count) {
    const float* scores = scratch_.scores + row * kChunk;
    auto* weights = reinterpret_cast<typename Type::Element*>(scratch_.weights) + row * kChunk;
    const float most = scratch_.largest[row];
    const int whole = seen / kLanes * kLanes;
    Lanes total = load(scratch_.total + row * kLanes);
    for (int i = 0; i < whole; i += kLanes) {
      const Lanes weight = exp2(load(scores + i) * scale_ - most);
      Type::write(weights + i, weight);
      total += weight;
    }
    for (int i = whole; i < count; i += kLanes) {
      const Lanes weight = i < seen ? first_of(seen - i, exp2(load(scores + i) * scale_ - most), 0.0f) : Lanes{};
      Type::write(weights + i, weight);
      total += weight;
    }
    store(scratch_.total + row * kLanes, total);
  }

  void add_values(int rows, int start, int count) {
    if constexpr (Tiles<Type>::kAvailable)
      if (tiles_) return add_values_by_tiles(rows, start, count);
    add_values_by_lanes(rows, start, count);
  }

  void add_values_by_tiles(int rows, int start, int count) {
    const int size = cache_.head_size, words = kChunk / Type::kPair;
    Tiles<Type>::configure(true);
    in_groups<2>(size / kLanes, [&](auto columns, int column) {
      in_groups<2>(row_tiles(rows), [&](auto n, int tile) {
        constexpr int R = decltype(n)::value, C = decltype(columns)::value;
        const Word* weights = scratch_.weights + tile * kTileRows * words;
        float* sums = scratch_.sums + tile * kTileRows * size + column * kLanes;
        Tiles<Type>::template load<R, C>(sums, size);
        for (int position = 0; position < count; position += kLanes) {
          const Word* right[C];
          for (int c = 0; c < C; ++c) right[c] = values_at(start + position) + (column + c) * kLanes;
          Tiles<Type>::template multiply_add<R, C>(weights + position / Type::kPair, words, right, size);
        }
        Tiles<Type>::template store<R, C>(sums, size);
      });
    });
  }

  void add_values_by_lanes(int rows, int start, int count) {
    constexpr int P = Type::kPair;
    const int size = cache_.head_size, words = kChunk / P;
    in_groups<4>(size / kLanes, [&](auto columns, int column) {
      in_groups<4>(rows, [&](auto n, int r) {
        constexpr int R = decltype(n)::value, C = decltype(columns)::value;
        float* out = scratch_.sums + r * size + column * kLanes;
        Lanes sums[R][C];
        for (int i = 0; i < R; ++i)
          for (int c = 0; c < C; ++c) sums[i][c] = load(out + i * size + c * kLanes);
        for (int position = start; position < start + count; position += kLanes) {
          const Word* row = values_at(position);
          const Word* values[C];
          for (int c = 0; c < C; ++c) values[c] = row + (column + c) * kLanes;
          const Word* weights = scratch_.weights + r * words + (position - start) / P;
          accumulate<Type, R, C>(sums, weights, words, values, size, kLanes / P);
        }
        for (int i = 0; i < R; ++i)
          for (int c = 0; c < C; ++c) store(out + i * size + c * kLanes, sums[i][c]);
      });
    });
  }

  const LayerCache<Type>& cache_;
  const int32_t* table_;
  const int head_;
  const AttentionScratch& scratch_;
  const bool tiles_;
  const float scale_;  // of scores, for weights that are powers of two
};

}  // namespace penstock
