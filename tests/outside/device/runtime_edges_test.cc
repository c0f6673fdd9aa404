// What runtime.h and simulated/runtime.h say, at the edges: devices, streams,
// events, addresses and sizes that are none, waits that cannot end, and devices
// that fail.

#include "weft/tests/outside/device/runtime_edges.h"

#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/device.h"
#include "weft/device/launch.h"
#include "weft/device/runtime.h"
#include "weft/device/simulated/runtime.h"
#include "weft/device/testing/instance.h"
#include "weft/device/testing/kernels.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::AnyOf;
using ::weft::device::Device;
using ::weft::device::DeviceMemory;
using ::weft::device::Event;
using ::weft::device::Runtime;
using ::weft::device::SimulatedRuntime;
using ::weft::device::Stream;
using ::weft::device::testing::Add;
using ::weft::device::testing::Fill;
using ::weft::device::testing::MakeSimulated;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

INSTANTIATE_TEST_SUITE_P(Seeds, Devices, ::testing::Range(0, kSeeds));

// --- Options. ----------------------------------------------------------------

TEST(SimulatedOptions, ThatMakeNoSenseAreRefused) {
  const std::vector<SimulatedRuntime::Options> odd = {
      With([](auto& o) { o.devices = -1; }),
      With([](auto& o) { o.devices = std::numeric_limits<int>::min(); }),
      With([](auto& o) { o.memory_bytes = -1; }),
      With([](auto& o) {
        o.memory_bytes = std::numeric_limits<int64_t>::min();
      }),
      With([](auto& o) { o.memory_bytes = 0; }),
      With([](auto& o) { o.max_pending_tasks = -1; }),
      With([](auto& o) { o.pageable_copy_timeout = -absl::Seconds(1); }),
  };
  for (size_t i = 0; i < odd.size(); ++i) {
    EXPECT_THAT(SimulatedRuntime::Create(odd[i]), StatusIs(kInvalid)) << i;
  }
}

TEST(SimulatedOptions, MoreMemoryThanAddressesIsExhausted) {
  for (const int64_t bytes : {kHuge, kHuge - 4095, int64_t{1} << 62}) {
    EXPECT_THAT(SimulatedRuntime::Create(
                    With([&](auto& o) { o.memory_bytes = bytes; })),
                AnyOf(StatusIs(kExhausted), StatusIs(kInvalid)))
        << bytes;
  }
}

TEST(SimulatedOptions, OneByteOfMemoryAndNoPendingTasksWork) {
  auto made = SimulatedRuntime::Create(With([](auto& o) {
    o.memory_bytes = 1;
    o.max_pending_tasks = 0;
  }));
  if (!made.ok()) {
    EXPECT_THAT(made, StatusIs(kInvalid));
    return;
  }
  WEFT_ASSERT_OK_AND_ASSIGN(void* memory, (*made)->Allocate(kZero, 1));
  WEFT_ASSERT_OK_AND_ASSIGN(Stream stream, (*made)->CreateStream(kZero));
  WEFT_EXPECT_OK((*made)->MemsetAsync(memory, 3, 1, stream));
  uint8_t found = 0;
  WEFT_EXPECT_OK((*made)->CopyAsync(&found, memory, 1, stream));
  EXPECT_EQ(found, 3);
}

TEST(SimulatedOptions, ManyDevicesOfLittleMemory) {
  auto made = SimulatedRuntime::Create(With([](auto& o) {
    o.devices = 64;
    o.memory_bytes = 4096;
  }));
  ASSERT_THAT(made, IsOk());
  EXPECT_EQ((*made)->device_count(), 64);
  for (int i = 0; i < 64; ++i) {
    EXPECT_THAT((*made)->Allocate(Device::Simulated(i), 4096), IsOk());
  }
}

// --- Devices, streams and events that are none. ------------------------------

TEST_P(Devices, ThatDoNotExistAreRefusedByEveryCall) {
  for (const Device device :
       {Device::Simulated(2), Device::Simulated(-1),
        Device::Simulated(std::numeric_limits<int>::max()),
        Device::Simulated(std::numeric_limits<int>::min()), Device::Cuda(0),
        Device::Cpu()}) {
    SCOPED_TRACE(Name(device));
    EXPECT_THAT(runtime_->GetProperties(device), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->GetMemoryUse(device), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->Health(device), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->Allocate(device, 64), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->Free(device, Floats(1)), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->CreateStream(device), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->CreateStream(device, Runtime::Priority::kHigh),
                StatusIs(kInvalid));
    EXPECT_THAT(runtime_->DefaultStream(device), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->CreateEvent(device), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->Synchronize(device, kLong), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->Allocate(device, 64),
                StatusIs(kInvalid, Name(device)));
  }
}

TEST_P(Devices, StreamThatNamesNoneIsRefusedByEveryCall) {
  float* memory = Floats(4);
  Event event = NewEvent();
  const auto other = MakeSimulated(GetParam());
  WEFT_ASSERT_OK_AND_ASSIGN(Stream foreign, other->CreateStream(kZero));
  for (const Stream stream : {Stream(), foreign}) {
    EXPECT_THAT(runtime_->RecordEvent(event, stream), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->StreamWaitEvent(stream, event), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->Query(stream), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->Synchronize(stream, kLong), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->MemsetAsync(memory, 0, 16, stream),
                StatusIs(kInvalid));
    float host[4];
    EXPECT_THAT(runtime_->CopyAsync(host, memory, 16, stream),
                StatusIs(kInvalid));
    EXPECT_THAT(
        runtime_->EnqueueHost(
            stream, "k", [](const DeviceMemory&) { return absl::OkStatus(); }),
        StatusIs(kInvalid));
  }
  EXPECT_THAT(Fill(Stream(), memory, 1, 4), StatusIs(kInvalid));
  EXPECT_THAT(runtime_->Query(event), IsOkAndHolds(true));
}

TEST_P(Devices, EventThatNamesNoneIsRefusedByEveryCall) {
  const Stream stream = NewStream();
  const auto other = MakeSimulated(GetParam());
  WEFT_ASSERT_OK_AND_ASSIGN(Event foreign, other->CreateEvent(kZero));
  Event none;
  EXPECT_FALSE(none.is_valid());
  for (Event* event : {&none, &foreign}) {
    EXPECT_THAT(runtime_->RecordEvent(*event, stream), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->StreamWaitEvent(stream, *event), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->Query(*event), StatusIs(kInvalid));
    EXPECT_THAT(runtime_->Synchronize(*event, kLong), StatusIs(kInvalid));
  }
}

TEST_P(Devices, StreamsHaveDifferentIdsAndTheDefaultOneIsOneEach) {
  std::set<int> ids;
  for (int i = 0; i < 300; ++i) {
    const Stream stream = NewStream(Device::Simulated(i % 2));
    EXPECT_TRUE(ids.insert(stream.id()).second);
    EXPECT_EQ(stream.device(), Device::Simulated(i % 2));
    EXPECT_EQ(&stream.runtime(), runtime_.get());
    EXPECT_EQ(stream.native(), nullptr);
  }
  WEFT_ASSERT_OK_AND_ASSIGN(Stream a, runtime_->DefaultStream(kZero));
  WEFT_ASSERT_OK_AND_ASSIGN(Stream again, runtime_->DefaultStream(kZero));
  WEFT_ASSERT_OK_AND_ASSIGN(Stream b, runtime_->DefaultStream(kOne));
  EXPECT_EQ(a, again);
  EXPECT_NE(a, b);
  EXPECT_EQ(b.device(), kOne);
  EXPECT_EQ(ids.count(a.id()), 0u);
  EXPECT_EQ(Name(a), absl::StrCat("stream ", a.id(), " of simulated:0"));
  EXPECT_NE(Stream(), a);
  EXPECT_EQ(Stream(), Stream());
}

// --- Events. -----------------------------------------------------------------

TEST_P(Devices, EventThatWasNeverRecordedIsOverAndHoldsNobodyUp) {
  const Stream stream = NewStream();
  const Event event = NewEvent();
  EXPECT_THAT(runtime_->Query(event), IsOkAndHolds(true));
  WEFT_EXPECT_OK(runtime_->Synchronize(event, kLong));
  WEFT_EXPECT_OK(runtime_->Synchronize(event, absl::ZeroDuration()));
  WEFT_EXPECT_OK(runtime_->StreamWaitEvent(stream, event));
  float* memory = Floats(4);
  WEFT_EXPECT_OK(Fill(stream, memory, 2, 4));
  EXPECT_EQ(Read(memory, 4, stream), All(4, 2));
}

TEST_P(Devices, EventOfAnotherDeviceCannotBeRecordedButWaitedFor) {
  const Stream zero = NewStream(kZero);
  const Stream one = NewStream(kOne);
  Event event = NewEvent(kZero);
  EXPECT_THAT(runtime_->RecordEvent(event, one), StatusIs(kInvalid));
  runtime_->SetHangs(zero, true);
  float* memory = Floats(4);
  float* there = Floats(4, kOne);
  WEFT_EXPECT_OK(Fill(zero, memory, 2, 4));
  WEFT_EXPECT_OK(runtime_->RecordEvent(event, zero));
  WEFT_EXPECT_OK(runtime_->StreamWaitEvent(one, event));
  WEFT_EXPECT_OK(Fill(one, there, 3, 4));
  EXPECT_THAT(runtime_->Query(one), IsOkAndHolds(false));
  EXPECT_THAT(runtime_->Synchronize(one, absl::Milliseconds(1)),
              StatusIs(kDeadline));
  runtime_->SetHangs(zero, false);
  WEFT_EXPECT_OK(runtime_->Synchronize(one, kLong));
  EXPECT_THAT(runtime_->Query(event), IsOkAndHolds(true));
}

TEST_P(Devices, StreamThatWaitsForItselfGoesOn) {
  const Stream stream = NewStream();
  float* memory = Floats(4);
  WEFT_EXPECT_OK(Fill(stream, memory, 1, 4));
  Event event = NewEvent();
  for (int i = 0; i < 5; ++i) {
    WEFT_EXPECT_OK(runtime_->RecordEvent(event, stream));
    WEFT_EXPECT_OK(runtime_->StreamWaitEvent(stream, event));
    WEFT_EXPECT_OK(runtime_->StreamWaitEvent(stream, event));
    WEFT_EXPECT_OK(Add(stream, memory, memory, 4));
  }
  WEFT_EXPECT_OK(runtime_->Synchronize(stream, kLong));
  EXPECT_EQ(Read(memory, 4, stream), All(4, 32));
}

TEST_P(Devices, TwoStreamsThatWaitForEachOtherInTurnGoOn) {
  const Stream a = NewStream(), b = NewStream();
  float* memory = Floats(4);
  Event event = NewEvent();
  WEFT_EXPECT_OK(Fill(a, memory, 1, 4));
  for (int i = 0; i < 10; ++i) {
    const Stream from = i % 2 == 0 ? a : b;
    const Stream to = i % 2 == 0 ? b : a;
    WEFT_EXPECT_OK(runtime_->RecordEvent(event, from));
    WEFT_EXPECT_OK(runtime_->StreamWaitEvent(to, event));
    WEFT_EXPECT_OK(Add(to, memory, memory, 4));
  }
  EXPECT_EQ(Read(memory, 4, a), All(4, 1024));
}

TEST_P(Devices, WaitIsForTheRecordThatWasLastWhenItWasAskedFor) {
  const Stream a = NewStream(), b = NewStream(), c = NewStream();
  float* memory = Floats(4);
  Event event = NewEvent();
  WEFT_EXPECT_OK(Fill(a, memory, 5, 4));
  WEFT_EXPECT_OK(runtime_->RecordEvent(event, a));
  WEFT_EXPECT_OK(runtime_->StreamWaitEvent(b, event));
  // Recorded again on a stream that makes no progress.
  runtime_->SetHangs(c, true);
  WEFT_EXPECT_OK(Fill(c, Floats(1), 1, 1));
  WEFT_EXPECT_OK(runtime_->RecordEvent(event, c));
  EXPECT_EQ(Read(memory, 4, b), All(4, 5));
  EXPECT_THAT(runtime_->Query(event), IsOkAndHolds(false));
  EXPECT_THAT(runtime_->Synchronize(event, absl::InfiniteDuration()),
              StatusIs(kDeadline));
  runtime_->SetHangs(c, false);
  WEFT_EXPECT_OK(runtime_->Synchronize(event, kLong));
}

TEST_P(Devices, RecordingTwiceMovesThePoint) {
  const Stream a = NewStream(), b = NewStream();
  float* memory = Floats(4);
  Event event = NewEvent();
  WEFT_EXPECT_OK(Fill(a, memory, 1, 4));
  WEFT_EXPECT_OK(runtime_->RecordEvent(event, a));
  WEFT_EXPECT_OK(Fill(a, memory, 2, 4));
  WEFT_EXPECT_OK(runtime_->RecordEvent(event, a));
  WEFT_EXPECT_OK(runtime_->StreamWaitEvent(b, event));
  EXPECT_EQ(Read(memory, 4, b), All(4, 2));
}

TEST_P(Devices, EventMayEndWhileWorkWaitsForIt) {
  const Stream a = NewStream(), b = NewStream();
  float* memory = Floats(4);
  WEFT_EXPECT_OK(Fill(a, memory, 9, 4));
  {
    Event event = NewEvent();
    WEFT_EXPECT_OK(runtime_->RecordEvent(event, a));
    WEFT_EXPECT_OK(runtime_->StreamWaitEvent(b, event));
  }
  // Others take the place of the one that ended.
  for (int i = 0; i < 5; ++i) {
    Event other = NewEvent();
    EXPECT_THAT(runtime_->Query(other), IsOkAndHolds(true)) << i;
  }
  EXPECT_EQ(Read(memory, 4, b), All(4, 9));
}

TEST_P(Devices, MovedEventIsTheSameAndTheOldOneNamesNone) {
  const Stream stream = NewStream();
  runtime_->SetHangs(stream, true);
  WEFT_EXPECT_OK(Fill(stream, Floats(1), 1, 1));
  Event event = NewEvent();
  WEFT_EXPECT_OK(runtime_->RecordEvent(event, stream));
  Event moved = std::move(event);
  EXPECT_FALSE(event.is_valid());  // NOLINT: what a clumsy user asks
  EXPECT_THAT(runtime_->Query(event), StatusIs(kInvalid));
  EXPECT_THAT(runtime_->Query(moved), IsOkAndHolds(false));
  Event other = NewEvent();
  other = std::move(moved);
  EXPECT_THAT(runtime_->Query(other), IsOkAndHolds(false));
  Event& self = other;
  other = std::move(self);
  if (other.is_valid()) {
    EXPECT_THAT(runtime_->Query(other), IsOkAndHolds(false));
  }
  other = Event();
  EXPECT_FALSE(other.is_valid());
  runtime_->SetHangs(stream, false);
}

TEST_P(Devices, TenThousandEventsComeAndGo) {
  const Stream stream = NewStream();
  std::vector<Event> kept;
  for (int i = 0; i < 10000; ++i) {
    Event event = NewEvent(Device::Simulated(i % 2));
    if (i % 2 == 0) {
      WEFT_ASSERT_OK(runtime_->RecordEvent(event, stream));
    }
    if (i % 7 == 0) kept.push_back(std::move(event));
  }
  for (const Event& event : kept) {
    WEFT_EXPECT_OK(runtime_->Synchronize(event, kLong));
  }
}

}  // namespace
}  // namespace weft::outside
