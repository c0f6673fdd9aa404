#include "weft/ps/embedding/hybrid_step.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/autograd/ops/reduce.h"
#include "weft/autograd/ops/shape.h"
#include "weft/autograd/variable.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/nn/layers.h"
#include "weft/nn/module.h"
#include "weft/optimizer/optimizer.h"
#include "weft/ps/client.h"
#include "weft/ps/service.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::FloatNear;
using ::testing::Pointwise;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

constexpr int64_t kDim = 3;
constexpr int64_t kBatch = 8;
constexpr int64_t kKeys = 20;

v1::TableSpec TableOf(int workers, v1::TableSpec::Mode mode) {
  v1::TableSpec spec = SparseSpec(mode, workers);
  spec.set_dim(kDim);
  spec.set_reduction(v1::TableSpec::MEAN);
  spec.mutable_initializer()->set_kind(v1::Initializer::NORMAL);
  spec.mutable_initializer()->set_scale(0.5);
  auto* adagrad = spec.mutable_rule()->mutable_adagrad();
  adagrad->set_lr(0.1);
  adagrad->set_initial_accumulator(0.1);
  return spec;
}

// One rank: its table, its dense model and what joins them.
class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(
      TestJob& job, int rank, int ranks, collectives::ProcessGroup* group,
      v1::TableSpec::Mode mode = v1::TableSpec::SYNC) {
    auto made = std::make_unique<Trainer>();
    made->client = job.MakeClient(rank);
    WEFT_ASSIGN_OR_RETURN(made->table,
                          made->client->Sparse(TableOf(ranks, mode)));
    made->lookups = std::make_unique<Lookups>(
        LookupsOptions{kTimeout, {made->table.get()}});
    if (group != nullptr) {
      WEFT_ASSIGN_OR_RETURN(
          made->ddp, ddp::DistributedDataParallel::Create(made->model, *group));
    }
    WEFT_ASSIGN_OR_RETURN(
        made->optimizer,
        optimizer::Optimizer::Create(
            {{optimizer::AdamOptions{0.05}, made->model.NamedParameters()}}));
    made->hybrid = std::make_unique<HybridStep>(HybridParts{
        made->ddp.get(), group, made->optimizer.get(), made->lookups.get()});
    return made;
  }

  // The loss of samples [begin, end) of a batch, times `scale`.
  absl::StatusOr<Variable> Loss(int step, int64_t begin, int64_t end,
                                float scale = 1) {
    std::vector<int64_t> ids;
    std::vector<float> targets;
    for (int64_t i = begin; i < end; ++i) {
      ids.push_back((5 * i + 3 * step) % kKeys);
      ids.push_back((i * i + step) % kKeys);
      targets.push_back(static_cast<float>((i + step) % 3));
    }
    const int64_t n = end - begin;
    WEFT_ASSIGN_OR_RETURN(
        const Variable rows,
        lookups->EmbeddingBag(*table, Tensor::FromVector(ids, {n, 2}),
                              BagMode::kSum));
    const Variable off =
        model.Forward(rows) - Variable(Tensor::FromVector(targets, {n, 1}));
    return Mean(off * off) * scale;
  }

  std::vector<float> Dense() const {
    std::vector<float> all;
    for (const Variable& parameter : model.Parameters()) {
      for (const float v : parameter.value().ToVector<float>()) {
        all.push_back(v);
      }
    }
    return all;
  }
  std::vector<float> Rows() {
    return table->Pull(Tensor::Arange(kKeys)).Wait(kTimeout)->ToVector<float>();
  }

  std::unique_ptr<Client> client;
  std::unique_ptr<SparseTable> table;
  Generator random{11};
  nn::Linear model{kDim, 1, random};
  std::unique_ptr<Lookups> lookups;
  std::unique_ptr<ddp::DistributedDataParallel> ddp;
  std::unique_ptr<optimizer::Optimizer> optimizer;
  std::unique_ptr<HybridStep> hybrid;
};

using Body = std::function<absl::Status(int rank, Trainer&)>;

std::vector<absl::Status> RunTrainers(
    TestJob& job, int ranks, const Body& body,
    v1::TableSpec::Mode mode = v1::TableSpec::SYNC) {
  collectives::LocalWorld world(ranks);
  return RunRanks(ranks, [&](int rank) -> absl::Status {
    collectives::GroupOptions options;
    options.timeout = absl::Minutes(1);
    const auto group =
        collectives::ProcessGroup::Create(world.Connect(rank), options);
    WEFT_ASSIGN_OR_RETURN(const auto trainer,
                          Trainer::Make(job, rank, ranks, group.get(), mode));
    return body(rank, *trainer);
  });
}

TEST(HybridStep, TwoRanksTrainAsOneDoesWithTheJoinedBatch) {
  constexpr int kSteps = 25;
  TestJob one(2, 1), two(2, 2);
  const auto alone = Trainer::Make(one, 0, 1, nullptr);
  ASSERT_THAT(alone.status(), IsOk());
  for (int step = 0; step < kSteps; ++step) {
    const auto loss = (*alone)->Loss(step, 0, kBatch);
    ASSERT_THAT(loss.status(), IsOk());
    ASSERT_THAT((*alone)->hybrid->Step(*loss), IsOk());
  }
  const std::vector<float> dense = (*alone)->Dense();
  const std::vector<float> rows = (*alone)->Rows();
  std::vector<std::vector<float>> both(2), both_rows(2);
  EXPECT_THAT(RunTrainers(two, 2,
                          [&](int rank, Trainer& trainer) -> absl::Status {
                            for (int step = 0; step < kSteps; ++step) {
                              WEFT_ASSIGN_OR_RETURN(
                                  const Variable loss,
                                  trainer.Loss(step, rank * kBatch / 2,
                                               (rank + 1) * kBatch / 2));
                              WEFT_RETURN_IF_ERROR(trainer.hybrid->Step(loss));
                            }
                            both[rank] = trainer.Dense();
                            both_rows[rank] = trainer.Rows();
                            return absl::OkStatus();
                          }),
              Each(IsOk()));
  // Sums of the same numbers in another order, over 25 steps.
  EXPECT_EQ(both[0], both[1]);
  EXPECT_EQ(both_rows[0], both_rows[1]);
  EXPECT_THAT(both[0], Pointwise(FloatNear(1e-4), dense));
  EXPECT_THAT(both_rows[0], Pointwise(FloatNear(1e-4), rows));
  // They have learnt something.
  const auto fresh = Trainer::Make(one, 0, 1, nullptr);
  EXPECT_NE((*fresh)->Dense(), dense);
}

TEST(HybridStep, AGradientThatIsNotFiniteOnOneRankChangesNothingOnAny) {
  for (const auto mode : {v1::TableSpec::SYNC, v1::TableSpec::ASYNC}) {
    TestJob job(2, 2);
    EXPECT_THAT(
        RunTrainers(
            job, 2,
            [&](int rank, Trainer& trainer) -> absl::Status {
              const std::vector<float> dense = trainer.Dense();
              const std::vector<float> rows = trainer.Rows();
              WEFT_ASSIGN_OR_RETURN(const Variable loss,
                                    trainer.Loss(0, 0, kBatch));
              // Only the look-up's gradient: the model's is whole.
              WEFT_ASSIGN_OR_RETURN(
                  const Variable more,
                  trainer.lookups->Embedding(*trainer.table,
                                             Tensor::FromVector<int64_t>({2})));
              const float factor =
                  rank == 1 ? std::numeric_limits<float>::infinity() : 1;
              const absl::Status refused =
                  trainer.hybrid->Step(loss + Sum(more) * factor);
              EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument,
                                            "no rank has stepped"));
              EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument,
                                            "the gradient of row 2"));
              EXPECT_EQ(trainer.Dense(), dense);
              EXPECT_EQ(trainer.Rows(), rows);
              EXPECT_EQ(trainer.lookups->recorded(), 0);
              // The next step is as ever.
              WEFT_ASSIGN_OR_RETURN(const Variable next,
                                    trainer.Loss(1, 0, kBatch));
              WEFT_RETURN_IF_ERROR(trainer.hybrid->Step(next));
              EXPECT_NE(trainer.Dense(), dense);
              EXPECT_NE(trainer.Rows(), rows);
              return absl::OkStatus();
            },
            mode),
        Each(IsOk()));
  }
}

TEST(HybridStep, APushThatFailsOnOneRankLeavesTheDenseParametersOfAll) {
  TestJob job(2, 2, nullptr, "", 1, /*table_memory=*/256 << 10);
  std::vector<std::vector<float>> before(2), after(2);
  const auto statuses =
      RunTrainers(job, 2, [&](int rank, Trainer& trainer) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const Variable first, trainer.Loss(0, 0, kBatch));
        WEFT_RETURN_IF_ERROR(trainer.hybrid->Step(first));
        before[rank] = trainer.Dense();
        WEFT_ASSIGN_OR_RETURN(Variable loss, trainer.Loss(0, 0, kBatch));
        if (rank == 1) {
          // More rows than the servers have room for: they refuse the push.
          WEFT_ASSIGN_OR_RETURN(const Variable many,
                                trainer.lookups->Embedding(
                                    *trainer.table, Tensor::Arange(30000)));
          loss = loss + Sum(many);
        }
        const absl::Status failed = trainer.hybrid->Step(loss);
        after[rank] = trainer.Dense();
        // What rank 0 has pushed is of a round that is not closed.
        WEFT_ASSIGN_OR_RETURN(const auto servers, trainer.client->Describe());
        for (const v1::ServerStats& server : servers) {
          for (const v1::TableStats& table : server.tables()) {
            EXPECT_EQ(table.version(), 1);
          }
        }
        return failed;
      });
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kResourceExhausted,
                                    "no dense parameter has: "));
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kResourceExhausted,
                                    "no dense parameter has: rank 1: "));
  EXPECT_EQ(before, after);
}

TEST(HybridStep, ABackwardPassThatFailsOnOneRankChangesNothingOnAny) {
  TestJob job(2, 2);
  std::vector<std::vector<float>> before(2), after(2), rows(2);
  const auto statuses =
      RunTrainers(job, 2, [&](int rank, Trainer& trainer) -> absl::Status {
        before[rank] = trainer.Dense();
        WEFT_ASSIGN_OR_RETURN(Variable loss, trainer.Loss(0, 0, kBatch));
        if (rank == 0) {
          loss.AddHook([](Gradient) -> Gradient {
            throw Error(absl::DataLossError("on purpose"));
          });
        }
        const absl::Status failed = trainer.hybrid->Step(loss);
        after[rank] = trainer.Dense();
        rows[rank] = trainer.Rows();
        return failed;
      });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kDataLoss, "on purpose"));
  EXPECT_THAT(statuses[1], ::testing::Not(IsOk()));
  EXPECT_EQ(before, after);
  TestJob fresh(1, 1);
  const auto table =
      fresh.MakeClient(0)->Sparse(TableOf(2, v1::TableSpec::SYNC));
  EXPECT_EQ(
      rows[0],
      (*table)->Pull(Tensor::Arange(kKeys)).Wait(kTimeout)->ToVector<float>());
}

TEST(HybridStep, ARankWithoutDataTakesPart) {
  TestJob job(2, 2);
  std::vector<std::vector<float>> dense(2), rows(2);
  EXPECT_THAT(
      RunTrainers(job, 2,
                  [&](int rank, Trainer& trainer) -> absl::Status {
                    for (int step = 0; step < 6; ++step) {
                      if (rank == 1 && step >= 3) {
                        WEFT_RETURN_IF_ERROR(trainer.hybrid->StepWithoutData());
                        continue;
                      }
                      WEFT_ASSIGN_OR_RETURN(
                          const Variable loss,
                          trainer.Loss(step, 4 * rank, 4 * rank + 4));
                      WEFT_RETURN_IF_ERROR(trainer.hybrid->Step(loss));
                    }
                    dense[rank] = trainer.Dense();
                    rows[rank] = trainer.Rows();
                    EXPECT_EQ(trainer.table->round(), 6);
                    return absl::OkStatus();
                  }),
      Each(IsOk()));
  EXPECT_EQ(dense[0], dense[1]);
  EXPECT_EQ(rows[0], rows[1]);
}

}  // namespace
}  // namespace weft::ps
