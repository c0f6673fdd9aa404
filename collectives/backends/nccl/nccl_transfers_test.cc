// Send and Receive between tensors of devices: by NCCL where host_bytes is 0,
// as the point-to-point part of the conformance suite has them on the CPU.

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_suite.h"
#include "weft/collectives/backends/device/device_transfer_calls.h"
#include "weft/collectives/backends/device/transfer_handshake.h"
#include "weft/collectives/backends/nccl/nccl_communicator.h"
#include "weft/collectives/backends/nccl/nccl_meeting.h"
#include "weft/collectives/backends/nccl/nccl_world.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/device/runtime.h"
#include "weft/device/simulated/runtime.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

std::string OnHost(const Tensor& x) { return BytesOf(x.To(Device::Cpu())); }

Tensor Zeros(const DeviceRank& rank, int64_t count, DType dtype = DType::kF32) {
  return rank.Place(Tensor::Zeros({count}, dtype));
}

// All that is sent from a device goes by NCCL.
class ByNccl : public NcclWorld {
 public:
  explicit ByNccl(int size, uint64_t seed) : NcclWorld(size, seed) {
    host_bytes = 0;
  }
  ~ByNccl() override { ExpectSound(); }
};

DeviceWorldKind NcclKind() {
  return {"nccl", [](int size, uint64_t seed) {
            return std::make_unique<NcclWorld>(size, seed);
          }};
}

INSTANTIATE_TEST_SUITE_P(Nccl, DeviceTransfersTest,
                         DeviceCases({NcclKind()}, {2, 4}), DeviceCaseName);

class NcclTransfersTest : public ::testing::TestWithParam<int> {
 protected:
  uint64_t seed() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Seeds, NcclTransfersTest, ::testing::Range(0, 20));

TEST(NcclTransfers, TensorsOfOneElementOrMoreGoByNccl) {
  ByNccl world(2, 1);
  EXPECT_THAT(world.Run(MatchByTagAndKeepTheOrder), Each(IsOk()));
  EXPECT_EQ(world.nccl().launches(), 8);
}

TEST(NcclTransfers, FewBytesAreKeptByTheHostUntilTheyAreAskedFor) {
  NcclWorld world(2, 1);
  const auto statuses = world.Run([](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor tensor = Zeros(rank, 100);
    if (group.rank() == 0) {
      WEFT_RETURN_IF_ERROR(group.Send(rank.Place(Numbers(0, 100)), 1));
      return group.Barrier();
    }
    WEFT_RETURN_IF_ERROR(group.Barrier());
    WEFT_RETURN_IF_ERROR(group.Receive(tensor, 0));
    WANT_EQ(OnHost(tensor), BytesOf(Numbers(0, 100)));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(world.nccl().launches(), 0);
}

// ----- what goes wrong

// Ranks go on, as a new group over the same NCCL.
absl::Status ShrinkAndSend(const DeviceRank& rank) {
  ProcessGroup& group = rank.group;
  WEFT_RETURN_IF_ERROR(group.Shrink({0, 1}));
  const Tensor x = rank.Place(Numbers(group.rank(), 9));
  if (group.rank() == 0) return group.Send(x, 1);
  WEFT_RETURN_IF_ERROR(group.Receive(x, 0));
  WANT_EQ(OnHost(x), BytesOf(Numbers(0, 9)));
  return absl::OkStatus();
}

TEST_P(NcclTransfersTest, KernelThatNeverComesEndsAtTheDeadline) {
  ByNccl world(2, seed());
  world.nccl().SetSilent(1, true);
  std::atomic<int> failed{0};
  const auto statuses = world.Run([&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor x = rank.Place(Numbers(group.rank(), 100));
    const CallOptions options = Within(absl::Milliseconds(300));
    // One that the other rank has not met leaves the group as it is.
    WANT_EQ(bool(Becomes([&] {
              const absl::Status found = group.rank() == 0
                                             ? group.Send(x, 1, 0, options)
                                             : group.Receive(x, 0, 0, options);
              return found.code() != kLate || !group.health().ok();
            })),
            true);
    WANT_EQ(group.health().code(), kLate);
    ++failed;
    WANT_EQ(bool(Becomes([&] { return failed == 2; })), true);
    world.nccl().SetSilent(1, false);
    return ShrinkAndSend(rank);
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Begins it; once both ranks have given it to NCCL, its Future.
absl::StatusOr<Future<void>> Begin(ByNccl& world, const DeviceRank& rank) {
  ProcessGroup& group = rank.group;
  const Tensor x = rank.Place(Numbers(group.rank(), 100));
  Future<void> begun =
      group.rank() == 0 ? group.SendAsync(x, 1) : group.ReceiveAsync(x, 0);
  WANT_EQ(bool(Becomes([&] { return world.nccl().launches() == 2; })), true);
  return begun;
}

TEST_P(NcclTransfersTest, RevokeEndsWhatIsInFlight) {
  ByNccl world(2, seed());
  world.nccl().SetSilent(1, true);
  const auto statuses = world.Run([&](const DeviceRank& rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const Future<void> begun, Begin(world, rank));
    if (rank.group.rank() == 1) {
      rank.group.Revoke(absl::CancelledError("a rank is slow"));
    }
    return begun.Wait(kPatience);
  });
  EXPECT_THAT(statuses, Each(StatusIs(kCancelled, "a rank is slow")));
}

TEST(NcclTransfers, DeathOfTheOtherRankIsNamed) {
  ByNccl world(2, 7);
  world.nccl().SetSilent(1, true);
  const auto statuses = world.Run([&](const DeviceRank& rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const Future<void> begun, Begin(world, rank));
    if (rank.group.rank() == 1) world.host().Kill(1);
    return begun.Wait(kPatience);
  });
  EXPECT_THAT(statuses[0], StatusIs(kLost, "rank 1 has ended"));
}

TEST(NcclTransfers, DeathOfTheOtherRankBeforeItAnswersIsNamed) {
  ByNccl world(2, 7);
  const auto statuses = world.Run([&](const DeviceRank& rank) -> absl::Status {
    if (rank.group.rank() == 0) return rank.group.Send(Zeros(rank, 4), 1);
    world.host().Kill(1);
    return absl::UnavailableError("rank 1 is no more");
  });
  EXPECT_THAT(statuses[0], StatusIs(kLost, "rank 1"));
}

TEST(NcclTransfers, ErrorsOfNcclAreToldOnBothRanks) {
  for (const std::string name :
       {"ncclSend", "ncclGroupEnd", "ncclGetUniqueId", "ncclCommInitRankConfig",
        "ncclCommGetAsyncError"}) {
    SCOPED_TRACE(name);
    ByNccl world(2, 4);
    const auto statuses =
        world.Run([&](const DeviceRank& rank) -> absl::Status {
          ProcessGroup& group = rank.group;
          WEFT_RETURN_IF_ERROR(group.Barrier());
          if (group.rank() == 0) {
            world.nccl().FailCall(0, name, nccl::Result::kInternalError);
          }
          const Tensor x = rank.Place(Numbers(group.rank(), 100));
          return group.rank() == 0 ? group.Send(x, 1) : group.Receive(x, 0);
        });
    EXPECT_THAT(statuses, Each(StatusIs(kFailed, name)));
    EXPECT_THAT(statuses, Each(StatusIs(kFailed, "rank 0")));
  }
}

TEST(NcclTransfers, AsynchronousErrorIsToldOnBothRanks) {
  ByNccl world(2, 3);
  world.nccl().SetSilent(1, true);
  const auto statuses = world.Run([&](const DeviceRank& rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const Future<void> begun, Begin(world, rank));
    if (rank.group.rank() == 0) {
      world.nccl().SetAsyncError(0, nccl::Result::kRemoteError);
    }
    return begun.Wait(kPatience);
  });
  EXPECT_THAT(statuses, Each(StatusIs(kLost, "remote error")));
}

TEST(NcclTransfers, DeviceThatFailsIsNamedOnBothRanks) {
  ByNccl world(2, 8);
  const auto statuses = world.Run([&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    if (group.rank() == 1) {
      rank.devices.runtime().FailKernel(rank.device().id(), "NCCL messages");
    }
    const Tensor x = rank.Place(Numbers(group.rank(), 100));
    return group.rank() == 0 ? group.Send(x, 1) : group.Receive(x, 0);
  });
  EXPECT_THAT(statuses, Each(StatusIs(kFailed, "simulated:0")));
}

// Rank 1 of two as a rank of NCCL and of the host's group, whose messages the
// test writes.
struct RawRank {
  std::unique_ptr<Backend> host;
  std::unique_ptr<NcclCommunicator> communicator;

  absl::Status Send(const std::string& bytes, DType dtype = DType::kU8) const {
    std::string copy = bytes;
    Transfer message;
    message.is_send = true;
    message.dtype = dtype;
    message.block = {reinterpret_cast<std::byte*>(copy.data()),
                     static_cast<int64_t>(bytes.size()) / ItemSize(dtype)};
    const auto sent = host->Advance(message);
    if (sent.ok() && !*sent) return absl::InternalError("is not sent");
    return sent.status();
  }
};

absl::StatusOr<RawRank> ConnectRaw(NcclWorld& world) {
  RawRank raw;
  raw.host = world.host().Connect(1);
  const NcclOptions options = world.OptionsOf(1);
  NcclCommunicator::Options made;
  made.functions = options.functions;
  made.context = options.context;
  made.rank = 1;
  made.size = 2;
  WEFT_ASSIGN_OR_RETURN(made.stream, options.context->runtime().CreateStream(
                                         options.context->device(0)));
  const Instant deadline = SteadyClock().Now() + kPatience;
  WEFT_ASSIGN_OR_RETURN(made.id,
                        MeetForNccl(options, *options.functions, deadline,
                                    [] { return absl::OkStatus(); }));
  WEFT_ASSIGN_OR_RETURN(
      raw.communicator,
      NcclCommunicator::Create(std::move(made),
                               {SteadyClock(), deadline, nullptr}));
  return raw;
}

// Rank 0 is a group; rank 1 writes what it likes.
std::vector<absl::Status> RunBesideRaw(
    const std::function<absl::Status(ProcessGroup&)>& body,
    const std::function<absl::Status(const RawRank&)>& raw) {
  NcclWorld world(2, 1);
  return testing::RunRanks(2, [&](int rank) -> absl::Status {
    if (rank == 1) {
      WEFT_ASSIGN_OR_RETURN(const RawRank made, ConnectRaw(world));
      return raw(made);
    }
    WEFT_ASSIGN_OR_RETURN(auto backend, world.Connect(0));
    return body(*ProcessGroup::Create(std::move(backend)));
  });
}

TEST(NcclTransfers, MessageWithoutAHeaderBreaksTheGroupAndIsNamed) {
  const auto statuses = RunBesideRaw(
      [](ProcessGroup& group) { return group.Receive(Tensor::Zeros({4}), 1); },
      [](const RawRank& raw) -> absl::Status {
        WEFT_RETURN_IF_ERROR(raw.Send(std::string(kTransferHeaderBytes, 'x')));
        Becomes([&] { return !raw.host->health().ok(); });
        return raw.host->health();
      });
  EXPECT_THAT(statuses, Each(StatusIs(kDifferent, "rank 1: it sent what no")));
}

// The header of a message whose elements come late is not lost.
TEST(NcclTransfers, ReceiveThatEndsBetweenHeaderAndElementsLosesNothing) {
  std::atomic<bool> is_late{false};
  const auto statuses = RunBesideRaw(
      [&](ProcessGroup& group) -> absl::Status {
        const Tensor x = Tensor::Zeros({4});
        const absl::Status late =
            group.Receive(x, 1, 0, Within(absl::Milliseconds(100)));
        WANT_EQ(late.code(), kLate);
        is_late = true;
        WEFT_ASSIGN_OR_RETURN(const int from, group.ReceiveAny(x));
        WANT_EQ(from, 1);
        WANT_EQ(BytesOf(x), BytesOf(Numbers(1, 4)));
        return group.health();
      },
      [&](const RawRank& raw) -> absl::Status {
        TransferHeader header;
        header.dtype = DType::kF32;
        header.elements = 4;
        WEFT_RETURN_IF_ERROR(raw.Send(Encode(header)));
        Becomes([&] { return is_late.load(); });
        return raw.Send(BytesOf(Numbers(1, 4)), DType::kF32);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// What comes over the host is copied behind the work of the receiver's stream.
TEST(NcclTransfers, PinnedMemoryOfAReceiveThatIsGivenUpIsFreed) {
  for (const bool is_lost : {false, true}) {
    SCOPED_TRACE(is_lost);
    NcclWorld world(2, 5);
    const auto statuses =
        world.Run([&](const DeviceRank& rank) -> absl::Status {
          ProcessGroup& group = rank.group;
          if (group.rank() == 0) {
            WEFT_RETURN_IF_ERROR(group.Send(Numbers(0, 30'000), 1));
            WEFT_RETURN_IF_ERROR(group.Barrier());
            Becomes([&] { return !group.health().ok(); });
            return group.health();
          }
          WEFT_RETURN_IF_ERROR(group.Barrier());  // the message has come
          const Tensor x = Zeros(rank, 30'000);
          device::SimulatedRuntime& runtime = rank.devices.runtime();
          WEFT_ASSIGN_OR_RETURN(const device::Stream current,
                                rank.devices.context().CurrentStream(0));
          runtime.SetHangs(current, true);
          WANT_EQ(runtime.pinned_blocks(), int64_t{0});
          const absl::Status late =
              group.Receive(x, 0, 0, Within(absl::Seconds(4)));
          WANT_EQ(runtime.pinned_blocks(), int64_t{1});  // the copy may read it
          if (is_lost) {
            runtime.LoseDevice(rank.device().id());
          } else {
            runtime.SetHangs(current, false);
          }
          return late;
        });
    EXPECT_THAT(statuses, Each(StatusIs(kLate, "it has begun, and not ended")));
    EXPECT_EQ(world.devices(1).runtime().pinned_blocks(), 0);
  }
}

}  // namespace
}  // namespace weft::collectives
