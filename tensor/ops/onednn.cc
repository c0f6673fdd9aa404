#include "weft/tensor/ops/onednn.h"

#include <omp.h>

#include <atomic>

#include "weft/base/check.h"
#include "weft/tensor/ops/threads.h"

namespace weft {
namespace {

std::atomic<int> intra_op_threads{1};

}  // namespace

void SetIntraOpThreads(int threads) {
  WEFT_CHECK_GE(threads, 1);
  intra_op_threads.store(threads, std::memory_order_relaxed);
}

namespace internal {

int IntraOpThreads() {
  return intra_op_threads.load(std::memory_order_relaxed);
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
