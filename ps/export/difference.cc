#include "weft/ps/export/difference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/export/row_walk.h"

namespace weft::ps {
namespace {

using Place = SavedTable::Place;

template <typename T>
void Compare(absl::string_view a, absl::string_view b, Change& change) {
  for (size_t at = 0; at < a.size(); at += sizeof(T)) {
    if (std::memcmp(a.data() + at, b.data() + at, sizeof(T)) == 0) continue;
    T from, to;
    std::memcpy(&from, a.data() + at, sizeof(T));
    std::memcpy(&to, b.data() + at, sizeof(T));
    const double difference =
        std::abs(static_cast<double>(to) - static_cast<double>(from));
    ++change.elements;
    change.largest =
        std::max(change.largest, std::isnan(difference)
                                     ? std::numeric_limits<double>::infinity()
                                     : difference);
  }
}

void CompareRow(const RowWalk& a, const RowWalk& b,
                TableDifference& difference) {
  Change row;
  Compare<float>(a.weights(), b.weights(), row);
  if (row.elements == 0) {
    for (const TableFile::Column& column : a.columns()) {
      const bool is_of_row = column.of == TableFile::Of::kRow ||
                             column.of == TableFile::Of::kElement;
      if (!is_of_row || a.Of(column) == b.Of(column)) continue;
      ++difference.state_changed;
      return;
    }
    return;
  }
  ++difference.changed;
  difference.weights.elements += row.elements;
  if (row.largest > difference.weights.largest) {
    difference.weights.largest = row.largest;
    difference.largest_key = a.key();
  }
}

void ComparePartition(const Place* of_a, const Place* of_b,
                      TableDifference& difference) {
  RowWalk a(of_a);
  RowWalk b(of_b);
  while (!a.AtEnd() || !b.AtEnd()) {
    if (b.AtEnd() || (!a.AtEnd() && a.key() < b.key())) {
      ++difference.removed;
      a.Next();
    } else if (a.AtEnd() || b.key() < a.key()) {
      ++difference.added;
      b.Next();
    } else {
      CompareRow(a, b, difference);
      a.Next();
      b.Next();
    }
  }
}

bool AreComparable(const v1::TableSpec& a, const v1::TableSpec& b) {
  return a.kind() == b.kind() && a.partitions() == b.partitions() &&
         a.dim() == b.dim() && a.elements() == b.elements();
}

void CompareTables(const SavedTable& a, const SavedTable& b,
                   TableDifference& difference) {
  difference.spec = DifferenceOf(a.spec, b.spec);
  difference.is_compared = AreComparable(a.spec, b.spec);
  if (!difference.is_compared) return;
  auto in_a = a.places.begin();
  auto in_b = b.places.begin();
  for (int p = 0; p < a.spec.partitions(); ++p) {
    const auto take = [p](auto& at, const auto& places) -> const Place* {
      const bool is_here = at != places.end() && at->part.partition == p;
      return is_here ? &*at++ : nullptr;
    };
    const Place* const of_a = take(in_a, a.places);
    const Place* const of_b = take(in_b, b.places);
    ComparePartition(of_a, of_b, difference);
  }
}

TableDifference OfTables(const std::string& name, const SavedTable* a,
                         const SavedTable* b) {
  TableDifference difference;
  difference.name = name;
  difference.is_in_a = a != nullptr;
  difference.is_in_b = b != nullptr;
  difference.is_dense =
      (a != nullptr ? a : b)->spec.kind() == v1::TableSpec::DENSE;
  if (a != nullptr) {
    difference.version_a = a->version;
    difference.rows_a = a->rows;
  }
  if (b != nullptr) {
    difference.version_b = b->version;
    difference.rows_b = b->rows;
  }
  if (a != nullptr && b != nullptr) CompareTables(*a, *b, difference);
  return difference;
}

struct OwnTensor {
  DType dtype = DType::kF32;
  std::string type;  // empty: it is not there
  absl::string_view bytes;
};
using OwnTensors = std::map<std::string, OwnTensor>;

absl::StatusOr<OwnTensors> OwnTensorsOf(const SavedCheckpoint& checkpoint) {
  OwnTensors tensors;
  for (const SavedCheckpoint::File& file : checkpoint.files()) {
    if (file.table != nullptr) continue;
    for (const checkpoint::TensorEntry& entry : file.header.entries) {
      OwnTensor tensor;
      tensor.dtype = entry.dtype;
      tensor.type = absl::StrCat(Name(entry.dtype), ShapeText(entry.shape));
      tensor.bytes = file.BytesOf(entry);
      if (!tensors.emplace(entry.name, tensor).second) {
        return absl::DataLossError(
            absl::StrCat(file.path, ": tensor \"", absl::CHexEscape(entry.name),
                         "\" is in an earlier file too"));
      }
    }
  }
  return tensors;
}

TensorDifference OfTensors(const std::string& name, const OwnTensor& a,
                           const OwnTensor& b) {
  TensorDifference difference;
  difference.name = name;
  difference.type_a = a.type;
  difference.type_b = b.type;
  difference.is_in_a = !a.type.empty();
  difference.is_in_b = !b.type.empty();
  if (a.type != b.type) return difference;
  if (a.dtype == DType::kF32) {
    Compare<float>(a.bytes, b.bytes, difference.elements);
  } else if (a.dtype == DType::kF64) {
    Compare<double>(a.bytes, b.bytes, difference.elements);
  } else {
    const size_t size = ItemSize(a.dtype);
    for (size_t at = 0; at < a.bytes.size(); at += size) {
      difference.elements.elements +=
          a.bytes.substr(at, size) != b.bytes.substr(at, size) ? 1 : 0;
    }
  }
  return difference;
}

}  // namespace

bool Difference::IsNone() const {
  for (const TableDifference& table : tables) {
    if (!table.is_in_a || !table.is_in_b || !table.is_compared ||
        !table.spec.empty() || table.version_a != table.version_b ||
        table.added + table.removed + table.changed + table.state_changed > 0) {
      return false;
    }
  }
  for (const TensorDifference& tensor : tensors) {
    if (tensor.type_a != tensor.type_b || tensor.elements.elements > 0) {
      return false;
    }
  }
  return true;
}

absl::StatusOr<Difference> DifferenceBetween(const SavedCheckpoint& a,
                                             const SavedCheckpoint& b) {
  Difference difference;
  std::map<std::string, std::pair<const SavedTable*, const SavedTable*>> tables;
  for (const auto& [name, table] : a.tables()) tables[name].first = &table;
  for (const auto& [name, table] : b.tables()) tables[name].second = &table;
  for (const auto& [name, pair] : tables) {
    difference.tables.push_back(OfTables(name, pair.first, pair.second));
  }
  WEFT_ASSIGN_OR_RETURN(const OwnTensors of_a, OwnTensorsOf(a));
  WEFT_ASSIGN_OR_RETURN(const OwnTensors of_b, OwnTensorsOf(b));
  std::map<std::string, std::pair<OwnTensor, OwnTensor>> tensors;
  for (const auto& [name, tensor] : of_a) tensors[name].first = tensor;
  for (const auto& [name, tensor] : of_b) tensors[name].second = tensor;
  for (const auto& [name, pair] : tensors) {
    difference.tensors.push_back(OfTensors(name, pair.first, pair.second));
  }
  return difference;
}

}  // namespace weft::ps
