// operation_bench: each operation of the models that ddp_bench trains, at their
// sizes, on one thread, beside PyTorch's; and the whole step of each model.
//
//   operation_bench                  figures: us, ratio, share of the step
//   operation_bench --quick          the same with fewer and shorter rounds
//   operation_bench --goals=E2       rows, as bench/goals.h says
//   operation_bench --only=gelu      those whose name contains it
//
// E2 is met where an operation takes no longer than PyTorch's. Both sides take
// turns, several rounds on one core, and count processor time, so that what
// runs beside them is not counted.

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "weft/autograd/ops.h"
#include "weft/base/check.h"
#include "weft/bench/ddp_models.h"
#include "weft/bench/goals.h"
#include "weft/bench/measure.h"
#include "weft/bench/programs.h"
#include "weft/bench/rivals.h"
#include "weft/nn/attention.h"
#include "weft/nn/layers.h"
#include "weft/nn/norm.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/random.h"

namespace weft::bench {
namespace {

using Sizes = absl::Span<const int64_t>;
using Run = std::function<void()>;

// --- Operations. -------------------------------------------------------------

// One of a model: what bench/peers/torch_operations.py knows by the same name
// and sizes.
struct Operation {
  const char* model;
  int count;  // in a step; 0: the model has none, it is here to be seen
  const char* name;
  const char* pass;  // "forward" or "backward"; of sgd and step, the model
  std::vector<int64_t> sizes;

  std::string Words() const {
    return absl::StrCat(name, " ", pass, " ", absl::StrJoin(sizes, " "));
  }
};

std::vector<Operation> Operations() {
  std::vector<Operation> all;
  const auto add = [&](const char* model, int count, const char* name,
                       std::vector<int64_t> sizes) {
    for (const char* pass : {"forward", "backward"}) {
      all.push_back({model, count, name, pass, sizes});
    }
  };
  const auto add_step = [&](const char* model) {
    all.push_back({model, 1, "sgd", model, {}});
    all.push_back({model, 1, "step", model, {}});
  };
  // linear takes rows, inputs, outputs, whether the input has a gradient.
  add("mlp", 1, "linear", {64, 784, 1024, 0});
  add("mlp", 1, "linear", {64, 1024, 1024, 1});
  add("mlp", 1, "linear", {64, 1024, 10, 1});
  add("mlp", 2, "relu", {64, 1024});
  add("mlp", 1, "cross_entropy", {64, 10});
  add_step("mlp");
  // conv takes images, channels, size, filters, whether the input has a
  // gradient.
  add("cnn", 1, "conv", {64, 1, 28, 32, 0});
  add("cnn", 1, "relu", {64, 32, 26, 26});
  add("cnn", 1, "conv", {64, 32, 26, 64, 1});
  add("cnn", 1, "relu", {64, 64, 24, 24});
  add("cnn", 1, "max_pool", {64, 64, 24, 24});
  add("cnn", 0, "batch_norm", {64, 32, 26});
  add("cnn", 1, "linear", {64, 9216, 128, 1});
  add("cnn", 1, "relu", {64, 128});
  add("cnn", 1, "linear", {64, 128, 10, 1});
  add_step("cnn");
  add("lm", 1, "embedding", {1024, 256, 8, 128});
  add("lm", 1, "add_places", {8, 128, 256});
  add("lm", 12, "layer_norm", {8, 128, 256});
  add("lm", 6, "multihead_attention", {8, 128, 256, 8});
  add("lm", 0, "linear", {1024, 256, 768, 1});  // a part of it, as these:
  add("lm", 0, "linear", {1024, 256, 256, 1});
  add("lm", 0, "attention", {8, 8, 128, 32});
  add("lm", 0, "softmax", {64, 128, 128});
  // Two in each block, and two sums of gradients where a block's input goes
  // two ways.
  all.push_back({"lm", 24, "add", "forward", {8, 128, 256}});
  add("lm", 7, "linear", {1024, 256, 1024, 1});
  add("lm", 6, "gelu", {8, 128, 1024});
  add("lm", 6, "linear", {1024, 1024, 256, 1});
  add("lm", 1, "cross_entropy", {1024, 1024});
  add_step("lm");
  return all;
}

// A forward pass, and the leaves whose gradients its backward makes.
struct Prepared {
  std::function<Variable()> forward;
  std::vector<Variable> leaves = {};
};

Variable Leaf(const Shape& shape, bool wants_grad = true) {
  Generator random(2);
  return Variable(Normal(shape, 0, 1, random), wants_grad);
}

Shape ShapeOf(Sizes sizes) { return Shape(sizes.begin(), sizes.end()); }

// Element i is i * 7919 modulo `end`.
Tensor Classes(const Shape& shape, int64_t end) {
  const Tensor classes = Tensor::Empty(shape, DType::kI64);
  for (int64_t i = 0; i < classes.numel(); ++i) {
    classes.data<int64_t>()[i] = i * 7919 % end;
  }
  return classes;
}

Prepared OfOne(const Shape& shape, Variable (*function)(const Variable&)) {
  const Variable x = Leaf(shape);
  return {[=] { return function(x); }, {x}};
}

// The layer's parameters, and the input if it has a gradient.
template <typename Layer>
Prepared OfLayer(const std::shared_ptr<Layer>& layer, const Variable& x) {
  std::vector<Variable> leaves = layer->Parameters();
  if (x.requires_grad()) leaves.push_back(x);
  return {[=] { return layer->Forward(x); }, std::move(leaves)};
}

Prepared Attention(const Shape& shape) {
  const Variable q = Leaf(shape), k = Leaf(shape), v = Leaf(shape);
  AttentionOptions causal;
  causal.is_causal = true;
  return {[=] { return ScaledDotProductAttention(q, k, v, causal); },
          {q, k, v}};
}

Prepared MultiheadAttention(Sizes s) {
  Generator random(1);
  const auto module =
      std::make_shared<nn::MultiheadAttention>(s[2], s[3], random);
  const Variable x = Leaf({s[0], s[1], s[2]});
  AttentionOptions causal;
  causal.is_causal = true;
  std::vector<Variable> leaves = module->Parameters();
  leaves.push_back(x);
  return {[=] { return module->Forward(x, causal); }, std::move(leaves)};
}

Prepared Prepare(const std::string& name, Sizes s) {
  Generator random(1);
  if (name == "linear") {
    return OfLayer(std::make_shared<nn::Linear>(s[1], s[2], random),
                   Leaf({s[0], s[1]}, s[3] != 0));
  }
  if (name == "conv") {
    return OfLayer(std::make_shared<nn::Conv2d>(s[1], s[3], 3, random),
                   Leaf({s[0], s[1], s[2], s[2]}, s[4] != 0));
  }
  if (name == "layer_norm") {
    return OfLayer(std::make_shared<nn::LayerNorm>(Shape{s[2]}),
                   Leaf(ShapeOf(s)));
  }
  if (name == "batch_norm") {
    return OfLayer(std::make_shared<nn::BatchNorm>(s[1]),
                   Leaf({s[0], s[1], s[2], s[2]}));
  }
  if (name == "embedding") {
    const auto table = std::make_shared<nn::Embedding>(s[0], s[1], random);
    const Tensor text = Classes({s[2], s[3]}, s[0]);
    return {[=] { return table->Forward(text); }, table->Parameters()};
  }
  if (name == "add") {
    const Variable x = Leaf(ShapeOf(s), false), y = Leaf(ShapeOf(s), false);
    return {[=] { return Add(x, y); }};
  }
  if (name == "add_places") {
    const Variable x = Leaf(ShapeOf(s)), y = Leaf({s[1], s[2]});
    return {[=] { return Add(x, y); }, {x, y}};
  }
  if (name == "cross_entropy") {
    const Variable x = Leaf(ShapeOf(s));
    const Tensor y = Classes({s[0]}, s[1]);
    return {[=] { return CrossEntropy(x, y); }, {x}};
  }
  if (name == "attention") return Attention({s[0] * s[1], s[2], s[3]});
  if (name == "multihead_attention") return MultiheadAttention(s);
  if (name == "relu") return OfOne(ShapeOf(s), Relu);
  if (name == "gelu") {
    return OfOne(ShapeOf(s), [](const Variable& x) { return Gelu(x); });
  }
  if (name == "softmax") {
    return OfOne(ShapeOf(s), [](const Variable& x) { return Softmax(x, -1); });
  }
  WEFT_CHECK_EQ(name, "max_pool");
  return OfOne(ShapeOf(s), [](const Variable& x) { return MaxPool2d(x); });
}

// The gradients of all leaves, from a result that is kept.
Run BackwardOf(const Prepared& prepared) {
  const Variable y = prepared.forward();
  BackwardOptions keep;
  keep.retain_graph = true;
  return [y, keep, seed = Tensor::Ones(y.shape()), leaves = prepared.leaves] {
    for (const Variable& leaf : leaves) leaf.ClearGradient();
    y.Backward(seed, keep);
  };
}

// A model in training.
class Trained {
 public:
  explicit Trained(const std::string& model) : model_(MakeModel(model)) {
    auto made = optimizer::Optimizer::Create(
        {{optimizer::SgdOptions{0.01}, model_->NamedParameters()}});
    WEFT_CHECK(made.ok());
    optimizer_ = *std::move(made);
    const double first = Step();
    for (int i = 0; i < 4; ++i) Step();
    WEFT_CHECK_LT(Step(), first);
  }

  double Step() {
    optimizer_->ZeroGrad();
    const Variable loss = model_->Loss();
    loss.Backward();
    Update();
    return loss.value().item<float>();
  }

  void Update() { WEFT_CHECK(optimizer_->Step().ok()); }

 private:
  std::unique_ptr<TrainedModel> model_;
  std::unique_ptr<optimizer::Optimizer> optimizer_;
};

Run MakeRun(const Operation& operation) {
  const std::string name = operation.name, pass = operation.pass;
  if (name == "sgd" || name == "step") {
    const auto trained = std::make_shared<Trained>(pass);
    if (name == "sgd") return [trained] { trained->Update(); };
    return [trained] { trained->Step(); };
  }
  const Prepared prepared = Prepare(name, operation.sizes);
  if (pass == "backward") return BackwardOf(prepared);
  return [prepared] { prepared.forward(); };
}

// --- Measuring. --------------------------------------------------------------

// The seconds that this process's threads have run.
double ProcessorTime() {
  timespec time;
  WEFT_CHECK_EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time), 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * time.tv_nsec;
}

// The seconds of one run: the median over batches of runs that take about
// `seconds` together. The rival counts in the same way.
double SecondsOf(const Run& run, double seconds) {
  const double begin = ProcessorTime();
  run();
  const double first = std::max(ProcessorTime() - begin, 1e-7);
  const int batch = std::max(1, static_cast<int>(0.002 / first));
  for (int i = 0; i < batch; ++i) run();
  std::vector<double> times;
  for (double total = 0; total < seconds || times.size() < 3;) {
    const double before = ProcessorTime();
    for (int i = 0; i < batch; ++i) run();
    const double taken = ProcessorTime() - before;
    total += taken;
    times.push_back(taken / batch);
  }
  return Median(times);
}

// PyTorch; nothing if it is absent or has failed.
class Rival {
 public:
  explicit Rival(int core) {
    if (!HasPythonModule("torch", "PyTorch")) return;
    process_ = std::make_unique<Dialogue>(std::vector<std::string>{
        "/usr/bin/python3", ScriptPath("torch_operations.py"),
        std::to_string(core)});
    version_ = process_->Read().value_or("");
  }

  const std::string& version() const { return version_; }

  std::optional<double> SecondsOf(const Operation& operation, double seconds) {
    if (process_ == nullptr) return std::nullopt;
    const auto answer =
        process_->Ask(absl::StrCat(seconds, " ", operation.Words()));
    if (!answer.has_value()) return std::nullopt;
    return std::atof(answer->c_str());
  }

 private:
  std::unique_ptr<Dialogue> process_;
  std::string version_;
};

struct Plan {
  int rounds = 5;
  double seconds = 0.1;  // of a side in a round
};

struct Compared {
  double weft = 0;             // seconds of one run
  std::optional<double> peer;  // the same
};

Compared Compare(Rival& rival, const Operation& operation, const Plan& plan) {
  const Run run = MakeRun(operation);
  std::vector<double> ours, theirs;
  for (int round = 0; round < plan.rounds; ++round) {
    ours.push_back(SecondsOf(run, plan.seconds));
    const auto peer = rival.SecondsOf(operation, plan.seconds);
    if (peer.has_value()) theirs.push_back(*peer);
  }
  Compared compared = {Median(ours), std::nullopt};
  if (theirs.size() == ours.size()) compared.peer = Median(theirs);
  return compared;
}

void PrintFigures(Rival& rival, const std::vector<Operation>& operations,
                  const Plan& plan) {
  std::printf("%-4s %-44s %5s %10s %10s %6s %9s\n", "", "us a run", "count",
              "weft", "torch", "ratio", "weft sum");
  for (const Operation& operation : operations) {
    const Compared c = Compare(rival, operation, plan);
    std::printf("%-4s %-44s %5d %10.1f %10.1f %6.2f %9.0f\n", operation.model,
                operation.Words().c_str(), operation.count, c.weft * 1e6,
                c.peer.value_or(0) * 1e6, c.peer.value_or(0) / c.weft,
                c.weft * 1e6 * operation.count);
    std::fflush(stdout);
  }
}

void PrintGoals(Rival& rival, const std::vector<Operation>& operations,
                const Plan& plan, GoalReport& report) {
  if (!report.Wants("E2")) return;
  report.Begin();
  for (const Operation& operation : operations) {
    const Compared compared = Compare(rival, operation, plan);
    GoalCase row;
    row.goal = "E2";
    row.name = absl::StrCat(operation.model, ": ", operation.Words(), ", us");
    row.higher_is_better = false;
    row.weft = compared.weft * 1e6;
    if (compared.peer.has_value()) row.peer = *compared.peer * 1e6;
    row.peer_name = "PyTorch, one thread";
    row.peer_version = rival.version();
    report.Add(row);
  }
  report.End();
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  using namespace weft::bench;  // NOLINT: this program's own
  std::string goals, only;
  bool is_quick = false;
  int core = 0;
  double seconds = 0;
  CLI::App app("Operations of three models, on one thread.");
  CLI::Option* wanted =
      app.add_option("--goals", goals, "Print goals' rows: E2, or empty: all")
          ->expected(0, 1);
  app.add_flag("--quick", is_quick,
               "Three rounds of 20 ms instead of 5 of 100");
  app.add_option("--only", only, "Operations whose name and sizes contain it");
  app.add_option("--core", core, "The core that both sides run on");
  app.add_option("--alone", seconds,
                 "Run Weft's operations only, this long each, for a profile");
  CLI11_PARSE(app, argc, argv);
  Pin(core);
  setenv("OMP_NUM_THREADS", "1", 1);
  std::vector<Operation> operations;
  for (Operation& operation : Operations()) {
    if (absl::StrContains(operation.Words(), only)) {
      operations.push_back(std::move(operation));
    }
  }
  if (seconds > 0) {
    for (const Operation& operation : operations) {
      std::printf("%-4s %-44s %10.1f\n", operation.model,
                  operation.Words().c_str(),
                  1e6 * SecondsOf(MakeRun(operation), seconds));
    }
    return 0;
  }
  Rival rival(core);
  const Plan plan = is_quick ? Plan{3, 0.02} : Plan{};
  if (wanted->count() == 0) {
    PrintFigures(rival, operations, plan);
    return 0;
  }
  GoalReport report(absl::StrSplit(goals, ','));
  PrintGoals(rival, operations, plan, report);
  report.Finish();
}
