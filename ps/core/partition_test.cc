#include "weft/ps/core/partition.h"

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

// Rows of two floats, learning by w -= g.
std::unique_ptr<TableLayout> SgdLayout() {
  v1::TableSpec spec;
  spec.set_name("t");
  spec.set_kind(v1::TableSpec::SPARSE);
  spec.set_dim(2);
  spec.set_mode(v1::TableSpec::ASYNC);
  spec.mutable_rule()->mutable_sgd()->set_lr(1.0);
  return *TableLayout::Create(spec);
}

class PartitionTest : public ::testing::Test {
 protected:
  absl::StatusOr<bool> Push(uint64_t client, uint64_t sequence,
                            std::vector<uint64_t> keys,
                            std::vector<float> values) {
    PushSpan span{client, sequence, keys, values.data()};
    return partition_.ApplyOnce(span);
  }
  std::vector<float> Read(std::vector<uint64_t> keys) {
    std::vector<float> out(2 * keys.size());
    partition_.Read(keys, out.data());
    return out;
  }

  std::unique_ptr<TableLayout> layout_ = SgdLayout();
  Partition partition_{layout_.get()};
};

TEST_F(PartitionTest, AppliesARuleToTheRowsThatAPushNames) {
  EXPECT_THAT(Push(1, 1, {10, 20}, {1, 2, 3, 4}), IsOkAndHolds(true));
  EXPECT_THAT(Read({10, 20, 30}), ElementsAre(-1, -2, -3, -4, 0, 0));
  EXPECT_EQ(partition_.rows(), 2);
}

TEST_F(PartitionTest, ReadingLeavesNoTrace) {
  Read({1, 2, 3});
  EXPECT_EQ(partition_.rows(), 0);
}

TEST_F(PartitionTest, APushSentAgainIsAppliedOnce) {
  ASSERT_THAT(Push(1, 1, {10}, {1, 1}), IsOkAndHolds(true));
  EXPECT_THAT(Push(1, 1, {10}, {1, 1}), IsOkAndHolds(false));
  EXPECT_THAT(Push(2, 1, {10}, {1, 1}), IsOkAndHolds(true));  // another client
  EXPECT_THAT(Read({10}), ElementsAre(-2, -2));
  EXPECT_TRUE(partition_.Applied(1, 1));
  EXPECT_FALSE(partition_.Applied(1, 2));
  EXPECT_FALSE(partition_.Applied(3, 1));
}

TEST_F(PartitionTest, ARefusedPushChangesNothing) {
  ASSERT_THAT(Push(1, 1, {10}, {1, 1}), IsOk());
  EXPECT_THAT(Push(1, 100, {10}, {1, 1}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "push 100"));
  EXPECT_THAT(Read({10}), ElementsAre(-1, -1));
}

TEST_F(PartitionTest, AddsUpThePartsOfARoundAndStepsOnce) {
  const std::vector<uint64_t> a_keys = {1, 2}, b_keys = {2, 3};
  const std::vector<float> a = {2, 2, 4, 4}, b = {6, 6, 8, 8};
  const std::vector<PushSpan> parts = {{1, 1, a_keys, a.data()},
                                       {2, 1, b_keys, b.data()}};
  partition_.ApplySum(parts, 0.5f);
  EXPECT_THAT(Read({1, 2, 3}), ElementsAre(-1, -1, -5, -5, -4, -4));
  EXPECT_THAT(partition_.Image().steps, Each(1));
}

// What spreadsheet arithmetic cannot show: no push is lost or doubled when
// eight clients push the same row at once, each push twice.
TEST_F(PartitionTest, ConcurrentPushesOfOneRowAllCountOnce) {
  constexpr int kClients = 8;
  constexpr int kPushes = 500;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([this, c] {
      for (int n = 1; n <= kPushes; ++n) {
        for (int copy = 0; copy < 2; ++copy) {
          EXPECT_THAT(Push(c + 1, n, {5}, {1, 2}), IsOkAndHolds(copy == 0));
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_THAT(Read({5}),
              ElementsAre(-kClients * kPushes, -2 * kClients * kPushes));
}

TEST_F(PartitionTest, AnImageRestoresRowsSlotsAndSteps) {
  v1::TableSpec spec = layout_->spec();
  spec.mutable_rule()->mutable_adam()->set_lr(0.1);
  const auto adam = *TableLayout::Create(spec);
  Partition first(adam.get()), second(adam.get());
  const std::vector<uint64_t> keys = {3, 1};
  const std::vector<float> g = {1, 2, 3, 4};
  const auto push = [&](Partition& p, uint64_t n) {
    PushSpan span{9, n, keys, g.data()};
    return p.ApplyOnce(span);
  };
  ASSERT_THAT(push(first, 1), IsOk());
  ASSERT_THAT(push(first, 2), IsOk());
  const PartitionImage image = first.Image();
  EXPECT_THAT(image.keys, ElementsAre(1, 3));
  second.Load(image);
  EXPECT_EQ(second.windows(), 0);
  ASSERT_THAT(push(first, 3), IsOkAndHolds(true));
  ASSERT_THAT(push(second, 1), IsOkAndHolds(true));  // of an opening of its own
  EXPECT_EQ(first.Image().weights, second.Image().weights);
  EXPECT_EQ(first.Image().slots, second.Image().slots);
}

TEST_F(PartitionTest, ForgetsTheWindowsOfClientsThatAreGone) {
  for (uint64_t client = 1; client <= 1000; ++client) {
    ASSERT_THAT(Push(client, 1, {10}, {1, 1}), IsOkAndHolds(true));
    if (client > 1) partition_.Forget({client - 1});
    EXPECT_EQ(partition_.windows(), 1);
  }
  EXPECT_THAT(Push(1000, 1, {10}, {1, 1}), IsOkAndHolds(false));
  EXPECT_THAT(Read({10}), ElementsAre(-1000, -1000));
}

TEST_F(PartitionTest, LearningRateIsScaled) {
  const std::vector<uint64_t> keys = {1};
  const std::vector<float> g = {2, 4};
  const PushSpan span{9, 1, keys, g.data()};
  ASSERT_THAT(partition_.ApplyOnce(span, 0.5), IsOkAndHolds(true));
  EXPECT_THAT(Read({1}), ElementsAre(-1, -2));
  partition_.ApplySum({span}, 1, 0.25);
  EXPECT_THAT(Read({1}), ElementsAre(-1.5, -3));
}

TEST_F(PartitionTest, PutMakesARowButDoesNotOverwriteOne) {
  const std::vector<float> w = {7, 8}, other = {1, 1};
  partition_.Put(4, w);
  partition_.Put(4, other);
  EXPECT_THAT(Read({4}), ElementsAre(7, 8));
}

TEST_F(PartitionTest, ManyRowsAcrossManyChunks) {
  for (uint64_t k = 0; k < 50000; ++k) {
    ASSERT_THAT(Push(1, k + 1, {k}, {1.0f, static_cast<float>(k)}), IsOk());
  }
  EXPECT_THAT(Read({49999}), ElementsAre(-1, -49999));
  EXPECT_EQ(partition_.rows(), 50000);
  EXPECT_GT(partition_.memory_bytes(), 50000 * 8);
}

// Rules of no slot to three, of which some look at a row's step, and some at
// whole rows.
std::vector<optimizer::v1::RuleSpec> Rules() {
  std::vector<optimizer::v1::RuleSpec> rules(14);
  rules[0].mutable_sgd()->set_lr(0.1);
  rules[1].mutable_sgd()->set_momentum(0.9);
  rules[2].mutable_adam()->set_lr(0.1);
  rules[3].mutable_adagrad()->set_lr_decay(0.1);
  rules[4].mutable_ftrl()->set_lr(0.1);
  rules[5].mutable_adam()->set_amsgrad(true);
  rules[6].mutable_rmsprop()->set_centered(true);
  rules[6].mutable_rmsprop()->set_momentum(0.9);
  rules[7].mutable_adadelta()->set_lr(0.5);
  rules[8].mutable_lion()->set_weight_decay(0.1);
  rules[9].mutable_lamb()->set_lr(0.1);
  rules[10].mutable_rowwise_adagrad()->set_lr(0.1);
  rules[11].mutable_adam()->set_lr(0.1);
  rules[11].set_clip_norm(3);
  rules[12].mutable_sgd()->set_lr(0.1);
  rules[12].set_clip_value(2);
  rules[13].mutable_rowwise_adagrad()->set_weight_decay(0.1);
  rules[13].set_clip_value(4);
  rules[13].set_clip_norm(5);
  return rules;
}

TEST(Partition, RowsOfOnePushHaveTheBitsOfRowsPushedAlone) {
  for (const optimizer::v1::RuleSpec& rule : Rules()) {
    for (const int64_t dim : {1, 2, 5, 16, 17}) {
      v1::TableSpec spec = SgdLayout()->spec();
      spec.set_dim(dim);
      *spec.mutable_rule() = rule;
      spec.mutable_initializer()->set_kind(v1::Initializer::UNIFORM);
      spec.mutable_initializer()->set_scale(0.5);
      const auto layout = *TableLayout::Create(spec);
      Partition together(layout.get()), alone(layout.get());
      uint64_t sequence = 0;
      // Each push names other rows, so that their steps differ. The last rows
      // are new, and making them moves other rows.
      for (uint64_t first : {0, 100, 50, 0, 300, 20}) {
        std::vector<uint64_t> keys;
        std::vector<float> values;
        for (uint64_t k = 0; k < 400; ++k) {
          keys.push_back(first + k);
          for (int64_t d = 0; d < dim; ++d) {
            values.push_back(static_cast<float>((k * 7 + d * 3) % 11) - 5);
          }
        }
        ++sequence;
        ASSERT_THAT(together.ApplyOnce({1, sequence, keys, values.data()}),
                    IsOkAndHolds(true));
        for (size_t i = 0; i < keys.size(); ++i) {
          const PushSpan one{2, sequence * 1000 + i,
                             absl::MakeConstSpan(keys).subspan(i, 1),
                             values.data() + i * dim};
          alone.ApplySum({one}, 1);
        }
      }
      const PartitionImage image = together.Image(), wanted = alone.Image();
      EXPECT_EQ(image.keys, wanted.keys);
      EXPECT_EQ(image.steps, wanted.steps);
      EXPECT_EQ(image.weights, wanted.weights) << dim;
      EXPECT_EQ(image.slots, wanted.slots) << dim;
    }
  }
}

// A dense table of which one partition has three slices, the last one short.
TEST(Partition, RoundThatIsReadHasTheBitsOfARoundAndARead) {
  constexpr int64_t kElements = 2500;
  for (const optimizer::v1::RuleSpec& rule : Rules()) {
    v1::TableSpec spec = SgdLayout()->spec();
    spec.set_kind(v1::TableSpec::DENSE);
    spec.set_elements(kElements);
    spec.set_partitions(1);
    *spec.mutable_rule() = rule;
    const auto made = TableLayout::Create(spec);
    if (!made.ok()) continue;  // the rule looks at whole rows
    const TableLayout& layout = **made;
    ASSERT_EQ(layout.slices(), 3);
    const std::vector<uint64_t> slices = {0, 1, 2};
    std::vector<std::vector<float>> gradients(3);
    for (size_t part = 0; part < gradients.size(); ++part) {
      for (int64_t i = 0; i < kElements; ++i) {
        gradients[part].push_back(
            static_cast<float>((i * 7 + part * 31) % 13) / 7 - 0.9f);
      }
    }
    for (const size_t parts : {1, 3}) {
      for (const float scale : {1.0f, 1.0f / 3}) {
        Partition read(&layout), unread(&layout), logged(&layout);
        for (int round = 0; round < 3; ++round) {
          std::vector<PushSpan> spans;
          for (size_t part = 0; part < parts; ++part) {
            spans.push_back(
                {part + 1, PushSpan::kUnnumbered, slices,
                 gradients[(part + static_cast<size_t>(round)) % 3].data()});
          }
          std::vector<float> values(kElements + 1, 77), wanted(kElements);
          EXPECT_EQ(read.ApplySumAndRead(spans, scale, 0.5, values.data()),
                    values.data() + kElements);
          EXPECT_EQ(values.back(), 77);
          values.pop_back();
          unread.ApplySum(spans, scale, 0.5);
          unread.Read(slices, wanted.data());
          EXPECT_EQ(values, wanted);
          // The sum, as the backup of a replicated table gets it.
          const SpanSum sum = SumSpans(layout, spans, scale);
          logged.ApplySum({{0, 0, sum.keys, sum.values.data()}}, 1, 0.5);
        }
        EXPECT_EQ(read.Image().weights, logged.Image().weights);
        EXPECT_EQ(read.Image().slots, logged.Image().slots);
        EXPECT_EQ(read.Image().steps, logged.Image().steps);
        EXPECT_EQ(read.Image().weights, unread.Image().weights);
      }
    }
  }
}

// Rows of `dim` floats that learn by `rule`.
std::unique_ptr<TableLayout> LayoutOf(const optimizer::v1::RuleSpec& rule,
                                      int64_t dim) {
  v1::TableSpec spec = SgdLayout()->spec();
  spec.set_dim(dim);
  *spec.mutable_rule() = rule;
  return *TableLayout::Create(spec);
}

// Four rows whose lengths are 4, 4, 2 and 0, with a rule that divides by the
// length of a row alone: with lr 1 and nothing summed before, w = -g / |g| * 2.
TEST(Partition, RowOfARowwiseRuleHasItsOwnNorm) {
  optimizer::v1::RuleSpec rule;
  rule.mutable_rowwise_adagrad()->set_lr(1);
  const auto layout = LayoutOf(rule, 4);
  Partition partition(layout.get());
  const std::vector<uint64_t> keys = {1, 2, 3, 4};
  const std::vector<float> gradient = {2, -2, 2, 2, 4, 0, 0, 0,
                                       0, 2,  0, 0, 0, 0, 0, 0};
  ASSERT_THAT(partition.ApplyOnce({1, 1, keys, gradient.data()}),
              IsOkAndHolds(true));
  const PartitionImage image = partition.Image();
  EXPECT_THAT(image.weights,
              ElementsAre(-1, 1, -1, -1, -2, 0, 0, 0, 0, -2, 0, 0, 0, 0, 0, 0));
  // The means of their squares, one value for a row.
  EXPECT_THAT(image.slots, ElementsAre(ElementsAre(4, 4, 1, 0)));
}

TEST(Partition, AnImageOfARowwiseRuleRestoresIt) {
  optimizer::v1::RuleSpec rule;
  rule.mutable_rowwise_adagrad()->set_initial_accumulator(0.25);
  const auto layout = LayoutOf(rule, 3);
  const Placement placement("t", layout->spec().partitions(), 1);
  std::vector<uint64_t> keys;  // of one partition
  const int home = placement.PartitionOfKey(0);
  for (uint64_t key = 0; keys.size() < 20; ++key) {
    if (placement.PartitionOfKey(key) == home) keys.push_back(key);
  }
  std::vector<float> gradient;
  for (int i = 0; i < 60; ++i) gradient.push_back(0.25f * (i % 7) - 0.5f);
  Partition first(layout.get()), second(layout.get()), third(layout.get());
  ASSERT_THAT(first.ApplyOnce({1, 1, keys, gradient.data()}), IsOk());
  PartitionImage image = first.Image();
  ASSERT_THAT(CheckImage(*layout, placement, home, image), IsOk());
  second.Load(image);
  third.Put(keys[3], {9, 9, 9});  // it has been made anew since
  third.Add(image);
  for (Partition* partition : {&first, &second, &third}) {
    ASSERT_THAT(partition->ApplyOnce({1, 2, keys, gradient.data()}), IsOk());
    EXPECT_EQ(partition->Image().weights, first.Image().weights);
    EXPECT_EQ(partition->Image().slots, first.Image().slots);
  }
  image.slots[0].resize(60);  // as long as the weights
  EXPECT_THAT(CheckImage(*layout, placement, home, image),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "or one value for each of 20 rows"));
  image.slots.clear();
  EXPECT_THAT(CheckImage(*layout, placement, home, image),
              StatusIs(absl::StatusCode::kInvalidArgument, "0 slots"));
}

// 64 weights with one float more, in place of 64.
TEST(Partition, RowwiseRuleTakesOneFloatMoreThanTheWeights) {
  const auto memory_of = [](const optimizer::v1::RuleSpec& rule) {
    const auto layout = LayoutOf(rule, 64);
    Partition partition(layout.get());
    const std::vector<float> row(64);
    for (uint64_t key = 0; key < 20000; ++key) partition.Put(key, row);
    return static_cast<double>(partition.memory_bytes()) / 20000;
  };
  optimizer::v1::RuleSpec sgd, rowwise, adagrad;
  sgd.mutable_sgd();
  rowwise.mutable_rowwise_adagrad();
  adagrad.mutable_adagrad();
  const double weights = memory_of(sgd);
  EXPECT_NEAR(memory_of(rowwise) - weights, 4, 8);  // chunks are not full
  EXPECT_NEAR(memory_of(adagrad) - weights, 256, 8);
}

}  // namespace
}  // namespace weft::ps
