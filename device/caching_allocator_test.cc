#include "weft/device/caching_allocator.h"

#include <algorithm>
#include <cstdint>
#include <random>
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
using testing::Fill;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::MakeSimulated;
using weft::testing::IsOk;
using weft::testing::StatusIs;

constexpr int64_t kMiB = int64_t{1} << 20;

// The suite on each Runtime.
class CachingAllocatorTest : public testing::OnInstance {
 protected:
  void SetUp() override {
    OnInstance::SetUp();
    if (runtime_ == nullptr) return;
    allocator_ = std::make_unique<CachingAllocator>(
        *runtime_, device_, CachingAllocator::Options());
  }
  void TearDown() override {
    allocator_ = nullptr;
    OnInstance::TearDown();
  }
  void* Allocate(int64_t bytes, Stream stream) {
    const auto memory = allocator_->Allocate(bytes, stream);
    WEFT_CHECK(memory.ok()) << memory.status();
    return *memory;
  }

  std::unique_ptr<CachingAllocator> allocator_;
};

TEST_P(CachingAllocatorTest, GivesABlockAgainOnItsStreamAtOnce) {
  const Stream stream = NewStream();
  for (const int64_t bytes :
       {int64_t{1}, int64_t{512}, int64_t{5000}, kMiB, 3 * kMiB, 11 * kMiB}) {
    void* const first = Allocate(bytes, stream);
    WEFT_ASSERT_OK(runtime_->MemsetAsync(first, 1, bytes, stream));
    allocator_->Free(first);
    const int64_t taken = allocator_->statistics().segments_taken;
    void* const second = Allocate(bytes, stream);
    EXPECT_EQ(second, first);
    EXPECT_EQ(allocator_->statistics().segments_taken, taken);
    allocator_->Free(second);
  }
}

TEST_P(CachingAllocatorTest, GivesNoBlockToAnotherStream) {
  const Stream a = NewStream();
  const Stream b = NewStream();
  void* const first = Allocate(1000, a);
  allocator_->Free(first);
  void* const second = Allocate(1000, b);
  EXPECT_NE(second, first);
  EXPECT_EQ(allocator_->statistics().segments_taken, 2);
  allocator_->Free(second);
}

TEST_P(CachingAllocatorTest, KeepsWhatAnotherStreamUsesUntilThatHasRun) {
  constexpr int64_t kElements = int64_t{1} << 16;
  constexpr int64_t kBytes = kElements * sizeof(float);
  const Stream owner = NewStream();
  const Stream other = NewStream();
  float* const sum = NewFloats(kElements);
  WEFT_ASSERT_OK(Fill(other, sum, 0.0f, kElements));
  Event written = NewEvent();
  for (int step = 1; step <= 10; ++step) {
    auto* const x = static_cast<float*>(Allocate(kBytes, owner));
    WEFT_ASSERT_OK(Fill(owner, x, static_cast<float>(step), kElements));
    WEFT_ASSERT_OK(runtime_->RecordEvent(written, owner));
    WEFT_ASSERT_OK(runtime_->StreamWaitEvent(other, written));
    WEFT_ASSERT_OK(testing::Spin(other, absl::Milliseconds(2)));
    WEFT_ASSERT_OK(Add(other, sum, x, kElements));
    allocator_->RecordStream(x, other);
    allocator_->Free(x);
  }
  EXPECT_EQ(Read(sum, 1, other)[0], 55.0f);
  WEFT_ASSERT_OK(allocator_->ReleaseCached());
  EXPECT_EQ(allocator_->statistics().awaited_blocks, 0);
  EXPECT_EQ(allocator_->statistics().reserved_bytes, 0);
}

TEST_P(CachingAllocatorTest, GivesAllBackToTheDevice) {
  const Stream stream = NewStream();
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(Allocate(i * 3000, stream));
  void* const kept = Allocate(1, stream);
  for (void* block : blocks) allocator_->Free(block);
  WEFT_ASSERT_OK(allocator_->ReleaseCached());
  // One segment is in use.
  EXPECT_EQ(allocator_->statistics().reserved_bytes, 2 * kMiB);
  allocator_->Free(kept);
  WEFT_ASSERT_OK(allocator_->ReleaseCached());
  const CachingAllocator::Statistics s = allocator_->statistics();
  EXPECT_EQ(s.reserved_bytes, 0);
  EXPECT_EQ(s.active_bytes, 0);
  EXPECT_EQ(s.allocated_bytes, 0);
  EXPECT_EQ(s.segments_taken, s.segments_returned);
  EXPECT_EQ(s.allocations, 101);
  EXPECT_EQ(s.frees, 101);
}

TEST_P(CachingAllocatorTest, ServesManyThreads) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    const Stream stream = NewStream();
    const Stream other = NewStream();
    threads.emplace_back([=] {
      std::mt19937 random(t);
      std::vector<void*> blocks;
      for (int i = 0; i < 300; ++i) {
        const int64_t bytes = random() % (i % 10 == 0 ? 3 * kMiB : 20000);
        const auto memory = allocator_->Allocate(bytes, stream);
        ASSERT_THAT(memory, IsOk());
        blocks.push_back(*memory);
        if (i % 7 == 0) allocator_->RecordStream(*memory, other);
        if (blocks.size() > 10) {
          const size_t victim = random() % blocks.size();
          allocator_->Free(blocks[victim]);
          blocks.erase(blocks.begin() + victim);
        }
      }
      for (void* block : blocks) allocator_->Free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  WEFT_ASSERT_OK(allocator_->ReleaseCached());
  EXPECT_EQ(allocator_->statistics().reserved_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(On, CachingAllocatorTest,
                         ::testing::ValuesIn(testing::AllInstances()),
                         testing::InstanceName);

// ----- on one simulated device

constexpr Device kDevice = Device::Simulated(0);

struct OnSimulated {
  explicit OnSimulated(CachingAllocator::Options options = {})
      : runtime(MakeSimulated(0)),
        allocator(*runtime, kDevice, options),
        stream(*runtime->CreateStream(kDevice)) {}

  char* Allocate(int64_t bytes) {
    const auto memory = allocator.Allocate(bytes, stream);
    WEFT_CHECK(memory.ok()) << memory.status();
    return static_cast<char*>(*memory);
  }

  std::unique_ptr<SimulatedRuntime> runtime;
  CachingAllocator allocator;
  Stream stream;
};

CachingAllocator::Options WithBudget(int64_t bytes) {
  CachingAllocator::Options options;
  options.budget_bytes = bytes;
  return options;
}

TEST(CachingAllocator, CutsSmallBlocksFromOneSegmentAndJoinsThem) {
  OnSimulated on;
  std::vector<char*> blocks;
  for (int i = 0; i < 4096; ++i) blocks.push_back(on.Allocate(512));
  EXPECT_EQ(on.allocator.statistics().segments_taken, 1);
  EXPECT_EQ(on.allocator.statistics().reserved_bytes, 2 * kMiB);
  EXPECT_EQ(on.allocator.statistics().cached_bytes(), 0);
  std::sort(blocks.begin(), blocks.end());
  for (size_t i = 1; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i] - blocks[i - 1], 512);
  }
  // Whatever the order in which they come back, they are one block again.
  std::mt19937 random(1);
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (char* block : blocks) on.allocator.Free(block);
  char* const whole = on.Allocate(kMiB);
  char* const half = on.Allocate(kMiB);
  EXPECT_EQ(on.allocator.statistics().segments_taken, 1);
  on.allocator.Free(whole);
  on.allocator.Free(half);
}

TEST(CachingAllocator, TakesSegmentsAsPyTorchDoes) {
  const struct {
    int64_t bytes;
    int64_t reserved_bytes;
  } cases[] = {{0, 2 * kMiB},          {kMiB, 2 * kMiB},
               {kMiB + 1, 20 * kMiB},  {10 * kMiB - 512, 20 * kMiB},
               {10 * kMiB, 10 * kMiB}, {10 * kMiB + 1, 12 * kMiB},
               {33 * kMiB, 34 * kMiB}};
  for (const auto& c : cases) {
    OnSimulated on;
    char* const block = on.Allocate(c.bytes);
    EXPECT_EQ(on.allocator.statistics().reserved_bytes, c.reserved_bytes)
        << c.bytes;
    on.allocator.Free(block);
  }
}

// No two blocks that are handed out share a byte, and the statistics add up.
TEST(CachingAllocator, HandsOutNoByteTwice) {
  OnSimulated on;
  std::mt19937_64 random(42);
  std::vector<std::pair<char*, int64_t>> blocks;
  for (int i = 0; i < 20000; ++i) {
    if (blocks.size() < 50 || random() % 2 == 0) {
      const int64_t bytes = int64_t{1} << (random() % 20);
      const int64_t wanted = bytes + static_cast<int64_t>(random() % bytes);
      blocks.emplace_back(on.Allocate(wanted), wanted);
    } else {
      const size_t victim = random() % blocks.size();
      on.allocator.Free(blocks[victim].first);
      blocks[victim] = blocks.back();
      blocks.pop_back();
    }
    if (i % 500 != 0) continue;
    auto sorted = blocks;
    std::sort(sorted.begin(), sorted.end());
    int64_t bytes = 0;
    for (size_t k = 0; k < sorted.size(); ++k) {
      bytes += sorted[k].second;
      if (k + 1 == sorted.size()) break;
      ASSERT_LE(sorted[k].first + sorted[k].second, sorted[k + 1].first);
    }
    const CachingAllocator::Statistics s = on.allocator.statistics();
    ASSERT_EQ(s.allocated_bytes, bytes);
    ASSERT_GE(s.active_bytes, bytes);
    ASSERT_GE(s.reserved_bytes, s.active_bytes);
  }
  for (const auto& [block, bytes] : blocks) on.allocator.Free(block);
  EXPECT_EQ(on.allocator.statistics().active_bytes, 0);
  // All was joined: each segment is one free block.
  WEFT_ASSERT_OK(on.allocator.ReleaseCached());
  EXPECT_EQ(on.allocator.statistics().reserved_bytes, 0);
}

TEST(CachingAllocator, ReturnsItsCacheWhenTheBudgetIsPassed) {
  OnSimulated on(WithBudget(40 * kMiB));
  on.allocator.Free(on.Allocate(30 * kMiB));
  char* const next = on.Allocate(32 * kMiB);
  const CachingAllocator::Statistics s = on.allocator.statistics();
  EXPECT_EQ(s.releases, 1);
  EXPECT_EQ(s.segments_returned, 1);
  EXPECT_EQ(s.reserved_bytes, 32 * kMiB);
  EXPECT_EQ(s.peak_reserved_bytes, 32 * kMiB);
  on.allocator.Free(next);
}

TEST(CachingAllocator, ReturnsItsCacheWhenTheDeviceHasNoMore) {
  OnSimulated on;  // 256 MiB
  on.allocator.Free(on.Allocate(200 * kMiB));
  on.allocator.Free(on.Allocate(220 * kMiB));
  EXPECT_EQ(on.allocator.statistics().releases, 1);
  on.runtime->FailAllocations(kDevice, 1);
  on.allocator.Free(on.Allocate(230 * kMiB));
  EXPECT_EQ(on.allocator.statistics().failures, 0);
}

TEST(CachingAllocator, WaitsForOtherStreamsWhenMemoryIsShort) {
  OnSimulated on(WithBudget(30 * kMiB));
  const Stream other = *on.runtime->CreateStream(kDevice);
  char* const block = on.Allocate(20 * kMiB);
  WEFT_ASSERT_OK(on.runtime->MemsetAsync(block, 0, 20 * kMiB, other));
  on.allocator.RecordStream(block, other);
  on.allocator.Free(block);
  on.allocator.Free(on.Allocate(24 * kMiB));
  EXPECT_EQ(on.allocator.statistics().failures, 0);
  WEFT_EXPECT_OK(on.runtime->Synchronize(kDevice, kPatience));
}

TEST(CachingAllocator, TakesASmallerSegmentWhereTheUsualOneDoesNotFit) {
  OnSimulated on(WithBudget(15 * kMiB));
  char* const block = on.Allocate(5 * kMiB);  // of 20 MiB by custom
  EXPECT_EQ(on.allocator.statistics().reserved_bytes, 5 * kMiB);
  on.allocator.Free(block);
}

TEST(CachingAllocator, SaysWhoHoldsWhatWhenThereIsNoMore) {
  OnSimulated on(WithBudget(64 * kMiB));
  std::vector<char*> blocks;
  {
    const OwnerScope weights("weights");
    blocks.push_back(on.Allocate(20 * kMiB));
    const OwnerScope gradients("gradients");
    blocks.push_back(on.Allocate(10 * kMiB));
    blocks.push_back(on.Allocate(12 * kMiB));
  }
  const OwnerScope scope("bucket");
  const auto memory = on.allocator.Allocate(30 * kMiB, on.stream);
  ASSERT_THAT(memory, StatusIs(absl::StatusCode::kResourceExhausted,
                               "simulated:0: Allocate(31457280 bytes) for "
                               "bucket: "));
  const std::string message(memory.status().message());
  EXPECT_THAT(message,
              HasSubstr("held: gradients 23068672 bytes in 2 blocks, weights "
                        "20971520 bytes in 1 blocks;"));
  EXPECT_THAT(message, HasSubstr("the budget is 67108864"));
  EXPECT_EQ(on.allocator.statistics().failures, 1);
  for (char* block : blocks) on.allocator.Free(block);
  EXPECT_TRUE(on.allocator.holders().empty());
}

TEST(CachingAllocator, KeepsItsCacheIfItsStreamHangs) {
  CachingAllocator::Options options = WithBudget(30 * kMiB);
  options.release_timeout = absl::Milliseconds(20);
  OnSimulated on(options);
  char* const block = on.Allocate(20 * kMiB);
  on.runtime->SetHangs(on.stream, true);
  WEFT_ASSERT_OK(on.runtime->MemsetAsync(block, 0, 20 * kMiB, on.stream));
  on.allocator.Free(block);
  const auto memory = on.allocator.Allocate(24 * kMiB, on.stream);
  EXPECT_THAT(memory, StatusIs(absl::StatusCode::kResourceExhausted,
                               "the cache could not be released"));
  EXPECT_EQ(on.allocator.statistics().reserved_bytes, 20 * kMiB);
  char* const again = on.Allocate(20 * kMiB);
  EXPECT_EQ(again, block);
  on.runtime->SetHangs(on.stream, false);
  on.allocator.Free(again);
}

TEST(CachingAllocator, EndsWithoutATroubleOnALostDevice) {
  OnSimulated on;
  const Stream other = *on.runtime->CreateStream(kDevice);
  char* const block = on.Allocate(1000);
  on.allocator.RecordStream(block, other);
  char* const second = on.Allocate(1000);
  on.runtime->LoseDevice(kDevice);
  on.allocator.Free(block);
  on.allocator.Free(second);
  EXPECT_THAT(on.allocator.Allocate(30 * kMiB, on.stream),
              StatusIs(absl::StatusCode::kUnavailable, "lost"));
  EXPECT_EQ(on.allocator.statistics().awaited_blocks, 0);
}

TEST(CachingAllocator, RefusesTheStreamOfAnotherDevice) {
  const auto runtime = MakeSimulated(0, 2);
  CachingAllocator allocator(*runtime, kDevice, {});
  const Stream stream = *runtime->CreateStream(Device::Simulated(1));
  EXPECT_THAT(allocator.Allocate(1, stream),
              StatusIs(absl::StatusCode::kInvalidArgument, "simulated:1"));
  EXPECT_THAT(allocator.Allocate(1, Stream()),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CachingAllocator, RefusesMoreBytesThanAnyDeviceHas) {
  OnSimulated on;
  EXPECT_THAT(
      on.allocator.Allocate(std::numeric_limits<int64_t>::max(), on.stream),
      StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(CachingAllocatorDeathTest, EndsTheProcessAtADoubleFree) {
  OnSimulated on;
  char* const block = on.Allocate(1);
  on.allocator.Free(block);
  on.allocator.Free(nullptr);
  EXPECT_DEATH(on.allocator.Free(block), "was given back before");
}

}  // namespace
}  // namespace weft::device
