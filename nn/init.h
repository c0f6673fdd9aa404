// Initialisers: the values of a model's parameters before training.
//
// Sources: Glorot and Bengio 2010 (Xavier), He et al. 2015 (Kaiming). The fans
// of a weight [out, in, ...] are in or out times the elements that follow.

#ifndef WEFT_NN_INIT_H_
#define WEFT_NN_INIT_H_

#include <cstdint>

#include "weft/tensor/dtype.h"
#include "weft/tensor/random.h"
#include "weft/tensor/shape.h"
#include "weft/tensor/tensor.h"

namespace weft::nn {

struct Fans {
  int64_t in = 0;
  int64_t out = 0;
};

// Throws Error kInvalidArgument unless `shape` has two dimensions or more.
Fans FansOf(const Shape& shape);

// sqrt(2): keeps the variance through ReLU.
inline constexpr double kReluGain = 1.4142135623730951;

// Variance gain^2 / fan in.
Tensor KaimingUniform(const Shape& shape, Generator& random,
                      double gain = kReluGain, DType dtype = DType::kF32);
Tensor KaimingNormal(const Shape& shape, Generator& random,
                     double gain = kReluGain, DType dtype = DType::kF32);

// Variance gain^2 * 2 / (fan in + fan out).
Tensor XavierUniform(const Shape& shape, Generator& random, double gain = 1,
                     DType dtype = DType::kF32);
Tensor XavierNormal(const Shape& shape, Generator& random, double gain = 1,
                    DType dtype = DType::kF32);

// Uniform in [-1, 1) / sqrt(fan_in): what PyTorch gives the weights and biases
// of its linear and convolution layers.
Tensor FanInUniform(const Shape& shape, int64_t fan_in, Generator& random,
                    DType dtype = DType::kF32);

}  // namespace weft::nn

#endif  // WEFT_NN_INIT_H_
