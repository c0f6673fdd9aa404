#include "weft/optimizer/rules/update_rule.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/optimizer/rules/rule_spec.h"

namespace weft::optimizer {
namespace {

using ::nlohmann::json;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Weights under one rule, with the slots that it needs: one row, or some of
// `width`.
template <typename T>
class Learner {
 public:
  Learner(const UpdateRule& rule, std::vector<T> weights, size_t width = 0)
      : rule_(rule),
        weights_(std::move(weights)),
        width_(width == 0 ? weights_.size() : width) {
    std::vector<absl::Span<T>> spans;
    for (const Slot& slot : rule.slots()) {
      slots_.emplace_back(slot.is_per_row ? weights_.size() / width_
                                          : weights_.size());
    }
    for (std::vector<T>& slot : slots_) spans.push_back(absl::MakeSpan(slot));
    rule.Init<T>(spans);
  }

  void Step(const StepContext& context, const std::vector<T>& gradient) {
    StepPart(context, 0, gradient);
  }

  // Updates the part [begin, begin + gradient.size()).
  void StepPart(const StepContext& context, size_t begin,
                const std::vector<T>& gradient) {
    rule_.Apply(context,
                absl::MakeSpan(weights_).subspan(begin, gradient.size()),
                gradient, Slots(begin, gradient.size()));
  }

  const std::vector<T>& weights() const { return weights_; }
  const std::vector<std::vector<T>>& slots() const { return slots_; }

 private:
  std::vector<absl::Span<T>> Slots(size_t begin, size_t size) {
    std::vector<absl::Span<T>> spans;
    for (size_t s = 0; s < slots_.size(); ++s) {
      const auto all = absl::MakeSpan(slots_[s]);
      spans.push_back(rule_.slots()[s].is_per_row
                          ? all.subspan(begin / width_, 1)
                          : all.subspan(begin, size));
    }
    return spans;
  }

  const UpdateRule& rule_;
  std::vector<T> weights_;
  const size_t width_;
  std::vector<std::vector<T>> slots_;
};

const json& Golden() {
  static const json* golden = [] {
    std::ifstream in("tests/golden/optimizer_rules.json");
    return new json(json::parse(in));
  }();
  return *golden;
}

// The rule of a golden case, made as a server makes it: from the wire.
std::unique_ptr<UpdateRule> RuleOf(const std::string& name,
                                   const json& options) {
  v1::RuleSpec spec;
  const json wanted = {{name, options}};
  EXPECT_TRUE(
      google::protobuf::util::JsonStringToMessage(wanted.dump(), &spec).ok());
  absl::StatusOr<std::unique_ptr<UpdateRule>> rule = MakeRule(spec);
  EXPECT_TRUE(rule.ok()) << rule.status();
  return *std::move(rule);
}

// float weights differ from PyTorch's float64 by roundings: 24 steps of a few
// operations each, with values below 2.
template <typename T>
constexpr double kTolerance = std::is_same_v<T, double> ? 1e-13 : 5e-6;

template <typename T>
void ExpectNear(const std::vector<T>& found, const std::vector<double>& wanted,
                const std::string& where) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], wanted[i], kTolerance<T>) << where << " weight " << i;
  }
}

template <typename T>
class UpdateRuleTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(UpdateRuleTest, Types);

TYPED_TEST(UpdateRuleTest, DenseStepsEqualPyTorch) {
  using T = TypeParam;
  ASSERT_EQ(Golden()["dense"].size(), 13u);
  for (const json& test : Golden()["dense"]) {
    for (const json& group : test["groups"]) {
      const std::string where =
          absl::StrCat(std::string(test["rule"]), group["options"].dump());
      const auto rule = RuleOf(test["rule"], group["options"]);
      Learner<T> learner(*rule, group["initial"].get<std::vector<T>>());
      ASSERT_GE(group["gradients"].size(), 20u);
      for (size_t step = 1; step <= group["gradients"].size(); ++step) {
        learner.Step({static_cast<int64_t>(step)},
                     group["gradients"][step - 1].get<std::vector<T>>());
        ExpectNear(learner.weights(), group["weights"][step - 1],
                   absl::StrCat(where, " step ", step));
      }
    }
  }
}

TYPED_TEST(UpdateRuleTest, RowsTouchedAloneEqualPyTorchsSparseGradients) {
  using T = TypeParam;
  ASSERT_EQ(Golden()["sparse"].size(), 3u);
  for (const json& test : Golden()["sparse"]) {
    const auto rule = RuleOf(test["rule"], test["options"]);
    const size_t width = test["width"];
    Learner<T> learner(*rule, test["initial"].get<std::vector<T>>());
    int64_t step = 0;
    for (const json& update : test["steps"]) {
      ++step;
      const auto gradient = update["gradient"].get<std::vector<T>>();
      auto from = gradient.begin();
      for (const size_t row : update["rows"].get<std::vector<size_t>>()) {
        learner.StepPart({step}, row * width, {from, from + width});
        from += width;
      }
      ExpectNear(learner.weights(), update["weights"],
                 absl::StrCat(std::string(test["rule"]), " step ", step));
    }
  }
}

// Algorithm 1 of McMahan et al. 2013 for one coordinate, line by line: the
// weight is computed when it is used, from z and n.
struct McMahan {
  double alpha, beta, lambda1, lambda2;
  double z = 0.0;
  double n = 0.0;

  double Weight() const {
    if (std::abs(z) <= lambda1) return 0.0;
    const double sign = z < 0.0 ? -1.0 : 1.0;
    return -1.0 / ((beta + std::sqrt(n)) / alpha + lambda2) *
           (z - sign * lambda1);
  }

  void Learn(double g) {
    const double w = Weight();
    const double sigma = (std::sqrt(n + g * g) - std::sqrt(n)) / alpha;
    z = z + g - sigma * w;
    n = n + g * g;
  }
};

TYPED_TEST(UpdateRuleTest, FtrlEqualsMcMahansAlgorithm) {
  using T = TypeParam;
  for (const FtrlOptions& options : {FtrlOptions{0.1, 1.0, 0.0, 0.0, 0.0},
                                     FtrlOptions{0.3, 0.5, 0.6, 0.2, 0.0},
                                     FtrlOptions{0.05, 0.0, 0.01, 0.1, 0.1}}) {
    const auto rule = MakeRule(options);
    ASSERT_TRUE(rule.ok());
    constexpr int kWeights = 6;
    Learner<T> learner(**rule, std::vector<T>(kWeights, T{0}));
    std::vector<McMahan> reference(
        kWeights, McMahan{options.lr, options.beta, options.l1, options.l2, 0.0,
                          options.initial_accumulator});
    int zeros = 0;
    for (int step = 1; step <= 30; ++step) {
      std::vector<T> gradient(kWeights);
      for (int i = 0; i < kWeights; ++i) {
        // Multiples of 1/8 are equal in float; the last weight gets none.
        const int pull = (step * 7 + i * 5) % 17 - 8 + i;
        gradient[i] = i == kWeights - 1 ? T{0} : static_cast<T>(pull / 8.0);
        reference[i].Learn(gradient[i]);
      }
      learner.Step({step}, gradient);
      for (int i = 0; i < kWeights; ++i) {
        const double wanted = reference[i].Weight();
        EXPECT_NEAR(learner.weights()[i], wanted, kTolerance<T>)
            << "step " << step << " weight " << i;
        zeros += wanted == 0.0;
      }
    }
    EXPECT_EQ(learner.weights().back(), T{0});
    EXPECT_GE(zeros, 30);
  }
}

// Rows of Lamb's algorithm 2 and of FBGEMM's rowwise_adagrad, and one weight of
// Lion's algorithm 2, line by line in f64.
struct LambRow {
  LambOptions o;
  std::vector<double> w, m, v;
  int t = 0;

  void Learn(const std::vector<double>& g) {
    ++t;
    std::vector<double> u(w.size());
    double w_squares = 0, u_squares = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i];
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g[i] * g[i];
      const double m_hat = m[i] / (1 - std::pow(o.beta1, t));
      const double v_hat = v[i] / (1 - std::pow(o.beta2, t));
      u[i] = m_hat / (std::sqrt(v_hat) + o.epsilon) + o.weight_decay * w[i];
      w_squares += w[i] * w[i];
      u_squares += u[i] * u[i];
    }
    const bool has_ratio = w_squares > 0 && u_squares > 0;
    const double ratio =
        has_ratio ? std::sqrt(w_squares) / std::sqrt(u_squares) : 1.0;
    for (size_t i = 0; i < w.size(); ++i) w[i] -= o.lr * ratio * u[i];
  }
};
struct RowwiseAdagradRow {
  RowwiseAdagradOptions o;
  std::vector<double> w;
  double momentum1;

  void Learn(const std::vector<double>& g) {
    double squares = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      squares += std::pow(g[i] + o.weight_decay * w[i], 2);
    }
    momentum1 += squares / static_cast<double>(w.size());
    const double multiplier = o.lr / (std::sqrt(momentum1) + o.epsilon);
    const double correction = 1.0 - multiplier * o.weight_decay;
    for (size_t i = 0; i < w.size(); ++i) {
      w[i] = correction * w[i] - multiplier * g[i];
    }
  }
};
struct LionRow {
  LionOptions o;
  std::vector<double> w, m;

  void Learn(const std::vector<double>& g) {
    for (size_t i = 0; i < w.size(); ++i) {
      const double update = o.beta1 * m[i] + (1 - o.beta1) * g[i];
      const double sign = (update > 0) - (update < 0);
      w[i] -= o.lr * (sign + o.weight_decay * w[i]);
      m[i] = o.beta2 * m[i] + (1 - o.beta2) * g[i];
    }
  }
};

// Steps of `options` and of `row`, which begin with equal weights, are equal.
template <typename T, typename Row>
void ExpectLearnsAs(const RuleOptions& options, Row row) {
  const auto rule = MakeRule(options);
  ASSERT_TRUE(rule.ok());
  Learner<T> learner(**rule, {row.w.begin(), row.w.end()});
  for (int step = 1; step <= 30; ++step) {
    std::vector<double> g(row.w.size());
    // Multiples of 1/8 are equal in float; some are 0.
    for (size_t i = 0; i < g.size(); ++i) {
      g[i] = static_cast<double>((step * 7 + i * 5) % 17) / 8.0 - 1.0;
    }
    learner.Step({step}, {g.begin(), g.end()});
    row.Learn(g);
    ExpectNear(learner.weights(), row.w,
               absl::StrCat(RuleName(options), " step ", step));
  }
}

// In multiples of 1/8; rows that are longer than the blocks of a rule's loops.
std::vector<double> FirstWeights(int64_t n) {
  std::vector<double> w;
  for (int64_t i = 0; i < n; ++i) w.push_back((i * 3 % 13 - 5) / 8.0);
  return w;
}

TYPED_TEST(UpdateRuleTest, RulesThatPyTorchLacksEqualTheirPublishedAlgorithms) {
  using T = TypeParam;
  for (const int64_t n : {1, 6, 300, 1000}) {
    const std::vector<double> w = FirstWeights(n), zeros(n);
    for (const LambOptions& o : {LambOptions{}, LambOptions{0.01, 0.8, 0.95},
                                 LambOptions{0.02, 0.5, 0.9, 1e-3, 0.1}}) {
      ExpectLearnsAs<T>(o, LambRow{o, w, zeros, zeros});
      ExpectLearnsAs<T>(o, LambRow{o, zeros, zeros, zeros});
    }
    for (const RowwiseAdagradOptions& o :
         {RowwiseAdagradOptions{}, RowwiseAdagradOptions{0.1, 1e-3, 0.1, 0.5},
          RowwiseAdagradOptions{0.05, 0.0, 0.0, 0.1}}) {
      ExpectLearnsAs<T>(o, RowwiseAdagradRow{o, w, o.initial_accumulator});
    }
    // Betas whose sums are exact in f32, so that rounding changes no sign.
    for (const LionOptions& o :
         {LionOptions{0.01, 0.5, 0.75}, LionOptions{0.02, 0.75, 0.5, 0.1}}) {
      ExpectLearnsAs<T>(o, LionRow{o, w, zeros});
    }
  }
}

// Every rule, with all options away from their defaults, and some with limits
// of their gradients.
struct Case {
  RuleOptions options;
  Scope scope = Scope::kElement;
  ClipOptions clip = {};

  std::string Name() const {
    return absl::StrCat(RuleName(options), " clip_value ", clip.value,
                        " clip_norm ", clip.norm);
  }
  std::unique_ptr<UpdateRule> Make() const {
    auto rule = MakeRule(options, clip);
    EXPECT_TRUE(rule.ok()) << rule.status();
    return *std::move(rule);
  }
};
std::vector<Case> AllRules() {
  const AdamOptions adam = {0.01, 0.8, 0.9, 1e-6, 0.1};
  const LambOptions lamb = {0.01, 0.8, 0.9, 1e-5, 0.1};
  return {{SgdOptions{0.1, 0.9, 0.1, 0.01, false}},
          {SgdOptions{0.1, 0.9, 0.0, 0.01, true}},
          {adam},
          {AdamOptions{0.01, 0.8, 0.7, 1e-6, 0.1, true}},
          {AdamWOptions{0.01, 0.8, 0.9, 1e-6, 0.1}},
          {AdamWOptions{0.01, 0.8, 0.7, 1e-6, 0.1, true}},
          {AdagradOptions{0.1, 0.01, 0.1, 0.5, 1e-6}},
          {FtrlOptions{0.1, 0.5, 0.01, 0.02, 0.25}},
          {RmspropOptions{0.1, 0.9, 1e-6, 0.1, 0.5, false}},
          {RmspropOptions{0.1, 0.9, 1e-6, 0.1, 0.0, true}},
          {RmspropOptions{0.1, 0.9, 1e-6, 0.1, 0.5, true}},
          {AdadeltaOptions{0.5, 0.8, 1e-4, 0.1}},
          {LionOptions{0.01, 0.8, 0.9, 0.1}},
          {lamb, Scope::kParameter},
          {RowwiseAdagradOptions{0.1, 1e-5, 0.1, 0.5}, Scope::kRow},
          {adam, Scope::kElement, {0.4, 0.0}},
          {adam, Scope::kRow, {0.0, 0.5}},
          {SgdOptions{0.1}, Scope::kRow, {0.4, 0.5}},
          {lamb, Scope::kParameter, {0.4, 0.5}}};
}

TEST(UpdateRule, SaysWhatItMustSeeWhole) {
  for (const Case& test : AllRules()) {
    const auto rule = test.Make();
    EXPECT_EQ(rule->scope(), test.scope) << test.Name();
    for (const Slot& slot : rule->slots()) {
      EXPECT_EQ(slot.is_per_row, RuleName(test.options) == "rowwise_adagrad");
    }
  }
}

// Any cut gives the same bits with a rule that works element by element, and
// none with others.
TYPED_TEST(UpdateRuleTest, ACutGivesTheSameBitsAsItsScopeClaims) {
  using T = TypeParam;
  for (const Case& test : AllRules()) {
    const auto rule = test.Make();
    std::vector<T> weights(37);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = 0.1 * i - 1.5;
    Learner<T> whole(*rule, weights);
    Learner<T> parts(*rule, weights);
    for (int64_t step = 1; step <= 5; ++step) {
      std::vector<T> gradient(weights.size());
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = std::sin(static_cast<T>(step + 3 * i));
      }
      whole.Step({step}, gradient);
      for (size_t i = 0; i < gradient.size();) {
        const size_t end = std::min(gradient.size(), i + 1 + i % 7);
        parts.StepPart({step}, i,
                       {gradient.begin() + i, gradient.begin() + end});
        i = end;
      }
    }
    const bool is_same =
        whole.weights() == parts.weights() && whole.slots() == parts.slots();
    EXPECT_EQ(is_same, test.scope == Scope::kElement) << test.Name();
  }
}

TYPED_TEST(UpdateRuleTest, LrScaleMultipliesTheLearningRate) {
  using T = TypeParam;
  for (Case test : AllRules()) {
    const auto rule = test.Make();
    SetLearningRate(test.options, LearningRate(test.options) * 0.25);
    const auto slower = test.Make();
    Learner<T> scaled(*rule, {T{0.5}, T{-0.25}});
    Learner<T> direct(*slower, {T{0.5}, T{-0.25}});
    for (int64_t step = 1; step <= 3; ++step) {
      scaled.Step({step, 0.25}, {T{1}, T{-2}});
      direct.Step({step}, {T{1}, T{-2}});
    }
    EXPECT_EQ(scaled.weights(), direct.weights()) << test.Name();
    EXPECT_EQ(LearningRate(slower->options()), LearningRate(test.options));
  }
}

TYPED_TEST(UpdateRuleTest, IgnoresZeroGradientIsTrueOfTheRulesThatClaimIt) {
  using T = TypeParam;
  std::vector<Case> rules = AllRules();
  rules.push_back({SgdOptions{}});
  rules.push_back({AdagradOptions{}});
  rules.push_back({RmspropOptions{}});  // its weights stay, its slot does not
  rules.push_back({AdadeltaOptions{}});
  rules.push_back({RowwiseAdagradOptions{}});
  rules.push_back({RowwiseAdagradOptions{}, Scope::kRow, {0.1, 0.1}});
  int claims = 0;
  for (const Case& test : rules) {
    const auto rule = test.Make();
    Learner<T> learner(*rule, {T{0}, T{0}});
    learner.Step({1}, {T{1}, T{-2}});
    const std::vector<T> weights = learner.weights();
    const std::vector<std::vector<T>> slots = learner.slots();
    learner.Step({2}, {T{0}, T{0}});
    EXPECT_EQ(learner.weights() == weights && learner.slots() == slots,
              rule->ignores_zero_gradient())
        << test.Name();
    claims += rule->ignores_zero_gradient();
  }
  EXPECT_EQ(claims, 6);
}

TYPED_TEST(UpdateRuleTest, RowsThatStepAloneNeedTheirOwnCount) {
  using T = TypeParam;
  for (const Case& test : AllRules()) {
    const auto rule = test.Make();
    const std::vector<T> weights = {T{0.5}, T{-0.25}, T{2}};
    Learner<T> first(*rule, weights);
    Learner<T> late(*rule, weights);
    first.Step({1}, {T{1}, T{2}, T{-3}});
    late.Step({1000}, {T{1}, T{2}, T{-3}});
    EXPECT_EQ(first.weights() != late.weights(), rule->uses_step())
        << test.Name();
  }
}

// What a rule with limits does is what the rule alone does with a gradient
// within them, to the bit; also over blocks of a long span.
TYPED_TEST(UpdateRuleTest, LimitsApplyBeforeTheRule) {
  using T = TypeParam;
  const size_t n = 3000;
  std::vector<T> gradient(n), by_value(n), weights(n, T{0.5});
  for (size_t i = 0; i < n; ++i) {
    gradient[i] = static_cast<T>(static_cast<int>(i % 9) - 4);  // -4 to 4
    by_value[i] = std::min(T{2}, std::max(T{-2}, gradient[i]));
  }
  // Two rows of norm 5, and one of norm 4 that stays.
  const std::vector<T> rows = {T{3}, T{4}, T{-4}, T{3}, T{0}, T{4}};
  const T two = static_cast<T>(2.4), three = static_cast<T>(3.2);
  const std::vector<T> limited = {two, three, -three, two, T{0}, T{4}};
  for (const RuleOptions& options :
       {RuleOptions(AdamOptions{0.1}), RuleOptions(RmspropOptions{0.1}),
        RuleOptions(RowwiseAdagradOptions{0.1})}) {
    const auto plain = *MakeRule(options);
    const auto value = *MakeRule(options, {2.0, 0.0});
    Learner<T> wanted(*plain, weights), found(*value, weights);
    const auto norm = *MakeRule(options, {0.0, 4.0});
    const std::vector<T> six(6, T{0.5});
    Learner<T> wanted_rows(*plain, six, 2), found_rows(*norm, six, 2);
    for (int64_t step = 1; step <= 3; ++step) {
      wanted.Step({step}, by_value);
      found.Step({step}, gradient);
      for (size_t row = 0; row < 3; ++row) {
        const auto part = [row](const std::vector<T>& all) {
          return std::vector<T>(all.begin() + 2 * row,
                                all.begin() + 2 * row + 2);
        };
        wanted_rows.StepPart({step}, 2 * row, part(limited));
        found_rows.StepPart({step}, 2 * row, part(rows));
      }
    }
    EXPECT_EQ(found.weights(), wanted.weights()) << RuleName(options);
    EXPECT_EQ(found.slots(), wanted.slots()) << RuleName(options);
    ExpectNear(found_rows.weights(),
               {wanted_rows.weights().begin(), wanted_rows.weights().end()},
               std::string(RuleName(options)));
    EXPECT_EQ(found_rows.weights()[5], wanted_rows.weights()[5]);  // untouched
  }
}

TYPED_TEST(UpdateRuleTest, LimitsShowNaNAndHoldForHugeGradients) {
  using T = TypeParam;
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const auto rule = *MakeRule(SgdOptions{1.0}, {1.0, 0.0});
  Learner<T> values(*rule, {T{0}, T{0}, T{0}});
  values.Step({1}, {nan, std::numeric_limits<T>::infinity(), T{-1e30}});
  EXPECT_TRUE(std::isnan(values.weights()[0]));
  EXPECT_EQ(values.weights()[1], T{-1});
  EXPECT_EQ(values.weights()[2], T{1});
  // The square of 1e30 is not an f32.
  const auto by_norm = *MakeRule(SgdOptions{1.0}, {0.0, 5.0});
  Learner<T> row(*by_norm, {T{0}, T{0}});
  row.Step({1}, {T{3e30}, T{-4e30}});
  EXPECT_NEAR(row.weights()[0], -3, 1e-6);
  EXPECT_NEAR(row.weights()[1], 4, 1e-6);
  row.Step({2}, {nan, T{1}});
  EXPECT_TRUE(std::isnan(row.weights()[0]));
}

TYPED_TEST(UpdateRuleTest, ANaNGradientShowsInTheWeights) {
  using T = TypeParam;
  for (const Case& test : AllRules()) {
    const auto rule = test.Make();
    Learner<T> learner(*rule, {T{0.5}});
    learner.Step({1}, {std::numeric_limits<T>::quiet_NaN()});
    // With FTRL the weight has always been 0: nothing is beyond l1.
    EXPECT_EQ(std::isnan(learner.weights()[0]),
              RuleName(test.options) != "ftrl")
        << test.Name();
  }
}

TYPED_TEST(UpdateRuleTest, VarianceOfACentredRmspropIsNeverNegative) {
  using T = TypeParam;
  const auto rule = *MakeRule(RmspropOptions{1e-6, 0.9, 1e-8, 0, 0, true});
  Learner<T> learner(*rule, std::vector<T>(50, T{0}));
  std::vector<T> gradient(50);
  for (size_t i = 0; i < 50; ++i) gradient[i] = static_cast<T>(0.1 + 0.013 * i);
  for (int64_t step = 1; step <= 1000; ++step) learner.Step({step}, gradient);
  for (const T weight : learner.weights()) EXPECT_TRUE(std::isfinite(weight));
}

TEST(UpdateRule, OptionsDecideWhichSlotsThereAre) {
  const auto names = [](const RuleOptions& options) {
    std::vector<std::string> names;
    const auto rule = *MakeRule(options);
    for (const Slot& slot : rule->slots()) names.push_back(slot.name);
    return names;
  };
  EXPECT_THAT(names(AdamOptions{}), ElementsAre("m", "v"));
  EXPECT_THAT(names(AdamWOptions{0.1, 0.9, 0.9, 1e-8, 0, true}),
              ElementsAre("m", "v", "v_max"));
  EXPECT_THAT(names(RmspropOptions{}), ElementsAre("square_avg"));
  EXPECT_THAT(names(RmspropOptions{0.1, 0.9, 1e-8, 0, 0.5, true}),
              ElementsAre("square_avg", "grad_avg", "momentum"));
}

TEST(UpdateRule, SlotsStartAtTheirInitialValue) {
  const auto rule = MakeRule(FtrlOptions{0.1, 1.0, 0.0, 0.0, 0.25});
  ASSERT_TRUE(rule.ok());
  const Learner<float> learner(**rule, {1.0f, 2.0f});
  ASSERT_EQ((*rule)->slots().size(), 2u);
  EXPECT_EQ((*rule)->slots()[0].name, "z");
  EXPECT_EQ((*rule)->slots()[1].name, "n");
  EXPECT_THAT(learner.slots(),
              ElementsAre(Each(0.0f), ElementsAre(0.25f, 0.25f)));
}

TEST(UpdateRuleDeathTest, ASpanOfAnotherLengthEndsTheProcess) {
  const auto rule = MakeRule(SgdOptions{});
  ASSERT_TRUE(rule.ok());
  std::vector<float> weights(3);
  const std::vector<float> gradient(2);
  EXPECT_DEATH((*rule)->Apply({1}, absl::MakeSpan(weights), gradient, {}),
               "2 vs 3");
}

TEST(UpdateRuleDeathTest, ASlotOfARowHasOneValue) {
  const auto rule = MakeRule(RowwiseAdagradOptions{});
  ASSERT_TRUE(rule.ok());
  std::vector<float> weights(3), slot(3);
  const std::vector<float> gradient(3);
  EXPECT_DEATH((*rule)->Apply({1}, absl::MakeSpan(weights), gradient,
                              {absl::MakeSpan(slot)}),
               "3 vs 1");
}

TEST(RuleSpec, KeepsEveryOptionOverTheWire) {
  for (const Case& test : AllRules()) {
    const v1::RuleSpec sent = ToSpec(test.options, test.clip);
    v1::RuleSpec received;
    ASSERT_TRUE(received.ParseFromString(sent.SerializeAsString()));
    const absl::StatusOr<RuleOptions> found = FromSpec(received);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(RuleName(*found), RuleName(test.options));
    const absl::StatusOr<ClipOptions> clip = ClipFromSpec(received);
    ASSERT_TRUE(clip.ok()) << clip.status();
    EXPECT_EQ(ToSpec(*found, *clip).SerializeAsString(),
              sent.SerializeAsString());
    EXPECT_EQ((*MakeRule(received))->scope(), test.scope);
  }
}

TEST(RuleOptions, EachRuleIsFoundByItsName) {
  for (const char* name : {"sgd", "adam", "adamw", "adagrad", "ftrl", "rmsprop",
                           "adadelta", "lion", "lamb", "rowwise_adagrad"}) {
    const absl::StatusOr<RuleOptions> options = RuleNamed(name);
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(RuleName(*options), name);
    EXPECT_TRUE(MakeRule(*options).ok());
  }
  EXPECT_THAT(RuleNamed("Adam").status().ToString(),
              HasSubstr("no update rule 'Adam'; allowed are sgd, adam,"));
}

TEST(RuleSpec, AbsentFieldsMeanTheDefaults) {
  v1::RuleSpec spec;
  spec.mutable_adamw();
  const absl::StatusOr<RuleOptions> found = FromSpec(spec);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(std::get<AdamWOptions>(*found).weight_decay, 0.01);
  EXPECT_EQ(std::get<AdamWOptions>(*found).beta2, 0.999);
}

TEST(RuleSpec, RefusesAnUnsetRule) {
  EXPECT_EQ(FromSpec(v1::RuleSpec()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(RuleOptions, RefusalNamesFieldValueAndRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<RuleOptions, std::string>> cases = {
      {SgdOptions{-0.5}, "sgd.lr is -0.5, allowed is [0, inf)"},
      {SgdOptions{nan}, "sgd.lr is nan"},
      {SgdOptions{infinite}, "sgd.lr is inf"},
      {SgdOptions{0.1, 1.0}, "sgd.momentum is 1, allowed is [0, 1)"},
      {SgdOptions{0.1, 0.5, 1.5}, "sgd.dampening is 1.5, allowed is [0, 1]"},
      {SgdOptions{0.1, 0, 0, -1}, "sgd.weight_decay is -1"},
      {SgdOptions{0.1, 0, 0, 0, true}, "sgd.nesterov is true with momentum 0"},
      {AdamOptions{0.1, 1.0}, "adam.beta1 is 1, allowed is [0, 1)"},
      {AdamOptions{0.1, 0.9, -0.1}, "adam.beta2 is -0.1"},
      {AdamWOptions{0.1, 0.9, 0.9, 0.0}, "adamw.epsilon is 0, allowed is (0"},
      {AdagradOptions{0.1, -1}, "adagrad.lr_decay is -1"},
      {AdagradOptions{0.1, 0, 0, 0, 0}, "adagrad.epsilon is 0, allowed is (0"},
      {FtrlOptions{0.0}, "ftrl.lr is 0, allowed is (0, inf)"},
      {FtrlOptions{0.1, 1, -2}, "ftrl.l1 is -2, allowed is [0, inf)"},
      {RmspropOptions{0.1, 1}, "rmsprop.alpha is 1, allowed is [0, 1)"},
      {RmspropOptions{0.1, 0, 0}, "rmsprop.epsilon is 0, allowed is (0"},
      {RmspropOptions{0.1, 0, 1, 0, -1}, "rmsprop.momentum is -1"},
      {AdadeltaOptions{0.1, 2}, "adadelta.rho is 2, allowed is [0, 1)"},
      {LionOptions{0.1, 0, nan}, "lion.beta2 is nan, allowed is [0, 1)"},
      {LambOptions{0.1, 0, 1}, "lamb.beta2 is 1, allowed is [0, 1)"},
      {RowwiseAdagradOptions{0.1, 0}, "rowwise_adagrad.epsilon is 0"}};
  for (const auto& [options, message] : cases) {
    const absl::Status status = MakeRule(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  EXPECT_TRUE(MakeRule(AdagradOptions{0.05, 0, 0, 0.1, 0}).ok());
  EXPECT_TRUE(MakeRule(RowwiseAdagradOptions{0.05, 0, 0, 0.1}).ok());
  for (const auto& [clip, message] :
       std::vector<std::pair<ClipOptions, std::string>>{
           {{-1, 0}, "RuleSpec.clip_value is -1, allowed is [0, inf)"},
           {{infinite, 0}, "RuleSpec.clip_value is inf"},
           {{0, nan}, "RuleSpec.clip_norm is nan"}}) {
    const absl::Status status = MakeRule(SgdOptions{}, clip).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace weft::optimizer
