// What all users of oneDNN here share: engine and stream of a thread, thread
// count, and primitives kept by what they were made for.

#ifndef WEFT_TENSOR_OPS_ONEDNN_H_
#define WEFT_TENSOR_OPS_ONEDNN_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "dnnl.hpp"

namespace weft::internal {

// The stack of this thread's signal handlers, of those with SA_ONSTACK, unless
// it has one. sgemm and what falls back to it (oneDNN 2.6, AVX-512) keep what
// they work with below the red zone of the stack, where a handler that runs on
// that stack overwrites it.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  std::unique_ptr<char[]> memory_;
};

// One for each thread, made when first used: oneDNN's streams are for one
// thread at a time. Caches without meaning.
struct OneDnn {
  SignalStack signal_stack;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};

  // This thread's; sets its OpenMP team to IntraOpThreads().
  static OneDnn& ForThisThread();
};

int IntraOpThreads();

// Sizes, options and thread count, which together name a primitive.
using PrimitiveKey = absl::InlinedVector<int64_t, 24>;

// Entries made on demand; all are dropped at the 257th, which only programs
// with ever new shapes reach. Thread-safety: one thread at a time.
template <typename Entry>
class PrimitiveCache {
 public:
  // `make(key)` may throw; then nothing is kept.
  template <typename Make>
  Entry& FindOrMake(const PrimitiveKey& key, Make&& make) {
    const auto found = entries_.find(key);
    if (found != entries_.end()) return found->second;
    Entry entry = make();
    if (entries_.size() >= kMaxEntries) entries_.clear();
    return entries_.emplace(key, std::move(entry)).first->second;
  }

 private:
  static constexpr size_t kMaxEntries = 256;
  absl::flat_hash_map<PrimitiveKey, Entry> entries_;
};

}  // namespace weft::internal

#endif  // WEFT_TENSOR_OPS_ONEDNN_H_
