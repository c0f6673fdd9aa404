#include "weft/collectives/run/transfer_queue.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/base/failpoint.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/collectives/diagnosis.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using testing::IsOk;
using testing::IsOkAndHolds;
using testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

// Rank 0 of three, whose messages a test lets come.
class ScriptedBackend final : public Backend {
 public:
  // What becomes of a transfer at its tag's `turn`, from 1.
  using Script =
      std::function<absl::StatusOr<bool>(Transfer& transfer, int turn)>;
  explicit ScriptedBackend(Script script) : script_(std::move(script)) {}

  absl::string_view name() const override { return "scripted"; }
  int rank() const override { return 0; }
  int size() const override { return 3; }
  absl::Status Run(const Operation&) override { return absl::OkStatus(); }
  void Refuse(const Operation&, const absl::Status&) override {}
  void Abort(const absl::Status& why) override {
    MutexLock lock(mu_);
    aborted_ = why;
  }
  absl::Status health() const override {
    MutexLock lock(mu_);
    return aborted_;
  }
  absl::StatusOr<bool> Advance(Transfer& transfer) override {
    MutexLock lock(mu_);
    return script_(transfer, ++turns_[transfer.tag]);
  }
  int turns(uint64_t tag) const {
    MutexLock lock(mu_);
    const auto it = turns_.find(tag);
    return it == turns_.end() ? 0 : it->second;
  }
  uint64_t transfer_events() const override { return 0; }
  void AwaitTransfers(uint64_t, Instant) override {
    absl::SleepFor(absl::Milliseconds(1));
  }
  absl::StatusOr<Tensor> Allocate(const Shape& shape, DType dtype) override {
    return Tensor::Empty(shape, dtype);
  }
  absl::StatusOr<std::unique_ptr<Backend>> Subgroup(
      const SubgroupSpec&) override {
    return absl::UnimplementedError("one group");
  }

 private:
  const Script script_;
  mutable Mutex mu_;
  std::map<uint64_t, int> turns_ ABSL_GUARDED_BY(mu_);
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
};

TransferQueue::Addition ReceiveOf(uint64_t tag, int peer = 1) {
  TransferQueue::Addition receive;
  receive.transfer.is_send = false;
  receive.transfer.peer = peer;
  receive.transfer.tag = tag;
  receive.deadline = SteadyClock().Now() + kPatience;
  receive.what = "Receive";
  return receive;
}

TransferQueue::Addition SendOf(uint64_t tag, int peer = 1) {
  TransferQueue::Addition send = ReceiveOf(tag, peer);
  send.transfer.is_send = true;
  send.what = "Send";
  return send;
}

// One alone.
Future<int> AddOne(TransferQueue& queue, TransferQueue::Addition addition) {
  std::vector<TransferQueue::Addition> one;
  one.push_back(std::move(addition));
  return std::move(queue.Add(std::move(one))[0]);
}

absl::StatusOr<bool> Full() { return TooMuchUnasked(1, 1 << 20, 5); }

// The first turns are those within Add.
TEST(TransferQueue, MessageThatFillsTheRoomAfterItsTurnIsTaken) {
  ScriptedBackend backend([](Transfer& t, int turn) -> absl::StatusOr<bool> {
    if (turn == 1) return false;
    if (t.tag == 5) return turn > 2;  // it comes after the second turn
    return turn == 2 ? Full() : absl::StatusOr<bool>(true);
  });
  TransferQueue queue(backend);
  const auto ends = queue.Add({ReceiveOf(5), ReceiveOf(6)});
  EXPECT_THAT(ends[0].Wait(kPatience), IsOkAndHolds(1));
  EXPECT_THAT(ends[1].Wait(kPatience), IsOkAndHolds(1));
}

TEST(TransferQueue, RoomThatNobodyEmptiesEndsAReceiveOfAnotherTag) {
  ScriptedBackend backend([](Transfer& t, int turn) -> absl::StatusOr<bool> {
    return t.tag == 6 && turn > 1 ? Full() : absl::StatusOr<bool>(false);
  });
  std::vector<Future<int>> ends;
  {
    TransferQueue queue(backend);
    ends = queue.Add({ReceiveOf(4), ReceiveOf(6)});
    EXPECT_THAT(ends[1].Wait(kPatience),
                StatusIs(absl::StatusCode::kResourceExhausted, "tag 5"));
    EXPECT_FALSE(ends[0].IsReady());  // it may still come
  }
  EXPECT_THAT(ends[0].Wait(kPatience),
              StatusIs(absl::StatusCode::kCancelled, "ended"));
}

TEST(TransferQueue, WhatCanBeMovedAtOnceNeedsNoThread) {
  const ScopedFailpoint threads("base/start_thread",
                                "error(RESOURCE_EXHAUSTED,no thread)");
  ScriptedBackend backend([](Transfer& t, int) {
    if (t.peer < 0) t.peer = 2;  // the sender is known by now
    return true;
  });
  TransferQueue queue(backend);
  const auto ends = queue.Add({SendOf(1, 2), ReceiveOf(2), ReceiveOf(3, -1)});
  for (const Future<int>& end : ends) ASSERT_TRUE(end.IsReady());
  EXPECT_THAT(*ends[0].Peek(), IsOkAndHolds(2));
  EXPECT_THAT(*ends[1].Peek(), IsOkAndHolds(1));
  EXPECT_THAT(*ends[2].Peek(), IsOkAndHolds(2));
  EXPECT_TRUE(queue.is_idle());
  EXPECT_EQ(threads.hits(), 0);
}

TEST(TransferQueue, WithoutAThreadOneThatMustWaitSaysWhatItWas) {
  const ScopedFailpoint threads("base/start_thread",
                                "error(RESOURCE_EXHAUSTED,no thread)");
  ScriptedBackend backend([](Transfer&, int) { return false; });
  TransferQueue queue(backend);
  EXPECT_THAT(AddOne(queue, SendOf(1)).Wait(kPatience),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "Send: failpoint 'base/start_thread': no thread"));
  EXPECT_TRUE(queue.is_idle());
}

TEST(TransferQueue, ErrorsSayWhatTheyAreOfAndEndThatOneAlone) {
  ScriptedBackend backend([](Transfer& t, int turn) -> absl::StatusOr<bool> {
    if (t.tag == 1) return absl::InvalidArgumentError("another dtype");
    return turn > 3;
  });
  TransferQueue queue(backend);
  const auto ends = queue.Add({ReceiveOf(1), ReceiveOf(2)});
  EXPECT_THAT(
      ends[0].Wait(kPatience),
      StatusIs(absl::StatusCode::kInvalidArgument, "Receive: another dtype"));
  EXPECT_THAT(ends[1].Wait(kPatience), IsOkAndHolds(1));
  EXPECT_THAT(backend.health(), IsOk());
}

TEST(TransferQueue, DeadlineEndsOneThatHasNotBegunAndLeavesTheGroup) {
  ScriptedBackend backend([](Transfer&, int) { return false; });
  TransferQueue queue(backend);
  TransferQueue::Addition receive = ReceiveOf(1);
  receive.deadline = SteadyClock().Now() + absl::Milliseconds(20);
  EXPECT_THAT(AddOne(queue, std::move(receive)).Wait(kPatience),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "Receive: the other rank has not called in time"));
  EXPECT_THAT(backend.health(), IsOk());
}

// The rest of a message that is half there can go nowhere.
TEST(TransferQueue, DeadlineOfOneThatIsHalfMovedBreaksTheGroup) {
  ScriptedBackend backend([](Transfer& t, int) {
    t.moved_bytes = 8;
    return false;
  });
  TransferQueue queue(backend);
  TransferQueue::Addition send = SendOf(1);
  send.deadline = SteadyClock().Now() + absl::Milliseconds(20);
  EXPECT_THAT(AddOne(queue, std::move(send)).Wait(kPatience),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "Send: "));
  EXPECT_THAT(backend.health(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "Send: "));
}

// Else another rank could agree to what its caller has been told is over.
TEST(TransferQueue, WhatTheBackendKeepsOfOneEndsBeforeItsFuture) {
  std::atomic<int> kept{0};
  ScriptedBackend backend([&](Transfer& t, int turn) -> absl::StatusOr<bool> {
    if (t.state == nullptr) {
      ++kept;
      t.state = std::shared_ptr<void>(nullptr, [&](void*) { --kept; });
    }
    if (t.tag == 2) return absl::InvalidArgumentError("another dtype");
    if (t.tag == 4) return Full();
    return t.tag == 3 && turn > 2;
  });
  std::vector<int> found;
  const auto look = [&](const absl::StatusOr<int>&) { found.push_back(kept); };
  for (const uint64_t tag : {1, 2, 3, 4, 5}) {
    TransferQueue queue(backend);
    TransferQueue::Addition one = ReceiveOf(tag);
    if (tag == 1) one.deadline = SteadyClock().Now() + absl::Milliseconds(20);
    const Future<int> end = AddOne(queue, std::move(one));
    end.OnReady(look);
    if (tag != 5) end.Wait(kPatience).IgnoreError();
  }
  EXPECT_EQ(found, std::vector<int>(5, 0));
}

// A deadline of before is no reason not to move what can be moved.
TEST(TransferQueue, OneWithoutTimeIsTriedOnce) {
  ScriptedBackend backend([](Transfer& t, int) { return t.tag == 1; });
  TransferQueue queue(backend);
  for (const uint64_t tag : {1, 2}) {
    TransferQueue::Addition receive = ReceiveOf(tag);
    receive.deadline = SteadyClock().Now() - absl::Seconds(1);
    const Future<int> end = AddOne(queue, std::move(receive));
    ASSERT_TRUE(end.IsReady());
    EXPECT_EQ(end.Peek()->ok(), tag == 1);
    EXPECT_EQ(backend.turns(tag), 1);
  }
}

// If one message could serve several receives, the oldest gets it.
TEST(TransferQueue, OnesThatCompeteWaitForTheOldest) {
  std::atomic<bool> may_end{false};
  std::atomic<int> others{0};
  ScriptedBackend backend([&](Transfer& t, int) {
    if (t.is_send || t.tag != 1) return true;  // they pass
    // The oldest is from rank 1; the others ask for it too, or for any rank.
    if (t.dtype != DType::kI64) ++others;
    return may_end.load();
  });
  TransferQueue queue(backend);
  TransferQueue::Addition oldest = ReceiveOf(1);
  oldest.transfer.dtype = DType::kI64;
  std::vector<TransferQueue::Addition> all;
  all.push_back(std::move(oldest));
  all.push_back(ReceiveOf(1));
  all.push_back(ReceiveOf(1, -1));
  all.push_back(ReceiveOf(2));
  all.push_back(SendOf(1));
  const auto ends = queue.Add(std::move(all));
  EXPECT_TRUE(ends[3].IsReady());
  EXPECT_TRUE(ends[4].IsReady());
  // Some rounds of the queue's thread.
  const int before = backend.turns(1);
  EXPECT_TRUE(testing::Becomes([&] { return backend.turns(1) > before + 5; }));
  EXPECT_EQ(others, 0);
  may_end = true;
  for (const Future<int>& end : ends) {
    EXPECT_THAT(end.Wait(kPatience).status(), IsOk());
  }
  EXPECT_GT(others, 0);
}

TEST(TransferQueue, CallbacksMayNotWaitButMayAddOthers) {
  ScriptedBackend backend(
      [](Transfer& t, int turn) { return t.tag == 2 || turn > 2; });
  TransferQueue queue(backend);
  bool is_inline = false;
  std::optional<Future<int>> next;
  const Future<int> both = AddOne(queue, ReceiveOf(1)).Then([&](int from) {
    is_inline = InlineScope::IsActive();
    next = AddOne(queue, ReceiveOf(2));
    return from;
  });
  EXPECT_THAT(both.Wait(kPatience), IsOkAndHolds(1));
  EXPECT_TRUE(is_inline);
  EXPECT_THAT(next->Wait(kPatience), IsOkAndHolds(1));
}

// Also those that run as the queue ends: no lock is held.
TEST(TransferQueue, CallbacksOfItsEndMayNotWaitButMayUseIt) {
  ScriptedBackend backend([](Transfer&, int) { return false; });
  bool is_inline = false, is_idle = false;
  {
    TransferQueue queue(backend);
    AddOne(queue, ReceiveOf(1)).OnReady([&](const absl::StatusOr<int>& end) {
      EXPECT_THAT(end, StatusIs(absl::StatusCode::kCancelled,
                                "Receive: the group ended"));
      is_inline = InlineScope::IsActive();
      is_idle = queue.is_idle();
    });
  }
  EXPECT_TRUE(is_inline);
  EXPECT_TRUE(is_idle);
}

}  // namespace
}  // namespace weft::collectives
