// The forward pass of a Llama-family decoder over a mixed batch, on a CPU: one call per step.
//
// The residual stream, norms, RoPE and softmax are float32; products take the model's type and sum in float32. The
// logits of a row depend on its own tokens alone, bit for bit: not on its batch mates, nor on the split of its prompt.
#include "abi.h"
#include "attention.h"
#include "buffer.h"
#include "matmul.h"
#include "simd.h"
#include "thread_team.h"

namespace penstock {

template <class Type>
class TypedModel final : public Model {
  using Element = typename Type::Element;
  static constexpr int kPair = Type::kElementsPerWord;
  static constexpr int kMaxItemQueries = 32;  // queries of one attention item
  // Rows of a group: few enough that the outputs of a product are still in a core's second-level cache when the next
  // one reads them, and enough that reading the weights again costs little. 2,048 rows took 10 to 20 % longer.
  static constexpr int kMaxGroupRows = 512;

 public:
  TypedModel(const Shape& shape, const Weights& weights, int threads)
      : shape_(shape), weights_(weights), layers_(weights.layers, weights.layers + shape.layers), team_(threads) {
    if constexpr (Tiles<Type>::kAvailable) has_amx_ = Tiles<Type>::request_permission();
    queries_per_kv_head_ = shape.heads / shape.kv_heads;
    positions_per_item_ = queries_per_kv_head_ < kMaxItemQueries ? kMaxItemQueries / queries_per_kv_head_ : 1;
  }

  void forward(const Step& step) override {
    prepare(step);
    team_.run([&](int thread) {
      team_.parallel_for(step.rows, [&](int row) { embed(step.tokens[row], x(row)); });
      for (const LayerWeights& layer : layers_)
        for (const RowGroup& group : groups_) {
          attend(layer, group, thread);
          feed_forward(layer, group);
        }
      sample(step);
      copy_hidden(step);
    });
  }

 private:
  // Positions of one sequence whose attention is computed together.
  struct AttentionItem {
    int part, row, position, count;
  };

  // Rows whose keys share cache lines, which one thread writes.
  struct CacheLineRows {
    int row, count;
  };

  // Rows that pass through a layer together. Row numbers of items and runs count from `first`.
  struct RowGroup {
    int first, count;
    std::vector<AttentionItem> items;
    std::vector<CacheLineRows> runs;
  };

  void prepare(const Step& step) {
    const int parts = step.rows > kMaxGroupRows ? (step.rows + kMaxGroupRows / 2) / kMaxGroupRows : 1;
    const int together = round_up((step.rows + parts - 1) / parts, 2 * kTileRows);
    const size_t rows = min_of(together, round_up(step.rows, 2 * kTileRows));
    const size_t samples = round_up(step.samples, 2 * kTileRows);
    const int heads = shape_.heads + 2 * shape_.kv_heads;
    x_.reserve(size_t(step.rows) * shape_.dim);
    normed_.reserve((rows > samples ? rows : samples) * stride(shape_.dim));
    qkv_.reserve(rows * round_up(heads * shape_.head_size, kOutputs));
    queries_.reserve((rows * shape_.heads + kTileRows) * shape_.head_size / kPair);
    attended_.reserve(rows * stride(shape_.heads * shape_.head_size));
    hidden_.reserve(rows * stride(shape_.hidden));
    scratch_.reserve(scratch_size() * team_.size());
    parts_ = step.parts;
    row_part_.clear(), row_position_.clear();
    for (int part = 0; part < step.part_count; ++part)
      for (int done = 0; done < step.parts[part].count; ++done)
        row_part_.push_back(part), row_position_.push_back(step.parts[part].start + done);
    groups_.clear();
    for (int first = 0; first < step.rows; first += together)
      groups_.push_back(group(first, min_of(together, step.rows - first)));
  }

  RowGroup group(int first, int count) const {
    RowGroup result{first, count, {}, {}};
    for (int row = 0, rows; row < count; row += rows) {
      const int part = row_part_[first + row], position = row_position_[first + row];
      rows = min_of(parts_[part].start + parts_[part].count - position, count - row);
      for (int done = 0; done < rows; done += positions_per_item_)
        result.items.push_back({part, row + done, position + done, min_of(positions_per_item_, rows - done)});
      for (int done = 0, beside; done < rows; done += beside) {
        beside = min_of(kLanes - (position + done) % kLanes, rows - done);
        result.runs.push_back({row + done, beside});
      }
    }
    return result;
  }

  void embed(int token, float* out) const {
    const Word* panel = weights_.embedding + size_t(token / kLanes) * steps(shape_.dim) * kLanes;
    for (int i = 0; i < shape_.dim; ++i) {
      Element value[kPair];
      memcpy(value, panel + i / kPair * kLanes + token % kLanes, sizeof value);
      out[i] = Type::widen(value[i % kPair]);
    }
  }

  void attend(const LayerWeights& layer, const RowGroup& group, int thread) {
    team_.parallel_for(group.count, [&](int row) { norm(x(group.first + row), layer.attention_norm, normed(row)); });
    const int width = (shape_.heads + 2 * shape_.kv_heads) * shape_.head_size;
    const int out_stride = round_up(width, kOutputs);
    const float* bias = layer.qkv_bias;
    const RowBlock rows = inputs(normed_, shape_.dim, group.count);
    product(rows, layer.qkv, width, [&](int row, int pair, Lanes first, Lanes second) {
      float* out = qkv_.get() + size_t(row) * out_stride + pair * kOutputs;
      if (bias) first += load(bias + pair * kOutputs), second += load(bias + pair * kOutputs + kLanes);
      store(out, first), store(out + kLanes, second);
    });
    const LayerCache<Type> cache{layer.k, layer.v, shape_.kv_heads, shape_.head_size, shape_.block_size};
    team_.parallel_for(int(group.runs.size()), [&](int index) {
      const auto [first, count] = group.runs[index];
      for (int row = first; row < first + count; ++row)
        write_kv(layer, cache, group, row, qkv_.get() + size_t(row) * out_stride);
    });
    const AttentionScratch scratch = scratch_of(thread);
    team_.parallel_for(int(group.items.size()) * shape_.kv_heads, [&](int index) {
      attend_item(cache, group, group.items[index / shape_.kv_heads], index % shape_.kv_heads, scratch);
    });
    add_product(inputs(attended_, shape_.heads * shape_.head_size, group.count), layer.out, group.first);
  }

  void feed_forward(const LayerWeights& layer, const RowGroup& group) {
    team_.parallel_for(group.count, [&](int row) { norm(x(group.first + row), layer.mlp_norm, normed(row)); });
    product(inputs(normed_, shape_.dim, group.count), layer.gate_up, 2 * round_up(shape_.hidden, kLanes),
            [&](int row, int pair, Lanes gate, Lanes up) {
              const Lanes silu = gate / (1.0f + exp(-gate));
              Type::write(elements(hidden_, row, shape_.hidden) + pair * kLanes, silu * up);
            });
    add_product(inputs(hidden_, shape_.hidden, group.count), layer.down, group.first);
  }

  void sample(const Step& step) {
    team_.parallel_for(step.samples, [&](int i) { norm(x(step.sampled[i]), weights_.norm, normed(i)); });
    const int size = shape_.vocab_size;
    const RowBlock rows = inputs(normed_, shape_.dim, step.samples);
    product(rows, weights_.head, size, [&](int row, int pair, Lanes first, Lanes second) {
      const Lanes both[2] = {first, second};
      const int left = size - pair * kOutputs;
      memcpy(step.logits + size_t(row) * size + pair * kOutputs, both, sizeof(float) * min_of(left, kOutputs));
    });
  }

  // Writes the states of the rows that embeddings need, normalized in float32 for every type of the model.
  void copy_hidden(const Step& step) {
    team_.parallel_for(step.hidden_count, [&](int i) {
      const float* row = x(step.hidden_rows[i]);
      float* out = step.hidden + size_t(i) * shape_.dim;
      const float scale = norm_scale(row, shape_.dim);
      for (int at = 0; at < shape_.dim; at += kLanes)
        store(out + at, load(row + at) * scale * load(weights_.norm + at));
    });
  }

  // Normalizes and rotates a row's queries and key, and writes key and value to the cache.
  void write_kv(const LayerWeights& layer, const LayerCache<Type>& cache, const RowGroup& group, int row, float* qkv) {
    const int size = shape_.head_size, position = row_position_[group.first + row];
    const float* cos = weights_.cos + size_t(position) * size / 2;
    const float* sin = weights_.sin + size_t(position) * size / 2;
    auto* queries = reinterpret_cast<Element*>(queries_.get());
    for (int head = 0; head < shape_.heads; ++head) {
      float* query = qkv + head * size;
      if (layer.q_norm) norm_in_place(query, layer.q_norm);
      rotate(query, cos, sin);
      // The queries of one KV head are contiguous, position after position.
      const int kv_head = head / queries_per_kv_head_, query_of_head = head % queries_per_kv_head_;
      const size_t index = (size_t(kv_head) * group.count + row) * queries_per_kv_head_ + query_of_head;
      for (int i = 0; i < size; i += kLanes) Type::write(queries + index * size + i, load(query + i));
    }
    const int block = parts_[row_part_[group.first + row]].table[position / shape_.block_size];
    for (int head = 0; head < shape_.kv_heads; ++head) {
      float* key = qkv + (shape_.heads + head) * size;
      if (layer.k_norm) norm_in_place(key, layer.k_norm);
      rotate(key, cos, sin);
      cache.write(block, position % shape_.block_size, head, key, key + shape_.kv_heads * size);
    }
  }

  void attend_item(const LayerCache<Type>& cache, const RowGroup& group, const AttentionItem& item, int head,
                   const AttentionScratch& scratch) {
    const int size = shape_.head_size;
    const size_t first_query = (size_t(head) * group.count + item.row) * queries_per_kv_head_;
    const Word* queries = queries_.get() + first_query * size / kPair;
    Attention<Type>(cache, parts_[item.part].table, head, scratch, has_amx_)
        .attend(queries, item.count * queries_per_kv_head_, queries_per_kv_head_, item.position);
    for (int r = 0; r < item.count * queries_per_kv_head_; ++r) {
      Element* row = elements(attended_, item.row + r / queries_per_kv_head_, shape_.heads * size);
      Element* out = row + (head * queries_per_kv_head_ + r % queries_per_kv_head_) * size;
      const float scale = 1.0f / sum_lanes(load(scratch.weight_sums + r * kLanes));
      for (int i = 0; i < size; i += kLanes) Type::write(out + i, load(scratch.sums + r * size + i) * scale);
    }
  }

  template <class F>
  void product(const RowBlock& rows, const Word* words, int outputs, F done) {
    if constexpr (Tiles<Type>::kAvailable)
      if (has_amx_) Tiles<Type>::configure(false);
    multiply<Type>(team_, rows, PackedMatrix{words, round_up(outputs, kOutputs) / kLanes, rows.steps}, has_amx_, done);
  }

  // x += rows x weight, from row `first_row` of x.
  void add_product(const RowBlock& rows, const Word* words, int first_row) {
    product(rows, words, shape_.dim, [&](int row, int pair, Lanes first, Lanes second) {
      float* out = x(first_row + row) + pair * kOutputs;
      store(out, load(out) + first);
      if (pair * kOutputs + kLanes < shape_.dim) store(out + kLanes, load(out + kLanes) + second);
    });
  }

  // RMSNorm (Zhang and Sennrich 2019).
  void norm(const float* x, const float* weight, Element* out) const {
    const float scale = norm_scale(x, shape_.dim);
    for (int i = 0; i < shape_.dim; i += kLanes) Type::write(out + i, load(x + i) * scale * load(weight + i));
  }

  void norm_in_place(float* head, const float* weight) const {
    const float scale = norm_scale(head, shape_.head_size);
    for (int i = 0; i < shape_.head_size; i += kLanes) store(head + i, load(head + i) * scale * load(weight + i));
  }

  float norm_scale(const float* x, int size) const {
    Lanes squares = {};
    for (int i = 0; i < size; i += kLanes) squares += load(x + i) * load(x + i);
    return 1.0f / std::sqrt(sum_lanes(squares) / float(size) + shape_.norm_eps);
  }

  // RoPE on half-split pairs (Su et al. 2021).
  void rotate(float* head, const float* cos, const float* sin) const {
    const int half = shape_.head_size / 2;
    for (int i = 0; i < half; ++i) {
      const float first = head[i], second = head[i + half];
      head[i] = first * cos[i] - second * sin[i];
      head[i + half] = second * cos[i] + first * sin[i];
    }
  }

  int item_queries() const { return round_up(positions_per_item_ * queries_per_kv_head_, kTileRows); }
  size_t scratch_size() const {
    return size_t(item_queries()) * (kChunkPositions + kChunkPositions / kPair + shape_.head_size + kLanes + 3);
  }

  AttentionScratch scratch_of(int thread) const {
    const int queries = item_queries();
    float* scores = scratch_.get() + thread * scratch_size();
    auto* weights = reinterpret_cast<Word*>(scores + queries * kChunkPositions);
    auto* sums = reinterpret_cast<float*>(weights + queries * kChunkPositions / kPair);
    auto* weight_sums = sums + queries * shape_.head_size;
    auto* running_max = weight_sums + queries * kLanes;
    return {scores, weights, sums, weight_sums, running_max, running_max + queries, running_max + 2 * queries};
  }

  static int steps(int elements) { return round_up(elements, kInputs) / kPair; }  // words

  // Words from row to row: one cache line more than needed, so that rows do not all map to the same few cache sets.
  static int stride(int elements) { return steps(elements) + kTileWords; }

  RowBlock inputs(const Buffer<Word>& buffer, int size, int count) const {
    return {buffer.get(), stride(size), steps(size), count};
  }
  float* x(int row) const { return x_.get() + size_t(row) * shape_.dim; }
  Element* normed(int row) const { return elements(normed_, row, shape_.dim); }
  Element* elements(const Buffer<Word>& buffer, int row, int size) const {
    return reinterpret_cast<Element*>(buffer.get() + size_t(row) * stride(size));
  }

  const Shape shape_;
  const Weights weights_;
  const std::vector<LayerWeights> layers_;
  ThreadTeam team_;
  bool has_amx_ = false;
  int queries_per_kv_head_, positions_per_item_;
  const Part* parts_ = nullptr;
  std::vector<RowGroup> groups_;
  std::vector<int> row_part_, row_position_;
  Buffer<float> x_, qkv_, scratch_;
  Buffer<Word> normed_, queries_, attended_, hidden_;
};

}  // namespace penstock

extern "C" {

using namespace penstock;

int penstock_has_bfloat16() {
#if defined(__AVX512BF16__)
  return 1;
#else
  return 0;
#endif
}

Model* penstock_model_new(const Shape* shape, const Weights* weights, int bfloat16, int threads) {
#if defined(__AVX512BF16__)
  if (bfloat16) return new TypedModel<BFloat16>(*shape, *weights, threads);
#endif
  return new TypedModel<Float32>(*shape, *weights, threads);
}

void penstock_model_forward(Model* model, const Step* step) { model->forward(*step); }

void penstock_model_free(Model* model) { delete model; }
}
