// The suite of each Runtime: what device/runtime.h promises, on a simulated
// device under 20 seeds and, where there is one, on a GPU.

#include "weft/device/runtime.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "weft/device/current.h"
#include "weft/device/testing/instance.h"
#include "weft/device/testing/kernels.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::device {
namespace {

using testing::Add;
using testing::Fill;
using ::testing::HasSubstr;
using testing::kPatience;
using weft::testing::IsOk;
using weft::testing::IsOkAndHolds;
using weft::testing::StatusIs;

constexpr int64_t kElements = 1000;
constexpr int64_t kBytes = kElements * sizeof(float);

std::vector<float> Counted(int64_t elements) {
  std::vector<float> values(elements);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

class RuntimeTest : public testing::OnInstance {};

TEST_P(RuntimeTest, SaysWhatItsDevicesAre) {
  ASSERT_GE(runtime_->device_count(), 1);
  WEFT_ASSERT_OK_AND_ASSIGN(const Properties properties,
                            runtime_->GetProperties(device_));
  EXPECT_EQ(properties.device, device_);
  EXPECT_FALSE(properties.name.empty());
  EXPECT_GT(properties.memory_bytes, 0);
  EXPECT_GE(properties.multiprocessors, 1);
  WEFT_ASSERT_OK_AND_ASSIGN(const MemoryUse use,
                            runtime_->GetMemoryUse(device_));
  EXPECT_GT(use.free_bytes, 0);
  EXPECT_LE(use.free_bytes, use.total_bytes);
  WEFT_EXPECT_OK(runtime_->Health(device_));
}

TEST_P(RuntimeTest, CopiesPinnedMemoryThereAndBack) {
  const Stream stream = NewStream();
  float* const in = NewPinnedFloats(kElements);
  float* const out = NewPinnedFloats(kElements);
  float* const there = NewFloats(kElements);
  const std::vector<float> values = Counted(kElements);
  std::copy(values.begin(), values.end(), in);
  WEFT_ASSERT_OK(runtime_->CopyAsync(there, in, kBytes, stream));
  WEFT_ASSERT_OK(runtime_->CopyAsync(out, there, kBytes, stream));
  WEFT_ASSERT_OK(runtime_->Synchronize(stream, kPatience));
  EXPECT_EQ(std::vector<float>(out, out + kElements), values);
}

TEST_P(RuntimeTest, CopiesPageableMemoryThatChangesAfterwards) {
  const Stream stream = NewStream();
  // Both sides of the 64 KiB up to which CUDA has a way of its own.
  for (const int64_t elements : {int64_t{10}, int64_t{1} << 16}) {
    float* const there = NewFloats(elements);
    std::vector<float> values = Counted(elements);
    const std::vector<float> before = values;
    WEFT_ASSERT_OK(runtime_->CopyAsync(there, values.data(),
                                       elements * sizeof(float), stream));
    std::fill(values.begin(), values.end(), 0.0f);
    EXPECT_EQ(Read(there, elements, stream), before);
  }
}

TEST_P(RuntimeTest, CopiesWithinTheDevice) {
  const Stream stream = NewStream();
  float* const a = NewFloats(kElements);
  float* const b = NewFloats(kElements);
  WEFT_ASSERT_OK(Fill(stream, a, 3.0f, kElements));
  WEFT_ASSERT_OK(runtime_->CopyAsync(b, a, kBytes, stream));
  EXPECT_EQ(Read(b, kElements, stream), std::vector<float>(kElements, 3.0f));
}

TEST_P(RuntimeTest, SetsEachByte) {
  const Stream stream = NewStream();
  float* const a = NewFloats(kElements);
  WEFT_ASSERT_OK(Fill(stream, a, 3.0f, kElements));
  WEFT_ASSERT_OK(runtime_->MemsetAsync(a, 0, kBytes, stream));
  EXPECT_EQ(Read(a, kElements, stream), std::vector<float>(kElements, 0.0f));
}

TEST_P(RuntimeTest, LetsNothingBeDone) {
  const Stream stream = NewStream();
  float* const a = NewFloats(1);
  WEFT_EXPECT_OK(runtime_->CopyAsync(a, a, 0, stream));
  WEFT_EXPECT_OK(runtime_->MemsetAsync(a, 0, 0, stream));
  WEFT_EXPECT_OK(Fill(stream, a, 0.0f, 0));
  WEFT_EXPECT_OK(runtime_->Synchronize(stream, kPatience));
}

TEST_P(RuntimeTest, RunsKernelsInTheOrderOfTheirStream) {
  const Stream stream = NewStream();
  float* const a = NewFloats(kElements);
  float* const b = NewFloats(kElements);
  WEFT_ASSERT_OK(Fill(stream, a, 1.0f, kElements));
  WEFT_ASSERT_OK(Fill(stream, b, 0.0f, kElements));
  for (int i = 0; i < 10; ++i) {
    WEFT_ASSERT_OK(Add(stream, b, a, kElements));
    WEFT_ASSERT_OK(Add(stream, a, b, kElements));
  }
  // Fibonacci's numbers with even indices.
  EXPECT_EQ(Read(b, 1, stream)[0], 6765.0f);
}

TEST_P(RuntimeTest, OrdersTwoStreamsByAnEvent) {
  constexpr int64_t kMany = int64_t{1} << 18;
  const Stream a = NewStream();
  const Stream b = NewStream();
  float* const x = NewFloats(kMany);
  float* const y = NewFloats(kMany);
  Event written = NewEvent();
  Event read = NewEvent();
  WEFT_ASSERT_OK(Fill(b, y, 0.0f, kMany));
  for (int step = 1; step <= 5; ++step) {
    WEFT_ASSERT_OK(runtime_->StreamWaitEvent(a, read));
    WEFT_ASSERT_OK(Fill(a, x, static_cast<float>(step), kMany));
    WEFT_ASSERT_OK(runtime_->RecordEvent(written, a));
    WEFT_ASSERT_OK(runtime_->StreamWaitEvent(b, written));
    WEFT_ASSERT_OK(Add(b, y, x, kMany));
    WEFT_ASSERT_OK(runtime_->RecordEvent(read, b));
  }
  EXPECT_EQ(Read(y, kMany, b), std::vector<float>(kMany, 15.0f));
}

TEST_P(RuntimeTest, WaitsForTheRecordThatWasLastWhenAsked) {
  const Stream a = NewStream();
  const Stream b = NewStream();
  float* const x = NewFloats(kElements);
  float* const y = NewFloats(kElements);
  Event event = NewEvent();
  WEFT_ASSERT_OK(Fill(a, x, 1.0f, kElements));
  WEFT_ASSERT_OK(runtime_->RecordEvent(event, a));
  WEFT_ASSERT_OK(runtime_->StreamWaitEvent(b, event));
  // The second record, of b itself, must not make b wait for itself.
  WEFT_ASSERT_OK(runtime_->CopyAsync(y, x, kBytes, b));
  WEFT_ASSERT_OK(runtime_->RecordEvent(event, b));
  WEFT_ASSERT_OK(runtime_->Synchronize(event, kPatience));
  EXPECT_EQ(Read(y, kElements, b), std::vector<float>(kElements, 1.0f));
}

TEST_P(RuntimeTest, TakesAnEventThatWasNeverRecordedAsOver) {
  const Stream stream = NewStream();
  const Event event = NewEvent();
  EXPECT_THAT(runtime_->Query(event), IsOkAndHolds(true));
  WEFT_EXPECT_OK(runtime_->StreamWaitEvent(stream, event));
  WEFT_EXPECT_OK(runtime_->Synchronize(event, kPatience));
  WEFT_EXPECT_OK(runtime_->Synchronize(stream, kPatience));
}

TEST_P(RuntimeTest, KeepsWhatWaitsForAnEventThatIsGone) {
  const Stream a = NewStream();
  const Stream b = NewStream();
  float* const x = NewFloats(kElements);
  for (int i = 0; i < 50; ++i) {
    WEFT_ASSERT_OK(Fill(a, x, static_cast<float>(i), kElements));
    Event event = NewEvent();
    WEFT_ASSERT_OK(runtime_->RecordEvent(event, a));
    WEFT_ASSERT_OK(runtime_->StreamWaitEvent(b, event));
  }
  EXPECT_EQ(Read(x, 1, b)[0], 49.0f);
}

TEST_P(RuntimeTest, SaysByQueryWhenAllHasRun) {
  const Stream stream = NewStream();
  float* const x = NewFloats(kElements);
  EXPECT_THAT(runtime_->Query(stream), IsOkAndHolds(true));
  Event event = NewEvent();
  WEFT_ASSERT_OK(Fill(stream, x, 1.0f, kElements));
  WEFT_ASSERT_OK(runtime_->RecordEvent(event, stream));
  const absl::Time end = absl::Now() + kPatience;
  bool is_over = false;
  while (!is_over && absl::Now() < end) {
    WEFT_ASSERT_OK_AND_ASSIGN(is_over, runtime_->Query(event));
  }
  EXPECT_TRUE(is_over);
  EXPECT_THAT(runtime_->Query(stream), IsOkAndHolds(true));
}

TEST_P(RuntimeTest, WaitsForAllStreamsOfTheDevice) {
  std::vector<Stream> streams;
  std::vector<float*> outs;
  for (int i = 0; i < 5; ++i) {
    streams.push_back(NewStream());
    float* const x = NewFloats(kElements);
    outs.push_back(NewPinnedFloats(kElements));
    WEFT_ASSERT_OK(Fill(streams[i], x, static_cast<float>(i), kElements));
    WEFT_ASSERT_OK(runtime_->CopyAsync(outs[i], x, kBytes, streams[i]));
  }
  WEFT_ASSERT_OK(runtime_->Synchronize(device_, kPatience));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(outs[i][kElements - 1], i);
}

TEST_P(RuntimeTest, EndsAWaitAtItsDeadline) {
  const Stream stream = NewStream();
  if (auto* simulated = dynamic_cast<SimulatedRuntime*>(runtime_.get())) {
    float* const x = NewFloats(1);
    simulated->SetHangs(stream, true);
    WEFT_ASSERT_OK(Fill(stream, x, 0.0f, 1));
    EXPECT_THAT(runtime_->Synchronize(stream, absl::Milliseconds(20)),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         "Synchronize(stream 0 of simulated:0)"));
    simulated->SetHangs(stream, false);
  } else {
    WEFT_ASSERT_OK(testing::Spin(stream, absl::Milliseconds(500)));
    EXPECT_THAT(
        runtime_->Synchronize(stream, absl::Milliseconds(20)),
        StatusIs(absl::StatusCode::kDeadlineExceeded, "Synchronize(stream "));
    EXPECT_THAT(runtime_->Synchronize(device_, absl::Milliseconds(20)),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  WEFT_EXPECT_OK(runtime_->Synchronize(stream, kPatience));
}

TEST_P(RuntimeTest, RefusesMoreMemoryThanThereIsAndGoesOn) {
  const int64_t bytes = int64_t{1} << 46;
  const auto memory = runtime_->Allocate(device_, bytes);
  EXPECT_THAT(memory, StatusIs(absl::StatusCode::kResourceExhausted,
                               "Allocate(70368744177664 bytes)"));
  EXPECT_THAT(std::string(memory.status().message()), HasSubstr(Name(device_)));
  const Stream stream = NewStream();
  float* const x = NewFloats(kElements);
  WEFT_ASSERT_OK(Fill(stream, x, 2.0f, kElements));
  EXPECT_EQ(Read(x, 1, stream)[0], 2.0f);
}

TEST_P(RuntimeTest, RefusesWhatMakesNoSense) {
  const auto code = absl::StatusCode::kInvalidArgument;
  const Stream stream = NewStream();
  float* const x = NewFloats(kElements);
  float y = 0;
  const Device other = {device_.kind, 999};
  EXPECT_THAT(runtime_->Allocate(other, 1), StatusIs(code, Name(other)));
  EXPECT_THAT(runtime_->Allocate(Device::Cpu(), 1), StatusIs(code, "cpu"));
  EXPECT_THAT(runtime_->Allocate(device_, 0), StatusIs(code, "at least 1"));
  EXPECT_THAT(runtime_->AllocatePinned(-1), StatusIs(code, "at least 1"));
  EXPECT_THAT(runtime_->GetProperties(other), StatusIs(code));
  EXPECT_THAT(runtime_->CreateStream(other), StatusIs(code));
  EXPECT_THAT(runtime_->CopyAsync(x, &y, -1, stream), StatusIs(code));
  EXPECT_THAT(runtime_->CopyAsync(&y, &y, 4, stream),
              StatusIs(code, "neither address is device memory"));
  EXPECT_THAT(runtime_->CopyAsync(x, x, 4, Stream()), StatusIs(code));
  EXPECT_THAT(runtime_->MemsetAsync(&y, 0, 4, stream), StatusIs(code));
  EXPECT_THAT(Fill(Stream(), x, 0.0f, 1), StatusIs(code, "names none"));
  Event none;
  EXPECT_THAT(runtime_->RecordEvent(none, stream), StatusIs(code));
  EXPECT_THAT(runtime_->Query(none), StatusIs(code));
  const auto simulated = testing::MakeSimulated(0);
  const Stream foreign = *simulated->DefaultStream(Device::Simulated(0));
  EXPECT_THAT(runtime_->Synchronize(foreign, kPatience),
              StatusIs(code, "not of this Runtime"));
  // None of it broke the device.
  WEFT_EXPECT_OK(Fill(stream, x, 0.0f, 1));
  WEFT_EXPECT_OK(runtime_->Synchronize(stream, kPatience));
}

TEST_P(RuntimeTest, SaysWhereAnAddressLies) {
  float* const there = NewFloats(kElements);
  float* const pinned = NewPinnedFloats(kElements);
  float here = 0;
  WEFT_ASSERT_OK_AND_ASSIGN(Location location, runtime_->Locate(there + 7));
  EXPECT_EQ(location.place, Location::Place::kDevice);
  EXPECT_EQ(location.device, device_);
  WEFT_ASSERT_OK_AND_ASSIGN(location, runtime_->Locate(pinned + 7));
  EXPECT_EQ(location.place, Location::Place::kPinned);
  WEFT_ASSERT_OK_AND_ASSIGN(location, runtime_->Locate(&here));
  EXPECT_EQ(location.place, Location::Place::kPageable);
}

TEST_P(RuntimeTest, HasOneDefaultStreamForADevice) {
  WEFT_ASSERT_OK_AND_ASSIGN(const Stream a, runtime_->DefaultStream(device_));
  WEFT_ASSERT_OK_AND_ASSIGN(const Stream b, runtime_->DefaultStream(device_));
  EXPECT_EQ(a, b);
  EXPECT_NE(a, NewStream());
  EXPECT_EQ(a.device(), device_);
  EXPECT_EQ(a.native() != nullptr, GetParam().is_cuda);
}

TEST_P(RuntimeTest, GivesAThreadItsCurrentStream) {
  EXPECT_EQ(CurrentDevice(), Device::Cpu());
  WEFT_ASSERT_OK_AND_ASSIGN(const Stream normal,
                            runtime_->DefaultStream(device_));
  EXPECT_THAT(CurrentStream(*runtime_, device_), IsOkAndHolds(normal));
  const Stream own = NewStream();
  {
    const StreamScope scope(own);
    EXPECT_EQ(CurrentDevice(), device_);
    EXPECT_THAT(CurrentStream(*runtime_, device_), IsOkAndHolds(own));
    {
      const DeviceScope cpu(Device::Cpu());
      EXPECT_EQ(CurrentDevice(), Device::Cpu());
      EXPECT_THAT(CurrentStream(*runtime_, device_), IsOkAndHolds(own));
    }
    std::thread([&] {
      EXPECT_EQ(CurrentDevice(), Device::Cpu());
      EXPECT_THAT(CurrentStream(*runtime_, device_), IsOkAndHolds(normal));
    }).join();
  }
  EXPECT_EQ(CurrentDevice(), Device::Cpu());
}

TEST_P(RuntimeTest, ServesManyThreads) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    const Stream stream = NewStream();
    float* const x = NewFloats(kElements);
    float* const y = NewPinnedFloats(kElements);
    threads.emplace_back([=] {
      for (int i = 0; i < 20; ++i) {
        WEFT_EXPECT_OK(Fill(stream, x, static_cast<float>(t + i), kElements));
        WEFT_EXPECT_OK(Add(stream, x, x, kElements));
        WEFT_EXPECT_OK(runtime_->CopyAsync(y, x, kBytes, stream));
        WEFT_EXPECT_OK(runtime_->Synchronize(stream, kPatience));
        EXPECT_EQ(y[kElements - 1], 2.0f * (t + i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(On, RuntimeTest,
                         ::testing::ValuesIn(testing::AllInstances()),
                         testing::InstanceName);

}  // namespace
}  // namespace weft::device
