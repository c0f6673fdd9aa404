// Checkpoints of trainings in clumsy hands: in a directory that is none, that
// is another's, that is damaged, of other models and other data; and options
// that contradict each other. What is expected is what the headers of train/
// and checkpoint/ say; a sentence of theirs stands above each test.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/tests/outside/train/toy.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/train/data_parallel_training.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"

namespace weft::outside {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointDirectory;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using weft::testing::IsOk;
using weft::testing::StatusIs;
using weft::testing::TempDir;
using worker::ExitCode;
using worker::ExitCodeFor;

constexpr absl::StatusCode kInvalidArgument =
    absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kFailedPrecondition =
    absl::StatusCode::kFailedPrecondition;

std::unique_ptr<CheckpointDirectory> Open(const std::string& path) {
  CheckpointDirectory::Options options;
  options.path = path;
  auto directory = CheckpointDirectory::Open(options);
  EXPECT_THAT(directory, IsOk());
  return *std::move(directory);
}
std::vector<std::string> List(const std::string& path) {
  return Open(path)->List().value();
}

// Changes a byte in the middle of the shard of a checkpoint.
void Damage(const std::string& path, const std::string& name) {
  for (const auto& file : fs::directory_iterator(fs::path(path) / name)) {
    if (file.path().extension() != ".safetensors") continue;
    std::fstream bytes(file.path(),
                       std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(file.file_size() / 2));
    bytes.put('\xa5');
  }
}

void Touch(const std::string& path) { std::ofstream(path) << "a file"; }

train::Options Resumed(const std::string& path, int epochs) {
  train::Options options = QuietOptions(path);
  options.resume = true;
  options.epochs = epochs;
  return options;
}

// Trains a toy in `path` for the epochs of `options`.
std::vector<absl::Status> Train(int ranks, const ToyOptions& toy,
                                const train::Options& options) {
  return RunToys(ranks, toy, [&](Toy& one) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto training, one.Create(options));
    WEFT_ASSIGN_OR_RETURN(const train::Result result,
                          one.TrainToEnd(*training));
    return result.saved;
  });
}

class Checkpoints : public ::testing::TestWithParam<int> {
 protected:
  static int ranks() { return GetParam(); }
  const std::string& path() const { return dir_.path(); }
  TempDir dir_;
};
INSTANTIATE_TEST_SUITE_P(Ranks, Checkpoints, ::testing::Values(1, 2, 4));

// --- The directory. ----------------------------------------------------------

// "rank 0 alone reads and writes [it]"; its error ends all.
TEST_P(Checkpoints, InAFileAreAnErrorOnEveryRank) {
  Touch(dir_.Path("file"));
  for (const std::string& wrong : {dir_.Path("file"), dir_.Path("file/below"),
                                   std::string("/proc/none")}) {
    for (const bool resume : {false, true}) {
      train::Options options = QuietOptions(wrong);
      options.resume = resume;
      const auto ended = Train(ranks(), {}, options);
      EXPECT_THAT(ended, Each(Not(IsOk()))) << wrong << " " << resume;
    }
  }
}

// "A checkpoint that cannot be saved is logged and reported by Finish; training
// goes on without it."
TEST_P(Checkpoints, ThatCannotBeSavedAreReportedByFinish) {
  const std::string saved = dir_.Path("saved");
  const auto ended = RunToys(ranks(), [&](Toy& toy) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto training, toy.Create(QuietOptions(saved)));
    WEFT_ASSIGN_OR_RETURN(const train::Result result,
                          toy.TrainToEnd(*training, [&] {
                            if (toy.rank() == 0 && training->steps() == 1) {
                              fs::remove_all(saved);
                              Touch(saved);
                            }
                            return absl::OkStatus();
                          }));
    EXPECT_EQ(training->epoch(), 2);
    EXPECT_EQ(result.checkpoint, "");
    EXPECT_EQ(result.saved.ok(), toy.rank() != 0) << result.saved;
    return absl::OkStatus();
  });
  EXPECT_THAT(ended, Each(IsOk()));
}

// The same, after which it can be saved again: "Of the last checkpoint: an
// error leaves the one before as the newest."
TEST_P(Checkpoints, SavedAfterOneThatCouldNotBeAreGood) {
  const std::string saved = dir_.Path("saved");
  EXPECT_THAT(RunToys(ranks(),
                      [&](Toy& toy) -> absl::Status {
                        WEFT_ASSIGN_OR_RETURN(const auto training,
                                              toy.Create(QuietOptions(saved)));
                        WEFT_ASSIGN_OR_RETURN(
                            const train::Result result,
                            toy.TrainToEnd(*training, [&] {
                              if (toy.rank() != 0) return absl::OkStatus();
                              if (training->steps() == 1) {
                                fs::remove_all(saved);
                                Touch(saved);
                              } else if (training->epoch() == 1) {
                                if (fs::is_regular_file(saved)) {
                                  fs::remove(saved);
                                  fs::create_directory(saved);
                                }
                              }
                              return absl::OkStatus();
                            }));
                        return result.saved;
                      }),
              Each(IsOk()));
  EXPECT_THAT(List(saved), SizeIs(1));
}

// Options: "so many of the last checkpoints stay".
TEST_P(Checkpoints, AsManyStayAsWereAskedFor) {
  for (const int keep : {1, 2}) {
    const std::string saved = dir_.Path(absl::StrCat(keep));
    train::Options options = QuietOptions(saved);
    options.keep = keep;
    options.epochs = 4;
    EXPECT_THAT(Train(ranks(), {}, options), Each(IsOk()));
    EXPECT_THAT(List(saved), SizeIs(keep));
  }
}

// CheckpointDirectory: "keep_last: at least 1"; Options::Resolve was not asked.
TEST(CheckpointOptions, OfNoneThatStayAreAnError) {
  const TempDir dir;
  train::Options options = QuietOptions(dir.path());
  options.keep = 0;
  EXPECT_THAT(Train(2, {}, options), Each(Not(IsOk())));
  EXPECT_THAT(List(dir.path()), IsEmpty());
}

// --- What is in it. ----------------------------------------------------------

// "With as many, a resumed training has the same bits as one that was never
// interrupted." Stopped in the middle of an epoch, at its end, at the end of
// all.
TEST_P(Checkpoints, OfAStoppedTrainingGoOnWithTheSameBits) {
  ToyOptions toy;
  toy.dropout = 0.3;
  std::vector<std::vector<Tensor>> whole(static_cast<size_t>(ranks()));
  EXPECT_THAT(RunToys(ranks(), toy,
                      [&](Toy& one) -> absl::Status {
                        WEFT_ASSIGN_OR_RETURN(const auto training,
                                              one.Create(QuietOptions()));
                        const auto ended = one.TrainToEnd(*training);
                        whole[one.rank()] = one.Values();
                        return ended.status();
                      }),
              Each(IsOk()));
  const int steps = 16 / ranks();
  std::set<int> stops = {1, steps / 2, steps / 2 + 1, steps - 1};
  stops.erase(0);
  for (const int stop : stops) {
    SCOPED_TRACE(stop);
    const std::string saved = dir_.Path(absl::StrCat(stop));
    EXPECT_THAT(RunToys(ranks(), toy,
                        [&](Toy& one) -> absl::Status {
                          train::Options options = QuietOptions(saved);
                          int asked = 0;
                          options.asked_to_stop = [&] {
                            return ++asked == stop;
                          };
                          WEFT_ASSIGN_OR_RETURN(const auto training,
                                                one.Create(options));
                          WEFT_ASSIGN_OR_RETURN(const train::Result result,
                                                one.TrainToEnd(*training));
                          EXPECT_EQ(training->steps(), stop);
                          return result.saved;
                        }),
                Each(IsOk()));
    EXPECT_THAT(
        RunToys(ranks(), toy,
                [&](Toy& one) -> absl::Status {
                  WEFT_ASSIGN_OR_RETURN(const auto training,
                                        one.Create(Resumed(saved, 2)));
                  EXPECT_EQ(training->steps(), stop);
                  WEFT_RETURN_IF_ERROR(one.TrainToEnd(*training).status());
                  EXPECT_EQ(training->steps(), steps);
                  const std::vector<Tensor> values = one.Values();
                  for (size_t i = 0; i < values.size(); ++i) {
                    EXPECT_EQ(ToString(values[i]),
                              ToString(whole[one.rank()][i]));
                  }
                  return absl::OkStatus();
                }),
        Each(IsOk()));
  }
}

// "they need not see its files, and may be more or fewer than the ranks that
// saved it."
TEST(CheckpointsOf, OtherWorldSizesGoOn) {
  for (const int before : {1, 2, 4}) {
    for (const int after : {1, 2, 3, 4}) {
      SCOPED_TRACE(absl::StrCat(before, " to ", after));
      const TempDir dir;
      train::Options first = QuietOptions(dir.path());
      int asked = 0;
      first.asked_to_stop = [&] { return false; };
      EXPECT_THAT(RunToys(before,
                          [&](Toy& toy) -> absl::Status {
                            train::Options options = first;
                            if (toy.rank() == 0)
                              options.asked_to_stop = [&] {
                                return ++asked == 1;
                              };
                            WEFT_ASSIGN_OR_RETURN(const auto training,
                                                  toy.Create(options));
                            WEFT_ASSIGN_OR_RETURN(const train::Result result,
                                                  toy.TrainToEnd(*training));
                            return result.saved;
                          }),
                  Each(IsOk()));
      EXPECT_THAT(RunToys(after,
                          [&](Toy& toy) -> absl::Status {
                            train::Options options = Resumed(dir.path(), 2);
                            if (toy.rank() != 0)
                              options.checkpoint_dir = "/proc/not/seen/here";
                            WEFT_ASSIGN_OR_RETURN(const auto training,
                                                  toy.Create(options));
                            EXPECT_EQ(training->steps(), 1);
                            EXPECT_EQ(training->epoch(), 0);
                            WEFT_ASSIGN_OR_RETURN(const train::Result result,
                                                  toy.TrainToEnd(*training));
                            // What is left of the first epoch, and the second.
                            const int used = 2 * before;
                            const int a_step = 2 * after;
                            EXPECT_EQ(training->steps(),
                                      1 + (16 - used + a_step - 1) / a_step +
                                          (16 + a_step - 1) / a_step);
                            return result.saved;
                          }),
                  Each(IsOk()));
    }
  }
}

// "Nothing after the last epoch"; Result: "the newest checkpoint that this run
// saved, or else went on from".
TEST_P(Checkpoints, PastTheEndLeaveNothingToDo) {
  EXPECT_THAT(Train(ranks(), {}, QuietOptions(path())), Each(IsOk()));
  const auto before = List(path());
  for (const int epochs : {2, 1, 0}) {
    EXPECT_THAT(
        RunToys(ranks(),
                [&](Toy& toy) -> absl::Status {
                  WEFT_ASSIGN_OR_RETURN(const auto training,
                                        toy.Create(Resumed(path(), epochs)));
                  EXPECT_EQ(training->epoch(), 2);
                  EXPECT_EQ(training->steps(), 16 / toy.group().size());
                  WEFT_ASSIGN_OR_RETURN(const train::Result result,
                                        toy.TrainToEnd(*training));
                  EXPECT_EQ(result.samples_per_s, 0);
                  EXPECT_EQ(result.checkpoint,
                            toy.rank() == 0 ? dir_.Path(before[1]) : "");
                  EXPECT_FALSE(result.was_stopped);
                  return result.saved;
                }),
        Each(IsOk()));
  }
  EXPECT_EQ(List(path()), before);
}

// CheckpointDirectory: LoadLatest, "The newest that loads"; kDataLoss "every
// checkpoint is damaged"; docs/cli.md: exit code 20.
TEST_P(Checkpoints, ThatAreDamagedArePassedOver) {
  EXPECT_THAT(Train(ranks(), {}, QuietOptions(path())), Each(IsOk()));
  const auto names = List(path());
  ASSERT_THAT(names, SizeIs(2));
  Damage(path(), names[1]);
  EXPECT_THAT(RunToys(ranks(),
                      [&](Toy& toy) -> absl::Status {
                        WEFT_ASSIGN_OR_RETURN(const auto training,
                                              toy.Create(Resumed(path(), 3)));
                        EXPECT_EQ(training->epoch(), 1);
                        WEFT_ASSIGN_OR_RETURN(const train::Result result,
                                              toy.TrainToEnd(*training));
                        return result.saved;
                      }),
              Each(IsOk()));
  for (const std::string& name : List(path())) Damage(path(), name);
  const auto ended = Train(ranks(), {}, Resumed(path(), 4));
  EXPECT_THAT(ended, Each(Not(IsOk())));
  EXPECT_THAT(ended[0], StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(ExitCodeFor(ended[0]), ExitCode::kBadCheckpoint);
}

// "the checkpoint is not of these tensors, which names the first difference"
TEST_P(Checkpoints, OfAnotherModelAreAnErrorOnEveryRank) {
  EXPECT_THAT(Train(ranks(), {}, QuietOptions(path())), Each(IsOk()));
  ToyOptions wide;
  wide.hidden = 5;
  EXPECT_THAT(Train(ranks(), wide, Resumed(path(), 3)),
              Each(StatusIs(kInvalidArgument, "0.weight")));
  EXPECT_THAT(List(path()), SizeIs(2));
}

// ShardedSampler: "kInvalidArgument if the state is of other data: its size,
// seed or shuffle differ."
TEST_P(Checkpoints, OfOtherDataAreAnErrorOnEveryRank) {
  EXPECT_THAT(Train(ranks(), {}, QuietOptions(path())), Each(IsOk()));
  ToyOptions more;
  more.size = 17;
  EXPECT_THAT(Train(ranks(), more, Resumed(path(), 3)),
              Each(StatusIs(kInvalidArgument)));
  ToyOptions mixed;
  mixed.data_seed = 2;
  EXPECT_THAT(Train(ranks(), mixed, Resumed(path(), 3)),
              Each(StatusIs(kInvalidArgument)));
}

// "the checkpoint has other fixed settings (ExitCode kConfig)"; "names both
// values and what to do"; "or is not there". Settings: "a run that goes on from
// it must have all that it holds, and may have others besides".
TEST_P(Checkpoints, OfOtherSettingsAreAnErrorOnEveryRank) {
  train::Options first = QuietOptions(path());
  first.settings.fixed = {{"--layers", "3"}};
  first.settings.common = {{"--lr", "0.1"}};
  EXPECT_THAT(Train(ranks(), {}, first), Each(IsOk()));
  train::Options other = Resumed(path(), 3);
  other.settings.fixed = {{"--layers", "4"}};
  const auto ended = Train(ranks(), {}, other);
  EXPECT_THAT(ended, Each(AllOf(StatusIs(kFailedPrecondition, "--layers"),
                                StatusIs(kFailedPrecondition, "3"),
                                StatusIs(kFailedPrecondition, "4"))));
  for (const absl::Status& status : ended)
    EXPECT_EQ(ExitCodeFor(status), ExitCode::kConfig);

  other.settings.fixed = {};
  EXPECT_THAT(Train(ranks(), {}, other),
              Each(StatusIs(kFailedPrecondition, "--layers")));
  other.settings.fixed = {{"--layers", "3"}, {"--heads", "2"}};
  other.settings.common = {{"--lr", "0.2"}};
  EXPECT_THAT(Train(ranks(), {}, other), Each(IsOk()));
}

// "kInvalidArgument ... was saved by something else"
TEST_P(Checkpoints, OfSomethingElseAreAnErrorOnEveryRank) {
  const auto directory = Open(path());
  ASSERT_THAT(directory->Save(3, {{"w", Tensor::Zeros({2})}}, {}), IsOk());
  EXPECT_THAT(Train(ranks(), {}, Resumed(path(), 3)),
              Each(StatusIs(kInvalidArgument, "not saved by a trainer")));
}

// The same, of one that holds the right tensors and a place that is none.
TEST(CheckpointsOf, HostileWritersAreAnError) {
  const TempDir dir;
  ASSERT_THAT(Train(1, {}, QuietOptions(dir.path())), Each(IsOk()));
  const auto directory = Open(dir.path());
  const auto good = directory->LoadLatest();
  ASSERT_THAT(good, IsOk());
  using State = input::ShardedSampler::State;
  std::vector<std::string> places = {"", "epoch", std::string("a\0b", 3)};
  for (const int64_t wrong : {int64_t{-1}, int64_t{1} << 62}) {
    State place;
    place.size = 16;
    place.seed = 1;
    place.epoch = wrong;
    places.push_back(place.ToString());
    place.epoch = 0;
    place.used = wrong;
    places.push_back(place.ToString());
  }
  for (const std::string& place : places) {
    SCOPED_TRACE(place);
    checkpoint::Metadata metadata = good->manifest.metadata;
    ASSERT_EQ(metadata.count("place_in_data"), 1);
    metadata["place_in_data"] = place;
    const auto saved = directory->Save(9, good->tensors, metadata);
    if (!saved.ok()) continue;  // no text that a manifest holds
    // An epoch that cannot be: the training is over, or it is an error.
    RunToys(1, [&](Toy& toy) -> absl::Status {
      const auto training = toy.Create(Resumed(dir.path(), 3));
      if (!training.ok()) return training.status();
      EXPECT_GE((*training)->epoch(), 3);
      return toy.TrainToEnd(**training).status();
    });
  }
}

// CheckpointRun: "a run saves only if the newest checkpoint is its own or was
// there when it began"; docs/cli.md: "and ends with 3".
TEST(CheckpointsOf, TwoRunsInOneDirectoryAreNotMixed) {
  const TempDir dir;
  std::string first_saved;
  EXPECT_THAT(
      RunToys(
          1,
          [&](Toy& one) -> absl::Status {
            WEFT_ASSIGN_OR_RETURN(const auto first,
                                  one.Create(QuietOptions(dir.path())));
            std::vector<absl::Status> second =
                RunToys(1, [&](Toy& two) -> absl::Status {
                  WEFT_ASSIGN_OR_RETURN(const auto training,
                                        two.Create(QuietOptions(dir.path())));
                  // The first run saves while this one is in its epoch.
                  WEFT_RETURN_IF_ERROR(one.Loop(*first));
                  WEFT_ASSIGN_OR_RETURN(const train::Result result,
                                        two.TrainToEnd(*training));
                  EXPECT_EQ(result.checkpoint, "");
                  EXPECT_EQ(ExitCodeFor(result.saved), ExitCode::kConfig);
                  return result.saved;
                });
            EXPECT_THAT(second,
                        Each(StatusIs(absl::StatusCode::kAlreadyExists)));
            WEFT_ASSIGN_OR_RETURN(const train::Result result, first->Finish());
            first_saved = result.checkpoint;
            return result.saved;
          }),
      Each(IsOk()));
  const auto names = List(dir.path());
  ASSERT_THAT(names, SizeIs(2));
  EXPECT_EQ(dir.Path(names[1]), first_saved);
}

// --- Names and scores. -------------------------------------------------------

// "Computes the score after each epoch; the checkpoint with the highest stays,
// under the name "best"." "The name under which the last checkpoint stays".
TEST_P(Checkpoints, HaveTheNamesThatWereAskedFor) {
  const std::vector<double> scores = {0.2, 0.9, 0.4, 0.9};
  train::Options options = QuietOptions(path());
  options.epochs = 4;
  options.keep = 1;
  options.keep_best = true;
  options.keep_as = "final";
  std::vector<std::string> best;
  EXPECT_THAT(RunToys(ranks(),
                      [&](Toy& toy) -> absl::Status {
                        WEFT_ASSIGN_OR_RETURN(auto parts, toy.Parts());
                        size_t calls = 0;
                        parts.score = [&]() -> absl::StatusOr<double> {
                          return scores[std::min(calls++, scores.size() - 1)];
                        };
                        WEFT_ASSIGN_OR_RETURN(const auto training,
                                              toy.Create(parts, options));
                        WEFT_ASSIGN_OR_RETURN(const train::Result result,
                                              toy.TrainToEnd(*training));
                        // "The first trainer has it".
                        EXPECT_EQ(result.score.has_value(), toy.rank() == 0);
                        EXPECT_EQ(result.score.value_or(0.9), 0.9);
                        return result.saved;
                      }),
              Each(IsOk()));
  const auto directory = Open(path());
  const auto names = List(path());
  ASSERT_THAT(names, SizeIs(2));
  EXPECT_EQ(*directory->Named("best"), names[0]);
  EXPECT_EQ(*directory->Named("final"), names[1]);
}

// A score that is an error is that of the training.
TEST_P(Checkpoints, WhoseScoreFailsEndWithItsError) {
  train::Options options = QuietOptions(path());
  options.keep_best = true;
  const auto ended = RunToys(ranks(), [&](Toy& toy) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(auto parts, toy.Parts());
    parts.score = []() -> absl::StatusOr<double> {
      return absl::NotFoundError("no test data");
    };
    WEFT_ASSIGN_OR_RETURN(const auto training, toy.Create(parts, options));
    return toy.TrainToEnd(*training).status();
  });
  EXPECT_THAT(ended, Each(StatusIs(absl::StatusCode::kNotFound)));
}

// Trains toys whose score after epoch i is scores[i].
std::vector<absl::Status> TrainScored(int ranks, const train::Options& options,
                                      const std::vector<double>& scores) {
  return RunToys(ranks, [&](Toy& toy) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(auto parts, toy.Parts());
    size_t calls = 0;
    parts.score = [&]() -> absl::StatusOr<double> {
      return scores[std::min(calls++, scores.size() - 1)];
    };
    WEFT_ASSIGN_OR_RETURN(const auto training, toy.Create(parts, options));
    WEFT_ASSIGN_OR_RETURN(const train::Result result,
                          toy.TrainToEnd(*training));
    return result.saved;
  });
}

// A score that is no number is never the best, and any number is better.
TEST_P(Checkpoints, WhoseScoreIsNoNumberAreNotTheBest) {
  for (const std::vector<double>& scores :
       {std::vector<double>{0.5, std::nan(""), 0.7},
        std::vector<double>{std::nan(""), 0.2, 0.3}}) {
    fs::remove_all(path());
    train::Options options = QuietOptions(path());
    options.keep_best = true;
    options.epochs = 3;
    EXPECT_THAT(TrainScored(ranks(), options, scores), Each(IsOk()));
    const auto names = List(path());
    ASSERT_THAT(names, SizeIs(3));
    EXPECT_EQ(*Open(path())->Named("best"), names[2]);
  }
}

// --- Options that contradict each other. -------------------------------------

worker::Options TrainerOf(int rank) {
  worker::Options options;
  options.rank = rank;
  options.trainers = 2;
  return options;
}
train::Options Saving(const std::string& path) {
  train::Options options;
  options.checkpoint_dir = path;
  return options;
}

// "With ExitCode kUsage if a value is invalid"; docs/cli.md: "two flags that
// contradict each other".
TEST(TrainOptions, WithInvalidValuesAreAMatterOfUsage) {
  const TempDir dir;
  std::vector<std::pair<std::string, train::Options>> wrong;
  const auto add = [&](const std::string& what) -> train::Options& {
    wrong.emplace_back(what, Saving(dir.path()));
    return wrong.back().second;
  };
  add("epochs").epochs = -1;
  add("keep").keep = 0;
  add("keep negative").keep = -3;
  add("name with a slash").keep_as = "a/b";
  add("name of dots").keep_as = "..";
  add("long name").keep_as = std::string(64, 'a');
  add("name with capitals").keep_as = "Final";
  {
    train::Options& best = add("keep_as best");
    best.keep_best = true;
    best.keep_as = train::kBest;
  }
  add("resume from nowhere").resume = true;
  wrong.back().second.checkpoint_dir = "";
  add("best of nothing").keep_best = true;
  wrong.back().second.checkpoint_dir = "";
  add("name of nothing").keep_as = "final";
  wrong.back().second.checkpoint_dir = "";
  for (auto& [what, options] : wrong) {
    const absl::Status resolved = options.Resolve(TrainerOf(0));
    EXPECT_THAT(resolved, Not(IsOk())) << what;
    if (!resolved.ok()) {
      EXPECT_EQ(ExitCodeFor(resolved), ExitCode::kUsage)
          << what << ": " << resolved;
    }
  }
}

// "with kConfig if the directory is"; "On rank 0 it also looks whether
// checkpoints can be written there".
TEST(TrainOptions, WithADirectoryThatIsNoneAreAMatterOfConfiguration) {
  const TempDir dir;
  Touch(dir.Path("file"));
  for (const std::string& wrong :
       {dir.Path("file"), dir.Path("file/below"), std::string("/proc/none")}) {
    train::Options options = Saving(wrong);
    const absl::Status resolved = options.Resolve(TrainerOf(0));
    EXPECT_THAT(resolved, Not(IsOk())) << wrong;
    EXPECT_EQ(ExitCodeFor(resolved), ExitCode::kConfig) << resolved;
    train::Options others = Saving(wrong);
    EXPECT_THAT(others.Resolve(TrainerOf(1)), IsOk()) << wrong;
  }
}

// "without `resume`, that no former run has left its own"
TEST(TrainOptions, OfADirectoryThatHasCheckpointsNeedResume) {
  const TempDir dir;
  ASSERT_THAT(Train(1, {}, QuietOptions(dir.path())), Each(IsOk()));
  train::Options options = Saving(dir.path());
  const absl::Status resolved = options.Resolve(TrainerOf(0));
  EXPECT_THAT(resolved, Not(IsOk()));
  EXPECT_EQ(ExitCodeFor(resolved), ExitCode::kConfig);
  options = Saving(dir.path());
  options.resume = true;
  EXPECT_THAT(options.Resolve(TrainerOf(0)), IsOk());
}

// "makes checkpoint_dir absolute"; asked twice, nothing changes.
TEST(TrainOptions, AreResolvedTwiceAsOnce) {
  const TempDir dir;
  const fs::path before = fs::current_path();
  fs::current_path(dir.path());
  train::Options options = Saving("a/../saved");
  EXPECT_THAT(options.Resolve(TrainerOf(0)), IsOk());
  const std::string resolved = options.checkpoint_dir;
  EXPECT_TRUE(fs::path(resolved).is_absolute()) << resolved;
  EXPECT_THAT(options.Resolve(TrainerOf(0)), IsOk());
  EXPECT_EQ(options.checkpoint_dir, resolved);
  fs::current_path(before);
  EXPECT_THAT(List(resolved), IsEmpty());
}

absl::Status Parse(std::vector<const char*> words, train::Options& options) {
  words.insert(words.begin(), "program");
  worker::Flags flags("program", "A test.");
  options.AddTo(flags);
  return flags.Parse(static_cast<int>(words.size()), words.data());
}

// Flags::Parse: "a value that cannot be read" is "kInvalidArgument, with exit
// code 2".
TEST(TrainOptions, ThatCannotBeReadAreAMatterOfUsage) {
  for (const char* wrong : {"--epochs=1e3", "--epochs=", "--epochs=99999999999",
                            "--keep=two", "--resume=perhaps", "--keep=0x2"}) {
    train::Options options;
    absl::Status status = Parse({wrong}, options);
    if (status.ok()) status = options.Resolve(TrainerOf(0));
    EXPECT_THAT(status, Not(IsOk())) << wrong;
    if (!status.ok()) {
      EXPECT_EQ(ExitCodeFor(status), ExitCode::kUsage) << status;
    }
  }
}

// "resumes a job that `weft run --max-restarts` has started again"
TEST(TrainOptions, OfARestartedJobResume) {
  const TempDir dir;
  ASSERT_THAT(Train(1, {}, QuietOptions(dir.path())), Each(IsOk()));
  for (const char* count : {"0", "1", "7"}) {
    ASSERT_EQ(setenv("TORCHELASTIC_RESTART_COUNT", count, 1), 0);
    train::Options options;
    EXPECT_THAT(Parse({"--checkpoint-dir", dir.path().c_str()}, options),
                IsOk());
    EXPECT_EQ(options.Resolve(TrainerOf(0)).ok(), *count != '0');
    EXPECT_EQ(options.resume, *count != '0');
    // Without a directory there is nothing to resume.
    train::Options nothing;
    EXPECT_THAT(Parse({}, nothing), IsOk());
    EXPECT_THAT(nothing.Resolve(TrainerOf(0)), IsOk());
  }
  ASSERT_EQ(setenv("TORCHELASTIC_RESTART_COUNT", "many", 1), 0);
  train::Options options;
  EXPECT_THAT(Parse({}, options), Not(IsOk()));
  unsetenv("TORCHELASTIC_RESTART_COUNT");
}

}  // namespace
}  // namespace weft::outside
