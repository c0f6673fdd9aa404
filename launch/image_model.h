// ImageModel: the small convolutional network that the trainer program learns.

#ifndef WEFT_LAUNCH_IMAGE_MODEL_H_
#define WEFT_LAUNCH_IMAGE_MODEL_H_

#include <cstdint>

#include "weft/autograd/variable.h"
#include "weft/nn/layers.h"
#include "weft/nn/module.h"
#include "weft/tensor/random.h"

namespace weft::launch {

// Two 3x3 convolutions of 16 and 32 filters, each with ReLU and 2x2
// max-pooling, then a linear layer. For 28x28 images and 10 classes: 20,490
// parameters.
class ImageModel : public nn::Module {
 public:
  // REQUIRES: height and width at least 4.
  ImageModel(int64_t height, int64_t width, int64_t classes,
             Generator& generator);

  // f32 [n, 1, height, width] -> logits [n, classes].
  Variable Forward(const Variable& images);

 private:
  nn::Conv2d conv1_;
  nn::Conv2d conv2_;
  nn::Linear output_;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_IMAGE_MODEL_H_
