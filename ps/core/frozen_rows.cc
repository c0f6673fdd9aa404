#include "weft/ps/core/frozen_rows.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::ps {
namespace {

// Bytes of the pieces that hold the copies that pushes make. Each piece is
// twice the one before, so that a partition of which few rows change takes
// little.
constexpr int64_t kFirstPiece = 4096;
constexpr int64_t kLargestPiece = 65536;

constexpr int64_t kFloat = sizeof(float);

std::vector<uint64_t> RemovedIn(std::optional<ChangedRows::Since>& since) {
  if (!since.has_value()) return {};
  return std::move(since->removed);
}

SnapshotCursor CursorOf(const RowStore& rows,
                        std::optional<ChangedRows::Since> since) {
  if (!since.has_value()) return SnapshotCursor(rows.size());
  return SnapshotCursor(std::move(since->rows));
}

}  // namespace

FrozenRows::FrozenRows(const RowStore& rows, std::string life,
                       std::shared_ptr<ByteBudget> copies,
                       std::optional<ChangedRows::Since> since)
    : stride_(rows.stride()),
      header_(rows.header()),
      base_(rows.base()),
      life_(std::move(life)),
      is_delta_(since.has_value()),
      removed_(RemovedIn(since)),
      budget_(std::move(copies)),
      cursor_(CursorOf(rows, std::move(since))) {}

FrozenRows::Piece FrozenRows::MakePiece(int64_t bytes) const {
  Piece piece;
  piece.room = std::max<int64_t>(1, bytes / (stride_ * kFloat));
  piece.blocks.reset(new float[piece.room * stride_]);
  return piece;
}

void FrozenRows::TouchPages(Piece& piece) const {
  std::fill_n(piece.blocks.get(), piece.room * stride_, 0.0f);
}

void FrozenRows::Append(RowStore::Row row, Piece& to) const {
  std::copy_n(row.block, stride_, to.blocks.get() + to.rows * stride_);
  ++to.rows;
}

void FrozenRows::Copy(RowStore::Row row) {
  if (copies_.empty() || copies_.back().rows == copies_.back().room) {
    const int64_t last =
        copies_.empty() ? 0 : copies_.back().room * stride_ * kFloat;
    Piece piece = MakePiece(std::clamp(2 * last, kFirstPiece, kLargestPiece));
    if (budget_ != nullptr) {
      std::optional<ByteBudget::Hold> hold =
          budget_->Take(piece.room * stride_ * kFloat, budget_->most());
      if (!hold.has_value()) {
        is_lost_ = true;
        copies_.clear();
        return;
      }
      piece.hold = *std::move(hold);
    }
    copies_.push_back(std::move(piece));
  }
  Append(row, copies_.back());
}

void FrozenRows::BeforeChange(const RowStore& rows, RowStore::Row row) {
  if (!is_done() && cursor_.Take(rows.NumberOf(row))) Copy(row);
}

void FrozenRows::BeforeAllChange(const RowStore& rows) {
  while (!is_done()) Copy(rows.At(cursor_.Next()));
}

void FrozenRows::CopyTo(const RowStore& rows, Piece& to) {
  while (to.rows < to.room && !is_done()) Append(rows.At(cursor_.Next()), to);
}

absl::Status FrozenRows::status() const {
  if (!is_lost_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "pushes have changed more of what is being saved than may be kept: the "
      "copies of changed rows, of all tables, would have more than ",
      budget_->most(),
      " bytes; the tables are not affected. Raise --snapshot-memory of the "
      "server, save to a faster disk, or use more servers"));
}

}  // namespace weft::ps
