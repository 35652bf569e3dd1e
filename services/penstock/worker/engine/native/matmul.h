// Products with weights that were packed once, when the model was loaded.
//
// A packed matrix is a row of panels, one for every 16 outputs: [outputs / 16][inputs / kPair] words for 16 lanes. Both
// dimensions are padded with zeros, to kOutputs and kInputs, so that no loop here knows of edges.
#pragma once

#include "lanes.h"
#include "team.h"
#include "tiles.h"

namespace penstock {

constexpr int kOutputs = 32;   // outputs that one item of work computes: two panels
constexpr int kInputs = 32;    // elements: a tile's row
constexpr int kRowsAtOnce = 128;
constexpr int kCachedBytes = 1 << 20;  // of rows
constexpr int kStepsAtOnce = 128;  // words: two panels of so many stay in the first-level cache

struct Packed {
  const Word* words;
  int panels;  // of 16 outputs, an even number
  int steps;   // words along the inputs

  const Word* panel(int index) const { return words + size_t(index) * steps * kLanes; }
};

// Rows of inputs for a product: [rows padded][stride] words, zero beyond the inputs.
struct Rows {
  const Word* words;
  int stride;  // words
  int steps;   // words that are inputs
  int count;

  const Word* row(int index) const { return words + size_t(index) * stride; }
};

// Two panels times rows [from, to): calls done(row, first panel's lanes, second panel's lanes) for each row.
template <class Type, class F>
void multiply_by_lanes(const Rows& rows, int from, int to, const Packed& weight, int pair, F done) {
  const Word* const panels[2] = {weight.panel(2 * pair), weight.panel(2 * pair + 1)};
  in_groups<8>(to - from, [&](auto n, int start) {
    constexpr int R = decltype(n)::value;
    Lanes sums[R][2] = {};
    accumulate<Type, R, 2>(sums, rows.row(from + start), rows.stride, panels, kLanes, weight.steps);
    for (int r = 0; r < R; ++r) done(from + start + r, sums[r][0], sums[r][1]);
  });
}

// The same by tiles.
template <class Type, class F>
void multiply_by_tiles(const Rows& rows, int from, int to, const Packed& weight, int pair, F done) {
  alignas(64) float sums[kRowsAtOnce][kOutputs] = {};
  for (int step = 0; step < weight.steps; step += kStepsAtOnce) {
    const int end = least(weight.steps, step + kStepsAtOnce);
    in_groups<2>(round_up(to - from, kTileRows) / kTileRows, [&](auto n, int tile) {
      constexpr int R = decltype(n)::value;
      const Word* left = rows.row(from + tile * kTileRows);
      Tiles<Type>::template load<R, 2>(sums[tile * kTileRows], kOutputs);
      for (int at = step; at < end; at += kTileWords) {
        const Word* const right[2] = {weight.panel(2 * pair) + at * kLanes, weight.panel(2 * pair + 1) + at * kLanes};
        Tiles<Type>::template multiply_add<R, 2>(left + at, rows.stride, right, kLanes);
      }
      Tiles<Type>::template store<R, 2>(sums[tile * kTileRows], kOutputs);
    });
  }
  for (int row = from; row < to; ++row) done(row, load(sums[row - from]), load(sums[row - from] + kLanes));
}

template <class Type, class F>
void multiply_part(const Rows& rows, int begin, int end, const Packed& weight, int pair, bool tiles, F done) {
  const auto put = [&](int row, Lanes first, Lanes second) { done(row, pair, first, second); };
  for (int from = begin; from < end; from += kRowsAtOnce) {
    const int to = least(from + kRowsAtOnce, end);
    if constexpr (Tiles<Type>::kAvailable)
      if (tiles) {
        multiply_by_tiles<Type>(rows, from, to, weight, pair, put);
        continue;
      }
    multiply_by_lanes<Type>(rows, from, to, weight, pair, put);
  }
}

// rows x weight over the whole team. done(row, pair of panels, lanes of the first, lanes of the second).
//
// The rows are taken in parts that stay in a core's second-level cache while the weights pass by. Where there is work
// enough for all, two pairs of panels stay on one thread: their outputs may share cache lines, which would wander.
template <class Type, class F>
void multiply(Team& team, const Rows& rows, const Packed& weight, bool tiles, F done) {
  const int pairs = weight.panels / 2, group = pairs >= 8 * team.size() ? 2 : 1;
  const int groups = (pairs + group - 1) / group;
  const int cached = kCachedBytes / int(rows.stride * sizeof(Word)) / kRowsAtOnce * kRowsAtOnce;
  const int part = cached > kRowsAtOnce ? cached : kRowsAtOnce;
  const int parts = (rows.count + part - 1) / part;
  team.each(groups * parts, [&](int item) {
    const int begin = item / groups * part, first = item % groups * group;
    for (int pair = first; pair < least(first + group, pairs); ++pair)
      multiply_part<Type>(rows, begin, least(begin + part, rows.count), weight, pair, tiles, done);
  });
}

}  // namespace penstock
