#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/on_stream.h"
#include "weft/tensor/cuda/scan.h"

namespace weft::internal::cuda {

template <typename Op>
const char* LaunchOp(const Call& call, void* stream) {
  OnStream executor(stream);
  return Op::Run(call, executor);
}

template const char* LaunchOp<Cumsum>(const Call&, void*);
template const char* LaunchOp<CumsumBackward>(const Call&, void*);
template const char* LaunchOp<TopK>(const Call&, void*);

}  // namespace weft::internal::cuda
