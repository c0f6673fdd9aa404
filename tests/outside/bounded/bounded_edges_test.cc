// Bounded sparse tables at their edges: fields at their least and largest, no
// rows, keys that repeat, bounds below the number of partitions, a restore with
// other bounds. What is promised is quoted from docs/parameter_server.md ("the
// page"), proto/ps.proto or the header that is named.

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/core/partition.h"
#include "weft/ps/core/row_life.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::GetStatus;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr auto kSync = v1::TableSpec::SYNC;
constexpr auto kAsync = v1::TableSpec::ASYNC;
constexpr int64_t kMost64 = std::numeric_limits<int64_t>::max();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// One partition, so that all that happens is of one clock. First values are 0,
// and a push of -1 adds 1.
v1::TableSpec OneSpec(v1::TableSpec::Mode mode) {
  v1::TableSpec spec = SparseSpec(mode, 1);
  spec.set_partitions(1);
  return spec;
}

Tensor Keys(std::vector<int64_t> keys) {
  return Tensor::FromVector(std::move(keys));
}
Tensor Range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys;
  for (int64_t key = begin; key < end; ++key) keys.push_back(key);
  return Tensor::FromVector(std::move(keys));
}
absl::Status Push(SparseTable& table, const Tensor& keys, float gradient = -1) {
  return GetStatus(table.Push(keys, Tensor::Full({keys.numel(), 2}, gradient))
                       .Wait(kTimeout));
}
// The first weight of each row.
std::vector<float> Pull(SparseTable& table, const Tensor& keys) {
  const auto rows = table.Pull(keys).Wait(kTimeout);
  EXPECT_THAT(rows.status(), IsOk());
  std::vector<float> firsts;
  if (!rows.ok()) return firsts;
  const std::vector<float> all = rows->ToVector<float>();
  for (size_t i = 0; i < all.size(); i += 2) firsts.push_back(all[i]);
  return firsts;
}

v1::TableStats StatsOf(Client& client) {
  v1::TableStats all;
  const auto described = client.Describe();
  EXPECT_THAT(described.status(), IsOk());
  if (!described.ok()) return all;
  for (const v1::ServerStats& server : *described) {
    for (const v1::TableStats& table : server.tables()) {
      if (table.spec().kind() != v1::TableSpec::SPARSE) continue;
      all.set_rows(all.rows() + table.rows());
      all.set_evicted_full(all.evicted_full() + table.evicted_full());
      all.set_evicted_idle(all.evicted_idle() + table.evicted_idle());
      all.set_not_admitted(all.not_admitted() + table.not_admitted());
      all.set_dropped_late(all.dropped_late() + table.dropped_late());
      all.set_refused_pushes(all.refused_pushes() + table.refused_pushes());
    }
  }
  return all;
}

// A job with one client that has one table open.
struct One {
  explicit One(const v1::TableSpec& spec, int replicas = 1, int64_t memory = 0)
      : job(2, 1, nullptr, "", replicas, memory), client(job.MakeClient(0)) {
    auto opened = client->Sparse(spec);
    EXPECT_THAT(opened.status(), IsOk());
    if (opened.ok()) table = *std::move(opened);
  }
  int64_t rows() { return StatsOf(*client).rows(); }

  TestJob job;
  std::unique_ptr<Client> client;
  std::unique_ptr<SparseTable> table;
};

// --- Specs -------------------------------------------------------------------

using SetLife = void (*)(v1::RowLife&);

// table_layout.h: "kInvalidArgument names the field, what was found and what is
// allowed."
TEST(LifeSpec, ValuesThatCannotBeAreRefusedByName) {
  const std::vector<std::pair<std::string, SetLife>> cases = {
      {"max_rows", [](v1::RowLife& l) { l.set_max_rows(-1); }},
      {"max_rows", [](v1::RowLife& l) { l.set_max_rows(kMaxRows + 1); }},
      {"max_rows", [](v1::RowLife& l) { l.set_max_rows(kMost64); }},
      {"max_bytes", [](v1::RowLife& l) { l.set_max_bytes(-1); }},
      {"max_bytes",
       [](v1::RowLife& l) { l.set_max_bytes(kMaxTableBytes + 1); }},
      // "At most so many rows, or so many bytes of rows, one of the two".
      {"max_",
       [](v1::RowLife& l) {
         l.set_max_rows(1000);
         l.set_max_bytes(100000);
       }},
      {"idle_versions", [](v1::RowLife& l) { l.set_idle_versions(-1); }},
      {"idle_versions",
       [](v1::RowLife& l) { l.set_idle_versions(kMostIdleVersions + 1); }},
      {"admit_after", [](v1::RowLife& l) { l.set_admit_after(-1); }},
      {"admit_after",
       [](v1::RowLife& l) { l.set_admit_after(kMostAdmitAfter + 1); }},
      {"admit_counters",
       [](v1::RowLife& l) {
         l.set_admit_after(2);
         l.set_admit_counters(-1);
       }},
      {"admit_counters",
       [](v1::RowLife& l) {
         l.set_admit_after(2);
         l.set_admit_counters(kMostCounters * 2);
       }},
      {"admit_probability",
       [](v1::RowLife& l) { l.set_admit_probability(-0.5); }},
      {"admit_probability",
       [](v1::RowLife& l) { l.set_admit_probability(1.5); }},
      {"admit_probability",
       [](v1::RowLife& l) { l.set_admit_probability(std::nan("")); }},
      // "In place of that".
      {"admit_",
       [](v1::RowLife& l) {
         l.set_admit_after(2);
         l.set_admit_probability(0.5);
       }},
      {"drop_versions",
       [](v1::RowLife& l) {
         l.set_max_rows(1000);
         l.set_drop_versions(-1);
       }},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    v1::TableSpec spec = SparseSpec(kAsync, 1);
    cases[i].second(*spec.mutable_life());
    EXPECT_THAT(CheckedSpec(spec).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, cases[i].first))
        << i << ": " << spec.life().ShortDebugString();
  }
}

// ps.proto: "RowLife life = 13;  // SPARSE".
TEST(LifeSpec, OfADenseTableIsRefused) {
  v1::TableSpec spec = DenseSpec(kAsync, 1, 5000);
  spec.mutable_life()->set_max_rows(10);
  EXPECT_THAT(CheckedSpec(spec).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "life"));
  spec.mutable_life()->Clear();
  EXPECT_THAT(CheckedSpec(spec).status(), IsOk());
}

// The least and the largest of each field: either refused by name, or it works.
TEST(LifeSpec, ValuesAtTheEndsWork) {
  const std::vector<SetLife> cases = {
      [](v1::RowLife& l) { l.set_max_rows(kMaxRows); },
      [](v1::RowLife& l) { l.set_max_bytes(kMaxTableBytes); },
      [](v1::RowLife& l) { l.set_idle_versions(kMostIdleVersions); },
      [](v1::RowLife& l) { l.set_admit_after(1); },
      [](v1::RowLife& l) { l.set_admit_probability(1); },
      [](v1::RowLife& l) {
        l.set_max_rows(1 << 20);
        l.set_drop_versions(kMostIdleVersions);
      },
      [](v1::RowLife& l) { l.set_seed(~uint64_t{0}); },
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    v1::TableSpec spec = SparseSpec(kAsync, 1);
    cases[i](*spec.mutable_life());
    One one(spec);
    ASSERT_NE(one.table, nullptr) << i;
    ASSERT_THAT(Push(*one.table, Range(0, 100)), IsOk()) << i;
    EXPECT_THAT(Pull(*one.table, Range(0, 100)), Each(1)) << i;
    EXPECT_EQ(one.rows(), 100) << i;
  }
}

// ps.proto: "A row is made by the n-th push that names it"; row_life.h: "at
// most kMostAdmitAfter".
TEST(LifeSpec, SketchesAtTheEndsMakeTheRowByTheNthPush) {
  for (const int counters : {0, kLeastCounters, kMostCounters}) {
    v1::TableSpec spec = OneSpec(kAsync);
    spec.mutable_life()->set_admit_after(kMostAdmitAfter);
    spec.mutable_life()->set_admit_counters(counters);
    One one(spec);
    ASSERT_NE(one.table, nullptr) << counters;
    for (int push = 1; push < kMostAdmitAfter; ++push) {
      ASSERT_THAT(Push(*one.table, Keys({7})), IsOk());
    }
    EXPECT_THAT(Pull(*one.table, Keys({7})), ElementsAre(0)) << counters;
    ASSERT_THAT(Push(*one.table, Keys({7})), IsOk());
    EXPECT_THAT(Pull(*one.table, Keys({7})), ElementsAre(1)) << counters;
    EXPECT_EQ(StatsOf(*one.client).not_admitted(), kMostAdmitAfter - 1);
  }
}

// The page: "each push makes the row with this probability".
TEST(LifeSpec, SmallestProbabilityMakesNoRow) {
  v1::TableSpec spec = SparseSpec(kAsync, 1);
  spec.mutable_life()->set_admit_probability(
      std::numeric_limits<double>::denorm_min());
  One one(spec);
  ASSERT_NE(one.table, nullptr);
  ASSERT_THAT(Push(*one.table, Range(0, 5000)), IsOk());
  EXPECT_EQ(one.rows(), 0);
  EXPECT_EQ(StatsOf(*one.client).not_admitted(), 5000);
}

// --- The bound ---------------------------------------------------------------

// G12: "A bounded table never has more rows than its bound after a push": also
// where the bound is less than the number of partitions, or no multiple of it.
TEST(Bound, HoldsForAnyNumberOfPartitions) {
  for (const int64_t most : {1, 2, 15, 16, 17, 31, 100}) {
    for (const auto mode : {kSync, kAsync}) {
      v1::TableSpec spec = SparseSpec(mode, 1);  // 16 partitions
      spec.mutable_life()->set_max_rows(most);
      if (!CheckedSpec(spec).ok()) {
        EXPECT_THAT(CheckedSpec(spec).status(),
                    StatusIs(absl::StatusCode::kInvalidArgument, "max_rows"));
        EXPECT_LT(most, 16);
        continue;
      }
      One one(spec);
      ASSERT_NE(one.table, nullptr);
      ASSERT_THAT(Push(*one.table, Range(0, 1000)), IsOk());
      EXPECT_LE(one.rows(), most);
      EXPECT_GT(one.rows(), 0);
    }
  }
}

// The page: "`max_bytes` counts a row's floats, slots and 35 to 43 bytes beside
// them". A row has 2 floats and 4 of Adam's slots.
TEST(Bound, OfBytesHoldsForAnyNumber) {
  for (const int64_t most : {1, 59, 16 * 67, 16 * 67 - 1, 10000}) {
    v1::TableSpec spec = SparseSpec(kAsync, 1);
    spec.mutable_rule()->mutable_adam()->set_lr(0.1);
    spec.mutable_life()->set_max_bytes(most);
    const absl::Status refused = TableLayout::Create(spec).status();
    if (!refused.ok()) {
      EXPECT_THAT(refused,
                  StatusIs(absl::StatusCode::kInvalidArgument, "max_bytes"));
      EXPECT_LT(most, 16 * 67);
      continue;
    }
    One one(spec);
    ASSERT_NE(one.table, nullptr);
    ASSERT_THAT(Push(*one.table, Range(0, 1000)), IsOk());
    EXPECT_LE(one.rows() * (24 + 35), most) << most;
  }
}

// The page: "lets those go that no push named for longest (exact LRU)";
// "Pulls leave no trace".
TEST(Bound, RowNotNamedForLongestGoesAndPullsDoNotCount) {
  for (const int replicas : {1, 2}) {
    v1::TableSpec spec = OneSpec(kAsync);
    spec.mutable_life()->set_max_rows(3);
    One one(spec, replicas);
    ASSERT_NE(one.table, nullptr);
    for (const int64_t key : {1, 2, 3, 1}) {
      ASSERT_THAT(Push(*one.table, Keys({key})), IsOk());
    }
    EXPECT_THAT(Pull(*one.table, Keys({2})), ElementsAre(1));
    ASSERT_THAT(Push(*one.table, Keys({4})), IsOk());
    // "A pull of a row that has gone, or is not made yet, gives its first
    // values."
    EXPECT_THAT(Pull(*one.table, Keys({1, 2, 3, 4, 5, 2})),
                ElementsAre(2, 0, 1, 1, 0, 0));
    // The push that brings 2 back begins anew, and 3 goes.
    ASSERT_THAT(Push(*one.table, Keys({2, 2})), IsOk());
    EXPECT_THAT(Pull(*one.table, Keys({1, 2, 3, 4})), ElementsAre(2, 2, 0, 1));
    EXPECT_EQ(one.rows(), 3);
  }
}

// The page: "Rows go after the push that makes one too many". What a push-pull
// pulls after its push is of rows that are left.
TEST(Bound, PushOfMoreKeysThanFitLeavesTheBound) {
  v1::TableSpec spec = OneSpec(kSync);
  spec.mutable_life()->set_max_rows(3);
  One one(spec);
  ASSERT_NE(one.table, nullptr);
  const Tensor keys = Range(0, 500);
  const auto rows = one.table->PushPull(keys, Tensor::Full({500, 2}, -1), keys)
                        .Wait(kTimeout);
  ASSERT_THAT(rows.status(), IsOk());
  float sum = 0;
  for (const float value : rows->ToVector<float>()) sum += value;
  EXPECT_EQ(sum, 3 * 2);
  EXPECT_EQ(one.rows(), 3);
  EXPECT_EQ(StatsOf(*one.client).evicted_full(), 497);
}

// G12: "a key that is not there, or not let in, changes no other key's row":
// nor does one whose gradient is NaN.
TEST(Bound, GradientThatIsNaNStaysInItsRow) {
  v1::TableSpec spec = OneSpec(kAsync);
  spec.mutable_life()->set_max_rows(2);
  One one(spec);
  ASSERT_NE(one.table, nullptr);
  ASSERT_THAT(Push(*one.table, Keys({1})), IsOk());
  ASSERT_THAT(Push(*one.table, Keys({2}), kNaN), IsOk());
  EXPECT_EQ(Pull(*one.table, Keys({1}))[0], 1);
  EXPECT_TRUE(std::isnan(Pull(*one.table, Keys({2}))[0]));
  ASSERT_THAT(Push(*one.table, Keys({1})), IsOk());
  ASSERT_THAT(Push(*one.table, Keys({3})), IsOk());  // 2 goes
  ASSERT_THAT(Push(*one.table, Keys({2})), IsOk());  // and begins anew
  EXPECT_EQ(Pull(*one.table, Keys({2}))[0], 1);
}

// --- Idle rows, admission and rows that have just gone -----------------------

// ps.proto: "a row goes that no push named for more than so many versions";
// partition.h: "Each push, or round, that it applies counts for that, also one
// without keys."
TEST(Idle, RowGoesAfterExactlySoManyRoundsAlsoWithoutKeys) {
  for (const int replicas : {1, 2}) {
    v1::TableSpec spec = SparseSpec(kSync, 1);
    spec.mutable_life()->set_idle_versions(2);
    One one(spec, replicas);
    ASSERT_NE(one.table, nullptr);
    ASSERT_THAT(Push(*one.table, Range(0, 100)), IsOk());
    for (int round = 0; round < 2; ++round) {
      ASSERT_THAT(Push(*one.table, Keys({})), IsOk());
      EXPECT_EQ(one.rows(), 100) << replicas << " replicas, " << round;
    }
    ASSERT_THAT(Push(*one.table, Keys({})), IsOk());
    EXPECT_EQ(one.rows(), 0) << replicas;
    EXPECT_EQ(StatsOf(*one.client).evicted_idle() % 100, 0);
    // "A row that comes back begins anew."
    ASSERT_THAT(Push(*one.table, Keys({5})), IsOk());
    EXPECT_THAT(Pull(*one.table, Keys({5, 6})), ElementsAre(1, 0));
  }
}

TEST(Idle, RowOfAnAsyncTableGoesAfterExactlySoManyPushes) {
  v1::TableSpec spec = OneSpec(kAsync);
  spec.mutable_life()->set_idle_versions(2);
  One one(spec);
  ASSERT_NE(one.table, nullptr);
  ASSERT_THAT(Push(*one.table, Keys({1})), IsOk());
  ASSERT_THAT(Push(*one.table, Keys({2})), IsOk());
  ASSERT_THAT(Push(*one.table, Keys({2})), IsOk());
  EXPECT_THAT(Pull(*one.table, Keys({1, 2})), ElementsAre(1, 2));
  ASSERT_THAT(Push(*one.table, Keys({2})), IsOk());
  EXPECT_THAT(Pull(*one.table, Keys({1, 2})), ElementsAre(0, 3));
}

// client.h: "those of a key that repeats are added up first", so it is named by
// one push.
TEST(Admission, KeyThatRepeatsInAPushCountsOnce) {
  v1::TableSpec spec = OneSpec(kAsync);
  spec.mutable_life()->set_admit_after(2);
  One one(spec);
  ASSERT_NE(one.table, nullptr);
  ASSERT_THAT(Push(*one.table, Keys({5, 5, 5})), IsOk());
  EXPECT_THAT(Pull(*one.table, Keys({5})), ElementsAre(0));
  EXPECT_EQ(StatsOf(*one.client).not_admitted(), 1);
  ASSERT_THAT(Push(*one.table, Keys({5, 6, 5})), IsOk());
  EXPECT_THAT(Pull(*one.table, Keys({5, 6})), ElementsAre(2, 0));
}

// ps.proto: "A push within so many versions after its row went is dropped";
// the page: "and counted; no other key of the push is affected".
TEST(Late, PushIsDroppedWithinSoManyVersionsAndNoLonger) {
  for (const int replicas : {1, 2}) {
    v1::TableSpec spec = OneSpec(kAsync);
    spec.mutable_life()->set_max_rows(1);
    spec.mutable_life()->set_drop_versions(2);
    One one(spec, replicas);
    ASSERT_NE(one.table, nullptr);
    ASSERT_THAT(Push(*one.table, Keys({1})), IsOk());
    ASSERT_THAT(Push(*one.table, Keys({2})), IsOk());  // 1 goes
    for (int late = 1; late <= 2; ++late) {
      ASSERT_THAT(Push(*one.table, Keys({1, 2})), IsOk());
      EXPECT_THAT(Pull(*one.table, Keys({1, 2})), ElementsAre(0, 1 + late));
      // With two replicas the other copy may have counted it too.
      EXPECT_GE(StatsOf(*one.client).dropped_late(), late);
    }
    ASSERT_THAT(Push(*one.table, Keys({1})), IsOk());
    EXPECT_THAT(Pull(*one.table, Keys({1, 2})), ElementsAre(1, 0));
  }
}

// The page: "each partition remembers the 4,096 that went last".
TEST(Late, The4097thBeforeIsForgottenAndTheOthersAreNot) {
  for (const int64_t versions : {int64_t{1000}, kMostIdleVersions, kMost64}) {
    v1::TableSpec spec = OneSpec(kAsync);
    spec.mutable_life()->set_max_rows(1);
    spec.mutable_life()->set_drop_versions(versions);
    if (!CheckedSpec(spec).ok()) {
      EXPECT_GT(versions, kMostIdleVersions);
      continue;
    }
    One one(spec);
    ASSERT_NE(one.table, nullptr);
    ASSERT_THAT(Push(*one.table, Keys({-1})), IsOk());
    ASSERT_THAT(Push(*one.table, Range(0, 4097)), IsOk());
    // -1 went first, then 4,096 of the others.
    ASSERT_EQ(one.rows(), 1);
    ASSERT_THAT(Push(*one.table, Keys({-1})), IsOk());
    EXPECT_EQ(StatsOf(*one.client).dropped_late(), 0) << versions;
    EXPECT_THAT(Pull(*one.table, Keys({-1})), ElementsAre(1)) << versions;
    ASSERT_THAT(Push(*one.table, Range(0, 4097)), IsOk());
    EXPECT_GE(StatsOf(*one.client).dropped_late(), 4096) << versions;
  }
}

}  // namespace
}  // namespace weft::ps
