// Threads that walk through the phases of a step together.
//
// Items of a phase are claimed one by one, so a thread that loses its core for a while holds up no more than the item
// it is at. Waiting is a short spin and then sleep: threads that only spin take the core from the one they wait for.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace penstock {

class Team {
 public:
  explicit Team(int size) : size_(size) {
    for (int member = 1; member < size; ++member) threads_.emplace_back([this, member] { follow(member); });
  }

  ~Team() {
    work_ = nullptr;
    gather();
    for (std::thread& thread : threads_) thread.join();
  }

  Team(const Team&) = delete;

  int size() const { return size_; }

  // Runs work(member) on every thread; inside it, `each` calls must be the same on all of them.
  void run(std::function<void(int)> work) {
    work_ = std::move(work);
    gather();
    work_(0);
    gather();
  }

  // One phase: f(item) for every item, each on one thread. Returns on all threads after the last item is done.
  template <class F>
  void each(int items, F f) {
    for (int item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < items;) f(item);
    gather();
  }

 private:
  static constexpr int kSpins = 500;            // pauses: some 30 us, longer than nearly all phases
  static constexpr int kSpinsBetween = 10'000;  // some 500 us, longer than what lies between two steps

  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  void follow(int member) {
    for (;;) {
      gather(kSpinsBetween);
      if (!work_) return;
      work_(member);
      gather();
    }
  }

  void gather(int spins = kSpins) {
    const unsigned round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      round_.notify_all();
      return;
    }
    for (int spin = 0; spin < spins; ++spin) {
      if (round_.load(std::memory_order_acquire) != round) return;
      relax();
    }
    while (round_.load(std::memory_order_acquire) == round) round_.wait(round, std::memory_order_acquire);
  }

  const int size_;
  std::function<void(int)> work_;
  std::vector<std::thread> threads_;
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> round_{0};
};

}  // namespace penstock
