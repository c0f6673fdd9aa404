#include "weft/nn/init.h"

#include <cmath>

#include "weft/base/error.h"

namespace weft::nn {
namespace {

// Uniform with this standard deviation.
Tensor UniformOfDeviation(const Shape& shape, double deviation,
                          Generator& random, DType dtype) {
  const double bound = std::sqrt(3.0) * deviation;
  return Uniform(shape, -bound, bound, random, dtype);
}

double KaimingDeviation(const Shape& shape, double gain) {
  return gain / std::sqrt(static_cast<double>(FansOf(shape).in));
}

double XavierDeviation(const Shape& shape, double gain) {
  const Fans fans = FansOf(shape);
  return gain * std::sqrt(2.0 / static_cast<double>(fans.in + fans.out));
}

}  // namespace

Fans FansOf(const Shape& shape) {
  if (shape.size() < 2) {
    ThrowInvalidArgument("FansOf: a weight of shape ", ShapeText(shape),
                         "; wanted [out, in, ...]");
  }
  int64_t field = 1;
  for (size_t i = 2; i < shape.size(); ++i) field *= shape[i];
  return {shape[1] * field, shape[0] * field};
}

Tensor KaimingUniform(const Shape& shape, Generator& random, double gain,
                      DType dtype) {
  return UniformOfDeviation(shape, KaimingDeviation(shape, gain), random,
                            dtype);
}

Tensor KaimingNormal(const Shape& shape, Generator& random, double gain,
                     DType dtype) {
  return Normal(shape, 0, KaimingDeviation(shape, gain), random, dtype);
}

Tensor XavierUniform(const Shape& shape, Generator& random, double gain,
                     DType dtype) {
  return UniformOfDeviation(shape, XavierDeviation(shape, gain), random, dtype);
}

Tensor XavierNormal(const Shape& shape, Generator& random, double gain,
                    DType dtype) {
  return Normal(shape, 0, XavierDeviation(shape, gain), random, dtype);
}

Tensor FanInUniform(const Shape& shape, int64_t fan_in, Generator& random,
                    DType dtype) {
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  return Uniform(shape, -bound, bound, random, dtype);
}

}  // namespace weft::nn
