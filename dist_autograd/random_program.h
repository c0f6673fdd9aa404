// Random programs over some workers, and the same programs in one process, for
// tests that compare their gradients.

#ifndef WEFT_DIST_AUTOGRAD_RANDOM_PROGRAM_H_
#define WEFT_DIST_AUTOGRAD_RANDOM_PROGRAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/variable.h"
#include "weft/dist_autograd/scope.h"
#include "weft/rpc/agent.h"

namespace weft::dist_autograd {

using Values = std::vector<Variable>;

// The leaves of one worker, which its agent has as a Local.
struct RandomModel {
  static constexpr int kLeaves = 2;

  Values leaves;  // f64 [3]
  std::atomic<bool> hooks_fail{false};
  std::function<void()> on_hook;  // set before the pass
};
using RandomModels = std::vector<std::shared_ptr<RandomModel>>;

// Makes the models of `workers` workers; they are the same for the same seed.
RandomModels MakeRandomModels(uint32_t seed, int workers);

struct RandomStep {
  enum class Style { kLocal, kCall, kAsync, kRemote, kNested };

  int64_t operation = 0;
  int64_t leaf = 0;
  size_t inputs[2] = {0, 0};
  int worker = 0;  // whose leaf it uses
  int via = 0;     // kNested: which worker calls that one
  Style style = Style::kLocal;
};

// A program of one worker, the root. Its values are two leaves of the root and
// a constant, and the two results of each step.
struct RandomProgram {
  static RandomProgram Make(std::mt19937& random, int workers);

  // One or two of `values` that require gradients.
  std::vector<size_t> PickRoots(const Values& values) const;
  // Whether the results of a remote step are not behind `roots`.
  bool HasUnusedResult(const std::vector<size_t>& roots) const;

  // Runs the program in one process, with the leaves of `models`.
  Values RunInOneProcess(const RandomModels& models) const;
  // The same over the workers of these names; `agent` is that of the first.
  absl::StatusOr<Values> RunOverWorkers(const std::vector<std::string>& names,
                                        rpc::Agent& agent,
                                        const Scope& scope) const;

  std::vector<RandomStep> steps;
  std::vector<size_t> candidates;  // for roots, in order of preference
  bool has_nested_call = false;
};

Values Select(const Values& values, const std::vector<size_t>& which);
// Seeds for `n` roots.
std::vector<weft::Gradient> RandomProgramSeeds(size_t n);
// Runs the program in one process. Its gradients, in `models`, are those that
// the workers must have.
absl::Status BackwardInOneProcess(const Values& values,
                                  const std::vector<size_t>& roots);
// `gradient` times `scale` as text to compare, with 9 digits; "-" if it is
// absent.
std::string ShowGradient(const weft::Gradient& gradient, double scale = 1);

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_RANDOM_PROGRAM_H_
