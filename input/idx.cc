#include "weft/input/idx.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/input/read_file.h"
#include "xxhash.h"

namespace weft::input {
namespace {

// An element type of the format: its bytes there, its dtype here.
struct IdxType {
  int64_t item_size;
  DType dtype;
};

std::optional<IdxType> TypeOf(uint8_t code) {
  switch (code) {
    case 0x08:
      return IdxType{1, DType::kU8};
    case 0x09:
      return IdxType{1, DType::kI64};
    case 0x0b:
      return IdxType{2, DType::kI64};
    case 0x0c:
      return IdxType{4, DType::kI64};
    case 0x0d:
      return IdxType{4, DType::kF32};
    case 0x0e:
      return IdxType{8, DType::kF64};
    default:
      return std::nullopt;
  }
}

// The big-endian unsigned number in size(Word) bytes at `at`.
template <typename Word>
Word BigEndian(const char* at) {
  Word word = 0;
  for (size_t i = 0; i < sizeof(Word); ++i) {
    word = static_cast<Word>(word << 8 | static_cast<uint8_t>(at[i]));
  }
  return word;
}

struct IdxHeader {
  IdxType type;
  Shape shape;
  int64_t header_bytes;
  int64_t element_bytes;
};

constexpr int64_t kMaxHeaderBytes = 4 + 4 * kMaxDims;

// Reads the header that `bytes` begin with, and checks its dimensions.
absl::StatusOr<IdxHeader> ParseHeader(absl::string_view bytes,
                                      absl::string_view where) {
  if (bytes.size() < 4) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": wanted an IDX header of at least 4 bytes, found ",
        bytes.size(), " bytes"));
  }
  const auto type = TypeOf(static_cast<uint8_t>(bytes[2]));
  if (bytes[0] != 0 || bytes[1] != 0 || !type.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        where,
        ": wanted an IDX file, which begins with 0 0 and a type of 8, 9, "
        "11, 12, 13 or 14; found ",
        static_cast<uint8_t>(bytes[0]), " ", static_cast<uint8_t>(bytes[1]),
        " ", static_cast<uint8_t>(bytes[2])));
  }
  const int dims = static_cast<uint8_t>(bytes[3]);
  const int64_t found = static_cast<int64_t>(bytes.size());
  if (dims > kMaxDims || found < 4 + 4 * dims) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": the IDX header has ", dims, " dimensions, which takes ",
        4 + 4 * dims, " bytes and may be at most ", kMaxDims, "; found ", found,
        " bytes"));
  }
  IdxHeader header = {*type, {}, 4 + 4 * dims, type->item_size};
  int64_t bound =
      type->item_size;  // as if no dimension were 0: strides must fit too
  for (int64_t d = 0; d < dims; ++d) {
    const auto size =
        static_cast<int32_t>(BigEndian<uint32_t>(bytes.data() + 4 + 4 * d));
    if (size < 0 || bound > kMaxTensorBytes / std::max(size, 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": dimension ", d, " of the IDX header is ", size,
                       "; allowed is not negative, and 2^47 bytes in all"));
    }
    bound *= std::max(size, 1);
    header.element_bytes *= size;
    header.shape.push_back(size);
  }
  return header;
}

// Checks that there are as many bytes of elements as the header says.
absl::Status CheckElements(const IdxHeader& header, int64_t found,
                           absl::string_view where) {
  const int64_t wanted = header.element_bytes;
  if (found == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      where, ": wanted ", wanted, " bytes of elements for shape ",
      ShapeText(header.shape), ", found ", found,
      found < wanted ? "; the file is cut" : "; the file is too long"));
}

// Copies big-endian elements of type From, as wide as Word, into `out`.
template <typename From, typename Word, typename To>
void Decode(const char* from, int64_t count, To* out) {
  static_assert(sizeof(From) == sizeof(Word));
  for (int64_t i = 0; i < count; ++i) {
    const Word word = BigEndian<Word>(from + i * sizeof(Word));
    From value;
    std::memcpy(&value, &word, sizeof(value));
    // One of the format's types is signed bytes.
    out[i] = static_cast<To>(value);  // NOLINT(bugprone-signed-char-misuse)
  }
}

void DecodeInto(const Tensor& out, int64_t item_size, const char* from) {
  const int64_t n = out.numel();
  switch (out.dtype()) {
    case DType::kF32:
      return Decode<float, uint32_t>(from, n, out.data<float>());
    case DType::kF64:
      return Decode<double, uint64_t>(from, n, out.data<double>());
    case DType::kI64:
      if (item_size == 1) {
        return Decode<int8_t, uint8_t>(from, n, out.data<int64_t>());
      }
      if (item_size == 2) {
        return Decode<int16_t, uint16_t>(from, n, out.data<int64_t>());
      }
      return Decode<int32_t, uint32_t>(from, n, out.data<int64_t>());
    case DType::kU8:
    case DType::kBool:
      if (n > 0) std::memcpy(out.raw(), from, n);
      return;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI32:
    case DType::kI8:
      break;  // No type of the format is held as these.
  }
}

absl::Status CheckPair(const Tensor& images, const Tensor& labels,
                       const IdxDataset::Options& options) {
  if (images.dtype() != DType::kU8 || images.dim() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.images, ": wanted images u8[n, height, width], ",
                     "found ", images.Describe()));
  }
  if (labels.dtype() != DType::kU8 || labels.dim() != 1 ||
      labels.size(0) != images.size(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.labels, ": wanted labels u8[", images.size(0),
                     "] for ", options.images, ", found ", labels.Describe()));
  }
  const uint8_t* label = labels.data<uint8_t>();
  for (int64_t i = 0; i < labels.numel(); ++i) {
    if (label[i] >= options.classes) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.labels, ": label ", i, " is ", label[i],
                       ", allowed is [0, ", options.classes, ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tensor> ParseIdx(absl::string_view bytes,
                                absl::string_view where) {
  WEFT_ASSIGN_OR_RETURN(const IdxHeader header, ParseHeader(bytes, where));
  WEFT_RETURN_IF_ERROR(CheckElements(
      header, static_cast<int64_t>(bytes.size()) - header.header_bytes, where));
  const Tensor out = Tensor::Empty(header.shape, header.type.dtype);
  DecodeInto(out, header.type.item_size, bytes.data() + header.header_bytes);
  return out;
}

absl::StatusOr<std::string> GunzipIdx(absl::string_view packed,
                                      int64_t max_bytes,
                                      absl::string_view where) {
  WEFT_ASSIGN_OR_RETURN(const std::string head,
                        GunzipHead(packed, kMaxHeaderBytes, where));
  WEFT_ASSIGN_OR_RETURN(const IdxHeader header, ParseHeader(head, where));
  const int64_t wanted = header.header_bytes + header.element_bytes;
  if (wanted > max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        where, ": the IDX header says ", header.element_bytes,
        " bytes of elements for shape ", ShapeText(header.shape),
        "; allowed is a file of ", max_bytes, " bytes. Split the file"));
  }
  absl::StatusOr<std::string> bytes = Gunzip(packed, wanted, where);
  if (absl::IsResourceExhausted(bytes.status())) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": unpacks to more than the ", header.element_bytes,
        " bytes of elements that its header says for shape ",
        ShapeText(header.shape), "; use a file that is not damaged"));
  }
  return bytes;
}

absl::StatusOr<Tensor> ReadIdx(const std::string& path) {
  ReadFileOptions options;
  options.gunzip = false;
  WEFT_ASSIGN_OR_RETURN(std::string bytes, ReadFile(path, options));
  if (IsGzip(bytes)) {
    WEFT_ASSIGN_OR_RETURN(bytes, GunzipIdx(bytes, options.max_bytes, path));
  }
  return ParseIdx(bytes, path);
}

absl::StatusOr<IdxDataset> IdxDataset::Open(const Options& options) {
  if (!(options.deviation > 0.0f) || !std::isfinite(options.mean) ||
      options.limit < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("IdxDataset: deviation ", options.deviation, ", mean ",
                     options.mean, ", limit ", options.limit,
                     "; allowed are > 0, finite, and not negative"));
  }
  WEFT_ASSIGN_OR_RETURN(Tensor images, ReadIdx(options.images));
  WEFT_ASSIGN_OR_RETURN(Tensor labels, ReadIdx(options.labels));
  WEFT_RETURN_IF_ERROR(CheckPair(images, labels, options));
  if (options.limit > 0 && options.limit < labels.numel()) {
    images = images.Slice(0, 0, options.limit);
    labels = labels.Slice(0, 0, options.limit);
  }
  return IdxDataset(std::move(images), std::move(labels), options);
}

IdxDataset::IdxDataset(Tensor images, Tensor labels, const Options& options)
    : images_(std::move(images)), labels_(std::move(labels)) {
  for (int pixel = 0; pixel < 256; ++pixel) {
    of_pixel_[pixel] =
        (static_cast<float>(pixel) / 255.0f - options.mean) / options.deviation;
  }
}

uint64_t IdxDataset::Checksum() const {
  const Tensor images = images_.Contiguous();
  const Tensor labels = labels_.Contiguous();
  const uint64_t of_images =
      XXH3_64bits(images.data<uint8_t>(), static_cast<size_t>(images.numel()));
  return XXH3_64bits_withSeed(labels.data<uint8_t>(),
                              static_cast<size_t>(labels.numel()), of_images);
}

absl::StatusOr<Example> IdxDataset::Get(int64_t index) const {
  WEFT_ASSIGN_OR_RETURN(const Example batch, GetBatch({index}));
  return Example{batch[0].Select(0, 0), batch[1].Select(0, 0)};
}

absl::StatusOr<Example> IdxDataset::GetBatch(
    absl::Span<const int64_t> indices) const {
  const int64_t n = static_cast<int64_t>(indices.size());
  const int64_t pixels = height() * width();
  const Tensor images = Tensor::Empty({n, 1, height(), width()});
  const Tensor labels = Tensor::Empty({n}, DType::kI64);
  float* to = images.data<float>();
  int64_t* label = labels.data<int64_t>();
  for (const int64_t index : indices) {
    WEFT_RETURN_IF_ERROR(CheckIndex(index, "IdxDataset"));
    const uint8_t* from = images_.data<uint8_t>() + index * pixels;
    for (int64_t p = 0; p < pixels; ++p) to[p] = of_pixel_[from[p]];
    to += pixels;
    *label++ = labels_.data<uint8_t>()[index];
  }
  return Example{images, labels};
}

}  // namespace weft::input
