#include "weft/ps/flat_parameters.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/base/error.h"
#include "weft/nn/module.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class Pair : public nn::Module {
 public:
  explicit Pair(DType dtype = DType::kF32)
      : first(AddParameter("first", Tensor::Zeros({2, 2}, dtype))),
        second(AddParameter("second", Tensor::Ones({3}, dtype))) {}

  Variable first;
  Variable second;
};

TEST(FlatParameters, ValuesAreInTheOrderOfTheNames) {
  const Pair pair;
  const FlatParameters flat(pair);
  EXPECT_EQ(flat.elements(), 7);
  EXPECT_THAT(flat.Values().ToVector<float>(),
              ElementsAre(0, 0, 0, 0, 1, 1, 1));
}

TEST(FlatParameters, ValuesThatAreSetReachTheModule) {
  const Pair pair;
  const FlatParameters flat(pair);
  EXPECT_THAT(flat.SetValues(Tensor::FromVector<float>({1, 2, 3, 4, 5, 6, 7})),
              IsOk());
  EXPECT_THAT(pair.first.value().ToVector<float>(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(pair.second.value().ToVector<float>(), ElementsAre(5, 6, 7));
}

TEST(FlatParameters, ValuesOfAnotherShapeOrTypeChangeNothing) {
  const Pair pair;
  const FlatParameters flat(pair);
  for (const Tensor& wrong : {Tensor(), Tensor::Ones({6}), Tensor::Ones({7, 1}),
                              Tensor::Ones({7}, DType::kF64)}) {
    EXPECT_THAT(flat.SetValues(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument, "f32[7]"));
  }
  EXPECT_THAT(flat.Values().ToVector<float>(),
              ElementsAre(0, 0, 0, 0, 1, 1, 1));
}

TEST(FlatParameters, GradientThatIsAbsentIsZero) {
  const Pair pair;
  const FlatParameters flat(pair);
  EXPECT_THAT(flat.Gradient().ToVector<float>(), Each(0));
  Sum(Mul(pair.second, pair.second)).Backward();
  EXPECT_THAT(flat.Gradient().ToVector<float>(),
              ElementsAre(0, 0, 0, 0, 2, 2, 2));
  flat.ClearGradient();
  EXPECT_FALSE(pair.second.has_grad());
}

TEST(FlatParameters, ParameterOfAnotherTypeIsNamed) {
  try {
    const FlatParameters flat{Pair(DType::kF64)};
    FAIL() << "wanted an Error";
  } catch (const Error& error) {
    EXPECT_THAT(error.status(),
                StatusIs(absl::StatusCode::kInvalidArgument, "'first'"));
  }
}

}  // namespace
}  // namespace weft::ps
