// remote_embeddings: dense layers trained data-parallel, over a table of
// embeddings that lives at another worker, in one step. One program for both:
//
//   weft run --role ps=1:remote_embeddings --role trainer=2:remote_embeddings
//
// A step is a distributed pass of each trainer. The backward pass averages the
// gradients of the dense layers over the trainers (ddp) on its way to the table
// (dist_autograd); the gradients of both are committed or none: if a trainer
// fails, the passes of all abort, and the table keeps what it had. Trainer 0
// prints {"first_loss":..., "last_loss":...}.

#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "weft/weft.h"

namespace {

using weft::Tensor;
using weft::Variable;
using weft::rref::RRef;

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr int64_t kRows = 100, kDim = 8, kBatch = 32;
constexpr int kSteps = 150;

// At ps0: a row of numbers for each word.
class Table {
 public:
  explicit Table(uint64_t seed) {
    weft::Generator random(seed);
    rows_ = std::make_shared<Variable>(
        weft::Normal({kRows, kDim}, 0.0, 0.5, random), /*requires_grad=*/true);
  }
  // i64 [n] -> [n, kDim]
  Variable Lookup(const Tensor& words) {
    return weft::Embedding(*rows_, words, weft::TableGradient::kSparse);
  }
  RRef<Variable> Rows(weft::rpc::CallContext& call) {
    return weft::rref::MakeLocal(call.agent(), rows_).value();
  }

 private:
  std::shared_ptr<Variable> rows_;
};
WEFT_RPC_CLASS(Table, uint64_t);
WEFT_RPC_METHOD(Table, Lookup);
WEFT_RPC_METHOD(Table, Rows);

// The one table of ps0, for all trainers.
struct Tables {
  std::shared_ptr<Table> words;
};
RRef<Table> WordTable(weft::rpc::CallContext& call) {
  return weft::rref::MakeLocal(call.agent(), call.Local<Tables>()->words)
      .value();
}
WEFT_RPC(WordTable);

// At each trainer, the same weights on all.
class Dense : public weft::nn::Module {
 public:
  explicit Dense(weft::Generator& random)
      : hidden_(kDim, 16, random), output_(16, 2, random) {
    AddModule("hidden", hidden_);
    AddModule("output", output_);
  }
  Variable Forward(const Variable& x) {
    return output_.Forward(weft::Relu(hidden_.Forward(x)));
  }

 private:
  weft::nn::Linear hidden_, output_;
};

// Words, and whether each is of the lower half.
struct Batch {
  Tensor words = Tensor::Empty({kBatch}, weft::DType::kI64);
  Tensor labels = Tensor::Empty({kBatch}, weft::DType::kI64);
  Batch(int step, int rank) {
    for (int64_t i = 0; i < kBatch; ++i) {
      const int64_t word = (31 * i + 17 * step + 53 * rank) % kRows;
      words.data<int64_t>()[i] = word;
      labels.data<int64_t>()[i] = word < kRows / 2;
    }
  }
};

absl::Status Train(weft::worker::Worker& worker) {
  weft::rpc::Agent& agent = worker.agent();
  WEFT_ASSIGN_OR_RETURN(const auto group, weft::worker::JoinGroup(worker));
  WEFT_ASSIGN_OR_RETURN(const RRef<Table> table,
                        weft::rpc::Call(agent.To("ps0"), WordTable));
  WEFT_ASSIGN_OR_RETURN(const RRef<Variable> rows,
                        weft::rref::Call(table, &Table::Rows));
  weft::Generator random(1);
  Dense dense(random);
  WEFT_ASSIGN_OR_RETURN(
      const auto ddp,
      weft::ddp::DistributedDataParallel::Create(dense, *group));
  WEFT_ASSIGN_OR_RETURN(
      std::vector<RRef<Variable>> parameters,
      weft::dist_autograd::LocalParameters(agent, dense.Parameters()));
  parameters.push_back(rows);
  WEFT_ASSIGN_OR_RETURN(
      const auto optimizer,
      weft::optimizer::DistributedOptimizer::Create(
          agent, weft::optimizer::AdagradOptions{0.1}, parameters));
  double first_loss = 0, last_loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch(step, group->rank());
    const weft::dist_autograd::Scope pass(worker.contexts());
    WEFT_ASSIGN_OR_RETURN(const Variable x,
                          pass.Call(table, &Table::Lookup, batch.words));
    const Variable loss = weft::CrossEntropy(dense.Forward(x), batch.labels);
    WEFT_RETURN_IF_ERROR(pass.Backward(loss));
    WEFT_RETURN_IF_ERROR(optimizer->Step(pass));
    last_loss = loss.value().item<float>();
    if (step == 0) first_loss = last_loss;
  }
  WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
  if (group->rank() != 0) return absl::OkStatus();
  std::printf("{\"first_loss\":%.4f,\"last_loss\":%.4f}\n", first_loss,
              last_loss);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  auto worker =
      weft::worker::Worker::Start(weft::worker::Options::FromFlags(argc, argv));
  weft::ExitIfError(worker.status());
  if ((*worker)->options().role == "ps") {
    (*worker)->agent().SetLocal(
        std::make_shared<Tables>(Tables{std::make_shared<Table>(7)}));
  }
  weft::ExitIfError((*worker)->AwaitAll("ready", kTimeout));
  if ((*worker)->options().role == "trainer") {
    weft::ExitIfError(weft::CatchToStatus([&] { return Train(**worker); }));
  }
  // ps0 serves until then.
  weft::ExitIfError((*worker)->AwaitAll("trained", kTimeout));
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
