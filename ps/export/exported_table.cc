#include "weft/ps/export/exported_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/digest.h"
#include "weft/checkpoint/little_endian.h"
#include "weft/ps/export/export_table.h"

namespace weft::ps {
namespace {

using checkpoint::LoadLittleEndian64;
using checkpoint::Metadata;
using checkpoint::SafetensorsHeader;
using checkpoint::TensorEntry;

// Keys that lie in 8 lines of the cache.
constexpr int64_t kEvery = 64;

std::string TextOf(const Metadata& metadata, const std::string& key) {
  const auto it = metadata.find(key);
  return it == metadata.end() ? "" : it->second;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ExportedTable>> ExportedTable::Open(
    const std::string& path, const Options& options) {
  WEFT_ASSIGN_OR_RETURN(auto file, checkpoint::MappedFile::Open(path));
  std::shared_ptr<ExportedTable> table(new ExportedTable(path));
  WEFT_RETURN_IF_ERROR(table->Read(file->bytes(), options));
  // While it was checked it may have been written to.
  WEFT_RETURN_IF_ERROR(file->CheckUnchanged());
  table->file_ = std::move(file);
  return table;
}

absl::StatusOr<std::shared_ptr<const ExportedTable>> ExportedTable::Parse(
    absl::string_view bytes, const std::string& where, const Options& options) {
  std::shared_ptr<ExportedTable> table(new ExportedTable(where));
  WEFT_RETURN_IF_ERROR(table->Read(bytes, options));
  return table;
}

absl::Status ExportedTable::Damaged(absl::string_view what) const {
  return absl::DataLossError(
      absl::StrCat(where_, " is no whole export of a table: ", what,
                   "; export it again by weft ckpt export"));
}

uint64_t ExportedTable::Key(int64_t row) const {
  return LoadLittleEndian64(keys_ + 8 * row);
}

absl::Status ExportedTable::Read(absl::string_view bytes,
                                 const Options& options) {
  WEFT_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                        checkpoint::ParseSafetensorsHeader(bytes, where_));
  WEFT_RETURN_IF_ERROR(ReadMetadata(header.metadata));
  Metadata wanted_shapes = {
      {kExportWeight,
       absl::StrCat(Name(DType::kF32), is_dense() ? ShapeText({rows_})
                                                  : ShapeText({rows_, dim_}))}};
  if (!is_dense()) {
    wanted_shapes[kExportKeys] =
        absl::StrCat(Name(DType::kI64), ShapeText({rows_}));
  }
  const absl::string_view elements = bytes.substr(header.bytes);
  for (const TensorEntry& entry : header.entries) {
    const std::string found =
        absl::StrCat(Name(entry.dtype), ShapeText(entry.shape));
    const auto wanted = wanted_shapes.find(entry.name);
    if (wanted == wanted_shapes.end() || wanted->second != found) {
      return Damaged(absl::StrCat(
          "wanted ", wanted == wanted_shapes.end() ? "none" : wanted->second,
          " as '", absl::CHexEscape(entry.name), "', found ", found));
    }
    (entry.name == kExportKeys ? keys_ : weights_) =
        elements.data() + entry.begin;
  }
  if (weights_ == nullptr || (!is_dense() && keys_ == nullptr)) {
    return Damaged("a tensor is missing");
  }
  if (options.check_content) {
    WEFT_RETURN_IF_ERROR(CheckContent(elements, header.metadata));
  }
  return is_dense() ? absl::OkStatus() : IndexKeys();
}

absl::Status ExportedTable::ReadMetadata(const Metadata& metadata) {
  const std::string format = TextOf(metadata, "format");
  if (format != kExportFormat) {
    return absl::InvalidArgumentError(absl::StrCat(
        where_, ": wanted an export, of format ", kExportFormat, ", found \"",
        absl::CHexEscape(format), "\"; make one by weft ckpt export"));
  }
  const std::string checksum = ExportChecksum(metadata);
  if (TextOf(metadata, "checksum") != checksum) {
    return Damaged(
        absl::StrCat("its metadata have the checksum ", checksum, ", wanted ",
                     absl::CHexEscape(TextOf(metadata, "checksum"))));
  }
  std::string decoded;
  v1::TableSpec spec;
  if (!absl::Base64Unescape(TextOf(metadata, "table"), &decoded) ||
      !spec.ParseFromString(decoded) ||
      !absl::SimpleAtoi(TextOf(metadata, "version"), &version_) ||
      !absl::SimpleAtoi(TextOf(metadata, "rows"), &rows_) || rows_ < 0) {
    return Damaged("its metadata cannot be read");
  }
  auto layout = TableLayout::Create(spec);
  if (!layout.ok()) return Damaged(layout.status().message());
  layout_ = *std::move(layout);
  checkpoint_ = TextOf(metadata, "checkpoint");
  dim_ = is_dense() ? 1 : layout_->dim();
  if (is_dense() && rows_ != layout_->spec().elements()) {
    return Damaged(absl::StrCat("wanted ", layout_->spec().elements(),
                                " elements, found ", rows_));
  }
  return absl::OkStatus();
}

absl::Status ExportedTable::CheckContent(absl::string_view elements,
                                         const Metadata& metadata) const {
  const std::string wanted = TextOf(metadata, "content_xxh3");
  const std::string found = checkpoint::DigestOf(elements).xxh3;
  if (found == wanted) return absl::OkStatus();
  return Damaged(absl::StrCat("its elements have the XXH3 ", found, ", wanted ",
                              absl::CHexEscape(wanted)));
}

absl::Status ExportedTable::IndexKeys() {
  sparse_.reserve((rows_ + kEvery - 1) / kEvery);
  for (int64_t row = 0; row < rows_; ++row) {
    const uint64_t key = Key(row);
    if (row > 0 && key <= Key(row - 1)) {
      return Damaged(absl::StrCat("keys do not ascend: ", key, " of row ", row,
                                  " follows ", Key(row - 1)));
    }
    if (row % kEvery == 0) sparse_.push_back(key);
  }
  return absl::OkStatus();
}

int64_t ExportedTable::Find(uint64_t key) const {
  if (is_dense()) {
    return key < static_cast<uint64_t>(rows_) ? static_cast<int64_t>(key) : -1;
  }
  const auto after = std::upper_bound(sparse_.begin(), sparse_.end(), key);
  if (after == sparse_.begin()) return -1;
  int64_t begin = (after - sparse_.begin() - 1) * kEvery;
  int64_t end = std::min(begin + kEvery, rows_);
  while (end - begin > 1) {
    const int64_t middle = begin + (end - begin) / 2;
    (Key(middle) <= key ? begin : end) = middle;
  }
  return Key(begin) == key ? begin : -1;
}

absl::StatusOr<int64_t> ExportedTable::LookUp(absl::Span<const uint64_t> keys,
                                              absl::Span<float> values,
                                              absl::Span<uint8_t> found) const {
  WEFT_CHECK(values.size() == keys.size() * dim_ &&
             found.size() == keys.size());
  // Before, so that no byte is read that is not there any more; after, so that
  // no answer is of two contents.
  if (file_ != nullptr) WEFT_RETURN_IF_ERROR(file_->CheckUnchanged());
  int64_t count = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    float* const to = values.data() + i * dim_;
    const int64_t row = Find(keys[i]);
    found[i] = row >= 0 ? 1 : 0;
    count += found[i];
    if (row >= 0) {
      std::memcpy(to, weights_ + row * dim_ * sizeof(float),
                  dim_ * sizeof(float));
    } else if (is_dense()) {
      *to = 0;
    } else {
      layout_->InitialWeights(keys[i], {to, static_cast<size_t>(dim_)});
    }
  }
  if (file_ != nullptr) WEFT_RETURN_IF_ERROR(file_->CheckUnchanged());
  return count;
}

}  // namespace weft::ps
