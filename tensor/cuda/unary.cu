#include "weft/tensor/cuda/elementwise.h"
#include "weft/tensor/cuda/launchers.h"
#include "weft/tensor/cuda/on_stream.h"

namespace weft::internal::cuda {

template <typename Fn>
const char* LaunchUnary(const Call& call, void* stream) {
  OnStream executor(stream);
  return Unary<Fn>(call, executor);
}

template const char* LaunchUnary<Neg>(const Call&, void*);
template const char* LaunchUnary<Abs>(const Call&, void*);
template const char* LaunchUnary<Sign>(const Call&, void*);
template const char* LaunchUnary<Square>(const Call&, void*);
template const char* LaunchUnary<Relu>(const Call&, void*);
template const char* LaunchUnary<Clamp>(const Call&, void*);
template const char* LaunchUnary<WithNumber<AddOp>>(const Call&, void*);
template const char* LaunchUnary<WithNumber<SubOp>>(const Call&, void*);
template const char* LaunchUnary<WithNumber<MulOp>>(const Call&, void*);
template const char* LaunchUnary<WithNumber<DivOp>>(const Call&, void*);
template const char* LaunchUnary<OfNumberAnd<SubOp>>(const Call&, void*);
template const char* LaunchUnary<OfNumberAnd<DivOp>>(const Call&, void*);
template const char* LaunchUnary<WithNumber<EqualOp>>(const Call&, void*);
template const char* LaunchUnary<WithNumber<LessOp>>(const Call&, void*);
template const char* LaunchUnary<WithNumber<GreaterOp>>(const Call&, void*);
template const char* LaunchUnary<WithNumber<GreaterEqualOp>>(const Call&,
                                                             void*);
template const char* LaunchUnary<LogicalNot>(const Call&, void*);
template const char* LaunchUnary<Exponential>(const Call&, void*);
template const char* LaunchUnary<Log>(const Call&, void*);
template const char* LaunchUnary<Log1p>(const Call&, void*);
template const char* LaunchUnary<Sqrt>(const Call&, void*);
template const char* LaunchUnary<Logistic>(const Call&, void*);
template const char* LaunchUnary<HyperbolicTangent>(const Call&, void*);
template const char* LaunchUnary<Softplus>(const Call&, void*);
template const char* LaunchUnary<Sin>(const Call&, void*);
template const char* LaunchUnary<Cos>(const Call&, void*);
template const char* LaunchUnary<Pow>(const Call&, void*);
template const char* LaunchUnary<Silu>(const Call&, void*);
template const char* LaunchUnary<Gelu>(const Call&, void*);
template const char* LaunchUnary<GeluTanh>(const Call&, void*);

}  // namespace weft::internal::cuda
