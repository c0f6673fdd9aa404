// What caching_allocator.h says, at the edges: sizes, budgets, streams, blocks
// that others still use, memory that runs out, and figures.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
#include "weft/base/mutex.h"
#include "weft/device/caching_allocator.h"
#include "weft/device/device.h"
#include "weft/device/runtime.h"
#include "weft/device/simulated/runtime.h"
#include "weft/device/testing/instance.h"
#include "weft/device/testing/kernels.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::weft::device::CachingAllocator;
using ::weft::device::Device;
using ::weft::device::MemoryUse;
using ::weft::device::OwnerScope;
using ::weft::device::SimulatedRuntime;
using ::weft::device::Stream;
using ::weft::device::testing::Add;
using ::weft::device::testing::Fill;
using ::weft::device::testing::MakeSimulated;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

using Options = CachingAllocator::Options;
using Statistics = CachingAllocator::Statistics;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kExhausted = absl::StatusCode::kResourceExhausted;
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr int64_t kKi = 1024;
constexpr int64_t kMi = 1024 * kKi;
constexpr absl::Duration kLong = absl::Seconds(30);
const Device kZero = Device::Simulated(0);
const Device kOne = Device::Simulated(1);

class Allocators : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { runtime_ = MakeSimulated(GetParam(), 2); }

  std::unique_ptr<CachingAllocator> Make(const Options& options = {}) {
    return std::make_unique<CachingAllocator>(*runtime_, kZero, options);
  }
  static Options Budget(int64_t bytes) {
    Options options;
    options.budget_bytes = bytes;
    options.release_timeout = absl::Seconds(2);
    return options;
  }
  Stream NewStream(Device device = kZero) {
    auto made = runtime_->CreateStream(device);
    EXPECT_THAT(made, IsOk());
    return *made;
  }
  static char* Take(CachingAllocator& allocator, int64_t bytes, Stream stream) {
    auto made = allocator.Allocate(bytes, stream);
    EXPECT_THAT(made, IsOk()) << bytes;
    return made.ok() ? static_cast<char*>(*made) : nullptr;
  }
  static float* AsFloats(char* memory) {
    return reinterpret_cast<float*>(memory);
  }
  std::vector<float> Read(const void* from, int64_t n, Stream stream) {
    std::vector<float> found(n, -7);
    EXPECT_THAT(runtime_->CopyAsync(found.data(), from, n * 4, stream), IsOk());
    return found;
  }
  int64_t TakenFromDevice() {
    const auto use = runtime_->GetMemoryUse(kZero);
    EXPECT_THAT(use, IsOk());
    return use->total_bytes - use->free_bytes;
  }

  std::unique_ptr<SimulatedRuntime> runtime_;
};
INSTANTIATE_TEST_SUITE_P(Seeds, Allocators, ::testing::Range(0, 3));

// --- Sizes. ------------------------------------------------------------------

TEST_P(Allocators, NoBytesGiveAPointerToGiveBack) {
  const auto allocator = Make();
  const Stream stream = NewStream();
  std::vector<char*> taken;
  for (int i = 0; i < 5; ++i) taken.push_back(Take(*allocator, 0, stream));
  for (char* memory : taken) {
    EXPECT_NE(memory, nullptr);
    EXPECT_EQ(std::count(taken.begin(), taken.end(), memory), 1);
  }
  EXPECT_EQ(allocator->statistics().allocated_bytes, 0);
  EXPECT_EQ(allocator->statistics().allocations, 5);
  for (char* memory : taken) allocator->Free(memory);
  EXPECT_EQ(allocator->statistics().frees, 5);
  EXPECT_EQ(allocator->statistics().active_bytes, 0);
}

TEST_P(Allocators, EachSizeIsAlignedAndUsableToItsLastByte) {
  const auto allocator = Make();
  const Stream stream = NewStream();
  std::vector<std::pair<char*, int64_t>> blocks;
  for (const int64_t bytes :
       {int64_t{1}, int64_t{511}, int64_t{512}, int64_t{513}, kMi - 1, kMi,
        kMi + 1, 2 * kMi, 10 * kMi - 1, 10 * kMi, 10 * kMi + 1}) {
    char* memory = Take(*allocator, bytes, stream);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 512, 0u) << bytes;
    WEFT_EXPECT_OK(runtime_->MemsetAsync(memory, 1, bytes, stream));
    for (const auto& [begin, size] : blocks) {
      EXPECT_TRUE(memory >= begin + size || memory + bytes <= begin) << bytes;
    }
    blocks.emplace_back(memory, bytes);
  }
  WEFT_EXPECT_OK(runtime_->Synchronize(stream, kLong));
  for (const auto& [memory, size] : blocks) allocator->Free(memory);
}

TEST_P(Allocators, SegmentsAreOfTheSizesThatTheHeaderSays) {
  const Stream stream = NewStream();
  for (const auto& [bytes, segment] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 2 * kMi},
                                                {1, 2 * kMi},
                                                {kMi, 2 * kMi},
                                                {kMi + 1, 20 * kMi},
                                                {10 * kMi - 512, 20 * kMi},
                                                {10 * kMi, 10 * kMi},
                                                {10 * kMi + 1, 12 * kMi},
                                                {12 * kMi, 12 * kMi},
                                                {21 * kMi + 5, 22 * kMi}}) {
    const auto allocator = Make();
    char* memory = Take(*allocator, bytes, stream);
    const Statistics found = allocator->statistics();
    EXPECT_EQ(found.reserved_bytes, segment) << bytes;
    EXPECT_EQ(TakenFromDevice(), segment) << bytes;
    EXPECT_EQ(found.allocated_bytes, bytes);
    EXPECT_GE(found.active_bytes, bytes);
    EXPECT_EQ(found.active_bytes % 512, 0);
    EXPECT_EQ(found.cached_bytes(), found.reserved_bytes - found.active_bytes);
    allocator->Free(memory);
  }
  EXPECT_EQ(TakenFromDevice(), 0);
}

// "larger ones have a segment of whole 2 MiB each", and "if that fails too:
// kResourceExhausted": at a budget that a whole segment would pass.
TEST_P(Allocators, SegmentThatTheBudgetCutsShortIsStillWithinIt) {
  const Stream stream = NewStream();
  for (const int64_t budget : {12 * kMi + 512, 13 * kMi, 14 * kMi - 1}) {
    const auto allocator = Make(Budget(budget));
    const auto made = allocator->Allocate(12 * kMi + 5, stream);
    if (made.ok()) {
      WEFT_EXPECT_OK(runtime_->MemsetAsync(*made, 0, 12 * kMi + 5, stream));
      allocator->Free(*made);
    } else {
      EXPECT_THAT(made, StatusIs(kExhausted));
    }
    EXPECT_LE(allocator->statistics().peak_reserved_bytes, budget);
  }
}

TEST_P(Allocators, SizesThatNoDeviceHasAreExhaustedAndDoNoHarm) {
  const auto allocator = Make();
  const Stream stream = NewStream();
  char* kept = Take(*allocator, 1000, stream);
  int64_t failures = 0;
  for (const int64_t bytes :
       {kHuge, kHuge - 1, kHuge - 511, kHuge - 512, kHuge - 2 * kMi,
        int64_t{1} << 62, int64_t{1} << 50, int64_t{1} << 49, int64_t{1} << 40,
        257 * kMi}) {
    EXPECT_THAT(allocator->Allocate(bytes, stream), StatusIs(kExhausted))
        << bytes;
    ++failures;
  }
  const Statistics found = allocator->statistics();
  EXPECT_EQ(found.failures, failures);
  EXPECT_EQ(found.allocated_bytes, 1000);
  EXPECT_EQ(found.allocations, 1);
  EXPECT_EQ(found.reserved_bytes, 2 * kMi);
  allocator->Free(kept);
  char* again = Take(*allocator, 1000, stream);
  EXPECT_EQ(again, kept);
  allocator->Free(again);
}

TEST_P(Allocators, ManySmallBlocksOfOneSegmentComeBackTogether) {
  const auto allocator = Make();
  const Stream stream = NewStream();
  std::vector<char*> blocks;
  for (int i = 0; i < 4096; ++i) {
    blocks.push_back(Take(*allocator, 512, stream));
  }
  EXPECT_EQ(allocator->statistics().reserved_bytes, 2 * kMi);
  EXPECT_EQ(std::set<char*>(blocks.begin(), blocks.end()).size(), 4096u);
  Generator random(GetParam());
  for (size_t i = blocks.size() - 1; i > 0; --i) {
    std::swap(blocks[i], blocks[random.NextBelow(i + 1)]);
  }
  for (char* block : blocks) allocator->Free(block);
  // All neighbours are joined: the segment serves its largest size twice.
  char* a = Take(*allocator, kMi, stream);
  char* b = Take(*allocator, kMi, stream);
  EXPECT_EQ(allocator->statistics().reserved_bytes, 2 * kMi);
  allocator->Free(a);
  allocator->Free(b);
  WEFT_EXPECT_OK(allocator->ReleaseCached());
  EXPECT_EQ(TakenFromDevice(), 0);
}

// --- Streams that are none. --------------------------------------------------

TEST_P(Allocators, StreamsOfOthersAreRefused) {
  const auto allocator = Make();
  const auto other = MakeSimulated(GetParam());
  const Stream foreign = *other->CreateStream(kZero);
  for (const Stream stream : {Stream(), NewStream(kOne), foreign}) {
    EXPECT_THAT(allocator->Allocate(64, stream), StatusIs(kInvalid));
    EXPECT_THAT(allocator->Allocate(0, stream), StatusIs(kInvalid));
  }
  EXPECT_EQ(allocator->statistics().allocations, 0);
  EXPECT_EQ(allocator->statistics().reserved_bytes, 0);
}

TEST_P(Allocators, DefaultStreamIsAStreamAsAnyOther) {
  const auto allocator = Make();
  const Stream stream = *runtime_->DefaultStream(kZero);
  char* memory = Take(*allocator, 64, stream);
  WEFT_EXPECT_OK(Fill(stream, AsFloats(memory), 2, 16));
  EXPECT_EQ(Read(memory, 16, stream), std::vector<float>(16, 2));
  allocator->Free(memory);
}

// --- Giving back. ------------------------------------------------------------

TEST_P(Allocators, NullIsLetPass) {
  const auto allocator = Make();
  allocator->Free(nullptr);
  EXPECT_EQ(allocator->statistics().frees, 0);
}

using AllocatorsDeathTest = Allocators;
INSTANTIATE_TEST_SUITE_P(One, AllocatorsDeathTest, ::testing::Values(0));

// What "REQUIRES" forbids ends the program and does not go on with broken
// lists.
TEST_P(AllocatorsDeathTest, PointersThatAllocateDidNotGiveEndTheProgram) {
  const auto allocator = Make();
  const auto other = Make();
  const Stream stream = NewStream();
  char* memory = Take(*allocator, 1000, stream);
  char* of_other = Take(*other, 1000, stream);
  char* freed = Take(*allocator, 1000, stream);
  allocator->Free(freed);
  float host[4];
  EXPECT_DEATH(allocator->Free(freed), "");
  EXPECT_DEATH(allocator->Free(memory + 512), "");
  EXPECT_DEATH(allocator->Free(of_other), "");
  EXPECT_DEATH(allocator->Free(host), "");
  EXPECT_DEATH(allocator->RecordStream(freed, stream), "");
  EXPECT_DEATH(allocator->RecordStream(of_other, stream), "");
  allocator->Free(memory);
  other->Free(of_other);
}

TEST_P(AllocatorsDeathTest, EndWithBlocksThatAreHandedOutEndsTheProgram) {
  const Stream stream = NewStream();
  EXPECT_DEATH(
      {
        const auto allocator = Make();
        Take(*allocator, 1000, stream);
      },
      "");
}

TEST_P(AllocatorsDeathTest, NegativeSizeEndsTheProgramOrIsRefused) {
  const auto allocator = Make();
  const Stream stream = NewStream();
  EXPECT_DEATH(
      {
        const auto made = allocator->Allocate(-1, stream);
        if (!made.ok()) std::abort();
      },
      "");
}

TEST_P(AllocatorsDeathTest, DeviceOfAnotherKindEndsTheProgram) {
  EXPECT_DEATH(CachingAllocator(*runtime_, Device::Cuda(0), {}), "");
}

TEST_P(Allocators, SameStreamGetsTheBlockAgainAtOnceThoughItsWorkHasNotRun) {
  const auto allocator = Make();
  const Stream stream = NewStream();
  runtime_->SetHangs(stream, true);
  char* first = Take(*allocator, 4096, stream);
  WEFT_EXPECT_OK(Fill(stream, AsFloats(first), 1, 1024));
  allocator->Free(first);
  char* second = Take(*allocator, 4096, stream);
  EXPECT_EQ(first, second);
  WEFT_EXPECT_OK(Fill(stream, AsFloats(second), 2, 1024));
  runtime_->SetHangs(stream, false);
  EXPECT_EQ(Read(second, 1024, stream), std::vector<float>(1024, 2));
  allocator->Free(second);
  EXPECT_EQ(allocator->statistics().cache_hits, 1);
}

TEST_P(Allocators, AnotherStreamDoesNotGetIt) {
  const auto allocator = Make();
  const Stream a = NewStream(), b = NewStream();
  char* first = Take(*allocator, 4096, a);
  allocator->Free(first);
  char* second = Take(*allocator, 4096, b);
  EXPECT_NE(first, second);
  EXPECT_EQ(allocator->statistics().segments_taken, 2);
  allocator->Free(second);
}

TEST_P(Allocators, BlockThatAnotherStreamUsesIsAwaited) {
  const auto allocator = Make();
  const Stream a = NewStream(), b = NewStream();
  char* memory = Take(*allocator, 4096, a);
  runtime_->SetHangs(b, true);
  WEFT_EXPECT_OK(Fill(b, AsFloats(memory), 1, 1024));
  allocator->RecordStream(memory, b);
  allocator->RecordStream(memory, b);
  allocator->Free(memory);
  EXPECT_EQ(allocator->statistics().awaited_blocks, 1);
  EXPECT_EQ(allocator->statistics().allocated_bytes, 0);
  EXPECT_GE(allocator->statistics().active_bytes, 4096);
  std::vector<char*> others;
  for (int i = 0; i < 50; ++i) {
    others.push_back(Take(*allocator, 4096, a));
    EXPECT_NE(others.back(), memory);
  }
  runtime_->SetHangs(b, false);
  WEFT_EXPECT_OK(runtime_->Synchronize(b, kLong));
  for (char* other : others) allocator->Free(other);
  // Now it can come again.
  bool again = false;
  others.clear();
  for (int i = 0; i < 600 && !again; ++i) {
    others.push_back(Take(*allocator, 4096, a));
    again = others.back() == memory;
  }
  EXPECT_TRUE(again);
  EXPECT_EQ(allocator->statistics().awaited_blocks, 0);
  for (char* other : others) allocator->Free(other);
}

TEST_P(Allocators, RecordingItsOwnStreamChangesNothing) {
  const auto allocator = Make();
  const Stream stream = NewStream();
  char* memory = Take(*allocator, 4096, stream);
  allocator->RecordStream(memory, stream);
  runtime_->SetHangs(stream, true);
  WEFT_EXPECT_OK(Fill(stream, AsFloats(memory), 1, 1024));
  allocator->Free(memory);
  EXPECT_EQ(allocator->statistics().awaited_blocks, 0);
  EXPECT_EQ(Take(*allocator, 4096, stream), memory);
  runtime_->SetHangs(stream, false);
  allocator->Free(memory);
}

TEST_P(Allocators, RecordOfALifeIsForgottenInTheNext) {
  const auto allocator = Make();
  const Stream a = NewStream(), b = NewStream();
  char* memory = Take(*allocator, 4096, a);
  allocator->RecordStream(memory, b);
  allocator->Free(memory);
  WEFT_EXPECT_OK(runtime_->Synchronize(kZero, kLong));
  std::vector<char*> taken;
  do {
    taken.push_back(Take(*allocator, 4096, a));
  } while (taken.back() != memory && taken.size() < 600);
  ASSERT_EQ(taken.back(), memory);
  runtime_->SetHangs(b, true);
  WEFT_EXPECT_OK(runtime_->MemsetAsync(taken[0], 0, 4, b));
  allocator->Free(memory);
  EXPECT_EQ(allocator->statistics().awaited_blocks, 0);
  taken.pop_back();
  for (char* one : taken) allocator->Free(one);
  runtime_->SetHangs(b, false);
}

TEST_P(Allocators, StreamOfAnotherDeviceCanUseABlockToo) {
  const auto allocator = Make();
  const Stream a = NewStream(), there = NewStream(kOne);
  char* memory = Take(*allocator, 4096, a);
  WEFT_EXPECT_OK(Fill(a, AsFloats(memory), 3, 1024));
  WEFT_EXPECT_OK(runtime_->Synchronize(a, kLong));
  void* copy = *runtime_->Allocate(kOne, 4096);
  runtime_->SetHangs(there, true);
  WEFT_EXPECT_OK(runtime_->CopyAsync(copy, memory, 4096, there));
  allocator->RecordStream(memory, there);
  allocator->Free(memory);
  char* next = Take(*allocator, 4096, a);
  WEFT_EXPECT_OK(Fill(a, AsFloats(next), 9, 1024));
  WEFT_EXPECT_OK(runtime_->Synchronize(a, kLong));
  runtime_->SetHangs(there, false);
  EXPECT_EQ(Read(copy, 1024, there), std::vector<float>(1024, 3));
  allocator->Free(next);
}

// The rule of the header's first example, under load: blocks pass between
// streams with RecordStream, and no number is ever another's.
TEST_P(Allocators, WorkOnSeveralStreamsNeverSeesAnothersBlock) {
  const auto allocator = Make();
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(NewStream());
  Generator random(GetParam() + 100);
  struct Live {
    char* memory;
    int64_t floats;
    float value;
    Stream stream;
  };
  std::vector<Live> live;
  float next = 1;
  for (int step = 0; step < 600; ++step) {
    const uint64_t what = random.NextBelow(10);
    if (live.size() < 20 && what < 5) {
      const Stream stream = streams[random.NextBelow(4)];
      const int64_t floats =
          1 + static_cast<int64_t>(random.NextBelow(what == 0 ? 500000 : 900));
      char* memory = Take(*allocator, floats * 4, stream);
      for (const Live& one : live) {
        ASSERT_TRUE(memory >= one.memory + one.floats * 4 ||
                    memory + floats * 4 <= one.memory);
      }
      WEFT_ASSERT_OK(Fill(stream, AsFloats(memory), next, floats));
      live.push_back({memory, floats, next, stream});
      next += 1;
    } else if (!live.empty()) {
      const size_t at = random.NextBelow(live.size());
      Live one = live[at];
      Stream reader = one.stream;
      if (what < 9) {
        reader = streams[random.NextBelow(4)];
        device::Event event = *runtime_->CreateEvent(kZero);
        WEFT_ASSERT_OK(runtime_->RecordEvent(event, one.stream));
        WEFT_ASSERT_OK(runtime_->StreamWaitEvent(reader, event));
        allocator->RecordStream(one.memory, reader);
      }
      // A copy that runs late, into memory that stays.
      float* pinned =
          static_cast<float*>(*runtime_->AllocatePinned(one.floats * 4));
      WEFT_ASSERT_OK(
          runtime_->CopyAsync(pinned, one.memory, one.floats * 4, reader));
      allocator->Free(one.memory);
      live.erase(live.begin() + static_cast<int64_t>(at));
      WEFT_ASSERT_OK(runtime_->EnqueueHost(
          reader, "Compare",
          [pinned, one](const device::DeviceMemory&) -> absl::Status {
            for (int64_t i = 0; i < one.floats; ++i) {
              if (pinned[i] != one.value) {
                return absl::InternalError(
                    absl::StrCat("wanted ", one.value, ", found ", pinned[i]));
              }
            }
            return absl::OkStatus();
          }));
    }
  }
  WEFT_EXPECT_OK(runtime_->Synchronize(kZero, kLong));
  for (const Live& one : live) allocator->Free(one.memory);
  const Statistics end = allocator->statistics();
  EXPECT_EQ(end.allocated_bytes, 0);
  EXPECT_EQ(end.allocations, end.frees);
  WEFT_EXPECT_OK(allocator->ReleaseCached());
  EXPECT_EQ(allocator->statistics().reserved_bytes, 0);
  EXPECT_EQ(TakenFromDevice(), 0);
}

TEST_P(Allocators, PoisonMakesWhatIsReadTooLateNan) {
  Options options;
  options.poison = true;
  const auto allocator = Make(options);
  const Stream stream = NewStream();
  char* memory = Take(*allocator, 4096, stream);
  WEFT_EXPECT_OK(Fill(stream, AsFloats(memory), 1, 1024));
  allocator->Free(memory);
  char* again = Take(*allocator, 4096, stream);
  ASSERT_EQ(again, memory);
  for (const float x : Read(again, 1024, stream)) {
    ASSERT_TRUE(std::isnan(x));
  }
  allocator->Free(again);
}

// --- Giving back to the device. ----------------------------------------------

TEST_P(Allocators, ReleaseLeavesWhatIsInUse) {
  const auto allocator = Make();
  const Stream stream = NewStream();
  char* kept = Take(*allocator, 1000, stream);
  char* gone = Take(*allocator, 15 * kMi, stream);
  WEFT_EXPECT_OK(Fill(stream, AsFloats(kept), 4, 250));
  allocator->Free(gone);
  for (int i = 0; i < 3; ++i) {
    WEFT_EXPECT_OK(allocator->ReleaseCached());
    EXPECT_EQ(allocator->statistics().reserved_bytes, 2 * kMi);
    EXPECT_EQ(allocator->statistics().segments_returned, 1);
  }
  EXPECT_EQ(TakenFromDevice(), 2 * kMi);
  EXPECT_EQ(Read(kept, 250, stream), std::vector<float>(250, 4));
  allocator->Free(kept);
  WEFT_EXPECT_OK(allocator->ReleaseCached());
  EXPECT_EQ(TakenFromDevice(), 0);
}

TEST_P(Allocators, ReleaseOfNothingIsFine) {
  const auto allocator = Make();
  WEFT_EXPECT_OK(allocator->ReleaseCached());
  EXPECT_EQ(allocator->statistics().segments_returned, 0);
}

TEST_P(Allocators, ReleaseWaitsForTheStreamsWorkAndIsLateBehindAHang) {
  Options options;
  options.release_timeout = absl::Milliseconds(100);
  const auto allocator = Make(options);
  const Stream stream = NewStream();
  char* memory = Take(*allocator, 4096, stream);
  runtime_->SetHangs(stream, true);
  WEFT_EXPECT_OK(Fill(stream, AsFloats(memory), 4, 1024));
  allocator->Free(memory);
  EXPECT_THAT(allocator->ReleaseCached(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  // Nothing is lost: the block is still there for its stream.
  EXPECT_EQ(Take(*allocator, 4096, stream), memory);
  runtime_->SetHangs(stream, false);
  EXPECT_EQ(Read(memory, 1024, stream), std::vector<float>(1024, 4));
  allocator->Free(memory);
  WEFT_EXPECT_OK(allocator->ReleaseCached());
  EXPECT_EQ(TakenFromDevice(), 0);
  WEFT_EXPECT_OK(runtime_->Health(kZero));
}

TEST_P(Allocators, EndBehindAHangComesInTimeAndTheDeviceStaysWell) {
  const Stream stream = NewStream();
  const absl::Time begin = absl::Now();
  {
    Options options;
    options.release_timeout = absl::Milliseconds(100);
    const auto allocator = Make(options);
    char* memory = Take(*allocator, 4096, stream);
    runtime_->SetHangs(stream, true);
    WEFT_EXPECT_OK(Fill(stream, AsFloats(memory), 4, 1024));
    allocator->Free(memory);
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  runtime_->SetHangs(stream, false);
  WEFT_EXPECT_OK(runtime_->Synchronize(stream, kLong));
}

// --- Memory that runs out. ---------------------------------------------------

TEST_P(Allocators, BudgetIsNeverPassed) {
  const auto allocator = Make(Budget(6 * kMi));
  const Stream stream = NewStream();
  std::vector<char*> taken;
  for (int i = 0; i < 20; ++i) {
    const auto made = allocator->Allocate(kMi, stream);
    if (made.ok()) {
      taken.push_back(static_cast<char*>(*made));
    } else {
      EXPECT_THAT(made, StatusIs(kExhausted));
    }
  }
  EXPECT_EQ(taken.size(), 6u);
  EXPECT_EQ(allocator->statistics().reserved_bytes, 6 * kMi);
  EXPECT_EQ(allocator->statistics().failures, 14);
  for (char* one : taken) allocator->Free(one);
  EXPECT_LE(allocator->statistics().peak_reserved_bytes, 6 * kMi);
}

TEST_P(Allocators, BudgetOfNothingOrOfLessThanASegmentIsExhausted) {
  for (const int64_t budget : {int64_t{0}, int64_t{1}, kMi, 2 * kMi - 1}) {
    const auto allocator = Make(Budget(budget));
    const Stream stream = NewStream();
    const auto made = allocator->Allocate(512, stream);
    if (made.ok()) allocator->Free(*made);
    EXPECT_LE(allocator->statistics().peak_reserved_bytes, budget);
  }
}

TEST_P(Allocators, WhatIsCachedForOneStreamGoesToAnotherWhenMemoryIsShort) {
  const auto allocator = Make(Budget(20 * kMi));
  const Stream a = NewStream(), b = NewStream();
  char* first = Take(*allocator, 20 * kMi, a);
  WEFT_EXPECT_OK(Fill(a, AsFloats(first), 1, 1024));
  allocator->Free(first);
  char* second = Take(*allocator, 16 * kMi, b);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(allocator->statistics().releases, 1);
  EXPECT_EQ(allocator->statistics().failures, 0);
  EXPECT_EQ(allocator->statistics().reserved_bytes, 16 * kMi);
  allocator->Free(second);
}

TEST_P(Allocators, WhatAnotherStreamStillUsesIsWaitedForWhenMemoryIsShort) {
  const auto allocator = Make(Budget(20 * kMi));
  const Stream a = NewStream(), b = NewStream();
  char* first = Take(*allocator, 20 * kMi, a);
  WEFT_EXPECT_OK(Fill(b, AsFloats(first), 1, 1024));
  allocator->RecordStream(first, b);
  allocator->Free(first);
  char* second = Take(*allocator, 20 * kMi, a);
  EXPECT_NE(second, nullptr);
  allocator->Free(second);
}

TEST_P(Allocators, ShortOfMemoryBehindAHangIsExhaustedInTimeAndSaysWhoHolds) {
  Options options = Budget(20 * kMi);
  options.release_timeout = absl::Milliseconds(100);
  const auto allocator = Make(options);
  const Stream a = NewStream(), b = NewStream();
  char* held = nullptr;
  {
    const OwnerScope owner("activations of the test");
    held = Take(*allocator, 12 * kMi, a);
  }
  runtime_->SetHangs(b, true);
  WEFT_EXPECT_OK(Fill(b, AsFloats(held), 1, 1024));
  const absl::Time begin = absl::Now();
  EXPECT_THAT(allocator->Allocate(12 * kMi, a),
              StatusIs(kExhausted, "activations of the test"));
  allocator->RecordStream(held, b);
  allocator->Free(held);
  EXPECT_THAT(allocator->Allocate(12 * kMi, a), StatusIs(kExhausted));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  runtime_->SetHangs(b, false);
  char* now = Take(*allocator, 12 * kMi, a);
  EXPECT_NE(now, nullptr);
  allocator->Free(now);
}

TEST_P(Allocators, DeviceThatRefusesOnceIsAskedAgain) {
  const auto allocator = Make();
  const Stream stream = NewStream();
  runtime_->FailAllocations(kZero, 1);
  char* memory = Take(*allocator, 4096, stream);
  EXPECT_NE(memory, nullptr);
  allocator->Free(memory);
  runtime_->FailAllocations(kZero, 1000);
  EXPECT_THAT(allocator->Allocate(20 * kMi, stream), StatusIs(kExhausted));
  // What is cached needs no device... if the cache has not gone.
  const auto made = allocator->Allocate(4096, stream);
  if (made.ok()) allocator->Free(*made);
  runtime_->FailAllocations(kZero, 0);
  char* last = Take(*allocator, 20 * kMi, stream);
  if (last != nullptr) allocator->Free(last);
}

TEST_P(Allocators, TwoOnOneDeviceShareWhatThereIs) {
  const auto a = Make();
  const auto b = Make();
  const Stream stream = NewStream();
  char* most = Take(*a, 200 * kMi, stream);
  EXPECT_THAT(b->Allocate(200 * kMi, stream), StatusIs(kExhausted));
  a->Free(most);
  // What the other has cached is not this one's to release.
  EXPECT_THAT(b->Allocate(200 * kMi, stream), StatusIs(kExhausted));
  WEFT_EXPECT_OK(a->ReleaseCached());
  char* now = Take(*b, 200 * kMi, stream);
  b->Free(now);
}

TEST_P(Allocators, LostDeviceIsAnErrorAndTheEndComes) {
  const auto allocator = Make();
  const Stream stream = NewStream(), other = NewStream();
  char* a = Take(*allocator, 4096, stream);
  char* b = Take(*allocator, 4096, stream);
  char* c = Take(*allocator, 4096, stream);
  allocator->Free(c);
  allocator->RecordStream(b, other);
  runtime_->LoseDevice(kZero);
  allocator->Free(a);
  allocator->Free(b);
  EXPECT_THAT(allocator->Allocate(30 * kMi, stream),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(allocator->ReleaseCached().ok());
  (void)allocator->statistics();
}

TEST_P(Allocators, DeviceThatDoesNotExistIsAnErrorOfItsFirstCall) {
  CachingAllocator allocator(*runtime_, Device::Simulated(7), {});
  EXPECT_THAT(allocator.Allocate(64, NewStream()), StatusIs(kInvalid));
  (void)allocator.ReleaseCached();
}

// --- Owners and figures. -----------------------------------------------------

TEST_P(Allocators, OwnersAreThoseOfTheInnermostScopeAtTheAllocation) {
  const auto allocator = Make();
  const Stream stream = NewStream();
  EXPECT_EQ(OwnerScope::Current(), "(no owner)");
  EXPECT_TRUE(allocator->holders().empty());
  char* none = Take(*allocator, 512, stream);
  char* outer_memory = nullptr;
  char* inner_memory = nullptr;
  {
    const OwnerScope outer("outer");
    outer_memory = Take(*allocator, 4096, stream);
    {
      const OwnerScope inner("inner");
      EXPECT_EQ(OwnerScope::Current(), "inner");
      inner_memory = Take(*allocator, 8192, stream);
      std::thread([] {
        EXPECT_EQ(OwnerScope::Current(), "(no owner)");
      }).join();
      allocator->Free(none);  // in another scope than it was taken in
    }
    EXPECT_EQ(OwnerScope::Current(), "outer");
  }
  const auto holders = allocator->holders();
  ASSERT_GE(holders.size(), 2u);
  EXPECT_EQ(holders[0].owner, "inner");
  EXPECT_EQ(holders[0].bytes, 8192);
  EXPECT_EQ(holders[0].blocks, 1);
  EXPECT_EQ(holders[1].owner, "outer");
  EXPECT_EQ(holders[1].bytes, 4096);
  for (size_t i = 2; i < holders.size(); ++i) {
    EXPECT_EQ(holders[i].bytes, 0);
    EXPECT_EQ(holders[i].blocks, 0);
  }
  EXPECT_THAT(Describe(holders),
              AllOf(HasSubstr("inner 8192"), HasSubstr("outer 4096")));
  allocator->Free(outer_memory);
  allocator->Free(inner_memory);
  for (const auto& holder : allocator->holders()) EXPECT_EQ(holder.bytes, 0);
}

TEST_P(Allocators, OwnerOfEqualWordsIsTheSameWhereverTheWordsLie) {
  const auto allocator = Make();
  const Stream stream = NewStream();
  std::vector<char*> taken;
  for (int i = 0; i < 3; ++i) {
    const auto words = std::make_unique<std::string>("gradients");
    const OwnerScope scope(*words);
    taken.push_back(Take(*allocator, 512, stream));
  }
  const auto holders = allocator->holders();
  ASSERT_FALSE(holders.empty());
  EXPECT_EQ(holders[0].owner, "gradients");
  EXPECT_EQ(holders[0].blocks, 3);
  for (char* one : taken) allocator->Free(one);
}

TEST(Owners, DescriptionOfNobodyDoesNotCrash) {
  (void)device::Describe({});
  const OwnerScope empty("");
  EXPECT_EQ(OwnerScope::Current(), "");
}

TEST_P(Allocators, FiguresAddUpAfterAnyMixture) {
  const auto allocator = Make(Budget(64 * kMi));
  const Stream a = NewStream(), b = NewStream();
  Generator random(GetParam());
  std::map<char*, int64_t> live;
  int64_t asked = 0, peak = 0, allocations = 0, frees = 0, failures = 0;
  for (int i = 0; i < 2000; ++i) {
    if (live.size() < 40 && random.NextBelow(2) == 0) {
      const int64_t bytes = static_cast<int64_t>(
          random.NextBelow(random.NextBelow(20) == 0 ? 12 * kMi : 5000));
      const auto made =
          allocator->Allocate(bytes, random.NextBelow(2) == 0 ? a : b);
      if (!made.ok()) {
        ASSERT_THAT(made, StatusIs(kExhausted));
        ++failures;
        continue;
      }
      ++allocations;
      asked += bytes;
      peak = std::max(peak, asked);
      ASSERT_TRUE(live.emplace(static_cast<char*>(*made), bytes).second);
    } else if (!live.empty()) {
      auto it = live.begin();
      std::advance(it, random.NextBelow(live.size()));
      if (random.NextBelow(4) == 0) allocator->RecordStream(it->first, b);
      allocator->Free(it->first);
      asked -= it->second;
      ++frees;
      live.erase(it);
    }
    const Statistics now = allocator->statistics();
    ASSERT_EQ(now.allocated_bytes, asked);
    ASSERT_EQ(now.peak_allocated_bytes, peak);
    ASSERT_EQ(now.allocations, allocations);
    ASSERT_EQ(now.frees, frees);
    ASSERT_EQ(now.failures, failures);
    ASSERT_LE(now.active_bytes, now.reserved_bytes);
    ASSERT_GE(now.active_bytes, now.allocated_bytes);
    ASSERT_LE(now.reserved_bytes, 64 * kMi);
    // The device gives whole pages.
    ASSERT_LE(now.reserved_bytes, TakenFromDevice());
    ASSERT_LE(TakenFromDevice(), now.reserved_bytes + 100 * 4096);
    ASSERT_LE(now.cache_hits, now.allocations);
    ASSERT_GE(now.peak_active_bytes, now.active_bytes);
    ASSERT_GE(now.peak_reserved_bytes, now.reserved_bytes);
    int64_t blocks = 0;
    for (const auto& holder : allocator->holders()) blocks += holder.blocks;
    ASSERT_EQ(blocks, static_cast<int64_t>(live.size()));
  }
  for (const auto& [memory, bytes] : live) allocator->Free(memory);
  WEFT_EXPECT_OK(allocator->ReleaseCached());
  const Statistics end = allocator->statistics();
  EXPECT_EQ(end.reserved_bytes, 0);
  EXPECT_EQ(end.active_bytes, 0);
  EXPECT_EQ(end.segments_taken, end.segments_returned);
}

// --- Threads. ----------------------------------------------------------------

TEST_P(Allocators, ThreadsThatTakeAndGiveBackEachOthersBlocks) {
  const auto allocator = Make(Budget(96 * kMi));
  std::vector<Stream> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(NewStream());
  Mutex mu;
  std::vector<char*> shared;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Generator random(GetParam() * 10 + t);
      for (int i = 0; i < 400; ++i) {
        const Stream stream = streams[random.NextBelow(3)];
        const auto made = allocator->Allocate(
            static_cast<int64_t>(random.NextBelow(200000)), stream);
        char* give = nullptr;
        {
          MutexLock lock(mu);
          if (made.ok()) shared.push_back(static_cast<char*>(*made));
          if (shared.size() > 20 || !made.ok()) {
            if (!shared.empty()) {
              const size_t at = random.NextBelow(shared.size());
              give = shared[at];
              shared[at] = shared.back();
              shared.pop_back();
            }
          }
        }
        if (give != nullptr) {
          if (i % 3 == 0) {
            allocator->RecordStream(give, streams[random.NextBelow(3)]);
          }
          allocator->Free(give);
        }
        if (i % 100 == 0) (void)allocator->ReleaseCached();
        (void)allocator->statistics();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (char* one : shared) allocator->Free(one);
  const Statistics end = allocator->statistics();
  EXPECT_EQ(end.allocated_bytes, 0);
  EXPECT_EQ(end.allocations, end.frees);
  EXPECT_LE(end.peak_reserved_bytes, 96 * kMi);
  WEFT_EXPECT_OK(allocator->ReleaseCached());
  EXPECT_EQ(TakenFromDevice(), 0);
}

// Two threads at the budget's edge: what one gives back is there for the other.
TEST_P(Allocators, ThreadsAtTheEdgeOfTheBudgetDoNotFailForNothing) {
  const auto allocator = Make(Budget(40 * kMi));
  const Stream a = NewStream(), b = NewStream();
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        // Each holds half of the budget at most, on its own stream.
        const auto made = allocator->Allocate(20 * kMi, t == 0 ? a : b);
        EXPECT_THAT(made, IsOk());
        if (made.ok()) allocator->Free(*made);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace weft::outside
