// Loops around a DataParallelTraining that do what a clumsy program does. What
// is expected is what train/data_parallel_training.h and train/options.h say;
// a sentence of theirs stands above each test.

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/nn/layers.h"
#include "weft/tests/outside/train/toy.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/train/data_parallel_training.h"
#include "weft/worker/exit_code.h"

namespace weft::outside {
namespace {

using ::testing::Each;
using ::testing::Not;
using train::DataParallelTraining;
using weft::testing::IsOk;
using weft::testing::StatusIs;
using worker::ExitCode;
using worker::ExitCodeFor;

constexpr absl::StatusCode kInvalidArgument =
    absl::StatusCode::kInvalidArgument;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Variable Constant(float value) { return Variable(Tensor::Scalar(value)); }

class Loops : public ::testing::TestWithParam<int> {
 protected:
  static int ranks() { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Loops, ::testing::Values(1, 2, 4));

// --- Parts. ------------------------------------------------------------------

// "kInvalidArgument     a part is missing"
TEST_P(Loops, EachPartThatIsMissingIsAnError) {
  for (int missing = 0; missing < 3; ++missing) {
    EXPECT_THAT(RunToys(ranks(),
                        [&](Toy& toy) -> absl::Status {
                          WEFT_ASSIGN_OR_RETURN(auto parts, toy.Parts());
                          if (missing == 0) parts.model = nullptr;
                          if (missing == 1) parts.optimizer = nullptr;
                          if (missing == 2) parts.loader = nullptr;
                          return toy.Create(parts, QuietOptions()).status();
                        }),
                Each(StatusIs(kInvalidArgument)));
  }
}

// "An error on one rank ends all: an operation that this rank does not come to
// fails on the others with the reason."
TEST(Parts, ThatOneRankLacksEndAll) {
  const auto ended = RunToys(4, [&](Toy& toy) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(auto parts, toy.Parts());
    if (toy.rank() == 2) parts.optimizer = nullptr;
    return toy.Create(parts, QuietOptions()).status();
  });
  EXPECT_THAT(ended, Each(Not(IsOk())));
  EXPECT_THAT(ended[2], StatusIs(kInvalidArgument));
}

// "and those of DistributedDataParallel::Create": "kInvalidArgument ... a
// rank's model has no parameter".
TEST_P(Loops, AModelWithoutParametersIsAnError) {
  EXPECT_THAT(RunToys(ranks(),
                      [&](Toy& toy) -> absl::Status {
                        nn::Sequential empty;
                        empty.Add<nn::Relu>();
                        WEFT_ASSIGN_OR_RETURN(auto parts, toy.Parts());
                        parts.model = &empty;
                        return toy.Create(parts, QuietOptions()).status();
                      }),
              Each(StatusIs(kInvalidArgument)));
}

// "kInvalidArgument, on every rank: the models differ"
TEST(Parts, ModelsThatDifferAreNamed) {
  EXPECT_THAT(RunToys(2,
                      [&](Toy& toy) -> absl::Status {
                        nn::Sequential other;
                        other.Add<nn::Linear>(1, 5, toy.random());
                        WEFT_ASSIGN_OR_RETURN(auto parts, toy.Parts());
                        if (toy.rank() == 1) parts.model = &other;
                        return toy.Create(parts, QuietOptions()).status();
                      }),
              Each(StatusIs(kInvalidArgument, "weight")));
}

// --- Little to do. -----------------------------------------------------------

// "Nothing after the last epoch". Result: "checkpoint: empty if none was
// saved".
TEST_P(Loops, NoEpochIsNoStep) {
  for (const int epochs : {0, -1}) {
    EXPECT_THAT(RunToys(ranks(),
                        [&](Toy& toy) -> absl::Status {
                          train::Options options = QuietOptions();
                          options.epochs = epochs;
                          WEFT_ASSIGN_OR_RETURN(const auto training,
                                                toy.Create(options));
                          WEFT_ASSIGN_OR_RETURN(const train::Result result,
                                                toy.TrainToEnd(*training));
                          EXPECT_EQ(training->steps(), 0);
                          EXPECT_EQ(training->mean_loss(), 0);
                          EXPECT_EQ(result.samples_per_s, 0);
                          EXPECT_EQ(result.checkpoint, "");
                          EXPECT_FALSE(result.was_stopped);
                          EXPECT_FALSE(result.score.has_value());
                          return result.saved;
                        }),
                Each(IsOk()));
  }
}

// "at the end of an epoch it saves, and goes on with the next one": also of
// epochs that have no batch.
TEST_P(Loops, EpochsWithoutABatchEnd) {
  ToyOptions few;
  few.batch = 64;
  few.drop_last = true;
  ToyOptions none;
  none.size = 0;
  for (const ToyOptions& options : {few, none}) {
    EXPECT_THAT(RunToys(ranks(), options,
                        [&](Toy& toy) -> absl::Status {
                          WEFT_ASSIGN_OR_RETURN(const auto training,
                                                toy.Create(QuietOptions()));
                          WEFT_ASSIGN_OR_RETURN(const train::Result result,
                                                toy.TrainToEnd(*training));
                          EXPECT_EQ(training->steps(), 0);
                          EXPECT_EQ(training->epoch(), 2);
                          EXPECT_EQ(result.samples_per_s, 0);
                          return absl::OkStatus();
                        }),
                Each(IsOk()));
  }
}

// ShardedSampler: "Every shard draws equally often".
TEST_P(Loops, FewerExamplesThanRanksAreShared) {
  ToyOptions one;
  one.size = 1;
  EXPECT_THAT(
      RunToys(ranks(), one,
              [&](Toy& toy) -> absl::Status {
                WEFT_ASSIGN_OR_RETURN(const auto training,
                                      toy.Create(QuietOptions()));
                WEFT_RETURN_IF_ERROR(toy.TrainToEnd(*training).status());
                EXPECT_EQ(training->steps(), 2);
                return absl::OkStatus();
              }),
      Each(IsOk()));
}

// --- Steps in the wrong order. -----------------------------------------------

// "kFailedPrecondition without a Backward before."
TEST_P(Loops, AStepNeedsABackward) {
  EXPECT_THAT(
      RunToys(ranks(),
              [&](Toy& toy) -> absl::Status {
                WEFT_ASSIGN_OR_RETURN(const auto training,
                                      toy.Create(QuietOptions()));
                EXPECT_THAT(training->Step(),
                            StatusIs(absl::StatusCode::kFailedPrecondition));
                WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
                EXPECT_THAT(training->Step(),
                            StatusIs(absl::StatusCode::kFailedPrecondition));
                EXPECT_EQ(training->steps(), 0);
                // The refusals have broken nothing.
                WEFT_RETURN_IF_ERROR(training->Step(toy.Loss(*batch)));
                EXPECT_THAT(training->Step(),
                            StatusIs(absl::StatusCode::kFailedPrecondition));
                EXPECT_EQ(training->steps(), 1);
                return toy.TrainToEnd(*training).status();
              }),
      Each(IsOk()));
}

// "An error on one rank ends all".
TEST(Steps, OfWhichOneRankLacksTheBackwardEndAll) {
  EXPECT_THAT(RunToys(2,
                      [&](Toy& toy) -> absl::Status {
                        WEFT_ASSIGN_OR_RETURN(const auto training,
                                              toy.Create(QuietOptions()));
                        WEFT_ASSIGN_OR_RETURN(const auto batch,
                                              training->Next());
                        if (toy.rank() == 0) return training->Step();
                        return training->Step(toy.Loss(*batch));
                      }),
              Each(Not(IsOk())));
}

// "Adds the gradients of `loss`, one element of f32 or f64 ... What the pass
// throws becomes its status."
TEST_P(Loops, ALossThatIsNoneIsAnError) {
  const std::vector<std::pair<std::string, Variable>> losses = {
      {"undefined", Variable()},
      {"a vector", Variable(Tensor::Zeros({3}))},
      {"empty", Variable(Tensor::Zeros({0}))},
      {"of integers", Variable(Tensor::Scalar<int64_t>(1))},
      {"without a history", Constant(1)}};
  for (const auto& [what, loss] : losses) {
    SCOPED_TRACE(what);
    const Variable& wrong = loss;
    EXPECT_THAT(RunToys(ranks(),
                        [&](Toy& toy) -> absl::Status {
                          WEFT_ASSIGN_OR_RETURN(const auto training,
                                                toy.Create(QuietOptions()));
                          WEFT_RETURN_IF_ERROR(training->Next().status());
                          absl::Status status;
                          EXPECT_NO_THROW(status = training->Step(wrong));
                          return status;
                        }),
                Each(Not(IsOk())));
  }
}

// "Nothing after the last epoch": however often one asks.
TEST_P(Loops, AfterTheEndThereIsNothingMore) {
  EXPECT_THAT(RunToys(ranks(),
                      [&](Toy& toy) -> absl::Status {
                        WEFT_ASSIGN_OR_RETURN(const auto training,
                                              toy.Create(QuietOptions()));
                        WEFT_RETURN_IF_ERROR(toy.Loop(*training));
                        const int64_t steps = training->steps();
                        for (int i = 0; i < 3; ++i) {
                          WEFT_ASSIGN_OR_RETURN(const auto batch,
                                                training->Next());
                          EXPECT_FALSE(batch.has_value());
                        }
                        EXPECT_EQ(training->epoch(), 2);
                        WEFT_RETURN_IF_ERROR(training->Finish().status());
                        WEFT_RETURN_IF_ERROR(training->Finish().status());
                        EXPECT_EQ(training->steps(), steps);
                        return absl::OkStatus();
                      }),
              Each(IsOk()));
}

// "After the last step: checks that all ranks hold the same bits (kDataLoss)"
TEST(Finish, FindsARankWithOtherBits) {
  EXPECT_THAT(RunToys(4,
                      [&](Toy& toy) -> absl::Status {
                        WEFT_ASSIGN_OR_RETURN(const auto training,
                                              toy.Create(QuietOptions()));
                        WEFT_RETURN_IF_ERROR(toy.Loop(*training));
                        if (toy.rank() == 3) {
                          const Variable first = toy.net().Parameters()[0];
                          first.SetValue(
                              Tensor::Full(first.shape(), 0.25).Contiguous());
                        }
                        return training->Finish().status();
                      }),
              Each(StatusIs(absl::StatusCode::kDataLoss)));
}

// --- Errors of the caller's code. --------------------------------------------

// "The errors of DataLoader::Next."
TEST_P(Loops, AnExampleThatCannotBeReadEndsAll) {
  ToyOptions torn;
  torn.broken = 5;
  const auto ended = RunToys(ranks(), torn, [&](Toy& toy) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto training, toy.Create(QuietOptions()));
    return toy.TrainToEnd(*training).status();
  });
  EXPECT_THAT(ended, Each(Not(IsOk())));
  EXPECT_THAT(ended, ::testing::Contains(
                         StatusIs(absl::StatusCode::kDataLoss, "torn page")));
}

// "An error on one rank ends all", whatever this rank was about to do.
TEST_P(Loops, ALoopThatThrowsEndsAll) {
  EXPECT_THAT(RunToys(ranks(),
                      [&](Toy& toy) -> absl::Status {
                        WEFT_ASSIGN_OR_RETURN(const auto training,
                                              toy.Create(QuietOptions()));
                        return toy
                            .TrainToEnd(
                                *training,
                                [&]() -> absl::Status {
                                  if (training->steps() == 1 && toy.rank() == 0)
                                    throw std::runtime_error("no more");
                                  return absl::OkStatus();
                                })
                            .status();
                      }),
              Each(Not(IsOk())));
}

// docs/errors.md, "Where user code is called": an exception of losses, scores
// and loops of trainings becomes a Status there.
TEST_P(Loops, WhatOnLossThrowsIsTheStatusOfTheStep) {
  const auto ended = RunToys(ranks(), [&](Toy& toy) -> absl::Status {
    train::Options options = QuietOptions();
    options.on_loss = [](int64_t step, double) {
      if (step == 2) throw std::runtime_error("the plotter is gone");
    };
    WEFT_ASSIGN_OR_RETURN(const auto training, toy.Create(options));
    absl::Status status;
    EXPECT_NO_THROW(status = toy.TrainToEnd(*training).status());
    return status;
  });
  EXPECT_THAT(ended, Each(Not(IsOk())));
  EXPECT_THAT(ended[0], StatusIs(absl::StatusCode::kInternal, "plotter"));
}

TEST_P(Loops, WhatAskedToStopThrowsIsTheStatusOfTheStep) {
  EXPECT_THAT(
      RunToys(ranks(),
              [&](Toy& toy) -> absl::Status {
                train::Options options = QuietOptions();
                options.asked_to_stop = []() -> bool {
                  throw std::runtime_error("no answer");
                };
                WEFT_ASSIGN_OR_RETURN(const auto training, toy.Create(options));
                absl::Status status;
                EXPECT_NO_THROW(status = toy.TrainToEnd(*training).status());
                return status;
              }),
      Each(StatusIs(absl::StatusCode::kInternal, "no answer")));
}

TEST_P(Loops, WhatTheScoreThrowsIsTheStatusOfFinish) {
  EXPECT_THAT(RunToys(ranks(),
                      [&](Toy& toy) -> absl::Status {
                        WEFT_ASSIGN_OR_RETURN(auto parts, toy.Parts());
                        parts.score = []() -> absl::StatusOr<double> {
                          throw std::runtime_error("no test data");
                        };
                        WEFT_ASSIGN_OR_RETURN(
                            const auto training,
                            toy.Create(parts, QuietOptions()));
                        WEFT_RETURN_IF_ERROR(toy.Loop(*training));
                        absl::Status status;
                        EXPECT_NO_THROW(status = training->Finish().status());
                        return status;
                      }),
              Each(StatusIs(absl::StatusCode::kInternal, "no test data")));
}

// "Score: called by all ranks at the same time": one that has an error on one
// rank is an error on all.
TEST(Score, ThatFailsOnOneRankEndsAll) {
  const auto ended = RunToys(2, [&](Toy& toy) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(auto parts, toy.Parts());
    parts.score = [&toy]() -> absl::StatusOr<double> {
      if (toy.rank() == 1) return absl::NotFoundError("no test data");
      return 1.0;
    };
    WEFT_ASSIGN_OR_RETURN(const auto training,
                          toy.Create(parts, QuietOptions()));
    return toy.TrainToEnd(*training).status();
  });
  EXPECT_THAT(ended[1], StatusIs(absl::StatusCode::kNotFound, "no test data"));
}

// --- What is no number. ------------------------------------------------------

// "kOutOfRange, with ExitCode kDiverged and on every rank, if that is not
// finite"
TEST_P(Loops, ALossThatIsNotFiniteEndsAll) {
  for (const float wrong : {kNaN, std::numeric_limits<float>::infinity()}) {
    const auto ended = RunToys(ranks(), [&](Toy& toy) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const auto training, toy.Create(QuietOptions()));
      WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
      Variable loss = toy.Loss(*batch);
      if (toy.rank() == toy.group().size() - 1) loss = loss * Constant(wrong);
      return training->Step(loss);
    });
    EXPECT_THAT(ended, Each(StatusIs(absl::StatusCode::kOutOfRange)));
    for (const absl::Status& status : ended)
      EXPECT_EQ(ExitCodeFor(status), ExitCode::kDiverged);
  }
}

// "Goes on with a loss that is NaN or infinite, instead of ending with it."
// docs/cli.md: "a model that is not finite is not saved".
TEST_P(Loops, ThatAllowWhatIsNoNumberDoNotSaveIt) {
  const weft::testing::TempDir dir;
  EXPECT_THAT(
      RunToys(ranks(),
              [&](Toy& toy) -> absl::Status {
                train::Options options = QuietOptions(dir.path());
                options.allow_non_finite = true;
                WEFT_ASSIGN_OR_RETURN(const auto training, toy.Create(options));
                for (;;) {
                  WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
                  if (!batch.has_value()) break;
                  WEFT_RETURN_IF_ERROR(
                      training->Step(toy.Loss(*batch) * Constant(kNaN)));
                }
                EXPECT_TRUE(std::isnan(training->mean_loss()));
                WEFT_ASSIGN_OR_RETURN(const train::Result result,
                                      training->Finish());
                if (toy.rank() == 0) {
                  EXPECT_THAT(result.saved,
                              StatusIs(absl::StatusCode::kOutOfRange));
                  EXPECT_EQ(ExitCodeFor(result.saved), ExitCode::kDiverged);
                }
                EXPECT_EQ(result.checkpoint, "");
                return absl::OkStatus();
              }),
      Each(IsOk()));
}

// --- Asked to stop. ----------------------------------------------------------

// "Asked after each step: once true, training ends as if that had been the
// last one." "ends all ranks after the same step when one is asked to stop"
// (docs/ddp.md).
TEST_P(Loops, EndAfterTheSameStepWhenOneIsAskedToStop) {
  for (const int64_t last : {1, 2, 3}) {
    const auto ended = RunToys(ranks(), [&](Toy& toy) -> absl::Status {
      train::Options options = QuietOptions();
      int asked = 0;
      const bool is_asked = toy.rank() == toy.group().size() - 1;
      options.asked_to_stop = [&asked, is_asked, last] {
        return ++asked == last && is_asked;  // and never again
      };
      WEFT_ASSIGN_OR_RETURN(const auto training, toy.Create(options));
      WEFT_ASSIGN_OR_RETURN(const train::Result result,
                            toy.TrainToEnd(*training));
      EXPECT_EQ(training->steps(), last);
      EXPECT_TRUE(result.was_stopped);
      return absl::OkStatus();
    });
    EXPECT_THAT(ended, Each(IsOk()));
  }
}

// Result: was_stopped "before the last step". docs/cli.md: 128 + n if stopped
// "before the work was complete". Asked at the last step, all is done.
TEST_P(Loops, StoppedAtTheLastStepAreComplete) {
  EXPECT_THAT(RunToys(ranks(),
                      [&](Toy& toy) -> absl::Status {
                        train::Options options = QuietOptions();
                        int asked = 0;
                        const int last = 16 / toy.group().size();
                        options.asked_to_stop = [&asked, last] {
                          return ++asked >= last;
                        };
                        WEFT_ASSIGN_OR_RETURN(const auto training,
                                              toy.Create(options));
                        WEFT_ASSIGN_OR_RETURN(const train::Result result,
                                              toy.TrainToEnd(*training));
                        EXPECT_EQ(training->steps(), last);
                        EXPECT_EQ(training->epoch(), 2);
                        EXPECT_FALSE(result.was_stopped);
                        return absl::OkStatus();
                      }),
              Each(IsOk()));
}

// --- Ends in odd order. ------------------------------------------------------

// "Begins with the first epoch of the data": also with parts that another
// training has used, whatever that was about to do.
TEST_P(Loops, OfATrainingThatWasGivenUpAnotherBegins) {
  for (int at = 0; at < 5; ++at) {
    SCOPED_TRACE(at);
    EXPECT_THAT(
        RunToys(ranks(),
                [&](Toy& toy) -> absl::Status {
                  {
                    WEFT_ASSIGN_OR_RETURN(const auto given_up,
                                          toy.Create(QuietOptions()));
                    std::optional<input::Example> batch;
                    if (at > 0) {
                      WEFT_ASSIGN_OR_RETURN(batch, given_up->Next());
                    }
                    if (at > 1) {
                      WEFT_RETURN_IF_ERROR(
                          given_up->Backward(toy.Loss(*batch)));
                    }
                    if (at > 2) WEFT_RETURN_IF_ERROR(given_up->Step());
                    if (at > 3) {
                      WEFT_RETURN_IF_ERROR(toy.TrainToEnd(*given_up).status());
                    }
                  }
                  WEFT_ASSIGN_OR_RETURN(const auto training,
                                        toy.Create(QuietOptions()));
                  WEFT_RETURN_IF_ERROR(toy.TrainToEnd(*training).status());
                  EXPECT_EQ(training->epoch(), 2);
                  EXPECT_EQ(training->steps(), 16 / toy.group().size());
                  return absl::OkStatus();
                }),
        Each(IsOk()));
  }
}

// "`group` and `telemetry` must outlive it": a loss and a batch need not end
// before it.
TEST_P(Loops, LeaveWhatTheyMadeToTheCaller) {
  std::vector<Variable> losses(static_cast<size_t>(ranks()));
  std::vector<std::optional<input::Example>> batches(losses.size());
  EXPECT_THAT(RunToys(ranks(),
                      [&](Toy& toy) -> absl::Status {
                        WEFT_ASSIGN_OR_RETURN(const auto training,
                                              toy.Create(QuietOptions()));
                        Variable& loss = losses[toy.rank()];
                        auto& batch = batches[toy.rank()];
                        WEFT_ASSIGN_OR_RETURN(batch, training->Next());
                        loss = toy.Loss(*batch);
                        return training->Step(loss);
                      }),
              Each(IsOk()));
  for (const Variable& loss : losses) EXPECT_EQ(loss.numel(), 1);
}

// DistributedDataParallel: "Parameters added to the module later are not known
// here."
TEST_P(Loops, AModelThatGrowsIsTrainedAsItWas) {
  EXPECT_THAT(RunToys(ranks(),
                      [&](Toy& toy) -> absl::Status {
                        WEFT_ASSIGN_OR_RETURN(const auto training,
                                              toy.Create(QuietOptions()));
                        WEFT_ASSIGN_OR_RETURN(const train::Result result,
                                              toy.TrainToEnd(*training, [&] {
                                                if (training->steps() == 2)
                                                  toy.net().Add<nn::Linear>(
                                                      1, 1, toy.random());
                                                return absl::OkStatus();
                                              }));
                        return result.saved;
                      }),
              Each(IsOk()));
}

// "A change clears the gradient. A parameter of a DistributedDataParallel is
// frozen on all ranks alike".
TEST_P(Loops, FreezeAndUnfreezeBetweenSteps) {
  EXPECT_THAT(RunToys(ranks(),
                      [&](Toy& toy) -> absl::Status {
                        WEFT_ASSIGN_OR_RETURN(const auto training,
                                              toy.Create(QuietOptions()));
                        const Variable first = toy.net().Parameters()[0];
                        return toy
                            .TrainToEnd(*training,
                                        [&] {
                                          first.SetRequiresGrad(
                                              training->steps() % 2 == 1);
                                          return absl::OkStatus();
                                        })
                            .status();
                      }),
              Each(IsOk()));
}

// "Each rank takes as many [steps]."
TEST(Steps, OfWhichOneRankHasMoreEndAll) {
  EXPECT_THAT(
      RunToys(2,
              [&](Toy& toy) -> absl::Status {
                const Line more(64);
                WEFT_ASSIGN_OR_RETURN(auto parts, toy.Parts());
                WEFT_ASSIGN_OR_RETURN(const auto sampler,
                                      input::ShardedSampler::Create(
                                          {more.size(), toy.rank(), 2, 1}));
                WEFT_ASSIGN_OR_RETURN(
                    const auto loader,
                    input::DataLoader::Create(more, sampler, {2}));
                if (toy.rank() == 1) parts.loader = loader.get();
                WEFT_ASSIGN_OR_RETURN(const auto training,
                                      toy.Create(parts, QuietOptions()));
                return toy.TrainToEnd(*training).status();
              }),
      Each(Not(IsOk())));
}

}  // namespace
}  // namespace weft::outside
