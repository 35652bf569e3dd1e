// Attention over a paged KV cache, for one KV head and all query heads that share it.
//
// The layout of one layer's cache, in words, is K: [blocks][kv_heads][head_size / kElementsPerWord][block_size] and
// V: [blocks][kv_heads][block_size / kElementsPerWord][head_size]. The lanes of a score are 16 positions, those of a
// value 16 elements of the head.
//
// Softmax is online (Milakov and Gimelshein 2018) over chunks of positions with fixed starts, so that a row's result
// depends neither on the other rows of its step nor on the split of its prompt into steps.
#pragma once

#include <cmath>

#include "simd.h"
#include "amx.h"

namespace penstock {

constexpr int kChunkPositions = 256;
constexpr int kPrefetchPositions = 32;  // distance of the prefetch of keys

template <class Type>
struct LayerCache {
  Word* k;
  Word* v;
  int kv_heads, head_size, block_size;

  size_t head_words() const { return size_t(head_size) * block_size / Type::kElementsPerWord; }
  Word* k_head(int block, int head) const { return k + (size_t(block) * kv_heads + head) * head_words(); }
  Word* v_head(int block, int head) const { return v + (size_t(block) * kv_heads + head) * head_words(); }

  void write(int block, int offset, int head, const float* key, const float* value) const {
    constexpr int kPair = Type::kElementsPerWord;
    auto* keys = reinterpret_cast<typename Type::Element*>(k_head(block, head));
    auto* values = reinterpret_cast<typename Type::Element*>(v_head(block, head));
    for (int i = 0; i < head_size; ++i) {
      keys[(i / kPair * block_size + offset) * kPair + i % kPair] = Type::narrow(key[i]);
      values[(offset / kPair * head_size + i) * kPair + offset % kPair] = Type::narrow(value[i]);
    }
  }
};

// Scratch memory of one thread, for up to `rows` queries.
struct AttentionScratch {
  float* scores;       // [rows][kChunkPositions]
  Word* weights;       // [rows][kChunkPositions / kElementsPerWord]
  float* sums;         // [rows][head_size]
  float* weight_sums;  // [rows][kLanes]
  float* running_max;  // [rows], times scale and log2(e), like chunk_max
  float* chunk_max;    // [rows], of this chunk
  float* rescale;      // [rows], factor of earlier sums
};

template <class Type>
class Attention {
 public:
  Attention(const LayerCache<Type>& cache, const int32_t* table, int head, const AttentionScratch& scratch,
            bool has_amx)
      : cache_(cache),
        table_(table),
        head_(head),
        scratch_(scratch),
        has_amx_(has_amx),
        scale_(kLog2E / std::sqrt(float(cache.head_size))) {}

  // queries: `rows` x head_size / kElementsPerWord words, `per_position` rows for each position from `first`.
  void attend(const Word* queries, int rows, int per_position, int first) {
    const int size = cache_.head_size;
    for (int r = 0; r < rows; ++r) scratch_.running_max[r] = -INFINITY;
    memset(scratch_.sums, 0, sizeof(float) * rows * size);
    memset(scratch_.weight_sums, 0, sizeof(float) * rows * kLanes);
    const int end = first + (rows - 1) / per_position + 1;
    for (int start = 0; start < end; start += kChunkPositions) {
      const int count = round_up(end - start < kChunkPositions ? end - start : kChunkPositions, kLanes);
      score(queries, rows, start, count);
      softmax_chunk(rows, per_position, first - start, count);
      add_values(rows, start, count);
    }
  }

 private:
  static int row_tiles(int rows) { return (rows + kTileRows - 1) / kTileRows; }

  // Keys and values of the 16 positions from this one.
  const Word* keys_at(int position) const {
    return cache_.k_head(table_[position / cache_.block_size], head_) + position % cache_.block_size;
  }
  const Word* values_at(int position) const {
    const int row = position % cache_.block_size / Type::kElementsPerWord;
    return cache_.v_head(table_[position / cache_.block_size], head_) + row * cache_.head_size;
  }

  void score(const Word* queries, int rows, int start, int count) {
    if constexpr (Tiles<Type>::kAvailable)
      if (has_amx_) return score_amx(queries, rows, start, count);
    score_simd(queries, rows, start, count);
  }

  void score_amx(const Word* queries, int rows, int start, int count) {
    const int words = cache_.head_size / Type::kElementsPerWord;
    const int tile_words = words % kTileWords ? kTileWords / 2 : kTileWords;
    const bool is_alone = rows <= kTileRows;  // otherwise other rows have read the same keys into the cache
    Tiles<Type>::configure(tile_words < kTileWords);
    for_each_group<2>(count / kLanes, [&](auto blocks, int block) {
      constexpr int C = decltype(blocks)::value;
      const Word* keys[C];
      for (int c = 0; c < C; ++c) {
        const int position = (block + c) * kLanes, ahead = position + kPrefetchPositions;
        keys[c] = keys_at(start + position);
        if (is_alone && ahead < count) prefetch(keys_at(start + ahead), words * kLanes);
        if (is_alone) prefetch(values_at(start + position), words * kLanes);
      }
      for_each_group<2>(row_tiles(rows), [&](auto n, int tile) {
        constexpr int R = decltype(n)::value;
        const Word* left = queries + tile * kTileRows * words;
        Tiles<Type>::template zero<R, C>();
        for (int word = 0; word < words; word += tile_words) {
          const Word* right[C];
          for (int c = 0; c < C; ++c) right[c] = keys[c] + word * cache_.block_size;
          Tiles<Type>::template multiply_add<R, C>(left + word, words, right, cache_.block_size);
        }
        float* scores = scratch_.scores + tile * kTileRows * kChunkPositions + block * kLanes;
        Tiles<Type>::template store<R, C>(scores, kChunkPositions);
      });
    });
  }

  void score_simd(const Word* queries, int rows, int start, int count) {
    const int words = cache_.head_size / Type::kElementsPerWord;
    for_each_group<4>(count / kLanes, [&](auto blocks, int block) {
      constexpr int C = decltype(blocks)::value;
      const Word* keys[C];
      for (int c = 0; c < C; ++c) keys[c] = keys_at(start + (block + c) * kLanes);
      for_each_group<4>(rows, [&](auto n, int r) {
        constexpr int R = decltype(n)::value;
        Lanes sums[R][C] = {};
        accumulate<Type, R, C>(sums, queries + r * words, words, keys, cache_.block_size, words);
        for (int i = 0; i < R; ++i)
          for (int c = 0; c < C; ++c)
            store(scratch_.scores + (r + i) * kChunkPositions + (block + c) * kLanes, sums[i][c]);
      });
    });
  }

  // Turns scores into weights relative to the largest score so far. Each of the three passes covers all rows, so that
  // the processor overlaps the latencies of several rows.
  void softmax_chunk(int rows, int per_position, int first, int count) {
    for (int r = 0; r < rows; ++r)
      scratch_.chunk_max[r] = max_score(r, visible_positions(first + r / per_position, count));
    for (int r = 0; r < rows; r += kLanes) {
      const Lanes previous = load(scratch_.running_max + r), current = max(load(scratch_.chunk_max + r), previous);
      store(scratch_.running_max + r, current);
      store(scratch_.rescale + r, exp2(previous - current));
    }
    for (int r = 0; r < rows; ++r) {
      if (scratch_.rescale[r] != 1.0f) rescale_sums(r);
      softmax_row(r, visible_positions(first + r / per_position, count), count);
    }
  }

  // Number of `count` positions visible to a query at position `last` of them; 0 if it is before all of them.
  static int visible_positions(int last, int count) { return last < 0 ? 0 : min_of(last + 1, count); }

  float max_score(int row, int visible) const {
    const float* scores = scratch_.scores + row * kChunkPositions;
    const int whole = visible / kLanes * kLanes;
    Lanes maxima = broadcast(-INFINITY);
    if (whole < visible) maxima = select_first(visible - whole, load(scores + whole), -INFINITY);
    for (int i = 0; i < whole; i += kLanes) maxima = max(maxima, load(scores + i));
    return max_lane(maxima) * scale_;
  }

  void rescale_sums(int row) {
    const float factor = scratch_.rescale[row];
    float *sums = scratch_.sums + row * cache_.head_size, *weight_sums = scratch_.weight_sums + row * kLanes;
    for (int i = 0; i < cache_.head_size; i += kLanes) store(sums + i, load(sums + i) * factor);
    store(weight_sums, load(weight_sums) * factor);
  }

  void softmax_row(int row, int visible, int count) {
    const float* scores = scratch_.scores + row * kChunkPositions;
    auto* weights = reinterpret_cast<typename Type::Element*>(scratch_.weights) + row * kChunkPositions;
    const float running_max = scratch_.running_max[row];
    const int whole = visible / kLanes * kLanes;
    Lanes weight_sum = load(scratch_.weight_sums + row * kLanes);
    for (int i = 0; i < whole; i += kLanes) {
      const Lanes weight = exp2(load(scores + i) * scale_ - running_max);
      Type::write(weights + i, weight);
      weight_sum += weight;
    }
    for (int i = whole; i < count; i += kLanes) {
      Lanes weight = {};
      if (i < visible) weight = select_first(visible - i, exp2(load(scores + i) * scale_ - running_max), 0.0f);
      Type::write(weights + i, weight);
      weight_sum += weight;
    }
    store(scratch_.weight_sums + row * kLanes, weight_sum);
  }

  void add_values(int rows, int start, int count) {
    if constexpr (Tiles<Type>::kAvailable)
      if (has_amx_) return add_values_amx(rows, start, count);
    add_values_simd(rows, start, count);
  }

  void add_values_amx(int rows, int start, int count) {
    const int size = cache_.head_size, words = kChunkPositions / Type::kElementsPerWord;
    Tiles<Type>::configure(true);
    for_each_group<2>(size / kLanes, [&](auto columns, int column) {
      for_each_group<2>(row_tiles(rows), [&](auto n, int tile) {
        constexpr int R = decltype(n)::value, C = decltype(columns)::value;
        const Word* weights = scratch_.weights + tile * kTileRows * words;
        float* sums = scratch_.sums + tile * kTileRows * size + column * kLanes;
        Tiles<Type>::template load<R, C>(sums, size);
        for (int position = 0; position < count; position += kLanes) {
          const Word* right[C];
          for (int c = 0; c < C; ++c) right[c] = values_at(start + position) + (column + c) * kLanes;
          Tiles<Type>::template multiply_add<R, C>(weights + position / Type::kElementsPerWord, words, right, size);
        }
        Tiles<Type>::template store<R, C>(sums, size);
      });
    });
  }

  void add_values_simd(int rows, int start, int count) {
    constexpr int kPair = Type::kElementsPerWord;
    const int size = cache_.head_size, words = kChunkPositions / kPair;
    for_each_group<4>(size / kLanes, [&](auto columns, int column) {
      for_each_group<4>(rows, [&](auto n, int r) {
        constexpr int R = decltype(n)::value, C = decltype(columns)::value;
        float* out = scratch_.sums + r * size + column * kLanes;
        Lanes sums[R][C];
        for (int i = 0; i < R; ++i)
          for (int c = 0; c < C; ++c) sums[i][c] = load(out + i * size + c * kLanes);
        for (int position = start; position < start + count; position += kLanes) {
          const Word* row = values_at(position);
          const Word* values[C];
          for (int c = 0; c < C; ++c) values[c] = row + (column + c) * kLanes;
          const Word* weights = scratch_.weights + r * words + (position - start) / kPair;
          accumulate<Type, R, C>(sums, weights, words, values, size, kLanes / kPair);
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
  const bool has_amx_;
  const float scale_;  // of scores, with log2(e), as weights are powers of 2
};

}  // namespace penstock
