// A team of threads that run the phases of a step together.
//
// The items of a phase are claimed one by one, so a thread that loses its core delays only the item that it claimed. A
// waiting thread spins briefly and then sleeps, because threads that only spin occupy the cores of working threads.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace penstock {

class ThreadTeam {
 public:
  explicit ThreadTeam(int size) : size_(size) {
    for (int thread = 1; thread < size; ++thread) threads_.emplace_back([this, thread] { worker_loop(thread); });
  }

  ~ThreadTeam() {
    work_ = nullptr;
    barrier();
    for (std::thread& each : threads_) each.join();
  }

  ThreadTeam(const ThreadTeam&) = delete;

  int size() const { return size_; }

  // Runs work(thread) on every thread. All threads must make the same calls of `parallel_for` in it.
  void run(std::function<void(int)> work) {
    work_ = std::move(work);
    barrier();
    work_(0);
    barrier();
  }

  // One phase: calls f(item) for every item, on any thread. Returns on all threads after the last item is done.
  template <class F>
  void parallel_for(int items, F f) {
    for (int item; (item = next_item_.fetch_add(1, std::memory_order_relaxed)) < items;) f(item);
    barrier();
  }

 private:
  static constexpr int kPhaseSpins = 500;            // pauses: about 30 us, longer than most phases
  static constexpr int kStepSpins = 10'000;  // about 500 us, longer than the time between two steps

  static void cpu_pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  void worker_loop(int thread) {
    for (;;) {
      barrier(kStepSpins);
      if (!work_) return;
      work_(thread);
      barrier();
    }
  }

  void barrier(int spins = kPhaseSpins) {
    const unsigned round = round_.load(std::memory_order_acquire);
    if (arrived_threads_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_threads_.store(0, std::memory_order_relaxed);
      next_item_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      round_.notify_all();
      return;
    }
    for (int spin = 0; spin < spins; ++spin) {
      if (round_.load(std::memory_order_acquire) != round) return;
      cpu_pause();
    }
    while (round_.load(std::memory_order_acquire) == round) round_.wait(round, std::memory_order_acquire);
  }

  const int size_;
  std::function<void(int)> work_;
  std::vector<std::thread> threads_;
  alignas(64) std::atomic<int> next_item_{0};
  alignas(64) std::atomic<int> arrived_threads_{0};
  alignas(64) std::atomic<unsigned> round_{0};
};

}  // namespace penstock
