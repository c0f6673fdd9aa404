// What goes wrong between ranks over NCCL: each is named, on every rank, and
// none hangs.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/parker.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/nccl/nccl_backend.h"
#include "weft/collectives/backends/nccl/nccl_communicator.h"
#include "weft/collectives/backends/nccl/nccl_meeting.h"
#include "weft/collectives/backends/nccl/nccl_world.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

absl::Status Reduce(const DeviceRank& rank, const CallOptions& options = {}) {
  return rank.group.AllReduce(rank.Place(Numbers(rank.group.rank(), 100)), {},
                              options);
}

// All ranks go on, as a new group over the same NCCL.
absl::Status ShrinkAndReduce(const DeviceRank& rank) {
  ProcessGroup& group = rank.group;
  std::vector<int> all;
  for (int r = 0; r < group.size(); ++r) all.push_back(r);
  WEFT_RETURN_IF_ERROR(group.Shrink(all));
  const Tensor sum = rank.Place(Tensor::Ones({4}));
  WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
  WANT_EQ(sum.To(Device::Cpu()).ToVector<float>(),
          std::vector<float>(4, static_cast<float>(group.size())));
  return group.Barrier();
}

// ----- in NCCL

// A rank has called it, and its kernel does not come.
TEST(NcclFailures, KernelThatNeverComesEndsAtTheDeadlineAndTheRanksGoOn) {
  NcclWorld world(3, 2);
  world.nccl().SetSilent(1, true);
  std::atomic<int> failed{0};
  const auto statuses = world.Run([&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    // Enough for all ranks to call it.
    const absl::Status found = Reduce(rank, Within(absl::Seconds(5)));
    WANT_EQ(found.code(), kLate);
    WANT_EQ(absl::StrContains(found.message(), "NCCL has not ended it"), true);
    WANT_EQ(Reduce(rank).code(), kDifferent);  // the group is broken
    ++failed;
    WANT_EQ(bool(Becomes([&] { return failed == 3; })), true);
    world.nccl().SetSilent(1, false);
    return ShrinkAndReduce(rank);
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(world.nccl().aborts(), 3);
  EXPECT_EQ(world.nccl().communicators(), 0);
  EXPECT_EQ(world.nccl().misuses(), 0);
}

TEST(NcclFailures, AsynchronousErrorIsToldOnEveryRank) {
  NcclWorld world(2, 3);
  world.nccl().SetSilent(1, true);
  const auto statuses = world.Run([&](const DeviceRank& rank) {
    Future<void> reduced =
        rank.group.AllReduceAsync(rank.Place(Numbers(rank.group.rank(), 100)));
    if (rank.group.rank() == 0) {
      world.nccl().SetAsyncError(0, nccl::Result::kRemoteError);
    }
    return reduced.Wait(absl::Seconds(30));
  });
  EXPECT_THAT(statuses, Each(StatusIs(kLost, "remote error")));
  EXPECT_THAT(statuses, Each(StatusIs(kLost, "rank 0")));
}

TEST(NcclFailures, CallThatFailsOnOneRankEndsItOnAll) {
  for (const auto& one : std::vector<std::pair<std::string, Verb>>{
           {"ncclAllReduce", Verb::kAllReduce},
           {"ncclCommGetAsyncError", Verb::kAllReduce},
           {"ncclGroupEnd", Verb::kAllToAll},
           {"ncclSend", Verb::kAllToAll},
           {"ncclRedOpCreatePreMulSum", Verb::kAllReduce}}) {
    const std::string& name = one.first;
    const Verb verb = one.second;
    SCOPED_TRACE(name);
    NcclWorld world(2, 4);
    const auto statuses =
        world.Run([&](const DeviceRank& rank) -> absl::Status {
          ProcessGroup& group = rank.group;
          WEFT_RETURN_IF_ERROR(group.Barrier());
          if (group.rank() == 1) {
            world.nccl().FailCall(1, name, nccl::Result::kInternalError);
          }
          const Tensor x = rank.Place(Numbers(group.rank(), 100));
          if (verb == Verb::kAllReduce) {
            return group.AllReduce(x, Reduction(ReduceOp::kSum, 2));
          }
          return group.AllToAll(x, rank.Place(Tensor::Zeros({100})));
        });
    EXPECT_THAT(statuses, Each(StatusIs(kFailed, name)));
    EXPECT_EQ(world.nccl().misuses(), 0);
  }
}

TEST(NcclFailures, RevokeEndsWhatIsInFlight) {
  NcclWorld world(3, 5);
  world.nccl().SetSilent(2, true);
  std::atomic<int> begun{0};
  const auto statuses = world.Run([&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    Future<void> first = group.AllReduceAsync(rank.Place(Tensor::Ones({100})));
    Future<void> second = group.AllReduceAsync(rank.Place(Tensor::Ones({9})));
    ++begun;
    if (group.rank() == 1) {
      WANT_EQ(bool(Becomes(
                  [&] { return begun == 3 && world.nccl().launches() == 6; })),
              true);
      group.Revoke(absl::CancelledError("a rank is slow"));
    }
    WANT_EQ(second.Wait(absl::Seconds(30)).code(), kCancelled);
    return first.Wait(absl::Seconds(30));
  });
  EXPECT_THAT(statuses, Each(StatusIs(kCancelled, "a rank is slow")));
}

TEST(NcclFailures, EndOfTheGroupEndsWhatIsInFlight) {
  NcclWorld world(2, 6);
  world.nccl().SetSilent(1, true);
  const auto statuses = testing::RunRanks(2, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(auto backend, world.Connect(rank));
    auto group = ProcessGroup::Create(std::move(backend));
    const Tensor x =
        Tensor::Ones({100}).To(Device(world.devices(rank).context(), 0));
    Future<void> reduced = group->AllReduceAsync(x);
    if (rank == 0) {
      Becomes([&] { return world.nccl().launches() == 2; });
      group = nullptr;
    }
    return reduced.Wait(absl::Seconds(30));
  });
  EXPECT_THAT(statuses, Each(StatusIs(kCancelled, "ended on rank 0")));
}

// Nothing of NCCL tells of it: the group of the host does.
TEST(NcclFailures, DeathOfARankWhileItsKernelIsAwaitedIsNamed) {
  NcclWorld world(3, 7);
  world.nccl().SetSilent(1, true);
  const auto statuses = world.Run([&](const DeviceRank& rank) {
    Future<void> reduced =
        rank.group.AllReduceAsync(rank.Place(Numbers(rank.group.rank(), 100)));
    if (rank.group.rank() == 1) {
      Becomes([&] { return world.nccl().launches() == 3; });
      world.host().Kill(1);
    }
    return reduced.Wait(absl::Seconds(30));
  });
  for (const int r : {0, 2}) {
    EXPECT_THAT(statuses[r], StatusIs(kLost, "rank 1 has ended"));
  }
}

// The kernels of those who live hang until they are aborted.
TEST(NcclFailures, ThoseWhoLiveGoOnOverNcclWithoutTheDead) {
  NcclWorld world(3, 7);
  world.nccl().SetSilent(1, true);
  const auto statuses = world.Run([&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    Future<void> reduced =
        group.AllReduceAsync(rank.Place(Numbers(group.rank(), 100)));
    if (group.rank() == 1) {
      Becomes([&] { return world.nccl().launches() == 3; });
      world.host().Kill(1);
      return reduced.Wait(absl::Seconds(30));
    }
    WANT_EQ(reduced.Wait(absl::Seconds(30)).code(), kLost);
    const int64_t before = world.nccl().launches();
    WEFT_RETURN_IF_ERROR(group.Shrink({0, 2}));
    WANT_EQ(group.backend_name(), "nccl");
    const Tensor sum = rank.Place(Tensor::Ones({4}));
    WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
    WANT_EQ(sum.To(Device::Cpu()).ToVector<float>(), std::vector<float>(4, 2));
    WANT_EQ(world.nccl().launches() > before, true);
    return group.Barrier();
  });
  for (const int r : {0, 2}) EXPECT_THAT(statuses[r], IsOk());
  EXPECT_EQ(world.nccl().mismatches(), 0);
}

// ----- of the device

TEST(NcclFailures, DeviceThatFailsIsNamedOnEveryRank) {
  NcclWorld world(2, 8);
  const auto statuses = world.Run([&](const DeviceRank& rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(Reduce(rank));
    if (rank.group.rank() == 1) {
      rank.devices.runtime().FailKernel(rank.device().id(), "NCCL");
    }
    return Reduce(rank);
  });
  EXPECT_THAT(statuses, Each(StatusIs(kFailed, "simulated:0")));
}

TEST(NcclFailures, LostDeviceIsNamedOnEveryRank) {
  NcclWorld world(2, 9);
  world.nccl().SetSilent(0, true);
  const auto statuses = world.Run([&](const DeviceRank& rank) {
    Future<void> reduced =
        rank.group.AllReduceAsync(rank.Place(Numbers(rank.group.rank(), 100)));
    if (rank.group.rank() == 1) {
      Becomes([&] { return world.nccl().launches() == 2; });
      rank.devices.runtime().LoseDevice(rank.device().id());
    }
    return reduced.Wait(absl::Seconds(30));
  });
  EXPECT_THAT(statuses, Each(StatusIs(kLost, "the device is lost")));
}

TEST(NcclFailures, TooLittleMemoryForThePassageIsToldOnEveryRank) {
  NcclWorld world(2, 10);
  world.moves_host_tensors = true;
  const auto statuses = world.Run([&](const DeviceRank& rank) {
    ProcessGroup& group = rank.group;
    if (group.rank() == 1) {
      rank.devices.runtime().FailAllocations(rank.device().id(), 100);
    }
    return group.AllReduce(Numbers(group.rank(), 100));
  });
  EXPECT_THAT(statuses, Each(StatusIs(kExhausted, "out of memory")));
}

// ----- on the way into the group

std::vector<absl::Status> ConnectAll(
    NcclWorld& world, const std::function<void(int, NcclOptions&)>& change) {
  return testing::RunRanks(world.size(), [&](int rank) {
    NcclOptions options = world.OptionsOf(rank);
    change(rank, options);
    return ConnectNccl(std::move(options), world.host().Connect(rank)).status();
  });
}

TEST(NcclCommunicator, AbortThatTakesLongHoldsUpNoOtherCall) {
  NcclWorld world(/*size=*/1, /*seed=*/1);
  const auto slow = std::make_shared<NcclFunctions>(*world.nccl().Library(0));
  std::atomic<bool> has_begun{false};
  Parker may_end;
  slow->CommAbort = [&, abort = slow->CommAbort](nccl::Comm comm) {
    has_begun = true;
    EXPECT_TRUE(testing::IsWoken(may_end));
    return abort(comm);
  };
  NcclCommunicator::Options options;
  options.functions = slow;
  options.context = world.devices(0).context().shared_from_this();
  options.stream =
      *options.context->runtime().CreateStream(options.context->device(0));
  ASSERT_EQ(slow->GetUniqueId(&options.id), nccl::Result::kSuccess);
  const DeviceWait wait = {SteadyClock(),
                           SteadyClock().Now() + testing::kPatience, nullptr};
  auto communicator = NcclCommunicator::Create(options, wait);
  ASSERT_THAT(communicator, IsOk());
  (*communicator)->Abort();
  EXPECT_TRUE(Becomes([&] { return has_begun.load(); }));
  EXPECT_THAT((*communicator)->AsyncError(), StatusIs(kCancelled, "aborted"));
  EXPECT_EQ(world.nccl().aborts(), 0);
  may_end.Unpark();
  communicator->reset();  // waits for it
  EXPECT_EQ(world.nccl().aborts(), 1);
}

TEST(NcclConnect, RankThatDoesNotComeEndsItAtTheDeadline) {
  NcclWorld world(3, 1);
  world.connect_timeout = absl::Seconds(5);  // enough for those that come
  const auto statuses = testing::RunRanks(3, [&](int rank) {
    return rank == 1 ? absl::OkStatus() : world.Connect(rank).status();
  });
  for (const int r : {0, 2}) EXPECT_FALSE(statuses[r].ok());
  EXPECT_THAT(statuses[0].ok() ? statuses[2] : statuses[0],
              StatusIs(kLate, "have not called it"));
  EXPECT_EQ(world.nccl().communicators(), 0);
  EXPECT_EQ(world.nccl().aborts(), 2);
}

TEST(NcclConnect, FirstRankThatDoesNotComeIsNamed) {
  NcclWorld world(2, 1);
  world.connect_timeout = absl::Milliseconds(200);
  EXPECT_THAT(world.Connect(1).status(), StatusIs(kLate, "rank 0"));
}

TEST(NcclConnect, FailureOfOneRankIsToldOnEveryRank) {
  for (const std::string name : {"ncclGetUniqueId", "ncclCommInitRankConfig"}) {
    SCOPED_TRACE(name);
    NcclWorld world(3, 1);
    world.nccl().FailCall(0, name, nccl::Result::kSystemError);
    EXPECT_THAT(ConnectAll(world, [](int, NcclOptions&) {}),
                Each(StatusIs(kLost, name)));
    EXPECT_EQ(world.nccl().communicators(), 0);
  }
}

TEST(NcclConnect, AbortOfTheHostsGroupEndsIt) {
  NcclWorld world(2, 1);
  const auto statuses = testing::RunRanks(2, [&](int rank) {
    if (rank == 0) return world.Connect(rank).status();
    Becomes([&] { return world.nccl().communicators() == 1; });
    world.host().Connect(1)->Abort(absl::CancelledError("enough"));
    return absl::CancelledError("enough");
  });
  EXPECT_THAT(statuses, Each(StatusIs(kCancelled, "enough")));
}

TEST(NcclConnect, SeveralHostsWantInsecure) {
  for (const bool insecure : {false, true}) {
    NcclWorld world(2, 1);
    const auto statuses =
        ConnectAll(world, [&](int rank, NcclOptions& options) {
          options.host = absl::StrCat("host", rank);
          options.insecure = insecure;
        });
    if (insecure) {
      EXPECT_THAT(statuses, Each(IsOk()));
    } else {
      EXPECT_THAT(statuses, Each(StatusIs(kDifferent, "insecure")));
    }
  }
}

TEST(NcclConnect, OptionsThatMakeNoSenseAreRefusedOnEveryRank) {
  const std::vector<std::pair<std::function<void(NcclOptions&)>, std::string>>
      cases = {{[](NcclOptions& o) { o.context = nullptr; }, "context"},
               {[](NcclOptions& o) { o.device = 2; }, "from 0 to 1"},
               {[](NcclOptions& o) { o.size = 3; }, "found rank 1 of 2"}};
  for (const auto& one : cases) {
    const auto& change = one.first;
    NcclWorld world(2, 1);
    const auto statuses =
        ConnectAll(world, [&](int rank, NcclOptions& options) {
          if (rank == 1) change(options);
        });
    EXPECT_THAT(statuses, Each(StatusIs(kInvalid, one.second)));
  }
  NcclWorld world(1, 1);
  EXPECT_THAT(ConnectNccl(world.OptionsOf(0), nullptr).status(),
              StatusIs(kInvalid, "found none"));
}

TEST(NcclInvitation, IsReadAsItWasWritten) {
  NcclInvitation invitation;
  for (size_t i = 0; i < sizeof invitation.id.bytes; ++i) {
    invitation.id.bytes[i] = static_cast<char>(i * 7);
  }
  invitation.host = "host 1";
  const std::string text = Encode(invitation);
  const absl::StatusOr<NcclInvitation> read = DecodeInvitation(text);
  ASSERT_THAT(read.status(), IsOk());
  EXPECT_EQ(Encode(*read), text);
  EXPECT_EQ(read->host, "host 1");
  // All that is cut within the identifier is none.
  for (size_t n = 0; n < text.size() - invitation.host.size(); ++n) {
    EXPECT_THAT(DecodeInvitation(text.substr(0, n)).status(),
                StatusIs(kInvalid, "found"));
  }
  invitation.status = absl::InternalError("no network");
  EXPECT_THAT(DecodeInvitation(Encode(invitation))->status,
              StatusIs(kLost, "no network"));
}

}  // namespace
}  // namespace weft::collectives
