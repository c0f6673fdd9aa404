// What caching_allocator.h says of memory that runs out, of owners, figures and
// threads, at the edges.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/mutex.h"
#include "weft/device/caching_allocator.h"
#include "weft/device/device.h"
#include "weft/device/runtime.h"
#include "weft/device/simulated/runtime.h"
#include "weft/device/testing/kernels.h"
#include "weft/tensor/random.h"
#include "weft/tests/outside/device/allocator_edges.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::HasSubstr;
using ::weft::device::CachingAllocator;
using ::weft::device::Device;
using ::weft::device::OwnerScope;
using ::weft::device::Stream;
using ::weft::device::testing::Fill;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

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
