#include "weft/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/little_endian.h"
#include "weft/checkpoint/safetensors_dtype.h"
#include "weft/checkpoint/safetensors_pieces.h"

namespace weft::checkpoint {
namespace {

// The elements are copied as they lie in memory.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

absl::Status CheckEntries(const std::vector<TensorEntry>& entries) {
  if (entries.size() > static_cast<size_t>(kMaxTensors)) {
    return absl::InvalidArgumentError(
        absl::StrCat("WriteSafetensors: ", entries.size(),
                     " tensors, allowed are a million"));
  }
  absl::flat_hash_set<absl::string_view> names;
  for (const auto& [name, dtype, shape, begin, end] : entries) {
    if (name.empty() || name.size() > kMaxNameBytes || name == "__metadata__") {
      return absl::InvalidArgumentError(absl::StrCat(
          "WriteSafetensors: a tensor is called \"", absl::CHexEscape(name),
          "\", allowed are 1 to 256 bytes but __metadata__"));
    }
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("WriteSafetensors: two tensors are called \"",
                       absl::CHexEscape(name), "\""));
    }
    if (NumElements(shape, "WriteSafetensors") >
        kMaxTensorBytes / ItemSize(dtype)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "WriteSafetensors: \"", absl::CHexEscape(name), "\" of ", Name(dtype),
          ShapeText(shape), " has more than ", kMaxTensorBytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

// Larger dtypes first.
void Place(std::vector<TensorEntry>& entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     return ItemSize(a.dtype) > ItemSize(b.dtype);
                   });
  int64_t at = 0;
  for (TensorEntry& entry : entries) {
    entry.begin = at;
    at += NumElements(entry.shape, "WriteSafetensors") * ItemSize(entry.dtype);
    entry.end = at;
  }
}

absl::StatusOr<Tensor> ReadTensor(const TensorEntry& entry,
                                  absl::string_view elements,
                                  absl::string_view where) {
  const absl::string_view from =
      elements.substr(entry.begin, entry.end - entry.begin);
  WEFT_RETURN_IF_ERROR(CheckElements(entry, from, where));
  const Tensor tensor = Tensor::Empty(entry.shape, entry.dtype);
  if (!from.empty()) std::memcpy(tensor.raw(), from.data(), from.size());
  return tensor;
}

}  // namespace

absl::Status CheckElements(const TensorEntry& entry, absl::string_view bytes,
                           absl::string_view where) {
  if (entry.dtype != DType::kBool ||
      std::all_of(bytes.begin(), bytes.end(),
                  [](char c) { return c == 0 || c == 1; })) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": \"", absl::CHexEscape(entry.name),
                   "\" is BOOL and has a byte above 1"));
}

absl::StatusOr<std::string> SafetensorsFront(std::vector<TensorEntry>& entries,
                                             const Metadata& metadata) {
  // NumElements throws for a shape that no tensor has.
  WEFT_RETURN_IF_ERROR(CatchToStatus([&] { return CheckEntries(entries); }));
  Place(entries);
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (const TensorEntry& entry : entries) {
    header[entry.name] = {
        {"dtype", std::string(SafetensorsName(entry.dtype))},
        {"shape", std::vector<int64_t>(entry.shape.begin(), entry.shape.end())},
        {"data_offsets", {entry.begin, entry.end}}};
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
  return LittleEndian64(text.size()) + text;
}

absl::Status WriteSafetensors(const Safetensors& content, WritableFile& file) {
  return CatchToStatus([&]() -> absl::Status {
    std::vector<TensorEntry> entries;
    for (const auto& [name, tensor] : content.tensors) {
      if (!tensor.defined()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "WriteSafetensors: \"", absl::CHexEscape(name), "\" is undefined"));
      }
      entries.push_back({name, tensor.dtype(), tensor.shape()});
    }
    WEFT_ASSIGN_OR_RETURN(const std::string front,
                          SafetensorsFront(entries, content.metadata));
    WEFT_RETURN_IF_ERROR(file.Append(front));
    for (const TensorEntry& entry : entries) {
      const Tensor flat =
          content.tensors.at(entry.name).To(Device::Cpu()).Contiguous();
      WEFT_RETURN_IF_ERROR(file.Append({static_cast<const char*>(flat.raw()),
                                        static_cast<size_t>(flat.bytes())}));
    }
    return absl::OkStatus();
  });
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
