// Objects that tests make at a distance.

#ifndef WEFT_RPC_TESTING_HANDLE_TEST_OBJECTS_H_
#define WEFT_RPC_TESTING_HANDLE_TEST_OBJECTS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/mutex.h"
#include "weft/base/parker.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {

// How many Embeddings and Gateds there are.
class Count {
 public:
  void Add(int by) {
    MutexLock lock(mu_);
    count_ += by;
    changed_.NotifyAll();
  }
  int value() {
    MutexLock lock(mu_);
    return count_;
  }
  // A call that has used one holds it until it has ended there, which may be
  // after its reply has come.
  bool WaitForNone() {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(30);
    MutexLock lock(mu_);
    while (count_ > 0) {
      if (!changed_.WaitUntil(mu_, deadline)) return count_ == 0;
    }
    return true;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};
inline Count& Objects() {
  static auto* const objects = new Count();
  return *objects;
}
inline int Living() { return Objects().value(); }

class Base {
 public:
  virtual ~Base() = default;
  virtual std::string Kind() const { return "base"; }
  int64_t rows() const { return rows_; }

 protected:
  int64_t rows_ = 0;
};

class Embedding : public Base {
 public:
  Embedding(int64_t rows, int64_t dim) : table_(Tensor::Zeros({rows, dim})) {
    if (rows == 0) ThrowInvalidArgument("an Embedding without rows");
    rows_ = rows;
    Objects().Add(1);
  }
  ~Embedding() override { Objects().Add(-1); }

  std::string Kind() const override { return "embedding"; }
  Tensor Lookup(int64_t row) const { return table_.Select(0, row).Clone(); }
  void Set(int64_t row, double value) { table_.Select(0, row).Fill(value); }
  absl::Status Refuse(const std::string& why) const {
    return absl::OutOfRangeError(why);
  }
  std::string CallerName(CallContext& context, const std::string& greeting) {
    return greeting + context.peer().name;
  }
  Future<int64_t> Later(CallContext&) {
    auto [promise, future] = MakePromise<int64_t>();
    MutexLock lock(mu_);
    parked_.push_back(std::move(promise));
    return future;
  }
  double SecondsLeft(CallContext& context) {
    return absl::ToDoubleSeconds(context.Remaining());
  }
  void Answer(int64_t value) {
    std::vector<Promise<int64_t>> parked;
    {
      MutexLock lock(mu_);
      parked.swap(parked_);
    }
    for (auto& promise : parked) promise.Set(value);
  }
  int64_t Unregistered() const { return 1; }

 private:
  const Tensor table_;
  Mutex mu_;
  std::vector<Promise<int64_t>> parked_ ABSL_GUARDED_BY(mu_);
};
WEFT_RPC_CLASS(Embedding, int64_t, int64_t);
WEFT_RPC_METHOD(Embedding, Lookup);
WEFT_RPC_METHOD(Embedding, Set);
WEFT_RPC_METHOD(Embedding, Refuse);
WEFT_RPC_METHOD(Embedding, CallerName);
WEFT_RPC_METHOD(Embedding, Later);
WEFT_RPC_METHOD(Embedding, SecondsLeft);
WEFT_RPC_METHOD(Embedding, Answer);
WEFT_RPC_METHOD(Embedding, Kind);
WEFT_RPC_METHOD(Embedding, rows);
WEFT_RPC_METHOD(Embedding, Lookup);  // as in a second file

// Where the makers of Gateds wait until it is open. One at a time, and before
// the ranks, whose last maker may run after the test's last line.
class Gate {
 public:
  Gate() { the_ = this; }
  ~Gate() { the_ = nullptr; }
  static Gate& The() { return *the_; }

  void Pass() {
    ++begun;
    began.Unpark();
    EXPECT_THAT(is_open_.Wait(::weft::testing::kPatience),
                ::weft::testing::IsOk());
  }
  void Open() { open_.Set(absl::OkStatus()); }

  Parker began;
  std::atomic<int> begun{0};

 private:
  static inline std::atomic<Gate*> the_{nullptr};
  Promise<void> open_;
  const Future<void> is_open_ = open_.future();
};

class Slow {
 public:
  explicit Slow(int64_t) { Objects().Add(1); }
  ~Slow() { Objects().Add(-1); }
};
class Gated : public Slow {
 public:
  explicit Gated(int64_t x) : Slow(x) { Gate::The().Pass(); }
};
WEFT_RPC_CLASS(Gated, int64_t);

inline Tensor Twice(const Tensor& x) {
  Tensor y = x.Clone();
  for (float& v : y.span<float>()) v *= 2;
  return y;
}
WEFT_RPC(Twice);

inline Future<int64_t> Soon(CallContext&, int64_t x) {
  return MakeReady<int64_t>(x);
}
WEFT_RPC(Soon);

inline std::vector<std::string> LeftAt(const Agent& agent) {
  std::vector<std::string> texts;
  for (const Leak& left : agent.Leaks()) {
    texts.push_back(left.ToString());
  }
  return texts;
}

}  // namespace weft::rpc

#endif  // WEFT_RPC_TESTING_HANDLE_TEST_OBJECTS_H_
