// Each operation that is registered, within Checkpoint and without: the same
// bits. And with each leaf moved to other memory between the passes.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/op.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/tensor/random.h"
#include "weft/tests/outside/checkpoint/bits.h"

namespace weft::outside {
namespace {

struct Case {
  const Op* op;
  const OpCase* one;
  std::string name() const { return absl::StrCat(op->name(), "/", one->name); }
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const Op* op : Op::Registered()) {
    for (const OpCase& one : op->cases()) cases.push_back({op, &one});
  }
  return cases;
}

Tensor Sample(const SampleInput& input, Generator& random) {
  const Tensor reals =
      Uniform(input.shape, input.low, input.high, random, DType::kF32);
  switch (input.kind) {
    case SampleInput::Kind::kReal:
    case SampleInput::Kind::kTarget:
      return reals;
    case SampleInput::Kind::kIndex:
      return reals.To(DType::kI64);
    case SampleInput::Kind::kBool:
      break;
  }
  return Bernoulli(input.shape, 0.5, random);
}

std::vector<Variable> SampleAll(const OpCase& one) {
  Generator random(11);
  std::vector<Variable> inputs;
  for (const SampleInput& input : one.inputs) {
    inputs.emplace_back(Sample(input, random),
                        input.kind == SampleInput::Kind::kReal);
  }
  return inputs;
}

Gradient SeedFor(const Variable& y) {
  Generator random(12);
  return Gradient(Uniform(y.shape(), -1, 1, random, y.dtype()));
}

Tensors ResultAndGradients(const Variable& y,
                           const std::vector<Variable>& inputs) {
  Tensors found{y.value()};
  for (const Variable& input : inputs) {
    if (input.requires_grad()) found.push_back(input.grad());
  }
  return found;
}

TEST(EveryOperation, IsRegisteredHere) { EXPECT_GT(AllCases().size(), 50u); }

TEST(EveryOperation, HasTheSameBitsWithinCheckpoint) {
  for (const Case& one : AllCases()) {
    SCOPED_TRACE(one.name());
    Tensors wanted;
    {
      const std::vector<Variable> inputs = SampleAll(*one.one);
      const Variable y = one.one->forward(inputs);
      if (!y.requires_grad()) continue;
      y.Backward(SeedFor(y));
      wanted = ResultAndGradients(y, inputs);
    }
    for (const bool nested : {false, true}) {
      const std::vector<Variable> inputs = SampleAll(*one.one);
      int calls = 0;
      const OneFn f = [&](In in) {
        ++calls;
        return one.one->forward(in);
      };
      const Variable y =
          nested ? Checkpoint([&](In in) { return Checkpoint(f, in); }, inputs)
                 : Checkpoint(f, inputs);
      y.Backward(SeedFor(y));
      EXPECT_TRUE(SameBits(ResultAndGradients(y, inputs), wanted)) << nested;
      EXPECT_LE(calls, nested ? 3 : 2);
    }
  }
}

// Each operation is called in a closure, on views that are not contiguous, and
// on a computed variable.
TEST(EveryOperation, HasTheSameBitsOfComputedInputs) {
  for (const Case& one : AllCases()) {
    SCOPED_TRACE(one.name());
    const auto run = [&](bool on) {
      const std::vector<Variable> leaves = SampleAll(*one.one);
      std::vector<Variable> inputs;
      for (const Variable& leaf : leaves) {
        if (!leaf.requires_grad() || leaf.dim() < 2) {
          inputs.push_back(leaf);
        } else {
          // Its elements in another order of memory.
          inputs.push_back(Transpose(Reshape(Transpose(leaf, 0, 1) * 1.0,
                                             Transpose(leaf, 0, 1).shape()),
                                     0, 1));
        }
      }
      const Variable y = Maybe(on, one.one->forward, inputs);
      if (y.requires_grad()) y.Backward(SeedFor(y));
      return ResultAndGradients(y, leaves);
    };
    ExpectSameWithAndWithout(run);
  }
}

TEST(EveryOperation, OfALeafThatWasMovedHasTheSameBits) {
  for (const Case& one : AllCases()) {
    SCOPED_TRACE(one.name());
    const auto run = [&](bool moved, bool on) {
      const std::vector<Variable> leaves = SampleAll(*one.one);
      const Variable y = Maybe(on, one.one->forward, leaves);
      if (moved) {
        for (const Variable& leaf : leaves) {
          if (!leaf.requires_grad()) continue;
          const Tensor same = leaf.value().Clone();
          leaf.leaf()->MoveTo(Tensor::Zeros({}).Expand(leaf.shape()));
          leaf.leaf()->MoveTo(same);
        }
      }
      if (y.requires_grad()) y.Backward(SeedFor(y));
      return ResultAndGradients(y, leaves);
    };
    const Tensors wanted = run(false, false);
    EXPECT_TRUE(SameBits(run(true, false), wanted));
    EXPECT_TRUE(SameBits(run(true, true), wanted));
  }
}

// "A graph recorded before keeps nothing of the former memory."
TEST(EveryOperation, OfALeafThatWasMovedKeepsNothingOfItsFormerMemory) {
  for (const Case& one : AllCases()) {
    SCOPED_TRACE(one.name());
    for (const bool on : {false, true}) {
      std::vector<std::weak_ptr<std::vector<char>>> memory;
      std::vector<Variable> leaves;
      for (const Variable& sample : SampleAll(*one.one)) {
        if (!sample.requires_grad()) {
          leaves.push_back(sample);
          continue;
        }
        const Tensor x = sample.value().Contiguous();
        const char* begin = static_cast<const char*>(x.raw());
        auto owner =
            std::make_shared<std::vector<char>>(begin, begin + x.bytes());
        memory.push_back(owner);
        leaves.emplace_back(
            Tensor::FromBlob(owner->data(), x.shape(), x.dtype(), owner), true);
      }
      Edge edge;
      Gradient seed;
      {
        // The result may be a view of the leaf; its graph is what is kept.
        const Variable y = Maybe(on, one.one->forward, leaves);
        if (!y.requires_grad()) continue;
        edge = y.edge();
        seed = SeedFor(y);
      }
      for (const Variable& leaf : leaves) {
        if (leaf.requires_grad()) leaf.leaf()->MoveTo(leaf.value().Clone());
      }
      for (size_t i = 0; i < memory.size(); ++i) {
        EXPECT_TRUE(memory[i].expired()) << "input " << i << " " << on;
      }
    }
  }
}

}  // namespace
}  // namespace weft::outside
