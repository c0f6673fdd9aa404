#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/on_stream.h"
#include "weft/tensor/cuda/pool.h"

namespace weft::internal::cuda {

template <typename Op>
const char* LaunchOp(const Call& call, void* stream) {
  OnStream executor(stream);
  return Op::Run(call, executor);
}

template const char* LaunchOp<AvgPool2d>(const Call&, void*);
template const char* LaunchOp<AvgPool2dBackward>(const Call&, void*);
template const char* LaunchOp<MaxPool2d>(const Call&, void*);
template const char* LaunchOp<MaxPool2dBackward>(const Call&, void*);

}  // namespace weft::internal::cuda
