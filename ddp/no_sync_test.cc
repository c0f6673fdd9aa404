// DistributedDataParallel whose passes are not all reduced, and gradients of
// rows.

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/data_parallel_fixture.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/hooks/bf16_compression.h"
#include "weft/ddp/hooks/f16_compression.h"
#include "weft/nn/layers.h"
#include "weft/nn/loss.h"
#include "weft/nn/module.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ddp {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;
using ::weft::testing::IsOk;

TEST(DistributedDataParallel, NoSyncAddsUpAndTheNextPassReducesAll) {
  Net alone(1);
  Backward(alone, SamplesOf(0, 0, 4));
  Backward(alone, SamplesOf(1, 0, 4));
  const std::vector<float> wanted = GradientOf(alone, "hidden.weight");
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        {
          const DistributedDataParallel::NoSyncScope local(*ddp);
          Backward(net, SamplesOf(0, 2 * rank, 2 * rank + 2),
                   /*with_spare=*/false);
        }
        EXPECT_EQ(ddp->reducer().step(), 0u);
        Backward(net, SamplesOf(1, 2 * rank, 2 * rank + 2));
        EXPECT_EQ(ddp->reducer().step(), 1u);
        EXPECT_THAT(GradientOf(net, "hidden.weight"),
                    Pointwise(FloatNear(kTolerance), wanted));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, GradientOfNoSyncIsReducedByAPassWithoutIt) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        std::vector<float> own;
        {
          const DistributedDataParallel::NoSyncScope local(*ddp);
          Backward(net, SamplesOf(0, 0, 4), /*with_spare=*/rank == 0);
          own = GradientOf(net, "spare.bias");
        }
        Backward(net, SamplesOf(1, 0, 4));
        const std::vector<float> found = GradientOf(net, "spare.bias");
        EXPECT_EQ(found.size(), size_t{kClasses});
        for (size_t i = 0; rank == 0 && i < own.size(); ++i) {
          EXPECT_NE(own[i], 0);
          EXPECT_FLOAT_EQ(found[i], own[i] / 2) << i;
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// A table of which each batch uses some rows, and a layer on them.
class TableNet : public nn::Module {
 public:
  explicit TableNet(TableGradient gradient)
      : random_(7), table_(20, 4, random_, {gradient}), output_(4, 3, random_) {
    AddModule("table", table_);
    AddModule("output", output_);
  }
  void Backward(int step, int64_t begin, int64_t end) {
    std::vector<int64_t> rows, labels;
    for (int64_t i = begin; i < end; ++i) {
      rows.push_back((3 * i + step) % 7);
      labels.push_back((i + step) % 3);
    }
    CrossEntropy(
        output_.Forward(table_.Forward(Tensor::FromVector<int64_t>(rows))),
        Tensor::FromVector<int64_t>(labels))
        .Backward();
  }
  // Gradient descent on dense and sparse gradients.
  void StepAndClear() {
    for (const Variable& parameter : Parameters()) {
      const Gradient gradient = parameter.gradient();
      if (!gradient.defined()) continue;
      Axpy_(parameter.value(), -0.5, gradient.ToDense());
      parameter.ClearGradient();
    }
  }
  std::vector<float> Values() const {
    std::vector<float> all;
    for (const Variable& parameter : Parameters()) {
      for (const float v : parameter.value().ToVector<float>()) {
        all.push_back(v);
      }
    }
    return all;
  }
  Gradient GradientOfTable() const { return table_.weight().gradient(); }

 private:
  Generator random_;
  nn::Embedding table_;
  nn::Linear output_;
};

TEST(DistributedDataParallel, SparseGradientsAreReducedAsRows) {
  TableNet alone(TableGradient::kDense);
  for (int step = 0; step < 4; ++step) {
    alone.Backward(step, 0, 12);
    alone.StepAndClear();
  }
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        TableNet net(TableGradient::kSparse);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        for (int step = 0; step < 4; ++step) {
          if (step == 3) {
            // Rows of a pass that is not reduced are so by the next.
            const DistributedDataParallel::NoSyncScope local(*ddp);
            net.Backward(step, 6 * rank, 6 * rank + 6);
            EXPECT_TRUE(net.GradientOfTable().is_sparse());
            net.ClearGradients();
          }
          net.Backward(step, 6 * rank, 6 * rank + 6);
          // Agreed before the first reduction.
          EXPECT_TRUE(net.GradientOfTable().is_sparse()) << step;
          net.StepAndClear();
        }
        EXPECT_THAT(ddp->GetLog().sparse, ElementsAre("table.weight"));
        EXPECT_THAT(net.Values(),
                    Pointwise(FloatNear(kTolerance), alone.Values()));
        return ddp->CheckInSync();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// The indices of the rows that have a gradient; none if the gradient is whole.
std::vector<int64_t> RowsOf(const Gradient& gradient) {
  if (!gradient.is_sparse()) return {};
  return Coalesce(gradient.sparse()).indices.ToVector<int64_t>();
}

TEST(DistributedDataParallel, FirstPassOfANewOneHasRowsOfUsedRowsOnly) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        TableNet net(TableGradient::kSparse);
        // As in a job that resumes or shrinks again and again.
        for (int start = 0; start < 3; ++start) {
          WEFT_ASSIGN_OR_RETURN(auto ddp,
                                DistributedDataParallel::Create(net, group));
          net.Backward(/*step=*/0, 2 * rank, 2 * rank + 2);
          // (3 * i) % 7 for i below 4.
          EXPECT_THAT(RowsOf(net.GradientOfTable()), ElementsAre(0, 2, 3, 6));
          net.StepAndClear();
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, RowsOfNoSyncBeforeTheFirstPassStayRows) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        TableNet net(TableGradient::kSparse);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        {
          const DistributedDataParallel::NoSyncScope local(*ddp);
          net.Backward(/*step=*/0, rank, rank + 1);
        }
        net.Backward(/*step=*/0, rank + 2, rank + 3);
        EXPECT_THAT(RowsOf(net.GradientOfTable()), ElementsAre(0, 2, 3, 6));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, GradientOfNoSyncCountsInAPassWithoutDataHere) {
  Net first(1), second(1);
  Backward(first, SamplesOf(0, 0, 4), /*with_spare=*/true);
  Backward(second, SamplesOf(1, 0, 4));
  std::vector<float> spare = GradientOf(first, "spare.weight");
  for (float& value : spare) value *= 3.0f / 8;
  std::vector<float> hidden = GradientOf(first, "hidden.weight");
  const std::vector<float> other = GradientOf(second, "hidden.weight");
  for (size_t i = 0; i < hidden.size(); ++i) {
    hidden[i] = (3 * hidden[i] + 5 * other[i]) / 8;
  }
  for (const bool is_first_pass : {true, false}) {
    for (const bool runs_a_pass : {true, false}) {
      const auto statuses = RunGroups(
          2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
            Net net(1);
            ReducerOptions options;
            options.divisor = Divisor::kTotalWeight;
            WEFT_ASSIGN_OR_RETURN(
                auto ddp, DistributedDataParallel::Create(net, group, options));
            if (!is_first_pass) {
              Backward(net, SamplesOf(3, 0, 4));
              net.ClearGradients();
            }
            if (rank == 0) {
              WEFT_RETURN_IF_ERROR(ddp->SetWeight(3));
              {
                const DistributedDataParallel::NoSyncScope local(*ddp);
                Backward(net, SamplesOf(0, 0, 4), /*with_spare=*/true);
              }
              WEFT_RETURN_IF_ERROR(ddp->SetWeight(0));
              if (runs_a_pass) {
                Backward(net, SamplesOf(2, 0, 4));
              } else {
                WEFT_RETURN_IF_ERROR(ddp->ContributeNothing());
              }
            } else {
              WEFT_RETURN_IF_ERROR(ddp->SetWeight(5));
              Backward(net, SamplesOf(1, 0, 4));
            }
            EXPECT_EQ(ddp->total_weight(), 8);
            EXPECT_THAT(GradientOf(net, "spare.weight"),
                        Pointwise(FloatNear(kTolerance), spare));
            EXPECT_THAT(GradientOf(net, "hidden.weight"),
                        Pointwise(FloatNear(kTolerance), hidden));
            StepAndClear(net);
            WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
            // It counted once.
            WEFT_RETURN_IF_ERROR(ddp->ContributeNothing());
            EXPECT_EQ(ddp->total_weight(), 0);
            EXPECT_TRUE(GradientOf(net, "spare.weight").empty());
            return absl::OkStatus();
          });
      EXPECT_THAT(statuses, Each(IsOk())) << is_first_pass << runs_a_pass;
    }
  }
}

TEST(DistributedDataParallel, RowsOfNoSyncCountInAPassWithoutDataHere) {
  TableNet alone(TableGradient::kDense);
  for (int step = 0; step < 3; ++step) {
    alone.Backward(step, 0, 12);
    alone.StepAndClear();
  }
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        TableNet net(TableGradient::kSparse);
        ReducerOptions options;
        options.divisor = Divisor::kTotalWeight;
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net, group, options));
        for (int step = 0; step < 3; ++step) {
          WEFT_RETURN_IF_ERROR(ddp->SetWeight(6));
          if (rank == 0) {
            {
              const DistributedDataParallel::NoSyncScope local(*ddp);
              net.Backward(step, 0, 6);
            }
            WEFT_RETURN_IF_ERROR(ddp->ContributeNothing());
          } else {
            net.Backward(step, 6, 12);
          }
          net.StepAndClear();
        }
        EXPECT_THAT(net.Values(),
                    Pointwise(FloatNear(kTolerance), alone.Values()));
        return ddp->CheckInSync();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, PassOfWeight0UnderNoSyncAddsNothing) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        ReducerOptions options;
        options.divisor = Divisor::kTotalWeight;
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net, group, options));
        WEFT_RETURN_IF_ERROR(ddp->SetWeight(rank));
        {
          const DistributedDataParallel::NoSyncScope local(*ddp);
          Backward(net, SamplesOf(0, 0, 4), /*with_spare=*/rank == 0);
        }
        EXPECT_EQ(GradientOf(net, "hidden.weight").empty(), rank == 0);
        WEFT_RETURN_IF_ERROR(ddp->ContributeNothing());
        EXPECT_EQ(ddp->total_weight(), 1);
        EXPECT_TRUE(GradientOf(net, "spare.weight").empty());
        EXPECT_FALSE(GradientOf(net, "hidden.weight").empty());
        StepAndClear(net);
        return ddp->CheckInSync();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, GradientOfNoSyncOutlastsAPassWithAStore) {
  Net alone(1);
  Backward(alone, SamplesOf(0, 0, 4), /*with_spare=*/true);
  std::vector<float> wanted = GradientOf(alone, "spare.weight");
  for (float& value : wanted) value /= 2;
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        {
          const DistributedDataParallel::NoSyncScope local(*ddp);
          Backward(net, SamplesOf(0, 0, 4), /*with_spare=*/rank == 0);
        }
        Store store;
        BackwardOptions options;
        options.sink = &store;
        const Batch batch = SamplesOf(1, 0, 4);
        CrossEntropy(net.Forward(Variable(batch.x)), batch.labels)
            .Backward(options);
        Backward(net, SamplesOf(1, 0, 4));
        EXPECT_THAT(GradientOf(net, "spare.weight"),
                    Pointwise(FloatNear(kTolerance), wanted));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

}  // namespace
}  // namespace weft::ddp
