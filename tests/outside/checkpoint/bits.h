// Bits: what two runs of the same mathematics must have in common.
//
//   ExpectSameWithAndWithout([&](bool checkpointed) {
//     ... Maybe(checkpointed, f, {x}) ...
//     return Tensors{loss.value(), w.grad()};
//   });

#ifndef WEFT_TESTS_OUTSIDE_CHECKPOINT_BITS_H_
#define WEFT_TESTS_OUTSIDE_CHECKPOINT_BITS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/catch_to_status.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"

namespace weft::outside {

using In = absl::Span<const Variable>;
using OneFn = std::function<Variable(In)>;
using ManyFn = std::function<std::vector<Variable>(In)>;
using Tensors = std::vector<Tensor>;

inline std::string BitsOf(const Tensor& x) {
  if (!x.defined()) return "undefined";
  const Tensor flat = x.Contiguous();
  return flat.Describe() + std::string(static_cast<const char*>(flat.raw()),
                                       static_cast<size_t>(flat.bytes()));
}

inline std::string TextOf(const Tensor& x) {
  return x.defined() ? ToString(x) : "undefined";
}

inline ::testing::AssertionResult SameBits(const Tensor& a, const Tensor& b) {
  if (BitsOf(a) == BitsOf(b)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << TextOf(a) << "\n has other bits than\n"
         << TextOf(b);
}

inline ::testing::AssertionResult SameBits(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " and " << b.size();
  }
  for (size_t i = 0; i < a.size(); ++i) {
    ::testing::AssertionResult same = SameBits(a[i], b[i]);
    if (!same) return same << "\n at place " << i;
  }
  return ::testing::AssertionSuccess();
}

inline Variable Maybe(bool checkpointed, const OneFn& f,
                      const std::vector<Variable>& inputs) {
  return checkpointed ? Checkpoint(f, inputs) : f(inputs);
}
inline std::vector<Variable> MaybeMany(bool checkpointed, const ManyFn& f,
                                       const std::vector<Variable>& inputs) {
  return checkpointed ? Checkpoint(f, inputs) : f(inputs);
}

inline void ExpectSameWithAndWithout(
    const std::function<Tensors(bool checkpointed)>& body) {
  const Tensors without = body(false);
  const Tensors with = body(true);
  EXPECT_TRUE(SameBits(with, without));
}

template <typename Fn>
absl::Status StatusOf(Fn&& fn) {
  return CatchToStatus([&] { std::forward<Fn>(fn)(); });
}

inline constexpr absl::StatusCode kFailedPrecondition =
    absl::StatusCode::kFailedPrecondition;

// A part whose operations save what they are given and what they made.
inline Variable Twist(const Variable& x) { return Tanh(Exp(x) * Sin(x)); }
inline Variable TwistIn(In in) { return Twist(in[0]); }

inline BackwardOptions Retained() {
  BackwardOptions options;
  options.retain_graph = true;
  return options;
}

// Leaves and constants of reproducible numbers.
inline Tensor Numbers(const Shape& shape, uint64_t seed) {
  Generator random(seed);
  return Uniform(shape, -1, 1, random);
}
inline Variable LeafOf(const Shape& shape, uint64_t seed) {
  return Variable(Numbers(shape, seed), /*requires_grad=*/true);
}

// Numbers in the shape of `like`.
inline Variable Noise(Generator& random, const Variable& like) {
  return Variable(Uniform(like.shape(), 0, 1, random));
}

// The place, and the number that comes next.
inline Tensor NextOf(Generator& random) {
  return Tensor::FromVector<int64_t>({static_cast<int64_t>(random.position()),
                                      static_cast<int64_t>(random.NextU32())});
}

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_CHECKPOINT_BITS_H_
