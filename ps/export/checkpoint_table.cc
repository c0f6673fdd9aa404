#include "weft/ps/export/checkpoint_table.h"

#include <cstring>
#include <utility>

#include "weft/base/check.h"
#include "weft/base/status_macros.h"

namespace weft::ps {
namespace {

// The first of [begin, end) whose key is not below `key`.
template <typename KeyOf>
int64_t LowerBound(int64_t begin, int64_t end, uint64_t key, KeyOf key_of) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (key_of(middle) < key) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

enum class Answer { kHere, kGone, kOlder };

// Whether a file has the row: then `row` is its number.
Answer Find(const SavedTable::Link& link, uint64_t key, int64_t& row) {
  const TableFile& file = *link.file;
  const TableFile::Part& part = link.part;
  const int64_t end = part.row + part.rows;
  row = LowerBound(part.row, end, key, [&](int64_t i) { return file.key(i); });
  if (row < end && file.key(row) == key) return Answer::kHere;
  if (!part.is_delta) return Answer::kGone;
  const int64_t removed_end = part.removed + part.removed_rows;
  const int64_t removed =
      LowerBound(part.removed, removed_end, key,
                 [&](int64_t i) { return file.removed_key(i); });
  return removed < removed_end && file.removed_key(removed) == key
             ? Answer::kGone
             : Answer::kOlder;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CheckpointTable>> CheckpointTable::Create(
    std::shared_ptr<const SavedCheckpoint> from, const std::string& table) {
  WEFT_ASSIGN_OR_RETURN(const SavedTable* const found, from->Table(table));
  WEFT_ASSIGN_OR_RETURN(auto layout, TableLayout::Create(found->spec));
  return std::shared_ptr<const CheckpointTable>(
      new CheckpointTable(std::move(from), *found, std::move(layout)));
}

CheckpointTable::CheckpointTable(std::shared_ptr<const SavedCheckpoint> from,
                                 const SavedTable& table,
                                 std::unique_ptr<const TableLayout> layout)
    : from_(std::move(from)),
      table_(table),
      layout_(std::move(layout)),
      placement_(table.spec.name(), table.spec.partitions(), 1),
      places_(static_cast<size_t>(table.spec.partitions()), nullptr) {
  for (const SavedTable::Place& place : table.places) {
    places_[place.part.partition] = &place;
  }
  for (const SavedCheckpoint* of = from_.get(); of != nullptr;
       of = of->parent()) {
    for (const SavedCheckpoint::File& file : of->files()) {
      if (file.table != nullptr && file.table->spec().name() == name()) {
        files_.push_back(file.mapped.get());
      }
    }
  }
}

int64_t CheckpointTable::rows() const {
  return is_dense() ? table_.spec.elements() : table_.rows;
}

int64_t CheckpointTable::dim() const { return is_dense() ? 1 : layout_->dim(); }

absl::Status CheckpointTable::CheckUnchanged() const {
  for (const checkpoint::MappedFile* file : files_) {
    WEFT_RETURN_IF_ERROR(file->CheckUnchanged());
  }
  return absl::OkStatus();
}

bool CheckpointTable::Copy(uint64_t key, float* to) const {
  uint64_t row_key = key;
  int64_t first = 0;  // element of the row
  if (is_dense()) {
    if (key >= static_cast<uint64_t>(table_.spec.elements())) return false;
    row_key = key / static_cast<uint64_t>(layout_->dim());
    first = static_cast<int64_t>(key) -
            static_cast<int64_t>(row_key) * layout_->dim();
  }
  const int partition =
      is_dense() ? placement_.PartitionOfSlice(static_cast<int64_t>(row_key))
                 : placement_.PartitionOfKey(row_key);
  const SavedTable::Place* const place = places_[partition];
  if (place == nullptr) return false;
  const SavedTable::Link* link = place;
  for (size_t older = 0;; ++older) {
    int64_t row = 0;
    const Answer answer = Find(*link, row_key, row);
    if (answer == Answer::kGone) return false;
    if (answer == Answer::kHere) {
      // Rows of a part are of one length, but for the last.
      const int64_t element =
          link->part.element + (row - link->part.row) * layout_->dim() + first;
      const absl::string_view bytes = link->file->weights(element, dim());
      std::memcpy(to, bytes.data(), bytes.size());
      return true;
    }
    if (older == place->older.size()) return false;
    link = &place->older[older];
  }
}

absl::StatusOr<int64_t> CheckpointTable::LookUp(
    absl::Span<const uint64_t> keys, absl::Span<float> values,
    absl::Span<uint8_t> found) const {
  const auto n = static_cast<size_t>(dim());
  WEFT_CHECK(values.size() == keys.size() * n && found.size() == keys.size());
  // As ExportedTable::LookUp.
  WEFT_RETURN_IF_ERROR(CheckUnchanged());
  int64_t count = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    float* const to = values.data() + i * n;
    found[i] = Copy(keys[i], to) ? 1 : 0;
    count += found[i];
    if (found[i] != 0) continue;
    if (is_dense()) {
      *to = 0;
    } else {
      layout_->InitialWeights(keys[i], {to, n});
    }
  }
  WEFT_RETURN_IF_ERROR(CheckUnchanged());
  return count;
}

}  // namespace weft::ps
