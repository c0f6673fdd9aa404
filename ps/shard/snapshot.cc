#include "weft/ps/shard/snapshot.h"

#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/ps/core/partition.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/table_layout.h"

namespace weft::ps {
namespace {

using checkpoint::Metadata;
using checkpoint::NamedTensors;
using checkpoint::Safetensors;

// Of a table: counting on from it cannot overflow.
constexpr int64_t kMostVersion = int64_t{1} << 60;

constexpr char kFormat[] = "weft.ps.table/1";
constexpr char kDeltaFormat[] = "weft.ps.delta/1";

template <typename T, typename U>
Tensor TensorOf(const std::vector<U>& values, const Shape& shape, DType dtype) {
  static_assert(sizeof(T) == sizeof(U));
  Tensor tensor = Tensor::Empty(shape, dtype);
  if (!values.empty()) {
    std::memcpy(tensor.raw(), values.data(), values.size() * sizeof(U));
  }
  return tensor;
}

// Everything in an image but its partitions, which are joined.
struct Columns {
  std::vector<uint64_t> keys;
  std::vector<int64_t> steps;
  std::vector<float> weights;
  std::vector<std::vector<float>> slots;
  std::vector<int64_t> partitions;  // [p, 2]
  std::vector<int64_t> touched;
  std::vector<uint8_t> life;
  std::vector<int64_t> life_bytes;  // [p]
  bool has_delta = false;
  std::vector<uint8_t> delta;  // [p]
  std::vector<uint64_t> removed;
  std::vector<int64_t> removed_rows;  // [p]
};

template <typename T>
void Append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

Columns Join(const TableShard::Image& image, int slots) {
  Columns all;
  all.slots.resize(slots);
  for (const auto& [partition, rows] : image.partitions) {
    Append(all.keys, rows.keys);
    Append(all.steps, rows.steps);
    Append(all.weights, rows.weights);
    for (int s = 0; s < slots; ++s) Append(all.slots[s], rows.slots[s]);
    Append(all.partitions, {partition, static_cast<int64_t>(rows.keys.size())});
    Append(all.touched, rows.touched);
    all.life.insert(all.life.end(), rows.life.begin(), rows.life.end());
    all.life_bytes.push_back(static_cast<int64_t>(rows.life.size()));
    all.has_delta |= rows.is_delta;
    all.delta.push_back(rows.is_delta ? 1 : 0);
    Append(all.removed, rows.removed);
    all.removed_rows.push_back(static_cast<int64_t>(rows.removed.size()));
  }
  return all;
}

absl::Status Damaged(const std::string& file, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("checkpoint shard ", file, ": ", what));
}

// Finds `name` with this dtype and, where it is not -1, this many dimensions.
absl::StatusOr<Tensor> Find(const Safetensors& content, const std::string& file,
                            const std::string& name, DType dtype, int dims) {
  const auto it = content.tensors.find(name);
  if (it != content.tensors.end() && it->second.dtype() == dtype &&
      (dims < 0 || it->second.dim() == dims)) {
    return it->second.Contiguous();
  }
  return Damaged(
      file, absl::StrCat(
                "wanted a tensor '", name, "' of ", Name(dtype), ", found ",
                it == content.tensors.end() ? "none" : it->second.Describe()));
}

absl::StatusOr<std::string> FindText(const Metadata& metadata,
                                     const std::string& file,
                                     const std::string& key) {
  const auto it = metadata.find(key);
  if (it != metadata.end()) return it->second;
  return Damaged(file, absl::StrCat("no metadata '", key, "'"));
}

// Adds to `image`, of a table with RowLife, what that wants.
absl::Status CutLife(const Safetensors& content, const std::string& file,
                     TableShard::Image& image) {
  WEFT_ASSIGN_OR_RETURN(const Tensor touched,
                        Find(content, file, "touched", DType::kI64, 1));
  WEFT_ASSIGN_OR_RETURN(const Tensor life,
                        Find(content, file, "life", DType::kU8, 1));
  WEFT_ASSIGN_OR_RETURN(const Tensor bytes,
                        Find(content, file, "life_bytes", DType::kI64, 1));
  const auto partitions = static_cast<int64_t>(image.partitions.size());
  int64_t rows = 0;
  for (const auto& [p, part] : image.partitions) {
    rows += static_cast<int64_t>(part.keys.size());
  }
  if (touched.numel() != rows || bytes.numel() != partitions) {
    return Damaged(
        file, absl::StrCat("wanted touched i64[", rows, "] and life_bytes i64[",
                           partitions, "], found ", touched.Describe(), " and ",
                           bytes.Describe()));
  }
  const int64_t* row = touched.data<int64_t>();
  const char* at = reinterpret_cast<const char*>(life.data<uint8_t>());
  int64_t left = life.numel();
  for (int64_t i = 0; i < partitions; ++i) {
    PartitionImage& part = image.partitions[i].second;
    const int64_t n = bytes.data<int64_t>()[i];
    if (n < 0 || n > left) {
      return Damaged(file, absl::StrCat("life_bytes has ", n, " where ", left,
                                        " are left of life"));
    }
    part.touched.assign(row, row + part.keys.size());
    part.life.assign(at, at + n);
    row += part.keys.size();
    at += n;
    left -= n;
  }
  if (left == 0) return absl::OkStatus();
  return Damaged(file, absl::StrCat("life has ", left,
                                    " bytes more than life_bytes says"));
}

// Adds to `image`, of a shard with deltas, which they are and what went.
absl::Status CutDeltas(const Safetensors& content, const std::string& file,
                       TableShard::Image& image) {
  WEFT_ASSIGN_OR_RETURN(const Tensor deltas,
                        Find(content, file, "delta", DType::kU8, 1));
  WEFT_ASSIGN_OR_RETURN(const Tensor removed,
                        Find(content, file, "removed", DType::kI64, 1));
  WEFT_ASSIGN_OR_RETURN(const Tensor counts,
                        Find(content, file, "removed_rows", DType::kI64, 1));
  const auto partitions = static_cast<int64_t>(image.partitions.size());
  if (deltas.numel() != partitions || counts.numel() != partitions) {
    return Damaged(
        file, absl::StrCat("wanted delta u8[", partitions,
                           "] and removed_rows i64[", partitions, "], found ",
                           deltas.Describe(), " and ", counts.Describe()));
  }
  const int64_t* at = removed.data<int64_t>();
  int64_t left = removed.numel();
  for (int64_t i = 0; i < partitions; ++i) {
    PartitionImage& part = image.partitions[i].second;
    const uint8_t is_delta = deltas.data<uint8_t>()[i];
    const int64_t n = counts.data<int64_t>()[i];
    if (is_delta > 1 || n < 0 || n > left || (is_delta == 0 && n > 0)) {
      return Damaged(file,
                     absl::StrCat("partition ", image.partitions[i].first,
                                  " has delta ", is_delta, " and ", n,
                                  " removed rows where ", left, " are left"));
    }
    part.is_delta = is_delta == 1;
    part.removed.assign(at, at + n);
    at += n;
    left -= n;
  }
  if (left == 0) return absl::OkStatus();
  return Damaged(file, absl::StrCat("removed has ", left,
                                    " rows more than removed_rows says"));
}

// Cuts the columns into partitions, whose row counts the file gives.
absl::StatusOr<TableShard::Image> Cut(const Safetensors& content,
                                      const std::string& file,
                                      const TableLayout& layout) {
  WEFT_ASSIGN_OR_RETURN(const Tensor keys,
                        Find(content, file, "key", DType::kI64, 1));
  WEFT_ASSIGN_OR_RETURN(const Tensor steps,
                        Find(content, file, "step", DType::kI64, 1));
  WEFT_ASSIGN_OR_RETURN(const Tensor weights,
                        Find(content, file, "weight", DType::kF32, -1));
  WEFT_ASSIGN_OR_RETURN(const Tensor partitions,
                        Find(content, file, "partition", DType::kI64, 2));
  std::vector<Tensor> slots;
  for (int s = 0; s < layout.slots(); ++s) {
    WEFT_ASSIGN_OR_RETURN(
        slots.emplace_back(),
        Find(content, file, absl::StrCat("slot.", layout.slot_name(s)),
             DType::kF32, -1));
    const bool fits = layout.slot_is_per_row(s)
                          ? slots.back().shape() == Shape{keys.numel()}
                          : slots.back().numel() == weights.numel();
    if (!fits) return Damaged(file, "slots and weights differ in length");
  }
  if (steps.numel() != keys.numel() || partitions.size(1) != 2) {
    return Damaged(file, "its tensors do not fit each other");
  }

  TableShard::Image image;
  int64_t row = 0;
  int64_t element = 0;
  for (int64_t p = 0; p < partitions.size(0); ++p) {
    const int64_t partition = partitions.data<int64_t>()[2 * p];
    const int64_t rows = partitions.data<int64_t>()[2 * p + 1];
    if (rows < 0 || rows > keys.numel() - row || partition < 0 ||
        partition >= layout.spec().partitions()) {
      return Damaged(file, absl::StrCat("partition ", partition, " with ", rows,
                                        " rows cannot be"));
    }
    PartitionImage part;
    const uint64_t* key =
        reinterpret_cast<const uint64_t*>(keys.data<int64_t>()) + row;
    part.keys.assign(key, key + rows);
    const int64_t* step = steps.data<int64_t>() + row;
    part.steps.assign(step, step + rows);
    int64_t elements = 0;
    for (uint64_t k : part.keys) {
      if (layout.is_dense() && k >= static_cast<uint64_t>(layout.slices())) {
        return Damaged(file, absl::StrCat("there is no slice ", k));
      }
      elements += layout.RowLength(k);
    }
    if (elements > weights.numel() - element) {
      return Damaged(file, "it has fewer weights than its rows need");
    }
    const auto copy = [](const Tensor& from, int64_t first, int64_t count) {
      const float* begin = from.data<float>() + first;
      return std::vector<float>(begin, begin + count);
    };
    part.weights = copy(weights, element, elements);
    for (int s = 0; s < layout.slots(); ++s) {
      part.slots.push_back(layout.slot_is_per_row(s)
                               ? copy(slots[s], row, rows)
                               : copy(slots[s], element, elements));
    }
    row += rows;
    element += elements;
    image.partitions.emplace_back(static_cast<int>(partition), std::move(part));
  }
  if (row != keys.numel() || element != weights.numel()) {
    return Damaged(file, "it has more rows than its partitions");
  }
  if (layout.limits().any()) {
    WEFT_RETURN_IF_ERROR(CutLife(content, file, image));
  }
  if (content.metadata.at("format") == kDeltaFormat) {
    WEFT_RETURN_IF_ERROR(CutDeltas(content, file, image));
  }
  return image;
}

absl::Status Merge(const std::string& file, LoadedTable part,
                   std::map<std::string, LoadedTable>& tables) {
  const std::string name = part.spec.name();
  const auto it = tables.find(name);
  if (it == tables.end()) {
    tables.emplace(name, std::move(part));
    return absl::OkStatus();
  }
  LoadedTable& whole = it->second;
  if (!google::protobuf::util::MessageDifferencer::Equals(whole.spec,
                                                          part.spec)) {
    return Damaged(file, absl::StrCat("table '", name,
                                      "' has another spec than in another "
                                      "file of the checkpoint"));
  }
  // With a quorum servers close a round each for itself. All go on at the last
  // one: nobody would give parts of those before. An ASYNC table goes on at the
  // most pushes that a server had applied.
  const bool is_sync =
      part.spec.mode() == v1::TableSpec::SYNC && !part.spec.has_quorum();
  if (!is_sync) {
    whole.image.version = std::max(whole.image.version, part.image.version);
  }
  if (is_sync && whole.image.version != part.image.version) {
    return Damaged(file, absl::StrCat("table '", name, "' is at version ",
                                      part.image.version, ", elsewhere at ",
                                      whole.image.version));
  }
  // A server of which nothing is a delta names none.
  if (whole.image.base.empty()) whole.image.base = part.image.base;
  if (!part.image.base.empty() && whole.image.base != part.image.base) {
    return Damaged(
        file,
        absl::StrCat("table '", name, "' has what has changed since ",
                     absl::CHexEscape(part.image.base), ", elsewhere since ",
                     absl::CHexEscape(whole.image.base)));
  }
  // The rates of asynchronous servers may differ by a change under way.
  const absl::Status merged = whole.image.rates.Merge(part.image.rates);
  if (is_sync && !merged.ok()) return Damaged(file, merged.message());
  std::set<int> present;
  for (const auto& [p, rows] : whole.image.partitions) present.insert(p);
  for (auto& [p, rows] : part.image.partitions) {
    if (!present.insert(p).second) {
      return Damaged(file, absl::StrCat("table '", name, "' partition ", p,
                                        " is in two files"));
    }
    whole.image.partitions.emplace_back(p, std::move(rows));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckWhole(const LoadedTable& table, const std::string& where) {
  WEFT_ASSIGN_OR_RETURN(const auto layout, TableLayout::Create(table.spec));
  const Placement placement(table.spec.name(), table.spec.partitions(), 1);
  std::set<int> missing;
  if (layout->is_dense()) {
    for (int64_t slice = 0; slice < layout->slices(); ++slice) {
      missing.insert(placement.PartitionOfSlice(slice));
    }
  } else {
    for (int p = 0; p < table.spec.partitions(); ++p) missing.insert(p);
  }
  for (const auto& [p, rows] : table.image.partitions) missing.erase(p);
  if (missing.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "checkpoint ", where, ": table '", table.spec.name(), "' lacks ",
      missing.size(), " of its ", table.spec.partitions(),
      " partitions, the first ", *missing.begin(),
      "; a server that had lost them saved too: use an earlier checkpoint"));
}

namespace {

// `base`: null if the parent has no such table.
absl::Status ApplyTo(LoadedTable* base, const std::string& base_attempt,
                     const std::string& where, LoadedTable& table) {
  const auto damaged = [&](const auto&... what) {
    return absl::DataLossError(absl::StrCat("checkpoint ", where, ": table '",
                                            table.spec.name(), "' ", what...));
  };
  WEFT_ASSIGN_OR_RETURN(const auto layout, TableLayout::Create(table.spec));
  const Placement placement(table.spec.name(), table.spec.partitions(), 1);
  std::map<int, PartitionImage*> before;
  if (base != nullptr) {
    for (auto& [p, rows] : base->image.partitions) before[p] = &rows;
  }
  for (auto& [p, rows] : table.image.partitions) {
    if (!rows.is_delta) continue;
    if (table.image.base != base_attempt) {
      return damaged(
          "has what has changed since ", absl::CHexEscape(table.image.base),
          ", and its parent was written as ", absl::CHexEscape(base_attempt));
    }
    if (base == nullptr || before.count(p) == 0) {
      return damaged("has what has changed of partition ", p,
                     ", which its parent has not");
    }
    const std::string difference = DifferenceOf(table.spec, base->spec);
    if (!difference.empty()) {
      return damaged("has another spec than in its parent: ", difference);
    }
    absl::Status checked = CheckDelta(*layout, placement, p, rows);
    if (!checked.ok()) return damaged(checked.message());
    checked = CheckImage(*layout, placement, p, *before[p]);
    if (!checked.ok()) return damaged("of its parent: ", checked.message());
    rows = WithDelta(*layout, *before[p], rows);
    *before[p] = PartitionImage();
  }
  const bool is_sync = table.spec.mode() == v1::TableSpec::SYNC;
  if (is_sync && !table.image.base.empty() &&
      base->image.version > table.image.version) {
    return damaged("is at version ", table.image.version, ", its parent at ",
                   base->image.version);
  }
  table.image.base.clear();
  return CheckWhole(table, where);
}

}  // namespace

absl::Status ApplyTo(std::map<std::string, LoadedTable> base,
                     const std::string& base_attempt, const std::string& where,
                     std::map<std::string, LoadedTable>& delta) {
  for (auto& [name, table] : delta) {
    const auto it = base.find(name);
    WEFT_RETURN_IF_ERROR(ApplyTo(it == base.end() ? nullptr : &it->second,
                                 base_attempt, where, table));
  }
  return absl::OkStatus();
}

absl::StatusOr<Safetensors> ToShard(int server, const v1::TableSpec& spec,
                                    const TableShard::Image& image) {
  WEFT_ASSIGN_OR_RETURN(const auto layout, TableLayout::Create(spec));
  const Columns all = Join(image, layout->slots());
  const int64_t n = static_cast<int64_t>(all.keys.size());
  const Shape values = layout->is_dense()
                           ? Shape{static_cast<int64_t>(all.weights.size())}
                           : Shape{n, layout->dim()};
  Safetensors content;
  NamedTensors& tensors = content.tensors;
  tensors["key"] = TensorOf<int64_t>(all.keys, {n}, DType::kI64);
  tensors["step"] = TensorOf<int64_t>(all.steps, {n}, DType::kI64);
  tensors["weight"] = TensorOf<float>(all.weights, values, DType::kF32);
  for (int s = 0; s < layout->slots(); ++s) {
    tensors[absl::StrCat("slot.", layout->slot_name(s))] = TensorOf<float>(
        all.slots[s], layout->slot_is_per_row(s) ? Shape{n} : values,
        DType::kF32);
  }
  const int64_t partitions = static_cast<int64_t>(all.partitions.size()) / 2;
  tensors["partition"] =
      TensorOf<int64_t>(all.partitions, {partitions, 2}, DType::kI64);
  if (layout->limits().any()) {
    tensors["touched"] = TensorOf<int64_t>(all.touched, {n}, DType::kI64);
    tensors["life"] = TensorOf<uint8_t>(
        all.life, {static_cast<int64_t>(all.life.size())}, DType::kU8);
    tensors["life_bytes"] =
        TensorOf<int64_t>(all.life_bytes, {partitions}, DType::kI64);
  }
  if (all.has_delta) {
    const auto removed = static_cast<int64_t>(all.removed.size());
    tensors["delta"] = TensorOf<uint8_t>(all.delta, {partitions}, DType::kU8);
    tensors["removed"] = TensorOf<int64_t>(all.removed, {removed}, DType::kI64);
    tensors["removed_rows"] =
        TensorOf<int64_t>(all.removed_rows, {partitions}, DType::kI64);
    content.metadata["base"] = image.base;
  }
  content.metadata["format"] = all.has_delta ? kDeltaFormat : kFormat;
  content.metadata["placement"] = std::string(kPlacementName);
  content.metadata["server"] = absl::StrCat(server);
  content.metadata["table"] = absl::Base64Escape(spec.SerializeAsString());
  content.metadata["name"] = spec.name();
  content.metadata["version"] = absl::StrCat(image.version);
  const std::string rates = image.rates.Format();
  if (!rates.empty()) content.metadata["learning_rate"] = rates;
  return content;
}

bool IsTableShard(const Metadata& metadata) {
  const auto it = metadata.find("format");
  return it != metadata.end() &&
         (it->second == kFormat || it->second == kDeltaFormat);
}

std::string BaseOf(const Metadata& metadata) {
  const auto format = metadata.find("format");
  const auto base = metadata.find("base");
  return format != metadata.end() && format->second == kDeltaFormat &&
                 base != metadata.end()
             ? base->second
             : "";
}

void MakeWhole(Metadata& metadata) {
  metadata["format"] = kFormat;
  metadata.erase("base");
}

bool IsTableShard(const Safetensors& shard) {
  return IsTableShard(shard.metadata);
}

absl::StatusOr<LoadedTable> ReadTableMetadata(const Metadata& metadata,
                                              const std::string& where) {
  WEFT_ASSIGN_OR_RETURN(const std::string format,
                        FindText(metadata, where, "format"));
  WEFT_ASSIGN_OR_RETURN(const std::string placement,
                        FindText(metadata, where, "placement"));
  if ((format != kFormat && format != kDeltaFormat) ||
      placement != kPlacementName) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint shard ", where, ": wanted format ", kFormat,
                     " and placement ", kPlacementName, ", found ", format,
                     " and ", placement));
  }
  WEFT_ASSIGN_OR_RETURN(const std::string encoded,
                        FindText(metadata, where, "table"));
  WEFT_ASSIGN_OR_RETURN(const std::string version,
                        FindText(metadata, where, "version"));
  std::string decoded;
  LoadedTable table;
  table.image.base = BaseOf(metadata);
  if (format == kDeltaFormat && table.image.base.empty()) {
    return Damaged(where, "it has deltas, and names no base");
  }
  if (!absl::Base64Unescape(encoded, &decoded) ||
      !table.spec.ParseFromString(decoded) ||
      !absl::SimpleAtoi(version, &table.image.version) ||
      table.image.version < 0 || table.image.version > kMostVersion) {
    return Damaged(where, "its metadata cannot be read");
  }
  const auto rates = metadata.find("learning_rate");
  if (rates != metadata.end()) {
    absl::StatusOr<RateChanges> parsed = RateChanges::Parse(rates->second);
    if (!parsed.ok()) return Damaged(where, parsed.status().message());
    table.image.rates = *std::move(parsed);
  }
  return table;
}

absl::Status AddShard(const Safetensors& shard, const std::string& where,
                      std::map<std::string, LoadedTable>& tables) {
  WEFT_ASSIGN_OR_RETURN(LoadedTable part,
                        ReadTableMetadata(shard.metadata, where));
  WEFT_ASSIGN_OR_RETURN(const auto layout, TableLayout::Create(part.spec));
  WEFT_ASSIGN_OR_RETURN(TableShard::Image rows, Cut(shard, where, *layout));
  part.image.partitions = std::move(rows.partitions);
  return Merge(where, std::move(part), tables);
}

}  // namespace weft::ps
