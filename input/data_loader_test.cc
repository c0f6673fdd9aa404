#include "weft/input/data_loader.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "gtest/gtest.h"
#include "weft/base/error.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::input {
namespace {

using ::weft::testing::StatusIs;

// Example i is {i64 [] = i}. Counts how many batches are asked of it.
class Numbers final : public Dataset {
 public:
  explicit Numbers(int64_t size) : size_(size) {}

  int64_t size() const override { return size_; }

  absl::StatusOr<Example> Get(int64_t index) const override {
    if (index == fails_at) return absl::DataLossError("bad row");
    if (index == throws_at) ThrowInvalidArgument("thrown row");
    return Example{Tensor::Scalar<int64_t>(index)};
  }

  absl::StatusOr<Example> GetBatch(
      absl::Span<const int64_t> indices) const override {
    ++batches;
    return Dataset::GetBatch(indices);
  }

  int64_t fails_at = -1;
  int64_t throws_at = -1;
  mutable std::atomic<int> batches{0};

 private:
  const int64_t size_;
};

ShardedSampler Sampler(int64_t size, bool shuffle = true) {
  ShardedSampler::Options options;
  options.size = size;
  options.seed = 3;
  options.shuffle = shuffle;
  return *ShardedSampler::Create(options);
}

DataLoader::Options Batches(int64_t size, int threads) {
  DataLoader::Options options;
  options.batch_size = size;
  options.threads = threads;
  return options;
}

// The batches up to the epoch's end.
std::vector<std::vector<int64_t>> Drain(DataLoader& loader) {
  std::vector<std::vector<int64_t>> batches;
  for (;;) {
    auto batch = loader.Next();
    EXPECT_TRUE(batch.ok()) << batch.status();
    if (!batch.ok() || !batch->has_value()) return batches;
    batches.push_back((**batch)[0].ToVector<int64_t>());
  }
}

TEST(DataLoader, OrderDoesNotDependOnThreads) {
  const Numbers data(103);
  std::vector<std::vector<int64_t>> first;
  for (const int threads : {0, 1, 2, 5}) {
    const auto loader =
        DataLoader::Create(data, Sampler(103), Batches(10, threads));
    WEFT_ASSERT_OK(loader);
    EXPECT_EQ((*loader)->remaining(), 11);
    auto batches = Drain(**loader);
    ASSERT_EQ(batches.size(), 11u);
    EXPECT_EQ(batches.back().size(), 3u);
    (*loader)->SetEpoch(1);
    for (auto& batch : Drain(**loader)) batches.push_back(std::move(batch));
    if (first.empty()) first = batches;
    EXPECT_EQ(batches, first) << threads;
  }
}

TEST(DataLoader, DropLastLeavesOutASmallerBatch) {
  const Numbers data(25);
  auto options = Batches(10, 2);
  options.drop_last = true;
  const auto loader = DataLoader::Create(data, Sampler(25), options);
  WEFT_ASSERT_OK(loader);
  EXPECT_EQ((*loader)->remaining(), 2);
  EXPECT_EQ(Drain(**loader).size(), 2u);
}

TEST(DataLoader, MakesNoMoreAheadThanPrefetch) {
  const Numbers data(1000);
  auto options = Batches(1, 2);
  options.prefetch = 3;
  {
    const auto loader = DataLoader::Create(data, Sampler(1000), options);
    WEFT_ASSERT_OK(loader);
    for (int i = 0; i < 10; ++i) WEFT_ASSERT_OK((*loader)->Next());
  }
  EXPECT_GE(data.batches, 10);
  EXPECT_LE(data.batches, 13);
}

TEST(DataLoader, StateCoversReturnedBatchesNotPrefetchedOnes) {
  const Numbers data(100);
  const auto loader = DataLoader::Create(data, Sampler(100), Batches(7, 3));
  WEFT_ASSERT_OK(loader);
  (*loader)->SetEpoch(2);
  for (int i = 0; i < 4; ++i) WEFT_ASSERT_OK((*loader)->Next());
  const ShardedSampler::State state = (*loader)->state();
  EXPECT_EQ(state.used, 28);
  const auto resumed = DataLoader::Create(data, Sampler(100), Batches(7, 1));
  WEFT_ASSERT_OK(resumed);
  WEFT_ASSERT_OK((*resumed)->LoadState(state));
  EXPECT_EQ((*resumed)->remaining(), (*loader)->remaining());
  EXPECT_EQ(Drain(**resumed), Drain(**loader));
}

TEST(DataLoader, AnErrorTakesThePlaceOfItsBatchOnly) {
  Numbers data(6);
  data.fails_at = 2;
  data.throws_at = 5;
  const auto loader =
      DataLoader::Create(data, Sampler(6, /*shuffle=*/false), Batches(2, 2));
  WEFT_ASSERT_OK(loader);
  WEFT_EXPECT_OK((*loader)->Next());
  EXPECT_THAT((*loader)->Next(),
              StatusIs(absl::StatusCode::kDataLoss, "bad row"));
  EXPECT_THAT((*loader)->Next(),
              StatusIs(absl::StatusCode::kInvalidArgument, "thrown row"));
  const auto end = (*loader)->Next();
  WEFT_ASSERT_OK(end);
  EXPECT_FALSE(end->has_value());
}

TEST(DataLoader, RefusesOptionsThatMakeNoSense) {
  const Numbers data(6);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(DataLoader::Create(data, Sampler(6), Batches(0, 1)),
              StatusIs(kInvalid, "batch_size is 0, wanted at least 1"));
  EXPECT_THAT(DataLoader::Create(data, Sampler(6), Batches(1, -1)),
              StatusIs(kInvalid, "threads is -1"));
  EXPECT_THAT(DataLoader::Create(data, Sampler(7), Batches(1, 1)),
              StatusIs(kInvalid, "7 examples, the dataset has 6"));
}

TEST(Collate, NamesTheTensorThatDiffers) {
  const Example a = {Tensor::Zeros({2})};
  const Example b = {Tensor::Zeros({3})};
  EXPECT_THAT(Collate({a, b}), StatusIs(absl::StatusCode::kInvalidArgument,
                                        "tensor 0 of example 1 is f32[3]"));
  EXPECT_THAT(Collate({}), StatusIs(absl::StatusCode::kInvalidArgument));
  const auto both = Collate({a, a});
  WEFT_ASSERT_OK(both);
  EXPECT_EQ((*both)[0].shape(), Shape({2, 2}));
}

}  // namespace
}  // namespace weft::input
