// Programs that nobody would write: random graphs with parts in parts, noise,
// weights and outer variables by closure, scopes that record nothing, results
// that nobody uses. Each has the same bits with Checkpoint and without.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/tensor/random.h"
#include "weft/tests/outside/checkpoint/bits.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

enum class Do {
  kUnary,
  kBinary,
  kLeaf,
  kNoise,
  kDetach,
  kNoGrad,
  kOnce,
  kView,
  kPart,
  kCount
};

struct Program;

struct Step {
  Do what = Do::kUnary;
  uint64_t which = 0;
  std::vector<uint64_t> sources;  // modulo what there is
  std::shared_ptr<const Program> part;
};

struct Program {
  std::vector<Step> steps;
  std::vector<uint64_t> results;  // modulo 4: of the last that were made
};

std::shared_ptr<const Program> Draw(Generator& random, int depth) {
  auto program = std::make_shared<Program>();
  const uint64_t steps = 2 + random.NextBelow(7);
  for (uint64_t i = 0; i < steps; ++i) {
    Step step;
    step.what =
        static_cast<Do>(random.NextBelow(static_cast<uint64_t>(Do::kCount)));
    if (depth > 0 && random.NextBelow(4) == 0) step.what = Do::kPart;
    if (step.what == Do::kPart && depth == 0) step.what = Do::kUnary;
    step.which = random.NextU64();
    const uint64_t sources = step.what == Do::kPart ? random.NextBelow(4) : 2;
    for (uint64_t s = 0; s < sources; ++s) {
      step.sources.push_back(random.NextU64());
    }
    if (step.what == Do::kPart) step.part = Draw(random, depth - 1);
    program->steps.push_back(std::move(step));
  }
  const uint64_t results = 1 + random.NextBelow(3);
  for (uint64_t i = 0; i < results; ++i) {
    program->results.push_back(random.NextU64());
  }
  return program;
}

struct Surroundings {
  std::vector<Variable> leaves;
  Generator noise{77};
  int once = 0;
  int* again = nullptr;  // counts second runs
  bool on = false;
};

Variable Unary(uint64_t which, const Variable& x) {
  switch (which % 7) {
    case 0:
      return Tanh(x);
    case 1:
      return Sin(x);
    case 2:
      return Sigmoid(x) + x * 0.25;
    case 3:
      return Exp(Tanh(x));
    case 4:
      return Softmax(x, 1);
    case 5:
      return Gelu(x);
    default:
      return LayerNorm(x, {3}, Variable(), Variable());
  }
}

Variable Binary(uint64_t which, const Variable& a, const Variable& b) {
  switch (which % 5) {
    case 0:
      return a * b;
    case 1:
      return a - b;
    case 2:
      return Maximum(a, Sin(b));
    case 3:
      return a / (Square(b) + 1.5);
    default:
      return MatMul(MatMul(a, Transpose(b, 0, 1)), a) * 0.1;
  }
}

std::vector<Variable> Run(const Program& program,
                          const std::vector<Variable>& outer, In inputs,
                          Surroundings& around) {
  std::vector<Variable> here(inputs.begin(), inputs.end());
  const auto at = [&](uint64_t source) -> const Variable& {
    const size_t i = source % (here.size() + outer.size());
    return i < here.size() ? here[i] : outer[i - here.size()];
  };
  for (const Step& step : program.steps) {
    switch (step.what) {
      case Do::kUnary:
        here.push_back(Unary(step.which, at(step.sources[0])));
        break;
      case Do::kBinary:
        here.push_back(
            Binary(step.which, at(step.sources[0]), at(step.sources[1])));
        break;
      case Do::kLeaf:
        here.push_back(at(step.sources[0]) *
                       around.leaves[step.which % around.leaves.size()]);
        break;
      case Do::kNoise:
        here.push_back(at(step.sources[0]) *
                       Variable(Uniform({4, 3}, 0.5, 1, around.noise)));
        break;
      case Do::kDetach:
        here.push_back(Unary(step.which, at(step.sources[0])).Detach() +
                       at(step.sources[1]));
        break;
      case Do::kNoGrad: {
        Variable constant;
        {
          const NoGradScope scope;
          constant = Unary(step.which, at(step.sources[0]));
        }
        here.push_back(constant * at(step.sources[1]));
        break;
      }
      case Do::kOnce:
        here.push_back(at(step.sources[0]) * Variable(OnceInCheckpoint([&] {
                         return Tensor::Full({4, 3}, 1.0 / ++around.once);
                       })));
        break;
      case Do::kView:
        here.push_back(Reshape(
            Transpose(Reshape(at(step.sources[0]), {3, 4}), 0, 1), {4, 3}));
        break;
      case Do::kPart: {
        std::vector<Variable> taken;
        for (const uint64_t source : step.sources) taken.push_back(at(source));
        std::vector<Variable> seen = here;
        seen.insert(seen.end(), outer.begin(), outer.end());
        const ManyFn f = [part = step.part, seen, &around](In in) {
          if (IsRecomputing()) ++*around.again;
          return Run(*part, seen, in, around);
        };
        for (Variable& one : MaybeMany(around.on, f, taken)) {
          here.push_back(std::move(one));
        }
        break;
      }
      case Do::kCount:
        break;
    }
  }
  std::vector<Variable> results;
  for (const uint64_t result : program.results) {
    results.push_back(here[here.size() - 1 - result % 4 % here.size()]);
  }
  return results;
}

Tensors Outcome(uint64_t seed, bool on, int* again) {
  Generator random(seed);
  const auto program = Draw(random, 4);
  const bool twice = random.NextBelow(3) == 0;
  Surroundings around;
  around.on = on;
  around.again = again;
  for (int i = 0; i < 3; ++i) around.leaves.push_back(LeafOf({4, 3}, seed + i));
  const std::vector<Variable> start = {around.leaves[0], Sin(around.leaves[1])};
  const ManyFn all = [&](In in) { return Run(*program, start, in, around); };
  const std::vector<Variable> results =
      random.NextBelow(2) == 0 ? all(start) : MaybeMany(on, all, start);
  Variable loss = Sum(around.leaves[2]);
  for (const Variable& result : results) loss = loss + Sum(Square(result));
  around.noise.NextU32();
  BackwardOptions options;
  options.retain_graph = twice;
  Tensors found{loss.value()};
  for (int pass = 0; pass < (twice ? 2 : 1); ++pass) {
    loss.Backward(options);
    for (const Variable& leaf : around.leaves) {
      found.push_back(leaf.has_grad() ? leaf.grad().Clone() : Tensor());
    }
    found.push_back(
        Tensor::Scalar<int64_t>(static_cast<int64_t>(around.noise.position())));
    found.push_back(Tensor::Scalar<int64_t>(around.once));
  }
  return found;
}

TEST(RandomPrograms, HaveTheSameBitsWithCheckpointAndWithout) {
  int again = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Tensors without, with;
    ASSERT_THAT(StatusOf([&] { without = Outcome(seed, false, &again); }),
                ::weft::testing::IsOk())
        << seed;
    ASSERT_THAT(StatusOf([&] { with = Outcome(seed, true, &again); }),
                ::weft::testing::IsOk())
        << seed;
    ASSERT_TRUE(SameBits(with, without)) << seed;
  }
  EXPECT_GT(again, 4000);
}

}  // namespace
}  // namespace weft::outside
