#include "weft/ddp/bucket_plan.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/testing/simulated_context.h"

namespace weft::ddp {
namespace {

using ::testing::ElementsAre;

using Plan = std::vector<Bucket>;

std::vector<BucketItem> Floats(const std::vector<int64_t>& elements) {
  std::vector<BucketItem> items;
  for (const int64_t n : elements) items.push_back({n * 4});
  return items;
}

// f32[50], f64[25], f32[50], ...: 200 bytes each.
std::vector<BucketItem> Alternating(int count) {
  std::vector<BucketItem> items;
  for (int i = 0; i < count; ++i) {
    items.push_back({200, i % 2 == 0 ? DType::kF32 : DType::kF64});
  }
  return items;
}

TEST(PlanBuckets, ItemThatReachesTheLimitClosesItsBucket) {
  EXPECT_EQ(PlanBuckets(Floats({100, 200, 100, 50}), {400}),
            (Plan{{0}, {1}, {2}, {3}}));
}

TEST(PlanBuckets, DTypesNeverShareABucket) {
  EXPECT_EQ(PlanBuckets(Alternating(6), {400}),
            (Plan{{0, 2}, {1, 3}, {4}, {5}}));
}

TEST(PlanBuckets, LaterBucketsHaveTheNextLimit) {
  EXPECT_EQ(PlanBuckets(Floats({10, 10, 10, 10}), {40, 80}),
            (Plan{{0}, {1, 2}, {3}}));
}

TEST(PlanBuckets, EachDTypeHasItsOwnPlaceInTheLimits) {
  EXPECT_EQ(PlanBuckets(Alternating(10), {200, 400}),
            (Plan{{0}, {1}, {2, 4}, {3, 5}, {6, 8}, {7, 9}}));
}

TEST(PlanBuckets, DevicesNeverShareABucket) {
  std::vector<BucketItem> items = Floats({1, 1, 1});
  device::testing::SimulatedDevices devices(1);
  items[1].device = Device(devices.context(), 0);
  EXPECT_EQ(PlanBuckets(items, {400}), (Plan{{0, 2}, {1}}));
}

TEST(PlanBuckets, SparseItemHasABucketOfItsOwn) {
  std::vector<BucketItem> items = Floats({1, 1, 1});
  items[1].is_sparse = true;
  EXPECT_EQ(PlanBuckets(items, {400}), (Plan{{0, 2}, {1}}));
}

TEST(PlanBuckets, GivenOrderDecidesTheOrderOfBuckets) {
  EXPECT_EQ(PlanBuckets(Floats({100, 10, 10, 100}), {400}, {3, 2, 1, 0}),
            (Plan{{3}, {2, 1, 0}}));
}

TEST(PlanBuckets, NoItemsMakeNoBuckets) {
  EXPECT_THAT(PlanBuckets({}, {400}), ElementsAre());
}

}  // namespace
}  // namespace weft::ddp
