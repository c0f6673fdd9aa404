// A ServerTraining in clumsy hands, on real workers in this process. What is
// expected is what train/server_training.h says; a sentence of it stands above
// each test.

#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/autograd/ops/loss.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/nn/layers.h"
#include "weft/ps/server.h"
#include "weft/tensor/random.h"
#include "weft/tests/outside/train/toy.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/train/server_training.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/shutdown.h"
#include "weft/worker/test_workers.h"

namespace weft::outside {
namespace {

using ::testing::Each;
using ::testing::Not;
using train::ServerTraining;
using weft::testing::IsOk;
using weft::testing::StatusIs;
using worker::ExitCode;
using worker::ExitCodeFor;

constexpr absl::StatusCode kInvalidArgument =
    absl::StatusCode::kInvalidArgument;

struct Model {
  explicit Model(DType dtype = DType::kF32, bool is_empty = false) {
    Generator random(1);
    nn::LayerOptions options;
    options.dtype = dtype;
    if (is_empty) {
      net.Add<nn::Relu>();
    } else {
      net.Add<nn::Linear>(1, 1, random, options);
    }
  }
  ServerTraining::Task Task(const Line& data) {
    ServerTraining::Task task;
    task.model = &net;
    task.data = &data;
    task.batch_size = 2;
    task.rule.mutable_sgd()->set_lr(0.1);
    task.loss = [this](const input::Example& batch) {
      return MseLoss(net.Forward(Variable(batch[0])), batch[1]);
    };
    return task;
  }
  nn::Sequential net;
};

// One server, ps0, and its trainers.
class Servers : public ::testing::TestWithParam<int> {
 protected:
  void Start(int trainers, int servers = 1) {
    worker::TestWorkers::Options options;
    options.servers = servers;
    options.trainers = trainers;
    auto started = worker::TestWorkers::Start(options);
    ASSERT_THAT(started, IsOk());
    workers_ = *std::move(started);
    trainers_ = trainers;
    if (servers == 0) return;
    ps::ServerOptions one;
    one.checkpoint_dir = dir_.path();
    server_ = std::make_unique<ps::Server>(one);
    workers_->Get("ps0").agent().SetLocal(server_.get());
  }
  ~Servers() override { workers_.reset(); }

  worker::Worker& Trainer(int rank) {
    return workers_->Get(absl::StrCat("trainer", rank));
  }

  // Runs `body` for each trainer on a thread of its own; one that has failed
  // leaves its job.
  std::vector<absl::Status> Each(
      const std::function<absl::Status(worker::Worker&)>& body) {
    return weft::testing::RunRanks(trainers_, [&](int rank) {
      const absl::Status ended =
          CatchToStatus([&] { return body(Trainer(rank)); });
      if (!ended.ok()) {
        worker::ShutdownOptions at_once;
        at_once.graceful = false;
        at_once.deadline = absl::Seconds(5);
        Trainer(rank).Shutdown(at_once);
      }
      return ended;
    });
  }

  const Line data_{16};
  weft::testing::TempDir dir_;
  int trainers_ = 0;
  std::unique_ptr<ps::Server> server_;  // outlives the agents
  std::unique_ptr<worker::TestWorkers> workers_;
};
INSTANTIATE_TEST_SUITE_P(Trainers, Servers, ::testing::Values(1, 2));

// "kInvalidArgument if ... a part of the task is missing or wrong."
TEST_F(Servers, APartThatIsMissingOrWrongIsAnError) {
  Start(1);
  Model model;
  Model wide(DType::kF64);
  Model empty(DType::kF32, true);
  using Change = std::function<void(ServerTraining::Task&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"model", [](auto& task) { task.model = nullptr; }},
      {"data", [](auto& task) { task.data = nullptr; }},
      {"loss", [](auto& task) { task.loss = nullptr; }},
      {"no batch", [](auto& task) { task.batch_size = 0; }},
      {"negative batch", [](auto& task) { task.batch_size = -1; }},
      {"no rule", [](auto& task) { task.rule.Clear(); }},
      {"negative rate",
       [](auto& task) { task.rule.mutable_sgd()->set_lr(-1); }},
      {"no table", [](auto& task) { task.table = ""; }},
      {"f64", [&](auto& task) { task.model = &wide.net; }},
      {"empty", [&](auto& task) { task.model = &empty.net; }}};
  for (const auto& [what, change] : changes) {
    ServerTraining::Task task = model.Task(data_);
    change(task);
    const absl::Status status = CatchToStatus([&]() -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(
          const auto training,
          ServerTraining::Create(Trainer(0), task, QuietOptions()));
      return training->Run().status();
    });
    EXPECT_THAT(status, StatusIs(kInvalidArgument)) << what;
  }
}

// "`worker`, a trainer of a job with servers ... kInvalidArgument if it is
// another".
TEST_F(Servers, ThemselvesAreNoTrainers) {
  Start(1);
  Model model;
  EXPECT_THAT(ServerTraining::Create(workers_->Get("ps0"), model.Task(data_),
                                     QuietOptions()),
              StatusIs(kInvalidArgument));
}
TEST_F(Servers, AreNeeded) {
  Start(1, 0);
  Model model;
  EXPECT_THAT(
      ServerTraining::Create(Trainer(0), model.Task(data_), QuietOptions()),
      StatusIs(kInvalidArgument));
}

// "What the loss throws becomes its status."
TEST_P(Servers, WhatTheLossThrowsIsTheStatus) {
  Start(GetParam());
  EXPECT_THAT(
      Each([&](worker::Worker& worker) -> absl::Status {
        Model model;
        ServerTraining::Task task = model.Task(data_);
        task.loss = [](const input::Example&) -> Variable {
          throw std::runtime_error("out of luck");
        };
        WEFT_ASSIGN_OR_RETURN(
            const auto training,
            ServerTraining::Create(worker, task, QuietOptions()));
        absl::Status status;
        EXPECT_NO_THROW(status = training->Run().status());
        return status;
      }),
      ::testing::Each(StatusIs(absl::StatusCode::kInternal, "out of luck")));
}

// "The mean loss of a batch, one element of f32": any other is an error.
TEST_P(Servers, ALossThatIsNoneIsAnError) {
  const std::vector<std::pair<std::string, Variable>> losses = {
      {"undefined", Variable()},
      {"a vector", Variable(Tensor::Zeros({3}))},
      {"empty", Variable(Tensor::Zeros({0}))},
      {"without a history", Variable(Tensor::Scalar(1.0F))}};
  for (const auto& [what, loss] : losses) {
    SCOPED_TRACE(what);
    Start(GetParam());
    const Variable& wrong = loss;
    EXPECT_THAT(Each([&](worker::Worker& worker) -> absl::Status {
                  Model model;
                  ServerTraining::Task task = model.Task(data_);
                  task.loss = [&](const input::Example&) { return wrong; };
                  WEFT_ASSIGN_OR_RETURN(
                      const auto training,
                      ServerTraining::Create(worker, task, QuietOptions()));
                  return training->Run().status();
                }),
                ::testing::Each(Not(IsOk())));
    workers_.reset();
  }
}

// "kOutOfRange          the loss is not finite (ExitCode kDiverged)"
TEST_P(Servers, ALossThatIsNotFiniteIsDiverged) {
  Start(GetParam());
  const auto ended = Each([&](worker::Worker& worker) -> absl::Status {
    Model model;
    ServerTraining::Task task = model.Task(data_);
    task.loss = [&model](const input::Example& batch) {
      return MseLoss(model.net.Forward(Variable(batch[0])), batch[1]) *
             Variable(Tensor::Scalar(std::numeric_limits<float>::quiet_NaN()));
    };
    WEFT_ASSIGN_OR_RETURN(const auto training,
                          ServerTraining::Create(worker, task, QuietOptions()));
    return training->Run().status();
  });
  EXPECT_THAT(ended, ::testing::Each(StatusIs(absl::StatusCode::kOutOfRange)));
  for (const absl::Status& status : ended)
    EXPECT_EQ(ExitCodeFor(status), ExitCode::kDiverged);
}

// docs/errors.md: exceptions of "losses, scores and loops of trainings".
TEST_P(Servers, WhatTheScoreAndOnLossThrowIsTheStatusOfTheFirst) {
  for (const bool in_score : {true, false}) {
    Start(GetParam());
    const auto ended = Each([&](worker::Worker& worker) -> absl::Status {
      Model model;
      ServerTraining::Task task = model.Task(data_);
      train::Options options = QuietOptions();
      if (in_score) {
        task.score = []() -> absl::StatusOr<double> {
          throw std::runtime_error("out of luck");
        };
      } else {
        options.on_loss = [](int64_t, double) {
          throw std::runtime_error("out of luck");
        };
      }
      WEFT_ASSIGN_OR_RETURN(const auto training,
                            ServerTraining::Create(worker, task, options));
      absl::Status status;
      EXPECT_NO_THROW(status = training->Run().status());
      return status;
    });
    EXPECT_THAT(ended[0], StatusIs(absl::StatusCode::kInternal, "out of luck"));
    workers_.reset();
  }
}

// No epoch, and no data: nothing to do is no error.
TEST_P(Servers, HaveLittleToDo) {
  const Line nothing(0);
  for (const bool has_epochs : {false, true}) {
    Start(GetParam());
    EXPECT_THAT(
        Each([&](worker::Worker& worker) -> absl::Status {
          Model model;
          train::Options options = QuietOptions();
          options.epochs = has_epochs ? 2 : 0;
          WEFT_ASSIGN_OR_RETURN(
              const auto training,
              ServerTraining::Create(
                  worker, model.Task(has_epochs ? nothing : data_), options));
          WEFT_ASSIGN_OR_RETURN(const train::Result result, training->Run());
          EXPECT_EQ(result.samples_per_s, 0);
          EXPECT_EQ(result.checkpoint, "");
          return result.saved;
        }),
        ::testing::Each(IsOk()));
    workers_.reset();
  }
}

// Options: asked to stop "after each step". Result: was_stopped "before the
// last step".
TEST_P(Servers, StoppedAtTheLastStepAreComplete) {
  const int steps = 8 / GetParam() * 2;  // of two epochs, two examples each
  for (const int last : {steps, steps - 1}) {
    Start(GetParam());
    EXPECT_THAT(
        Each([&](worker::Worker& worker) -> absl::Status {
          Model model;
          train::Options options = QuietOptions();
          int asked = 0;
          options.asked_to_stop = [&] { return ++asked >= last; };
          WEFT_ASSIGN_OR_RETURN(
              const auto training,
              ServerTraining::Create(worker, model.Task(data_), options));
          WEFT_ASSIGN_OR_RETURN(const train::Result result, training->Run());
          EXPECT_EQ(result.was_stopped, last < steps);
          return result.saved;
        }),
        ::testing::Each(IsOk()));
    workers_.reset();
  }
}

// "The whole training, once."
TEST_P(Servers, TrainOnce) {
  Start(GetParam());
  EXPECT_THAT(
      Each([&](worker::Worker& worker) -> absl::Status {
        Model model;
        WEFT_ASSIGN_OR_RETURN(
            const auto training,
            ServerTraining::Create(worker, model.Task(data_), QuietOptions()));
        WEFT_RETURN_IF_ERROR(training->Run().status());
        EXPECT_THAT(training->Run(),
                    StatusIs(absl::StatusCode::kFailedPrecondition));
        return absl::OkStatus();
      }),
      ::testing::Each(IsOk()));
}

// A checkpoint directory that is a file: "the first trainer" saves there.
TEST_P(Servers, CannotSaveInAFile) {
  Start(GetParam());
  std::ofstream(dir_.Path("file")) << "a file";
  EXPECT_THAT(Each([&](worker::Worker& worker) -> absl::Status {
                Model model;
                train::Options options = QuietOptions(dir_.Path("file"));
                WEFT_ASSIGN_OR_RETURN(
                    const auto training,
                    ServerTraining::Create(worker, model.Task(data_), options));
                WEFT_ASSIGN_OR_RETURN(const train::Result result,
                                      training->Run());
                return result.saved;
              }),
              ::testing::Contains(Not(IsOk())));
}

}  // namespace
}  // namespace weft::outside
