#include "weft/ddp/sparse_reduction.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/longest_wait.h"
#include "weft/tensor/ops/elementwise.h"

namespace weft::ddp {
namespace {

// A rank has no more rows in a step, so that the sum over all ranks does not
// overflow.
constexpr int64_t kMostRows = int64_t{1} << 40;

// `whole` cut into parts of these lengths.
std::vector<Tensor> Cut(const Tensor& whole,
                        const std::vector<int64_t>& lengths) {
  std::vector<Tensor> parts;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    parts.push_back(whole.Slice(0, begin, begin + length));
    begin += length;
  }
  return parts;
}

// rows[table][rank]
absl::StatusOr<std::vector<std::vector<int64_t>>> CountRows(
    collectives::ProcessGroup& group, const std::vector<SparseRows>& tables,
    const collectives::CallOptions& call) {
  const auto size = static_cast<int64_t>(tables.size());
  const Tensor own = Tensor::Zeros({size}, DType::kI64);
  for (int64_t t = 0; t < size; ++t) {
    own.data<int64_t>()[t] = tables[t].indices.numel();
  }
  const Tensor all = Tensor::Zeros({group.size() * size}, DType::kI64);
  WEFT_RETURN_IF_ERROR(group.AllGather(own, all, call));
  std::vector<std::vector<int64_t>> rows(tables.size());
  for (int64_t t = 0; t < size; ++t) {
    for (int rank = 0; rank < group.size(); ++rank) {
      const int64_t count = all.data<int64_t>()[rank * size + t];
      if (count < 0 || count > kMostRows) {
        return absl::InternalError(absl::StrCat(
            "rank ", rank, " says that it sends ", count, " rows"));
      }
      rows[t].push_back(count);
    }
  }
  return rows;
}

}  // namespace

absl::StatusOr<std::vector<SparseRows>> ReduceRows(
    collectives::ProcessGroup& group, const std::vector<SparseRows>& tables,
    double factor, const collectives::CallOptions& call) {
  WEFT_ASSIGN_OR_RETURN(const auto rows, CountRows(group, tables, call));
  std::vector<SparseRows> gathered;
  std::vector<Future<void>> gathers;
  for (size_t t = 0; t < tables.size(); ++t) {
    int64_t total = 0;
    for (const int64_t n : rows[t]) total += n;
    SparseRows all;
    all.rows = tables[t].rows;
    // The number of rows is what the other ranks say: there may be no memory
    // for them.
    WEFT_RETURN_IF_ERROR(CatchToStatus([&] {
      all.indices = Tensor::Empty({total}, DType::kI64);
      all.values = Tensor::Empty({total, tables[t].values.size(1)},
                                 tables[t].values.dtype());
    }));
    gathers.push_back(group.AllGatherListAsync(
        tables[t].indices, Cut(all.indices, rows[t]), call));
    const Tensor values =
        factor == 1 ? tables[t].values : Mul(tables[t].values, factor);
    gathers.push_back(
        group.AllGatherListAsync(values, Cut(all.values, rows[t]), call));
    gathered.push_back(std::move(all));
  }
  WEFT_RETURN_IF_ERROR(
      WaitAll(std::move(gathers), LongestWait(group, call.timeout)));
  WEFT_RETURN_IF_ERROR(CatchToStatus([&] {
    for (SparseRows& all : gathered) all = Coalesce(all);
  }));
  return gathered;
}

SparseRows RowsOn(Device device, SparseRows rows) {
  rows.indices = rows.indices.To(device);
  rows.values = rows.values.To(device);
  return rows;
}

SparseRows RowsOf(const Tensor& dense) {
  SparseRows rows;
  rows.rows = dense.size(0);
  rows.indices = Tensor::Empty({rows.rows}, DType::kI64);
  for (int64_t i = 0; i < rows.rows; ++i) {
    rows.indices.data<int64_t>()[i] = i;
  }
  rows.values = dense.Contiguous();
  return rows;
}

SparseRows NoRows(const Shape& table, DType dtype) {
  SparseRows rows;
  rows.rows = table[0];
  rows.indices = Tensor::Empty({0}, DType::kI64);
  rows.values = Tensor::Empty({0, table[1]}, dtype);
  return rows;
}

}  // namespace weft::ddp
