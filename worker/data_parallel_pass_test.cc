// Data-parallel layers inside a distributed pass: their gradients and those of
// a table at another worker are committed together, or not at all.

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/error.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/dist_autograd/scope.h"
#include "weft/nn/layers.h"
#include "weft/optimizer/distributed_optimizer.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/function.h"
#include "weft/rref/rref.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/join_group.h"
#include "weft/worker/test_workers.h"

namespace weft::worker {
namespace {

using rref::RRef;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;

constexpr int64_t kRows = 6, kDim = 3;
constexpr absl::Duration kTimeout = absl::Minutes(1);

// ps0's.
struct Table {
  std::shared_ptr<Variable> rows =
      std::make_shared<Variable>(Tensor::Ones({kRows, kDim}), true);
};

Variable LookUpRows(rpc::CallContext& call, const Tensor& words) {
  return Embedding(*call.Local<Table>()->rows, words);
}
WEFT_RPC(LookUpRows);

RRef<Variable> ReferToTable(rpc::CallContext& call) {
  return rref::MakeLocal(call.agent(), call.Local<Table>()->rows).value();
}
WEFT_RPC(ReferToTable);

Tensor ValuesOfTable(rpc::CallContext& call) {
  return call.Local<Table>()->rows->value().Clone();
}
WEFT_RPC(ValuesOfTable);

class Dense : public nn::Module {
 public:
  Dense() : random_(1), layer_(kDim, 1, random_) { AddModule("layer", layer_); }
  Variable Forward(const Variable& x) { return layer_.Forward(x); }

 private:
  Generator random_;
  nn::Linear layer_;
};

std::unique_ptr<TestWorkers> StartWorkers() {
  TestWorkers::Options options;
  options.servers = 1;
  options.trainers = 2;
  auto workers = TestWorkers::Start(options);
  EXPECT_THAT(workers, IsOk());
  (*workers)->Get("ps0").agent().SetLocal(std::make_shared<Table>());
  return *std::move(workers);
}

struct Trainer {
  std::unique_ptr<collectives::ProcessGroup> group;
  Dense dense;
  std::unique_ptr<ddp::DistributedDataParallel> ddp;
  std::unique_ptr<optimizer::DistributedOptimizer> optimizer;
};

absl::Status Begin(Worker& worker, Trainer& trainer) {
  WEFT_ASSIGN_OR_RETURN(trainer.group, JoinGroup(worker));
  WEFT_ASSIGN_OR_RETURN(trainer.ddp, ddp::DistributedDataParallel::Create(
                                         trainer.dense, *trainer.group));
  WEFT_ASSIGN_OR_RETURN(const RRef<Variable> table,
                        rpc::Call(worker.agent().To("ps0"), ReferToTable));
  WEFT_ASSIGN_OR_RETURN(
      trainer.optimizer,
      optimizer::DistributedOptimizer::Create(
          worker.agent(), optimizer::SgdOptions{1.0}, {table}));
  return absl::OkStatus();
}

TEST(DataParallelPass, MeansOfDenseLayersAreCommittedWithTheTablesGradient) {
  const auto workers = StartWorkers();
  EXPECT_THAT(workers->Run([](Worker& worker) -> absl::Status {
    if (worker.options().role == "ps") {
      return worker.AwaitAll("trained", kTimeout);
    }
    Trainer trainer;
    WEFT_RETURN_IF_ERROR(Begin(worker, trainer));
    const int rank = trainer.group->rank();
    for (int step = 0; step < 3; ++step) {
      const dist_autograd::Scope pass(worker.contexts());
      // Rank 0 looks up one row, rank 1 three, all ones in the first step.
      std::vector<int64_t> words(1 + 2 * rank, rank);
      WEFT_ASSIGN_OR_RETURN(const Variable x,
                            pass.Call(worker.agent().To("ps0"), LookUpRows,
                                      Tensor::FromVector<int64_t>(words)));
      WEFT_RETURN_IF_ERROR(pass.Backward(Sum(trainer.dense.Forward(x))));
      // The gradient of the bias is the number of rows, 1 and 3.
      const Variable bias = trainer.dense.Parameters()[1];
      EXPECT_THAT(pass.GradientOf(bias).ToDense().ToVector<float>(), Each(2));
      // The gradient is in the context, not in the leaf.
      EXPECT_FALSE(bias.has_grad());
      WEFT_RETURN_IF_ERROR(trainer.optimizer->Step(pass));
    }
    WEFT_RETURN_IF_ERROR(trainer.ddp->CheckInSync());
    WEFT_ASSIGN_OR_RETURN(const Tensor table,
                          rpc::Call(worker.agent().To("ps0"), ValuesOfTable));
    EXPECT_THAT(table.Slice(0, rank, rank + 1).Contiguous().ToVector<float>(),
                Not(Each(1)));
    EXPECT_THAT(table.Slice(0, 2, kRows).Contiguous().ToVector<float>(),
                Each(1));
    return worker.AwaitAll("trained", kTimeout);
  }),
              IsOk());
  EXPECT_THAT(workers->Shutdown(), IsOk());
}

TEST(DataParallelPass, FailureOfOneTrainerAbortsThePassesOfAll) {
  const auto workers = StartWorkers();
  EXPECT_THAT(workers->Run([](Worker& worker) -> absl::Status {
    if (worker.options().role == "ps") {
      WEFT_RETURN_IF_ERROR(worker.AwaitAll("stepped", kTimeout));
      return worker.AwaitAll("trained", kTimeout);
    }
    Trainer trainer;
    WEFT_RETURN_IF_ERROR(Begin(worker, trainer));
    const dist_autograd::Scope pass(worker.contexts());
    WEFT_ASSIGN_OR_RETURN(const Variable x,
                          pass.Call(worker.agent().To("ps0"), LookUpRows,
                                    Tensor::FromVector<int64_t>({0, 1})));
    Variable y = trainer.dense.Forward(x);
    if (trainer.group->rank() == 1) {
      y.AddHook([](const Gradient&) -> Gradient {
        ThrowFailedPrecondition("the disk of rank 1 is full");
      });
    }
    const absl::Status status = pass.Backward(Sum(y));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("the disk of rank 1 is full"));
    // No gradient came to the table, so there is none to apply.
    EXPECT_FALSE(trainer.optimizer->Step(pass).ok());
    WEFT_RETURN_IF_ERROR(worker.AwaitAll("stepped", kTimeout));
    WEFT_ASSIGN_OR_RETURN(const Tensor table,
                          rpc::Call(worker.agent().To("ps0"), ValuesOfTable));
    EXPECT_THAT(table.ToVector<float>(), Each(1));
    return worker.AwaitAll("trained", kTimeout);
  }),
              IsOk());
  EXPECT_THAT(workers->Shutdown(), IsOk());
}

}  // namespace
}  // namespace weft::worker
