#include "weft/launch/image_model.h"

#include "weft/autograd/ops/conv.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/autograd/ops/shape.h"

namespace weft::launch {
namespace {

constexpr int64_t kFilters1 = 16;
constexpr int64_t kFilters2 = 32;

Conv2dOptions SameSize() {
  Conv2dOptions options;
  options.padding = {1, 1};
  return options;
}

}  // namespace

ImageModel::ImageModel(int64_t height, int64_t width, int64_t classes,
                       Generator& generator)
    : conv1_(1, kFilters1, 3, generator, SameSize()),
      conv2_(kFilters1, kFilters2, 3, generator, SameSize()),
      output_((height / 4) * (width / 4) * kFilters2, classes, generator) {
  AddModule("conv1", conv1_);
  AddModule("conv2", conv2_);
  AddModule("output", output_);
}

Variable ImageModel::Forward(const Variable& images) {
  Variable x = MaxPool2d(Relu(conv1_.Forward(images)));
  x = MaxPool2d(Relu(conv2_.Forward(x)));
  return output_.Forward(FlattenFrom(x, 1));
}

}  // namespace weft::launch
