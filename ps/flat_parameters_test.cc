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

TEST(FlatParameters, GradientsAreMadeInTheVectorThatIsTaken) {
  const Pair pair;
  FlatParameters flat(pair);
  const auto loss = [&] { return Sum(Mul(pair.second, pair.second)); };
  loss().Backward();
  Tensor taken = flat.TakeGradient();
  EXPECT_TRUE(taken.is_sole_owner());
  EXPECT_THAT(taken.ToVector<float>(), ElementsAre(0, 0, 0, 0, 2, 2, 2));
  EXPECT_FALSE(pair.second.has_grad());
  EXPECT_THAT(flat.TakeGradient().ToVector<float>(), Each(0));

  // Passes add up, in other memory than what was taken.
  loss().Backward();
  loss().Backward();
  EXPECT_THAT(flat.Gradient().ToVector<float>(),
              ElementsAre(0, 0, 0, 0, 4, 4, 4));
  EXPECT_THAT(flat.TakeGradient().ToVector<float>(),
              ElementsAre(0, 0, 0, 0, 4, 4, 4));
  EXPECT_THAT(taken.ToVector<float>(), ElementsAre(0, 0, 0, 0, 2, 2, 2));

  // One that was set by somebody is taken, too.
  pair.first.SetGradient(Tensor::Ones({2, 2}));
  EXPECT_THAT(flat.TakeGradient().ToVector<float>(),
              ElementsAre(1, 1, 1, 1, 0, 0, 0));
}

TEST(FlatParameters, GradientHeldElsewhereIsNotOwnedAlone) {
  const Pair pair;
  FlatParameters flat(pair);
  Sum(pair.second).Backward();
  const Tensor held = pair.second.grad();
  EXPECT_FALSE(flat.TakeGradient().is_sole_owner());
  EXPECT_THAT(held.ToVector<float>(), Each(1));
}

TEST(FlatParameters, AdoptedValuesAreTheMemoryOfTheParameters) {
  const Pair pair;
  FlatParameters flat(pair);
  const Tensor values = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6, 7});
  const Tensor before = pair.first.value();
  EXPECT_THAT(flat.AdoptValues(values), IsOk());
  EXPECT_EQ(pair.first.value().raw(), values.raw());
  EXPECT_THAT(pair.second.value().ToVector<float>(), ElementsAre(5, 6, 7));
  EXPECT_THAT(before.ToVector<float>(), Each(0));
  EXPECT_THAT(flat.AdoptValues(Tensor::Ones({6})),
              StatusIs(absl::StatusCode::kInvalidArgument, "f32[7]"));
  Sum(Mul(pair.first, pair.first)).Backward();
  EXPECT_THAT(flat.TakeGradient().ToVector<float>(),
              ElementsAre(2, 4, 6, 8, 0, 0, 0));
}

TEST(FlatParameters, ModuleOutlivesIt) {
  const Pair pair;
  { FlatParameters flat(pair); }
  Sum(pair.second).Backward();
  EXPECT_THAT(pair.second.grad().ToVector<float>(), Each(1));
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
