#include "weft/tensor/cuda/elementwise.h"
#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/on_stream.h"

namespace weft::internal::cuda {

template <typename Fn>
const char* LaunchBinary(const Call& call, void* stream) {
  OnStream executor(stream);
  return Binary<Fn>(call, executor);
}

template const char* LaunchBinary<OfTwo<AddOp>>(const Call&, void*);
template const char* LaunchBinary<OfTwo<SubOp>>(const Call&, void*);
template const char* LaunchBinary<OfTwo<MulOp>>(const Call&, void*);
template const char* LaunchBinary<OfTwo<DivOp>>(const Call&, void*);
template const char* LaunchBinary<OfTwo<MaximumOp>>(const Call&, void*);
template const char* LaunchBinary<OfTwo<MinimumOp>>(const Call&, void*);
template const char* LaunchBinary<OfAnyTwo<EqualOp>>(const Call&, void*);
template const char* LaunchBinary<OfAnyTwo<NotEqualOp>>(const Call&, void*);
template const char* LaunchBinary<OfTwo<LessOp>>(const Call&, void*);
template const char* LaunchBinary<OfTwo<LessEqualOp>>(const Call&, void*);
template const char* LaunchBinary<OfTwo<GreaterOp>>(const Call&, void*);
template const char* LaunchBinary<OfTwo<GreaterEqualOp>>(const Call&, void*);
template const char* LaunchBinary<LogicalAnd>(const Call&, void*);
template const char* LaunchBinary<LogicalOr>(const Call&, void*);
template const char* LaunchBinary<Axpy>(const Call&, void*);
template const char* LaunchBinary<ReluBackward>(const Call&, void*);
template const char* LaunchBinary<SigmoidBackward>(const Call&, void*);
template const char* LaunchBinary<TanhBackward>(const Call&, void*);
template const char* LaunchBinary<SiluBackward>(const Call&, void*);
template const char* LaunchBinary<GeluBackward>(const Call&, void*);
template const char* LaunchBinary<GeluTanhBackward>(const Call&, void*);

}  // namespace weft::internal::cuda
