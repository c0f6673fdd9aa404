#include "weft/launch/image_model.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "weft/nn/module.h"
#include "weft/tensor/random.h"

namespace weft::launch {
namespace {

int64_t ParametersOf(const nn::Module& module) {
  int64_t elements = 0;
  for (const nn::NamedParameter& parameter : module.NamedParameters()) {
    elements += parameter.variable.numel();
  }
  return elements;
}

TEST(ImageModel, ModelForFashionMnistHas20490Parameters) {
  Generator generator(1);
  ImageModel model(28, 28, 10, generator);
  EXPECT_EQ(ParametersOf(model), 20490);
  const Variable logits = model.Forward(Variable(Tensor::Ones({3, 1, 28, 28})));
  EXPECT_EQ(logits.shape(), Shape({3, 10}));
}

TEST(ImageModel, SmallestAndUnevenImagesHaveLogits) {
  Generator generator(1);
  for (const auto& [height, width] : {std::pair(4, 4), std::pair(5, 9)}) {
    ImageModel model(height, width, 2, generator);
    EXPECT_EQ(
        model.Forward(Variable(Tensor::Ones({1, 1, height, width}))).shape(),
        Shape({1, 2}));
  }
}

TEST(ImageModel, EqualSeedsGiveEqualWeights) {
  Generator one(7), two(7);
  ImageModel a(28, 28, 10, one), b(28, 28, 10, two);
  const auto of_a = a.NamedParameters(), of_b = b.NamedParameters();
  for (size_t i = 0; i < of_a.size(); ++i) {
    EXPECT_EQ(of_a[i].variable.value().ToVector<float>(),
              of_b[i].variable.value().ToVector<float>())
        << of_a[i].name;
  }
}

}  // namespace
}  // namespace weft::launch
