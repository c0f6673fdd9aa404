#include "weft/ps/shard/table_snapshot.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/base/check.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"

namespace weft::ps {

TableSnapshot::TableSnapshot(const TableLayout& layout, Moment moment,
                             std::vector<int> partitions, Access access,
                             std::shared_ptr<ByteBudget> copies, SavedAs as)
    : layout_(layout),
      moment_(std::move(moment)),
      partitions_(std::move(partitions)),
      access_(std::move(access)),
      copies_(std::move(copies)),
      as_(std::move(as)),
      frozen_(partitions_.size()) {}

absl::Status TableSnapshot::FreezeOne(size_t i) {
  if (frozen_[i] != nullptr) return absl::OkStatus();
  return access_.freeze(partitions_[i], [&](Partition& partition) {
    frozen_[i] = partition.Freeze(copies_, as_);
  });
}

absl::Status TableSnapshot::FreezeAll() {
  for (size_t i = 0; i < partitions_.size(); ++i) {
    WEFT_RETURN_IF_ERROR(FreezeOne(i));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::pair<int, PartitionImage>> TableSnapshot::Next() {
  WEFT_CHECK(!is_done());
  const int number = partitions_[next_];
  WEFT_RETURN_IF_ERROR(FreezeOne(next_));
  // Pushes may copy the last of its rows while this waits for the lock: so its
  // state is looked at under the lock only.
  const std::shared_ptr<FrozenRows> frozen = frozen_[next_];
  std::vector<FrozenRows::Piece> pieces;
  for (bool is_done = false; !is_done;) {
    if (!pieces.empty() && pause_ > absl::ZeroDuration()) {
      absl::SleepFor(pause_);
    }
    pieces.push_back(frozen->MakePiece(kPieceBytes));
    frozen->TouchPages(pieces.back());  // before the lock is taken
    FrozenRows::Piece& piece = pieces.back();
    WEFT_RETURN_IF_ERROR(access_.copy(number, [&](Partition& partition) {
      is_done = partition.CopyFrozen(*frozen, piece);
    }));
  }
  const absl::Status copied = frozen->status();
  if (!copied.ok()) {
    return Reworded(
        copied, absl::StrCat("table '", spec().name(), "' partition ", number,
                             ": ", copied.message()));
  }
  std::pair<int, PartitionImage> image(number,
                                       ImageOf(layout_, *frozen, pieces));
  frozen_[next_] = nullptr;
  ++next_;
  return image;
}

}  // namespace weft::ps
