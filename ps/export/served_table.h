// ServedTable: one content of a table that is only read: an export
// (exported_table.h), or a checkpoint (checkpoint_table.h).
//
// Thread-safety: thread-safe; immutable.

#ifndef WEFT_PS_EXPORT_SERVED_TABLE_H_
#define WEFT_PS_EXPORT_SERVED_TABLE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/proto/ps.pb.h"

namespace weft::ps {

class ServedTable {
 public:
  virtual ~ServedTable() = default;

  virtual const v1::TableSpec& spec() const = 0;
  const std::string& name() const { return spec().name(); }
  bool is_dense() const { return spec().kind() == v1::TableSpec::DENSE; }
  // The version of the table when it was saved: rounds (SYNC) or pushes
  // (ASYNC).
  virtual int64_t version() const = 0;
  virtual const std::string& checkpoint() const = 0;
  virtual int64_t rows() const = 0;  // DENSE: elements
  virtual int64_t dim() const = 0;   // DENSE: 1

  // Writes the rows of `keys` to `values` [keys, dim], and to `found` [keys]
  // whether it has them: one that is not there has the values that the
  // initializer gives it, as on a server; beyond the end of a dense table 0.
  // Keys may come in any order and twice. Returns how many were found.
  // REQUIRES: the sizes fit. kDataLoss: a file was written to in place;
  // `values` hold nothing then.
  virtual absl::StatusOr<int64_t> LookUp(absl::Span<const uint64_t> keys,
                                         absl::Span<float> values,
                                         absl::Span<uint8_t> found) const = 0;
};

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_SERVED_TABLE_H_
