#include "weft/tensor/storage.h"

#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"

namespace weft {
namespace {

using ::testing::Each;

std::vector<int> BytesOf(const Storage& storage) {
  const auto* const bytes = reinterpret_cast<uint8_t*>(storage.memory());
  return std::vector<int>(bytes, bytes + storage.bytes());
}

TEST(Storage, IsAlignedAsItsSizeDemands) {
  std::vector<IntrusivePtr<Storage>> kept;
  for (const int64_t bytes : {0, 1, 16, 63, 64, 65, 100, 4095, 4096, 100000}) {
    const auto storage = Storage::Allocate(bytes);
    kept.push_back(storage);
    EXPECT_EQ(storage->bytes(), bytes);
    EXPECT_TRUE(storage->owns_memory());
    EXPECT_FALSE(storage->is_wrapped());
    const auto address = reinterpret_cast<uintptr_t>(storage->memory());
    EXPECT_EQ(address % (bytes <= 64 ? 16 : 64), 0u) << bytes;
    std::memset(storage->memory(), 0x5A, static_cast<size_t>(bytes));
    EXPECT_THAT(BytesOf(*storage), Each(0x5A));
  }
}

TEST(Storage, OfSomeoneElseIsWrappedAndKeepsItsOwner) {
  char memory[8] = {};
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owner;
  auto storage = Storage::Wrap(memory, 8, std::move(owner));
  EXPECT_TRUE(storage->is_wrapped());
  EXPECT_FALSE(storage->owns_memory());
  EXPECT_EQ(storage->memory(), memory);
  EXPECT_FALSE(watch.expired());
  storage = {};
  EXPECT_TRUE(watch.expired());
  EXPECT_TRUE(Storage::Wrap(memory, 8, nullptr)->is_wrapped());
}

TEST(Hold, IsFreeUntilVersionsAreKept) {
  const auto storage = Storage::Allocate(4);
  storage->BumpVersion();
  uint64_t version = 99;
  EXPECT_FALSE(storage->Hold(&version));
  EXPECT_EQ(version, 1u);
  storage->KeepVersions();
  const auto held = storage->Hold(&version);
  ASSERT_TRUE(held);
  EXPECT_EQ(version, 1u);
  EXPECT_FALSE(held->copy());  // No update began.
  storage->KeepVersions();     // Again: nothing is lost.
  uint64_t again = 0;
  EXPECT_EQ(storage->Hold(&again), held);
}

TEST(BeginUpdate, GivesEachHolderTheBytesOfItsVersion) {
  const auto storage = Storage::Allocate(100);
  storage->KeepVersions();
  std::memset(storage->memory(), 1, 100);
  uint64_t first_version = 0, second_version = 0;
  const auto first = storage->Hold(&first_version);
  const auto also_first = storage->Hold(&first_version);
  storage->BeginUpdate();
  EXPECT_EQ(storage->version(), first_version + 1);
  std::memset(storage->memory(), 2, 100);
  const auto second = storage->Hold(&second_version);
  EXPECT_EQ(second_version, first_version + 1);
  EXPECT_FALSE(second->copy());
  storage->BeginUpdate();
  std::memset(storage->memory(), 3, 100);
  ASSERT_TRUE(first->copy());
  ASSERT_TRUE(second->copy());
  EXPECT_THAT(BytesOf(*first->copy()), Each(1));
  EXPECT_THAT(BytesOf(*second->copy()), Each(2));
  EXPECT_EQ(first->version(), first_version);
  EXPECT_EQ(second->version(), second_version);
  // One copy serves all who hold the version.
  EXPECT_EQ(also_first->copy(), first->copy());
}

TEST(BeginUpdate, OutlivedByItsHolders) {
  auto storage = Storage::Allocate(1);
  storage->KeepVersions();
  *storage->memory() = 7;
  uint64_t version = 0;
  const auto held = storage->Hold(&version);
  storage->BeginUpdate();
  *storage->memory() = 8;
  storage = {};
  EXPECT_THAT(BytesOf(*held->copy()), Each(7));
}

// Readers hold whatever version they meet while one thread goes on updating.
TEST(BeginUpdate, IsSeenWholeByReadersOnOtherThreads) {
  constexpr int kUpdates = 100;
  constexpr int64_t kBytes = 4096;
  const auto storage = Storage::Allocate(kBytes);
  storage->KeepVersions();
  std::memset(storage->memory(), 0, kBytes);
  struct Reading {
    uint64_t version;
    IntrusivePtr<HeldVersion> held;
  };
  std::vector<std::vector<Reading>> readings(3);
  std::vector<std::thread> readers;
  for (std::vector<Reading>& mine : readings) {
    readers.emplace_back([&storage, &mine] {
      do {
        Reading& reading = mine.emplace_back();
        reading.held = storage->Hold(&reading.version);
        std::this_thread::yield();
      } while (mine.back().version < kUpdates && mine.size() < 100000);
    });
  }
  for (int i = 1; i <= kUpdates; ++i) {
    storage->BeginUpdate();
    // The number of the version, as the next copy must find it.
    std::memset(storage->memory(), i, kBytes);
    std::this_thread::yield();
  }
  for (std::thread& reader : readers) reader.join();
  for (const std::vector<Reading>& mine : readings) {
    for (const Reading& reading : mine) {
      const auto copy = reading.held->copy();
      if (!copy) {
        EXPECT_EQ(reading.version, static_cast<uint64_t>(kUpdates));
        continue;
      }
      ASSERT_EQ(reading.held->version(), reading.version);
      ASSERT_THAT(BytesOf(*copy), Each(static_cast<int>(reading.version)));
    }
  }
}

struct Counted : RefCounted<Counted> {
  explicit Counted(int* ended) : ended_(ended) {}
  ~Counted() { ++*ended_; }
  int* const ended_;
};

TEST(IntrusivePtr, EndsTheObjectWithItsLastOwner) {
  int ended = 0;
  {
    auto a = MakeIntrusive<Counted>(&ended);
    EXPECT_TRUE(a->is_unique());
    auto b = a;
    EXPECT_FALSE(a->is_unique());
    const auto& same = b;
    b = same;  // To itself.
    auto c = std::move(a);
    EXPECT_FALSE(a);  // NOLINT: a moved pointer is null.
    EXPECT_EQ(b, c);
    b = {};
    EXPECT_TRUE(c->is_unique());
    c = MakeIntrusive<Counted>(&ended);
    EXPECT_EQ(ended, 1);
  }
  EXPECT_EQ(ended, 2);
}

TEST(IntrusivePtr, IsCountedByManyThreads) {
  int ended = 0;
  {
    const auto shared = MakeIntrusive<Counted>(&ended);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([copy = shared] {
        for (int i = 0; i < 10000; ++i) {
          auto another = copy;
          const auto moved = std::move(another);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(shared->is_unique());
    EXPECT_EQ(ended, 0);
  }
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace weft
