// EndStep: what the end of a pass is to a table whose staleness is bounded.

#ifndef WEFT_PS_EMBEDDING_END_STEP_H_
#define WEFT_PS_EMBEDDING_END_STEP_H_

#include "weft/base/future.h"
#include "weft/ps/client.h"

namespace weft::ps {

// With TableSpec.staleness: this worker's clock is one more once what was
// pushed before has ended (SparseTable::Tick). Of another table, and of a
// client that has no clock, nothing.
//
// Thread-safety: as an operation on the table.
Future<void> EndStep(SparseTable& table);

}  // namespace weft::ps

#endif  // WEFT_PS_EMBEDDING_END_STEP_H_
