// HybridStep and ContextLookups in clumsy hands: losses without look-ups,
// passes that were committed by hand, steps that are repeated, contexts that
// have ended. What is promised is quoted from their headers in ps/embedding or
// from docs/parameter_server.md, "Embedding".

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/scope.h"
#include "weft/nn/layers.h"
#include "weft/optimizer/distributed_optimizer.h"
#include "weft/optimizer/optimizer.h"
#include "weft/ps/client.h"
#include "weft/ps/embedding/context_lookups.h"
#include "weft/ps/embedding/hybrid_step.h"
#include "weft/ps/embedding/lookups.h"
#include "weft/ps/test_job.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

v1::TableSpec Named(const std::string& name, v1::TableSpec::Mode mode,
                    int shards = 1) {
  v1::TableSpec spec = SparseSpec(mode, shards);
  spec.set_name(name);
  spec.set_partitions(4);
  return spec;
}
std::unique_ptr<SparseTable> OpenTable(Client& client,
                                       const v1::TableSpec& spec) {
  auto table = client.Sparse(spec);
  EXPECT_THAT(table, IsOk());
  return table.ok() ? *std::move(table) : nullptr;
}
Tensor Ids(const std::vector<int64_t>& ids) { return Tensor::FromVector(ids); }
std::vector<float> RowsOf(SparseTable& table, const Tensor& ids) {
  const auto rows = table.Pull(ids).Wait(kTimeout);
  EXPECT_THAT(rows, IsOk());
  return rows.ok() ? rows->ToVector<float>() : std::vector<float>();
}

// One rank's dense half: y = w x, w [1, 2].
struct Dense {
  Dense() : random(1), net(2, 1, random, NoBias()) {
    optimizer = *optimizer::Optimizer::Create(
        {{optimizer::SgdOptions{1.0}, net.NamedParameters()}});
    net.weight().SetValue(Tensor::Ones({1, 2}));
  }
  static nn::LayerOptions NoBias() {
    nn::LayerOptions options;
    options.bias = false;
    return options;
  }
  std::vector<float> w() const {
    return net.weight().value().ToVector<float>();
  }

  Generator random;
  nn::Linear net;
  std::unique_ptr<optimizer::Optimizer> optimizer;
};

class OneRank : public ::testing::TestWithParam<v1::TableSpec::Mode> {
 protected:
  OneRank()
      : job_(2, 1),
        client_(job_.MakeClient(0)),
        table_(OpenTable(*client_, Named("t", GetParam()))),
        hybrid_({nullptr, nullptr, dense_.optimizer.get(), &lookups_}) {}
  Variable LossOf(const Tensor& ids) {
    const auto rows = lookups_.Embedding(*table_, ids);
    EXPECT_THAT(rows, IsOk());
    return Sum(dense_.net.Forward(*rows));
  }
  // Nothing has changed, and the pass is over.
  void ExpectUntouched() {
    EXPECT_EQ(lookups_.recorded(), 0);
    EXPECT_THAT(dense_.w(), Each(1));
    EXPECT_FALSE(dense_.net.weight().has_grad());
    EXPECT_THAT(RowsOf(*table_, Ids({1, 2})), Each(0));
    EXPECT_EQ(table_->round(), 0);
  }
  // As if nothing had been before: rows lose 1 (w is 1), and w changes by 0.
  void ExpectGoesOn() {
    ASSERT_THAT(hybrid_.Step(LossOf(Ids({1, 2}))), IsOk());
    EXPECT_THAT(RowsOf(*table_, Ids({1, 2})), Each(-1));
    EXPECT_THAT(dense_.w(), Each(1));
  }

  TestJob job_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<SparseTable> table_;
  Dense dense_;
  Lookups lookups_;
  HybridStep hybrid_;
};
INSTANTIATE_TEST_SUITE_P(Modes, OneRank,
                         ::testing::Values(v1::TableSpec::SYNC,
                                           v1::TableSpec::ASYNC));

// hybrid_step.h: "before the pushes: nothing has changed on any rank, nor in
// any table [...] In each case the pass is over".
TEST_P(OneRank, LossThatIsNoneIsRefusedAndThePassIsOver) {
  const Variable rows = *lookups_.Embedding(*table_, Ids({1, 2}));
  EXPECT_THAT(hybrid_.Step(rows), StatusIs(absl::StatusCode::kInvalidArgument))
      << "four elements";
  ExpectUntouched();
  EXPECT_FALSE(hybrid_.Step(Variable()).ok()) << "undefined";
  ExpectUntouched();
  LossOf(Ids({1, 2}));
  EXPECT_FALSE(hybrid_.Step(Variable(Tensor::Ones({}))).ok()) << "no graph";
  ExpectUntouched();
  EXPECT_THAT(hybrid_.Step(LossOf(Ids({1, 2})) * kInfinity),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ExpectUntouched();
  EXPECT_THAT(hybrid_.StepWithoutData(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  ExpectUntouched();
  ExpectGoesOn();
}

// The same loss again: its graph has been freed, and its look-ups committed.
TEST_P(OneRank, StepTwiceOrAfterACommitByHandOrAnAbortIsRefused) {
  const Variable loss = LossOf(Ids({1, 2}));
  lookups_.Abort();
  EXPECT_THAT(hybrid_.Step(loss),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  ExpectUntouched();
  const Variable once = LossOf(Ids({1, 2}));
  ASSERT_THAT(hybrid_.Step(once), IsOk());
  EXPECT_THAT(RowsOf(*table_, Ids({1, 2})), Each(-1));
  EXPECT_FALSE(hybrid_.Step(once).ok());
  EXPECT_FALSE(hybrid_.Step(loss).ok());
  EXPECT_THAT(RowsOf(*table_, Ids({1, 2})), Each(-1));
  EXPECT_THAT(dense_.w(), Each(1));
  // Committed by hand: the step has no look-up left. Whatever it says, the rows
  // are pushed once.
  const Variable by_hand = LossOf(Ids({3}));
  by_hand.Backward();
  ASSERT_THAT(lookups_.Commit(), IsOk());
  EXPECT_FALSE(hybrid_.Step(by_hand).ok());
  EXPECT_THAT(RowsOf(*table_, Ids({3})), Each(-1));
  EXPECT_EQ(lookups_.recorded(), 0);
}

// A loss of the dense half alone: the step has no look-up. It says so, or takes
// the dense step and an empty part of the round; not half of either.
TEST_P(OneRank, LossWithoutALookUpIsOneStepOrNone) {
  const Variable x(Tensor::Ones({1, 2}));
  const absl::Status stepped = hybrid_.Step(Sum(dense_.net.Forward(x)));
  if (stepped.ok()) {
    EXPECT_THAT(dense_.w(), Each(0));
  } else {
    EXPECT_THAT(stepped, StatusIs(absl::StatusCode::kFailedPrecondition));
    ExpectUntouched();
    ExpectGoesOn();
  }
}

TEST_P(OneRank, EmptyBatchIsAStepThatChangesNothing) {
  ASSERT_THAT(hybrid_.Step(LossOf(Tensor::Zeros({0}, DType::kI64))), IsOk());
  EXPECT_THAT(dense_.w(), Each(1));
  EXPECT_EQ(table_->round(), GetParam() == v1::TableSpec::SYNC ? 1 : 0);
  ExpectGoesOn();
}

// A server that dies: the error names it, the dense half stays as it was, and
// the pass is over.
TEST_P(OneRank, ServerThatDiesLeavesTheDenseParameters) {
  std::vector<int64_t> many;
  for (int64_t id = 0; id < 50; ++id) many.push_back(id);
  const Variable loss = LossOf(Ids(many));
  job_.RestartServer(0);
  const absl::Status stepped = hybrid_.Step(loss);
  EXPECT_FALSE(stepped.ok());
  EXPECT_THAT(stepped.ToString(), HasSubstr("ps0"));
  EXPECT_THAT(dense_.w(), Each(1));
  EXPECT_EQ(lookups_.recorded(), 0);
  EXPECT_FALSE(dense_.net.weight().has_grad());
}

// Two ranks, of which one has an empty batch, or no look-up at all, or commits
// by hand: each step ends on both with the same, and the next one is right.
TEST(TwoRanks, RankWithoutDataOrWithAnEmptyBatchStepsWithTheOther) {
  for (const std::string odd : {"empty", "without", "nothing looked up"}) {
    SCOPED_TRACE(odd);
    TestJob job(2, 2);
    collectives::LocalWorld world(2);
    std::vector<std::vector<float>> rows(2), w(2);
    const auto statuses = RunRanks(2, [&](int rank) -> absl::Status {
      const auto client = job.MakeClient(rank);
      const auto table = OpenTable(*client, Named("t", v1::TableSpec::SYNC, 2));
      const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
      Dense dense;
      WEFT_ASSIGN_OR_RETURN(
          const auto ddp,
          ddp::DistributedDataParallel::Create(dense.net, *group));
      LookupsOptions options;
      options.tables = {table.get()};
      Lookups lookups(options);
      HybridStep hybrid(
          {ddp.get(), group.get(), dense.optimizer.get(), &lookups});
      const auto step = [&](const Tensor& ids) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const Variable found,
                              lookups.Embedding(*table, ids));
        return hybrid.Step(Sum(dense.net.Forward(found)));
      };
      for (int i = 0; i < 3; ++i) {
        if (rank == 0) {
          WEFT_RETURN_IF_ERROR(step(Ids({i, 9})));
        } else if (odd == "empty") {
          WEFT_RETURN_IF_ERROR(step(Tensor::Zeros({0}, DType::kI64)));
        } else if (odd == "without") {
          WEFT_RETURN_IF_ERROR(hybrid.StepWithoutData());
        } else {
          const Variable x(Tensor::Zeros({1, 2}));
          const absl::Status stepped = hybrid.Step(Sum(dense.net.Forward(x)));
          if (!stepped.ok()) return stepped;
        }
      }
      rows[rank] = RowsOf(*table, Ids({0, 1, 2, 9}));
      w[rank] = dense.w();
      return absl::OkStatus();
    });
    if (odd == "nothing looked up" && !statuses[0].ok()) {
      // Refused: then on both ranks, with the reason.
      EXPECT_EQ(statuses[0].code(), statuses[1].code()) << statuses[0];
      continue;
    }
    EXPECT_THAT(statuses, Each(IsOk()));
    EXPECT_EQ(rows[0], rows[1]);
    EXPECT_EQ(w[0], w[1]);
    EXPECT_EQ(rows[0][0], -1);
    EXPECT_LT(rows[0][6], -2);
  }
}

// --- Look-ups in contexts ----------------------------------------------------

class InContexts : public ::testing::Test {
 protected:
  InContexts()
      : job_(2, 1),
        client_(job_.MakeClient(0)),
        table_(OpenTable(*client_, Named("t", v1::TableSpec::ASYNC))),
        references_(rref::References::Open(job_.trainer(0)).value()),
        contexts_(dist_autograd::Contexts::Open(job_.trainer(0)).value()),
        lookups_(std::make_unique<ContextLookups>()),
        w_(std::make_shared<Variable>(Tensor::Ones({}), true)) {
    optimizer_ = optimizer::DistributedOptimizer::Create(
                     job_.trainer(0), optimizer::SgdOptions{1.0},
                     {rref::MakeLocal(job_.trainer(0), w_).value()})
                     .value();
  }
  ~InContexts() override {
    optimizer_.reset();
    contexts_->Close();
    EXPECT_THAT(references_->Close(absl::Seconds(20)), IsOk());
  }
  Variable LossOf(const dist_autograd::Scope& pass, const Tensor& ids) {
    const auto rows = lookups_->Embedding(pass, *table_, ids);
    EXPECT_THAT(rows, IsOk());
    return Sum(*rows) * *w_;
  }
  float w() const { return w_->value().item<float>(); }

  TestJob job_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<SparseTable> table_;
  std::shared_ptr<rref::References> references_;
  std::shared_ptr<dist_autograd::Contexts> contexts_;
  std::unique_ptr<ContextLookups> lookups_;
  std::shared_ptr<Variable> w_;
  std::unique_ptr<optimizer::DistributedOptimizer> optimizer_;
};

// "Passes have no store but their context: a pass of weft::Backward, without
// the scope, leaves nothing here." "kInvalidArgument" as those of Lookups.
TEST_F(InContexts, OddIdsAndPassesOutsideTheContextChangeNothing) {
  dist_autograd::Scope pass(*contexts_);
  for (const Tensor& ids : {Ids({-1}), Tensor::Zeros({2}), Tensor(),
                            Tensor::Zeros({1}, DType::kI32)}) {
    EXPECT_THAT(lookups_->Embedding(pass, *table_, ids),
                StatusIs(absl::StatusCode::kInvalidArgument, "t"));
  }
  EXPECT_THAT(
      lookups_->EmbeddingBag(pass, *table_, Tensor::Zeros({2, 0}, DType::kI64),
                             BagMode::kMean),
      StatusIs(absl::StatusCode::kInvalidArgument, "t"));
  EXPECT_THAT(lookups_->Embeddings(pass, {{nullptr, Ids({1})}}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  const Variable loss = LossOf(pass, Ids({1, 1, 2}));
  EXPECT_THAT(optimizer_->Step(pass),
              StatusIs(absl::StatusCode::kFailedPrecondition))
      << "no pass";
  (void)Backward({loss}, {Gradient(Tensor::Ones({}))});
  EXPECT_THAT(optimizer_->Step(pass),
              StatusIs(absl::StatusCode::kFailedPrecondition))
      << "a pass without the scope";
  EXPECT_THAT(RowsOf(*table_, Ids({1, 2})), Each(0));
}

// E7: "once, however often it is repeated; the end of the context drops what
// was not stepped". An empty batch, and one id 10,000 times.
TEST_F(InContexts, StepsPushOnceAndEndedContextsPushNothing) {
  std::optional<dist_autograd::Scope> pass;
  pass.emplace(*contexts_);
  const Variable many = LossOf(*pass, Tensor::Full({10000}, 7, DType::kI64)) +
                        LossOf(*pass, Tensor::Zeros({0}, DType::kI64)) +
                        LossOf(*pass, Ids({7, 8}));
  ASSERT_THAT(pass->Backward(many), IsOk());
  EXPECT_THAT(RowsOf(*table_, Ids({7, 8})), Each(0));
  ASSERT_THAT(optimizer_->Step(*pass), IsOk());
  EXPECT_EQ(RowsOf(*table_, Ids({7, 8})),
            (std::vector<float>{-10001, -10001, -1, -1}));
  (void)optimizer_->Step(*pass);
  EXPECT_EQ(RowsOf(*table_, Ids({7, 8})),
            (std::vector<float>{-10001, -10001, -1, -1}));
  // A look-up after the step belongs to a context whose part has ended.
  const auto late = lookups_->Embedding(*pass, *table_, Ids({9}));
  if (late.ok()) {
    EXPECT_THAT(pass->Backward(Sum(*late)), IsOk());
    const absl::Status stepped = optimizer_->Step(*pass);
    const float row = RowsOf(*table_, Ids({9}))[0];
    EXPECT_EQ(row, stepped.ok() ? -1 : 0);
  }
  pass.reset();
  // Never stepped.
  pass.emplace(*contexts_);
  ASSERT_THAT(pass->Backward(LossOf(*pass, Ids({20}))), IsOk());
  pass.reset();
  EXPECT_THAT(RowsOf(*table_, Ids({20})), Each(0));
}

// Two contexts at once do not see each other's gradients; the end of the
// ContextLookups, which contexts outlive, loses none of them.
TEST_F(InContexts, TwoAtOnceAndOneThatOutlivesItsLookupsStepWhatIsTheirs) {
  dist_autograd::Scope first(*contexts_), second(*contexts_);
  const Variable a = LossOf(first, Ids({1, 2}));
  const Variable b = LossOf(second, Ids({2, 3}));
  ASSERT_THAT(first.Backward(a), IsOk());
  ASSERT_THAT(second.Backward(b), IsOk());
  const float before = w();
  ASSERT_THAT(optimizer_->Step(second), IsOk());
  EXPECT_EQ(w(), before);  // all rows were 0
  EXPECT_EQ(RowsOf(*table_, Ids({1, 2, 3})),
            (std::vector<float>{0, 0, -1, -1, -1, -1}));
  lookups_.reset();
  const absl::Status stepped = optimizer_->Step(first);
  EXPECT_THAT(stepped, IsOk());
  EXPECT_EQ(RowsOf(*table_, Ids({1, 2, 3})),
            (std::vector<float>{-1, -1, -2, -2, -1, -1}));
}

// context_lookups.h: "With TableSpec.staleness it ends a step of them".
TEST_F(InContexts, StepEndsAStepOfATableWithAStaleness) {
  v1::TableSpec spec = Named("stale", v1::TableSpec::ASYNC);
  spec.set_staleness(1);
  const auto table = OpenTable(*client_, spec);
  for (int64_t step = 1; step <= 3; ++step) {
    dist_autograd::Scope pass(*contexts_);
    const auto rows = lookups_->Embedding(pass, *table, Ids({step}));
    ASSERT_THAT(rows, IsOk());
    ASSERT_THAT(pass.Backward(Sum(*rows) * *w_), IsOk());
    ASSERT_THAT(optimizer_->Step(pass), IsOk());
    EXPECT_EQ(table->clock(), step);
  }
}

// "An infinite gradient steps nobody", and after it the context may pass again.
TEST_F(InContexts, GradientThatIsNotFiniteStepsNothingAndANewContextGoesOn) {
  {
    dist_autograd::Scope pass(*contexts_);
    ASSERT_THAT(pass.Backward(LossOf(pass, Ids({1})) * kInfinity), IsOk());
    EXPECT_THAT(optimizer_->Step(pass),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(optimizer_->Step(pass),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(RowsOf(*table_, Ids({1})), Each(0));
  EXPECT_EQ(w(), 1);
  dist_autograd::Scope pass(*contexts_);
  ASSERT_THAT(pass.Backward(LossOf(pass, Ids({1}))), IsOk());
  ASSERT_THAT(optimizer_->Step(pass), IsOk());
  EXPECT_THAT(RowsOf(*table_, Ids({1})), Each(-1));
}

// With a server that ends between the pass and the step nobody's weights
// change, or the error says that others have stepped.
TEST_F(InContexts, ServerThatDiesBetweenPassAndStepIsNamed) {
  dist_autograd::Scope pass(*contexts_);
  std::vector<int64_t> many;
  for (int64_t id = 0; id < 50; ++id) many.push_back(id);
  ASSERT_THAT(pass.Backward(LossOf(pass, Ids(many))), IsOk());
  job_.RestartServer(1);
  const absl::Status stepped = optimizer_->Step(pass);
  EXPECT_FALSE(stepped.ok());
  EXPECT_THAT(stepped.ToString(), HasSubstr("ps1"));
  EXPECT_EQ(w(), 1);
  EXPECT_FALSE(lookups_->Embedding(pass, *table_, Ids(many)).ok());
}

}  // namespace
}  // namespace weft::ps
