#include "weft/ps/core/partition_image.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"

namespace weft::ps {
namespace {

void SortByKey(std::vector<RowStore::Row>& rows) {
  std::sort(rows.begin(), rows.end(), [](RowStore::Row a, RowStore::Row b) {
    return RowStore::key(a) < RowStore::key(b);
  });
}

}  // namespace

void AppendRow(const TableLayout& layout, RowStore::Row row,
               const float* weights, PartitionImage& image) {
  const uint64_t key = RowStore::key(row);
  const int64_t length = layout.RowLength(key);
  image.keys.push_back(key);
  image.steps.push_back(RowStore::step(row));
  image.weights.insert(image.weights.end(), weights, weights + length);
  for (int s = 0; s < layout.slots(); ++s) {
    const float* slot = weights + layout.SlotOffset(s);
    image.slots[s].insert(image.slots[s].end(), slot,
                          slot + layout.SlotLength(s, length));
  }
}

namespace {

absl::Status CheckRows(const TableLayout& layout, const Placement& placement,
                       int partition, const PartitionImage& image) {
  const std::string where =
      absl::StrCat("table '", layout.spec().name(), "' partition ", partition);
  size_t elements = 0;
  for (size_t i = 0; i < image.keys.size(); ++i) {
    const uint64_t key = image.keys[i];
    const bool exists =
        !layout.is_dense() || key < static_cast<uint64_t>(layout.slices());
    const int home = layout.is_dense()
                         ? placement.PartitionOfSlice(static_cast<int64_t>(key))
                         : placement.PartitionOfKey(key);
    if (!exists || home != partition || (i > 0 && key <= image.keys[i - 1])) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": row ", key, " is not one of its rows"));
    }
    elements += static_cast<size_t>(layout.RowLength(key));
  }
  bool fits = image.steps.size() == image.keys.size() &&
              image.weights.size() == elements &&
              image.slots.size() == static_cast<size_t>(layout.slots());
  for (int s = 0; fits && s < layout.slots(); ++s) {
    fits = image.slots[s].size() ==
           (layout.slot_is_per_row(s) ? image.keys.size() : elements);
  }
  for (int64_t step : image.steps) {
    fits = fits && step >= 0 && step <= int64_t{RowStore::kLastStep};
  }
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": wanted ", elements, " weights and ", layout.slots(),
        " slots as long, or one value for each of ", image.keys.size(),
        " rows, found ", image.weights.size(), " weights and ",
        image.slots.size(), " slots"));
  }
  // What is there of a table that was bounded once is not used any more.
  RowLife life(layout.limits());
  absl::Status checked = life.Load(image.life);
  const bool has_touched = !image.touched.empty();
  if (checked.ok() && has_touched &&
      image.touched.size() != image.keys.size()) {
    checked = absl::InvalidArgumentError(
        absl::StrCat("wanted a version that touched each of ",
                     image.keys.size(), " rows, found ", image.touched.size()));
  }
  for (int64_t touched : image.touched) {
    if (!checked.ok()) break;
    if (touched >= 0 && (image.life.empty() || touched <= life.clock())) {
      continue;
    }
    checked = absl::InvalidArgumentError(
        absl::StrCat("a row was touched at version ", touched, ", wanted 0 to ",
                     life.clock()));
  }
  return Reworded(checked, absl::StrCat(where, ": ", checked.message()));
}

}  // namespace

absl::Status CheckImage(const TableLayout& layout, const Placement& placement,
                        int partition, const PartitionImage& image) {
  if (image.is_delta || !image.removed.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", layout.spec().name(), "' partition ", partition,
        ": wanted all of its rows, found what has changed since a checkpoint"));
  }
  return CheckRows(layout, placement, partition, image);
}

absl::Status CheckDelta(const TableLayout& layout, const Placement& placement,
                        int partition, const PartitionImage& image) {
  WEFT_RETURN_IF_ERROR(CheckRows(layout, placement, partition, image));
  const std::vector<uint64_t>& removed = image.removed;
  if (!image.is_delta && removed.empty()) return absl::OkStatus();
  auto key = image.keys.begin();
  for (size_t i = 0; i < removed.size(); ++i) {
    while (key != image.keys.end() && *key < removed[i]) ++key;
    const bool is_there = key != image.keys.end() && *key == removed[i];
    if (!image.is_delta || layout.is_dense() || is_there ||
        placement.PartitionOfKey(removed[i]) != partition ||
        (i > 0 && removed[i] <= removed[i - 1])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "table '", layout.spec().name(), "' partition ", partition, ": row ",
          removed[i], " is not one that can have gone"));
    }
  }
  return absl::OkStatus();
}

PartitionImage ImageOf(const TableLayout& layout, const FrozenRows& frozen,
                       const std::vector<FrozenRows::Piece>& pieces) {
  std::vector<RowStore::Row> rows;
  for (const auto* of : {&pieces, &frozen.copies()}) {
    for (const FrozenRows::Piece& piece : *of) {
      for (int64_t i = 0; i < piece.rows; ++i) {
        rows.push_back(frozen.RowOf(piece, i));
      }
    }
  }
  SortByKey(rows);
  PartitionImage image;
  image.slots.resize(layout.slots());
  for (RowStore::Row row : rows) {
    AppendRow(layout, row, frozen.floats(row), image);
    if (layout.limits().any()) image.touched.push_back(frozen.touched(row));
  }
  image.life = frozen.life();
  image.is_delta = frozen.is_delta();
  std::vector<uint64_t> removed = frozen.removed();
  std::sort(removed.begin(), removed.end());
  removed.erase(std::unique(removed.begin(), removed.end()), removed.end());
  std::set_difference(removed.begin(), removed.end(), image.keys.begin(),
                      image.keys.end(), std::back_inserter(image.removed));
  return image;
}

namespace {

// Takes rows out of an image, in order.
class Taker {
 public:
  Taker(const TableLayout& layout, const PartitionImage& image)
      : layout_(layout), image_(image) {}

  bool AtEnd() const { return row_ == image_.keys.size(); }
  uint64_t key() const { return image_.keys[row_]; }
  void Skip() {
    element_ += layout_.RowLength(key());
    ++row_;
  }
  void TakeTo(PartitionImage& to) {
    const int64_t length = layout_.RowLength(key());
    const auto append = [](auto& list, const auto& from, int64_t at,
                           int64_t n) {
      list.insert(list.end(), from.begin() + at, from.begin() + at + n);
    };
    const auto row = static_cast<int64_t>(row_);
    to.keys.push_back(key());
    to.steps.push_back(image_.steps[row_]);
    append(to.weights, image_.weights, element_, length);
    for (int s = 0; s < layout_.slots(); ++s) {
      append(to.slots[s], image_.slots[s],
             layout_.slot_is_per_row(s) ? row : element_,
             layout_.SlotLength(s, length));
    }
    if (!image_.touched.empty()) to.touched.push_back(image_.touched[row_]);
    Skip();
  }

 private:
  const TableLayout& layout_;
  const PartitionImage& image_;
  size_t row_ = 0;
  int64_t element_ = 0;
};

}  // namespace

PartitionImage WithDelta(const TableLayout& layout, const PartitionImage& base,
                         const PartitionImage& delta) {
  PartitionImage whole;
  whole.slots.resize(layout.slots());
  whole.life = delta.life;
  Taker before(layout, base);
  Taker changed(layout, delta);
  auto removed = delta.removed.begin();
  while (!before.AtEnd() || !changed.AtEnd()) {
    if (before.AtEnd() || (!changed.AtEnd() && changed.key() < before.key())) {
      changed.TakeTo(whole);
      continue;
    }
    const uint64_t key = before.key();
    while (removed != delta.removed.end() && *removed < key) ++removed;
    const bool is_gone = removed != delta.removed.end() && *removed == key;
    if (is_gone || (!changed.AtEnd() && changed.key() == key)) {
      before.Skip();
    } else {
      before.TakeTo(whole);
    }
  }
  return whole;
}

}  // namespace weft::ps
