// What runtime.h and simulated/runtime.h say, at the edges: devices, streams,
// events, addresses and sizes that are none, waits that cannot end, and devices
// that fail.

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::device::Device;
using ::weft::device::DeviceMemory;
using ::weft::device::Event;
using ::weft::device::Location;
using ::weft::device::MemoryUse;
using ::weft::device::Runtime;
using ::weft::device::SimulatedRuntime;
using ::weft::device::Stream;
using ::weft::device::testing::Add;
using ::weft::device::testing::Fill;
using ::weft::device::testing::MakeSimulated;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kExhausted = absl::StatusCode::kResourceExhausted;
constexpr absl::StatusCode kDeadline = absl::StatusCode::kDeadlineExceeded;
constexpr absl::StatusCode kUnavailable = absl::StatusCode::kUnavailable;
constexpr absl::StatusCode kInternal = absl::StatusCode::kInternal;
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr absl::Duration kLong = absl::Seconds(30);
constexpr int kSeeds = 4;

const Device kZero = Device::Simulated(0);
const Device kOne = Device::Simulated(1);

// Two devices, and what tests want of them.
class Devices : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { runtime_ = MakeSimulated(GetParam(), 2); }

  Stream NewStream(Device device = kZero) {
    auto made = runtime_->CreateStream(device);
    EXPECT_THAT(made, IsOk());
    return *made;
  }
  Event NewEvent(Device device = kZero) {
    auto made = runtime_->CreateEvent(device);
    EXPECT_THAT(made, IsOk());
    return *std::move(made);
  }
  float* Floats(int64_t n, Device device = kZero) {
    auto made = runtime_->Allocate(device, n * 4);
    EXPECT_THAT(made, IsOk());
    return static_cast<float*>(*made);
  }
  float* Pinned(int64_t n) {
    auto made = runtime_->AllocatePinned(n * 4);
    EXPECT_THAT(made, IsOk());
    return static_cast<float*>(*made);
  }
  std::vector<float> Read(const float* from, int64_t n, Stream stream) {
    std::vector<float> found(n, -7);
    EXPECT_THAT(runtime_->CopyAsync(found.data(), from, n * 4, stream), IsOk());
    return found;
  }

  std::unique_ptr<SimulatedRuntime> runtime_;
};
INSTANTIATE_TEST_SUITE_P(Seeds, Devices, ::testing::Range(0, kSeeds));

std::vector<float> All(int64_t n, float value) {
  return std::vector<float>(n, value);
}

// --- Options. ----------------------------------------------------------------

SimulatedRuntime::Options With(
    const std::function<void(SimulatedRuntime::Options&)>& set) {
  SimulatedRuntime::Options options;
  set(options);
  return options;
}

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

// --- Memory. -----------------------------------------------------------------

TEST_P(Devices, SizesThatAreNoneAreRefused) {
  for (const int64_t bytes :
       {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_THAT(runtime_->Allocate(kZero, bytes), StatusIs(kInvalid)) << bytes;
    EXPECT_THAT(runtime_->AllocatePinned(bytes), StatusIs(kInvalid)) << bytes;
  }
}

TEST_P(Devices, MoreThanThereIsIsExhaustedAndChangesNothing) {
  WEFT_ASSERT_OK_AND_ASSIGN(const MemoryUse before,
                            runtime_->GetMemoryUse(kZero));
  for (const int64_t bytes :
       {before.total_bytes + 1, int64_t{1} << 40, int64_t{1} << 62, kHuge,
        kHuge - 1, kHuge - 4095, kHuge - 4096}) {
    EXPECT_THAT(runtime_->Allocate(kZero, bytes), StatusIs(kExhausted))
        << bytes;
  }
  EXPECT_THAT(runtime_->AllocatePinned(kHuge), StatusIs(kExhausted));
  WEFT_ASSERT_OK_AND_ASSIGN(const MemoryUse after,
                            runtime_->GetMemoryUse(kZero));
  EXPECT_EQ(after.free_bytes, before.free_bytes);
  WEFT_EXPECT_OK(runtime_->Health(kZero));
}

TEST_P(Devices, AllMemoryCanBeTakenGivenBackAndTakenAgain) {
  WEFT_ASSERT_OK_AND_ASSIGN(const MemoryUse use, runtime_->GetMemoryUse(kZero));
  EXPECT_EQ(use.free_bytes, use.total_bytes);
  for (int round = 0; round < 3; ++round) {
    WEFT_ASSERT_OK_AND_ASSIGN(void* all,
                              runtime_->Allocate(kZero, use.total_bytes));
    EXPECT_THAT(runtime_->Allocate(kZero, 1), StatusIs(kExhausted));
    WEFT_ASSERT_OK_AND_ASSIGN(const MemoryUse full,
                              runtime_->GetMemoryUse(kZero));
    EXPECT_EQ(full.free_bytes, 0);
    EXPECT_THAT(runtime_->Allocate(kOne, 64), IsOk());  // another device
    WEFT_ASSERT_OK(runtime_->Free(kZero, all));
  }
  WEFT_ASSERT_OK_AND_ASSIGN(const MemoryUse after,
                            runtime_->GetMemoryUse(kZero));
  EXPECT_EQ(after.free_bytes, use.free_bytes);
}

TEST_P(Devices, MemoryIsAlignedAndDoesNotOverlap) {
  std::vector<std::pair<char*, int64_t>> blocks;
  for (const int64_t bytes : {1, 255, 256, 257, 4095, 4096, 4097, 100000}) {
    WEFT_ASSERT_OK_AND_ASSIGN(void* memory, runtime_->Allocate(kZero, bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u) << bytes;
    for (const auto& [begin, size] : blocks) {
      EXPECT_TRUE(static_cast<char*>(memory) >= begin + size ||
                  static_cast<char*>(memory) + bytes <= begin);
    }
    blocks.emplace_back(static_cast<char*>(memory), bytes);
  }
}

TEST_P(Devices, AddressesThatAllocateDidNotGiveAreNotFreed) {
  float* memory = Floats(1024);
  float* pinned = Pinned(1024);
  float host[4];
  for (void* wrong :
       {static_cast<void*>(nullptr), static_cast<void*>(host),
        static_cast<void*>(memory + 1), static_cast<void*>(memory + 64),
        static_cast<void*>(memory + 1024), static_cast<void*>(pinned)}) {
    EXPECT_THAT(runtime_->Free(kZero, wrong), StatusIs(kInvalid)) << wrong;
  }
  EXPECT_THAT(runtime_->Free(kOne, memory), StatusIs(kInvalid));
  for (void* wrong :
       {static_cast<void*>(nullptr), static_cast<void*>(host),
        static_cast<void*>(memory), static_cast<void*>(pinned + 1)}) {
    EXPECT_THAT(runtime_->FreePinned(wrong), StatusIs(kInvalid)) << wrong;
  }
  WEFT_EXPECT_OK(runtime_->Free(kZero, memory));
  EXPECT_THAT(runtime_->Free(kZero, memory), StatusIs(kInvalid));
  WEFT_EXPECT_OK(runtime_->FreePinned(pinned));
  EXPECT_THAT(runtime_->FreePinned(pinned), StatusIs(kInvalid));
  WEFT_EXPECT_OK(runtime_->Health(kZero));
}

TEST_P(Devices, LocateKnowsEachPlace) {
  float* memory = Floats(1024, kOne);
  float* pinned = Pinned(1024);
  float host[4];
  const auto place = [&](const void* address) {
    auto found = runtime_->Locate(address);
    EXPECT_THAT(found, IsOk());
    return found.ok() ? *found : Location();
  };
  EXPECT_EQ(place(host).place, Location::Place::kPageable);
  EXPECT_EQ(place(nullptr).place, Location::Place::kPageable);
  EXPECT_EQ(place(pinned).place, Location::Place::kPinned);
  EXPECT_EQ(place(pinned + 1023).place, Location::Place::kPinned);
  EXPECT_EQ(place(memory).place, Location::Place::kDevice);
  EXPECT_EQ(place(memory).device, kOne);
  EXPECT_EQ(place(memory + 1023).device, kOne);
  WEFT_EXPECT_OK(runtime_->FreePinned(pinned));
  EXPECT_EQ(place(pinned).place, Location::Place::kPageable);
}

TEST_P(Devices, HostThatTouchesDeviceMemoryIsEnded) {
  if (GetParam() != 0) GTEST_SKIP() << "one seed is enough";
  float* memory = Floats(4);
  EXPECT_DEATH(std::printf("%f", static_cast<double>(
                                     *const_cast<volatile float*>(memory))),
               "");
}

TEST_P(Devices, MemoryThatNobodyWroteIsNan) {
  const Stream stream = NewStream();
  for (int round = 0; round < 3; ++round) {
    float* memory = Floats(100);
    for (const float x : Read(memory, 100, stream)) EXPECT_TRUE(std::isnan(x));
    WEFT_EXPECT_OK(Fill(stream, memory, 1, 100));
    WEFT_EXPECT_OK(runtime_->Synchronize(stream, kLong));
    WEFT_EXPECT_OK(runtime_->Free(kZero, memory));
  }
}

// --- Copies. -----------------------------------------------------------------

TEST_P(Devices, CopiesAndSetsOfNoBytesDoNothing) {
  const Stream stream = NewStream();
  float* memory = Floats(4);
  float host[4] = {1, 2, 3, 4};
  WEFT_EXPECT_OK(Fill(stream, memory, 8, 4));
  WEFT_EXPECT_OK(runtime_->CopyAsync(memory, host, 0, stream));
  WEFT_EXPECT_OK(runtime_->CopyAsync(host, memory, 0, stream));
  WEFT_EXPECT_OK(runtime_->MemsetAsync(memory, 0, 0, stream));
  EXPECT_EQ(Read(memory, 4, stream), All(4, 8));
  EXPECT_EQ(host[0], 1);
}

TEST_P(Devices, NegativeSizesOfCopiesAndSetsAreRefused) {
  const Stream stream = NewStream();
  float* memory = Floats(4);
  float host[4] = {1, 2, 3, 4};
  for (const int64_t bytes :
       {int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_THAT(runtime_->CopyAsync(memory, host, bytes, stream),
                StatusIs(kInvalid));
    EXPECT_THAT(runtime_->CopyAsync(host, memory, bytes, stream),
                StatusIs(kInvalid));
    EXPECT_THAT(runtime_->MemsetAsync(memory, 0, bytes, stream),
                StatusIs(kInvalid));
  }
  WEFT_EXPECT_OK(runtime_->Synchronize(stream, kLong));
  WEFT_EXPECT_OK(runtime_->Health(kZero));
}

TEST_P(Devices, CopiesBetweenHostAddressesAreRefused) {
  const Stream stream = NewStream();
  float a[4] = {1, 2, 3, 4}, b[4] = {};
  float* pinned = Pinned(4);
  EXPECT_THAT(runtime_->CopyAsync(a, b, 16, stream), StatusIs(kInvalid));
  EXPECT_THAT(runtime_->CopyAsync(pinned, b, 16, stream), StatusIs(kInvalid));
  EXPECT_THAT(runtime_->CopyAsync(pinned, Pinned(4), 16, stream),
              StatusIs(kInvalid));
  WEFT_EXPECT_OK(runtime_->Health(kZero));
}

TEST_P(Devices, SetsOfHostMemoryAreRefused) {
  const Stream stream = NewStream();
  float host[4] = {1, 2, 3, 4};
  EXPECT_THAT(runtime_->MemsetAsync(host, 0, 16, stream), StatusIs(kInvalid));
  EXPECT_THAT(runtime_->MemsetAsync(Pinned(4), 0, 16, stream),
              StatusIs(kInvalid));
  EXPECT_THAT(runtime_->MemsetAsync(nullptr, 0, 16, stream),
              StatusIs(kInvalid));
  EXPECT_EQ(host[0], 1);
}

// Beyond the end: refused at once, or found when it runs; never written.
TEST_P(Devices, CopiesAndSetsBeyondTheEndAreFound) {
  const std::vector<std::function<absl::Status(float*, float*, float*, Stream)>>
      wrong = {
          [&](float* m, float*, float* h, Stream s) {
            return runtime_->CopyAsync(m, h, 4100, s);
          },
          [&](float* m, float*, float* h, Stream s) {
            return runtime_->CopyAsync(h, m, 4100, s);
          },
          [&](float* m, float*, float* h, Stream s) {
            return runtime_->CopyAsync(m + 1023, h, 8, s);
          },
          [&](float* m, float* p, float*, Stream s) {
            return runtime_->CopyAsync(m, p, 4096 + 4, s);
          },
          [&](float* m, float*, float*, Stream s) {
            return runtime_->MemsetAsync(m, 0, 4100, s);
          },
          [&](float* m, float*, float*, Stream s) {
            return runtime_->MemsetAsync(m, 0, kHuge, s);
          },
          [&](float* m, float*, float* h, Stream s) {
            return runtime_->CopyAsync(h, m, kHuge, s);
          },
      };
  for (size_t i = 0; i < wrong.size(); ++i) {
    runtime_ = MakeSimulated(GetParam(), 2);
    const Stream stream = NewStream();
    float* memory = Floats(1024);
    float* pinned = Pinned(1024);
    std::vector<float> host(2048, 5);
    absl::Status status = wrong[i](memory, pinned, host.data(), stream);
    if (status.ok()) status = runtime_->Synchronize(stream, kLong);
    EXPECT_THAT(status, AnyOf(StatusIs(kInvalid), StatusIs(kInternal))) << i;
    WEFT_EXPECT_OK(runtime_->Health(kOne));
  }
}

TEST_P(Devices, PageableSourceMayChangeOnceTheCopyReturned) {
  const Stream stream = NewStream();
  float* memory = Floats(1024);
  std::vector<float> host(1024, 3);
  WEFT_EXPECT_OK(runtime_->CopyAsync(memory, host.data(), 4096, stream));
  std::fill(host.begin(), host.end(), 4);
  host.clear();
  host.shrink_to_fit();
  EXPECT_EQ(Read(memory, 1024, stream), All(1024, 3));
}

TEST_P(Devices, CopyToPageableMemoryBehindAHangIsLateAndCopiesNothing) {
  auto made = SimulatedRuntime::Create(With([](auto& o) {
    o.pageable_copy_timeout = absl::Milliseconds(50);
    o.seed = 3;
  }));
  ASSERT_THAT(made, IsOk());
  WEFT_ASSERT_OK_AND_ASSIGN(Stream stream, (*made)->CreateStream(kZero));
  WEFT_ASSERT_OK_AND_ASSIGN(void* memory, (*made)->Allocate(kZero, 16));
  WEFT_EXPECT_OK(Fill(stream, static_cast<float*>(memory), 6, 4));
  WEFT_ASSERT_OK((*made)->Synchronize(stream, kLong));
  (*made)->SetHangs(stream, true);
  WEFT_EXPECT_OK(Fill(stream, static_cast<float*>(memory), 7, 4));
  std::vector<float> found(4, -7);
  EXPECT_THAT((*made)->CopyAsync(found.data(), memory, 16, stream),
              StatusIs(kDeadline));
  EXPECT_EQ(found, All(4, -7));
  (*made)->SetHangs(stream, false);
  WEFT_EXPECT_OK((*made)->Synchronize(stream, kLong));
  EXPECT_EQ(found, All(4, -7));  // nothing comes late
  WEFT_EXPECT_OK((*made)->CopyAsync(found.data(), memory, 16, stream));
  EXPECT_EQ(found, All(4, 7));
}

TEST_P(Devices, CopiesBetweenDevicesArrive) {
  const Stream stream = NewStream(kZero);
  float* here = Floats(64, kZero);
  float* there = Floats(64, kOne);
  WEFT_EXPECT_OK(Fill(stream, here, 4, 64));
  WEFT_EXPECT_OK(runtime_->CopyAsync(there, here, 256, stream));
  Event event = NewEvent(kZero);
  WEFT_EXPECT_OK(runtime_->RecordEvent(event, stream));
  const Stream other = NewStream(kOne);
  WEFT_EXPECT_OK(runtime_->StreamWaitEvent(other, event));
  EXPECT_EQ(Read(there, 64, other), All(64, 4));
}

TEST_P(Devices, CopyOfAMemoryOntoItselfOrOverlappingDoesNotCrash) {
  const Stream stream = NewStream();
  float* memory = Floats(64);
  WEFT_EXPECT_OK(Fill(stream, memory, 4, 64));
  (void)runtime_->CopyAsync(memory, memory, 256, stream);
  (void)runtime_->CopyAsync(memory + 1, memory, 252, stream);
  (void)runtime_->Synchronize(stream, kLong);
}

TEST_P(Devices, CopiesAtOddOffsetsAndSizesAreOfThoseBytesOnly) {
  const Stream stream = NewStream();
  WEFT_ASSERT_OK_AND_ASSIGN(void* memory, runtime_->Allocate(kZero, 1000));
  char* bytes = static_cast<char*>(memory);
  WEFT_EXPECT_OK(runtime_->MemsetAsync(bytes, 'a', 1000, stream));
  WEFT_EXPECT_OK(runtime_->MemsetAsync(bytes + 3, 'b', 7, stream));
  WEFT_EXPECT_OK(runtime_->CopyAsync(bytes + 991, "xyz", 3, stream));
  WEFT_EXPECT_OK(runtime_->CopyAsync(bytes + 500, bytes + 1, 11, stream));
  std::string wanted(1000, 'a');
  wanted.replace(3, 7, "bbbbbbb");
  wanted.replace(991, 3, "xyz");
  wanted.replace(500, 11, "aabbbbbbbaa");
  std::string found(1000, '?');
  WEFT_EXPECT_OK(runtime_->CopyAsync(&found[0], bytes, 1000, stream));
  EXPECT_EQ(found, wanted);
}

TEST_P(Devices, MemoryThatWasFreedIsNoPlaceForACopy) {
  const Stream stream = NewStream();
  float* memory = Floats(64);
  WEFT_EXPECT_OK(runtime_->Free(kZero, memory));
  std::vector<float> host(64, 1);
  absl::Status status = runtime_->CopyAsync(memory, host.data(), 256, stream);
  if (status.ok()) status = runtime_->Synchronize(stream, kLong);
  EXPECT_THAT(status, AnyOf(StatusIs(kInvalid), StatusIs(kInternal)));
}

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
