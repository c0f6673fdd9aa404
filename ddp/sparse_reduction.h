// ReduceRows: the reduction of gradients that are rows of tables.

#ifndef WEFT_DDP_SPARSE_REDUCTION_H_
#define WEFT_DDP_SPARSE_REDUCTION_H_

#include <vector>

#include "absl/status/statusor.h"
#include "weft/collectives/process_group.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/tensor.h"

namespace weft::ddp {

// Every rank's rows of each table, which are on the CPU, times its own
// `factor`, added up: coalesced, the same bits on all ranks. Called by all
// ranks with as many tables of the same shapes and dtypes; the number of rows
// may be another on each rank, 0 included. Each rank sends its rows to every
// other: for tables of which a step uses few rows. Errors as ProcessGroup;
// kInvalidArgument for a row outside of the table.
absl::StatusOr<std::vector<SparseRows>> ReduceRows(
    collectives::ProcessGroup& group, const std::vector<SparseRows>& tables,
    double factor, const collectives::CallOptions& call);

// `rows`, where they lie on `device`, or a copy there.
SparseRows RowsOn(Device device, SparseRows rows);
// All rows of `dense` [rows, dim].
SparseRows RowsOf(const Tensor& dense);
// None of a table [rows, dim].
SparseRows NoRows(const Shape& table, DType dtype);

}  // namespace weft::ddp

#endif  // WEFT_DDP_SPARSE_REDUCTION_H_
