// Update rules at their edges: options at their least and largest, gradients
// that are zero, NaN, infinite or huge, parameters without elements, keys that
// repeat. What is promised is quoted from the header of each rule,
// optimizer/rules/README.md or docs/parameter_server.md ("the page").

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/variable.h"
#include "weft/optimizer/optimizer.h"
#include "weft/optimizer/rules/rule_options.h"
#include "weft/optimizer/rules/rule_spec.h"
#include "weft/optimizer/rules/update_rule.h"
#include "weft/ps/client.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::optimizer {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::GetStatus;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A row with its slots, which a rule updates.
template <typename T>
class Row {
 public:
  Row(const RuleOptions& options, std::vector<T> weights,
      const ClipOptions& clip = {})
      : rule_(*MakeRule(options, clip)), weights_(std::move(weights)) {
    for (const Slot& slot : rule_->slots()) {
      slots_.emplace_back(slot.is_per_row ? 1 : weights_.size(),
                          static_cast<T>(slot.initial_value));
    }
  }
  const std::vector<T>& Step(const std::vector<T>& gradient) {
    std::vector<absl::Span<T>> slots;
    for (std::vector<T>& slot : slots_) slots.push_back(absl::MakeSpan(slot));
    StepContext context;
    context.step = ++step_;
    rule_->Apply(context, absl::MakeSpan(weights_), gradient, slots);
    return weights_;
  }
  const UpdateRule& rule() const { return *rule_; }
  const std::vector<T>& slot(int i) const { return slots_[i]; }

 private:
  const std::unique_ptr<UpdateRule> rule_;
  std::vector<T> weights_;
  std::vector<std::vector<T>> slots_;
  int64_t step_ = 0;
};

std::vector<RuleOptions> AllRules() {
  AdamOptions amsgrad;
  amsgrad.amsgrad = true;
  RmspropOptions centered;
  centered.centered = true;
  centered.momentum = 0.5;
  return {SgdOptions(),     AdamOptions(),    amsgrad,
          AdamWOptions(),   AdagradOptions(), FtrlOptions(),
          RmspropOptions(), centered,         AdadeltaOptions(),
          LionOptions(),    LambOptions(),    RowwiseAdagradOptions()};
}

// --- Options -----------------------------------------------------------------

template <typename Options>
void ExpectRange(double Options::*field, const std::string& name,
                 const std::vector<double>& good,
                 const std::vector<double>& bad) {
  for (const double value : good) {
    Options options;
    options.*field = value;
    EXPECT_THAT(Validate(RuleOptions(options)), IsOk()) << name << value;
  }
  for (const double value : bad) {
    Options options;
    options.*field = value;
    const absl::Status status = Validate(RuleOptions(options));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, name))
        << RuleName(options) << " " << value;
  }
}

// rule_options.h: the ranges beside the fields, and "kInvalidArgument names the
// option, its value and the allowed range."
TEST(RuleOptions, RangesAreThoseOfTheHeader) {
  const std::vector<double> from0 = {0, 5e-324, 1e300};
  const std::vector<double> no_from0 = {-5e-324, -1, kInf, -kInf, kNaN};
  const std::vector<double> to1 = {0, 0.5, std::nextafter(1, 0)};
  const std::vector<double> no_to1 = {1, -1e-9, 2, kInf, kNaN};
  const std::vector<double> above0 = {5e-324, 1};
  const std::vector<double> no_above0 = {0, -1, kInf, kNaN};
  ExpectRange(&RmspropOptions::lr, "lr", from0, no_from0);
  ExpectRange(&RmspropOptions::alpha, "alpha", to1, no_to1);
  ExpectRange(&RmspropOptions::momentum, "momentum", to1, no_to1);
  ExpectRange(&RmspropOptions::epsilon, "epsilon", above0, no_above0);
  ExpectRange(&RmspropOptions::weight_decay, "weight_decay", from0, no_from0);
  ExpectRange(&AdadeltaOptions::rho, "rho", to1, no_to1);
  ExpectRange(&AdadeltaOptions::epsilon, "epsilon", above0, no_above0);
  ExpectRange(&LionOptions::beta1, "beta1", to1, no_to1);
  ExpectRange(&LionOptions::beta2, "beta2", to1, no_to1);
  ExpectRange(&LionOptions::weight_decay, "weight_decay", from0, no_from0);
  ExpectRange(&LambOptions::lr, "lr", from0, no_from0);
  ExpectRange(&LambOptions::epsilon, "epsilon", above0, no_above0);
  ExpectRange(&RowwiseAdagradOptions::lr, "lr", from0, no_from0);
  ExpectRange(&RowwiseAdagradOptions::initial_accumulator,
              "initial_accumulator", from0, no_from0);
  // "0 needs initial_accumulator > 0".
  RowwiseAdagradOptions rowwise;
  rowwise.epsilon = 0;
  EXPECT_THAT(Validate(RuleOptions(rowwise)),
              StatusIs(absl::StatusCode::kInvalidArgument, "epsilon"));
  rowwise.initial_accumulator = 1;
  EXPECT_THAT(Validate(RuleOptions(rowwise)), IsOk());
  for (const double value : no_from0) {
    EXPECT_THAT(Validate(ClipOptions{value, 0}),
                StatusIs(absl::StatusCode::kInvalidArgument, "value"));
    EXPECT_THAT(Validate(ClipOptions{0, value}),
                StatusIs(absl::StatusCode::kInvalidArgument, "norm"));
  }
  EXPECT_THAT(RuleNamed("").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "rowwise_adagrad"));
  EXPECT_THAT(RuleNamed("Adam").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "lamb"));
}

// rule_spec.h: "kInvalidArgument if no rule is set"; ToSpec and FromSpec are
// each other's inverse.
TEST(RuleSpec, KeepsEveryRuleAndItsLimits) {
  EXPECT_THAT(FromSpec({}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(MakeRule(v1::RuleSpec()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  for (const RuleOptions& options : AllRules()) {
    const v1::RuleSpec spec = ToSpec(options, {0.5, 2});
    const auto back = FromSpec(spec);
    ASSERT_THAT(back.status(), IsOk());
    EXPECT_EQ(ToSpec(*back, *ClipFromSpec(spec)).SerializeAsString(),
              spec.SerializeAsString());
    EXPECT_EQ((*MakeRule(spec))->slots().size(),
              (*MakeRule(options))->slots().size());
    EXPECT_EQ(RuleNamed(RuleName(options)).value().index(), options.index());
  }
}

// --- Single steps ------------------------------------------------------------

// What a rule claims by ignores_zero_gradient ("an update with gradient 0
// changes nothing"), and no NaN out of rows and gradients that are finite.
TEST(EveryRule, ZeroGradientOfZeroWeightsStaysFiniteAndMayChangeNothing) {
  for (const RuleOptions& options : AllRules()) {
    Row<float> zeros(options, {0, 0, 0});
    for (int step = 0; step < 3; ++step) {
      EXPECT_THAT(zeros.Step({0, 0, 0}), Each(0)) << RuleName(options);
    }
    Row<float> ones(options, {1, -2, 0.5});
    ones.Step({0.5, 1e-30, -1e15});
    const std::vector<float> before = ones.Step({1, 1, 1});
    const std::vector<float> after = ones.Step({0, 0, 0});
    if (ones.rule().ignores_zero_gradient()) {
      EXPECT_EQ(before, after) << RuleName(options);
    }
    for (const float weight : after) {
      EXPECT_TRUE(std::isfinite(weight)) << RuleName(options);
    }
  }
}

// lion.h: "That of NaN is NaN, so that it shows": so it is of the others; in
// rules that go element by element it stays in its own. Not of ftrl, which
// makes of such a weight a 0 for good.
TEST(EveryRule, GradientThatIsNaNShowsAndStaysInItsElement) {
  for (const RuleOptions& options : AllRules()) {
    if (std::holds_alternative<FtrlOptions>(options)) continue;
    Row<float> row(options, {1, 2, 3});
    const std::vector<float> weights =
        row.Step({0.5, static_cast<float>(kNaN), 0.5});
    EXPECT_TRUE(std::isnan(weights[1])) << RuleName(options);
    if (row.rule().scope() != Scope::kElement) continue;
    EXPECT_TRUE(std::isfinite(weights[0])) << RuleName(options);
    EXPECT_TRUE(std::isfinite(weights[2])) << RuleName(options);
  }
}

// rmsprop.h: the formulas; "A variance that roundings made negative is 0 here".
TEST(RmspropRule, IsAsItsHeaderSays) {
  RmspropOptions options;
  options.lr = 0.1;
  options.alpha = 0.75;
  options.epsilon = 1e-3;
  options.weight_decay = 0.5;
  options.momentum = 0.5;
  options.centered = true;
  Row<double> row(options, {1.0});
  double w = 1, square = 0, mean = 0, momentum = 0;
  for (const double gradient : {0.5, -2.0, 0.0, 3.0}) {
    const double g = gradient + 0.5 * w;
    square = 0.75 * square + 0.25 * g * g;
    mean = 0.75 * mean + 0.25 * g;
    momentum = 0.5 * momentum +
               g / (std::sqrt(std::max(0.0, square - mean * mean)) + 1e-3);
    w -= 0.1 * momentum;
    EXPECT_NEAR(row.Step({gradient})[0], w, 1e-12);
  }
  // The same gradient always: the variance goes to 0 from either side.
  options = {};
  options.centered = true;
  options.alpha = 0;
  Row<float> same(options, {0, 0, 0});
  for (int step = 0; step < 100; ++step) {
    for (const float weight : same.Step({0.1f, 1e-3f, 3e15f})) {
      ASSERT_FALSE(std::isnan(weight)) << step;
    }
  }
}

// adadelta.h: the formulas, with rho 0 too.
TEST(AdadeltaRule, IsAsItsHeaderSays) {
  for (const double rho : {0.0, 0.9}) {
    AdadeltaOptions options;
    options.rho = rho;
    options.weight_decay = 0.25;
    Row<double> row(options, {2.0});
    double w = 2, square = 0, delta = 0;
    for (const double gradient : {1.0, -3.0, 0.0, 1e-8}) {
      const double g = gradient + 0.25 * w;
      square = rho * square + (1 - rho) * g * g;
      const double d = std::sqrt(delta + 1e-6) / std::sqrt(square + 1e-6) * g;
      delta = rho * delta + (1 - rho) * d * d;
      w -= d;
      EXPECT_NEAR(row.Step({gradient})[0], w, 1e-12);
    }
  }
}

// lion.h: "The sign of 0 is 0. That of NaN is NaN, so that it shows."
TEST(LionRule, SignsAreAsItsHeaderSays) {
  LionOptions options;
  options.lr = 0.5;
  options.weight_decay = 0;
  Row<float> row(options, {1, 1, 1, 1, 1, 1});
  const float nan = static_cast<float>(kNaN), inf = static_cast<float>(kInf);
  const auto weights = row.Step({0, -0.0f, 1e-38f, -1e38f, nan, inf});
  EXPECT_EQ(weights[0], 1);
  EXPECT_EQ(weights[1], 1);
  EXPECT_EQ(weights[2], 0.5f);
  EXPECT_EQ(weights[3], 1.5f);
  EXPECT_TRUE(std::isnan(weights[4]));
  EXPECT_EQ(weights[5], 0.5f);
}

// adam.h: "With amsgrad the root is that of the slot "v_max", the largest v so
// far, as PyTorch has it".
TEST(AdamRule, AmsgradKeepsTheLargest) {
  AdamOptions options;
  options.lr = 0.1;
  options.beta1 = 0;
  options.beta2 = 0;
  options.amsgrad = true;
  Row<double> row(options, {0.0});
  double w = 0, most = 0;
  for (const double g : {1.0, 100.0, 1.0, 0.0}) {
    most = std::max(most, g * g);
    w -= 0.1 * g / (std::sqrt(most) + 1e-8);
    EXPECT_NEAR(row.Step({g})[0], w, 1e-12);
  }
}

// lamb.h: "Their ratio is 1 where one of them is 0, so that weights that begin
// at 0 learn."
TEST(LambRule, WeightsThatBeginAtZeroLearn) {
  LambOptions options;
  options.lr = 0.5;
  options.weight_decay = 0;
  Row<double> row(options, {0.0, 0.0});
  const auto weights = row.Step({4.0, 0.0});
  EXPECT_NEAR(weights[0], -0.5, 1e-6);
  EXPECT_EQ(weights[1], 0);
  // Other weights move by the formula: |w| / |u| * u has the norm of w.
  Row<double> other(options, {3.0, 4.0});
  const auto moved = other.Step({1.0, 1.0});
  EXPECT_NEAR(std::hypot(moved[0] - 3, moved[1] - 4), 0.5 * 5, 1e-6);
}

// rowwise_adagrad.h: "accumulator += |g|^2 / D".
TEST(RowwiseAdagradRule, HasOneSumForARow) {
  RowwiseAdagradOptions options;
  options.lr = 1;
  options.epsilon = 0;
  options.initial_accumulator = 1;
  Row<double> row(options, {0.0, 0.0, 0.0});
  const auto weights = row.Step({3.0, 0.0, 0.0});
  ASSERT_EQ(row.slot(0).size(), 1u);
  EXPECT_EQ(row.slot(0)[0], 1 + 9.0 / 3);
  EXPECT_NEAR(weights[0], -3 / 2.0, 1e-12);
}

// --- Clipping ----------------------------------------------------------------

SgdOptions Plain() {
  SgdOptions options;
  options.lr = 1;
  return options;
}

// clipped.h: "g = each element, limited to [-value, value]"; "g *= norm / |g|
// if |g| > norm"; "NaN stays NaN".
TEST(Clipping, LimitsElementsThenTheNorm) {
  const float inf = static_cast<float>(kInf);
  EXPECT_THAT(Row<float>(Plain(), {0, 0, 0, 0}, {2, 0}).Step({3, -inf, 1, inf}),
              ElementsAre(-2, 2, -1, -2));
  EXPECT_THAT(Row<float>(Plain(), {0, 0}, {0, 5}).Step({3, 4}),
              ElementsAre(-3, -4));
  EXPECT_THAT(Row<float>(Plain(), {0, 0}, {0, 1}).Step({30, -40}),
              ElementsAre(::testing::FloatNear(-0.6f, 1e-6f),
                          ::testing::FloatNear(0.8f, 1e-6f)));
  // First the elements, 3 and 3, then their norm.
  const auto both = Row<float>(Plain(), {0, 0}, {3, 3}).Step({3, 1000});
  EXPECT_NEAR(both[0], -3 / std::sqrt(2.0), 1e-6);
  EXPECT_NEAR(both[1], -3 / std::sqrt(2.0), 1e-6);
  const float nan = static_cast<float>(kNaN);
  EXPECT_TRUE(std::isnan(Row<float>(Plain(), {0}, {1, 0}).Step({nan})[0]));
  EXPECT_TRUE(std::isnan(Row<float>(Plain(), {0}, {1, 1}).Step({nan})[0]));
}

// "g *= norm / |g| if |g| > norm": also where the squares of the elements are
// larger than the type.
TEST(Clipping, NormOfHugeFloatsIsRight) {
  const auto weights =
      Row<float>(Plain(), {0, 0}, {0, 1}).Step({3e38f, -3e38f});
  EXPECT_NEAR(weights[0], -std::sqrt(0.5), 1e-6);
  EXPECT_NEAR(weights[1], std::sqrt(0.5), 1e-6);
}
TEST(Clipping, NormOfHugeDoublesIsRight) {
  const auto weights =
      Row<double>(Plain(), {0, 0}, {0, 1}).Step({3e200, -3e200});
  EXPECT_NEAR(weights[0], -std::sqrt(0.5), 1e-6);
  EXPECT_NEAR(weights[1], std::sqrt(0.5), 1e-6);
}

// update_rule.h: "a limit of the norm makes its scope kRow at least".
TEST(Clipping, ScopeIsThatOfWhatItMustSee) {
  EXPECT_EQ((*MakeRule(RuleOptions(AdamOptions()), {1, 0}))->scope(),
            Scope::kElement);
  EXPECT_EQ((*MakeRule(RuleOptions(AdamOptions()), {1, 1}))->scope(),
            Scope::kRow);
  EXPECT_EQ((*MakeRule(RuleOptions(LambOptions()), {0, 1}))->scope(),
            Scope::kParameter);
}

// --- Optimizers --------------------------------------------------------------

// update_rule.h: "a parameter of one dimension has rows of one element, and a
// scalar is one row"; parameters without elements are no error.
TEST(OptimizerOfRows, AnyShapeIsUpdated) {
  for (const RuleOptions& options : AllRules()) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{0, 3}, Shape{3, 0},
                               Shape{3}, Shape{2, 0, 2}, Shape{2, 2, 2}}) {
      Variable weights(Tensor::Ones(shape), /*requires_grad=*/true);
      ParameterGroup group{options, {{"w", weights}}};
      group.clip = {10, 10};
      const auto optimizer = Optimizer::Create({group});
      ASSERT_THAT(optimizer.status(), IsOk()) << RuleName(options);
      for (int step = 0; step < 2; ++step) {
        ASSERT_THAT((*optimizer)->Apply([&](const Parameter&) {
          return Gradient(Tensor::Full(shape, 0.5f));
        }),
                    IsOk());
      }
      for (const float weight : weights.value().ToVector<float>()) {
        EXPECT_LT(weight, 1) << RuleName(options);
        EXPECT_TRUE(std::isfinite(weight)) << RuleName(options);
      }
      EXPECT_THAT((*optimizer)->LoadStateDict((*optimizer)->StateDict()),
                  IsOk());
    }
  }
}

// --- Tables ------------------------------------------------------------------

// The page: "A dense table has no rows [...]: it refuses them (kInvalidArgument
// says so)"; "clip_value" needs no rows.
TEST(Tables, DenseOnesRefuseWhatMustSeeRowsAndNothingElse) {
  ps::TestJob job(2, 1);
  const auto client = job.MakeClient(0);
  int number = 0;
  for (const RuleOptions& options : AllRules()) {
    for (const ClipOptions& clip : {ClipOptions{}, {1, 0}, {0, 1}, {1, 1}}) {
      ps::v1::TableSpec spec = ps::DenseSpec(ps::v1::TableSpec::SYNC, 1, 3000);
      spec.set_name("t" + std::to_string(number++));
      *spec.mutable_rule() = ToSpec(options, clip);
      const bool is_fine =
          (*MakeRule(options, clip))->scope() == Scope::kElement;
      const auto table = client->Dense(spec);
      if (is_fine) {
        ASSERT_THAT(table.status(), IsOk()) << spec.rule().ShortDebugString();
        ASSERT_THAT(
            GetStatus(
                (*table)->Initialize(Tensor::Zeros({3000})).Wait(ps::kTimeout)),
            IsOk());
        EXPECT_THAT((*table)
                        ->PushPull(Tensor::Ones({3000}))
                        .Wait(ps::kTimeout)
                        .status(),
                    IsOk());
      } else {
        EXPECT_THAT(table.status(),
                    StatusIs(absl::StatusCode::kInvalidArgument, "row"));
      }
    }
  }
}

// The page: "in SYNC the sum, or mean, of the round; in ASYNC each push" is
// what is limited; client.h: "those of a key that repeats are added up first".
TEST(Tables, LimitIsOfTheSumOfAKeyThatRepeats) {
  for (const auto mode : {ps::v1::TableSpec::SYNC, ps::v1::TableSpec::ASYNC}) {
    ps::TestJob job(2, 1);
    const auto client = job.MakeClient(0);
    ps::v1::TableSpec spec = ps::SparseSpec(mode, 1);
    *spec.mutable_rule() = ToSpec(RuleOptions(Plain()), {0, 5});
    const auto table = client->Sparse(spec);
    ASSERT_THAT(table.status(), IsOk());
    const Tensor keys = Tensor::FromVector<int64_t>({7, 8, 7, 7});
    const Tensor gradients =
        Tensor::FromVector<float>({20, 40, 3, 4, 20, 40, -10, -40})
            .Reshape({4, 2});
    ASSERT_THAT(GetStatus((*table)->Push(keys, gradients).Wait(ps::kTimeout)),
                IsOk());
    const auto rows =
        (*table)->Pull(Tensor::FromVector<int64_t>({7, 8})).Wait(ps::kTimeout);
    ASSERT_THAT(rows.status(), IsOk());
    EXPECT_THAT(rows->ToVector<float>(),
                ElementsAre(::testing::FloatNear(-3, 1e-5f),
                            ::testing::FloatNear(-4, 1e-5f), -3, -4));
  }
}

// The page: "a row of a table counts its own steps": a row of any rule has the
// bits of the rule on a row alone, whatever is pushed beside it.
TEST(Tables, RowsHaveTheBitsOfTheRuleAlone) {
  ps::TestJob job(3, 1);
  const auto client = job.MakeClient(0);
  int number = 0;
  for (const RuleOptions& options : AllRules()) {
    ps::v1::TableSpec spec = ps::SparseSpec(ps::v1::TableSpec::ASYNC, 1);
    spec.set_name("t" + std::to_string(number++));
    spec.set_dim(3);
    *spec.mutable_rule() = ToSpec(options, {0.75, 1});
    const auto table = client->Sparse(spec);
    ASSERT_THAT(table.status(), IsOk());
    Row<float> alone(options, {0, 0, 0}, {0.75, 1});
    for (int64_t step = 0; step < 6; ++step) {
      const std::vector<float> g = {0.5f, -1.0f * step, 0.25f * step};
      std::vector<int64_t> keys;
      std::vector<float> gradients;
      for (int64_t other = 0; other <= 3 * step; ++other) {
        keys.push_back(other);
        gradients.insert(gradients.end(), {1, 2, static_cast<float>(step)});
      }
      keys.push_back(-9);
      gradients.insert(gradients.end(), g.begin(), g.end());
      const int64_t n = static_cast<int64_t>(keys.size());
      const auto rows =
          (*table)
              ->PushPull(Tensor::FromVector(keys),
                         Tensor::FromVector(gradients).Reshape({n, 3}),
                         Tensor::FromVector<int64_t>({-9}))
              .Wait(ps::kTimeout);
      ASSERT_THAT(rows.status(), IsOk());
      EXPECT_EQ(rows->ToVector<float>(), alone.Step(g))
          << RuleName(options) << " step " << step;
    }
  }
}

}  // namespace
}  // namespace weft::optimizer
