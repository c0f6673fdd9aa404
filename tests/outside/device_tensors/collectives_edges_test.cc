// Collectives and DDP over tensors on devices: tensors of two devices in one
// call, views, nothing, ranks on the CPU, a Revoke, lost devices, late moves.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/base/check.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/reducer.h"
#include "weft/device/current.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/nn/layers.h"
#include "weft/nn/module.h"
#include "weft/nn/norm.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/outside/device_tensors/throws.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::HasSubstr;
using ::weft::collectives::LocalWorld;
using ::weft::collectives::ProcessGroup;
using ::weft::ddp::DistributedDataParallel;
using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::BytesOf;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

Tensor F32(const Shape& shape, uint64_t seed = 3) {
  Generator random(seed);
  return Normal(shape, 0, 1, random);
}

// A rank with a group and devices of its own.
struct Rank {
  int rank;
  ProcessGroup& group;
  SimulatedDevices& devices;

  Device device(int index = 0) const { return {devices.context(), index}; }
};

using Body = std::function<absl::Status(const Rank&)>;

std::vector<absl::Status> RunOnDevices(int size, uint64_t seed,
                                       const Body& body) {
  LocalWorld world(size);
  return RunRanks(size, [&](int rank) -> absl::Status {
    SimulatedDevices devices(seed * 100 + rank, 2);
    collectives::GroupOptions options;
    options.timeout = absl::Seconds(60);
    const auto group = ProcessGroup::Create(world.Connect(rank), options);
    return body({rank, *group, devices});
  });
}

void RunWell(int size, uint64_t seed, const Body& body) {
  const std::vector<absl::Status> statuses = RunOnDevices(size, seed, body);
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_THAT(statuses[rank], IsOk()) << "rank " << rank << ", seed " << seed;
  }
}

// --- What collectives take. --------------------------------------------------

TEST(DeviceCollectives, TensorsOfTwoDevicesAreRefusedAndTheGroupGoesOn) {
  RunWell(2, 1, [](const Rank& r) -> absl::Status {
    const Tensor cpu = F32({4}), there = F32({4}).To(r.device()),
                 other = F32({4}).To(r.device(1)),
                 both = Tensor::Zeros({8}, DType::kF32, r.device());
    EXPECT_THAT(r.group.AllReduceInto(there, other),
                StatusIs(kInvalid, "simulated:1"));
    EXPECT_THAT(r.group.AllReduceInto(cpu, there), StatusIs(kInvalid, "cpu"));
    EXPECT_THAT(r.group.AllReduceCoalesced({there, cpu}), StatusIs(kInvalid));
    EXPECT_THAT(r.group.AllGather(other, both), StatusIs(kInvalid));
    EXPECT_THAT(r.group.AllGatherList(there, {there.Clone(), other}),
                StatusIs(kInvalid));
    EXPECT_THAT(r.group.AllToAllList({there, other}, {there, there}),
                StatusIs(kInvalid));
    EXPECT_THAT(r.group.AllReduceIntoAsync(there, cpu).Wait(absl::Minutes(1)),
                StatusIs(kInvalid));
    WEFT_RETURN_IF_ERROR(r.group.AllReduce(there));
    EXPECT_EQ(BytesOf(there), BytesOf(Add(cpu, cpu)));
    return r.group.Barrier();
  });
}

TEST(DeviceCollectives, TakeViewsNothingAndEveryDType) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    RunWell(3, seed, [](const Rank& r) -> absl::Status {
      // Rank 2 stays on the CPU.
      const Device device = r.rank == 2 ? Device::Cpu() : r.device(r.rank);
      for (const DType dtype : {DType::kF32, DType::kF64, DType::kI64}) {
        const Tensor base = Tensor::Arange(24).To(dtype).To(device);
        const Tensor column = base.View({4, 6}).Select(1, 2);
        WEFT_RETURN_IF_ERROR(r.group.AllReduce(column));
        EXPECT_EQ(column.To(DType::kI64).ToVector<int64_t>(),
                  (std::vector<int64_t>{6, 24, 42, 60}));
        EXPECT_EQ(
            base.View({4, 6}).Select(1, 1).To(DType::kI64).ToVector<int64_t>(),
            (std::vector<int64_t>{1, 7, 13, 19}));
      }
      for (const DType dtype : kAllDTypes) {
        const Tensor x =
            Tensor::Full({2, 3}, r.rank == 1 ? 1 : 0, dtype, device);
        WEFT_RETURN_IF_ERROR(r.group.Broadcast(x.Transpose(0, 1), 1));
        EXPECT_EQ(BytesOf(x), BytesOf(Tensor::Ones({2, 3}, dtype)));
        const Tensor all = Tensor::Zeros({3}, dtype, device);
        WEFT_RETURN_IF_ERROR(
            r.group.AllGather(x.View({6}).Slice(0, 0, 1), all));
        EXPECT_EQ(BytesOf(all), BytesOf(Tensor::Ones({3}, dtype)));
      }
      const Tensor none = Tensor::Empty({0, 3}, DType::kF32, device);
      WEFT_RETURN_IF_ERROR(r.group.AllReduce(none));
      WEFT_RETURN_IF_ERROR(r.group.Broadcast(none, 0));
      WEFT_RETURN_IF_ERROR(r.group.AllGather(none, none));
      WEFT_RETURN_IF_ERROR(r.group.AllToAll(none, none));
      WEFT_RETURN_IF_ERROR(r.group.ReduceScatter(none, none));
      WEFT_RETURN_IF_ERROR(r.group.AllReduceCoalesced({none, none}));
      const Tensor one = Tensor::Ones({}, DType::kF32, device);
      WEFT_RETURN_IF_ERROR(r.group.AllReduceCoalesced({none, one}));
      EXPECT_EQ(one.item<float>(), 3);
      // Counts differ, and one is 0.
      const Tensor mine = Tensor::Full({r.rank}, r.rank, DType::kF32, device);
      const std::vector<Tensor> outs = {
          Tensor::Zeros({0}, DType::kF32, device),
          Tensor::Zeros({1}, DType::kF32, device),
          Tensor::Zeros({2}, DType::kF32, device)};
      WEFT_RETURN_IF_ERROR(r.group.AllGatherList(mine, outs));
      EXPECT_EQ(outs[2].ToVector<float>(), (std::vector<float>{2, 2}));
      return absl::OkStatus();
    });
  }
}

TEST(DeviceCollectives, IntoAnExpandedTensorIsRefused) {
  RunWell(2, 1, [](const Rank& r) -> absl::Status {
    const Tensor x = Tensor::Ones({1}, DType::kF32, r.device());
    EXPECT_THAT(r.group.AllReduce(x.Expand({4})), StatusIs(kInvalid));
    EXPECT_THAT(r.group.AllReduce(Tensor()), StatusIs(kInvalid));
    // Such a tensor is fine as an input.
    const Tensor out = Tensor::Zeros({4}, DType::kF32, r.device());
    WEFT_RETURN_IF_ERROR(r.group.AllReduceInto(x.Expand({4}), out));
    EXPECT_EQ(BytesOf(out), BytesOf(Tensor::Full({4}, 2)));
    return absl::OkStatus();
  });
}

TEST(DeviceCollectives, InPlaceInAPartOfTheOutputIsAsOnTheCpu) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    std::string bits[2][2];
    for (const bool on_devices : {false, true}) {
      RunWell(2, seed, [&](const Rank& r) -> absl::Status {
        const Device device = on_devices ? r.device() : Device::Cpu();
        const Tensor all = F32({8}, r.rank).To(device);
        const Tensor mine = all.Slice(0, 4 * r.rank, 4 * r.rank + 4);
        WEFT_RETURN_IF_ERROR(r.group.AllGather(mine, all));
        std::string found = BytesOf(all);
        WEFT_RETURN_IF_ERROR(r.group.ReduceScatter(all, mine));
        found += BytesOf(mine);
        // A column of a matrix, gathered into another of it.
        const Tensor matrix = F32({4, 3}, r.rank).To(device);
        WEFT_RETURN_IF_ERROR(r.group.AllGather(
            matrix.Select(1, 0).Slice(0, 0, 2), matrix.Select(1, 2)));
        WEFT_RETURN_IF_ERROR(r.group.AllReduceCoalesced(
            {matrix.Select(1, 1), matrix.Select(1, 2)}));
        bits[on_devices][r.rank] = found + BytesOf(matrix);
        return absl::OkStatus();
      });
    }
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(bits[0][rank] == bits[1][rank]) << rank << ", " << seed;
    }
  }
}

TEST(DeviceCollectives, AreOrderedWithTheCallersStream) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    RunWell(2, seed, [](const Rank& r) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const device::Stream stream,
                            r.devices.runtime().CreateStream(r.device().id()));
      const device::StreamScope scope(stream);
      Tensor x = F32({64}).To(r.device());
      for (int i = 0; i < 3; ++i) x = Mul(x, 0.5);
      const Future<void> reduced = r.group.AllReduceAsync(x);
      WEFT_RETURN_IF_ERROR(reduced.Wait(absl::Minutes(1)));
      const Tensor y = Add(x, 1.0);
      x = Tensor();
      EXPECT_EQ(BytesOf(y), BytesOf(Add(Mul(F32({64}), 0.25), 1.0)));
      return absl::OkStatus();
    });
  }
}

TEST(DeviceCollectives, SendAndReceiveBetweenDevicesAndTheCpu) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    RunWell(2, seed, [](const Rank& r) -> absl::Status {
      const Device device = r.rank == 0 ? r.device() : Device::Cpu();
      const Tensor x = F32({3, 2}).To(device);
      const Tensor y = Tensor::Zeros({2, 3}, DType::kF32, device);
      if (r.rank == 0) {
        WEFT_RETURN_IF_ERROR(r.group.Send(x.Transpose(0, 1), 1));
        WEFT_RETURN_IF_ERROR(r.group.Receive(y, 1));
      } else {
        WEFT_RETURN_IF_ERROR(r.group.Receive(y, 0));
        WEFT_RETURN_IF_ERROR(r.group.Send(x.Transpose(0, 1), 0));
      }
      EXPECT_EQ(BytesOf(y), BytesOf(F32({3, 2}).Transpose(0, 1)));
      WEFT_RETURN_IF_ERROR(r.group.Exchange(
          {{collectives::PointToPoint::kSend, x, 1 - r.rank, 7},
           {collectives::PointToPoint::kReceive, y, 1 - r.rank, 7}}));
      EXPECT_EQ(BytesOf(y), BytesOf(F32({3, 2})));
      return absl::OkStatus();
    });
  }
}

TEST(DeviceCollectives, AnExchangeOfTensorsOfTwoDevicesIsRefused) {
  RunWell(2, 4, [](const Rank& r) -> absl::Status {
    const Tensor there = F32({6}).To(r.device(1));
    const absl::Status status = r.group.Exchange(
        {{collectives::PointToPoint::kSend, there, 1 - r.rank, 8},
         {collectives::PointToPoint::kReceive, Tensor::Zeros({6}), 1 - r.rank,
          8}});
    EXPECT_THAT(status, StatusIs(kInvalid))
        << "docs/collectives.md: tensors of one call that are on a device and "
           "the CPU are refused";
    return absl::OkStatus();
  });
}

// --- Ends. -------------------------------------------------------------------

TEST(DeviceCollectives, AfterARevokeAndAShrinkGoOn) {
  // A Revoke would end the first operation on a rank that is still in it.
  Promise<void> other_is_done;
  RunWell(2, 4, [&](const Rank& r) -> absl::Status {
    const Tensor x = F32({8}).To(r.device());
    WEFT_RETURN_IF_ERROR(r.group.AllReduce(x));
    if (r.rank == 1) other_is_done.Set(absl::OkStatus());
    if (r.rank == 0) {
      WEFT_RETURN_IF_ERROR(other_is_done.future().Wait(absl::Minutes(1)));
      const Future<void> pending = r.group.AllReduceAsync(x.Clone());
      r.group.Revoke(absl::CancelledError("enough"));
      EXPECT_FALSE(pending.Wait(absl::Minutes(1)).ok());
    } else {
      // A call before the Revoke has come would be the other half of `pending`,
      // and both would end well.
      EXPECT_TRUE(
          weft::testing::Becomes([&] { return !r.group.health().ok(); }));
    }
    const absl::Status after = r.group.AllReduce(x.Clone());
    EXPECT_THAT(after, StatusIs(absl::StatusCode::kCancelled, "enough"));
    EXPECT_EQ(BytesOf(x), BytesOf(Add(F32({8}), F32({8}))));
    WEFT_RETURN_IF_ERROR(r.group.Shrink({0, 1}));
    WEFT_RETURN_IF_ERROR(r.group.AllReduce(x));
    EXPECT_EQ(BytesOf(x), BytesOf(Mul(F32({8}), 4.0)));
    return absl::OkStatus();
  });
}

TEST(DeviceCollectives, ALostDeviceIsNamedOnBothRanksAndTheOtherGoesOnAlone) {
  RunWell(2, 5, [](const Rank& r) -> absl::Status {
    const Tensor x = F32({8}).To(r.device());
    if (r.rank == 1) r.devices.runtime().LoseDevice(r.device().id());
    absl::Status status;
    EXPECT_THAT(StatusOf([&] { status = r.group.AllReduce(x); }), IsOk());
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kUnavailable, "simulated:0"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
    EXPECT_FALSE(r.group.health().ok());
    if (r.rank == 1) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(r.group.Shrink({0}));
    return r.group.AllReduce(F32({8}).To(r.device()));
  });
}

TEST(DeviceCollectives, ALostRankThatMeantToReceiveIsNamed) {
  RunWell(2, 6, [](const Rank& r) -> absl::Status {
    const Tensor x = F32({8}).To(r.device());
    if (r.rank == 1) r.devices.runtime().LoseDevice(r.device().id());
    absl::Status status;
    EXPECT_THAT(StatusOf([&] { status = r.group.Broadcast(x, 0); }), IsOk());
    if (r.rank == 1) {
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kUnavailable, "simulated:0"));
    } else {
      const absl::Status next = r.group.AllReduce(F32({8}));
      EXPECT_FALSE(next.ok());
      EXPECT_THAT(std::string(next.message()) + std::string(status.message()),
                  HasSubstr("simulated:0"));
    }
    return absl::OkStatus();
  });
}

TEST(DeviceCollectives, ATensorMayEndBeforeItsGroupsFuture) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    RunWell(2, seed, [](const Rank& r) -> absl::Status {
      const Tensor out = Tensor::Zeros({64}, DType::kF32, r.device());
      Future<void> done = MakeReady();
      {
        const Tensor in = Mul(F32({64}).To(r.device()), 2.0);
        done = r.group.AllReduceIntoAsync(in, out);
      }
      const Tensor other = Tensor::Full({64}, -1, DType::kF32, r.device());
      WEFT_RETURN_IF_ERROR(done.Wait(absl::Minutes(1)));
      EXPECT_EQ(BytesOf(out), BytesOf(Mul(F32({64}), 4.0)));
      return absl::OkStatus();
    });
  }
}

TEST(DeviceCollectives, TheGroupMayOutliveTheDevicesAndEndWithWorkInFlight) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    LocalWorld world(2);
    const auto statuses = RunRanks(2, [&](int rank) -> absl::Status {
      const auto group = ProcessGroup::Create(world.Connect(rank));
      Future<void> done = MakeReady();
      {
        SimulatedDevices devices(seed * 2 + rank);
        const Tensor x = F32({1000}).To(Device(devices.context(), 0));
        WEFT_RETURN_IF_ERROR(group->AllReduce(x));
        done = group->AllReduceAsync(x);
        // Nobody waits for this one.
        const Future<void> unwatched = group->BroadcastAsync(Mul(x, 2.0), 0);
      }
      return done.Wait(absl::Minutes(1));
    });
    // The rank that is first to end cancels what is in flight on the other.
    for (const absl::Status& status : statuses) {
      EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
    }
  }
}

TEST(DeviceCollectives, CallbacksHaveTheCallersStream) {
  RunWell(2, 3, [](const Rank& r) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const device::Stream stream,
                          r.devices.runtime().CreateStream(r.device().id()));
    const device::StreamScope scope(stream);
    const Tensor x = F32({64}).To(r.device());
    Tensor doubled;
    bool is_callers = false;
    const Future<int> done = r.group.AllReduceAsync(x).Then([&] {
      const auto current = r.devices.context().CurrentStream(0);
      is_callers = current.ok() && *current == stream;
      doubled = Mul(x, 2.0);
      return 1;
    });
    WEFT_RETURN_IF_ERROR(done.Wait(absl::Minutes(1)).status());
    EXPECT_TRUE(is_callers);
    EXPECT_EQ(BytesOf(doubled), BytesOf(Mul(F32({64}), 4.0)));
    return absl::OkStatus();
  });
}

TEST(DeviceCollectives, WithoutMemoryForTheCopyTheGroupGoesOn) {
  RunWell(2, 3, [](const Rank& r) -> absl::Status {
    const Tensor x = F32({64}).To(r.device());
    const Tensor view = x.View({8, 8}).Transpose(0, 1);
    if (r.rank == 1) r.devices.runtime().FailAllocations(r.device().id(), 1000);
    absl::Status status;
    EXPECT_THAT(StatusOf([&] { status = r.group.AllReduce(view); }), IsOk());
    r.devices.runtime().FailAllocations(r.device().id(), 0);
    // What was cached may have been enough for the copy.
    if (!status.ok()) {
      EXPECT_THAT(status, r.rank == 1
                              ? StatusIs(absl::StatusCode::kResourceExhausted)
                              : StatusIs(absl::StatusCode::kAborted));
    }
    return r.group.AllReduce(x);
  });
}

// --- DDP. --------------------------------------------------------------------

struct Net {
  Net() {
    model.Add<nn::Linear>(6, 8, random);
    model.Add<nn::BatchNorm>(8);
    model.Add<nn::Tanh>();
    model.Add<nn::Linear>(8, 3, random);
  }
  Variable Loss(int rank, Device device) {
    const Variable x(F32({4, 6}, 9 + rank).To(device));
    return Mean(Square(model.Forward(x)));
  }
  std::string Bits() const {
    std::string bits;
    for (const auto& [name, tensor] : model.StateDict()) {
      bits += name + BytesOf(tensor);
    }
    for (const Variable& p : model.Parameters()) {
      if (p.has_grad()) bits += BytesOf(p.grad());
    }
    return bits;
  }

  Generator random{1};
  nn::Sequential model;
};

TEST(DeviceDdp, RefusesAMoveOfItsModelAndGoesOn) {
  RunWell(2, 7, [](const Rank& r) -> absl::Status {
    Net net;
    WEFT_ASSIGN_OR_RETURN(auto ddp,
                          DistributedDataParallel::Create(net.model, r.group));
    const std::string before = net.Bits();
    EXPECT_THAT(StatusOf([&] { net.model.To(r.device()); }),
                StatusIs(absl::StatusCode::kFailedPrecondition, "weight"));
    EXPECT_TRUE(net.Bits() == before);
    net.Loss(r.rank, Device::Cpu()).Backward();
    ddp.reset();
    // Without it the model is free to go, with its gradients.
    EXPECT_THAT(StatusOf([&] { net.model.To(r.device()); }), IsOk());
    EXPECT_EQ(net.model.Parameters()[0].gradient().device(), r.device());
    return absl::OkStatus();
  });
}

TEST(DeviceDdp, OfRanksOnDevicesAndOnTheCpuHasTheBitsOfTheCpu) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    std::string bits[2][3];
    for (const bool on_devices : {false, true}) {
      RunWell(3, seed, [&](const Rank& r) -> absl::Status {
        const Device device =
            on_devices && r.rank != 0 ? r.device(r.rank - 1) : Device::Cpu();
        Net net;
        net.model.To(device);
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net.model, r.group));
        WEFT_ASSIGN_OR_RETURN(
            auto optimizer,
            optimizer::Optimizer::Create({{optimizer::AdamWOptions{0.01},
                                           net.model.NamedParameters()}}));
        for (int i = 0; i < 3; ++i) {
          optimizer->ZeroGrad();
          {
            const DistributedDataParallel::NoSyncScope none(*ddp);
            net.Loss(r.rank + 10, device).Backward();
          }
          net.Loss(r.rank + i, device).Backward();
          WEFT_RETURN_IF_ERROR(optimizer->Step());
        }
        WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
        bits[on_devices ? 1 : 0][r.rank] = net.Bits();
        return absl::OkStatus();
      });
    }
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(bits[0][rank] == bits[1][rank]) << rank;
    }
  }
}

TEST(DeviceDdp, ARankWithoutDataTakesPartOnItsDevice) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    std::string bits[2][2];
    for (const bool on_devices : {false, true}) {
      RunWell(2, seed, [&](const Rank& r) -> absl::Status {
        const Device device = on_devices ? r.device() : Device::Cpu();
        Net net;
        net.model.To(device);
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net.model, r.group));
        WEFT_ASSIGN_OR_RETURN(
            auto optimizer,
            optimizer::Optimizer::Create(
                {{optimizer::SgdOptions{0.1}, net.model.NamedParameters()}}));
        const auto step = [&] {
          const absl::Status status = optimizer->Step();
          optimizer->ZeroGrad();
          return status;
        };
        for (int i = 0; i < 1 + 2 * r.rank; ++i) {
          net.Loss(i, device).Backward();
          WEFT_RETURN_IF_ERROR(step());
        }
        WEFT_RETURN_IF_ERROR(ddp->Join(step));
        WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
        bits[on_devices ? 1 : 0][r.rank] = net.Bits();
        return absl::OkStatus();
      });
    }
    EXPECT_TRUE(bits[0][0] == bits[1][0]);
    EXPECT_TRUE(bits[0][1] == bits[1][1]);
  }
}

TEST(DeviceDdp, SparseGradientsOfADeviceAndOfTheCpuMeet) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    std::string bits[2];
    for (const bool on_devices : {false, true}) {
      RunWell(2, seed, [&](const Rank& r) -> absl::Status {
        const Device device =
            on_devices && r.rank == 1 ? r.device() : Device::Cpu();
        Generator random(1);
        nn::EmbeddingOptions options;
        options.gradient = TableGradient::kSparse;
        nn::Embedding table(10, 4, random, options);
        table.To(device);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(table, r.group));
        for (int i = 0; i < 3; ++i) {
          table.ClearGradients();
          const Tensor words =
              Tensor::FromVector<int64_t>({r.rank, 5, i, 5}).To(device);
          Sum(Square(table.Forward(words))).Backward();
          EXPECT_TRUE(table.weight().gradient().is_sparse());
          EXPECT_EQ(table.weight().gradient().device(), device);
        }
        if (r.rank == 1) bits[on_devices] = BytesOf(table.weight().grad());
        return absl::OkStatus();
      });
    }
    EXPECT_TRUE(bits[0] == bits[1]);
  }
}

TEST(DeviceDdp, ADeviceLostInAPassIsNamedOnEveryRank) {
  const std::vector<absl::Status> found =
      RunOnDevices(2, 8, [](const Rank& r) -> absl::Status {
        Net net;
        net.model.To(r.device());
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net.model, r.group));
        net.Loss(r.rank, r.device()).Backward();
        const Variable loss = net.Loss(r.rank, r.device());
        if (r.rank == 1) {
          loss.AddHook([&](Gradient g) {
            r.devices.runtime().LoseDevice(r.device().id());
            return g;
          });
        }
        loss.Backward();
        return absl::OkStatus();
      });
  // The pass of rank 1 throws what it met, which revokes the group.
  EXPECT_THAT(found[1],
              StatusIs(absl::StatusCode::kUnavailable, "simulated:0"));
  EXPECT_THAT(found[0], StatusIs(absl::StatusCode::kCancelled, "simulated:0"));
}

TEST(DeviceDdp, AParameterOfTwoDevicesInOneModel) {
  // Half of the model on each of two devices: refused, or trained as on the
  // CPU.
  RunWell(2, 9, [](const Rank& r) -> absl::Status {
    Generator random(1);
    nn::Sequential model;
    nn::Linear& first = model.Add<nn::Linear>(3, 3, random);
    nn::Linear& second = model.Add<nn::Linear>(3, 2, random);
    first.To(r.device(0));
    second.To(r.device(1));
    absl::StatusOr<std::unique_ptr<DistributedDataParallel>> ddp =
        absl::InternalError("not called");
    EXPECT_THAT(StatusOf([&] {
                  ddp = DistributedDataParallel::Create(model, r.group);
                }),
                IsOk());
    if (!ddp.ok()) {
      EXPECT_THAT(ddp, StatusIs(kInvalid));
      return absl::OkStatus();
    }
    const Variable x(F32({2, 3}, r.rank).To(r.device(0)));
    const Variable y(F32({2, 3}, r.rank).To(r.device(1)));
    const Variable roots[] = {Sum(first.Forward(x)), Sum(second.Forward(y))};
    const Gradient seeds[] = {Tensor::Ones({}).To(r.device(0)),
                              Tensor::Ones({}).To(r.device(1))};
    WEFT_RETURN_IF_ERROR(Backward(roots, seeds));
    const Tensor mean =
        Mul(Add(Sum(F32({2, 3}, 0), {0}), Sum(F32({2, 3}, 1), {0})), 0.5);
    EXPECT_EQ(BytesOf(second.weight().grad().Select(0, 0)), BytesOf(mean));
    EXPECT_EQ(second.weight().grad().device(), r.device(1));
    EXPECT_EQ(first.weight().grad().device(), r.device(0));
    return (*ddp)->CheckInSync();
  });
}

}  // namespace
}  // namespace weft::outside
