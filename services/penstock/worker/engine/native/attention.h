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
  float* largest;  // [rows]
  float* total;    // [rows]
};

template <class Type>
class Attention {
 public:
  Attention(const LayerCache<Type>& cache, const int32_t* table, int head, const AttentionScratch& scratch, bool tiles)
      : cache_(cache), table_(table), head_(head), scratch_(scratch), tiles_(tiles) {}

  // queries: `rows` x head_size / kPair words, `per_position` of them for each position from `first` on.
  void attend(const Word* queries, int rows, int per_position, int first) {
    const int size = cache_.head_size;
    for (int r = 0; r < rows; ++r) scratch_.largest[r] = -INFINITY, scratch_.total[r] = 0;
    memset(scratch_.sums, 0, sizeof(float) * rows * size);
    const int end = first + (rows - 1) / per_position + 1;
    for (int start = 0; start < end; start += kChunk) {
      const int count = round_up(end - start < kChunk ? end - start : kChunk, kLanes);
      score(queries, rows, start, count);
      for (int r = 0; r < rows; ++r) weigh(r, first + r / per_position - start, count);
      add_values(rows, start, count);
    }
  }

 private:
  // Of the 16 positions from this one on.
  const Word* keys_at(int position) const {
    return cache_.k_head(table_[position / cache_.block_size], head_) + position % cache_.block_size;
  }
  const Word* values_at(int position) const {
    const int row = position % cache_.block_size / Type::kPair;
    return cache_.v_head(table_[position / cache_.block_size], head_) + row * cache_.head_size;
  }

  void score(const Word* queries, int rows, int start, int count) {
    const int words = cache_.head_size / Type::kPair;
    if constexpr (Tiles<Type>::kAvailable)
      if (tiles_) {
        for (int i = 0; i < count; i += kLanes) {
          if (i + kAhead < count) prefetch(keys_at(start + i + kAhead), words * kLanes);
          prefetch(values_at(start + i), words * kLanes);
          for (int r = 0; r < rows; r += kTileRows)
            Tiles<Type>::score(queries + r * words, keys_at(start + i), cache_.block_size, words,
                               scratch_.scores + r * kChunk + i, kChunk);
        }
        return;
      }
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

  // Turns a row's scores into weights relative to the largest score so far; of `count` it may see those up to `last`.
  void weigh(int row, int last, int count) {
    const float* scores = scratch_.scores + row * kChunk;
    auto* weights = reinterpret_cast<typename Type::Element*>(scratch_.weights) + row * kChunk;
    const int seen = last < 0 ? 0 : least(last + 1, count), whole = seen / kLanes * kLanes;
    const IntLanes lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const auto masked = lane < seen - whole;
    Lanes most = broadcast(-INFINITY), total = {};
    for (int i = 0; i < whole; i += kLanes) most = max(most, load(scores + i));
    if (whole < seen) most = max(most, masked ? load(scores + whole) : broadcast(-INFINITY));
    const float scale = 1.0f / std::sqrt(float(cache_.head_size));
    const float before = scratch_.largest[row], now = std::fmax(before, largest(most) * scale);
    for (int i = 0; i < whole; i += kLanes) {
      const Lanes weight = exp(load(scores + i) * scale - now);
      Type::write(weights + i, weight);
      total += weight;
    }
    for (int i = whole; i < count; i += kLanes) {
      const Lanes weight = i < seen ? (masked ? exp(load(scores + i) * scale - now) : Lanes{}) : Lanes{};
      Type::write(weights + i, weight);
      total += weight;
    }
    const float shrink = before == -INFINITY ? 0.0f : exp(broadcast(before - now))[0];
    scratch_.largest[row] = now;
    scratch_.total[row] = scratch_.total[row] * shrink + sum(total);
    float* sums = scratch_.sums + row * cache_.head_size;
    if (shrink != 1.0f)
      for (int i = 0; i < cache_.head_size; i += kLanes) store(sums + i, load(sums + i) * shrink);
  }

  void add_values(int rows, int start, int count) {
    constexpr int P = Type::kPair;
    const int size = cache_.head_size, words = kChunk / P;
    if constexpr (Tiles<Type>::kAvailable)
      if (tiles_) {
        for (int column = 0; column < size; column += 4 * kLanes)
          for (int r = 0; r < rows; r += kTileRows)
            Tiles<Type>::add_values(scratch_.weights + r * words, words, count / kLanes, (size - column) / kLanes, size,
                                    scratch_.sums + r * size + column,
                                    [&](int block) { return values_at(start + block * kLanes) + column; });
        return;
      }
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
};

}  // namespace penstock
