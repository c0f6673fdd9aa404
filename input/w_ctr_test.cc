#include "weft/input/w_ctr.h"

#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/input/metrics.h"
#include "weft/input/w_ctr_learner.h"

namespace weft::input {
namespace {

using ::testing::ElementsAreArray;
using w_ctr::kFirstTestRow;
using w_ctr::Truth;

struct KnownRow {
  int64_t index;
  std::vector<int64_t> values;
  double x0;
  double lr_logit;
  bool lr_label;
  double fm_logit;
  bool fm_label;
};

// The test vectors of the specification.
const KnownRow kKnownRows[] = {
    {0,
     {11, 18, 236, 7, 4, 3,  36, 141,   3, 16, 3, 1,  1,
      1,  1,  34,  2, 6, 34, 1,  66803, 4, 7,  2, 18, 6},
     -1.661485383,
     -3.195422377,
     false,
     -3.999905986,
     false},
    {1,
     {13, 2,  24288, 46177, 1, 6,   2, 1, 3, 3061, 137,  62449, 3,
      2,  12, 3,     3,     1, 126, 4, 1, 1, 11,   5103, 65,    32074},
     0.189733776,
     -0.658474064,
     true,
     1.047736581,
     true},
    {kFirstTestRow,
     {62, 219,   7, 1, 9, 6,   2, 6, 2, 197, 21, 53, 4,
      1,  11941, 1, 3, 1, 389, 1, 1, 1, 11,  1,  61, 10746},
     0.334538256,
     -0.152154129,
     true,
     -0.239762947,
     false}};

TEST(WCtr, HashesEqualTheTestVectors) {
  EXPECT_EQ(w_ctr::Mix(1), 0x910a2dec89025cc1u);
  EXPECT_EQ(w_ctr::Hash3(1, 2, 3), 0xd0734750fde362b3u);
  EXPECT_DOUBLE_EQ(w_ctr::Uniform(w_ctr::Mix(1)), 0.56656157517228101);
  EXPECT_DOUBLE_EQ(w_ctr::NearlyNormal(w_ctr::Mix(1)), -0.61751353635935691);
}

TEST(WCtr, RowsEqualTheTestVectors) {
  for (const KnownRow& known : kKnownRows) {
    const w_ctr::Row lr =
        w_ctr::MakeRow(known.index, Truth::kLogisticRegression);
    const w_ctr::Row fm =
        w_ctr::MakeRow(known.index, Truth::kFactorizationMachine);
    EXPECT_THAT(lr.values, ElementsAreArray(known.values));
    EXPECT_EQ(fm.values, lr.values);
    EXPECT_NEAR(lr.dense[0], known.x0, 5e-10);
    EXPECT_NEAR(lr.logit, known.lr_logit, 5e-10);
    EXPECT_NEAR(fm.logit, known.fm_logit, 5e-10);
    EXPECT_EQ(lr.label, known.lr_label);
    EXPECT_EQ(fm.label, known.fm_label);
  }
}

TEST(WCtr, TheFirstThousandRowsHold227Positives) {
  int positives = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    positives += w_ctr::MakeRow(i, Truth::kLogisticRegression).label;
  }
  EXPECT_EQ(positives, 227);
}

TEST(WCtrDataset, BatchesHoldTheRowsWithTheirKeys) {
  const auto data = WCtrDataset::Create({kFirstTestRow - 1, 3});
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(data->size(), 3);
  const auto batch = data->GetBatch({1, 0, 1});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ((*batch)[0].shape(), Shape({3, 26}));
  EXPECT_EQ((*batch)[1].shape(), Shape({3, 13}));
  EXPECT_EQ((*batch)[2].ToVector<float>()[0], 1.0f);
  EXPECT_EQ((*batch)[0].ToVector<int64_t>()[25], (int64_t{25} << 32) | 10746);
  const auto one = data->Get(1);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ((*one)[0].ToVector<int64_t>(),
            (*batch)[0].Select(0, 2).ToVector<int64_t>());
  EXPECT_EQ((*one)[2].dim(), 0);
}

TEST(WCtrDataset, RefusesMalformedRanges) {
  EXPECT_EQ(WCtrDataset::Create({-1, 3}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto data = WCtrDataset::Create({0, 3});
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(data->Get(3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(data->Get(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

// Over all rows of the known answers.
TEST(WCtr, BayesScoresEqualTheKnownAnswers) {
  struct Known {
    Truth truth;
    double rate, auc, loss;
  };
  for (const Known& known :
       {Known{Truth::kLogisticRegression, 0.22238, 0.81616, 0.40833},
        Known{Truth::kFactorizationMachine, 0.23586, 0.86314, 0.36976}}) {
    std::vector<double> logits;
    std::vector<float> labels;
    double positives = 0;
    for (int64_t i = 0; i < 200000; ++i) {
      const w_ctr::Row row = w_ctr::MakeRow(kFirstTestRow + i, known.truth);
      logits.push_back(row.logit);
      labels.push_back(row.label ? 1.0f : 0.0f);
      positives += row.label;
    }
    EXPECT_NEAR(positives / 200000, known.rate, 5.1e-6);
    EXPECT_NEAR(Auc(logits, labels).value_or(0), known.auc, 5.1e-6);
    EXPECT_NEAR(LogLoss(logits, labels).value_or(0), known.loss, 5.1e-6);
  }
}

// Computed by tools/w_ctr_reference.py, which shares no code with this.
TEST(WCtr, TheReferenceLearnerKeepsPaceFor32768Rows) {
  WCtrLearner learner;
  learner.Learn(0, 32768);
  const WCtrLearner::Score score = learner.Test(50000);
  EXPECT_NEAR(score.auc, 0.736512, 2e-5);
  EXPECT_NEAR(score.log_loss, 0.472727, 2e-5);
  EXPECT_EQ(learner.distinct_keys(), 103817);
}

TEST(Metrics, AucCountsPairsAndHalvesTies) {
  // Pairs: (0.8 > 0.1), (0.8 > 0.5), (0.5 > 0.1), (0.5 = 0.5): 3.5 of 4.
  const auto auc = Auc({0.1, 0.5, 0.5, 0.8}, {0, 0, 1, 1});
  ASSERT_TRUE(auc.ok());
  EXPECT_DOUBLE_EQ(*auc, 3.5 / 4);
}

TEST(Metrics, LogLossIsFiniteForHugeLogits) {
  EXPECT_DOUBLE_EQ(LogLoss({0.0}, {1}).value_or(0), std::log(2.0));
  EXPECT_DOUBLE_EQ(LogLoss({1e4, -1e4}, {0, 0}).value_or(0), 5e3);
}

TEST(Metrics, RefuseUndefinedInputs) {
  EXPECT_FALSE(Auc({0.1, 0.2}, {1, 1}).ok());
  EXPECT_FALSE(Auc({0.1}, {1, 0}).ok());
  EXPECT_FALSE(Auc({std::nan(""), 1.0}, {1, 0}).ok());
  EXPECT_FALSE(LogLoss({}, {}).ok());
}

}  // namespace
}  // namespace weft::input
