// A Llama-family decoder's forward over a mixed batch, on a CPU: one call per step.
//
// The residual stream, norms, RoPE and softmax are float32; products take the model's type and sum in float32.
// A row's logits depend, to the last bit, on its own tokens alone: not on its batch mates, nor on how its prompt was split.
#include <sys/mman.h>

#include <memory>

#include "attention.h"
#include "lanes.h"
#include "matmul.h"
#include "team.h"

namespace penstock {

// The structs up to here cross the border to Python; `library.py` mirrors them.

struct Shape {
  int32_t dim, hidden, layers, heads, kv_heads, head_size, vocab_size, block_size;
  float norm_eps;
};

struct LayerWeights {
  const float* attention_norm;
  const Word* qkv;
  const float* qkv_bias;  // may be null, as may the next two
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

// Some positions of one sequence.
struct Part {
  const int32_t* table;  // its blocks
  int32_t start, count;
};

struct Step {
  const int32_t* tokens;  // of all parts, one after another
  const Part* parts;
  const int32_t* sampled;  // rows
  float* logits;           // [samples][vocab_size]
  int32_t rows, part_count, samples;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual void forward(const Step& step) = 0;
};

// Grows, never shrinks; zero where nothing was written. Large ones lie in large pages where there are such: a product
// writes a little of every row in turn, and with small pages would look up one for each.
template <class T>
class Buffer {
 public:
  T* reserve(size_t count) {
    if (count > count_) {
      const size_t page = count * sizeof(T) < kLargePage / 4 ? 64 : kLargePage;
      const size_t bytes = (count * sizeof(T) + page - 1) / page * page;
      memory_.reset(static_cast<T*>(std::aligned_alloc(page, bytes)));
#if defined(MADV_HUGEPAGE)
      if (page == kLargePage) madvise(memory_.get(), bytes, MADV_HUGEPAGE);
#endif
      memset(memory_.get(), 0, bytes);
      count_ = count;
    }
    return memory_.get();
  }
  T* get() const { return memory_.get(); }

 private:
  static constexpr size_t kLargePage = 2 << 20;

  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T, Free> memory_;
  size_t count_ = 0;
};

template <class Type>
class TypedModel final : public Model {
  using Element = typename Type::Element;
  static constexpr int P = Type::kPair;
  static constexpr int kQueries = 32;  // most queries that one item of attention takes
  // Rows: few enough that what a product leaves is still in a core's second-level cache when the next one takes it, and
  // many enough that passing the weights once more costs little. 2,048 rows at once took 10 to 20 % longer.
  static constexpr int kRowsTogether = 512;

 public:
  TypedModel(const Shape& shape, const Weights& weights, int threads)
      : shape_(shape), weights_(weights), layers_(weights.layers, weights.layers + shape.layers), team_(threads) {
    if constexpr (Tiles<Type>::kAvailable) tiles_ = Tiles<Type>::request();
    shared_ = shape.heads / shape.kv_heads;
    per_item_ = shared_ < kQueries ? kQueries / shared_ : 1;
  }

  void forward(const Step& step) override {
    prepare(step);
    team_.run([&](int member) {
      team_.each(step.rows, [&](int row) { embed(step.tokens[row], x(row)); });
      for (const LayerWeights& layer : layers_)
        for (const Group& group : groups_) {
          attend(layer, group, member);
          feed_forward(layer, group);
        }
      sample(step);
    });
  }

 private:
  // Positions of one sequence that attend together.
  struct Item {
    int part, row, position, count;
  };

  // Rows whose keys share cache lines, and so are put there by one thread.
  struct Run {
    int row, count;
  };

  // Rows that pass through a layer together. Rows of items and runs count from `first`.
  struct Group {
    int first, count;
    std::vector<Item> items;
    std::vector<Run> runs;
  };

  void prepare(const Step& step) {
    const int parts = step.rows > kRowsTogether ? (step.rows + kRowsTogether / 2) / kRowsTogether : 1;
    const int together = round_up((step.rows + parts - 1) / parts, 2 * kTileRows);
    const size_t rows = least(together, round_up(step.rows, 2 * kTileRows));
    const size_t samples = round_up(step.samples, 2 * kTileRows);
    const int heads = shape_.heads + 2 * shape_.kv_heads;
    x_.reserve(size_t(step.rows) * shape_.dim);
    normed_.reserve((rows > samples ? rows : samples) * stride(shape_.dim));
    qkv_.reserve(rows * round_up(heads * shape_.head_size, kOutputs));
    queries_.reserve((rows * shape_.heads + kTileRows) * shape_.head_size / P);
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
      groups_.push_back(group(first, least(together, step.rows - first)));
  }

  Group group(int first, int count) const {
    Group made{first, count, {}, {}};
    for (int row = 0, rows; row < count; row += rows) {
      const int part = row_part_[first + row], position = row_position_[first + row];
      rows = least(parts_[part].start + parts_[part].count - position, count - row);
      for (int done = 0; done < rows; done += per_item_)
        made.items.push_back({part, row + done, position + done, least(per_item_, rows - done)});
      for (int done = 0, beside; done < rows; done += beside) {
        beside = least(kLanes - (position + done) % kLanes, rows - done);
        made.runs.push_back({row + done, beside});
      }
    }
    return made;
  }

  void embed(int token, float* out) const {
    const Word* panel = weights_.embedding + size_t(token / kLanes) * steps(shape_.dim) * kLanes;
    for (int i = 0; i < shape_.dim; ++i) {
      Element value[P];
      memcpy(value, panel + i / P * kLanes + token % kLanes, sizeof value);
      out[i] = Type::widen(value[i % P]);
    }
  }

  void attend(const LayerWeights& layer, const Group& group, int member) {
    team_.each(group.count, [&](int row) { norm(x(group.first + row), layer.attention_norm, normed(row)); });
    const int width = (shape_.heads + 2 * shape_.kv_heads) * shape_.head_size;
    const int out_stride = round_up(width, kOutputs);
    const float* bias = layer.qkv_bias;
    const Rows rows = inputs(normed_, shape_.dim, group.count);
    product(rows, layer.qkv, width, [&](int row, int pair, Lanes first, Lanes second) {
      float* out = qkv_.get() + size_t(row) * out_stride + pair * kOutputs;
      if (bias) first += load(bias + pair * kOutputs), second += load(bias + pair * kOutputs + kLanes);
      store(out, first), store(out + kLanes, second);
    });
    const LayerCache<Type> cache{layer.k, layer.v, shape_.kv_heads, shape_.head_size, shape_.block_size};
    team_.each(int(group.runs.size()), [&](int index) {
      const auto [first, count] = group.runs[index];
      for (int row = first; row < first + count; ++row)
        place(layer, cache, group, row, qkv_.get() + size_t(row) * out_stride);
    });
    const AttentionScratch scratch = scratch_of(member);
    team_.each(int(group.items.size()) * shape_.kv_heads, [&](int index) {
      attend_item(cache, group, group.items[index / shape_.kv_heads], index % shape_.kv_heads, scratch);
    });
    add_product(inputs(attended_, shape_.heads * shape_.head_size, group.count), layer.out, group.first);
  }

  void feed_forward(const LayerWeights& layer, const Group& group) {
    team_.each(group.count, [&](int row) { norm(x(group.first + row), layer.mlp_norm, normed(row)); });
    product(inputs(normed_, shape_.dim, group.count), layer.gate_up, 2 * round_up(shape_.hidden, kLanes),
            [&](int row, int pair, Lanes gate, Lanes up) {
              const Lanes silu = gate / (1.0f + exp(-gate));
              Type::write(elements(hidden_, row, shape_.hidden) + pair * kLanes, silu * up);
            });
    add_product(inputs(hidden_, shape_.hidden, group.count), layer.down, group.first);
  }

  void sample(const Step& step) {
    team_.each(step.samples, [&](int i) { norm(x(step.sampled[i]), weights_.norm, normed(i)); });
    const int size = shape_.vocab_size;
    const Rows rows = inputs(normed_, shape_.dim, step.samples);
    product(rows, weights_.head, size, [&](int row, int pair, Lanes first, Lanes second) {
      const Lanes both[2] = {first, second};
      const int left = size - pair * kOutputs;
      memcpy(step.logits + size_t(row) * size + pair * kOutputs, both, sizeof(float) * (left < kOutputs ? left : kOutputs));
    });
  }

  // Norms and rotates a row's queries and key, and puts key and value into the cache.
  void place(const LayerWeights& layer, const LayerCache<Type>& cache, const Group& group, int row, float* qkv) {
    const int size = shape_.head_size, position = row_position_[group.first + row];
    const float* cos = weights_.cos + size_t(position) * size / 2;
    const float* sin = weights_.sin + size_t(position) * size / 2;
    auto* queries = reinterpret_cast<Element*>(queries_.get());
    for (int head = 0; head < shape_.heads; ++head) {
      float* query = qkv + head * size;
      if (layer.q_norm) norm_in_place(query, layer.q_norm);
      rotate(query, cos, sin);
      // One KV head's queries lie together, position after position.
      const size_t at = (size_t(head / shared_) * group.count + row) * shared_ + head % shared_;
      for (int i = 0; i < size; i += kLanes) Type::write(queries + at * size + i, load(query + i));
    }
    const int block = parts_[row_part_[group.first + row]].table[position / shape_.block_size];
    for (int head = 0; head < shape_.kv_heads; ++head) {
      float* key = qkv + (shape_.heads + head) * size;
      if (layer.k_norm) norm_in_place(key, layer.k_norm);
      rotate(key, cos, sin);
      cache.write(block, position % shape_.block_size, head, key, key + shape_.kv_heads * size);
    }
  }

  void attend_item(const LayerCache<Type>& cache, const Group& group, const Item& item, int head,
                   const AttentionScratch& scratch) {
    const int size = shape_.head_size;
    const Word* queries = queries_.get() + (size_t(head) * group.count + item.row) * shared_ * size / P;
    Attention<Type>(cache, parts_[item.part].table, head, scratch, tiles_)
        .attend(queries, item.count * shared_, shared_, item.position);
    for (int r = 0; r < item.count * shared_; ++r) {
      Element* row = elements(attended_, item.row + r / shared_, shape_.heads * size);
      Element* out = row + (head * shared_ + r % shared_) * size;
      const float scale = 1.0f / sum(load(scratch.total + r * kLanes));
      for (int i = 0; i < size; i += kLanes) Type::write(out + i, load(scratch.sums + r * size + i) * scale);
    }
  }

  template <class F>
  void product(const Rows& rows, const Word* words, int outputs, F done) {
    if constexpr (Tiles<Type>::kAvailable)
      if (tiles_) Tiles<Type>::configure(false);
    multiply<Type>(team_, rows, Packed{words, round_up(outputs, kOutputs) / kLanes, rows.steps}, tiles_, done);
  }

  // x += rows x weight, from x's row `first_row` on.
  void add_product(const Rows& rows, const Word* words, int first_row) {
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
    return 1.0f / std::sqrt(sum(squares) / float(size) + shape_.norm_eps);
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

  int item_queries() const { return round_up(per_item_ * shared_, kTileRows); }
  size_t scratch_size() const { return size_t(item_queries()) * (kChunk + kChunk / P + shape_.head_size + kLanes + 3); }

  AttentionScratch scratch_of(int member) const {
    const int queries = item_queries();
    float* scores = scratch_.get() + member * scratch_size();
    auto* weights = reinterpret_cast<Word*>(scores + queries * kChunk);
    auto* sums = reinterpret_cast<float*>(weights + queries * kChunk / P);
    auto* total = sums + queries * shape_.head_size;
    auto* largest = total + queries * kLanes;
    return {scores, weights, sums, total, largest, largest + queries, largest + 2 * queries};
  }

  static int steps(int elements) { return round_up(elements, kInputs) / P; }  // words

  // Words from row to row: a cache line more than needed, or rows of some sizes would all fall into the same few sets.
  static int stride(int elements) { return steps(elements) + kTileWords; }

  Rows inputs(const Buffer<Word>& buffer, int size, int count) const {
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
  Team team_;
  bool tiles_ = false;
  int shared_;    // query heads that share a KV head
  int per_item_;  // positions
  const Part* parts_ = nullptr;
  std::vector<Group> groups_;
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
