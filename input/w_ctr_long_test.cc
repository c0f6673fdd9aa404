#include "gtest/gtest.h"
#include "weft/input/w_ctr_learner.h"

namespace weft::input {
namespace {

// The specification's table, to the digits that it shows.
TEST(WCtrLong, TheReferenceLearnerReachesItsKnownScores) {
  struct Known {
    int64_t rows;
    double auc, log_loss;
    int64_t distinct_keys;
  };
  WCtrLearner learner;
  int64_t learned = 0;
  for (const Known& known : {Known{256000, 0.77615, 0.44195, 422754},
                             Known{512000, 0.78339, 0.43600, 666955},
                             Known{1024000, 0.78905, 0.43128, 1035086}}) {
    learner.Learn(learned, known.rows);
    learned = known.rows;
    const WCtrLearner::Score score = learner.Test(50000);
    EXPECT_NEAR(score.auc, known.auc, 1e-5) << known.rows;
    EXPECT_NEAR(score.log_loss, known.log_loss, 1e-5) << known.rows;
    EXPECT_EQ(learner.distinct_keys(), known.distinct_keys);
  }
}

}  // namespace
}  // namespace weft::input
