// Look-ups in clumsy hands: passes that are committed twice, aborted, forgotten
// or done again, ids that are odd, rows that are prefetched and never used,
// servers that die in between. What is promised is quoted from
// ps/embedding/lookups.h or docs/parameter_server.md, "Embedding".

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/ps/client.h"
#include "weft/ps/embedding/lookups.h"
#include "weft/ps/many.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::weft::testing::GetStatus;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr auto kSync = v1::TableSpec::SYNC;
constexpr auto kAsync = v1::TableSpec::ASYNC;

Tensor Ids(const std::vector<int64_t>& ids) { return Tensor::FromVector(ids); }
Tensor Ids(const std::vector<int64_t>& ids, const Shape& shape) {
  return Tensor::FromVector(ids, shape);
}
v1::TableSpec Named(const std::string& name, v1::TableSpec::Mode mode,
                    int64_t dim = 2) {
  v1::TableSpec spec = SparseSpec(mode, 1);
  spec.set_name(name);
  spec.set_dim(dim);
  spec.set_partitions(4);
  return spec;
}

struct One {
  explicit One(int servers = 2) : job(servers, 2), client(job.MakeClient(0)) {}
  std::unique_ptr<SparseTable> Open(const v1::TableSpec& spec) {
    auto table = client->Sparse(spec);
    EXPECT_THAT(table, IsOk());
    return table.ok() ? *std::move(table) : nullptr;
  }
  TestJob job;
  std::unique_ptr<Client> client;
};
std::vector<float> RowsOf(SparseTable& table, const Tensor& ids) {
  const auto rows = table.Pull(ids).Wait(kTimeout);
  EXPECT_THAT(rows, IsOk());
  return rows.ok() ? rows->ToVector<float>() : std::vector<float>();
}
Variable LookUpOf(Lookups& lookups, SparseTable& table, const Tensor& ids) {
  auto found = lookups.Embedding(table, ids);
  EXPECT_THAT(found, IsOk());
  return found.ok() ? *found : Variable();
}

// --- Any program against a map of rows

// One look-up: the gradient of each element of its result is `gradient`.
struct Planned {
  int table = 0;
  std::vector<int64_t> ids;
  int64_t bag = 0;  // so many ids make one; 0: none
  BagMode mode = BagMode::kSum;
  float gradient = 0;  // 0: none comes to it
};

class Passes {
 public:
  Passes(uint64_t seed, v1::TableSpec first, v1::TableSpec second)
      : random_(seed) {
    tables_.push_back(one_.Open(first));
    tables_.push_back(one_.Open(second));
    rows_.resize(2);
    for (int i = 0; i < kPasses; ++i) plan_.push_back(MakePass());
  }

  void Run() {
    Lookups lookups;
    for (pass_ = 0; pass_ < kPasses; ++pass_) {
      SCOPED_TRACE(absl::StrCat("pass ", pass_));
      if (Draw(4) == 0) {  // a pass that comes to nothing
        DoPass(lookups);
        lookups.Abort();
        EXPECT_EQ(lookups.recorded(), 0);
      }
      DoPass(lookups);
      if (Draw(2) == 0) PrefetchSome(lookups);
      const absl::Status committed = lookups.Commit();
      if (IsPushed()) {
        ASSERT_THAT(committed, IsOk());
      } else if (!committed.ok()) {
        ASSERT_THAT(committed, StatusIs(absl::StatusCode::kFailedPrecondition));
        lookups.Abort();
        ASSERT_THAT(lookups.CommitNothing(), IsOk());
      }
      Apply();
      if (::testing::Test::HasFailure()) return;
    }
    prefetched_ = lookups.prefetched();
  }
  int64_t prefetched() const { return prefetched_; }

 private:
  static constexpr int kPasses = 30;
  int Draw(int below) { return static_cast<int>(random_() % below); }

  std::vector<Planned> MakePass() {
    std::vector<Planned> pass(1 + Draw(3));
    for (Planned& planned : pass) {
      planned.table = Draw(2);
      const int n = 4 * Draw(4);
      for (int i = 0; i < n; ++i) planned.ids.push_back(Draw(12));
      if (n > 0) planned.bag = std::vector<int>{0, 2, 4}[Draw(3)];
      planned.mode = Draw(2) == 0 ? BagMode::kSum : BagMode::kMean;
      planned.gradient = static_cast<float>(4 * Draw(3));
    }
    return pass;
  }
  LookUp ToLookUp(const Planned& planned) {
    const auto n = static_cast<int64_t>(planned.ids.size());
    if (planned.bag == 0) {
      return {tables_[planned.table].get(), Ids(planned.ids)};
    }
    return {tables_[planned.table].get(),
            Ids(planned.ids, {n / planned.bag, planned.bag}), planned.mode};
  }
  std::vector<LookUp> ToLookUps(const std::vector<Planned>& pass) {
    std::vector<LookUp> all;
    for (const Planned& planned : pass) all.push_back(ToLookUp(planned));
    return all;
  }
  bool IsPushed() const {
    for (const Planned& planned : plan_[pass_]) {
      if (planned.gradient != 0 && !planned.ids.empty()) return true;
    }
    return false;
  }

  void DoPass(Lookups& lookups) {
    const auto found = lookups.Embeddings(ToLookUps(plan_[pass_]));
    ASSERT_THAT(found, IsOk());
    std::optional<Variable> loss;
    for (size_t i = 0; i < found->size(); ++i) {
      const Planned& planned = plan_[pass_][i];
      EXPECT_EQ((*found)[i].value().ToVector<float>(), Wanted(planned));
      if (planned.gradient == 0 || planned.ids.empty()) continue;
      const Variable part = Sum((*found)[i] * double{planned.gradient});
      loss = loss.has_value() ? *loss + part : part;
    }
    if (loss.has_value()) loss->Backward();
  }
  void PrefetchSome(Lookups& lookups) {
    const int ahead = 1 + Draw(3);
    const int pass = pass_ + ahead;
    if (pass >= kPasses) return;
    std::vector<LookUp> some = ToLookUps(plan_[pass]);
    if (Draw(2) == 0) some.pop_back();
    // What nobody will look up.
    if (Draw(3) == 0) some.push_back({tables_[0].get(), Ids({1, 3, 90})});
    ASSERT_THAT(lookups.Prefetch(some, ahead), IsOk());
  }

  int64_t dim(int table) const { return tables_[table]->dim(); }
  std::vector<float>& Row(int table, int64_t id) {
    std::vector<float>& row = rows_[table][id];
    row.resize(dim(table));
    return row;
  }
  std::vector<float> Wanted(const Planned& planned) {
    std::vector<float> wanted;
    const size_t bag = planned.bag == 0 ? 1 : planned.bag;
    for (size_t i = 0; i < planned.ids.size(); i += bag) {
      std::vector<float> sum(dim(planned.table));
      for (size_t j = i; j < i + bag; ++j) {
        const std::vector<float>& row = Row(planned.table, planned.ids[j]);
        for (size_t d = 0; d < sum.size(); ++d) sum[d] += row[d];
      }
      for (float& x : sum) {
        if (planned.bag > 0 && planned.mode == BagMode::kMean) {
          x /= static_cast<float>(bag);
        }
        wanted.push_back(x);
      }
    }
    return wanted;
  }
  void Apply() {
    for (const Planned& planned : plan_[pass_]) {
      const bool is_mean = planned.bag > 0 && planned.mode == BagMode::kMean;
      const float gradient =
          planned.gradient / static_cast<float>(is_mean ? planned.bag : 1);
      for (const int64_t id : planned.ids) {
        for (float& x : Row(planned.table, id)) x -= gradient;
      }
    }
  }

  std::mt19937_64 random_;
  One one_;
  std::vector<std::unique_ptr<SparseTable>> tables_;
  std::vector<std::map<int64_t, std::vector<float>>> rows_;
  std::vector<std::vector<Planned>> plan_;
  int pass_ = 0;
  int64_t prefetched_ = 0;
};

// E1, E2, E5: rows change by the sum of what came to their look-ups; of a pass
// that was aborted by nothing; Prefetch changes no bit.
TEST(LookupsEdges, AnyProgramGivesTheRowsOfAMap) {
  int64_t prefetched = 0;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    v1::TableSpec first = Named("a", seed % 2 == 0 ? kSync : kAsync);
    v1::TableSpec second = Named("b", seed / 2 % 2 == 0 ? kSync : kAsync, 3);
    if (seed / 4 % 3 == 1) first.mutable_life()->set_max_rows(100000);
    if (seed / 4 % 3 == 2 && first.mode() == kAsync) first.set_staleness(0);
    if (seed / 4 % 3 == 2 && first.mode() == kSync) first.set_quorum(1);
    Passes passes(seed, first, second);
    passes.Run();
    prefetched += passes.prefetched();
    if (HasFailure()) break;
  }
  EXPECT_GT(prefetched, 50);
}

// --- Ids ---------------------------------------------------------------------

TEST(LookupsEdges, OddIdsAreLookedUpOrRefusedByTheNameOfTheTable) {
  One one;
  const auto table = one.Open(Named("users", kAsync));
  Lookups lookups;
  for (const Tensor& ids :
       {Ids({-1}), Ids({5, std::numeric_limits<int64_t>::min()}),
        Tensor::Zeros({2}), Tensor::Zeros({2}, DType::kI32), Tensor()}) {
    EXPECT_THAT(lookups.Embedding(*table, ids),
                StatusIs(absl::StatusCode::kInvalidArgument, "users"));
    EXPECT_THAT(lookups.EmbeddingBag(*table, ids, BagMode::kSum),
                StatusIs(absl::StatusCode::kInvalidArgument, "users"));
    EXPECT_THAT(lookups.Prefetch({{table.get(), ids}}),
                StatusIs(absl::StatusCode::kInvalidArgument, "users"));
    // "All, or none."
    EXPECT_THAT(
        lookups.Embeddings({{table.get(), Ids({1})}, {table.get(), ids}}),
        StatusIs(absl::StatusCode::kInvalidArgument, "users"));
  }
  EXPECT_EQ(lookups.recorded(), 0);
  EXPECT_THAT(lookups.Embeddings({{nullptr, Ids({1})}}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(lookups.Prefetch({{nullptr, Ids({1})}}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  // A mean of no rows has no value; a sum of none is 0.
  EXPECT_THAT(lookups.EmbeddingBag(*table, Tensor::Zeros({3, 0}, DType::kI64),
                                   BagMode::kMean),
              StatusIs(absl::StatusCode::kInvalidArgument, "users"));
  const auto sums = lookups.EmbeddingBag(
      *table, Tensor::Zeros({3, 0}, DType::kI64), BagMode::kSum);
  ASSERT_THAT(sums, IsOk());
  EXPECT_EQ(sums->shape(), (Shape{3, 2}));
  EXPECT_THAT(sums->value().ToVector<float>(), Each(0));
  EXPECT_THAT(lookups.EmbeddingBag(*table, Tensor::Zeros({}, DType::kI64),
                                   BagMode::kSum),
              StatusIs(absl::StatusCode::kInvalidArgument, "users"));
  // No bags at all, ids of no dimension, and those that nobody has.
  const auto none = lookups.EmbeddingBag(
      *table, Tensor::Zeros({0, 4}, DType::kI64), BagMode::kMean);
  ASSERT_THAT(none, IsOk());
  EXPECT_EQ(none->shape(), (Shape{0, 2}));
  EXPECT_EQ(LookUpOf(lookups, *table, Tensor::Zeros({}, DType::kI64)).shape(),
            (Shape{2}));
  const Tensor most = Ids({std::numeric_limits<int64_t>::max(), 0});
  EXPECT_THAT(LookUpOf(lookups, *table, most).value().ToVector<float>(),
              Each(0));
  EXPECT_THAT(lookups.Embeddings({}), IsOk());
  EXPECT_THAT(lookups.Prefetch({}), IsOk());
  // Not contiguous: every other one, and turned round.
  Sum(LookUpOf(lookups, *table, Ids({3, 4, 5, 6}, {2, 2}).Transpose(0, 1)) *
      Variable(Tensor::FromVector<float>({1, 1, 2, 2, 3, 3, 4, 4}, {2, 2, 2})))
      .Backward();
  ASSERT_THAT(lookups.Commit(), IsOk());
  EXPECT_EQ(RowsOf(*table, Ids({3, 4, 5, 6})),
            (std::vector<float>{-1, -1, -3, -3, -2, -2, -4, -4}));
}

// "Ids that repeat cross once, and their gradients are added up by row".
TEST(LookupsEdges, OneIdTenThousandTimesIsOneRow) {
  for (const auto mode : {kSync, kAsync}) {
    One one;
    const auto table = one.Open(Named("t", mode));
    Lookups lookups;
    const Tensor ids = Tensor::Full({100, 100}, 7, DType::kI64);
    ASSERT_THAT(lookups.Prefetch({{table.get(), ids}}), IsOk());
    Sum(LookUpOf(lookups, *table, ids)).Backward();
    ASSERT_THAT(lookups.Commit(), IsOk());
    const Variable again = LookUpOf(lookups, *table, ids);
    EXPECT_THAT(again.value().ToVector<float>(), Each(-10000));
    EXPECT_EQ(lookups.prefetched(), 1);
    const auto bag = lookups.EmbeddingBag(*table, ids, BagMode::kMean);
    ASSERT_THAT(bag, IsOk());
    EXPECT_THAT(bag->value().ToVector<float>(), Each(-10000));
  }
}

// A look-up of no rows takes part as any other, also alone in its pass.
TEST(LookupsEdges, EmptyBatchIsAPassOfItsOwn) {
  for (const auto mode : {kSync, kAsync}) {
    One one;
    const auto table = one.Open(Named("t", mode));
    Lookups lookups;
    const Variable nothing =
        LookUpOf(lookups, *table, Tensor::Zeros({0, 3}, DType::kI64));
    EXPECT_EQ(nothing.shape(), (Shape{0, 3, 2}));
    Sum(nothing).Backward();
    ASSERT_THAT(lookups.Commit(), IsOk());
    EXPECT_EQ(lookups.recorded(), 0);
    if (mode == kSync) {
      EXPECT_EQ(table->round(), 1);
    }
    Sum(LookUpOf(lookups, *table, Ids({1}))).Backward();
    ASSERT_THAT(lookups.Commit(), IsOk());
    EXPECT_THAT(RowsOf(*table, Ids({1})), Each(-1));
  }
}

// --- The order of calls ------------------------------------------------------

// "kFailedPrecondition, with nothing sent and the pass still open".
TEST(LookupsEdges, CallsInAWrongOrderAreRefusedAndThePassGoesOn) {
  One one;
  const auto table = one.Open(Named("t", kSync));
  Lookups lookups;
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(lookups.Commit(), refused);
  EXPECT_THAT(lookups.Check(), refused);
  lookups.Abort();
  lookups.Abort();
  const Variable rows = LookUpOf(lookups, *table, Ids({1, 2}));
  EXPECT_THAT(lookups.Commit(), refused) << "no backward pass";
  EXPECT_THAT(lookups.CommitNothing(), refused) << "there was a look-up";
  EXPECT_EQ(lookups.recorded(), 1);
  Sum(rows).Backward();
  EXPECT_THAT(lookups.Check(), IsOk());
  EXPECT_THAT(lookups.CommitNothing(), refused);
  EXPECT_THAT(lookups.Commit(), IsOk());
  EXPECT_THAT(lookups.Commit(), refused) << "twice";
  lookups.Abort();  // after the Commit: of nothing
  EXPECT_EQ(table->round(), 1);
  EXPECT_THAT(RowsOf(*table, Ids({1, 2})), Each(-1));
  // "A backward pass that comes to one of them later is refused".
  EXPECT_THAT(Backward({Sum(rows * 2.0)}, {Gradient(Tensor::Ones({}))}),
              refused);
  EXPECT_THAT(lookups.CommitNothing(), IsOk());
  EXPECT_THAT(lookups.CommitNothing(), IsOk());
  EXPECT_EQ(table->round(), 3);
  // A look-up of which no more is recorded is no look-up.
  {
    const NoGradScope no_grad;
    EXPECT_THAT(lookups.Embedding(*table, Ids({1})), IsOk());
  }
  EXPECT_EQ(lookups.recorded(), 0);
  EXPECT_THAT(lookups.Commit(), refused);
  EXPECT_THAT(RowsOf(*table, Ids({1, 2})), Each(-1));
}

// "kInvalidArgument, also so: a gradient is not finite." The pass is still
// open: who clips, or aborts, goes on.
TEST(LookupsEdges, GradientThatIsNotFiniteLeavesThePassOpen) {
  for (const auto push : {v1::WireValues::F32, v1::WireValues::INT8}) {
    One one;
    v1::TableSpec spec = Named("t", kSync);
    spec.mutable_wire()->set_push(push);
    const auto table = one.Open(spec);
    Lookups lookups;
    const Variable rows = LookUpOf(lookups, *table, Ids({1, 2}));
    Sum(rows * std::numeric_limits<double>::infinity()).Backward();
    EXPECT_THAT(lookups.Check(),
                StatusIs(absl::StatusCode::kInvalidArgument, "t"));
    EXPECT_THAT(lookups.Commit(), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(lookups.recorded(), 1);
    EXPECT_EQ(table->round(), 0);
    lookups.Abort();
    Sum(LookUpOf(lookups, *table, Ids({1, 2}))).Backward();
    EXPECT_THAT(lookups.Commit(), IsOk());
    EXPECT_THAT(RowsOf(*table, Ids({1, 2})), Each(-1));
  }
}

// "a loss that is 0 everywhere": a gradient of zeros is a gradient.
TEST(LookupsEdges, GradientOfZerosIsPushedAndAnEndedLookupsRefusesPasses) {
  One one;
  const auto table = one.Open(Named("t", kSync));
  Variable kept;
  {
    Lookups lookups;
    Sum(LookUpOf(lookups, *table, Ids({1})) * 0.0).Backward();
    EXPECT_THAT(lookups.Commit(), IsOk());
    EXPECT_EQ(table->round(), 1);
    kept = Sum(LookUpOf(lookups, *table, Ids({1})));
    ASSERT_THAT(lookups.Prefetch({{table.get(), Ids({5, 6})}}), IsOk());
  }
  EXPECT_THAT(Backward({kept}, {Gradient(Tensor::Ones({}))}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(RowsOf(*table, Ids({1, 5})), Each(0));
}

// Two at once are misuse ("nobody else uses them meanwhile"): each pass still
// counts once, or ends with an error, and nothing hangs.
TEST(LookupsEdges, TwoAtOnceOnOneTablePushWhatEachHas) {
  One one;
  const auto table = one.Open(Named("t", kAsync));
  Lookups first, second;
  const Variable a = LookUpOf(first, *table, Ids({1, 2}));
  const Variable b = LookUpOf(second, *table, Ids({2, 3}));
  (Sum(a) + Sum(b)).Backward();
  EXPECT_THAT(first.Commit(), IsOk());
  EXPECT_THAT(second.Commit(), IsOk());
  EXPECT_EQ(RowsOf(*table, Ids({1, 2, 3})),
            (std::vector<float>{-1, -1, -2, -2, -1, -1}));
}

// E2: "tables of two clients" are refused before anything is sent.
TEST(LookupsEdges, TablesOfTwoClientsOrOpenedTwiceInOnePass) {
  One one;
  const auto other = one.job.MakeClient(1);
  const auto mine = one.Open(Named("mine", kAsync));
  const auto theirs = other->Sparse(Named("theirs", kAsync));
  ASSERT_THAT(theirs, IsOk());
  Lookups lookups;
  const auto found =
      lookups.Embeddings({{mine.get(), Ids({1})}, {theirs->get(), Ids({1})}});
  if (found.ok()) {
    (Sum((*found)[0]) + Sum((*found)[1])).Backward();
    EXPECT_FALSE(lookups.Check().ok());
    EXPECT_FALSE(lookups.Commit().ok());
    EXPECT_THAT(RowsOf(*mine, Ids({1})), Each(0));
    EXPECT_THAT(RowsOf(**theirs, Ids({1})), Each(0));
  }
  lookups.Abort();
  // One table by two objects.
  const auto again = one.Open(Named("mine", kAsync));
  Lookups both;
  Sum(LookUpOf(both, *mine, Ids({1}))).Backward();
  Sum(LookUpOf(both, *again, Ids({1}))).Backward();
  const absl::Status committed = both.Commit();
  if (committed.ok()) {
    EXPECT_THAT(RowsOf(*mine, Ids({1})), Each(-2));
  }
}

// --- Prefetch ----------------------------------------------------------------

TEST(LookupsEdges, PrefetchOutsideItsBoundsIsRefusedAndUnusedOnesAreDropped) {
  for (const auto mode : {kSync, kAsync}) {
    One one;
    const auto table = one.Open(Named("t", mode));
    Lookups lookups;
    for (const int ahead :
         {0, -1, Lookups::kMostPassesAhead + 1, std::numeric_limits<int>::max(),
          std::numeric_limits<int>::min()}) {
      EXPECT_THAT(lookups.Prefetch({{table.get(), Ids({1})}}, ahead),
                  StatusIs(absl::StatusCode::kInvalidArgument))
          << ahead;
    }
    // The same rows for each of the passes that are to come, of which only the
    // last takes them; and twice for that one.
    for (int ahead = 1; ahead <= Lookups::kMostPassesAhead; ++ahead) {
      ASSERT_THAT(lookups.Prefetch({{table.get(), Ids({1, 2})}}, ahead),
                  IsOk());
    }
    ASSERT_THAT(lookups.Prefetch({{table.get(), Ids({1, 2})}},
                                 Lookups::kMostPassesAhead),
                IsOk());
    for (int pass = 0; pass < Lookups::kMostPassesAhead; ++pass) {
      Sum(LookUpOf(lookups, *table, Ids({2, 9}))).Backward();
      ASSERT_THAT(lookups.Commit(), IsOk());
    }
    EXPECT_EQ(lookups.prefetched(), 0);
    const float wanted = -1.0f * Lookups::kMostPassesAhead;
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(
          LookUpOf(lookups, *table, Ids({1, 2})).value().ToVector<float>(),
          (std::vector<float>{0, 0, wanted, wanted}));
    }
    EXPECT_EQ(lookups.prefetched(), 2);
  }
}

// "no other error: rows that do not come are asked for again by their look-up":
// so a server that dies in between is the error of the look-up, in time, and
// nothing is recorded.
TEST(LookupsEdges, ServerThatDiesBetweenPrefetchAndUseIsTheErrorOfTheLookUp) {
  for (const auto mode : {kSync, kAsync}) {
    One one;
    const auto table = one.Open(Named("t", mode));
    const auto other = one.Open(Named("u", mode));
    Lookups lookups;
    std::vector<int64_t> many;
    for (int64_t id = 0; id < 100; ++id) many.push_back(id);
    ASSERT_THAT(
        lookups.Prefetch({{table.get(), Ids(many)}, {other.get(), Ids({1})}}),
        IsOk());
    Sum(LookUpOf(lookups, *table, Ids(many))).Backward();
    one.job.RestartServer(1);
    const absl::Status committed = lookups.Commit();
    EXPECT_THAT(committed.code(), AnyOf(absl::StatusCode::kUnavailable,
                                        absl::StatusCode::kFailedPrecondition))
        << committed;
    EXPECT_THAT(committed.ToString(), HasSubstr("ps1"));
    for (int i = 0; i < 2; ++i) {
      const auto found = lookups.Embedding(*table, Ids(many));
      EXPECT_FALSE(found.ok()) << i;
    }
    lookups.Abort();
    EXPECT_EQ(lookups.recorded(), 0);
    // A new client takes the servers as they are.
    const auto client = one.job.MakeClient(1);
    const auto anew = client->Sparse(Named("t", mode));
    ASSERT_THAT(anew, IsOk());
    Lookups next;
    Sum(LookUpOf(next, **anew, Ids({200}))).Backward();
    if (mode == kAsync) {
      EXPECT_THAT(next.Commit(), IsOk());
      EXPECT_THAT(RowsOf(**anew, Ids({200})), Each(-1));
    }
  }
}

// A table that is there with another dim, or not at all.
TEST(LookupsEdges, TableWithAnotherDimIsRefusedAtItsOpening) {
  One one;
  const auto table = one.Open(Named("t", kAsync));
  EXPECT_THAT(one.client->Sparse(Named("t", kAsync, 3)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "dim"));
  const auto other = one.job.MakeClient(1);
  EXPECT_THAT(other->Sparse(Named("t", kSync)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "mode"));
}

// "`timeout` of each wait": none at all is too little, and a look-up that ends
// so records nothing.
TEST(LookupsEdges, TimeThatIsUpEndsALookUpAndNothingIsRecorded) {
  One one;
  const auto table = one.Open(Named("t", kAsync));
  for (const absl::Duration timeout :
       {absl::ZeroDuration(), absl::Seconds(-5)}) {
    LookupsOptions options;
    options.timeout = timeout;
    Lookups lookups(options);
    const auto found = lookups.Embedding(*table, Ids({1}));
    if (!found.ok()) {
      EXPECT_THAT(found, StatusIs(absl::StatusCode::kDeadlineExceeded));
      EXPECT_EQ(lookups.recorded(), 0);
    }
  }
}

// --- Consistency -------------------------------------------------------------

// docs/parameter_server.md, "Every round has a part of each worker": "With
// `staleness` each Commit, and each CommitNothing, ends a step of the same
// tables": once, whether rows were prefetched or not.
TEST(LookupsEdges, CommitEndsAStepOfATableWithAStaleness) {
  One one;
  v1::TableSpec spec = Named("t", kAsync);
  spec.set_staleness(1);
  const auto table = one.Open(spec);
  Lookups lookups;
  for (int64_t pass = 1; pass <= 4; ++pass) {
    Sum(LookUpOf(lookups, *table, Ids({pass}))).Backward();
    if (pass % 2 == 0) {
      ASSERT_THAT(lookups.Prefetch({{table.get(), Ids({pass + 1})}}), IsOk());
    }
    ASSERT_THAT(lookups.Commit(), IsOk());
    EXPECT_EQ(table->clock(), pass);
  }
  ASSERT_THAT(lookups.CommitNothing(), IsOk());
  EXPECT_EQ(table->clock(), 5);
  LookUpOf(lookups, *table, Ids({1}));
  lookups.Abort();
  EXPECT_EQ(table->clock(), 5);
  EXPECT_THAT(RowsOf(*table, Ids({1, 2, 3, 4})), Each(-1));
  // Who has left its clock still pushes.
  ASSERT_THAT(table->LeaveClock().Wait(kTimeout), IsOk());
  Sum(LookUpOf(lookups, *table, Ids({1}))).Backward();
  ASSERT_THAT(lookups.Commit(), IsOk());
  EXPECT_THAT(RowsOf(*table, Ids({1})), Each(-2));
}

// "a pull at clock c waits until no clock is below c - s": so do look-ups, also
// of rows that were prefetched before.
TEST(LookupsEdges, LookUpWaitsForTheSlowestWorkerAsTheBoundSays) {
  One one;
  v1::TableSpec spec = Named("t", kAsync);
  spec.set_staleness(0);
  const auto table = one.Open(spec);
  const auto other = one.job.MakeClient(1);
  const auto theirs = other->Sparse(spec);
  ASSERT_THAT(theirs, IsOk());
  Lookups slow;
  LookupsOptions options;
  options.timeout = absl::Seconds(4);  // also of look-ups that must come
  Lookups lookups(options);
  for (int pass = 0; pass < 3; ++pass) {
    ASSERT_THAT(lookups.Prefetch({{table.get(), Ids({2})}}), IsOk());
    Sum(LookUpOf(lookups, *table, Ids({1}))).Backward();
    const Future<void> sent = lookups.CommitAsync();
    EXPECT_THAT(lookups.Embedding(*table, Ids({2})),
                StatusIs(absl::StatusCode::kDeadlineExceeded))
        << "the other one has not ended this step";
    Sum(LookUpOf(slow, **theirs, Ids({2}))).Backward();
    ASSERT_THAT(slow.Commit(), IsOk());
    ASSERT_THAT(sent.Wait(kTimeout), IsOk());
    EXPECT_THAT(LookUpOf(lookups, *table, Ids({2})).value().ToVector<float>(),
                Each(-1 - pass));
    lookups.Abort();
    // The pass is done again with what the bound promises.
    EXPECT_THAT(RowsOf(*table, Ids({2})), Each(-1 - pass));
  }
}

}  // namespace
}  // namespace weft::ps
