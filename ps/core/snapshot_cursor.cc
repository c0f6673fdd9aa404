#include "weft/ps/core/snapshot_cursor.h"

#include <utility>

#include "weft/base/check.h"

namespace weft::ps {

SnapshotCursor::SnapshotCursor(int64_t rows) : rows_(rows), left_(rows) {
  WEFT_CHECK(rows >= 0);
}

SnapshotCursor::SnapshotCursor(RowSet rows)
    : rows_(0), left_(rows.size()), wanted_(std::move(rows)) {}

bool SnapshotCursor::Take(int64_t number) {
  if (wanted_.has_value()) {
    if (!wanted_->Remove(number)) return false;
  } else if (number < next_ || number >= rows_ || !taken_.Add(number)) {
    return false;
  }
  --left_;
  return true;
}

int64_t SnapshotCursor::Next() {
  if (left_ == 0) return kNone;
  --left_;
  if (wanted_.has_value()) {
    const int64_t number = wanted_->FirstFrom(next_);
    wanted_->Remove(number);
    next_ = number + 1;
    return number;
  }
  while (taken_.Contains(next_)) ++next_;
  return next_++;
}

}  // namespace weft::ps
