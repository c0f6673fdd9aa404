// Random programs over one to five workers, compared with the same program in
// one process: gradients are equal, a failed pass changes none and can be
// repeated, and nothing is left behind (docs/dist_autograd.md).

#include "weft/dist_autograd/random_program.h"

#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/dist_autograd/scope.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::dist_autograd {
namespace {

using ::weft::testing::IsOk;

constexpr int kWorkers = 5;

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (int i = 0; i < kWorkers; ++i) names.push_back(absl::StrCat("w", i));
  return names;
}

class RandomProgramTest : public ::testing::Test {
 protected:
  void Open(bool with_references) {
    ranks_ = std::make_unique<rpc::Ranks>(kWorkers);
    for (int i = 0; i < kWorkers; ++i) {
      if (with_references) {
        references_.push_back(rref::References::Open((*ranks_)[i]).value());
      }
      contexts_.push_back(Contexts::Open((*ranks_)[i]).value());
    }
  }
  void Close() {
    for (const auto& contexts : contexts_) contexts->Close();
    for (const auto& references : references_) {
      EXPECT_THAT(references->Close(absl::Seconds(20)), IsOk());
    }
    contexts_.clear();
    references_.clear();
    ranks_.reset();
  }
  void TearDown() override { Close(); }

  void Place(const RandomModels& models) {
    for (int i = 0; i < kWorkers; ++i) (*ranks_)[i].SetLocal(models[i]);
  }
  weft::Gradient At(int worker, const Scope& scope, const Variable& leaf) {
    const auto context = contexts_[worker]->Find(scope.id());
    if (!context.ok()) return weft::Gradient();
    return (*context)->GradientOf(*leaf.edge().node->leaf());
  }
  bool HasAnyGradient(const Scope& scope, const RandomModels& models) {
    for (int worker = 0; worker < kWorkers; ++worker) {
      for (const Variable& leaf : models[worker]->leaves) {
        if (At(worker, scope, leaf).defined()) return true;
      }
    }
    return false;
  }
  // All messages that the workers have recorded.
  uint64_t AllMessages(const Scope& scope) {
    uint64_t messages = 0;
    for (const auto& contexts : contexts_) {
      const auto context = contexts->Find(scope.id());
      if (context.ok()) messages += (*context)->Sends().size();
    }
    return messages;
  }
  // A pass that goes through every message does the same in FAST mode. False
  // if it does not go through every message. REQUIRES: one pass has ended, with
  // retain_graph.
  bool CompareFast(const Scope& scope, const Values& roots,
                   const RandomModels& models, const RandomModels& expected) {
    PassOptions options;
    options.seeds = RandomProgramSeeds(roots.size());
    options.retain_graph = true;
    const auto clear = [&] {
      for (const auto& contexts : contexts_) {
        const auto context = contexts->Find(scope.id());
        if (context.ok()) (*context)->ClearGradients();
      }
    };
    clear();
    const Result<PassReport> smart =
        scope.BackwardAsync(roots, options).Wait(testing::kPatience);
    EXPECT_THAT(smart.status(), IsOk());
    if (!smart.ok() || smart->live_messages != AllMessages(scope)) return false;
    clear();
    options.mode = PassMode::kFast;
    const Result<PassReport> fast =
        scope.BackwardAsync(roots, options).Wait(testing::kPatience);
    EXPECT_THAT(fast.status(), IsOk());
    if (fast.ok()) {
      EXPECT_EQ(fast->live_messages, smart->live_messages);
      EXPECT_EQ(fast->participants, smart->participants);
    }
    ExpectGradients(scope, models, expected, 1);
    return true;
  }
  // `expected` holds the gradients in its leaves. `but`: a worker that died.
  void ExpectGradients(const Scope& scope, const RandomModels& models,
                       const RandomModels& expected, double passes,
                       int but = -1) {
    for (int worker = 0; worker < kWorkers; ++worker) {
      if (worker == but) continue;
      for (int leaf = 0; leaf < RandomModel::kLeaves; ++leaf) {
        EXPECT_EQ(
            ShowGradient(At(worker, scope, models[worker]->leaves[leaf])),
            ShowGradient(expected[worker]->leaves[leaf].gradient(), passes))
            << "leaf " << leaf << " of w" << worker;
      }
    }
  }
  void ExpectEmptyTables() {
    for (int i = 0; i < kWorkers; ++i) {
      EXPECT_TRUE(testing::Becomes([&] {
        const Contexts::Counts counts = contexts_[i]->counts();
        return counts.contexts == 0 && counts.passes == 0;
      })) << "w"
          << i << " has contexts left";
    }
  }
  // Notifies all other workers that `dead` was killed.
  void Kill(int dead) {
    for (int i = 0; i < kWorkers; ++i) {
      if (i == dead) continue;
      const auto key = [](int rank) {
        return rpc::WorkerKey{static_cast<uint32_t>(rank), 1};
      };
      (*ranks_)[i].PeerGone(key(dead), "killed");
      (*ranks_)[dead].PeerGone(key(i), "killed");
    }
  }

  std::unique_ptr<rpc::Ranks> ranks_;
  std::vector<std::shared_ptr<rref::References>> references_;
  std::vector<std::shared_ptr<Contexts>> contexts_;
};

TEST_F(RandomProgramTest, GradientsOverWorkersEqualThoseOfOneProcess) {
  constexpr int kPrograms = 300;
  Open(/*with_references=*/true);
  int unused = 0;
  int nested = 0;
  int failed = 0;
  int fast = 0;
  for (uint32_t seed = 1; seed <= kPrograms && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const RandomProgram program =
        RandomProgram::Make(random, 1 + static_cast<int>(seed % kWorkers));
    const RandomModels expected = MakeRandomModels(seed, kWorkers);
    const Values local = program.RunInOneProcess(expected);
    const std::vector<size_t> roots = program.PickRoots(local);
    ASSERT_THAT(BackwardInOneProcess(local, roots), IsOk());
    unused += program.HasUnusedResult(roots);
    nested += program.has_nested_call;

    const RandomModels models = MakeRandomModels(seed, kWorkers);
    Place(models);
    {
      const Scope scope(*contexts_[0]);
      const Values values =
          program.RunOverWorkers(Names(), (*ranks_)[0], scope).value();
      PassOptions options;
      options.seeds = RandomProgramSeeds(roots.size());
      options.retain_graph = seed % 3 == 0;  // A9: two passes
      if (seed % 3 == 1) {                   // A4: all or none, and again
        for (const auto& model : models) model->hooks_fail = true;
        const absl::Status status =
            scope.Backward(Select(values, roots), options);
        failed += !status.ok();
        EXPECT_EQ(HasAnyGradient(scope, models), status.ok());
        for (const auto& model : models) model->hooks_fail = false;
        if (!status.ok()) {
          ASSERT_THAT(scope.Backward(Select(values, roots), options), IsOk());
        }
      } else {
        ASSERT_THAT(scope.Backward(Select(values, roots), options), IsOk());
      }
      if (options.retain_graph) {
        fast += CompareFast(scope, Select(values, roots), models, expected);
        options.retain_graph = false;
        ASSERT_THAT(scope.Backward(Select(values, roots), options), IsOk());
      }
      ExpectGradients(scope, models, expected, seed % 3 == 0 ? 2 : 1);
    }
    ExpectEmptyTables();
  }
  RecordProperty("unused_percent", unused * 100 / kPrograms);
  RecordProperty("nested_percent", nested * 100 / kPrograms);
  std::printf(
      "%d programs: %d%% with an unused result, %d%% with nested calls, "
      "%d passes failed on purpose, %d compared with FAST\n",
      kPrograms, unused * 100 / kPrograms, nested * 100 / kPrograms, failed,
      fast);
  EXPECT_GE(unused * 100, 30 * kPrograms);
  EXPECT_GE(nested * 100, 30 * kPrograms);
  EXPECT_GE(failed, 10);
  EXPECT_GE(fast, 10);
}

// Nested calls too: a worker that has part in the context only through the dead
// one is notified of the context's end by its creator.
TEST_F(RandomProgramTest, DeathInTheMiddleOfAPassLeavesAllGradientsOrNone) {
  int committed = 0;
  int aborted = 0;
  for (uint32_t seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Open(/*with_references=*/true);
    std::mt19937 random(seed);
    const RandomProgram program = RandomProgram::Make(random, kWorkers);
    const RandomModels expected = MakeRandomModels(seed, kWorkers);
    const Values local = program.RunInOneProcess(expected);
    const std::vector<size_t> roots = program.PickRoots(local);
    ASSERT_THAT(BackwardInOneProcess(local, roots), IsOk());
    const RandomModels models = MakeRandomModels(seed, kWorkers);
    Place(models);
    const int dead = 1 + static_cast<int>(seed % (kWorkers - 1));
    {
      const Scope scope(*contexts_[0]);
      const Values values =
          program.RunOverWorkers(Names(), (*ranks_)[0], scope).value();
      PassOptions options;
      options.seeds = RandomProgramSeeds(roots.size());
      // The dead worker may still run hooks when the pass has ended.
      const auto once = std::make_shared<std::once_flag>();
      const auto kill = [this, once, dead] {
        std::call_once(*once, [&] { Kill(dead); });
      };
      // The kill happens in the middle of the pass, at the worker of the first
      // hook that runs.
      for (const auto& model : models) model->on_hook = kill;
      const Future<PassReport> pass =
          scope.BackwardAsync(Select(values, roots), options);
      const Result<PassReport> report = pass.Wait(testing::kPatience);
      kill();
      if (report.ok()) {
        ++committed;
        ExpectGradients(scope, models, expected, 1, dead);
      } else {
        ++aborted;
        EXPECT_EQ(report.status().code(), absl::StatusCode::kUnavailable)
            << report.status();
        EXPECT_FALSE(HasAnyGradient(scope, models));
      }
    }
    ExpectEmptyTables();
    Close();
  }
  std::printf("%d passes committed, %d aborted\n", committed, aborted);
  EXPECT_GT(committed, 0);
  EXPECT_GT(aborted, 0);
}

}  // namespace
}  // namespace weft::dist_autograd
