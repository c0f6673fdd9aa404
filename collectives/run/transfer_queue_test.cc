#include "weft/collectives/run/transfer_queue.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/collectives/diagnosis.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using testing::IsOkAndHolds;
using testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

// Rank 0 of two, whose messages a test lets come.
class ScriptedBackend final : public Backend {
 public:
  // What becomes of a Receive of `tag` at its `turn`, from 1.
  using Script = std::function<absl::StatusOr<bool>(uint64_t tag, int turn)>;
  explicit ScriptedBackend(Script script) : script_(std::move(script)) {}

  absl::string_view name() const override { return "scripted"; }
  int rank() const override { return 0; }
  int size() const override { return 2; }
  absl::Status Run(const Operation&) override { return absl::OkStatus(); }
  void Refuse(const Operation&, const absl::Status&) override {}
  void Abort(const absl::Status&) override {}
  absl::Status health() const override { return absl::OkStatus(); }
  absl::StatusOr<bool> Advance(Transfer& transfer) override {
    MutexLock lock(mu_);
    return script_(transfer.tag, ++turns_[transfer.tag]);
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
  Mutex mu_;
  std::map<uint64_t, int> turns_ ABSL_GUARDED_BY(mu_);
};

TransferQueue::Addition ReceiveOf(uint64_t tag) {
  TransferQueue::Addition receive;
  receive.transfer.is_send = false;
  receive.transfer.peer = 1;
  receive.transfer.tag = tag;
  receive.deadline = SteadyClock().Now() + kPatience;
  receive.what = "Receive";
  return receive;
}

absl::StatusOr<bool> Full() { return TooMuchUnasked(1, 1 << 20, 5); }

// The first turns are those within Add.
TEST(TransferQueue, MessageThatFillsTheRoomAfterItsTurnIsTaken) {
  ScriptedBackend backend([](uint64_t tag, int turn) -> absl::StatusOr<bool> {
    if (turn == 1) return false;
    if (tag == 5) return turn > 2;  // it comes after the second turn
    return turn == 2 ? Full() : absl::StatusOr<bool>(true);
  });
  TransferQueue queue(backend);
  const auto ends = queue.Add({ReceiveOf(5), ReceiveOf(6)});
  EXPECT_THAT(ends[0].Wait(kPatience), IsOkAndHolds(1));
  EXPECT_THAT(ends[1].Wait(kPatience), IsOkAndHolds(1));
}

TEST(TransferQueue, RoomThatNobodyEmptiesEndsAReceiveOfAnotherTag) {
  ScriptedBackend backend([](uint64_t tag, int turn) -> absl::StatusOr<bool> {
    return tag == 6 && turn > 1 ? Full() : absl::StatusOr<bool>(false);
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

}  // namespace
}  // namespace weft::collectives
