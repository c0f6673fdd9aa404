// What runtime.h says of memory and copies, at the edges.

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/launch.h"
#include "weft/device/runtime.h"
#include "weft/device/simulated/runtime.h"
#include "weft/device/testing/instance.h"
#include "weft/device/testing/kernels.h"
#include "weft/tests/outside/device/runtime_edges.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::AnyOf;
using ::weft::device::Event;
using ::weft::device::Location;
using ::weft::device::MemoryUse;
using ::weft::device::SimulatedRuntime;
using ::weft::device::Stream;
using ::weft::device::testing::Fill;
using ::weft::device::testing::MakeSimulated;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

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

}  // namespace
}  // namespace weft::outside
