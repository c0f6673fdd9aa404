// Random programs with distributed backward passes over real workers, which
// speak gRPC, compared with the same programs in one process.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/dist_autograd/random_program.h"
#include "weft/dist_autograd/scope.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/test_workers.h"

namespace weft::worker {
namespace {

using dist_autograd::RandomModel;
using dist_autograd::RandomModels;
using dist_autograd::RandomProgram;
using dist_autograd::Scope;
using dist_autograd::ShowGradient;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;

constexpr int kWorkers = 5;
constexpr int kPrograms = 60;

weft::Gradient GradientAt(Worker& worker, const Scope& scope,
                          const Variable& leaf) {
  const auto context = worker.contexts().Find(scope.id());
  if (!context.ok()) return weft::Gradient();
  return (*context)->GradientOf(*leaf.edge().node->leaf());
}

void RunPrograms(int shared_memories) {
  TestWorkers::Options options;
  options.servers = 0;
  options.trainers = kWorkers;
  options.configure = [=](worker::Options& worker) {
    worker.shared_memories = shared_memories;
  };
  const auto workers = TestWorkers::Start(options);
  ASSERT_THAT(workers, IsOk());
  const std::vector<std::string> names = (*workers)->names();
  int unused = 0;
  int nested = 0;
  for (uint32_t seed = 1; seed <= kPrograms && !::testing::Test::HasFailure();
       ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed + 1000);
    const RandomProgram program = RandomProgram::Make(random, kWorkers);
    const RandomModels expected =
        dist_autograd::MakeRandomModels(seed, kWorkers);
    const auto local = program.RunInOneProcess(expected);
    const auto roots = program.PickRoots(local);
    ASSERT_THAT(dist_autograd::BackwardInOneProcess(local, roots), IsOk());
    unused += program.HasUnusedResult(roots);
    nested += program.has_nested_call;

    const RandomModels models = dist_autograd::MakeRandomModels(seed, kWorkers);
    for (int i = 0; i < kWorkers; ++i) {
      (*workers)->Get(names[i]).agent().SetLocal(models[i]);
    }
    {
      Worker& root = (*workers)->Get(names[0]);
      const Scope scope(root.contexts());
      const auto values = program.RunOverWorkers(names, root.agent(), scope);
      ASSERT_THAT(values.status(), IsOk());
      dist_autograd::PassOptions pass;
      pass.seeds = dist_autograd::RandomProgramSeeds(roots.size());
      ASSERT_THAT(scope.Backward(dist_autograd::Select(*values, roots), pass),
                  IsOk());
      for (int i = 0; i < kWorkers; ++i) {
        for (int leaf = 0; leaf < RandomModel::kLeaves; ++leaf) {
          EXPECT_EQ(ShowGradient(GradientAt((*workers)->Get(names[i]), scope,
                                            models[i]->leaves[leaf])),
                    ShowGradient(expected[i]->leaves[leaf].gradient()))
              << "leaf " << leaf << " of " << names[i];
        }
      }
    }
    for (const std::string& name : names) {
      EXPECT_TRUE(Becomes([&] {
        const auto counts = (*workers)->Get(name).contexts().counts();
        return counts.contexts == 0 && counts.passes == 0;
      })) << name;
    }
  }
  std::printf(
      "%d programs: %d%% with an unused result, %d%% with nested calls\n",
      kPrograms, unused * 100 / kPrograms, nested * 100 / kPrograms);
  EXPECT_GE(unused * 100, 30 * kPrograms);
  EXPECT_GE(nested * 100, 30 * kPrograms);
  EXPECT_THAT((*workers)->Shutdown(), IsOk());
}

TEST(RandomPass, GradientsOverGrpcWorkersEqualThoseOfOneProcess) {
  RunPrograms(/*shared_memories=*/0);
}

TEST(RandomPass, GradientsOverSharedMemoryEqualThoseOfOneProcess) {
  RunPrograms(worker::Options().shared_memories);
}

// The death of a worker that a nested call went through, as the membership
// reports it: no context is left at the worker behind it.
TEST(RandomPass, WorkerBehindAKilledOneEndsTheContext) {
  TestWorkers::Options options;
  options.servers = 0;
  options.trainers = 3;
  const auto workers = TestWorkers::Start(options);
  ASSERT_THAT(workers, IsOk());
  const RandomModels models = dist_autograd::MakeRandomModels(1, 3);
  const std::vector<std::string> names = (*workers)->names();
  for (int i = 0; i < 3; ++i) {
    (*workers)->Get(names[i]).agent().SetLocal(models[i]);
  }
  {
    RandomProgram program;  // one nested call
    dist_autograd::RandomStep step;
    step.operation = 2;
    step.worker = 2;
    step.via = 1;
    step.style = dist_autograd::RandomStep::Style::kNested;
    program.steps.push_back(step);
    Worker& root = (*workers)->Get(names[0]);
    const Scope scope(root.contexts());
    ASSERT_THAT(program.RunOverWorkers(names, root.agent(), scope).status(),
                IsOk());
    EXPECT_EQ((*workers)->Get(names[2]).contexts().counts().contexts, 1);
    (*workers)->Kill(names[1]);
  }
  for (const int i : {0, 2}) {
    EXPECT_TRUE(Becomes([&] {
      return (*workers)->Get(names[i]).contexts().counts().contexts == 0;
    })) << names[i];
  }
}

}  // namespace
}  // namespace weft::worker
