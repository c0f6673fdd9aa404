// What caching_allocator.h says, at the edges: sizes, budgets, streams, blocks
// that others still use, memory that runs out, and figures.

#include "weft/tests/outside/device/allocator_edges.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/caching_allocator.h"
#include "weft/device/device.h"
#include "weft/device/runtime.h"
#include "weft/device/testing/instance.h"
#include "weft/device/testing/kernels.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::weft::device::CachingAllocator;
using ::weft::device::Device;
using ::weft::device::Stream;
using ::weft::device::testing::Fill;
using ::weft::device::testing::MakeSimulated;
using ::weft::testing::StatusIs;

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

}  // namespace
}  // namespace weft::outside
