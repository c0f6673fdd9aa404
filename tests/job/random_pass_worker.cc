// random_pass_worker: one worker of the random programs with distributed
// backward passes, each a process. trainer0 runs the programs and compares each
// gradient with the same program in one process; exit code 0 if all are equal.

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/context_codec.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/random_program.h"
#include "weft/dist_autograd/scope.h"
#include "weft/rpc/call.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/function.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/worker.h"

namespace weft::worker {
namespace {

using dist_autograd::ContextId;
using dist_autograd::RandomModel;
using dist_autograd::RandomModels;
using dist_autograd::RandomProgram;

constexpr int kPrograms = 40;
constexpr absl::Duration kLong = absl::Minutes(3);

int g_rank = 0;     // this process's
int g_workers = 0;  // of the job

// Gives this worker its leaves of a program.
void TakeModel(rpc::CallContext& call, uint32_t seed) {
  call.agent().SetLocal(
      dist_autograd::MakeRandomModels(seed, g_workers)[g_rank]);
}
WEFT_RPC(TakeModel);

// The gradient of each leaf of this worker, as text.
std::vector<std::string> ShowGradients(rpc::CallContext& call, ContextId id) {
  std::vector<std::string> shown;
  const auto contexts = dist_autograd::Contexts::Of(call.agent()).value();
  const auto context = contexts->Find(id);
  for (const Variable& leaf : call.agent().Local<RandomModel>()->leaves) {
    shown.push_back(dist_autograd::ShowGradient(
        context.ok() ? (*context)->GradientOf(*leaf.edge().node->leaf())
                     : Gradient()));
  }
  return shown;
}
WEFT_RPC(ShowGradients);

// The contexts and passes that are open at this worker.
int64_t OpenPasses(rpc::CallContext& call) {
  const auto counts =
      dist_autograd::Contexts::Of(call.agent()).value()->counts();
  return counts.contexts + counts.passes;
}
WEFT_RPC(OpenPasses);

absl::Status Compare(rpc::Agent& agent, const std::vector<std::string>& names,
                     ContextId id, const RandomModels& expected) {
  for (size_t i = 0; i < names.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> shown,
                          rpc::Call(agent.To(names[i]), ShowGradients, id));
    for (size_t leaf = 0; leaf < shown.size(); ++leaf) {
      const std::string wanted =
          dist_autograd::ShowGradient(expected[i]->leaves[leaf].gradient());
      if (shown[leaf] == wanted) continue;
      return absl::InternalError(absl::StrCat("leaf ", leaf, " of ", names[i],
                                              ": wanted ", wanted, ", found ",
                                              shown[leaf]));
    }
  }
  return absl::OkStatus();
}

struct Shares {
  int unused = 0;
  int nested = 0;
};

absl::Status RunOne(Worker& worker, const std::vector<std::string>& names,
                    uint32_t seed, Shares* shares) {
  std::mt19937 random(seed + 5000);
  const RandomProgram program = RandomProgram::Make(random, g_workers);
  const RandomModels expected =
      dist_autograd::MakeRandomModels(seed, g_workers);
  const auto local = program.RunInOneProcess(expected);
  const auto roots = program.PickRoots(local);
  WEFT_RETURN_IF_ERROR(dist_autograd::BackwardInOneProcess(local, roots));
  shares->unused += program.HasUnusedResult(roots);
  shares->nested += program.has_nested_call;
  rpc::Agent& agent = worker.agent();
  for (const std::string& name : names) {
    WEFT_RETURN_IF_ERROR(rpc::Call(agent.To(name), TakeModel, seed));
  }
  const dist_autograd::Scope scope(worker.contexts());
  WEFT_ASSIGN_OR_RETURN(const auto values,
                        program.RunOverWorkers(names, agent, scope));
  dist_autograd::PassOptions pass;
  pass.seeds = dist_autograd::RandomProgramSeeds(roots.size());
  WEFT_RETURN_IF_ERROR(
      scope.Backward(dist_autograd::Select(values, roots), pass));
  return Compare(agent, names, scope.id(), expected);
}

// Waits until no worker has a context.
absl::Status AwaitEmpty(rpc::Agent& agent,
                        const std::vector<std::string>& names) {
  for (int i = 0; i < 1000; ++i) {
    int64_t open = 0;
    for (const std::string& name : names) {
      WEFT_ASSIGN_OR_RETURN(const int64_t more,
                            rpc::Call(agent.To(name), OpenPasses));
      open += more;
    }
    if (open == 0) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(10));
  }
  return absl::InternalError("contexts were left after 10 s");
}

absl::Status RunPrograms(Worker& worker) {
  std::vector<std::string> names;
  for (int i = 0; i < g_workers; ++i)
    names.push_back(absl::StrCat("trainer", i));
  Shares shares;
  for (uint32_t seed = 1; seed <= kPrograms; ++seed) {
    const absl::Status ran = RunOne(worker, names, seed, &shares);
    if (!ran.ok()) {
      return absl::Status(ran.code(),
                          absl::StrCat("seed ", seed, ": ", ran.message()));
    }
    WEFT_RETURN_IF_ERROR(AwaitEmpty(worker.agent(), names));
  }
  std::printf("%d programs over %d processes: %d unused, %d nested\n",
              kPrograms, g_workers, shares.unused, shares.nested);
  return absl::OkStatus();
}

}  // namespace
}  // namespace weft::worker

int main(int argc, char** argv) {
  auto worker =
      weft::worker::Worker::Start(weft::worker::Options::FromFlags(argc, argv));
  weft::ExitIfError(worker);
  weft::worker::g_rank = (*worker)->options().rank;
  weft::worker::g_workers = (*worker)->options().trainers;
  weft::ExitIfError((*worker)->AwaitAll("ready", weft::worker::kLong));
  if (weft::worker::g_rank == 0) {
    weft::ExitIfError(weft::worker::RunPrograms(**worker));
  }
  weft::ExitIfError((*worker)->AwaitAll("done", weft::worker::kLong));
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
