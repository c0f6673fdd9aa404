#include "weft/optimizer/rules/update_rule.h"

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

// One set of weights under one rule, with the slots that it needs.
template <typename T>
class Learner {
 public:
  Learner(const UpdateRule& rule, std::vector<T> weights)
      : rule_(rule), weights_(std::move(weights)) {
    for (size_t i = 0; i < rule.slots().size(); ++i) {
      slots_.emplace_back(weights_.size());
    }
    rule.Init<T>(Slots(0, weights_.size()));
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
    for (std::vector<T>& slot : slots_) {
      spans.push_back(absl::MakeSpan(slot).subspan(begin, size));
    }
    return spans;
  }

  const UpdateRule& rule_;
  std::vector<T> weights_;
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
  ASSERT_EQ(Golden()["dense"].size(), 7u);
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

// Every rule, with all options away from their defaults.
std::vector<RuleOptions> AllRules() {
  return {SgdOptions{0.1, 0.9, 0.1, 0.01, false},
          SgdOptions{0.1, 0.9, 0.0, 0.01, true},
          AdamOptions{0.01, 0.8, 0.9, 1e-6, 0.1},
          AdamWOptions{0.01, 0.8, 0.9, 1e-6, 0.1},
          AdagradOptions{0.1, 0.01, 0.1, 0.5, 1e-6},
          FtrlOptions{0.1, 0.5, 0.01, 0.02, 0.25}};
}

TYPED_TEST(UpdateRuleTest, AnyCutOfTheWeightsGivesTheSameBits) {
  using T = TypeParam;
  for (const RuleOptions& options : AllRules()) {
    const auto rule = MakeRule(options);
    ASSERT_TRUE(rule.ok());
    std::vector<T> weights(37);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = 0.1 * i - 1.5;
    Learner<T> whole(**rule, weights);
    Learner<T> parts(**rule, weights);
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
    EXPECT_EQ(whole.weights(), parts.weights()) << RuleName(options);
    EXPECT_EQ(whole.slots(), parts.slots()) << RuleName(options);
  }
}

TYPED_TEST(UpdateRuleTest, LrScaleMultipliesTheLearningRate) {
  using T = TypeParam;
  for (RuleOptions options : AllRules()) {
    const auto rule = MakeRule(options);
    SetLearningRate(options, LearningRate(options) * 0.25);
    const auto slower = MakeRule(options);
    ASSERT_TRUE(rule.ok() && slower.ok());
    Learner<T> scaled(**rule, {T{0.5}, T{-0.25}});
    Learner<T> direct(**slower, {T{0.5}, T{-0.25}});
    for (int64_t step = 1; step <= 3; ++step) {
      scaled.Step({step, 0.25}, {T{1}, T{-2}});
      direct.Step({step}, {T{1}, T{-2}});
    }
    EXPECT_EQ(scaled.weights(), direct.weights()) << RuleName(options);
  }
}

TYPED_TEST(UpdateRuleTest, IgnoresZeroGradientIsTrueOfTheRulesThatClaimIt) {
  using T = TypeParam;
  std::vector<RuleOptions> rules = AllRules();
  rules.push_back(SgdOptions{});
  rules.push_back(AdagradOptions{});
  int claims = 0;
  for (const RuleOptions& options : rules) {
    const auto rule = MakeRule(options);
    ASSERT_TRUE(rule.ok());
    Learner<T> learner(**rule, {T{0}, T{0}});
    learner.Step({1}, {T{1}, T{-2}});
    const std::vector<T> before = learner.weights();
    learner.Step({2}, {T{0}, T{0}});
    EXPECT_EQ(learner.weights() == before, (*rule)->ignores_zero_gradient())
        << RuleName(options);
    claims += (*rule)->ignores_zero_gradient();
  }
  EXPECT_EQ(claims, 3);
}

TYPED_TEST(UpdateRuleTest, RowsThatStepAloneNeedTheirOwnCount) {
  using T = TypeParam;
  for (const RuleOptions& options : AllRules()) {
    const auto rule = MakeRule(options);
    ASSERT_TRUE(rule.ok());
    Learner<T> first(**rule, {T{0.5}});
    Learner<T> late(**rule, {T{0.5}});
    first.Step({1}, {T{1}});
    late.Step({1000}, {T{1}});
    EXPECT_EQ(first.weights() != late.weights(), (*rule)->uses_step())
        << RuleName(options);
  }
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

TEST(RuleSpec, KeepsEveryOptionOverTheWire) {
  for (const RuleOptions& options : AllRules()) {
    v1::RuleSpec received;
    ASSERT_TRUE(received.ParseFromString(ToSpec(options).SerializeAsString()));
    const absl::StatusOr<RuleOptions> found = FromSpec(received);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(RuleName(*found), RuleName(options));
    EXPECT_EQ(ToSpec(*found).SerializeAsString(),
              ToSpec(options).SerializeAsString());
  }
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
      {FtrlOptions{0.1, 1, -2}, "ftrl.l1 is -2, allowed is [0, inf)"}};
  for (const auto& [options, message] : cases) {
    const absl::Status status = MakeRule(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  EXPECT_TRUE(MakeRule(AdagradOptions{0.05, 0, 0, 0.1, 0}).ok());
}

}  // namespace
}  // namespace weft::optimizer
