#include "weft/checkpoint/elements.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/device_elements.h"
#include "weft/checkpoint/little_endian.h"
#include "weft/checkpoint/safetensors_pieces.h"

namespace weft::checkpoint {
namespace {

using See = absl::FunctionRef<void(absl::string_view bytes)>;

// The file that is read.
struct File {
  // Fills `to` from `offset` on.
  absl::Status Read(int64_t offset, absl::Span<char> to) const {
    WEFT_ASSIGN_OR_RETURN(
        const std::string piece,
        files.ReadAt(path, offset, static_cast<int64_t>(to.size())));
    piece.copy(to.data(), to.size());
    if (piece.size() < to.size()) {
      return absl::DataLossError(absl::StrCat(
          path, ": wanted ", bytes, " bytes, found no byte ",
          offset + static_cast<int64_t>(piece.size()), "; the file is cut"));
    }
    see({to.data(), to.size()});
    return absl::OkStatus();
  }

  FileSystem& files;
  const std::string& path;
  const int64_t bytes;
  const See see;
};

absl::StatusOr<SafetensorsHeader> ReadHeader(const File& file) {
  constexpr int64_t kLengthBytes = 8;
  std::string front(std::min(file.bytes, kLengthBytes), '\0');
  WEFT_RETURN_IF_ERROR(file.Read(0, absl::MakeSpan(front)));
  if (file.bytes >= kLengthBytes) {
    const uint64_t length = LoadLittleEndian64(front.data());
    const auto left = static_cast<uint64_t>(file.bytes - kLengthBytes);
    // Else the parser refuses the length, and needs no more than that.
    if (length <= std::min(left, static_cast<uint64_t>(kMaxHeaderBytes))) {
      front.resize(kLengthBytes + length);
      WEFT_RETURN_IF_ERROR(
          file.Read(kLengthBytes, absl::MakeSpan(front).subspan(kLengthBytes)));
    }
  }
  return ParseSafetensorsFront(front, file.bytes, file.path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Elements>> Elements::To(Device device) {
  if (device.is_cpu()) return std::make_unique<HostElements>();
  return DeviceElements::Create(device, {});
}

absl::Status Elements::Fail(const absl::Status& status) {
  failure_.Update(status);
  return status;
}

absl::StatusOr<Tensor> HostElements::Begin(const TensorEntry& entry) {
  absl::StatusOr<Tensor> tensor =
      CatchToStatus([&] { return Tensor::Empty(entry.shape, entry.dtype); });
  if (!tensor.ok()) return Fail(tensor.status());
  next_ = static_cast<char*>(tensor->raw());
  return tensor;
}

absl::StatusOr<absl::Span<char>> HostElements::Next(int64_t bytes) {
  const auto size = static_cast<size_t>(std::min(bytes, kPieceBytes));
  return absl::MakeSpan(std::exchange(next_, next_ + size), size);
}

absl::StatusOr<Tensor> NoElements::Begin(const TensorEntry& /*entry*/) {
  return Tensor();
}

absl::StatusOr<absl::Span<char>> NoElements::Next(int64_t bytes) {
  const auto size = static_cast<size_t>(std::min(bytes, kPieceBytes));
  if (piece_.size() < size) piece_.resize(size);
  return absl::MakeSpan(piece_).subspan(0, size);
}

absl::StatusOr<Safetensors> ReadSafetensors(FileSystem& files,
                                            const std::string& path,
                                            int64_t bytes, Elements& elements,
                                            See see) {
  const File file = {files, path, bytes, see};
  WEFT_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadHeader(file));
  Safetensors content;
  content.metadata = std::move(header.metadata);
  for (const TensorEntry& entry : header.entries) {
    WEFT_ASSIGN_OR_RETURN(content.tensors[entry.name], elements.Begin(entry));
    for (int64_t at = entry.begin; at < entry.end;) {
      WEFT_ASSIGN_OR_RETURN(const absl::Span<char> piece,
                            elements.Next(entry.end - at));
      WEFT_RETURN_IF_ERROR(file.Read(header.bytes + at, piece));
      WEFT_RETURN_IF_ERROR(
          CheckElements(entry, {piece.data(), piece.size()}, path));
      WEFT_RETURN_IF_ERROR(elements.Take());
      at += static_cast<int64_t>(piece.size());
    }
  }
  WEFT_RETURN_IF_ERROR(elements.Finish());
  return content;
}

absl::StatusOr<Safetensors> ReadSafetensors(const std::string& path,
                                            Device device) {
  WEFT_ASSIGN_OR_RETURN(const int64_t bytes, LocalFiles().Size(path));
  WEFT_ASSIGN_OR_RETURN(const auto elements, Elements::To(device));
  return ReadSafetensors(LocalFiles(), path, bytes, *elements,
                         [](absl::string_view) {});
}

}  // namespace weft::checkpoint
