#include "weft/rpc/agent/batcher.h"

#include <utility>

namespace weft::rpc {

void Batcher::Add(std::shared_ptr<ServedCall> call) {
  decltype(calls_) full;
  int64_t begun = -1;
  {
    MutexLock lock(mu_);
    calls_.push_back(std::move(call));
    if (static_cast<int64_t>(calls_.size()) >= function_.batch.max_items) {
      full.swap(calls_);
      ++batch_;
    } else if (calls_.size() == 1) {
      begun = batch_;
    }
  }
  if (!full.empty()) return Run(std::move(full));
  if (begun < 0) return;
  transport_.RunAt(transport_.clock().Now() + function_.batch.max_delay,
                   [weak = weak_from_this(), begun] {
                     if (auto self = weak.lock()) self->FlushBatch(begun);
                   });
}

void Batcher::Flush() {
  int64_t batch = 0;
  {
    MutexLock lock(mu_);
    batch = batch_;
  }
  FlushBatch(batch);
}

void Batcher::FlushBatch(int64_t batch) {
  decltype(calls_) calls;
  {
    MutexLock lock(mu_);
    if (batch != batch_) return;  // it was full before
    calls.swap(calls_);
    ++batch_;
  }
  if (!calls.empty()) Run(std::move(calls));
}

void Batcher::Run(std::vector<std::shared_ptr<ServedCall>> calls) {
  executor_.Schedule(
      [serve = function_.serve_batch, calls = std::move(calls)]() mutable {
        serve(std::move(calls));
      });
}

}  // namespace weft::rpc
