#include "weft/tensor/ops/onednn.h"

#include <omp.h>
#include <signal.h>

#include <atomic>
#include <cstddef>

#include "weft/base/check.h"
#include "weft/tensor/ops/threads.h"

namespace weft {
namespace {

std::atomic<int> intra_op_threads{1};

// Most is for the registers of the thread: some 3 KiB, with AMX 11.
constexpr size_t kSignalStackBytes = 64 << 10;

}  // namespace

void SetIntraOpThreads(int threads) {
  WEFT_CHECK_GE(threads, 1);
  intra_op_threads.store(threads, std::memory_order_relaxed);
}

namespace internal {

int IntraOpThreads() {
  return intra_op_threads.load(std::memory_order_relaxed);
}

SignalStack::SignalStack() {
  stack_t now = {};
  if (sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) {
    return;
  }
  memory_.reset(new char[kSignalStackBytes]);
  stack_t ours = {};
  ours.ss_sp = memory_.get();
  ours.ss_size = kSignalStackBytes;
  WEFT_CHECK_EQ(sigaltstack(&ours, nullptr), 0);
}

SignalStack::~SignalStack() {
  stack_t now = {};
  if (memory_ == nullptr || sigaltstack(nullptr, &now) != 0 ||
      now.ss_sp != memory_.get()) {
    return;
  }
  stack_t none = {};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
}

OneDnn& OneDnn::ForThisThread() {
  thread_local OneDnn onednn;
  thread_local int team = 0;
  if (const int threads = IntraOpThreads(); team != threads) {
    omp_set_num_threads(threads);
    team = threads;
  }
  return onednn;
}

}  // namespace internal
}  // namespace weft
