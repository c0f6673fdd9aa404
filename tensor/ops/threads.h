// SetIntraOpThreads: how many threads one operation may use.

#ifndef WEFT_TENSOR_OPS_THREADS_H_
#define WEFT_TENSOR_OPS_THREADS_H_

namespace weft {

// For operations that the calling thread runs from now on. 1 at first: several
// ranks often share the cores of a host, and two operations that each take all
// of them only wait for each other. REQUIRES: threads >= 1.
void SetIntraOpThreads(int threads);

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_THREADS_H_
