// Memory for the intermediate results of a step.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>

namespace penstock {

// Zeroed memory that grows and never shrinks. Large buffers use huge pages if available: a product writes a little of
// every row in turn, and with small pages would look up one for each.
template <class T>
class Buffer {
 public:
  T* reserve(size_t count) {
    if (count > count_) {
      const size_t page = count * sizeof(T) < kHugePageBytes / 4 ? 64 : kHugePageBytes;
      const size_t bytes = (count * sizeof(T) + page - 1) / page * page;
      memory_.reset(static_cast<T*>(std::aligned_alloc(page, bytes)));
#if defined(MADV_HUGEPAGE)
      if (page == kHugePageBytes) madvise(memory_.get(), bytes, MADV_HUGEPAGE);
#endif
      memset(memory_.get(), 0, bytes);
      count_ = count;
    }
    return memory_.get();
  }
  T* get() const { return memory_.get(); }

 private:
  static constexpr size_t kHugePageBytes = 2 << 20;

  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T, Free> memory_;
  size_t count_ = 0;
};

}  // namespace penstock
