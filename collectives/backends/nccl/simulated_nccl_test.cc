// That the simulated NCCL shows what callers do wrong.

#include "weft/collectives/backends/nccl/simulated_nccl.h"

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/device/context.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using nccl::DataType;
using nccl::RedOp;
using nccl::Result;
using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

// One of two ranks, both of which this thread plays.
struct Player {
  explicit Player(SimulatedNccl& nccl, int rank)
      : devices(rank), f(*nccl.Library(rank)) {
    device = Device(devices.context(), 0);
    stream = *devices.runtime().CreateStream(device.id());
  }

  Result Init(const nccl::UniqueId& id, int rank) {
    nccl::Config config;
    config.blocking = 0;
    return f.CommInitRankConfig(&comm, 2, id, rank, &config);
  }
  Result Poll() {
    Result result = Result::kInProgress;
    f.CommGetAsyncError(comm, &result);
    return result;
  }
  // Until what was called is on the stream.
  void Settle() {
    while (Poll() == Result::kInProgress) {
    }
  }
  Result Reduce(const Tensor& x, size_t count) {
    return f.AllReduce(x.address(), x.address(), count, DataType::kFloat32,
                       RedOp::kSum, comm, &stream);
  }
  absl::Status Wait() {
    return devices.runtime().Synchronize(stream, kPatience);
  }
  // On its stream.
  Tensor Ones(int64_t count) {
    const Tensor x = Tensor::Ones({count}).To(device).Clone();
    devices.runtime().Synchronize(device.id(), kPatience).IgnoreError();
    return x;
  }

  SimulatedDevices devices;
  NcclFunctions f;
  Device device;
  device::Stream stream;
  nccl::Comm comm = nullptr;
};

class SimulatedNcclTest : public ::testing::Test {
 protected:
  void Connect() {
    nccl::UniqueId id;
    ASSERT_EQ(a_.f.GetUniqueId(&id), Result::kSuccess);
    EXPECT_EQ(a_.Init(id, 0), Result::kInProgress);
    EXPECT_EQ(a_.Poll(), Result::kInProgress);  // the other has not come
    EXPECT_EQ(b_.Init(id, 1), Result::kInProgress);
    EXPECT_EQ(a_.Poll(), Result::kSuccess);
    EXPECT_EQ(b_.Poll(), Result::kSuccess);
  }

  SimulatedNccl nccl_{1};
  Player a_{nccl_, 0}, b_{nccl_, 1};
};

TEST_F(SimulatedNcclTest, KernelsMeet) {
  Connect();
  const Tensor x = a_.Ones(8), y = b_.Ones(8);
  a_.Reduce(x, 8);
  a_.Settle();
  // A stream of the simulated device that waits for another rank hangs.
  EXPECT_THAT(a_.Wait(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "hangs"));
  b_.Reduce(y, 8);
  b_.Settle();
  EXPECT_THAT(b_.Wait(), IsOk());
  EXPECT_THAT(a_.Wait(), IsOk());
  EXPECT_EQ(x.To(Device::Cpu()).ToVector<float>(), std::vector<float>(8, 2));
  EXPECT_EQ(y.To(Device::Cpu()).ToVector<float>(), std::vector<float>(8, 2));
}

TEST_F(SimulatedNcclTest, DifferentCallsHangUntilTheyAreAborted) {
  Connect();
  const Tensor x = a_.Ones(8), y = b_.Ones(8);
  a_.Reduce(x, 8);
  b_.Reduce(y, 7);
  a_.Settle();
  b_.Settle();
  for (Player* one : {&a_, &b_, &a_}) {
    EXPECT_THAT(one->Wait(),
                StatusIs(absl::StatusCode::kDeadlineExceeded, "hangs"));
  }
  EXPECT_EQ(nccl_.mismatches(), 1);
  EXPECT_EQ(a_.f.CommAbort(a_.comm), Result::kSuccess);
  EXPECT_THAT(a_.Wait(), IsOk());
  EXPECT_THAT(b_.Wait(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "hangs"));
  EXPECT_EQ(b_.f.CommAbort(b_.comm), Result::kSuccess);
  EXPECT_THAT(b_.Wait(), IsOk());
  EXPECT_EQ(x.To(Device::Cpu()).ToVector<float>(), std::vector<float>(8, 1));
  EXPECT_EQ(nccl_.communicators(), 0);
}

// As with NCCL, what a call in progress does is not on the stream yet.
TEST_F(SimulatedNcclTest, CallBeforeTheEndOfAnotherIsAMisuse) {
  Connect();
  const Tensor x = a_.Ones(8);
  int calls = 0;
  while (a_.Reduce(x, 8) == Result::kSuccess) ASSERT_LT(++calls, 100);
  EXPECT_EQ(nccl_.misuses(), 0);
  EXPECT_EQ(a_.Reduce(x, 8), Result::kInvalidUsage);
  EXPECT_EQ(nccl_.misuses(), 1);
}

TEST_F(SimulatedNcclTest, CommunicatorThatHasEndedIsNone) {
  Connect();
  EXPECT_EQ(a_.f.CommAbort(a_.comm), Result::kSuccess);
  EXPECT_EQ(a_.Reduce(a_.Ones(8), 8), Result::kInvalidArgument);
  EXPECT_EQ(a_.f.CommDestroy(a_.comm), Result::kInvalidArgument);
  EXPECT_EQ(nccl_.misuses(), 2);
  EXPECT_EQ(nccl_.communicators(), 1);
}

TEST_F(SimulatedNcclTest, MessagesOfAGroupPassEachOther) {
  Connect();
  const Tensor x = a_.Ones(8), y = b_.Ones(8);
  const Tensor to_x = a_.Ones(8), to_y = b_.Ones(8);
  const auto exchange = [](Player& one, const Tensor& out, const Tensor& in,
                           int peer) {
    one.f.GroupStart();
    one.f.Send(out.address(), 8, DataType::kFloat32, peer, one.comm,
               &one.stream);
    one.f.Recv(in.address(), 8, DataType::kFloat32, peer, one.comm,
               &one.stream);
    one.f.GroupEnd();
    one.Settle();
  };
  exchange(a_, x, to_x, 1);
  EXPECT_THAT(a_.Wait(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "hangs"));
  exchange(b_, y, to_y, 0);
  EXPECT_THAT(b_.Wait(), IsOk());
  EXPECT_THAT(a_.Wait(), IsOk());
}

TEST_F(SimulatedNcclTest, MemoryThatIsNotOfTheDeviceFailsIt) {
  Connect();
  const Tensor x = Tensor::Ones({8});
  a_.Reduce(x, 8);
  a_.Settle();
  EXPECT_THAT(a_.Wait(),
              StatusIs(absl::StatusCode::kInternal, "illegal address"));
}

}  // namespace
}  // namespace weft::collectives
