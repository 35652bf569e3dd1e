// Products with weights that are packed once, when the model is loaded.
//
// A packed matrix has one panel per 16 outputs: [outputs / 16][inputs / kElementsPerWord] words for 16 lanes. Both
// dimensions are padded with zeros to multiples of kOutputs and kInputs, so that no loop has edge cases.
#pragma once

#include "simd.h"
#include "thread_team.h"
#include "amx.h"

namespace penstock {

constexpr int kOutputs = 32;  // outputs of one work item: two panels
constexpr int kInputs = 32;   // elements of a tile's row
constexpr int kMaxTileRows = 128;
constexpr int kCachedRowBytes = 1 << 20;
constexpr int kMaxStepWords = 128;  // two panels of this length stay in the first-level cache

struct PackedMatrix {
  const Word* words;
  int panels;  // of 16 outputs, an even number
  int steps;   // words along the inputs

  const Word* panel(int index) const { return words + size_t(index) * steps * kLanes; }
};

// Input rows of a product: [rows padded][stride] words, zero beyond the inputs.
struct RowBlock {
  const Word* words;
  int stride;  // words
  int steps;   // words with inputs
  int count;

  const Word* row(int index) const { return words + size_t(index) * stride; }
};

// Two panels times rows [from, to): calls done(row, first panel's lanes, second panel's lanes) for each row.
template <class Type, class F>
void multiply_simd(const RowBlock& rows, int from, int to, const PackedMatrix& weight, int pair, F done) {
  const Word* const panels[2] = {weight.panel(2 * pair), weight.panel(2 * pair + 1)};
  for_each_group<8>(to - from, [&](auto n, int start) {
    constexpr int R = decltype(n)::value;
    Lanes sums[R][2] = {};
    accumulate<Type, R, 2>(sums, rows.row(from + start), rows.stride, panels, kLanes, weight.steps);
    for (int r = 0; r < R; ++r) done(from + start + r, sums[r][0], sums[r][1]);
  });
}

// The same with AMX.
template <class Type, class F>
void multiply_amx(const RowBlock& rows, int from, int to, const PackedMatrix& weight, int pair, F done) {
  alignas(64) float sums[kMaxTileRows][kOutputs] = {};
  for (int step = 0; step < weight.steps; step += kMaxStepWords) {
    const int end = min_of(weight.steps, step + kMaxStepWords);
    for_each_group<2>(round_up(to - from, kTileRows) / kTileRows, [&](auto n, int tile) {
      constexpr int R = decltype(n)::value;
      const Word* left = rows.row(from + tile * kTileRows);
      Tiles<Type>::template load<R, 2>(sums[tile * kTileRows], kOutputs);
      for (int word = step; word < end; word += kTileWords) {
        const Word* const right[2] = {weight.panel(2 * pair) + word * kLanes,
                                      weight.panel(2 * pair + 1) + word * kLanes};
        Tiles<Type>::template multiply_add<R, 2>(left + word, rows.stride, right, kLanes);
      }
      Tiles<Type>::template store<R, 2>(sums[tile * kTileRows], kOutputs);
    });
  }
  for (int row = from; row < to; ++row) done(row, load(sums[row - from]), load(sums[row - from] + kLanes));
}

template <class Type, class F>
void multiply_rows(const RowBlock& rows, int begin, int end, const PackedMatrix& weight, int pair, bool has_amx,
                   F done) {
  const auto put = [&](int row, Lanes first, Lanes second) { done(row, pair, first, second); };
  for (int from = begin; from < end; from += kMaxTileRows) {
    const int to = min_of(from + kMaxTileRows, end);
    if constexpr (Tiles<Type>::kAvailable)
      if (has_amx) {
        multiply_amx<Type>(rows, from, to, weight, pair, put);
        continue;
      }
    multiply_simd<Type>(rows, from, to, weight, pair, put);
  }
}

// rows x weight on all threads. Calls done(row, pair of panels, lanes of the first panel, lanes of the second).
//
// The rows are split into parts that stay in a core's second-level cache while the weights are read. With enough work
// for all threads, one thread computes two pairs of panels, because their outputs may share cache lines.
template <class Type, class F>
void multiply(ThreadTeam& team, const RowBlock& rows, const PackedMatrix& weight, bool has_amx, F done) {
  const int pairs = weight.panels / 2, group = pairs >= 8 * team.size() ? 2 : 1;
  const int groups = (pairs + group - 1) / group;
  const int cached = kCachedRowBytes / int(rows.stride * sizeof(Word)) / kMaxTileRows * kMaxTileRows;
  const int part = cached > kMaxTileRows ? cached : kMaxTileRows;
  const int parts = (rows.count + part - 1) / part;
  team.parallel_for(groups * parts, [&](int item) {
    const int begin = item / groups * part, first = item % groups * group;
    for (int pair = first; pair < min_of(first + group, pairs); ++pair)
      multiply_rows<Type>(rows, begin, min_of(begin + part, rows.count), weight, pair, has_amx, done);
  });
}

}  // namespace penstock
