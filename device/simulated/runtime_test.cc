// What is of the simulated Runtime alone: faults, seeds, several at once. The
// suite of all Runtimes is device/runtime_test.cc.

#include "weft/device/simulated/runtime.h"

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "weft/device/testing/instance.h"
#include "weft/device/testing/kernels.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::device {
namespace {

using testing::Add;
using ::testing::ElementsAre;
using testing::Fill;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::MakeSimulated;
using weft::testing::IsOk;
using weft::testing::StatusIs;

constexpr Device kDevice = Device::Simulated(0);
constexpr Device kOther = Device::Simulated(1);

float* NewFloats(SimulatedRuntime& runtime, Device device, int64_t elements) {
  return static_cast<float*>(
      *runtime.Allocate(device, elements * sizeof(float)));
}

// A program of three streams; what ran, in order.
std::vector<std::string> TraceOf(uint64_t seed) {
  const auto runtime = MakeSimulated(seed);
  std::vector<Stream> streams;
  std::vector<float*> blocks;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(*runtime->CreateStream(kDevice));
    blocks.push_back(NewFloats(*runtime, kDevice, 10));
  }
  for (int i = 0; i < 30; ++i) {
    WEFT_EXPECT_OK(Fill(streams[i % 3], blocks[i % 3], 1.0f, 10));
  }
  WEFT_EXPECT_OK(runtime->Synchronize(kDevice, kPatience));
  EXPECT_EQ(runtime->pending_tasks(), 0);
  return runtime->trace();
}

TEST(SimulatedRuntime, RunsTheSameTasksInTheSameOrderForASeed) {
  EXPECT_EQ(TraceOf(3), TraceOf(3));
  EXPECT_EQ(TraceOf(3).size(), 30u);
  bool differs = false;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    differs = differs || TraceOf(seed) != TraceOf(3);
  }
  EXPECT_TRUE(differs);
}

TEST(SimulatedRuntime, NamesWhatRan) {
  const auto runtime = MakeSimulated(0);
  const Stream stream = *runtime->CreateStream(kDevice);
  float* const x = NewFloats(*runtime, kDevice, 1);
  WEFT_ASSERT_OK(runtime->MemsetAsync(x, 0, 4, stream));
  WEFT_ASSERT_OK(Fill(stream, x, 1.0f, 1));
  WEFT_ASSERT_OK(runtime->Synchronize(stream, kPatience));
  EXPECT_THAT(runtime->trace(),
              ElementsAre("MemsetAsync(4 bytes) on stream 0 of simulated:0",
                          "Fill on stream 0 of simulated:0"));
}

TEST(SimulatedRuntime, LetsOnlySoManyTasksWait) {
  SimulatedRuntime::Options options;
  options.max_pending_tasks = 4;
  for (options.seed = 0; options.seed < 20; ++options.seed) {
    const auto runtime = *SimulatedRuntime::Create(options);
    const Stream stream = *runtime->CreateStream(kDevice);
    float* const x = NewFloats(*runtime, kDevice, 1);
    for (int i = 0; i < 20; ++i) {
      WEFT_ASSERT_OK(Fill(stream, x, 1.0f, 1));
      EXPECT_LE(runtime->pending_tasks(), 4);
    }
  }
}

TEST(SimulatedRuntime, EndsWithTasksThatHaveNotRun) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto runtime = MakeSimulated(seed);
    const Stream stream = *runtime->CreateStream(kDevice);
    float* const x = NewFloats(*runtime, kDevice, 1);
    WEFT_ASSERT_OK(Fill(stream, x, 1.0f, 1));
  }
}

TEST(SimulatedRuntime, IsOneOfSeveral) {
  const auto a = MakeSimulated(1);
  const auto b = MakeSimulated(2);
  const Stream on_a = *a->DefaultStream(kDevice);
  const Stream on_b = *b->DefaultStream(kDevice);
  EXPECT_NE(on_a, on_b);
  float* const x = NewFloats(*a, kDevice, 1);
  WEFT_ASSERT_OK_AND_ASSIGN(const Location location, b->Locate(x));
  EXPECT_EQ(location.place, Location::Place::kPageable);
  EXPECT_THAT(b->MemsetAsync(x, 0, 4, on_b),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(b->Synchronize(on_a, kPatience),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(SimulatedRuntime, CopiesBetweenItsDevices) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto runtime = MakeSimulated(seed, 2);
    const Stream first = *runtime->CreateStream(kDevice);
    const Stream second = *runtime->CreateStream(kOther);
    float* const x = NewFloats(*runtime, kDevice, 10);
    float* const y = NewFloats(*runtime, kOther, 10);
    Event event = *runtime->CreateEvent(kDevice);
    WEFT_ASSERT_OK(Fill(first, x, 5.0f, 10));
    WEFT_ASSERT_OK(runtime->RecordEvent(event, first));
    EXPECT_THAT(runtime->RecordEvent(event, second),
                StatusIs(absl::StatusCode::kInvalidArgument, "simulated:1"));
    WEFT_ASSERT_OK(runtime->StreamWaitEvent(second, event));
    WEFT_ASSERT_OK(runtime->CopyAsync(y, x, 40, second));
    float found = 0;
    WEFT_ASSERT_OK(runtime->CopyAsync(&found, y + 9, 4, second));
    EXPECT_EQ(found, 5.0f);
  }
}

TEST(SimulatedRuntime, RunsOutOfMemoryAndSaysHowMuchThereIs) {
  SimulatedRuntime::Options options;
  options.memory_bytes = 1 << 20;
  const auto runtime = *SimulatedRuntime::Create(options);
  WEFT_ASSERT_OK_AND_ASSIGN(void* const half,
                            runtime->Allocate(kDevice, 600 << 10));
  EXPECT_THAT(runtime->Allocate(kDevice, 600 << 10),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "simulated:0: Allocate(614400 bytes): out of memory"));
  WEFT_ASSERT_OK(runtime->Free(kDevice, half));
  WEFT_EXPECT_OK(runtime->Allocate(kDevice, 1 << 20));
  WEFT_ASSERT_OK_AND_ASSIGN(const MemoryUse use,
                            runtime->GetMemoryUse(kDevice));
  EXPECT_EQ(use.free_bytes, 0);
}

TEST(SimulatedRuntime, FailsAllocationsAsOftenAsAsked) {
  const auto runtime = MakeSimulated(0);
  runtime->FailAllocations(kDevice, 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(runtime->Allocate(kDevice, 1),
                StatusIs(absl::StatusCode::kResourceExhausted));
  }
  WEFT_EXPECT_OK(runtime->Allocate(kDevice, 1));
}

// All calls that name the device.
std::vector<absl::Status> CallEach(SimulatedRuntime& runtime, Stream stream,
                                   Event& event, void* memory) {
  return {runtime.GetProperties(stream.device()).status(),
          runtime.GetMemoryUse(stream.device()).status(),
          runtime.Health(stream.device()),
          runtime.Allocate(stream.device(), 1).status(),
          runtime.CreateStream(stream.device(), Runtime::Priority::kNormal)
              .status(),
          runtime.DefaultStream(stream.device()).status(),
          runtime.CreateEvent(stream.device()).status(),
          runtime.RecordEvent(event, stream),
          runtime.StreamWaitEvent(stream, event),
          runtime.Query(stream).status(),
          runtime.Query(event).status(),
          runtime.Synchronize(stream, kPatience),
          runtime.Synchronize(event, kPatience),
          runtime.Synchronize(stream.device(), kPatience),
          runtime.CopyAsync(memory, memory, 1, stream),
          runtime.MemsetAsync(memory, 0, 1, stream),
          Fill(stream, static_cast<float*>(memory), 0.0f, 1),
          runtime.Free(stream.device(), memory)};
}

TEST(SimulatedRuntime, NamesTheFirstKernelThatFailedInEachLaterCall) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto runtime = MakeSimulated(seed, 2);
    const Stream stream = *runtime->CreateStream(kDevice);
    Event event = *runtime->CreateEvent(kDevice);
    float* const x = NewFloats(*runtime, kDevice, 1);
    runtime->FailKernel(kDevice, "Add");
    WEFT_ASSERT_OK(Fill(stream, x, 1.0f, 1));
    (void)Add(stream, x, x, 1);
    (void)testing::Trap(stream);
    EXPECT_THAT(runtime->Synchronize(stream, kPatience),
                StatusIs(absl::StatusCode::kInternal,
                         "Add on stream 0 of simulated:0: launch failure"));
    for (const absl::Status& status : CallEach(*runtime, stream, event, x)) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                                   "the device failed before: Add on stream"));
    }
    // The other device goes on.
    const Stream other = *runtime->CreateStream(kOther);
    float* const y = NewFloats(*runtime, kOther, 1);
    WEFT_EXPECT_OK(Fill(other, y, 1.0f, 1));
    WEFT_EXPECT_OK(runtime->Synchronize(other, kPatience));
  }
}

TEST(SimulatedRuntime, IsUnavailableOnceADeviceIsLost) {
  const auto runtime = MakeSimulated(0, 2);
  const Stream stream = *runtime->CreateStream(kDevice);
  const Stream other = *runtime->CreateStream(kOther);
  Event event = *runtime->CreateEvent(kDevice);
  float* const x = NewFloats(*runtime, kDevice, 1);
  float* const y = NewFloats(*runtime, kOther, 1);
  runtime->SetHangs(stream, true);
  WEFT_ASSERT_OK(Fill(stream, x, 1.0f, 1));
  WEFT_ASSERT_OK(runtime->RecordEvent(event, stream));
  WEFT_ASSERT_OK(runtime->StreamWaitEvent(other, event));
  WEFT_ASSERT_OK(Fill(other, y, 1.0f, 1));
  runtime->LoseDevice(kDevice);
  for (const absl::Status& status : CallEach(*runtime, stream, event, x)) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                 "simulated:0: the device is lost"));
  }
  // What waited for the lost device does not wait for ever.
  WEFT_EXPECT_OK(runtime->Synchronize(other, kPatience));
}

TEST(SimulatedRuntime, LetsAWaitForAHangingStreamEndAtOnce) {
  const auto runtime = MakeSimulated(0);
  const Stream hangs = *runtime->CreateStream(kDevice);
  const Stream waits = *runtime->CreateStream(kDevice);
  float* const x = NewFloats(*runtime, kDevice, 1);
  Event event = *runtime->CreateEvent(kDevice);
  runtime->SetHangs(hangs, true);
  WEFT_ASSERT_OK(Fill(hangs, x, 1.0f, 1));
  WEFT_ASSERT_OK(runtime->RecordEvent(event, hangs));
  WEFT_ASSERT_OK(runtime->StreamWaitEvent(waits, event));
  WEFT_ASSERT_OK(Fill(waits, x, 2.0f, 1));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(runtime->Synchronize(waits, absl::Hours(1)),
                StatusIs(absl::StatusCode::kDeadlineExceeded, "hangs"));
  }
  EXPECT_THAT(runtime->Query(event), weft::testing::IsOkAndHolds(false));
  runtime->SetHangs(hangs, false);
  WEFT_EXPECT_OK(runtime->Synchronize(waits, kPatience));
}

TEST(SimulatedRuntime, RefusesOptionsThatMakeNoSense) {
  SimulatedRuntime::Options options;
  options.devices = 0;
  EXPECT_THAT(SimulatedRuntime::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, "0 devices"));
}

TEST(SimulatedRuntime, SaysThatItHasNoNativeStreams) {
  const auto runtime = MakeSimulated(0);
  const Stream stream = *runtime->DefaultStream(kDevice);
  EXPECT_THAT(runtime->LaunchNative(stream, "Add",
                                    [](void*) { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, "Add"));
}

}  // namespace
}  // namespace weft::device
