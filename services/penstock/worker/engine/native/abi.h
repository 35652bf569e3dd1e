// The structs that Python passes to the native forward pass. `library.py` mirrors them field by field, in this order.
#pragma once

#include <cstdint>

#include "simd.h"

namespace penstock {

struct Shape {
  int32_t dim, hidden, layers, heads, kv_heads, head_size, vocab_size, block_size;
  float norm_eps;
};

struct LayerWeights {
  const float* attention_norm;
  const Word* qkv;
  const float* qkv_bias;  // null if absent, like the next two
  const float* q_norm;
  const float* k_norm;
  const Word* out;
  const float* mlp_norm;
  const Word* gate_up;  // panels of gate and up alternate
  const Word* down;
  Word* k;  // the layer's cache
  Word* v;
};

struct Weights {
  const LayerWeights* layers;
  const Word* embedding;  // packed like a product's weights
  const float* norm;
  const Word* head;
  const float* cos;  // [context][head_size / 2]
  const float* sin;
};

// Consecutive positions of one sequence.
struct Part {
  const int32_t* table;  // block table
  int32_t start, count;
};

struct Step {
  const int32_t* tokens;  // of all parts, in order
  const Part* parts;
  const int32_t* sampled;  // rows
  float* logits;           // [samples][vocab_size]
  const int32_t* hidden_rows;
  float* hidden;  // [hidden_count][dim]: states of these rows after the final norm
  int32_t rows, part_count, samples, hidden_count;
};

// The handle that Python holds.
class Model {
 public:
  virtual ~Model() = default;
  virtual void forward(const Step& step) = 0;
};

}  // namespace penstock
