#include "weft/ps/core/table_layout.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "weft/ps/core/placement.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

v1::TableSpec Sparse() {
  v1::TableSpec spec;
  spec.set_name("emb");
  spec.set_kind(v1::TableSpec::SPARSE);
  spec.set_dim(4);
  spec.set_mode(v1::TableSpec::ASYNC);
  spec.mutable_rule()->mutable_sgd()->set_lr(0.5);
  return spec;
}

v1::TableSpec Dense(int64_t elements) {
  v1::TableSpec spec = Sparse();
  spec.set_name("model");
  spec.set_kind(v1::TableSpec::DENSE);
  spec.set_elements(elements);
  return spec;
}

TEST(TableLayout, FillsInTheNumberOfPartitions) {
  const auto spec = CheckedSpec(Sparse());
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->partitions(), kDefaultPartitions);
}

TEST(TableLayout, NamesTheFieldThatIsUnfit) {
  using S = v1::TableSpec;
  const auto refuses = [](auto change, const char* field) {
    S spec = Sparse();
    change(spec);
    EXPECT_THAT(TableLayout::Create(spec),
                StatusIs(absl::StatusCode::kInvalidArgument, field));
  };
  refuses([](S& s) { s.set_name("../up to no good"); }, "name");
  refuses([](S& s) { s.clear_kind(); }, "kind");
  refuses([](S& s) { s.set_dim(0); }, "dim");
  refuses([](S& s) { s.set_dim(int64_t{1} << 50); }, "dim");
  refuses([](S& s) { s.clear_mode(); }, "mode");
  refuses([](S& s) { s.set_mode(S::SYNC); }, "shards");
  refuses([](S& s) { s.set_partitions(3); }, "power of two");
  refuses([](S& s) { s.set_partitions(-1); }, "partitions");
  refuses([](S& s) { s.mutable_initializer()->set_scale(NAN); }, "scale");
  refuses([](S& s) { s.mutable_rule()->mutable_sgd()->set_lr(-1); }, "lr");
  refuses([](S& s) { s.clear_rule(); }, "rule");
  refuses(
      [](S& s) {
        s.set_kind(S::DENSE);
        s.set_elements(-5);
      },
      "elements");
}

// A server that asks CheckedSpec must not take what it cannot make afterwards.
TEST(TableLayout, CheckedSpecRefusesWhatCreateRefusesWithTheSameWords) {
  using S = v1::TableSpec;
  const auto refuses = [](S spec, const char* field) {
    const absl::Status refused = TableLayout::Create(spec).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, field));
    EXPECT_EQ(CheckedSpec(spec).status(), refused);
  };
  S bounded = Sparse();
  bounded.set_partitions(16);
  // A row of 4 floats takes 16 bytes, and some beside them.
  bounded.mutable_life()->set_max_bytes(16 * 16);
  refuses(bounded, "life.max_bytes is 256, wanted ");
  bounded.mutable_life()->set_max_bytes(16 * 1024);
  EXPECT_THAT(CheckedSpec(bounded), IsOk());
  S no_rule = Sparse();
  no_rule.clear_rule();
  refuses(no_rule, "rule");
  S by_rows = Dense(5000);
  by_rows.mutable_rule()->mutable_lamb()->set_lr(0.1);
  refuses(by_rows, "looks at whole rows");
}

TEST(TableLayout, TheLastSliceOfADenseTableIsShorter) {
  const auto layout = TableLayout::Create(Dense(2 * kMinSliceElements + 10));
  ASSERT_THAT(layout, IsOk());
  EXPECT_EQ((*layout)->slices(), 3);
  EXPECT_EQ((*layout)->RowLength(0), kMinSliceElements);
  EXPECT_EQ((*layout)->RowLength(2), 10);
}

TEST(TableLayout, LargerTablesHaveLargerSlicesUpToABound) {
  EXPECT_EQ((*TableLayout::Create(Dense(5)))->dim(), kMinSliceElements);
  EXPECT_EQ((*TableLayout::Create(Dense(1000000)))->slices(), 62);
  EXPECT_EQ((*TableLayout::Create(Dense(int64_t{1} << 30)))->dim(),
            kMaxSliceElements);
}

TEST(TableLayout, InitialWeightsDependOnTableKeyAndColumnOnly) {
  v1::TableSpec spec = Sparse();
  spec.mutable_initializer()->set_kind(v1::Initializer::NORMAL);
  spec.mutable_initializer()->set_scale(2.0);
  spec.set_dim(1000);
  const auto layout = TableLayout::Create(spec);
  ASSERT_THAT(layout, IsOk());
  std::vector<float> a(1000), b(1000), c(1000);
  (*layout)->InitialWeights(7, absl::MakeSpan(a));
  (*layout)->InitialWeights(7, absl::MakeSpan(b));
  (*layout)->InitialWeights(8, absl::MakeSpan(c));
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  double sum = 0, squares = 0;
  for (float x : a) {
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / 1000, 0.0, 0.3);  // 4.7 standard errors
  EXPECT_NEAR(std::sqrt(squares / 1000), 2.0, 0.25);

  spec.set_name("another");
  const auto other = TableLayout::Create(spec);
  ASSERT_THAT(other, IsOk());
  (*other)->InitialWeights(7, absl::MakeSpan(b));
  EXPECT_NE(a, b);
}

TEST(TableLayout, UniformStaysWithinItsScale) {
  v1::TableSpec spec = Sparse();
  spec.mutable_initializer()->set_kind(v1::Initializer::UNIFORM);
  spec.mutable_initializer()->set_scale(0.25);
  spec.set_dim(4096);
  const auto layout = TableLayout::Create(spec);
  ASSERT_THAT(layout, IsOk());
  std::vector<float> w(4096);
  (*layout)->InitialWeights(1, absl::MakeSpan(w));
  float low = 0, high = 0;
  for (float x : w) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
  EXPECT_GE(low, -0.25f);
  EXPECT_LE(high, 0.25f);
  EXPECT_LT(low, -0.24f);
  EXPECT_GT(high, 0.24f);
}

TEST(TableLayout, SettingsThatNoBuildKnowsOrThatOverflowAreRefused) {
  const auto refuses = [](auto change) {
    v1::TableSpec spec;
    spec.set_name("t");
    spec.set_kind(v1::TableSpec::SPARSE);
    spec.set_dim(2);
    spec.set_mode(v1::TableSpec::ASYNC);
    spec.mutable_rule()->mutable_sgd();
    EXPECT_TRUE(TableLayout::Create(spec).ok());
    change(spec);
    EXPECT_EQ(TableLayout::Create(spec).status().code(),
              absl::StatusCode::kInvalidArgument)
        << spec.ShortDebugString();
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double scale : {nan, -1.0, 1e300}) {
    refuses([&](auto& s) { s.mutable_initializer()->set_scale(scale); });
  }
  for (const double lr : {nan, -1.0, std::numeric_limits<double>::infinity()}) {
    refuses([&](auto& s) { s.mutable_rule()->mutable_sgd()->set_lr(lr); });
  }
  refuses([](auto& s) {
    s.mutable_initializer()->set_kind(static_cast<v1::Initializer::Kind>(9));
  });
  refuses([](auto& s) {
    s.set_reduction(static_cast<v1::TableSpec::Reduction>(9));
  });
  refuses(
      [](auto& s) { s.set_orphans(static_cast<v1::TableSpec::Orphans>(9)); });
}

TEST(TableLayout, RuleThatMustSeeRowsIsRefusedForADenseTable) {
  const auto refuses = [](auto change, const char* why) {
    v1::TableSpec spec = Dense(5000);
    change(*spec.mutable_rule());
    EXPECT_THAT(TableLayout::Create(spec),
                StatusIs(absl::StatusCode::kInvalidArgument, why));
    EXPECT_THAT(TableLayout::Create(spec),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "or a SPARSE table with the parameter's rows"));
    v1::TableSpec sparse = Sparse();
    *sparse.mutable_rule() = spec.rule();
    EXPECT_THAT(TableLayout::Create(sparse), IsOk());
  };
  refuses([](auto& rule) { rule.mutable_lamb(); },
          "table 'model': lamb looks at whole rows");
  refuses([](auto& rule) { rule.mutable_rowwise_adagrad(); },
          "rowwise_adagrad looks at whole rows");
  refuses([](auto& rule) { rule.set_clip_norm(1); },
          "sgd with clip_norm looks at whole rows");
  v1::TableSpec spec = Dense(5000);
  spec.mutable_rule()->set_clip_value(1);
  EXPECT_THAT(TableLayout::Create(spec), IsOk());
}

TEST(TableLayout, SlotOfARowTakesOneFloat) {
  v1::TableSpec spec = Sparse();
  spec.mutable_rule()->mutable_rowwise_adagrad();
  const auto rowwise = *TableLayout::Create(spec);
  EXPECT_EQ(rowwise->row_floats(), 5);
  EXPECT_EQ(rowwise->SlotOffset(0), 4);
  EXPECT_EQ(rowwise->SlotLength(0, 4), 1);
  EXPECT_FALSE(rowwise->may_join_rows());
  spec.mutable_rule()->mutable_adam();
  const auto adam = *TableLayout::Create(spec);
  EXPECT_EQ(adam->row_floats(), 12);
  EXPECT_EQ(adam->SlotOffset(1), 8);
  EXPECT_EQ(adam->SlotLength(1, 4), 4);
  EXPECT_TRUE(adam->may_join_rows());
}

TEST(TableLayout, RestoredTableMayNotChangeWhichSlotsThereAre) {
  v1::TableSpec restored = Sparse(), wanted = Sparse();
  const auto may_become = [&] {
    return DifferenceOf(WithChanges(restored, wanted), wanted).empty();
  };
  auto* from = restored.mutable_rule()->mutable_rmsprop();
  auto* to = wanted.mutable_rule()->mutable_rmsprop();
  from->set_momentum(0.5);
  to->set_momentum(0.9);
  wanted.mutable_rule()->set_clip_value(3);
  EXPECT_TRUE(may_become());
  to->set_momentum(0);  // two slots too, but of another meaning
  to->set_centered(true);
  EXPECT_FALSE(may_become());
  restored.mutable_rule()->mutable_adam();
  wanted.mutable_rule()->mutable_adam()->set_lr(0.5);
  EXPECT_TRUE(may_become());
  wanted.mutable_rule()->mutable_adam()->set_amsgrad(true);
  EXPECT_FALSE(may_become());
}

TEST(TableLayout, NamesTheFieldOfALifeThatIsUnfit) {
  using L = v1::RowLife;
  const auto refuses = [](auto change, const char* field) {
    v1::TableSpec spec = Sparse();
    spec.set_partitions(8);
    change(*spec.mutable_life());
    EXPECT_THAT(TableLayout::Create(spec),
                StatusIs(absl::StatusCode::kInvalidArgument, field));
  };
  refuses([](L& l) { l.set_max_rows(7); }, "life.max_rows is 7, wanted 8 to");
  refuses([](L& l) { l.set_max_rows(-1); }, "life.max_rows");
  refuses([](L& l) { l.set_max_bytes(100); }, "life.max_bytes is 100, wanted");
  refuses([](L& l) { l.set_max_bytes(-1); }, "life.max_bytes");
  refuses(
      [](L& l) {
        l.set_max_rows(100);
        l.set_max_bytes(10000);
      },
      "one of the two");
  refuses([](L& l) { l.set_idle_versions(-3); }, "life.idle_versions");
  refuses([](L& l) { l.set_idle_versions(int64_t{1} << 31); },
          "life.idle_versions");
  refuses([](L& l) { l.set_drop_versions(3); }, "life.drop_versions");
  refuses([](L& l) { l.set_admit_after(-1); }, "life.admit_after");
  refuses([](L& l) { l.set_admit_after(201); }, "life.admit_after");
  refuses([](L& l) { l.set_admit_counters(64); }, "life.admit_counters");
  for (const int counters : {-1, 8, 100, 1 << 17}) {
    refuses(
        [&](L& l) {
          l.set_admit_after(2);
          l.set_admit_counters(counters);
        },
        "life.admit_counters");
  }
  for (const double odds : {-0.5, 1.5, static_cast<double>(NAN)}) {
    refuses([&](L& l) { l.set_admit_probability(odds); },
            "life.admit_probability");
  }
  refuses(
      [](L& l) {
        l.set_admit_after(2);
        l.set_admit_probability(0.5);
      },
      "one of the two");
  v1::TableSpec dense = Dense(100);
  dense.mutable_life()->set_idle_versions(1);
  EXPECT_THAT(TableLayout::Create(dense),
              StatusIs(absl::StatusCode::kInvalidArgument, "DENSE"));
}

TEST(TableLayout, PartitionsShareTheBoundsOfTheirTable) {
  v1::TableSpec spec = Sparse();
  spec.set_partitions(8);
  EXPECT_FALSE((*TableLayout::Create(spec))->limits().any());
  spec.mutable_life();
  EXPECT_FALSE((*TableLayout::Create(spec))->limits().any());
  EXPECT_FALSE((*TableLayout::Create(spec))->spec().has_life());
  spec.mutable_life()->set_max_rows(100);
  EXPECT_EQ((*TableLayout::Create(spec))->limits().most_rows, 12);
  spec.mutable_life()->clear_max_rows();
  spec.mutable_life()->set_max_bytes(8 * 1000);
  // Four floats, and what row_store.h says beside them.
  EXPECT_EQ((*TableLayout::Create(spec))->limits().most_rows,
            1000 / (16 + 24 + 11));
  spec.mutable_life()->set_admit_after(2);
  EXPECT_EQ((*TableLayout::Create(spec))->spec().life().admit_counters(), 1024);
}

}  // namespace
}  // namespace weft::ps
