// PullRows: the rows of several look-ups, in one message to each server.

#ifndef WEFT_PS_EMBEDDING_PULL_ROWS_H_
#define WEFT_PS_EMBEDDING_PULL_ROWS_H_

#include <vector>

#include "absl/types/span.h"
#include "weft/base/future.h"
#include "weft/ps/embedding/look_up.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

// f32 [n, dim] of each, each in memory of its own. A table may be there several
// times. REQUIRES: CheckLookUp is OK of each.
//
// Thread-safety: as a Pull of each table.
Future<std::vector<Tensor>> PullRows(absl::Span<const LookUp> look_ups);

}  // namespace weft::ps

#endif  // WEFT_PS_EMBEDDING_PULL_ROWS_H_
