#include "weft/ps/export/table_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/row_life.h"

namespace weft::ps {
namespace {

using checkpoint::LoadLittleEndian64;
using checkpoint::SafetensorsHeader;
using checkpoint::TensorEntry;

constexpr char kPartition[] = "partition";
constexpr char kDelta[] = "delta";
constexpr char kRemovedKeys[] = "removed";
constexpr char kRemovedRows[] = "removed_rows";

const TensorEntry* FindEntry(const SafetensorsHeader& header,
                             absl::string_view name) {
  const auto it = std::find_if(
      header.entries.begin(), header.entries.end(),
      [&](const TensorEntry& entry) { return entry.name == name; });
  return it == header.entries.end() ? nullptr : &*it;
}

std::string Describe(const TensorEntry* entry) {
  if (entry == nullptr) return "none";
  return absl::StrCat(Name(entry->dtype), ShapeText(entry->shape));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const TableFile>> TableFile::Create(
    absl::string_view file, const SafetensorsHeader& header,
    const std::string& where) {
  WEFT_ASSIGN_OR_RETURN(LoadedTable said,
                        ReadTableMetadata(header.metadata, where));
  std::unique_ptr<TableFile> table(new TableFile(where, std::move(said)));
  WEFT_RETURN_IF_ERROR(table->Read(file, header));
  return table;
}

absl::Status TableFile::Damaged(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(
      "checkpoint shard ", where_, ": table '", said_.spec.name(), "' ", what));
}

absl::string_view TableFile::BytesOf(const Column& column, const Part& part) {
  int64_t begin = part.row;
  int64_t items = part.rows;
  if (column.of == Of::kElement) {
    begin = part.element;
    items = part.elements;
  } else if (column.of == Of::kPartition) {
    begin = part.index;
    items = 1;
  } else if (column.of == Of::kLifeByte) {
    begin = part.life;
    items = part.life_bytes;
  } else if (column.of == Of::kRemoved) {
    begin = part.removed;
    items = part.removed_rows;
  }
  return column.bytes.substr(begin * column.item_bytes,
                             items * column.item_bytes);
}

bool TableFile::IsOfDelta(absl::string_view column) {
  return column == kDelta || column == kRemovedKeys || column == kRemovedRows;
}

TableFile::Of TableFile::UnitOf(absl::string_view name) const {
  if (!base().empty() && IsOfDelta(name)) {
    return name == kRemovedKeys ? Of::kRemoved : Of::kPartition;
  }
  if (layout_->limits().any()) {
    if (name == "life") return Of::kLifeByte;
    if (name == "life_bytes") return Of::kPartition;
  }
  if (!layout_->is_dense()) return Of::kRow;
  if (name == "weight") return Of::kElement;
  for (int s = 0; s < layout_->slots(); ++s) {
    if (!layout_->slot_is_per_row(s) &&
        name == absl::StrCat("slot.", layout_->slot_name(s))) {
      return Of::kElement;
    }
  }
  return Of::kRow;
}

int64_t TableFile::CountOf(Of of) const {
  switch (of) {
    case Of::kRow:
      return rows_;
    case Of::kElement:
      return elements_;
    case Of::kPartition:
      return partitions_;
    case Of::kLifeByte:
      return life_bytes_;
    case Of::kRemoved:
      return removed_;
  }
  return 0;
}

absl::Status TableFile::Read(absl::string_view file,
                             const SafetensorsHeader& header) {
  auto layout = TableLayout::Create(said_.spec);
  if (!layout.ok()) return Damaged(layout.status().message());
  layout_ = *std::move(layout);
  metadata_ = header.metadata;
  const size_t values = layout_->is_dense() ? 1 : 2;  // dimensions
  struct Wanted {
    std::string name;
    DType dtype;
    size_t dims;
  };
  std::vector<Wanted> wanted = {{"key", DType::kI64, 1},
                                {"step", DType::kI64, 1},
                                {"weight", DType::kF32, values},
                                {kPartition, DType::kI64, 2}};
  for (int s = 0; s < layout_->slots(); ++s) {
    wanted.push_back({absl::StrCat("slot.", layout_->slot_name(s)), DType::kF32,
                      layout_->slot_is_per_row(s) ? 1 : values});
  }
  if (layout_->limits().any()) {
    wanted.push_back({"touched", DType::kI64, 1});
    wanted.push_back({"life", DType::kU8, 1});
    wanted.push_back({"life_bytes", DType::kI64, 1});
  }
  if (!base().empty()) {
    wanted.push_back({kDelta, DType::kU8, 1});
    wanted.push_back({kRemovedKeys, DType::kI64, 1});
    wanted.push_back({kRemovedRows, DType::kI64, 1});
  }
  for (const auto& [name, dtype, dims] : wanted) {
    const TensorEntry* const entry = FindEntry(header, name);
    if (entry == nullptr || entry->dtype != dtype ||
        entry->shape.size() != dims ||
        (dims == 2 && name != kPartition &&
         entry->shape[1] != layout_->dim())) {
      return Damaged(absl::StrCat(
          "wanted a tensor '", name, "' of ", Name(dtype), " with ", dims,
          " dimensions", dims == 2 ? absl::StrCat(", of ", layout_->dim()) : "",
          ", found ", Describe(entry)));
    }
  }
  const TensorEntry& parts = *FindEntry(header, kPartition);
  if (parts.shape[1] != 2) {
    return Damaged(absl::StrCat("wanted a tensor 'partition' [p, 2], found ",
                                Describe(&parts)));
  }
  partitions_ = parts.shape[0];
  rows_ = FindEntry(header, "key")->shape[0];
  const TensorEntry& weight = *FindEntry(header, "weight");
  elements_ = (weight.end - weight.begin) / ItemSize(DType::kF32);
  if (layout_->limits().any())
    life_bytes_ = FindEntry(header, "life")->shape[0];
  if (!base().empty()) removed_ = FindEntry(header, kRemovedKeys)->shape[0];
  for (const TensorEntry& entry : header.entries) {
    WEFT_RETURN_IF_ERROR(AddColumn(file, header, entry));
  }
  WEFT_RETURN_IF_ERROR(ReadParts(
      file.substr(header.bytes + parts.begin, parts.end - parts.begin)));
  if (layout_->limits().any()) WEFT_RETURN_IF_ERROR(ReadLife());
  return base().empty() ? absl::OkStatus() : ReadRemoved();
}

absl::Status TableFile::AddColumn(absl::string_view file,
                                  const SafetensorsHeader& header,
                                  const TensorEntry& entry) {
  if (entry.name == kPartition) return absl::OkStatus();
  Column column;
  column.name = entry.name;
  column.dtype = entry.dtype;
  column.bytes =
      file.substr(header.bytes + entry.begin, entry.end - entry.begin);
  column.of = UnitOf(entry.name);
  const int64_t items = CountOf(column.of);
  if (entry.shape.empty() || entry.shape[0] != items) {
    return Damaged(absl::StrCat(
        "wanted a tensor '", absl::CHexEscape(entry.name), "' [", items,
        ", ..], as many as its rows, weights or partitions, found ",
        Describe(&entry)));
  }
  column.is_matrix = entry.shape.size() > 1;
  column.item_bytes = ItemSize(entry.dtype);
  for (size_t d = 1; d < entry.shape.size(); ++d) {
    column.item_bytes *= entry.shape[d];
  }
  if (entry.name == "key") keys_ = column.bytes;
  if (column.of == Of::kRemoved) removed_keys_ = column.bytes;
  if (entry.name == "step") steps_ = column.bytes;
  if (entry.name == "weight") weights_ = column.bytes;
  columns_.push_back(std::move(column));
  return absl::OkStatus();
}

const TableFile::Column* TableFile::FindColumn(absl::string_view name) const {
  for (const Column& column : columns_) {
    if (column.name == name) return &column;
  }
  return nullptr;
}

absl::Status TableFile::ReadLife() {
  const Column& sizes = *FindColumn("life_bytes");
  int64_t at = 0;
  for (Part& part : parts_) {
    part.life = at;
    part.life_bytes = static_cast<int64_t>(
        LoadLittleEndian64(sizes.bytes.data() + 8 * part.index));
    if (part.life_bytes < 0 || part.life_bytes > life_bytes_ - at) {
      return Damaged(absl::StrCat("partition ", part.partition, " has ",
                                  part.life_bytes, " bytes of life where ",
                                  life_bytes_ - at, " are left"));
    }
    at += part.life_bytes;
  }
  if (at == life_bytes_) return absl::OkStatus();
  return Damaged(absl::StrCat("has ", life_bytes_ - at,
                              " bytes of life more than its partitions"));
}

absl::Status TableFile::ReadRemoved() {
  const Column& deltas = *FindColumn(kDelta);
  const Column& sizes = *FindColumn(kRemovedRows);
  int64_t at = 0;
  for (Part& part : parts_) {
    const auto is_delta = static_cast<uint8_t>(deltas.bytes[part.index]);
    part.is_delta = is_delta == 1;
    part.removed = at;
    part.removed_rows = static_cast<int64_t>(
        LoadLittleEndian64(sizes.bytes.data() + 8 * part.index));
    if (is_delta > 1 || part.removed_rows < 0 ||
        part.removed_rows > removed_ - at ||
        (!part.is_delta && part.removed_rows > 0)) {
      return Damaged(absl::StrCat("partition ", part.partition, " has delta ",
                                  is_delta, " and ", part.removed_rows,
                                  " removed rows where ", removed_ - at,
                                  " are left"));
    }
    at += part.removed_rows;
  }
  if (at == removed_) return absl::OkStatus();
  return Damaged(absl::StrCat("has ", removed_ - at,
                              " removed rows more than its partitions"));
}

absl::StatusOr<int64_t> TableFile::ElementsOf(const Part& part) const {
  if (!layout_->is_dense()) return part.rows * layout_->dim();
  int64_t elements = 0;
  for (int64_t row = part.row; row < part.row + part.rows; ++row) {
    if (key(row) >= static_cast<uint64_t>(layout_->slices())) {
      return Damaged(absl::StrCat("there is no slice ", key(row), " of ",
                                  layout_->slices()));
    }
    elements += layout_->RowLength(key(row));
  }
  return elements;
}

absl::Status TableFile::ReadParts(absl::string_view partitions) {
  Part next;
  for (size_t at = 0; at < partitions.size(); at += 16) {
    const int64_t partition =
        static_cast<int64_t>(LoadLittleEndian64(partitions.data() + at));
    next.rows =
        static_cast<int64_t>(LoadLittleEndian64(partitions.data() + at + 8));
    if (partition < 0 || partition >= spec().partitions() || next.rows < 0 ||
        next.rows > rows_ - next.row) {
      return Damaged(absl::StrCat(
          "partition ", partition, " of ", spec().partitions(), " with ",
          next.rows, " rows cannot be: ", rows_ - next.row, " rows are left"));
    }
    next.partition = static_cast<int>(partition);
    WEFT_ASSIGN_OR_RETURN(next.elements, ElementsOf(next));
    if (next.elements > elements_ - next.element) {
      return Damaged("has fewer weights than its rows need");
    }
    parts_.push_back(next);
    ++next.index;
    next.row += next.rows;
    next.element += next.elements;
  }
  if (next.row == rows_ && next.element == elements_) return absl::OkStatus();
  return Damaged(absl::StrCat("has ", rows_, " rows and ", elements_,
                              " weights, its partitions ", next.row, " and ",
                              next.element));
}

absl::Status TableFile::CheckRows(const Part& part) const {
  const Placement placement(spec().name(), spec().partitions(), 1);
  for (int64_t row = part.row; row < part.row + part.rows; ++row) {
    const uint64_t at = key(row);
    const int belongs = layout_->is_dense() ? placement.PartitionOfSlice(at)
                                            : placement.PartitionOfKey(at);
    if (belongs != part.partition) {
      return Damaged(absl::StrCat("key ", at, " of row ", row,
                                  " is in partition ", part.partition,
                                  ", wanted ", belongs));
    }
    if (row > part.row && at <= key(row - 1)) {
      return Damaged(absl::StrCat("partition ", part.partition,
                                  ": keys do not ascend: ", at, " of row ", row,
                                  " follows ", key(row - 1)));
    }
    const uint64_t step = LoadLittleEndian64(steps_.data() + 8 * row);
    if (step >= uint64_t{1} << 32) {
      return Damaged(absl::StrCat("row ", row, " has step ",
                                  static_cast<int64_t>(step),
                                  ", wanted 0 to 2^32 - 1"));
    }
  }
  WEFT_RETURN_IF_ERROR(CheckRemoved(part));
  if (!layout_->limits().any()) return absl::OkStatus();
  return CheckLife(part);
}

absl::Status TableFile::CheckRemoved(const Part& part) const {
  const Placement placement(spec().name(), spec().partitions(), 1);
  int64_t row = part.row;
  for (int64_t i = part.removed; i < part.removed + part.removed_rows; ++i) {
    const uint64_t gone = removed_key(i);
    while (row < part.row + part.rows && key(row) < gone) ++row;
    const bool is_there = row < part.row + part.rows && key(row) == gone;
    if (layout_->is_dense() || is_there ||
        placement.PartitionOfKey(gone) != part.partition ||
        (i > part.removed && gone <= removed_key(i - 1))) {
      return Damaged(absl::StrCat("partition ", part.partition, ": row ", gone,
                                  " is not one that can have gone"));
    }
  }
  return absl::OkStatus();
}

absl::Status TableFile::CheckLife(const Part& part) const {
  RowLife life(layout_->limits());
  const absl::Status loaded = life.Load(BytesOf(*FindColumn("life"), part));
  if (!loaded.ok()) {
    return Damaged(absl::StrCat("partition ", part.partition,
                                ": life: ", loaded.message()));
  }
  const absl::string_view touched = FindColumn("touched")->bytes;
  for (int64_t row = part.row; row < part.row + part.rows; ++row) {
    const auto at =
        static_cast<int64_t>(LoadLittleEndian64(touched.data() + 8 * row));
    if (at >= 0 && (part.life_bytes == 0 || at <= life.clock())) continue;
    return Damaged(absl::StrCat("row ", row, " was touched at version ", at,
                                ", wanted 0 to ", life.clock()));
  }
  return absl::OkStatus();
}

}  // namespace weft::ps
