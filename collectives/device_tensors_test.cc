// Operations on tensors of simulated devices, under 20 orders of what is not
// ordered: each rank has devices of its own.

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/device/context.h"
#include "weft/device/current.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::collectives {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr auto kLost = absl::StatusCode::kUnavailable;
constexpr auto kFailed = absl::StatusCode::kInternal;
constexpr auto kLate = absl::StatusCode::kDeadlineExceeded;

CallOptions Within(absl::Duration timeout) {
  CallOptions options;
  options.timeout = timeout;
  return options;
}

// One rank with two devices.
struct Rank {
  ProcessGroup& group;
  SimulatedDevices& devices;

  Device device(int index = 0) const { return {devices.context(), index}; }
  device::Stream stream() const { return *devices.context().CurrentStream(0); }
};

std::vector<absl::Status> RunOver(
    const std::function<absl::StatusOr<std::unique_ptr<Backend>>(int)>& connect,
    int size, int seed, const std::function<absl::Status(const Rank&)>& body) {
  return testing::RunRanks(size, [&](int rank) -> absl::Status {
    SimulatedDevices devices(seed * 8 + rank, 2);
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, connect(rank));
    GroupOptions options;
    options.timeout = kPatience;
    const auto group = ProcessGroup::Create(std::move(backend), options);
    return body({*group, devices});
  });
}

std::vector<absl::Status> RunGroup(
    int size, int seed, const std::function<absl::Status(const Rank&)>& body) {
  LocalWorld world(size);
  return RunOver([&](int rank) { return world.Connect(rank); }, size, seed,
                 body);
}

// ----- each operation, as on the CPU

// [count] sums of fractions, of which each order of addition has its own bits.
Tensor Fractions(int rank, int64_t count) {
  const Tensor result = Tensor::Empty({count});
  for (int64_t i = 0; i < count; ++i) {
    result.data<float>()[i] = 1.0f / static_cast<float>(3 + 7 * rank + i);
  }
  return result;
}

std::vector<Tensor> Uneven(int size) {
  std::vector<Tensor> parts;
  for (int r = 0; r < size; ++r) parts.push_back(Tensor::Empty({(r + 1) % 3}));
  return parts;
}

// Runs operations of one rank on tensors of `device`, and keeps their results.
class Operations {
 public:
  Operations(ProcessGroup& group, Device device, bool is_async)
      : group_(group), device_(device), is_async_(is_async) {}

  void RunOfOneSize(int64_t count) {
    const Tensor x = Input(count);
    Add(group_.AllReduceAsync(x), {x});
    const Tensor y = Output(count);
    Add(group_.AllReduceIntoAsync(Input(count), y, ReduceOp::kMax), {y});
    const Tensor b = rank_ == root_ ? Input(count) : Output(count);
    Add(group_.BroadcastAsync(b, root_), {b});
    const Tensor r = Input(count);
    Add(group_.ReduceAsync(r, root_, ReduceOp::kAverage), {r});
    const Tensor all = Output(count * n_);
    Add(group_.AllGatherAsync(Input(count), all), {all});
    const Tensor own = Output(count * n_);
    const Tensor mine = own.Slice(0, rank_ * count, (rank_ + 1) * count);
    mine.CopyFrom(Input(count));
    Add(group_.AllGatherAsync(mine, own), {own});
    const Tensor part = Output(count);
    Add(group_.ReduceScatterAsync(Input(count * n_), part), {part});
    const Tensor to = Output(count * n_);
    Add(group_.AllToAllAsync(Input(count * n_), to), {to});
  }

  void RunOfLists() {
    const Tensor a = Input(5), b = Input(0), c = Place(Fractions(9 + rank_, 7));
    Add(group_.AllReduceCoalescedAsync({a, b, c}), {a, b, c});
    const std::vector<Tensor> lists = PlacedUneven();
    Add(group_.AllGatherListAsync(Input((rank_ + 1) % 3), lists), lists);
    std::vector<Tensor> at_root;
    if (rank_ == root_) at_root = PlacedUneven();
    Add(group_.GatherAsync(Input((rank_ + 1) % 3), at_root, root_), at_root);
    std::vector<Tensor> from_root;
    if (rank_ == root_) {
      for (int r = 0; r < n_; ++r) from_root.push_back(Input((r + 1) % 3));
    }
    const Tensor scattered = Output((rank_ + 1) % 3);
    Add(group_.ScatterAsync(from_root, scattered, root_), {scattered});
    std::vector<Tensor> parts;
    for (int r = 0; r < n_; ++r) parts.push_back(Input((r + 1) % 3));
    const Tensor sum = Output((rank_ + 1) % 3);
    Add(group_.ReduceScatterListAsync(parts, sum), {sum});
    std::vector<Tensor> received;
    for (int r = 0; r < n_; ++r) received.push_back(Output((rank_ + 1) % 3));
    Add(group_.AllToAllListAsync(parts, received), received);
  }

  // Elements that do not lie side by side, and of another dtype; messages.
  void RunOfViews() {
    const Tensor matrix = Place(Fractions(rank_, 12)).View({4, 3});
    Add(group_.AllReduceAsync(matrix.Select(1, 1)), {matrix});
    const Tensor gathered = Place(Fractions(rank_, 6 * n_)).View({3 * n_, 2});
    Add(group_.AllGatherAsync(Input(3), gathered.Select(1, 0)), {gathered});
    const Tensor whole = Place(Fractions(rank_, 4)).To(DType::kI64);
    Add(group_.AllReduceAsync(whole, ReduceOp::kSum), {whole});
    const Tensor sent = Input(9), received = Output(9);
    Add(group_.ExchangeAsync(
            {{PointToPoint::kReceive, received, (rank_ + n_ - 1) % n_, 3},
             {PointToPoint::kSend, sent, (rank_ + 1) % n_, 3}}),
        {received});
  }

  absl::StatusOr<std::vector<Tensor>> Await() {
    for (Future<void>& future : futures_) {
      WEFT_RETURN_IF_ERROR(future.Wait(kPatience));
    }
    return results_;
  }

 private:
  Tensor Place(const Tensor& x) const { return x.To(device_).Clone(); }
  Tensor Input(int64_t count) const { return Place(Fractions(rank_, count)); }
  Tensor Output(int64_t count) const {
    return Tensor::Empty({count}, DType::kF32, device_);
  }
  std::vector<Tensor> PlacedUneven() const {
    std::vector<Tensor> placed;
    for (const Tensor& x : Uneven(n_)) placed.push_back(Place(x));
    return placed;
  }
  void Add(Future<void> future, const std::vector<Tensor>& found) {
    if (!is_async_) future.Wait(kPatience).IgnoreError();
    futures_.push_back(std::move(future));
    results_.insert(results_.end(), found.begin(), found.end());
  }

  ProcessGroup& group_;
  const Device device_;
  const bool is_async_;
  const int n_ = group_.size(), rank_ = group_.rank(), root_ = n_ - 1;
  std::vector<Tensor> results_;
  std::vector<Future<void>> futures_;
};

// What all operations give this rank, of tensors that are on `device`. Where
// `is_async`, each is begun before the one before it has ended.
absl::StatusOr<std::vector<Tensor>> RunAll(ProcessGroup& group, Device device,
                                           bool is_async) {
  Operations operations(group, device, is_async);
  for (const int64_t count : {0, 1, 37, 3000}) operations.RunOfOneSize(count);
  operations.RunOfLists();
  operations.RunOfViews();
  return operations.Await();
}

// Parameters: seed, ranks, and whether over shared memory.
class DeviceTensors
    : public ::testing::TestWithParam<std::tuple<int, int, bool>> {};

INSTANTIATE_TEST_SUITE_P(Local, DeviceTensors,
                         ::testing::Combine(::testing::Range(0, 20),
                                            ::testing::Values(2, 4),
                                            ::testing::Values(false)));
INSTANTIATE_TEST_SUITE_P(Host, DeviceTensors,
                         ::testing::Combine(::testing::Range(0, 2),
                                            ::testing::Values(2, 3),
                                            ::testing::Values(true)));

// Every other rank has its tensors on the CPU in one run of three; and the
// current stream of some is not the default one.
TEST_P(DeviceTensors, GiveWhatThoseOfTheCpuGive) {
  const auto [seed, size, over_host] = GetParam();
  LocalWorld world(size);
  rendezvous::MemoryStore store;
  testing::TempDir directory;
  const auto connect =
      [&, size = size, over_host = over_host](
          int rank) -> absl::StatusOr<std::unique_ptr<Backend>> {
    if (!over_host) return world.Connect(rank);
    HostOptions host;
    host.store = &store;
    host.rank = rank;
    host.size = size;
    host.directory = directory.path();
    return ConnectHost(host);
  };
  const auto body = [](const Rank& rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(
        const std::vector<Tensor> wanted,
        RunAll(rank.group, Device::Cpu(), /*is_async=*/false));
    WEFT_ASSIGN_OR_RETURN(
        const device::Stream side,
        rank.devices.runtime().CreateStream(rank.device(1).id()));
    const device::StreamScope scope(side);
    for (const bool is_async : {false, true}) {
      for (const Device device :
           {rank.device(0), rank.device(1),
            rank.group.rank() % 2 == 0 ? rank.device(0) : Device::Cpu()}) {
        WEFT_ASSIGN_OR_RETURN(const std::vector<Tensor> found,
                              RunAll(rank.group, device, is_async));
        EXPECT_EQ(found.size(), wanted.size());
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_EQ(found[i].device(), device);
          const Tensor copy = found[i].To(Device::Cpu());
          EXPECT_EQ(
              absl::string_view(static_cast<char*>(copy.raw()), copy.bytes()),
              absl::string_view(static_cast<char*>(wanted[i].raw()),
                                wanted[i].bytes()))
              << "result " << i << " on " << device;
        }
      }
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(RunOver(connect, size, seed, body), Each(IsOk()));
}

// ----- order

class DeviceOrder : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceOrder, ::testing::Range(0, 20));

// The call reads what the stream has computed by then, and not what comes
// after; what is put on it after the Future is ready sees the result.
TEST_P(DeviceOrder, OfTheCallersStreamIsKept) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const Device device = rank.device();
    std::vector<Tensor> sums;
    std::vector<Future<void>> futures;
    const Tensor next = Tensor::Zeros({500}, DType::kF32, device);
    for (int i = 0; i < 8; ++i) {
      next.Fill(10 * i + rank.group.rank());
      const Tensor sum = Tensor::Empty({500}, DType::kF32, device);
      futures.push_back(rank.group.AllReduceIntoAsync(next.Clone(), sum));
      next.Fill(-1);  // while that is on its way
      sums.push_back(sum);
    }
    for (int i = 0; i < 8; ++i) {
      WEFT_RETURN_IF_ERROR(futures[i].Wait(kPatience));
      const Tensor copy = sums[i].Clone();
      sums[i].Fill(-2);
      sums[i] = copy;
    }
    for (int i = 0; i < 8; ++i) {
      EXPECT_THAT(sums[i].ToVector<float>(), Each(20 * i + 1));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(2, GetParam(), body), Each(IsOk()));
}

// The caller drops its tensors at once, and others get their memory.
TEST_P(DeviceOrder, TensorsLiveUntilTheirCopiesHaveRun) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const Device device = rank.device();
    Tensor kept = Tensor::Empty({64}, DType::kF32, device);
    Future<void> last = MakeReady();
    for (int i = 0; i < 6; ++i) {
      Tensor sum = Tensor::Empty({64}, DType::kF32, device);
      last = rank.group.AllReduceIntoAsync(
          Tensor::Full({64}, i, DType::kF32, device), sum);
      (void)Tensor::Full({64}, -1, DType::kF32, device);
      kept = sum;
    }
    WEFT_RETURN_IF_ERROR(last.Wait(kPatience));
    const Tensor copy = kept.Clone();
    kept = Tensor::Full({64}, -1, DType::kF32, device);
    EXPECT_THAT(copy.ToVector<float>(), Each(10));
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(2, GetParam(), body), Each(IsOk()));
}

// A callback's operations are ordered with the caller's stream, which is not
// the default one.
TEST_P(DeviceOrder, CallbacksRunWithTheCallersStream) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const Device device = rank.device();
    WEFT_ASSIGN_OR_RETURN(const device::Stream side,
                          rank.devices.runtime().CreateStream(device.id()));
    const device::StreamScope scope(side);
    const int other = 1 - rank.group.rank();
    const Tensor sum = Tensor::Full({64}, 2, DType::kF32, device);
    const Tensor received = Tensor::Empty({64}, DType::kF32, device);
    const Tensor copies = Tensor::Empty({2, 64}, DType::kF32, device);
    const auto copy_to = [&](int i, const Tensor& from) {
      return [=] { copies.Select(0, i).CopyFrom(from); };
    };
    const Future<void> reduced =
        rank.group.AllReduceAsync(sum).Then(copy_to(0, sum));
    const Future<void> moved =
        rank.group.ReceiveAsync(received, other).Then(copy_to(1, received));
    WEFT_RETURN_IF_ERROR(reduced.Wait(kPatience));
    WEFT_RETURN_IF_ERROR(rank.group.Send(sum, other));
    WEFT_RETURN_IF_ERROR(moved.Wait(kPatience));
    EXPECT_THAT(copies.ToVector<float>(), Each(4));
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(2, GetParam(), body), Each(IsOk()));
}

// ----- refusals

TEST(DeviceRefusals, TensorsOfTwoDevicesAreRefusedAndTheGroupGoesOn) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const Tensor x = Tensor::Ones({4}, DType::kF32, rank.device(0));
    SimulatedDevices others(1);
    for (const Device device :
         {rank.device(1), Device::Cpu(), Device(others.context(), 0)}) {
      const bool refuses = rank.group.rank() == 0;
      const Tensor y =
          Tensor::Zeros({4}, DType::kF32, refuses ? device : x.device());
      const absl::Status status = rank.group.AllReduceInto(x, y);
      EXPECT_THAT(status,
                  StatusIs(refuses ? absl::StatusCode::kInvalidArgument
                                   : absl::StatusCode::kAborted,
                           "wants all tensors on one device, found simulated:0 "
                           "and " +
                               (device.context() == &others.context() ||
                                        Name(device) == "simulated:0"
                                    ? "simulated:0 of another context"
                                    : Name(device))));
    }
    return rank.group.AllReduce(x);
  };
  EXPECT_THAT(RunGroup(2, 3, body), Each(IsOk()));
}

TEST(DeviceRefusals, ShortMemoryEndsTheCallAndTheGroupGoesOn) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const Tensor x =
        Tensor::Ones({int64_t{3} << 20, 2}, DType::kF32, rank.device());
    const Tensor column = x.Select(1, 0);
    const bool refuses = rank.group.rank() == 0;
    if (refuses) rank.devices.runtime().FailAllocations(x.device().id(), 3);
    EXPECT_THAT(rank.group.AllReduce(column),
                StatusIs(refuses ? absl::StatusCode::kResourceExhausted
                                 : absl::StatusCode::kAborted,
                         "simulated:0"));
    return rank.group.AllReduce(column);
  };
  EXPECT_THAT(RunGroup(2, 3, body), Each(IsOk()));
}

// ----- failures

// A device that hangs ends the operation at its deadline, on the group's
// thread, and the other rank hears why.
TEST(DeviceFailures, DeviceThatHangsIsNamedAtTheDeadlineOnEveryRank) {
  for (const bool is_async : {false, true}) {
    const auto body = [&](const Rank& rank) -> absl::Status {
      const bool hangs = rank.group.rank() == 1;
      if (hangs) rank.devices.runtime().SetHangs(rank.stream(), true);
      const Tensor x = Tensor::Ones({4}, DType::kF32, rank.device());
      const CallOptions options = Within(hangs ? absl::Seconds(1) : kPatience);
      if (!is_async) return rank.group.AllReduce(x, {}, options);
      Future<void> reduced = rank.group.AllReduceAsync(x, {}, options);
      return reduced.Wait(kPatience);
    };
    for (const absl::Status& status : RunGroup(2, 5, body)) {
      EXPECT_EQ(status.code(), kLate);
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("AllReduce #0"), HasSubstr("simulated:0"),
                        HasSubstr("rank 1 of group world"),
                        HasSubstr("have not come to the host in time")));
    }
  }
}

TEST(DeviceFailures, RevokeEndsTheWaitForADeviceThatHangs) {
  const auto body = [](const Rank& rank) -> absl::Status {
    rank.devices.runtime().SetHangs(rank.stream(), true);
    const Tensor x = Tensor::Ones({4}, DType::kF32, rank.device());
    Future<void> reduced = rank.group.AllReduceAsync(x);
    if (rank.group.rank() == 0) {
      EXPECT_FALSE(reduced.IsReady());
      rank.group.Revoke(absl::CancelledError("enough"));
    }
    return reduced.Wait(kPatience);
  };
  EXPECT_THAT(RunGroup(2, 5, body),
              Each(StatusIs(absl::StatusCode::kCancelled, "enough")));
}

// Outputs alone need no wait: the stream comes to them when it does.
TEST(DeviceFailures, RankThatOnlyReceivesDoesNotWaitForItsDevice) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const bool hangs = rank.group.rank() == 1;
    device::SimulatedRuntime& runtime = rank.devices.runtime();
    if (hangs) runtime.SetHangs(rank.stream(), true);
    const Tensor x =
        Tensor::Full({4}, hangs ? -1 : 7, DType::kF32, rank.device());
    WEFT_RETURN_IF_ERROR(rank.group.Broadcast(x, 0));
    const Tensor copy = x.Clone();
    if (hangs) runtime.SetHangs(rank.stream(), false);
    EXPECT_THAT(copy.ToVector<float>(), Each(7));
    return absl::OkStatus();
  };
  for (int seed = 0; seed < 20; ++seed) {
    EXPECT_THAT(RunGroup(2, seed, body), Each(IsOk())) << seed;
  }
}

// Whenever the device is found to have failed.
class DeviceFailure : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Forms, DeviceFailure, ::testing::Bool());

TEST_P(DeviceFailure, IsNamedOnEveryRankAndBreaksTheGroup) {
  const bool is_async = GetParam();
  for (const bool is_lost : {false, true}) {
    for (int seed = 0; seed < 20; ++seed) {
      const auto body = [&](const Rank& rank) -> absl::Status {
        const Tensor x = Tensor::Ones({4}, DType::kF32, rank.device());
        WEFT_RETURN_IF_ERROR(rank.group.AllReduce(x));
        if (rank.group.rank() == 1) {
          device::SimulatedRuntime& runtime = rank.devices.runtime();
          if (is_lost) {
            runtime.LoseDevice(x.device().id());
          } else {
            runtime.FailKernel(x.device().id(), "Fill");
            x.Fill(3);
          }
        }
        const absl::Status status =
            is_async ? rank.group.AllReduceAsync(x).Wait(kPatience)
                     : rank.group.AllReduce(x);
        EXPECT_EQ(rank.group.health().code(), is_lost ? kLost : kFailed);
        EXPECT_THAT(
            rank.group.Barrier(),
            StatusIs(absl::StatusCode::kFailedPrecondition, "simulated:0"));
        return status;
      };
      for (const absl::Status& status : RunGroup(2, seed, body)) {
        EXPECT_EQ(status.code(), is_lost ? kLost : kFailed) << status;
        EXPECT_THAT(std::string(status.message()),
                    AllOf(HasSubstr("AllReduce #1"), HasSubstr("simulated:0"),
                          HasSubstr("rank 1 of group world")));
      }
    }
  }
}

TEST(DeviceFailures, DeviceLostInFlightIsNamedOnEveryRank) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const bool loses = rank.group.rank() == 1;
    device::SimulatedRuntime& runtime = rank.devices.runtime();
    if (loses) runtime.SetHangs(rank.stream(), true);
    const Tensor x = Tensor::Ones({4}, DType::kF32, rank.device());
    Future<void> reduced = rank.group.AllReduceAsync(x);
    if (loses) runtime.LoseDevice(x.device().id());
    return reduced.Wait(kPatience);
  };
  EXPECT_THAT(RunGroup(2, 5, body), Each(StatusIs(kLost, "simulated:0")));
}

// ----- messages between two ranks

TEST(DeviceMessages, SendThatWaitsForItsDeviceLetsOthersPass) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const int other = 1 - rank.group.rank();
    const Device device = rank.device();
    const Tensor first = Tensor::Empty({4}, DType::kF32, device);
    const Tensor second = Tensor::Empty({4}, DType::kF32, rank.device(1));
    if (rank.group.rank() == 0) {
      device::SimulatedRuntime& runtime = rank.devices.runtime();
      runtime.SetHangs(rank.stream(), true);
      first.Fill(1);
      second.Fill(2);
      Future<void> sent = rank.group.SendAsync(first, other, 1);
      WEFT_RETURN_IF_ERROR(rank.group.Send(second, other, 2));
      WEFT_RETURN_IF_ERROR(rank.group.Barrier());
      EXPECT_FALSE(sent.IsReady());
      runtime.SetHangs(rank.stream(), false);
      return sent.Wait(kPatience);
    }
    WEFT_RETURN_IF_ERROR(rank.group.Receive(second, other, 2));
    EXPECT_THAT(second.ToVector<float>(), Each(2));
    WEFT_RETURN_IF_ERROR(rank.group.Barrier());
    WEFT_ASSIGN_OR_RETURN(const int from, rank.group.ReceiveAny(first, 1));
    EXPECT_EQ(from, 0);
    EXPECT_THAT(first.ToVector<float>(), Each(1));
    return absl::OkStatus();
  };
  for (int seed = 0; seed < 20; ++seed) {
    EXPECT_THAT(RunGroup(2, seed, body), Each(IsOk())) << seed;
  }
}

TEST(DeviceMessages, SendThatIsLateLeavesTheGroupAsItIs) {
  const auto body = [](const Rank& rank) -> absl::Status {
    if (rank.group.rank() == 0) {
      device::SimulatedRuntime& runtime = rank.devices.runtime();
      runtime.SetHangs(rank.stream(), true);
      const Tensor x = Tensor::Ones({4}, DType::kF32, rank.device());
      const absl::Status sent =
          rank.group.Send(x, 1, 0, Within(absl::Seconds(1)));
      EXPECT_THAT(sent, StatusIs(kLate, "has not come from its device"));
    }
    return rank.group.Barrier();
  };
  EXPECT_THAT(RunGroup(2, 5, body), Each(IsOk()));
}

TEST(DeviceMessages, LostDeviceBreaksTheGroup) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const Tensor x = Tensor::Ones({4}, DType::kF32, rank.device());
    if (rank.group.rank() == 1) return rank.group.Receive(x, 0);
    device::SimulatedRuntime& runtime = rank.devices.runtime();
    runtime.SetHangs(rank.stream(), true);
    const Tensor y = x.Clone();
    Future<void> sent = rank.group.SendAsync(y, 1);
    runtime.LoseDevice(x.device().id());
    return sent.Wait(kPatience);
  };
  EXPECT_THAT(RunGroup(2, 5, body), Each(StatusIs(kLost, "simulated:0")));
}

// The streams of a group serve its next members too.
TEST(DeviceGroups, GoOnAfterShrink) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const Tensor x = Tensor::Ones({4}, DType::kF32, rank.device());
    // The others may shrink before it ends here.
    rank.group.AllReduce(x).IgnoreError();
    if (rank.group.rank() == 1) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(rank.group.Shrink({0, 2}));
    x.Fill(1);
    WEFT_RETURN_IF_ERROR(rank.group.AllReduce(x));
    EXPECT_THAT(x.ToVector<float>(), Each(2));
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroup(3, 1, body), Each(IsOk()));
}

}  // namespace
}  // namespace weft::collectives
