// Tables on servers learn as a local optimizer does, to the bit, whatever the
// rule, the number of servers and what became of them.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/variable.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/optimizer/optimizer.h"
#include "weft/optimizer/rules/rule_spec.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/test_job.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using optimizer::AdamOptions;
using optimizer::AdamWOptions;
using optimizer::ClipOptions;
using optimizer::LambOptions;
using optimizer::Optimizer;
using optimizer::RmspropOptions;
using optimizer::RowwiseAdagradOptions;
using optimizer::RuleOptions;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

constexpr int64_t kRows = 40;
constexpr int64_t kDim = 5;
constexpr int kRounds = 4;

struct Rule {
  RuleOptions options;
  ClipOptions clip = {};
  std::string Name() const {
    return absl::StrCat(optimizer::RuleName(options), " ", clip.value, " ",
                        clip.norm);
  }
};

std::vector<Rule> RulesOfElements() {
  return {{optimizer::SgdOptions{0.1, 0.9}},
          {AdamOptions{0.1}},
          {AdamOptions{0.1, 0.9, 0.5, 1e-8, 0.1, /*amsgrad=*/true}},
          {AdamWOptions{0.1, 0.9, 0.5, 1e-8, 0.1, /*amsgrad=*/true}},
          {optimizer::AdagradOptions{0.1, 0.1}},
          {optimizer::FtrlOptions{0.1}},
          {RmspropOptions{0.1, 0.9, 1e-6, 0.1}},
          {RmspropOptions{0.1, 0.9, 1e-6, 0.1, 0.5, /*centered=*/true}},
          {optimizer::AdadeltaOptions{0.5, 0.9, 1e-4}},
          {optimizer::LionOptions{0.01, 0.9, 0.99, 0.1}},
          {AdamOptions{0.1}, {1.0, 0.0}}};
}

std::vector<Rule> RulesOfRows() {
  return {{LambOptions{0.1}},
          {RowwiseAdagradOptions{0.1, 1e-8, 0.1}},
          {AdamOptions{0.1}, {0.0, 1.5}},
          {LambOptions{0.1}, {1.0, 1.5}},
          {RowwiseAdagradOptions{0.1}, {1.0, 1.5}}};
}

std::vector<Rule> AllRules() {
  std::vector<Rule> rules = RulesOfElements();
  for (const Rule& rule : RulesOfRows()) rules.push_back(rule);
  return rules;
}

Tensor Keys() { return Tensor::Arange(kRows, DType::kI64); }

// The gradient of a row in a round; some rows have none in some rounds.
std::vector<float> GradientOf(int round, int64_t row) {
  std::vector<float> values;
  for (int64_t d = 0; d < kDim; ++d) {
    values.push_back(std::sin(static_cast<float>(round * 11 + row * 3 + d)));
    if ((row + round) % 7 == 0) values.back() = 0.0f;
  }
  return values;
}
Tensor GradientsOf(int round) {
  std::vector<float> all;
  for (int64_t row = 0; row < kRows; ++row) {
    for (float x : GradientOf(round, row)) all.push_back(x);
  }
  return Tensor::FromVector<float>(all, {kRows, kDim});
}

v1::TableSpec SpecOf(const Rule& rule) {
  v1::TableSpec spec = SparseSpec(v1::TableSpec::SYNC, 1);
  spec.set_dim(kDim);
  spec.mutable_initializer()->set_kind(v1::Initializer::UNIFORM);
  spec.mutable_initializer()->set_scale(0.5);
  *spec.mutable_rule() = ToSpec(rule.options, rule.clip);
  return spec;
}

// A parameter of [1, kDim] for each row: what a row of a table is to a rule.
class LocalRows {
 public:
  LocalRows(const Rule& rule, const v1::TableSpec& spec) {
    const auto layout = *TableLayout::Create(spec);
    optimizer::ParameterGroup group{rule.options, {}, false, rule.clip};
    for (int64_t row = 0; row < kRows; ++row) {
      std::vector<float> first(kDim);
      layout->InitialWeights(row, absl::MakeSpan(first));
      rows_.emplace_back(Tensor::FromVector<float>(first, {1, kDim}),
                         /*requires_grad=*/true);
      group.parameters.push_back({absl::StrCat("row", row), rows_.back()});
    }
    optimizer_ = *Optimizer::Create({group});
  }

  std::vector<float> Step(int round) {
    std::vector<float> all;
    for (int64_t row = 0; row < kRows; ++row) {
      rows_[row].SetGradient(
          Tensor::FromVector<float>(GradientOf(round, row), {1, kDim}));
    }
    EXPECT_THAT(optimizer_->Step(), IsOk());
    for (const Variable& row : rows_) {
      for (float x : row.value().ToVector<float>()) all.push_back(x);
    }
    return all;
  }

 private:
  std::vector<Variable> rows_;
  std::unique_ptr<Optimizer> optimizer_;
};

std::vector<float> PushPull(SparseTable& table, int round) {
  const auto rows =
      table.PushPull(Keys(), GradientsOf(round), Keys()).Wait(kTimeout);
  EXPECT_THAT(rows, IsOk());
  return rows.ok() ? rows->ToVector<float>() : std::vector<float>();
}

TEST(Rules, SparseTableOnAnyServersHasTheBitsOfALocalOptimizer) {
  for (const int servers : {1, 3}) {
    TestJob job(servers, /*trainers=*/1);
    const auto client = job.MakeClient(0);
    int number = 0;
    for (const Rule& rule : AllRules()) {
      v1::TableSpec spec = SpecOf(rule);
      spec.set_name(absl::StrCat("t", ++number));
      auto table = client->Sparse(spec);
      ASSERT_THAT(table, IsOk());
      LocalRows local(rule, spec);
      for (int round = 0; round < kRounds; ++round) {
        ASSERT_EQ(PushPull(**table, round), local.Step(round))
            << rule.Name() << ", " << servers << " servers, round " << round;
      }
    }
  }
}

TEST(Rules, DenseTableOnAnyServersHasTheBitsOfALocalOptimizer) {
  constexpr int64_t kElements = 4 * kMinSliceElements + 5;
  const auto gradient_of = [&](int round) {
    std::vector<float> values(kElements);
    for (int64_t i = 0; i < kElements; ++i) {
      values[i] = 2 * std::sin(static_cast<float>(round + 3 * i));
    }
    return Tensor::FromVector(values);
  };
  for (const int servers : {1, 3}) {
    TestJob job(servers, /*trainers=*/1);
    const auto client = job.MakeClient(0);
    int number = 0;
    for (const Rule& rule : RulesOfElements()) {
      v1::TableSpec spec = DenseSpec(v1::TableSpec::SYNC, 1, kElements);
      spec.set_name(absl::StrCat("t", ++number));
      *spec.mutable_rule() = ToSpec(rule.options, rule.clip);
      auto table = client->Dense(spec);
      ASSERT_THAT(table, IsOk());
      const Variable local(Tensor::Ones({kElements}), /*requires_grad=*/true);
      const auto optimizer = *Optimizer::Create(
          {{rule.options, {{"w", local}}, false, rule.clip}});
      ASSERT_THAT((*table)->Initialize(local.value()).Wait(kTimeout), IsOk());
      for (int round = 0; round < kRounds; ++round) {
        const auto values =
            (*table)->PushPull(gradient_of(round)).Wait(kTimeout);
        ASSERT_THAT(values, IsOk());
        local.SetGradient(gradient_of(round));
        ASSERT_THAT(optimizer->Step(), IsOk());
        ASSERT_EQ(values->ToVector<float>(), local.value().ToVector<float>())
            << rule.Name() << ", " << servers << " servers, round " << round;
      }
    }
  }
}

TEST(Rules, DenseTableRefusesARuleThatMustSeeRows) {
  TestJob job(/*servers=*/2, /*trainers=*/1);
  const auto client = job.MakeClient(0);
  for (const Rule& rule : RulesOfRows()) {
    v1::TableSpec spec = DenseSpec(v1::TableSpec::SYNC, 1, 5000);
    *spec.mutable_rule() = ToSpec(rule.options, rule.clip);
    EXPECT_THAT(
        client->Dense(spec).status(),
        StatusIs(absl::StatusCode::kInvalidArgument, "looks at whole rows"))
        << rule.Name();
  }
}

TEST(Rules, CheckpointOfThreeServersGoesOnOnOneWithTheSameBits) {
  for (const Rule& rule : RulesOfRows()) {
    const TempDir temp;
    const std::string path = temp.Path("ckpt");
    auto directory = checkpoint::CheckpointDirectory::Open({path});
    ASSERT_THAT(directory, IsOk());
    const v1::TableSpec spec = SpecOf(rule);
    LocalRows local(rule, spec);
    std::string name;
    {
      TestJob job(/*servers=*/3, /*trainers=*/1, nullptr, temp.path());
      const auto client = job.MakeClient(0);
      auto table = client->Sparse(spec);
      ASSERT_THAT(table, IsOk());
      for (int round = 0; round < 2; ++round) {
        ASSERT_EQ(PushPull(**table, round), local.Step(round));
      }
      const auto attempt = (*directory)->Begin(2);
      ASSERT_THAT(attempt, IsOk());
      const auto files = client->Save(path, *attempt, 2);
      ASSERT_THAT(files, IsOk());
      const auto committed = (*directory)->Commit(*attempt, *files, {});
      ASSERT_THAT(committed, IsOk());
      name = *committed;
    }
    TestJob job(/*servers=*/1, /*trainers=*/1, nullptr, temp.path());
    const auto client = job.MakeClient(0);
    ASSERT_THAT(client->Restore(path, name), IsOk());
    auto table = client->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    for (int round = 2; round < kRounds; ++round) {
      ASSERT_EQ(PushPull(**table, round), local.Step(round)) << rule.Name();
    }
  }
}

// Each server is killed in turn and filled by the other: rows' slots of both
// kinds come over whole.
TEST(Rules, FilledReplicaGoesOnWithTheSameBits) {
  for (const Rule& rule : RulesOfRows()) {
    TestJob job(/*servers=*/2, /*trainers=*/1, nullptr, "", /*replicas=*/2);
    const auto client = job.MakeClient(0);
    const v1::TableSpec spec = SpecOf(rule);
    auto table = client->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    LocalRows local(rule, spec);
    int round = 0;
    ASSERT_EQ(PushPull(**table, round), local.Step(round));
    for (const int victim : {0, 1}) {
      ASSERT_TRUE(job.BecomesReplicated());
      job.KillServer(victim);
      ++round;
      ASSERT_EQ(PushPull(**table, round), local.Step(round)) << rule.Name();
      job.StartServer(victim);
    }
  }
}

}  // namespace
}  // namespace weft::ps
