#include "weft/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/little_endian.h"
#include "weft/checkpoint/safetensors_dtype.h"

namespace weft::checkpoint {
namespace {

// The elements are copied as they lie in memory.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

using Item = std::pair<const std::string, Tensor>;

absl::Status CheckWritable(const Safetensors& content) {
  if (content.tensors.size() > static_cast<size_t>(kMaxTensors)) {
    return absl::InvalidArgumentError(
        absl::StrCat("WriteSafetensors: ", content.tensors.size(),
                     " tensors, allowed are a million"));
  }
  for (const auto& [name, tensor] : content.tensors) {
    if (name.empty() || name.size() > kMaxNameBytes || name == "__metadata__") {
      return absl::InvalidArgumentError(
          absl::StrCat("WriteSafetensors: a tensor is called \"", name,
                       "\", allowed are 1 to 256 bytes but __metadata__"));
    }
    if (!tensor.defined()) {
      return absl::InvalidArgumentError(
          absl::StrCat("WriteSafetensors: \"", name, "\" is undefined"));
    }
  }
  return absl::OkStatus();
}

std::vector<const Item*> InOrderOfPlace(const NamedTensors& tensors) {
  std::vector<const Item*> items;
  for (const Item& item : tensors) items.push_back(&item);
  std::stable_sort(
      items.begin(), items.end(), [](const Item* a, const Item* b) {
        return ItemSize(a->second.dtype()) > ItemSize(b->second.dtype());
      });
  return items;
}

absl::StatusOr<std::string> HeaderOf(const std::vector<const Item*>& items,
                                     const Metadata& metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t at = 0;
  for (const Item* item : items) {
    const Tensor& tensor = item->second;
    header[item->first] = {
        {"dtype", std::string(SafetensorsName(tensor.dtype()))},
        {"shape",
         std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())},
        {"data_offsets", {at, at + tensor.bytes()}}};
    at += tensor.bytes();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(
        "WriteSafetensors: a name or metadata is not UTF-8: ", e.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (static_cast<int64_t>(text.size()) > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("WriteSafetensors: a header of ", text.size(),
                     " bytes, allowed are 16 MiB; write several files"));
  }
  return text;
}

absl::StatusOr<Tensor> ReadTensor(const TensorEntry& entry,
                                  absl::string_view elements,
                                  absl::string_view where) {
  const absl::string_view from =
      elements.substr(entry.begin, entry.end - entry.begin);
  if (entry.dtype == DType::kBool &&
      std::any_of(from.begin(), from.end(),
                  [](char c) { return c != 0 && c != 1; })) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": \"", entry.name, "\" is BOOL and has a byte above 1"));
  }
  const Tensor tensor = Tensor::Empty(entry.shape, entry.dtype);
  if (!from.empty()) std::memcpy(tensor.raw(), from.data(), from.size());
  return tensor;
}

}  // namespace

absl::Status WriteSafetensors(const Safetensors& content, WritableFile& file) {
  WEFT_RETURN_IF_ERROR(CheckWritable(content));
  const std::vector<const Item*> items = InOrderOfPlace(content.tensors);
  WEFT_ASSIGN_OR_RETURN(const std::string header,
                        HeaderOf(items, content.metadata));
  WEFT_RETURN_IF_ERROR(file.Append(LittleEndian64(header.size()) + header));
  for (const Item* item : items) {
    const Tensor flat = item->second.Contiguous();
    WEFT_RETURN_IF_ERROR(file.Append({static_cast<const char*>(flat.raw()),
                                      static_cast<size_t>(flat.bytes())}));
  }
  return absl::OkStatus();
}

absl::StatusOr<Safetensors> ParseSafetensors(absl::string_view file,
                                             absl::string_view where) {
  WEFT_ASSIGN_OR_RETURN(SafetensorsHeader header,
                        ParseSafetensorsHeader(file, where));
  Safetensors content;
  content.metadata = std::move(header.metadata);
  for (const TensorEntry& entry : header.entries) {
    WEFT_ASSIGN_OR_RETURN(content.tensors[entry.name],
                          ReadTensor(entry, file.substr(header.bytes), where));
  }
  return content;
}

}  // namespace weft::checkpoint
