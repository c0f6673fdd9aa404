#include "weft/tensor/cuda/cross_entropy.h"
#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/on_stream.h"
#include "weft/tensor/cuda/rows.h"

namespace weft::internal::cuda {

const char* LaunchSum(const Call& call, void* stream) {
  OnStream executor(stream);
  return FoldDims<SumFold>(call, executor);
}

const char* LaunchMax(const Call& call, void* stream) {
  OnStream executor(stream);
  return FoldDims<MaxFold>(call, executor);
}

const char* LaunchMin(const Call& call, void* stream) {
  OnStream executor(stream);
  return FoldDims<MinFold>(call, executor);
}

const char* LaunchArgMax(const Call& call, void* stream) {
  OnStream executor(stream);
  return ArgBest<IsGreater>(call, executor);
}

const char* LaunchArgMin(const Call& call, void* stream) {
  OnStream executor(stream);
  return ArgBest<IsLess>(call, executor);
}

const char* LaunchSoftmax(const Call& call, void* stream) {
  OnStream executor(stream);
  return Softmax<false>(call, executor);
}

const char* LaunchLogSoftmax(const Call& call, void* stream) {
  OnStream executor(stream);
  return Softmax<true>(call, executor);
}

const char* LaunchSoftmaxBackward(const Call& call, void* stream) {
  OnStream executor(stream);
  return SoftmaxBackward<false>(call, executor);
}

const char* LaunchLogSoftmaxBackward(const Call& call, void* stream) {
  OnStream executor(stream);
  return SoftmaxBackward<true>(call, executor);
}

const char* LaunchCrossEntropy(const Call& call, void* stream) {
  OnStream executor(stream);
  return CrossEntropy(call, executor);
}

const char* LaunchCrossEntropyBackward(const Call& call, void* stream) {
  OnStream executor(stream);
  return CrossEntropyBackward(call, executor);
}

const char* LaunchSquaredNorm(const Call& call, void* stream) {
  OnStream executor(stream);
  return SquaredNorm(call, executor);
}

}  // namespace weft::internal::cuda
