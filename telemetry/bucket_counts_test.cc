#include "weft/telemetry/bucket_counts.h"

#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::telemetry {
namespace {

using ::testing::ElementsAre;

constexpr BucketCounts<3>::Bounds kBounds = {10, 20, 50};

TEST(BucketCounts, ValueIsInTheFirstBucketWhoseBoundItDoesNotExceed) {
  BucketCounts<3> counts(kBounds);
  for (const int64_t value : {0, 10, 11, 50, 51, 1000}) counts.Add(value);
  const auto found = counts.TakeNew();
  EXPECT_THAT(found.counts, ElementsAre(2, 1, 1, 2));
  EXPECT_EQ(found.sum, 1122);
}

TEST(BucketCounts, ValueIsTakenOnce) {
  BucketCounts<3> counts(kBounds);
  counts.Add(5);
  EXPECT_FALSE(counts.TakeNew().empty);
  EXPECT_TRUE(counts.TakeNew().empty);
  counts.Add(60);
  const auto found = counts.TakeNew();
  EXPECT_THAT(found.counts, ElementsAre(0, 0, 0, 1));
  EXPECT_EQ(found.sum, 60);
}

TEST(BucketCounts, NoValueOfManyThreadsIsLost) {
  constexpr int kThreads = 4, kValues = 20000;
  BucketCounts<3> counts(kBounds);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kValues; ++i) counts.Add(i % 60);
    });
  }
  double count = 0, sum = 0;
  const auto take = [&] {
    const auto found = counts.TakeNew();
    count += std::accumulate(found.counts.begin(), found.counts.end(), 0.0);
    sum += found.sum;
  };
  for (int i = 0; i < 100; ++i) take();
  for (std::thread& thread : threads) thread.join();
  take();
  EXPECT_EQ(count, kThreads * kValues);
  double wanted = 0;
  for (int i = 0; i < kValues; ++i) wanted += i % 60;
  EXPECT_EQ(sum, kThreads * wanted);
}

}  // namespace
}  // namespace weft::telemetry
