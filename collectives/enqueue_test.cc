// Operations that a backend begins by Enqueue, and that end by an event.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/collectives/process_group.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

// What a device does, as the test says: operations are begun in order, and end
// when the test, or an abort, ends them.
class Device {
 public:
  struct Begun {
    const Operation* operation;
    Backend::Done done;
  };

  ~Device() { Join(); }

  void Begin(const Operation& operation, Backend::Done done) {
    MutexLock lock(mu_);
    labels_.push_back(operation.label);
    begun_.push_back({&operation, std::move(done)});
    changed_.NotifyAll();
  }
  // Waits for the operation with this label to be begun.
  Begun Take(uint64_t label) {
    MutexLock lock(mu_);
    while (true) {
      for (auto it = begun_.begin(); it != begun_.end(); ++it) {
        if (it->operation->label != label) continue;
        Begun found = std::move(*it);
        begun_.erase(it);
        return found;
      }
      changed_.Wait(mu_);
    }
  }
  // Doubles its elements if `status` is OK, and ends it on a thread of its own.
  void End(uint64_t label, const absl::Status& status = absl::OkStatus()) {
    std::thread([this, label, status] {
      Begun begun = Take(label);
      const Operation& operation = *begun.operation;
      if (status.ok() && operation.verb == Verb::kAllReduce) {
        const Block& out = operation.outputs[0];
        for (int64_t i = 0; i < out.elements; ++i) {
          reinterpret_cast<float*>(out.memory)[i] *= 2;
        }
      }
      std::move(begun.done)(status);
    }).join();
  }
  // Ends all that go on, on a thread of the device, after a while.
  void EndAll(const absl::Status& why) {
    MutexLock lock(mu_);
    ends_.emplace_back([this, why] {
      absl::SleepFor(absl::Milliseconds(5));
      std::vector<Begun> all;
      {
        MutexLock inner(mu_);
        all.swap(begun_);
      }
      for (Begun& one : all) std::move(one.done)(why);
    });
  }
  std::vector<uint64_t> labels() {
    MutexLock lock(mu_);
    return labels_;
  }

 private:
  void Join() {
    std::vector<std::thread> ends;
    {
      MutexLock lock(mu_);
      ends.swap(ends_);
    }
    for (std::thread& thread : ends) thread.join();
  }

  Mutex mu_;
  CondVar changed_;
  std::vector<Begun> begun_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> labels_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> ends_ ABSL_GUARDED_BY(mu_);
};

// One rank of one.
class DeviceBackend final : public Backend {
 public:
  explicit DeviceBackend(Device& device) : device_(device) {}

  absl::string_view name() const override { return "device"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  absl::Status Run(const Operation&) override {
    return absl::InternalError("Run of a backend that enqueues");
  }
  bool enqueues() const override { return true; }
  void Enqueue(const Operation& operation, Done done) override {
    device_.Begin(operation, std::move(done));
    const absl::Status why = health();
    if (!why.ok()) device_.EndAll(why);
  }
  void Refuse(const Operation&, const absl::Status&) override {}
  void Abort(const absl::Status& why) override {
    {
      MutexLock lock(mu_);
      if (!aborted_.ok()) return;
      aborted_ = why;
    }
    device_.EndAll(why);
  }
  absl::Status health() const override {
    MutexLock lock(mu_);
    return aborted_;
  }
  absl::StatusOr<bool> Advance(Transfer&) override { return true; }
  uint64_t transfer_events() const override { return 0; }
  void AwaitTransfers(uint64_t, Instant) override {}
  absl::StatusOr<Tensor> Allocate(const Shape& shape, DType dtype) override {
    return Tensor::Empty(shape, dtype);
  }
  absl::StatusOr<std::unique_ptr<Backend>> Subgroup(
      const SubgroupSpec&) override {
    return std::make_unique<DeviceBackend>(device_);
  }

 private:
  Device& device_;
  mutable Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
};

class Enqueue : public ::testing::Test {
 protected:
  // Each with a label, from 1.
  Future<void> Reduce(const Tensor& tensor) {
    CallOptions options;
    options.label = ++calls_;
    return group_->AllReduceAsync(tensor, {}, options);
  }

  Device device_;
  std::unique_ptr<ProcessGroup> group_ =
      ProcessGroup::Create(std::make_unique<DeviceBackend>(device_));
  uint64_t calls_ = 0;
};

TEST_F(Enqueue, OperationsAreBegunInOrderAndEndInAny) {
  const Tensor a = Tensor::Ones({3}), b = Tensor::Ones({2});
  const Future<void> first = Reduce(a), second = Reduce(b);
  EXPECT_THAT(device_.labels(), ElementsAre(1, 2));  // nobody has waited
  EXPECT_FALSE(first.IsReady());
  device_.End(2);
  EXPECT_THAT(second.Wait(kPatience), IsOk());
  EXPECT_FALSE(first.IsReady());
  EXPECT_EQ(b.ToVector<float>(), std::vector<float>(2, 2));
  EXPECT_EQ(a.ToVector<float>(), std::vector<float>(3, 1));
  device_.End(1);
  EXPECT_THAT(first.Wait(kPatience), IsOk());
  EXPECT_EQ(a.ToVector<float>(), std::vector<float>(3, 2));
}

TEST_F(Enqueue, SynchronousCallWaitsForItsEvent) {
  const Tensor tensor = Tensor::Ones({1});
  std::thread ends([&] { device_.End(7); });
  CallOptions options;
  options.label = 7;
  EXPECT_THAT(group_->AllReduce(tensor, {}, options), IsOk());
  ends.join();
  EXPECT_EQ(tensor.ToVector<float>(), std::vector<float>(1, 2));
}

// What is called while a synchronous call waits is begun after it, and the
// caller goes on.
TEST_F(Enqueue, AsyncCallDoesNotWaitForASynchronousOne) {
  std::thread waits([&] {
    CallOptions options;
    options.label = 7;
    EXPECT_THAT(group_->Barrier(options), IsOk());
  });
  Device::Begun barrier = device_.Take(7);
  const Future<void> later = Reduce(Tensor::Ones({1}));
  EXPECT_THAT(device_.labels(), ElementsAre(7));
  std::move(barrier.done)(absl::OkStatus());
  waits.join();
  device_.End(1);
  EXPECT_THAT(later.Wait(kPatience), IsOk());
  EXPECT_THAT(device_.labels(), ElementsAre(7, 1));
}

// A tensor that is not contiguous is copied, and written back by the event.
TEST_F(Enqueue, CopyIsWrittenBackWhenTheOperationEnds) {
  const Tensor whole = Tensor::Ones({2, 2});
  const Future<void> reduced = Reduce(whole.Transpose(0, 1).Slice(0, 0, 1));
  EXPECT_EQ(whole.ToVector<float>(), std::vector<float>({1, 1, 1, 1}));
  device_.End(1);
  EXPECT_THAT(reduced.Wait(kPatience), IsOk());
  EXPECT_EQ(whole.ToVector<float>(), std::vector<float>({2, 1, 2, 1}));
}

TEST_F(Enqueue, RefusalOfAnotherLeavesTheGroupAsItIs) {
  const Tensor tensor = Tensor::Ones({1});
  const Future<void> refused = Reduce(tensor), next = Reduce(tensor);
  device_.End(1, absl::AbortedError("rank 3 refused its part"));
  EXPECT_THAT(refused.Wait(kPatience),
              StatusIs(absl::StatusCode::kAborted, "AllReduce #0"));
  device_.End(2);
  EXPECT_THAT(next.Wait(kPatience), IsOk());
}

TEST_F(Enqueue, ErrorEndsItsOperationAndIsToldOnce) {
  int broken = 0;
  GroupOptions options;
  options.on_broken = [&](const absl::Status&) { ++broken; };
  group_ =
      ProcessGroup::Create(std::make_unique<DeviceBackend>(device_), options);
  const Tensor tensor = Tensor::Ones({1});
  const Future<void> first = Reduce(tensor), second = Reduce(tensor);
  device_.End(2, absl::DeadlineExceededError("rank 1 waited for others"));
  EXPECT_THAT(second.Wait(kPatience),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "AllReduce #1"));
  device_.End(1, absl::DeadlineExceededError("rank 1 waited for others"));
  EXPECT_THAT(first.Wait(kPatience),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "AllReduce #0"));
  EXPECT_EQ(broken, 1);
}

TEST_F(Enqueue, RevokeEndsWhatGoesOnAndWhatIsCalledLater) {
  const Tensor tensor = Tensor::Ones({1});
  const Future<void> one = Reduce(tensor), other = Reduce(tensor);
  group_->Revoke(absl::CancelledError("enough"));
  EXPECT_THAT(one.Wait(kPatience),
              StatusIs(absl::StatusCode::kCancelled, "enough"));
  EXPECT_THAT(other.Wait(kPatience),
              StatusIs(absl::StatusCode::kCancelled, "enough"));
  EXPECT_THAT(Reduce(tensor).Wait(kPatience),
              StatusIs(absl::StatusCode::kCancelled, "enough"));
  EXPECT_THAT(device_.labels(), ElementsAre(1, 2));
}

TEST_F(Enqueue, EndOfTheGroupEndsWhatGoesOnBeforeItsMemoryGoes) {
  const Future<void> one = Reduce(Tensor::Ones({1 << 10}));
  group_ = nullptr;
  EXPECT_THAT(one.Wait(kPatience),
              StatusIs(absl::StatusCode::kCancelled, "ended on rank 0"));
}

TEST_F(Enqueue, OperationWithoutTimeIsNotBegun) {
  CallOptions options;
  options.timeout = absl::ZeroDuration();
  EXPECT_THAT(
      group_->BarrierAsync(options).Wait(kPatience),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "no time was left"));
  EXPECT_THAT(device_.labels(), ElementsAre());
}

// Callbacks run on the device's thread, which has other work.
TEST_F(Enqueue, SynchronousCallInACallbackIsRefused) {
  absl::Status found;
  const Future<void> reduced = Reduce(Tensor::Ones({1}));
  reduced.OnReady([&](const absl::Status&) { found = group_->Barrier(); });
  device_.End(1);
  EXPECT_THAT(found, StatusIs(absl::StatusCode::kFailedPrecondition,
                              "this thread must not block"));
}

// From many threads, each of which ends what another has begun.
TEST_F(Enqueue, ManyThreadsBeginAndEndOperations) {
  constexpr int kThreads = 4, kEach = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Tensor tensor = Tensor::Ones({4});
      for (int i = 0; i < kEach; ++i) {
        CallOptions options;
        options.label = t * kEach + i;
        const Future<void> reduced =
            group_->AllReduceAsync(tensor, {}, options);
        Device::Begun begun = device_.Take((t + 1) % kThreads * kEach + i);
        std::move(begun.done)(absl::OkStatus());
        EXPECT_THAT(reduced.Wait(kPatience), IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Enqueue, GroupIsSplitWithoutBlocking) {
  Future<std::unique_ptr<ProcessGroup>> part = group_->SplitAsync(0);
  device_.End(0);
  const auto made = std::move(part).Wait(kPatience);
  ASSERT_THAT(made.status(), IsOk());
  EXPECT_EQ((*made)->size(), 1);
}

}  // namespace
}  // namespace weft::collectives
