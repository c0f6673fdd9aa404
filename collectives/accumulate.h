// Accumulation: reduces runs of elements, whatever their dtype.
//
// An accumulator is what partial results are kept in, and what travels between
// ranks before the last of them: f32 for f16 and bf16, else the dtype itself.
//
// Thread-safety: thread-safe, on different memory.

#ifndef WEFT_COLLECTIVES_ACCUMULATE_H_
#define WEFT_COLLECTIVES_ACCUMULATE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "weft/collectives/reduction.h"
#include "weft/tensor/dtype.h"

namespace weft::collectives {

// The bytes of one accumulator for elements of `dtype`.
int64_t AccumulatorBytes(DType dtype);

// Whether LoadElements of this reduction copies elements as they are.
bool ElementsAreAccumulators(DType dtype, const Reduction& reduction);

// accumulators[i] = factor * elements[i]. May be in place where accumulators
// are of the elements' dtype.
void LoadElements(DType dtype, const Reduction& reduction, const void* elements,
                  void* accumulators, int64_t count);

// accumulators[i] = accumulators[i] op factor * elements[i].
void AddElements(DType dtype, const Reduction& reduction, const void* elements,
                 void* accumulators, int64_t count);

// accumulators[i] = accumulators[i] op others[i]. Both for elements of `dtype`.
void AddAccumulators(DType dtype, ReduceOp op, const void* others,
                     void* accumulators, int64_t count);

// elements[i] = accumulators[i], for kAverage divided by `ranks`. May be in
// place where accumulators are elements.
void StoreElements(DType dtype, ReduceOp op, int ranks,
                   const void* accumulators, void* elements, int64_t count);

// One rank's elements, and what they are multiplied by.
struct Contribution {
  const std::byte* elements;
  double factor;
};

// The reduction of `contributions`, in their order, written to each of
// `outputs`. An output may be a contribution, at the same address; otherwise
// nothing overlaps. Reads each input once and writes each output once, in
// pieces that stay in the first cache.
void ReduceContributions(DType dtype, ReduceOp op,
                         absl::Span<const Contribution> contributions,
                         absl::Span<std::byte* const> outputs, int64_t count);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ACCUMULATE_H_
