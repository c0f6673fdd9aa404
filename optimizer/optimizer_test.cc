#include "weft/optimizer/optimizer.h"

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/autograd/ops.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/optimizer/rules/rule_spec.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::optimizer {
namespace {

using ::nlohmann::json;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

const json& Golden() {
  static const json* golden = [] {
    std::ifstream in("tests/golden/optimizer_rules.json");
    return new json(json::parse(in));
  }();
  return *golden;
}

RuleOptions OptionsOf(const std::string& rule, const json& options) {
  v1::RuleSpec spec;
  const json wanted = {{rule, options}};
  EXPECT_TRUE(
      google::protobuf::util::JsonStringToMessage(wanted.dump(), &spec).ok());
  return *FromSpec(spec);
}

Variable Leaf(const std::vector<double>& values, const Shape& shape) {
  return Variable(Tensor::FromVector<double>(values, shape),
                  /*requires_grad=*/true);
}

std::unique_ptr<Optimizer> Make(std::vector<ParameterGroup> groups) {
  auto optimizer = Optimizer::Create(std::move(groups));
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  return *std::move(optimizer);
}

void ExpectNear(const Tensor& found, const std::vector<double>& wanted) {
  const std::vector<double> values = found.ToVector<double>();
  ASSERT_EQ(values.size(), wanted.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], wanted[i], 1e-13);
  }
}

TEST(Optimizer, TwoGroupsEqualPyTorch) {
  ASSERT_EQ(Golden()["dense"].size(), 13u);
  for (const json& test : Golden()["dense"]) {
    std::vector<Variable> weights;
    std::vector<ParameterGroup> groups;
    for (const json& group : test["groups"]) {
      const auto initial = group["initial"].get<std::vector<double>>();
      weights.push_back(Leaf(initial, {static_cast<int64_t>(initial.size())}));
      const std::string name = "w" + std::to_string(weights.size());
      groups.push_back({OptionsOf(test["rule"], group["options"]),
                        {{name, weights.back()}}});
    }
    const auto optimizer = Make(std::move(groups));
    for (size_t step = 0; step < test["groups"][0]["gradients"].size();
         ++step) {
      for (size_t g = 0; g < weights.size(); ++g) {
        weights[g].SetGradient(Tensor::FromVector<double>(
            test["groups"][g]["gradients"][step].get<std::vector<double>>()));
      }
      WEFT_ASSERT_OK(optimizer->Step());
      for (size_t g = 0; g < weights.size(); ++g) {
        ExpectNear(weights[g].value(), test["groups"][g]["weights"][step]);
      }
    }
  }
}

TEST(Optimizer, SparseGradientsEqualPyTorch) {
  ASSERT_EQ(Golden()["sparse"].size(), 3u);
  for (const json& test : Golden()["sparse"]) {
    const int64_t rows = test["rows"], width = test["width"];
    const Variable table = Leaf(test["initial"], {rows, width});
    const auto optimizer = Make({{OptionsOf(test["rule"], test["options"]),
                                  {{"table", table}},
                                  /*lazy=*/test["rule"] == "adam"}});
    for (const json& step : test["steps"]) {
      // Each row's gradient comes in two halves, the second backwards: rows
      // need not be sorted or alone.
      std::vector<int64_t> indices = step["rows"];
      std::vector<double> values = step["gradient"];
      for (double& value : values) value /= 2;
      const std::vector<int64_t> once = indices;
      const std::vector<double> half = values;
      for (size_t i = once.size(); i-- > 0;) {
        indices.push_back(once[i]);
        values.insert(values.end(), half.begin() + i * width,
                      half.begin() + (i + 1) * width);
      }
      const auto n = static_cast<int64_t>(indices.size());
      table.SetGradient(
          SparseRows{Tensor::FromVector<int64_t>(indices),
                     Tensor::FromVector<double>(values, {n, width}), rows});
      WEFT_ASSERT_OK(optimizer->Step());
      ExpectNear(table.value(), step["weights"]);
    }
  }
}

TEST(Optimizer, SkipsParametersWithoutAGradient) {
  const Variable used = Leaf({1.0}, {1});
  const Variable unused = Leaf({2.0}, {1});
  SgdOptions options;
  options.lr = 0.1;
  options.momentum = 0.9;
  options.weight_decay = 0.5;
  const auto optimizer =
      Make({{options, {{"used", used}, {"unused", unused}}}});
  used.SetGradient(Tensor::FromVector<double>({1.0}));
  const uint64_t version = used.value().version();
  WEFT_ASSERT_OK(optimizer->Step());
  EXPECT_NE(used.value().item<double>(), 1.0);
  EXPECT_GT(used.value().version(), version);
  EXPECT_EQ(unused.value().item<double>(), 2.0);
  EXPECT_EQ(optimizer->StateDict().at("unused/step").item<int64_t>(), 0);
  optimizer->ZeroGrad();
  EXPECT_FALSE(used.has_grad());
  const double before = used.value().item<double>();
  WEFT_ASSERT_OK(optimizer->Step());
  EXPECT_EQ(used.value().item<double>(), before);
}

TEST(Optimizer, SparseGradientsNeedARuleThatAllowsThem) {
  const Variable table = Leaf({1, 2, 3, 4}, {2, 2});
  const Variable other = Leaf({1}, {1});
  const SparseRows rows = {Tensor::FromVector<int64_t>({1}),
                           Tensor::FromVector<double>({1, 1}, {1, 2}), 2};
  const auto strict =
      Make({{AdamOptions{}, {{"other", other}, {"table", table}}}});
  other.SetGradient(Tensor::FromVector<double>({1.0}));
  table.SetGradient(rows);
  EXPECT_THAT(strict->Step(), StatusIs(kInvalid,
                                       "\"table\" is sparse, and "
                                       "adam"));
  EXPECT_EQ(other.value().item<double>(), 1.0);  // nothing was touched
  const auto lazy = Make({{AdamOptions{}, {{"table", table}}, /*lazy=*/true}});
  WEFT_EXPECT_OK(lazy->Step());
  EXPECT_EQ(table.value().Select(0, 0).ToVector<double>(),
            std::vector<double>({1, 2}));
  EXPECT_NE(table.value().Select(0, 1).ToVector<double>()[0], 3.0);
}

// [3, 2, 2] in one parameter, and as three parameters of [1, 2, 2].
TEST(Optimizer, RowIsAnIndexOfTheFirstDimension) {
  const std::vector<double> initial = {1, 2, 3, 4, -1, 0, 2, 5, 3, 3, 0.5, 1};
  const std::vector<std::pair<RuleOptions, ClipOptions>> rules = {
      {RowwiseAdagradOptions{0.1, 1e-8, 0.1}, {}},
      {AdamOptions{0.1}, {0, 1.5}},
      {SgdOptions{0.1}, {2, 1.5}}};
  for (const auto& [rule, clip] : rules) {
    const Variable all = Leaf(initial, {3, 2, 2});
    const auto together = Make({{rule, {{"all", all}}, false, clip}});
    std::vector<Variable> rows;
    std::vector<Parameter> parameters;
    for (int row = 0; row < 3; ++row) {
      rows.push_back(
          Leaf({initial.begin() + 4 * row, initial.begin() + 4 * row + 4},
               {1, 2, 2}));
      parameters.push_back({"row" + std::to_string(row), rows.back()});
    }
    const auto alone = Make({{rule, parameters, false, clip}});
    for (int step = 1; step <= 3; ++step) {
      std::vector<double> gradient;
      for (int i = 0; i < 12; ++i) gradient.push_back(i * 7 % 5 - 0.5 * step);
      all.SetGradient(Tensor::FromVector<double>(gradient, {3, 2, 2}));
      for (int row = 0; row < 3; ++row) {
        rows[row].SetGradient(Tensor::FromVector<double>(
            {gradient.begin() + 4 * row, gradient.begin() + 4 * row + 4},
            {1, 2, 2}));
      }
      WEFT_ASSERT_OK(together->Step());
      WEFT_ASSERT_OK(alone->Step());
    }
    for (int row = 0; row < 3; ++row) {
      EXPECT_EQ(all.value().Select(0, row).ToVector<double>(),
                rows[row].value().ToVector<double>())
          << RuleName(rule);
    }
    if (RuleName(rule) == "rowwise_adagrad") {
      EXPECT_EQ(together->StateDict().at("all/accumulator").shape(),
                Shape({3}));
    }
  }
}

// A sparse gradient has the same rows, and of one dimension these have one
// element: FBGEMM's rule is Adagrad then.
TEST(Optimizer, RowsOfSparseGradientsAreThoseOfDenseOnes) {
  const RuleOptions rule = RowwiseAdagradOptions{0.1, 1e-10};
  const Variable dense = Leaf({1, 2, 3, 4, 5, 6}, {3, 2});
  const Variable sparse = Leaf({1, 2, 3, 4, 5, 6}, {3, 2});
  const auto optimizer =
      Make({{rule, {{"dense", dense}, {"sparse", sparse}}, false, {0.0, 2.0}}});
  for (int step = 1; step <= 3; ++step) {
    dense.SetGradient(
        Tensor::FromVector<double>({3, -1.0 * step, 0, 0, 0.5, 1}, {3, 2}));
    sparse.SetGradient(SparseRows{
        Tensor::FromVector<int64_t>({2, 0}),
        Tensor::FromVector<double>({0.5, 1, 3, -1.0 * step}, {2, 2}), 3});
    WEFT_ASSERT_OK(optimizer->Step());
    EXPECT_EQ(sparse.value().ToVector<double>(),
              dense.value().ToVector<double>());
  }
  const Variable bias = Leaf({1, 2}, {2}), scalar = Leaf({1}, {});
  const Variable wanted = Leaf({1, 2, 1}, {3});
  const auto rowwise = Make({{rule, {{"bias", bias}, {"scalar", scalar}}}});
  const auto adagrad =
      Make({{AdagradOptions{0.1, 0, 0, 0, 1e-10}, {{"w", wanted}}}});
  bias.SetGradient(Tensor::FromVector<double>({3, -4}));
  scalar.SetGradient(Tensor::Scalar<double>(0.25));
  wanted.SetGradient(Tensor::FromVector<double>({3, -4, 0.25}));
  WEFT_ASSERT_OK(rowwise->Step());
  WEFT_ASSERT_OK(adagrad->Step());
  std::vector<double> found = bias.value().ToVector<double>();
  found.push_back(scalar.value().item<double>());
  ExpectNear(wanted.value(), found);
}

// With |w| = 5 and no decay the first step has length lr * 5.
TEST(Optimizer, LambSeesWholeParameters) {
  const Variable table = Leaf({3, 0, 0, 4}, {2, 2});
  LambOptions lamb;
  lamb.lr = 0.1;
  lamb.weight_decay = 0;
  const auto optimizer = Make({{lamb, {{"table", table}}, /*lazy=*/true}});
  table.SetGradient(Tensor::FromVector<double>({1, 1, 1, 1}, {2, 2}));
  WEFT_ASSERT_OK(optimizer->Step());
  double squares = 0;
  const std::vector<double> before = {3, 0, 0, 4};
  for (int i = 0; i < 4; ++i) {
    squares += std::pow(table.value().ToVector<double>()[i] - before[i], 2);
  }
  EXPECT_NEAR(std::sqrt(squares), 0.5, 1e-6);  // of epsilon
  table.SetGradient(SparseRows{Tensor::FromVector<int64_t>({1}),
                               Tensor::FromVector<double>({1, 1}, {1, 2}), 2});
  EXPECT_THAT(optimizer->Step(),
              StatusIs(kInvalid, "lamb looks at whole parameters"));
}

TEST(Optimizer, GradientsStayWithinLimitsAlsoWhenTheRateHasChanged) {
  const Variable w = Leaf({0, 0}, {1, 2});
  const auto optimizer =
      Make({{SgdOptions{1}, {{"w", w}}, false, {/*value=*/4, /*norm=*/5}}});
  w.SetGradient(Tensor::FromVector<double>({30, -3}, {1, 2}));
  WEFT_ASSERT_OK(optimizer->Step());
  ExpectNear(w.value(), {-4, 3});
  WEFT_ASSERT_OK(optimizer->SetLearningRate(0, 0.5));
  w.SetGradient(Tensor::FromVector<double>({40, 40}, {1, 2}));
  WEFT_ASSERT_OK(optimizer->Step());
  ExpectNear(w.value(), {-4 - 2.5 * std::sqrt(0.5), 3 - 2.5 * std::sqrt(0.5)});
  // The gradient itself is as it was.
  EXPECT_EQ(w.grad().ToVector<double>(), (std::vector<double>{40, 40}));
  EXPECT_THAT(
      Optimizer::Create({{SgdOptions{1}, {{"w", w}}, false, {-1, 0}}}).status(),
      StatusIs(kInvalid, "clip_value is -1"));
}

TEST(Optimizer, RefusesGradientsThatDoNotFit) {
  const Variable table = Leaf({1, 2, 3, 4}, {2, 2});
  const auto optimizer = Make({{SgdOptions{}, {{"table", table}}}});
  table.SetGradient(SparseRows{Tensor::FromVector<int64_t>({2}),
                               Tensor::FromVector<double>({1, 1}, {1, 2}), 2});
  EXPECT_THAT(optimizer->Step(), StatusIs(kInvalid, "has row 2"));
  EXPECT_EQ(table.value().ToVector<double>(),
            std::vector<double>({1, 2, 3, 4}));
}

TEST(Optimizer, LearningRateCanChangeAndKeepsTheState) {
  const Variable w = Leaf({1.0}, {1});
  const auto optimizer = Make({{SgdOptions{0.1, 0.5}, {{"w", w}}}});
  w.SetGradient(Tensor::FromVector<double>({1.0}));
  WEFT_ASSERT_OK(optimizer->Step());  // momentum 1, w 0.9
  WEFT_ASSERT_OK(optimizer->SetLearningRate(0, 0.2));
  EXPECT_EQ(optimizer->learning_rate(0), 0.2);
  WEFT_ASSERT_OK(optimizer->Step());  // momentum 1.5, w 0.9 - 0.3
  EXPECT_DOUBLE_EQ(w.value().item<double>(), 0.6);
  EXPECT_THAT(optimizer->SetLearningRate(0, -1),
              StatusIs(kInvalid, "sgd.lr is -1"));
  EXPECT_EQ(optimizer->learning_rate(0), 0.2);
}

// Half the steps, a checkpoint on disk, a new optimizer, the other half: the
// same bits as without.
TEST(Optimizer, ContinuesFromACheckpointBitForBit) {
  for (const RuleOptions& rule :
       {RuleOptions(SgdOptions{0.1, 0.9}), RuleOptions(AdamOptions{}),
        RuleOptions(AdamWOptions{}), RuleOptions(AdagradOptions{0.1, 0.1}),
        RuleOptions(FtrlOptions{}),
        RuleOptions(AdamOptions{0.1, 0.9, 0.5, 1e-8, 0, /*amsgrad=*/true}),
        RuleOptions(RmspropOptions{0.1, 0.9, 1e-3, 0, 0.5, /*centered=*/true}),
        RuleOptions(AdadeltaOptions{}), RuleOptions(LionOptions{}),
        RuleOptions(LambOptions{}), RuleOptions(RowwiseAdagradOptions{})}) {
    const auto step = [](const Variable& w, Optimizer& optimizer, int i) {
      w.SetGradient(Tensor::FromVector<double>({0.1 * i, -0.3}));
      WEFT_EXPECT_OK(optimizer.Step());
    };
    const Variable whole = Leaf({1.0, 2.0}, {2});
    const auto uninterrupted = Make({{rule, {{"w", whole}}}});
    for (int i = 0; i < 10; ++i) step(whole, *uninterrupted, i);

    const TempDir dir;
    const auto directory = checkpoint::CheckpointDirectory::Open({dir.path()});
    WEFT_ASSERT_OK(directory);
    {
      const Variable w = Leaf({1.0, 2.0}, {2});
      const auto first = Make({{rule, {{"w", w}}}});
      for (int i = 0; i < 5; ++i) step(w, *first, i);
      auto tensors = first->StateDict();
      tensors["w"] = w.value();
      WEFT_ASSERT_OK((*directory)->Save(5, tensors, {}));
    }
    auto loaded = (*directory)->LoadLatest();
    WEFT_ASSERT_OK(loaded);
    const Variable w(loaded->tensors.at("w"), /*requires_grad=*/true);
    loaded->tensors.erase("w");
    const auto second = Make({{rule, {{"w", w}}}});
    WEFT_ASSERT_OK(second->LoadStateDict(loaded->tensors));
    for (int i = 5; i < 10; ++i) step(w, *second, i);
    EXPECT_EQ(w.value().ToVector<double>(), whole.value().ToVector<double>())
        << RuleName(rule);
  }
}

TEST(Optimizer, RefusesAStateThatIsNotItsOwn) {
  const Variable w = Leaf({1.0, 2.0}, {2});
  const auto optimizer = Make({{AdamOptions{}, {{"w", w}}}});
  auto state = optimizer->StateDict();
  EXPECT_EQ(state.size(), 3u);
  state["w/m"] = Tensor::Zeros({3}, DType::kF64);
  EXPECT_THAT(optimizer->LoadStateDict(state),
              StatusIs(kInvalid,
                       "wanted state \"w/m\" of f64[2], found "
                       "f64[3]"));
  state.erase("w/m");
  EXPECT_THAT(optimizer->LoadStateDict(state), StatusIs(kInvalid, "none"));
  state = optimizer->StateDict();
  state["x/m"] = Tensor::Zeros({2});
  EXPECT_THAT(optimizer->LoadStateDict(state),
              StatusIs(kInvalid, "\"x/m\" belongs to no parameter"));
  state = optimizer->StateDict();
  state["w/step"] = Tensor::Scalar<int64_t>(-1);
  EXPECT_THAT(optimizer->LoadStateDict(state), StatusIs(kInvalid, "is -1"));
}

// ---- gradients from elsewhere

Gradient Of(std::vector<double> values) {
  return Tensor::FromVector<double>(values);
}

TEST(Optimizer, ApplyTakesGradientsThatTheParametersDoNotHave) {
  const Variable a = Leaf({1.0}, {1}), b = Leaf({2.0}, {1});
  const auto optimizer = Make({{SgdOptions{0.5}, {{"a", a}, {"b", b}}}});
  b.SetGradient(Of({100}));
  WEFT_ASSERT_OK(optimizer->Apply([](const Parameter& parameter) {
    return parameter.name == "a" ? Of({1}) : Gradient();
  }));
  EXPECT_EQ(a.value().item<double>(), 0.5);
  EXPECT_EQ(b.value().item<double>(), 2.0);
  EXPECT_FALSE(a.has_grad());
}

TEST(Optimizer, CheckFailsAsApplyAndChangesNothing) {
  const Variable a = Leaf({1.0}, {1}), b = Leaf({2.0}, {1});
  const auto optimizer = Make({{AdamOptions{}, {{"a", a}, {"b", b}}}});
  const auto misfit = [](const Parameter& parameter) {
    return parameter.name == "a" ? Of({1}) : Of({1, 2});
  };
  EXPECT_THAT(optimizer->Check(misfit), StatusIs(kInvalid, "\"b\" is f64[2]"));
  EXPECT_THAT(optimizer->Apply(misfit), StatusIs(kInvalid, "\"b\" is f64[2]"));
  const auto fits = [](const Parameter&) { return Of({1}); };
  WEFT_EXPECT_OK(optimizer->Check(fits, Finite::kRequired));
  EXPECT_EQ(a.value().item<double>(), 1.0);
  EXPECT_EQ(optimizer->StateDict().at("a/step").item<int64_t>(), 0);
}

TEST(Optimizer, CheckFindsElementsThatAreNotFinite) {
  const Variable a = Leaf({1.0, 2.0}, {2, 1});
  const auto optimizer = Make({{SgdOptions{}, {{"a", a}}}});
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const auto dense = [bad](const Parameter&) {
      return Gradient(Tensor::FromVector<double>({1, bad}, {2, 1}));
    };
    EXPECT_THAT(optimizer->Check(dense, Finite::kRequired),
                StatusIs(kInvalid, "\"a\" has an infinite or NaN"));
    WEFT_EXPECT_OK(optimizer->Check(dense));
    const auto sparse = [bad](const Parameter&) {
      return Gradient(SparseRows{Tensor::FromVector<int64_t>({1}),
                                 Tensor::FromVector<double>({bad}, {1, 1}), 2});
    };
    EXPECT_THAT(optimizer->Check(sparse, Finite::kRequired),
                StatusIs(kInvalid, "NaN"));
  }
}

TEST(Optimizer, GroupAddedLaterStartsAtStepZero) {
  const Variable a = Leaf({1.0}, {1}), b = Leaf({1.0}, {1});
  const auto optimizer = Make({{AdamOptions{}, {{"a", a}}}});
  const auto ones = [](const Parameter&) { return Of({1}); };
  WEFT_ASSERT_OK(optimizer->Apply(ones));
  WEFT_ASSERT_OK(optimizer->AddGroup({SgdOptions{0.25}, {{"b", b}}}));
  EXPECT_EQ(optimizer->groups(), 2);
  WEFT_ASSERT_OK(optimizer->Apply(ones));
  EXPECT_EQ(b.value().item<double>(), 0.75);
  EXPECT_EQ(optimizer->StateDict().at("a/step").item<int64_t>(), 2);
  EXPECT_EQ(optimizer->StateDict().at("b/step").item<int64_t>(), 1);
  EXPECT_THAT(optimizer->AddGroup({SgdOptions{}, {{"c", a}}}),
              StatusIs(kInvalid, "\"a\" and \"c\" are one parameter"));
  EXPECT_THAT(optimizer->AddGroup({SgdOptions{}, {{"b", Leaf({1.0}, {1})}}}),
              StatusIs(kInvalid, "named \"b\""));
  EXPECT_EQ(optimizer->groups(), 2);
}

TEST(Optimizer, LearningRateScaleMultipliesAllGroups) {
  const Variable a = Leaf({1.0}, {1}), b = Leaf({1.0}, {1});
  const auto optimizer =
      Make({{SgdOptions{0.5}, {{"a", a}}}, {SgdOptions{0.25}, {{"b", b}}}});
  WEFT_ASSERT_OK(optimizer->SetLearningRateScale(0.5));
  WEFT_ASSERT_OK(optimizer->Apply([](const Parameter&) { return Of({1}); }));
  EXPECT_EQ(a.value().item<double>(), 0.75);
  EXPECT_EQ(b.value().item<double>(), 0.875);
  EXPECT_EQ(optimizer->learning_rate(0), 0.5);
  for (const double bad : {-1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(optimizer->SetLearningRateScale(bad),
                StatusIs(kInvalid, "scale is"));
  }
  EXPECT_EQ(optimizer->learning_rate_scale(), 0.5);
}

// A step on state that was reduced elsewhere is committed in this way.
TEST(Optimizer, UpdatesTheMemoryThatAParameterWasGiven) {
  const Variable a = Leaf({1.0}, {1});
  const auto optimizer = Make({{SgdOptions{0.5}, {{"a", a}}}});
  const Tensor arena = Tensor::FromVector<double>({7, 3});
  a.SetValue(arena.Slice(0, 1, 2));
  a.SetGradient(Of({1}));
  WEFT_ASSERT_OK(optimizer->Step());
  EXPECT_EQ(arena.ToVector<double>(), std::vector<double>({7, 2.5}));
}

TEST(Optimizer, RefusesNonParameters) {
  const Variable w = Leaf({1.0, 2.0}, {2});
  EXPECT_THAT(Optimizer::Create(
                  {{SgdOptions{}, {{"w", w}}}, {SgdOptions{}, {{"w", w}}}}),
              StatusIs(kInvalid, "two parameters are named \"w\""));
  EXPECT_THAT(Optimizer::Create({{SgdOptions{}, {{"w", w}, {"tied", w}}}}),
              StatusIs(kInvalid, "\"w\" and \"tied\" are one parameter"));
  EXPECT_THAT(Optimizer::Create({{SgdOptions{}, {{"w", w.Detach()}}}}),
              StatusIs(kInvalid, "wanted a contiguous leaf"));
  EXPECT_THAT(Optimizer::Create({{SgdOptions{-1.0}, {}}}),
              StatusIs(kInvalid, "sgd.lr is -1"));
}

TEST(Optimizer, FrozenParameterStandsStillUntilItIsUnfrozen) {
  const Variable a = Leaf({1}, {1}), b = Leaf({1}, {1});
  const auto optimizer =
      Make({{AdamWOptions{0.5, 0.9, 0.999, 1e-8, 0.1}, {{"a", a}, {"b", b}}}});
  const auto step = [&] {
    for (const Variable& w : {a, b}) {
      if (w.requires_grad()) w.SetGradient(Tensor::FromVector<double>({2}));
    }
    WEFT_ASSERT_OK(optimizer->Step());
    optimizer->ZeroGrad();
  };
  step();
  b.SetRequiresGrad(false);
  const double before = b.value().item<double>();
  const auto state = optimizer->StateDict();
  step();
  EXPECT_EQ(b.value().item<double>(), before);
  EXPECT_NE(a.value().item<double>(), before);
  // Nor by a gradient from elsewhere.
  WEFT_ASSERT_OK(optimizer->Apply(
      [](const Parameter&) { return Tensor::FromVector<double>({2}); }));
  EXPECT_EQ(b.value().item<double>(), before);
  EXPECT_EQ(optimizer->StateDict().at("b/step").item<int64_t>(), 1);
  // The state of a frozen one is saved and loaded.
  WEFT_ASSERT_OK(optimizer->LoadStateDict(state));
  b.SetRequiresGrad(true);
  step();
  EXPECT_NE(b.value().item<double>(), before);
}

TEST(Optimizer, VariableMadeWithoutAGradientIsRefused) {
  const auto optimizer = Optimizer::Create(
      {{SgdOptions{1.0}, {{"a", Variable(Tensor::Ones({1}))}}}});
  EXPECT_THAT(optimizer.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           "made with requires_grad"));
}

// ------------------------------------------------------------ open graphs

// Which version of the elements is current: another one after a copy was made.
const HeldVersion* CurrentOf(const Variable& w) {
  uint64_t version = 0;
  return w.value().storage()->Hold(&version).get();
}

TEST(Optimizer, GraphThatHasSavedAWeightKeepsItThroughSteps) {
  const Variable w(Tensor::FromVector<double>({1, 2, 3, 4}, {2, 2}), true);
  auto optimizer = Optimizer::Create({{SgdOptions{1.0}, {{"w", w}}}}).value();
  const Variable x(Tensor::FromVector<double>({1, 1}, {1, 2}), true);
  // The graph saves the weight itself, and a view of it.
  const Variable direct = MatMul(x, w);
  const Variable view = MatMul(x, Transpose(w, 0, 1));
  for (int step = 0; step < 3; ++step) {
    w.SetGradient(Tensor::Ones({2, 2}, DType::kF64));
    ASSERT_THAT(optimizer->Step(), IsOk());
  }
  EXPECT_EQ(w.value().ToVector<double>(), (std::vector<double>{-2, -1, 0, 1}));
  Sum(direct).Backward();
  EXPECT_EQ(x.grad().ToVector<double>(), (std::vector<double>{3, 7}));
  x.ClearGradient();
  Sum(view).Backward();
  EXPECT_EQ(x.grad().ToVector<double>(), (std::vector<double>{4, 6}));
  // A write that is no step is still found.
  const Variable later = MatMul(x, w);
  w.value().Fill(0);
  ASSERT_THAT(optimizer->Step(), IsOk());
  EXPECT_THROW(Sum(later).Backward(), Error);
}

TEST(Optimizer, StepOfATrainingLoopCopiesNoWeight) {
  const Variable w(Tensor::Ones({3, 3}, DType::kF64), true);
  auto optimizer = Optimizer::Create({{SgdOptions{0.1}, {{"w", w}}}}).value();
  const HeldVersion* const first = CurrentOf(w);
  for (int step = 0; step < 3; ++step) {
    const Variable y = MatMul(Variable(Tensor::Ones({2, 3}, DType::kF64)), w);
    const Variable loss = Sum(Mul(y, y));
    loss.Backward();
    ASSERT_THAT(optimizer->Step(), IsOk());  // the graph is still there
    optimizer->ZeroGrad();
    EXPECT_EQ(CurrentOf(w), first) << "a copy was made in step " << step;
  }
  const Variable open = MatMul(Variable(Tensor::Ones({2, 3}, DType::kF64)), w);
  w.SetGradient(Tensor::Ones({3, 3}, DType::kF64));
  ASSERT_THAT(optimizer->Step(), IsOk());
  EXPECT_NE(CurrentOf(w), first) << "the graph was left without a copy";
}

}  // namespace
}  // namespace weft::optimizer
