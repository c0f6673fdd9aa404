#include "weft/train/finite.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "weft/nn/layers.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class FiniteTest : public ::testing::Test {
 protected:
  Generator generator_{1};
  nn::Linear model_{3, 2, generator_};
};

TEST_F(FiniteTest, FiniteLossIsOk) {
  EXPECT_THAT(CheckLoss(2.3, 7, "trainer0", model_), IsOk());
  EXPECT_THAT(CheckFinite(model_), IsOk());
}

TEST_F(FiniteTest, LossThatIsNotFiniteNamesStepAndParameter) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(CheckLoss(nan, 7, "trainer1", model_),
              StatusIs(absl::StatusCode::kOutOfRange,
                       "trainer1, step 7: the loss is nan; all parameters are "
                       "finite; try a smaller --lr"));
  const auto state = model_.StateDict();
  const auto& [name, tensor] = *state.begin();
  tensor.span<float>()[1] = std::numeric_limits<float>::infinity();
  const absl::Status diverged = CheckLoss(nan, 7, "trainer1", model_);
  EXPECT_THAT(diverged,
              StatusIs(absl::StatusCode::kOutOfRange,
                       "the parameter " + name + " has inf at element 1"));
  EXPECT_EQ(worker::ExitCodeFor(diverged), worker::ExitCode::kDiverged);
  EXPECT_THAT(CheckFinite(model_),
              StatusIs(absl::StatusCode::kOutOfRange, name + " has inf"));
}

}  // namespace
}  // namespace weft::train
