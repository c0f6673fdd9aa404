#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/on_stream.h"
#include "weft/tensor/cuda/random.h"

namespace weft::internal::cuda {

template <typename Op>
const char* LaunchOp(const Call& call, void* stream) {
  OnStream executor(stream);
  return Op::Run(call, executor);
}

template const char* LaunchOp<Bernoulli>(const Call&, void*);
template const char* LaunchOp<Normal>(const Call&, void*);
template const char* LaunchOp<Uniform>(const Call&, void*);

}  // namespace weft::internal::cuda
