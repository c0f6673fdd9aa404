// Codec<T>: how a value of type T is written into a call and read from it.
//
// Arithmetic types, enums, bool, string, Bytes, protobuf messages, and vector,
// map, unordered_map, pair, tuple, optional, variant of what has a codec;
// Tensor and Payload by tensor_codec.h. A user's type gets one by
// specialisation:
//
//   template <>
//   struct weft::rpc::Codec<Point> {
//     static std::string TypeName() { return "example.Point"; }
//     static void Encode(const Point& p, Encoder& e) { e.Write(p.x, p.y); }
//     static absl::Status Decode(Decoder& d, Point& p) {
//       return d.Read(p.x, p.y);
//     }
//   };
//
// TypeName is part of a function's signature: change it with the layout. T is
// default constructible. A Codec may ask of which message the value is
// (context()), and send an attachment along with it (attachment.h). Bytes of a
// peer are hostile: a Decoder checks each
// length against what is there before it allocates, and bounds depth and the
// memory of containers; all failures are kInvalidArgument.

#ifndef WEFT_RPC_CODEC_CODEC_H_
#define WEFT_RPC_CODEC_CODEC_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/bytes.h"
#include "weft/base/bytes_builder.h"
#include "weft/base/slice_reader.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/attachment.h"

namespace google::protobuf {
class MessageLite;
}

namespace weft {
class StagedCall;
}

namespace weft::rpc {

class Encoder;
class Decoder;

template <typename T, typename Enable = void>
struct Codec;

namespace internal {

template <typename T, typename Enable = void>
struct HasCodec : std::false_type {};
template <typename T>
struct HasCodec<T, std::void_t<decltype(Codec<T>::TypeName())>>
    : std::true_type {};
// Whether a T may travel. A vector<U> seems to even if U may not.
template <typename T>
constexpr bool kHasCodec = HasCodec<T>::value;

// Codec<T>; does not compile where there is none, and says so.
template <typename T>
struct CodecOf {
  static_assert(kHasCodec<T>,
                "T cannot travel: specialise weft::rpc::Codec for it, before "
                "its first use (docs/rpc.md)");
  using type = Codec<T>;
};

}  // namespace internal

// Writes values one after another. What is large is taken along by reference
// and starts at a multiple of 64, so that the receiver may use it in place.
//
// Thread-safety: one thread at a time.
class Encoder {
 public:
  // Attached bytes from this size on travel by reference.
  static constexpr size_t kByReference = 4096;
  static constexpr size_t kAlignment = 64;

  // Writes a value that belongs to no call.
  Encoder() = default;
  // Writes a message. `attachments`: where those that travel with it are kept,
  // made when the first is staged; null: it has none, for the reason
  // `why_none`, which outlives this.
  Encoder(const CodecContext& context,
          std::shared_ptr<StagedAttachments>* attachments,
          absl::string_view why_none)
      : context_(context), attachments_(attachments), why_none_(why_none) {}

  const CodecContext& context() const { return context_; }
  // The attachment of `kind` that travels with this message; `make` makes it
  // for the first value that wants it. Owned by the message. Null where the
  // message has no attachments: then the encoding fails with
  // kFailedPrecondition.
  Attachment* Stage(absl::string_view kind,
                    absl::FunctionRef<std::unique_ptr<Attachment>()> make);
  // The attachment of `kind` that was staged before; null without one.
  Attachment* Staged(absl::string_view kind) const;

  template <typename... T>
  void Write(T&&... values) {
    (internal::CodecOf<std::decay_t<T>>::type::Encode(std::forward<T>(values),
                                                      *this),
     ...);
  }

  void Varint(uint64_t value) { chunk_.Varint(value); }
  // `size` bytes as they are; the reader knows how many.
  void Raw(const void* bytes, size_t size) { chunk_.Append(bytes, size); }
  // A length and the bytes; copied if they are few, else shared.
  void Attach(Bytes bytes);
  void Attach(Slices slices);
  // A length and a copy of the bytes.
  void AttachCopy(const void* bytes, size_t size);

  // A length and the bytes, which `copy`, their owner, brings from a device:
  // they are taken along by reference, and the message must not leave before
  // they are there (TakeCopies).
  void AttachLater(Bytes bytes, StagedCall* copy);
  // Each lives as long as the slices that were written.
  std::vector<StagedCall*> TakeCopies() { return std::move(copies_); }

  // Which argument of a call is written, from 1, for errors; 0: none.
  void NextArgument() { ++argument_; }
  int argument() const { return argument_; }

  // The value cannot travel; the first such status is the call's.
  void Fail(absl::Status status);

  // What was written, or why it could not be.
  absl::StatusOr<Slices> Finish() &&;

 private:
  void Align();
  void Flush();

  BytesBuilder chunk_;  // written, not yet in slices_
  Slices slices_;
  size_t flushed_ = 0;               // bytes in slices_
  std::vector<StagedCall*> copies_;  // kept by slices_
  int argument_ = 0;
  absl::Status status_;
  CodecContext context_;
  std::shared_ptr<StagedAttachments>* attachments_ = nullptr;
  absl::string_view why_none_ = "it belongs to no call";
};

// Encoded bytes as they came.
struct Received {
  Slices slices;
  // The memory is this message's alone: values may be made of it in place.
  bool is_private = false;
  CodecContext context = {};
  std::shared_ptr<const ReceivedAttachments> attachments = nullptr;
};

// Reads what an Encoder wrote. Borrows it.
//
// Thread-safety: one thread at a time.
class Decoder {
 public:
  static constexpr int kMaxDepth = 32;
  // Memory that containers may take beyond the bytes that came, so that a byte
  // cannot become a kilobyte.
  static constexpr size_t kMaxContainerBytes = size_t{64} << 20;

  explicit Decoder(const Received& received)
      : bytes_(received.slices),
        is_private_(received.is_private),
        context_(received.context),
        attachments_(received.attachments.get()) {}

  const CodecContext& context() const { return context_; }
  // What the receiver of `kind` has taken of this message; null if no such
  // attachment came with it. Lives longer than the decoding: see
  // ReceivedAttachment.
  ReceivedAttachment* attachment(absl::string_view kind) const {
    return attachments_ == nullptr ? nullptr : attachments_->Find(kind);
  }

  template <typename... T>
  absl::Status Read(T&... values) {
    absl::Status status;
    (void)((status = ReadOne(values), status.ok()) && ...);
    return status;
  }

  absl::Status Varint(uint64_t& value) {
    return bytes_.Varint(&value) ? absl::OkStatus() : NoNumber();
  }
  absl::Status Raw(void* bytes, size_t size) {
    return bytes_.Copy(bytes, size) ? absl::OkStatus() : TooFew(size);
  }
  // What Attach wrote; shared if it lies in one chunk, else copied into one.
  absl::Status Attached(Bytes& bytes);
  // What Attach wrote, as it lies; shared.
  absl::Status Attached(Slices& slices);
  // What Attach wrote, into a vector of T. One copy.
  template <typename T>
  absl::Status Attached(std::vector<T>& elements) {
    size_t size;
    WEFT_RETURN_IF_ERROR(AttachedSize(size));
    if (size % sizeof(T) != 0)
      return Malformed("not a whole number of elements");
    elements.resize(size / sizeof(T));
    return Raw(elements.data(), size);
  }

  // The length of what Attach wrote next; its bytes follow, by Raw or InPlace.
  absl::Status AttachedSize(size_t& size);
  // The next `size` bytes without a copy and free to be written to, if they are
  // this message's alone, in one chunk and aligned; else nothing is read.
  std::optional<Bytes> InPlace(size_t size);

  // The number of elements that follow, each of at least a byte here and
  // `element_bytes` in memory.
  absl::Status Count(size_t element_bytes, size_t& count);

  size_t remaining() const { return bytes_.remaining(); }
  // kInvalidArgument unless all was read.
  absl::Status AtEnd() const;

  static absl::Status Malformed(absl::string_view what);

 private:
  template <typename T>
  absl::Status ReadOne(T& value) {
    if (depth_ == kMaxDepth) return Malformed("nested too deep");
    ++depth_;
    absl::Status status = internal::CodecOf<T>::type::Decode(*this, value);
    --depth_;
    return status;
  }

  absl::Status NoNumber() const;
  absl::Status TooFew(size_t wanted) const;

  SliceReader bytes_;
  const bool is_private_;
  const CodecContext context_;
  const ReceivedAttachments* const attachments_;
  size_t container_bytes_ = 0;
  int depth_ = 0;
};

// The name of T in signatures, the same in every build.
template <typename T>
std::string TypeName() {
  return internal::CodecOf<std::decay_t<T>>::type::TypeName();
}

// "f64, tensor" for a list of types.
template <typename... T>
std::string TypeNames() {
  std::string names;
  ((absl::StrAppend(&names, names.empty() ? "" : ", ", TypeName<T>())), ...);
  return names;
}

namespace internal {

void EncodeMessage(const google::protobuf::MessageLite& message,
                   Encoder& encoder);
absl::Status DecodeMessage(Decoder& decoder,
                           google::protobuf::MessageLite& message);

template <typename T>
constexpr bool kIsNumber = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;
template <typename T>
constexpr bool kIsMessage = std::is_base_of_v<google::protobuf::MessageLite, T>;

// i8 ... u64, f32, f64: by size and kind, since `long` differs by platform.
template <typename T>
std::string NumberName() {
  const char* kind = std::is_floating_point_v<T> ? "f"
                     : std::is_signed_v<T>       ? "i"
                                                 : "u";
  return absl::StrCat(kind, 8 * sizeof(T));
}

}  // namespace internal

template <typename T>
struct Codec<T, std::enable_if_t<internal::kIsNumber<T>>> {
  static std::string TypeName() { return internal::NumberName<T>(); }
  static void Encode(T value, Encoder& e) { e.Raw(&value, sizeof(T)); }
  static absl::Status Decode(Decoder& d, T& value) {
    return d.Raw(&value, sizeof(T));
  }
};

template <>
struct Codec<bool> {
  static std::string TypeName() { return "bool"; }
  static void Encode(bool value, Encoder& e) { e.Varint(value ? 1 : 0); }
  static absl::Status Decode(Decoder& d, bool& value) {
    uint64_t raw = 0;
    WEFT_RETURN_IF_ERROR(d.Varint(raw));
    if (raw > 1) return Decoder::Malformed("a bool that is neither 0 nor 1");
    value = raw == 1;
    return absl::OkStatus();
  }
};

// Any value of the underlying type passes: who switches on it, has a default.
template <typename T>
struct Codec<T, std::enable_if_t<std::is_enum_v<T>>> {
  using Number = std::underlying_type_t<T>;
  static std::string TypeName() {
    return absl::StrCat("enum:", internal::NumberName<Number>());
  }
  static void Encode(T value, Encoder& e) {
    Codec<Number>::Encode(static_cast<Number>(value), e);
  }
  static absl::Status Decode(Decoder& d, T& value) {
    Number number;
    WEFT_RETURN_IF_ERROR(d.Read(number));
    value = static_cast<T>(number);
    return absl::OkStatus();
  }
};

template <>
struct Codec<std::string> {
  static std::string TypeName() { return "string"; }
  static void Encode(absl::string_view value, Encoder& e) {
    e.AttachCopy(value.data(), value.size());
  }
  static absl::Status Decode(Decoder& d, std::string& value);
};

template <>
struct Codec<Bytes> {
  static std::string TypeName() { return "bytes"; }
  static void Encode(Bytes value, Encoder& e) { e.Attach(std::move(value)); }
  static absl::Status Decode(Decoder& d, Bytes& value) {
    return d.Attached(value);
  }
};

// On the wire as Bytes are; read as it lies.
template <>
struct Codec<Slices> {
  static std::string TypeName() { return "bytes"; }
  static void Encode(Slices value, Encoder& e) { e.Attach(std::move(value)); }
  static absl::Status Decode(Decoder& d, Slices& value) {
    return d.Attached(value);
  }
};

template <typename T>
struct Codec<T, std::enable_if_t<internal::kIsMessage<T>>> {
  static std::string TypeName() {
    return absl::StrCat("proto:", T().GetTypeName());
  }
  static void Encode(const T& value, Encoder& e) {
    internal::EncodeMessage(value, e);
  }
  static absl::Status Decode(Decoder& d, T& value) {
    return internal::DecodeMessage(d, value);
  }
};

template <typename T>
struct Codec<std::vector<T>> {
  static std::string TypeName() {
    return absl::StrCat("vector<", rpc::TypeName<T>(), ">");
  }
  template <typename Vector>  // const lvalue or rvalue
  static void Encode(Vector&& values, Encoder& e) {
    if constexpr (internal::kIsNumber<T>) {
      if constexpr (std::is_lvalue_reference_v<Vector>) {
        e.AttachCopy(values.data(), values.size() * sizeof(T));
      } else {
        e.Attach(Bytes::Own(std::forward<Vector>(values)));
      }
    } else {
      e.Varint(values.size());
      for (auto&& value : values) {
        if constexpr (std::is_same_v<T, bool>) {
          e.Write(static_cast<bool>(value));
        } else if constexpr (std::is_lvalue_reference_v<Vector>) {
          e.Write(value);
        } else {
          e.Write(std::move(value));
        }
      }
    }
  }
  static absl::Status Decode(Decoder& d, std::vector<T>& values) {
    if constexpr (internal::kIsNumber<T>) {
      return d.Attached(values);
    } else {
      size_t count;
      WEFT_RETURN_IF_ERROR(d.Count(sizeof(T), count));
      values.clear();
      values.reserve(count);
      for (size_t i = 0; i < count; ++i) {
        T value{};
        WEFT_RETURN_IF_ERROR(d.Read(value));
        values.push_back(std::move(value));
      }
      return absl::OkStatus();
    }
  }
};

namespace internal {

// A sequence of keys and values; a key that comes twice is an error.
template <typename Map>
struct MapCodec {
  using Key = typename Map::key_type;
  using Value = typename Map::mapped_type;

  static std::string TypeName() {
    return absl::StrCat("map<", TypeNames<Key, Value>(), ">");
  }
  static void Encode(const Map& map, Encoder& e) {
    e.Varint(map.size());
    for (const auto& [key, value] : map) e.Write(key, value);
  }
  static absl::Status Decode(Decoder& d, Map& map) {
    // A node has two or three pointers beside the pair.
    size_t count;
    WEFT_RETURN_IF_ERROR(d.Count(sizeof(typename Map::value_type) + 32, count));
    map.clear();
    for (size_t i = 0; i < count; ++i) {
      Key key{};
      Value value{};
      WEFT_RETURN_IF_ERROR(d.Read(key, value));
      if (!map.emplace(std::move(key), std::move(value)).second) {
        return Decoder::Malformed("a map with one key twice");
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace internal

template <typename K, typename V>
struct Codec<std::map<K, V>> : internal::MapCodec<std::map<K, V>> {};
template <typename K, typename V>
struct Codec<std::unordered_map<K, V>>
    : internal::MapCodec<std::unordered_map<K, V>> {};

template <typename... T>
struct Codec<std::tuple<T...>> {
  static std::string TypeName() {
    return absl::StrCat("(", TypeNames<T...>(), ")");
  }
  template <typename Tuple>
  static void Encode(Tuple&& values, Encoder& e) {
    if constexpr (sizeof...(T) == 0) e.Varint(0);  // see Decoder::Count
    std::apply(
        [&e](auto&&... v) {
          if constexpr (std::is_lvalue_reference_v<Tuple>) {
            e.Write(v...);
          } else {
            e.Write(std::move(v)...);
          }
        },
        values);
  }
  static absl::Status Decode(Decoder& d, std::tuple<T...>& values) {
    if constexpr (sizeof...(T) == 0) {
      uint64_t zero;
      return d.Varint(zero);
    } else {
      return std::apply([&d](T&... v) { return d.Read(v...); }, values);
    }
  }
};

template <typename A, typename B>
struct Codec<std::pair<A, B>> {
  static std::string TypeName() {
    return absl::StrCat("(", TypeNames<A, B>(), ")");
  }
  static void Encode(const std::pair<A, B>& v, Encoder& e) {
    e.Write(v.first, v.second);
  }
  static void Encode(std::pair<A, B>&& v, Encoder& e) {
    e.Write(std::move(v.first), std::move(v.second));
  }
  static absl::Status Decode(Decoder& d, std::pair<A, B>& v) {
    return d.Read(v.first, v.second);
  }
};

template <typename T>
struct Codec<std::optional<T>> {
  static std::string TypeName() {
    return absl::StrCat("optional<", rpc::TypeName<T>(), ">");
  }
  template <typename Optional>
  static void Encode(Optional&& value, Encoder& e) {
    e.Write(value.has_value());
    if (value.has_value()) e.Write(*std::forward<Optional>(value));
  }
  static absl::Status Decode(Decoder& d, std::optional<T>& value) {
    bool has_value = false;
    WEFT_RETURN_IF_ERROR(d.Read(has_value));
    if (!has_value) {
      value.reset();
      return absl::OkStatus();
    }
    return d.Read(value.emplace());
  }
};

template <>
struct Codec<std::monostate> {
  static std::string TypeName() { return "none"; }
  static void Encode(std::monostate, Encoder& e) { e.Varint(0); }
  static absl::Status Decode(Decoder& d, std::monostate&) {
    uint64_t zero;
    return d.Varint(zero);
  }
};

template <typename... T>
struct Codec<std::variant<T...>> {
  using Variant = std::variant<T...>;
  static std::string TypeName() {
    return absl::StrCat("variant<", TypeNames<T...>(), ">");
  }
  template <typename V>
  static void Encode(V&& value, Encoder& e) {
    if (value.valueless_by_exception()) {
      e.Fail(absl::InvalidArgumentError("a variant without a value"));
      return;
    }
    e.Varint(value.index());
    std::visit([&e](auto&& v) { e.Write(std::forward<decltype(v)>(v)); },
               std::forward<V>(value));
  }
  static absl::Status Decode(Decoder& d, Variant& value) {
    uint64_t index;
    WEFT_RETURN_IF_ERROR(d.Varint(index));
    if (index >= sizeof...(T)) {
      return Decoder::Malformed("a variant of an unknown kind");
    }
    return DecodeAlternative<0>(d, index, value);
  }

 private:
  template <size_t I>
  static absl::Status DecodeAlternative(Decoder& d, uint64_t index,
                                        Variant& value) {
    if constexpr (I < sizeof...(T)) {
      if (index == I) return d.Read(value.template emplace<I>());
      return DecodeAlternative<I + 1>(d, index, value);
    } else {
      return Decoder::Malformed("a variant of an unknown kind");
    }
  }
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_CODEC_CODEC_H_
