// What runtime.h says of kernels, waits and threads, at the edges.

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/device.h"
#include "weft/device/launch.h"
#include "weft/device/runtime.h"
#include "weft/device/simulated/runtime.h"
#include "weft/device/testing/instance.h"
#include "weft/device/testing/kernels.h"
#include "weft/tests/outside/device/runtime_edges.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::device::Device;
using ::weft::device::DeviceMemory;
using ::weft::device::Event;
using ::weft::device::Stream;
using ::weft::device::testing::Add;
using ::weft::device::testing::Fill;
using ::weft::device::testing::MakeSimulated;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

// --- Kernels. ----------------------------------------------------------------

TEST_P(Devices, KernelsThatLeaveTheirMemoryFail) {
  struct Reach {
    const char* name;
    std::function<absl::Status(const DeviceMemory&, float* memory)> run;
  };
  const auto at = [](int64_t offset, int64_t n) {
    return [=](const DeviceMemory& m, float* memory) {
      return m.At(memory + offset, n).status();
    };
  };
  const std::vector<Reach> reaches = {
      {"one more", at(0, 1025)},
      {"one before", at(-1, 1)},
      {"behind", at(1024, 1)},
      {"across the end", at(1023, 2)},
      {"negative", at(0, -1)},
      {"very negative", at(0, std::numeric_limits<int64_t>::min())},
      {"all there is", at(0, kHuge)},
      {"a product that is small again", at(0, (int64_t{1} << 62) + 1)},
      {"a product that is nothing", at(0, int64_t{1} << 62)},
      {"null",
       [](const DeviceMemory& m, float*) {
         return m.At(static_cast<float*>(nullptr), 1).status();
       }},
      {"of the host",
       [](const DeviceMemory& m, float*) {
         static float host[4];
         return m.At(host, 4).status();
       }},
  };
  for (const Reach& reach : reaches) {
    runtime_ = MakeSimulated(GetParam(), 2);
    const Stream stream = NewStream();
    float* memory = Floats(1024);
    WEFT_EXPECT_OK(runtime_->EnqueueHost(
        stream, "Reach",
        [&, memory](const DeviceMemory& m) { return reach.run(m, memory); }));
    EXPECT_THAT(runtime_->Synchronize(stream, kLong), StatusIs(kInternal))
        << reach.name;
    EXPECT_THAT(runtime_->Health(kZero), StatusIs(kInternal, "Reach"))
        << reach.name;
    WEFT_EXPECT_OK(runtime_->Health(kOne));
  }
}

TEST_P(Devices, KernelReachesNoElementsAndWholeMemoryAndPinnedMemory) {
  const Stream stream = NewStream();
  float* memory = Floats(1024);
  float* pinned = Pinned(16);
  pinned[15] = 2;
  WEFT_EXPECT_OK(runtime_->EnqueueHost(
      stream, "Reach", [=](const DeviceMemory& m) -> absl::Status {
        for (const auto& found :
             {m.At(memory, 1024), m.At(memory, 0), m.At(memory + 1023, 1),
              m.At(pinned, 16), m.At(pinned + 15, 1)}) {
          if (!found.ok()) return found.status();
        }
        **m.At(pinned + 15, 1) += 1;
        return absl::OkStatus();
      }));
  WEFT_EXPECT_OK(runtime_->Synchronize(stream, kLong));
  EXPECT_EQ(pinned[15], 3);
}

TEST_P(Devices, KernelOfOneDeviceMustNotReachTheOthers) {
  float* there = Floats(16, kOne);
  const Stream stream = NewStream(kZero);
  WEFT_EXPECT_OK(Fill(stream, there, 1, 16));
  EXPECT_THAT(runtime_->Synchronize(stream, kLong), StatusIs(kInternal));
  WEFT_EXPECT_OK(runtime_->Health(kOne));
}

TEST_P(Devices, NativeLaunchOnASimulatedStreamIsAWrongState) {
  EXPECT_THAT(runtime_->LaunchNative(NewStream(), "k",
                                     [](void*) { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_P(Devices, KernelWithoutANameRuns) {
  const Stream stream = NewStream();
  bool ran = false;
  WEFT_EXPECT_OK(runtime_->EnqueueHost(stream, "", [&](const DeviceMemory&) {
    ran = true;
    return absl::OkStatus();
  }));
  WEFT_EXPECT_OK(runtime_->Synchronize(stream, kLong));
  EXPECT_TRUE(ran);
}

TEST_P(Devices, NameOfAKernelMayEndWithTheCall) {
  const Stream stream = NewStream();
  {
    auto name = std::make_unique<std::string>("a name of its own memory");
    WEFT_EXPECT_OK(runtime_->EnqueueHost(
        stream, *name,
        [](const DeviceMemory&) { return absl::InternalError("boom"); }));
    std::fill(name->begin(), name->end(), '#');
  }
  EXPECT_THAT(runtime_->Synchronize(stream, kLong),
              StatusIs(kInternal, "a name of its own memory"));
}

TEST_P(Devices, KernelThatHoldsThingsFreesThemWhenItRanOrWasDropped) {
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = held;
  const Stream stream = NewStream();
  WEFT_EXPECT_OK(runtime_->EnqueueHost(
      stream, "Hold",
      [held](const DeviceMemory&) { return absl::OkStatus(); }));
  held.reset();
  WEFT_EXPECT_OK(runtime_->Synchronize(stream, kLong));
  EXPECT_TRUE(watch.expired());

  held = std::make_shared<int>(0);
  const std::weak_ptr<int> dropped = held;
  runtime_->SetHangs(stream, true);
  WEFT_EXPECT_OK(runtime_->EnqueueHost(
      stream, "Hold",
      [held](const DeviceMemory&) { return absl::OkStatus(); }));
  held.reset();
  EXPECT_FALSE(dropped.expired());
  runtime_.reset();
  EXPECT_TRUE(dropped.expired());
}

// A kernel that throws: as an error of the device or as the exception, but
// never so that later calls wait for ever.
TEST_P(Devices, KernelThatThrowsLeavesTheRuntimeUsable) {
  const Stream stream = NewStream();
  bool has_thrown = false;
  absl::Status status;
  try {
    status = runtime_->EnqueueHost(
        stream, "Throw", [](const DeviceMemory&) -> absl::Status {
          throw std::runtime_error("thrown in a kernel");
        });
    if (status.ok()) status = runtime_->Synchronize(stream, kLong);
  } catch (const std::runtime_error&) {
    has_thrown = true;
  }
  EXPECT_TRUE(has_thrown || !status.ok()) << status;
  std::atomic<bool> ended{false};
  std::thread other([&] {
    const Stream one = *runtime_->CreateStream(kOne);
    float* memory = Floats(4, kOne);
    WEFT_EXPECT_OK(Fill(one, memory, 1, 4));
    WEFT_EXPECT_OK(runtime_->Synchronize(one, kLong));
    ended = true;
  });
  other.join();
  EXPECT_TRUE(ended);
}

TEST_P(Devices, ErrorThatAKernelReturnsIsTheDevicesForGood) {
  const Stream stream = NewStream();
  const Stream other = NewStream();
  const Stream one = NewStream(kOne);
  Event event = NewEvent();
  Event late = NewEvent();
  float* memory = Floats(4);
  float* there = Floats(4, kOne);
  float* pinned = Pinned(4);
  runtime_->SetHangs(stream, true);  // the error is not seen too early
  WEFT_EXPECT_OK(runtime_->EnqueueHost(
      stream, "Broken",
      [](const DeviceMemory&) { return absl::InternalError("cause"); }));
  WEFT_EXPECT_OK(runtime_->RecordEvent(event, stream));
  // The other device waits for it.
  WEFT_EXPECT_OK(runtime_->StreamWaitEvent(one, event));
  WEFT_EXPECT_OK(Fill(one, there, 3, 4));
  runtime_->SetHangs(stream, false);
  EXPECT_THAT(runtime_->Synchronize(stream, kLong),
              StatusIs(kInternal, "cause"));
  const auto failed = StatusIs(kInternal, "cause");
  EXPECT_THAT(runtime_->Health(kZero), failed);
  EXPECT_THAT(runtime_->Allocate(kZero, 64), failed);
  EXPECT_THAT(runtime_->CreateStream(kZero), failed);
  EXPECT_THAT(runtime_->DefaultStream(kZero), failed);
  EXPECT_THAT(runtime_->CreateEvent(kZero), failed);
  EXPECT_THAT(runtime_->GetMemoryUse(kZero), failed);
  EXPECT_THAT(runtime_->RecordEvent(late, other), failed);
  EXPECT_THAT(runtime_->StreamWaitEvent(other, event), failed);
  EXPECT_THAT(runtime_->Query(other), failed);
  EXPECT_THAT(runtime_->Query(event), failed);
  EXPECT_THAT(runtime_->Synchronize(event, kLong), failed);
  EXPECT_THAT(runtime_->Synchronize(kZero, kLong), failed);
  EXPECT_THAT(runtime_->MemsetAsync(memory, 0, 16, other), failed);
  EXPECT_THAT(runtime_->CopyAsync(pinned, memory, 16, other), failed);
  EXPECT_THAT(Fill(other, memory, 0, 4), failed);
  // "and so do the other devices".
  EXPECT_EQ(Read(there, 4, one), All(4, 3));
  WEFT_EXPECT_OK(runtime_->Health(kOne));
}

TEST_P(Devices, OrdinaryErrorCodeOfAKernelIsStillTheDevices) {
  // A kernel returns what it likes; a code of OK or Deadline would be odd.
  for (const absl::Status& returned :
       {absl::DeadlineExceededError("odd"), absl::InvalidArgumentError("odd"),
        absl::CancelledError("odd")}) {
    runtime_ = MakeSimulated(GetParam(), 2);
    const Stream stream = NewStream();
    WEFT_EXPECT_OK(runtime_->EnqueueHost(
        stream, "Odd", [returned](const DeviceMemory&) { return returned; }));
    EXPECT_THAT(runtime_->Synchronize(stream, kLong),
                StatusIs(kInternal, "odd"));
    EXPECT_THAT(runtime_->Health(kZero), StatusIs(kInternal, "odd"));
  }
}

TEST_P(Devices, LostDeviceIsUnavailableAndTheOtherGoesOn) {
  const Stream zero = NewStream(kZero);
  const Stream one = NewStream(kOne);
  Event event = NewEvent(kZero);
  float* there = Floats(4, kOne);
  WEFT_EXPECT_OK(Fill(zero, Floats(4), 1, 4));
  WEFT_EXPECT_OK(runtime_->RecordEvent(event, zero));
  WEFT_EXPECT_OK(runtime_->StreamWaitEvent(one, event));
  WEFT_EXPECT_OK(Fill(one, there, 3, 4));
  runtime_->LoseDevice(kZero);
  runtime_->LoseDevice(kZero);
  EXPECT_THAT(runtime_->Health(kZero), StatusIs(kUnavailable));
  EXPECT_THAT(runtime_->Synchronize(zero, kLong), StatusIs(kUnavailable));
  EXPECT_THAT(runtime_->Allocate(kZero, 4), StatusIs(kUnavailable));
  EXPECT_EQ(Read(there, 4, one), All(4, 3));
}

TEST_P(Devices, KernelThatIsToFailDoesSoOnceAndByNameOnly) {
  runtime_->FailKernel(kZero, "Fill");
  const Stream one = NewStream(kOne);
  float* there = Floats(4, kOne);
  WEFT_EXPECT_OK(Fill(one, there, 3, 4));  // another device
  EXPECT_EQ(Read(there, 4, one), All(4, 3));
  const Stream zero = NewStream(kZero);
  float* memory = Floats(4);
  WEFT_EXPECT_OK(runtime_->MemsetAsync(memory, 0, 16, zero));
  WEFT_EXPECT_OK(Add(zero, memory, memory, 4));
  WEFT_EXPECT_OK(runtime_->Synchronize(zero, kLong));
  absl::Status status = Fill(zero, memory, 1, 4);
  if (status.ok()) status = runtime_->Synchronize(zero, kLong);
  EXPECT_THAT(status, StatusIs(kInternal, "Fill"));
}

TEST_P(Devices, AllocationsThatAreToFailDoSoAsOftenAsSaid) {
  runtime_->FailAllocations(kZero, 2);
  EXPECT_THAT(runtime_->Allocate(kZero, 64), StatusIs(kExhausted));
  EXPECT_THAT(runtime_->Allocate(kOne, 64), IsOk());
  EXPECT_THAT(runtime_->Allocate(kZero, 64), StatusIs(kExhausted));
  EXPECT_THAT(runtime_->Allocate(kZero, 64), IsOk());
}

// --- Waits. ------------------------------------------------------------------

TEST_P(Devices, WaitThatCannotEndIsLateAtOnceWhateverItsDeadline) {
  const Stream stream = NewStream();
  runtime_->SetHangs(stream, true);
  float* memory = Floats(4);
  WEFT_EXPECT_OK(Fill(stream, memory, 1, 4));
  const absl::Time begin = absl::Now();
  for (const absl::Duration timeout :
       {absl::InfiniteDuration(), absl::Hours(1000), absl::ZeroDuration(),
        -absl::Seconds(1), -absl::InfiniteDuration()}) {
    EXPECT_THAT(runtime_->Synchronize(stream, timeout), StatusIs(kDeadline))
        << timeout;
    EXPECT_THAT(runtime_->Synchronize(kZero, timeout), StatusIs(kDeadline))
        << timeout;
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  EXPECT_THAT(runtime_->Query(stream), IsOkAndHolds(false));
  EXPECT_GE(runtime_->pending_tasks(), 1);
  WEFT_EXPECT_OK(runtime_->Synchronize(kOne, kLong));
  runtime_->SetHangs(stream, false);
  WEFT_EXPECT_OK(runtime_->Synchronize(stream, absl::InfiniteDuration()));
  EXPECT_EQ(runtime_->pending_tasks(), 0);
  EXPECT_EQ(Read(memory, 4, stream), All(4, 1));
}

TEST_P(Devices, WaitForNothingEndsWellWithoutAnyTime) {
  const Stream stream = NewStream();
  for (const absl::Duration timeout :
       {absl::ZeroDuration(), -absl::Seconds(1), absl::InfiniteDuration()}) {
    WEFT_EXPECT_OK(runtime_->Synchronize(stream, timeout));
    WEFT_EXPECT_OK(runtime_->Synchronize(kZero, timeout));
  }
  EXPECT_THAT(runtime_->Query(stream), IsOkAndHolds(true));
}

TEST_P(Devices, QueryAskedOverAndOverBecomesTrue) {
  const Stream stream = NewStream();
  float* memory = Floats(4);
  for (int i = 0; i < 50; ++i) WEFT_EXPECT_OK(Fill(stream, memory, i, 4));
  int asked = 0;
  for (; asked < 100000; ++asked) {
    const auto done = runtime_->Query(stream);
    ASSERT_THAT(done, IsOk());
    if (*done) break;
  }
  EXPECT_LT(asked, 100000);
}

TEST_P(Devices, WorkWithoutAnyWaitIsBoundedByWhatMayBePending) {
  const Stream stream = NewStream();
  float* memory = Floats(4);
  for (int i = 0; i < 5000; ++i) {
    WEFT_ASSERT_OK(Fill(stream, memory, 1, 4));
    ASSERT_LE(runtime_->pending_tasks(), 257);
  }
}

TEST_P(Devices, WorkBehindAHangMayPileUpAndIsNotLost) {
  const Stream stream = NewStream();
  float* memory = Floats(1);
  WEFT_EXPECT_OK(runtime_->MemsetAsync(memory, 0, 4, stream));
  float* one = Floats(1);
  WEFT_EXPECT_OK(Fill(stream, one, 1, 1));
  runtime_->SetHangs(stream, true);
  for (int i = 0; i < 3000; ++i) WEFT_ASSERT_OK(Add(stream, memory, one, 1));
  runtime_->SetHangs(stream, false);
  EXPECT_EQ(Read(memory, 1, stream), All(1, 3000));
}

TEST_P(Devices, ManyStreamsInAChainOfEventsKeepTheirOrder) {
  constexpr int kStreams = 400;
  float* memory = Floats(1);
  float* one = Floats(1);
  std::vector<Stream> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(NewStream());
  WEFT_EXPECT_OK(runtime_->MemsetAsync(memory, 0, 4, streams[0]));
  WEFT_EXPECT_OK(Fill(streams[0], one, 1, 1));
  for (int i = 1; i < kStreams; ++i) {
    Event event = NewEvent();
    WEFT_ASSERT_OK(runtime_->RecordEvent(event, streams[i - 1]));
    WEFT_ASSERT_OK(runtime_->StreamWaitEvent(streams[i], event));
    WEFT_ASSERT_OK(Add(streams[i], memory, one, 1));
  }
  EXPECT_EQ(Read(memory, 1, streams.back()), All(1, kStreams - 1));
}

TEST(SimulatedOrder, IsAFunctionOfTheSeedAndTheCalls) {
  const auto run = [](uint64_t seed) {
    const auto runtime = MakeSimulated(seed);
    std::vector<Stream> streams;
    for (int i = 0; i < 4; ++i)
      streams.push_back(*runtime->CreateStream(kZero));
    float* memory = static_cast<float*>(*runtime->Allocate(kZero, 64));
    for (int i = 0; i < 200; ++i) {
      EXPECT_THAT(Fill(streams[(i * 7) % 4], memory, i, 4), IsOk());
      if (i % 50 == 0) (void)runtime->Query(streams[0]);
    }
    EXPECT_THAT(runtime->Synchronize(kZero, kLong), IsOk());
    return runtime->trace();
  };
  std::set<std::vector<std::string>> traces;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const std::vector<std::string> trace = run(seed);
    EXPECT_EQ(trace, run(seed));
    EXPECT_EQ(trace.size(), 200u);
    traces.insert(trace);
  }
  EXPECT_GT(traces.size(), 5u);
}

TEST(SimulatedOrder, TraceHasTheLast4096) {
  const auto runtime = MakeSimulated(1);
  const Stream stream = *runtime->CreateStream(kZero);
  float* memory = static_cast<float*>(*runtime->Allocate(kZero, 64));
  EXPECT_TRUE(runtime->trace().empty());
  for (int i = 0; i < 5000; ++i) WEFT_ASSERT_OK(Fill(stream, memory, i, 4));
  WEFT_EXPECT_OK(runtime->Synchronize(kZero, kLong));
  EXPECT_EQ(runtime->trace().size(), 4096u);
  EXPECT_THAT(runtime->trace(),
              Each(AllOf(HasSubstr("Fill"), HasSubstr(Name(stream)))));
}

// --- Threads. ----------------------------------------------------------------

TEST_P(Devices, WorkOfSeveralThreadsOnStreamsOfTheirOwn) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const Device device = Device::Simulated(t % 2);
      const Stream stream = NewStream(device);
      float* memory = Floats(8, device);
      float* one = Floats(8, device);
      WEFT_EXPECT_OK(Fill(stream, memory, 0, 8));
      WEFT_EXPECT_OK(Fill(stream, one, 1, 8));
      for (int i = 0; i < 200; ++i) {
        WEFT_EXPECT_OK(Add(stream, memory, one, 8));
        if (i % 20 == 0) {
          WEFT_EXPECT_OK(runtime_->Synchronize(stream, kLong));
        }
      }
      EXPECT_EQ(Read(memory, 8, stream), All(8, 200));
      WEFT_EXPECT_OK(runtime_->Free(device, memory));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Devices, WorkOfSeveralThreadsOnOneStreamIsAllDone) {
  const Stream stream = NewStream();
  float* memory = Floats(1);
  float* one = Floats(1);
  WEFT_EXPECT_OK(Fill(stream, memory, 0, 1));
  WEFT_EXPECT_OK(Fill(stream, one, 1, 1));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 250; ++i) {
        WEFT_EXPECT_OK(Add(stream, memory, one, 1));
        if (i % 30 == 0) {
          WEFT_EXPECT_OK(runtime_->Synchronize(kZero, kLong));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Read(memory, 1, stream), All(1, 1000));
}

TEST_P(Devices, ThreadsThatWaitForOneHangAllEndWhenItIsOver) {
  const Stream stream = NewStream();
  runtime_->SetHangs(stream, true);
  WEFT_EXPECT_OK(Fill(stream, Floats(4), 1, 4));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      // Each wait ends at once while nothing can run.
      while (!runtime_->Synchronize(stream, absl::Milliseconds(1)).ok()) {
        std::this_thread::yield();
      }
    });
  }
  runtime_->SetHangs(stream, false);
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Devices, FailureDuringOtherThreadsWaitsEndsThem) {
  const Stream stream = NewStream();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      absl::Status status;
      while (status.ok()) status = runtime_->Synchronize(stream, kLong);
      EXPECT_THAT(status, StatusIs(kUnavailable));
    });
  }
  for (int i = 0; i < 20; ++i) {
    (void)runtime_->EnqueueHost(stream, "Nothing", [](const DeviceMemory&) {
      return absl::OkStatus();
    });
  }
  runtime_->LoseDevice(kZero);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace weft::outside
