#include "weft/rpc/gateway/untyped_value.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/tensor/codec.h"

namespace weft::rpc {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using Kind = Type::Kind;

constexpr int kMaxFields = 1 << 18;
// Each level of a value takes up to three of messages.
constexpr int kMaxMessageDepth = 3 * Decoder::kMaxDepth;

// ---------------------------------------------------------------- in bounds

// A message on the way to a value; kLeaf holds bytes or numbers only.
enum class Level {
  kRequest,
  kValue,
  kList,
  kMap,
  kEntry,
  kChoice,
  kTensor,
  kHeader,
  kLeaf
};

// What field `number` of a `parent` is.
Level ChildOf(Level parent, int number) {
  static constexpr struct {
    Level parent;
    int number;
    Level child;
  } kFields[] = {
      {Level::kRequest, 2, Level::kValue}, {Level::kValue, 7, Level::kTensor},
      {Level::kValue, 12, Level::kList},   {Level::kValue, 13, Level::kMap},
      {Level::kValue, 14, Level::kChoice}, {Level::kList, 1, Level::kValue},
      {Level::kMap, 1, Level::kEntry},     {Level::kEntry, 1, Level::kValue},
      {Level::kEntry, 2, Level::kValue},   {Level::kChoice, 2, Level::kValue},
      {Level::kTensor, 1, Level::kHeader}};
  for (const auto& field : kFields) {
    if (field.parent == parent && field.number == number) return field.child;
  }
  return Level::kLeaf;
}

// Takes one of `budget` for each field at every depth; false if it does not
// suffice or the bytes are not a message. No memory is taken.
bool FieldsFit(CodedInputStream& in, Level level, int& budget) {
  // A shape's sizes are packed: 8 bytes of memory for one here.
  if (level == Level::kHeader && in.BytesUntilLimit() > 1024) return false;
  while (const uint32_t tag = in.ReadTag()) {
    if (--budget < 0) return false;
    const Level child = ChildOf(level, WireFormatLite::GetTagFieldNumber(tag));
    if (child == Level::kLeaf ||
        WireFormatLite::GetTagWireType(tag) !=
            WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&in, tag)) return false;
      continue;
    }
    uint32_t size;
    if (!in.ReadVarint32(&size) || size > static_cast<uint32_t>(INT32_MAX)) {
      return false;
    }
    const auto [outer, depth] =
        in.IncrementRecursionDepthAndPushLimit(static_cast<int>(size));
    if (depth < 0 || !FieldsFit(in, child, budget)) return false;
    if (!in.DecrementRecursionDepthAndPopLimit(outer)) return false;
  }
  return in.ConsumedEntireMessage();
}

// ----------------------------------------------------------------- encoding

const char* NameOf(const v1::Value& value) {
  switch (value.kind_case()) {
    case v1::Value::kBoolean:
      return "a boolean";
    case v1::Value::kInteger:
    case v1::Value::kNatural:
      return "an integer";
    case v1::Value::kReal:
      return "a real number";
    case v1::Value::kText:
      return "a text";
    case v1::Value::kBytes:
      return "bytes";
    case v1::Value::kTensor:
      return "a tensor";
    case v1::Value::kMessage:
      return "a message";
    case v1::Value::kIntegers:
    case v1::Value::kNaturals:
      return "integers";
    case v1::Value::kReals:
      return "real numbers";
    case v1::Value::kList:
      return "a list";
    case v1::Value::kMap:
      return "a map";
    case v1::Value::kChoice:
      return "a choice";
    case v1::Value::KIND_NOT_SET:
      return "nothing";
  }
  return "an unknown kind";
}

absl::Status Mismatch(const Type& type, const v1::Value& found) {
  return absl::InvalidArgumentError(
      absl::StrCat("wanted ", type.name, ", found ", NameOf(found)));
}

absl::Status OutOfRange(const Type& type, absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat(found, " does not fit ", type.name));
}

// A number as it came: as wide as can be, with its sign.
using Number = std::variant<int64_t, uint64_t, double>;

template <typename T>
absl::Status PutAs(T value, Encoder& encoder) {
  encoder.Raw(&value, sizeof value);
  return absl::OkStatus();
}

// The lowest bytes of an integer that fits.
absl::Status PutInteger(uint64_t bits, const Type& type, Encoder& encoder) {
  encoder.Raw(&bits, static_cast<size_t>(type.bytes));
  return absl::OkStatus();
}

absl::Status PutNumber(const Number& n, const Type& type, Encoder& encoder) {
  if (type.kind == Kind::kFloat) {
    const double real =
        std::visit([](auto x) { return static_cast<double>(x); }, n);
    if (type.bytes == 8) return PutAs(real, encoder);
    if (std::isfinite(real) &&
        std::abs(real) > std::numeric_limits<float>::max()) {
      return OutOfRange(type, absl::StrCat(real));
    }
    return PutAs(static_cast<float>(real), encoder);
  }
  if (std::holds_alternative<double>(n)) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted ", type.name, ", found a real number"));
  }
  const int64_t* const integer = std::get_if<int64_t>(&n);
  const bool is_negative = integer != nullptr && *integer < 0;
  const uint64_t bits = integer != nullptr ? static_cast<uint64_t>(*integer)
                                           : std::get<uint64_t>(n);
  const int width = 8 * type.bytes;
  const uint64_t largest = ~uint64_t{0} >> (65 - width);
  bool fits;
  if (type.kind == Kind::kUnsigned) {
    fits = !is_negative && (width == 64 || bits >> width == 0);
  } else {
    fits = is_negative ? static_cast<uint64_t>(-(*integer + 1)) <= largest
                       : bits <= largest;
  }
  if (fits) return PutInteger(bits, type, encoder);
  return OutOfRange(type,
                    is_negative ? absl::StrCat(*integer) : absl::StrCat(bits));
}

absl::Status EncodeValue(const v1::Value& value, const Type& type,
                         Encoder& encoder);

absl::Status EncodeNumber(const v1::Value& value, const Type& type,
                          Encoder& encoder) {
  switch (value.kind_case()) {
    case v1::Value::kInteger:
      return PutNumber(int64_t{value.integer()}, type, encoder);
    case v1::Value::kNatural:
      return PutNumber(uint64_t{value.natural()}, type, encoder);
    case v1::Value::kReal:
      return PutNumber(value.real(), type, encoder);
    default:
      return Mismatch(type, value);
  }
}

absl::Status EncodeTensorValue(const v1::Value& value, const Type& type,
                               Encoder& encoder) {
  if (value.kind_case() == v1::Value::KIND_NOT_SET) {
    encoder.Write(Tensor());
    return absl::OkStatus();
  }
  if (!value.has_tensor()) return Mismatch(type, value);
  WEFT_ASSIGN_OR_RETURN(Tensor tensor, DecodeTensor(value.tensor()));
  encoder.Write(std::move(tensor));
  return absl::OkStatus();
}

absl::Status At(size_t index, const absl::Status& status) {
  return Reworded(status,
                  absl::StrCat("element ", index, ": ", status.message()));
}

// Each of `values`, by `encode`, after how many they are: bytes of a vector of
// numbers, elements of another.
template <typename Values, typename Encode>
absl::Status EncodeElements(const Values& values, const Type& element,
                            Encoder& encoder, Encode encode) {
  const bool is_numbers = element.is_number() && !element.is_enum;
  Encoder numbers;
  Encoder& to = is_numbers ? numbers : encoder;
  if (!is_numbers) to.Varint(static_cast<uint64_t>(values.size()));
  size_t index = 0;
  for (const auto& value : values) {
    const absl::Status status = encode(value, to);
    if (!status.ok()) return At(index, status);
    ++index;
  }
  if (!is_numbers) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(Slices encoded, std::move(numbers).Finish());
  encoder.Attach(Flatten(encoded));
  return absl::OkStatus();
}

absl::Status EncodeVector(const v1::Value& value, const Type& type,
                          Encoder& encoder) {
  const Type& element = type.of[0];
  if (value.has_list()) {
    return EncodeElements(value.list().values(), element, encoder,
                          [&](const v1::Value& one, Encoder& to) {
                            return EncodeValue(one, element, to);
                          });
  }
  if (!element.is_number()) return Mismatch(type, value);
  const auto put = [&](Number one, Encoder& to) {
    return PutNumber(one, element, to);
  };
  switch (value.kind_case()) {
    case v1::Value::kIntegers:
      return EncodeElements(value.integers().values(), element, encoder, put);
    case v1::Value::kNaturals:
      return EncodeElements(value.naturals().values(), element, encoder, put);
    case v1::Value::kReals:
      return EncodeElements(value.reals().values(), element, encoder, put);
    default:
      return Mismatch(type, value);
  }
}

absl::Status EncodeTuple(const v1::Value& value, const Type& type,
                         Encoder& encoder) {
  if (!value.has_list()) return Mismatch(type, value);
  const auto& values = value.list().values();
  if (static_cast<size_t>(values.size()) != type.of.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted ", type.name, ", found a list of ", values.size()));
  }
  if (type.of.empty()) encoder.Varint(0);
  for (size_t i = 0; i < type.of.size(); ++i) {
    const absl::Status status =
        EncodeValue(values[static_cast<int>(i)], type.of[i], encoder);
    if (!status.ok()) return At(i, status);
  }
  return absl::OkStatus();
}

absl::Status EncodeMap(const v1::Value& value, const Type& type,
                       Encoder& encoder) {
  if (!value.has_map()) return Mismatch(type, value);
  encoder.Varint(static_cast<uint64_t>(value.map().entries_size()));
  size_t index = 0;
  for (const v1::Entry& entry : value.map().entries()) {
    absl::Status status = EncodeValue(entry.key(), type.of[0], encoder);
    if (status.ok()) status = EncodeValue(entry.value(), type.of[1], encoder);
    if (!status.ok()) return At(index, status);
    ++index;
  }
  return absl::OkStatus();
}

absl::Status EncodeVariant(const v1::Value& value, const Type& type,
                           Encoder& encoder) {
  if (!value.has_choice()) return Mismatch(type, value);
  const uint32_t index = value.choice().index();
  if (index >= type.of.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(type.name, " has no alternative ", index));
  }
  encoder.Varint(index);
  return EncodeValue(value.choice().value(), type.of[index], encoder);
}

absl::Status EncodeText(const v1::Value& value, const Type& type,
                        Encoder& encoder) {
  const std::string* bytes = nullptr;
  if (type.kind == Kind::kMessage) {
    if (value.kind_case() == v1::Value::kMessage) bytes = &value.message();
  } else if (value.kind_case() == v1::Value::kText) {
    bytes = &value.text();
  } else if (value.kind_case() == v1::Value::kBytes) {
    bytes = &value.bytes();
  }
  if (bytes == nullptr) return Mismatch(type, value);
  encoder.AttachCopy(bytes->data(), bytes->size());
  return absl::OkStatus();
}

absl::Status EncodeValue(const v1::Value& value, const Type& type,
                         Encoder& encoder) {
  const bool is_absent = value.kind_case() == v1::Value::KIND_NOT_SET;
  switch (type.kind) {
    case Kind::kBool:
      if (value.kind_case() != v1::Value::kBoolean) {
        return Mismatch(type, value);
      }
      encoder.Write(value.boolean());
      return absl::OkStatus();
    case Kind::kSigned:
    case Kind::kUnsigned:
    case Kind::kFloat:
      return EncodeNumber(value, type, encoder);
    case Kind::kString:
    case Kind::kBytes:
    case Kind::kMessage:
      return EncodeText(value, type, encoder);
    case Kind::kTensor:
      return EncodeTensorValue(value, type, encoder);
    case Kind::kVector:
      return EncodeVector(value, type, encoder);
    case Kind::kMap:
      return EncodeMap(value, type, encoder);
    case Kind::kTuple:
      return EncodeTuple(value, type, encoder);
    case Kind::kOptional:
      encoder.Write(!is_absent);
      if (is_absent) return absl::OkStatus();
      return EncodeValue(value, type.of[0], encoder);
    case Kind::kVariant:
      return EncodeVariant(value, type, encoder);
    case Kind::kNone:
      if (!is_absent) return Mismatch(type, value);
      encoder.Varint(0);
      return absl::OkStatus();
    case Kind::kVoid:
    case Kind::kOther:
      break;  // CheckUntyped refuses them
  }
  return absl::InternalError(absl::StrCat(type.name, " has no untyped form"));
}

// ----------------------------------------------------------------- decoding

absl::StatusOr<Number> TakeNumber(Decoder& decoder, const Type& type) {
  uint64_t bits = 0;
  WEFT_RETURN_IF_ERROR(decoder.Raw(&bits, static_cast<size_t>(type.bytes)));
  const int unused = 64 - 8 * type.bytes;
  // The shifts carry the sign to the left.
  if (type.kind == Kind::kSigned) {
    return static_cast<int64_t>(bits << unused) >> unused;
  }
  if (type.kind != Kind::kFloat) return bits;
  float single;
  double real;
  std::memcpy(&single, &bits, sizeof single);
  std::memcpy(&real, &bits, sizeof real);
  return type.bytes == 4 ? double{single} : real;
}

absl::Status DecodeNumbers(Decoder& decoder, const Type& element,
                           v1::Value* value) {
  size_t size;
  WEFT_RETURN_IF_ERROR(decoder.AttachedSize(size));
  const size_t count = size / static_cast<size_t>(element.bytes);
  for (size_t i = 0; i < count; ++i) {
    WEFT_ASSIGN_OR_RETURN(const Number number, TakeNumber(decoder, element));
    if (const auto* integer = std::get_if<int64_t>(&number)) {
      value->mutable_integers()->add_values(*integer);
    } else if (const auto* natural = std::get_if<uint64_t>(&number)) {
      value->mutable_naturals()->add_values(*natural);
    } else {
      value->mutable_reals()->add_values(std::get<double>(number));
    }
  }
  if (count > 0) return absl::OkStatus();
  if (element.kind == Kind::kFloat) value->mutable_reals();
  if (element.kind == Kind::kSigned) value->mutable_integers();
  if (element.kind == Kind::kUnsigned) value->mutable_naturals();
  return absl::OkStatus();
}

absl::Status DecodeValue(Decoder& decoder, const Type& type, v1::Value* value);

absl::Status DecodeText(Decoder& decoder, const Type& type, v1::Value* value) {
  std::string bytes;
  WEFT_RETURN_IF_ERROR(decoder.Read(bytes));
  if (type.kind == Kind::kMessage) {
    value->set_message(std::move(bytes));
  } else if (type.kind == Kind::kString &&
             google::protobuf::internal::IsStructurallyValidUTF8(bytes)) {
    value->set_text(std::move(bytes));
  } else {
    value->set_bytes(std::move(bytes));
  }
  return absl::OkStatus();
}

absl::Status DecodeElements(Decoder& decoder, const Type& type,
                            v1::Value* value) {
  const Type& element = type.of[0];
  if (element.is_number() && !element.is_enum) {
    return DecodeNumbers(decoder, element, value);
  }
  v1::List* list = value->mutable_list();
  size_t count;
  WEFT_RETURN_IF_ERROR(decoder.Count(sizeof(v1::Value), count));
  for (size_t i = 0; i < count; ++i) {
    WEFT_RETURN_IF_ERROR(DecodeValue(decoder, element, list->add_values()));
  }
  return absl::OkStatus();
}

absl::Status DecodeMap(Decoder& decoder, const Type& type, v1::Value* value) {
  v1::Map* map = value->mutable_map();
  size_t count;
  WEFT_RETURN_IF_ERROR(decoder.Count(sizeof(v1::Entry), count));
  for (size_t i = 0; i < count; ++i) {
    v1::Entry* entry = map->add_entries();
    WEFT_RETURN_IF_ERROR(
        DecodeValue(decoder, type.of[0], entry->mutable_key()));
    WEFT_RETURN_IF_ERROR(
        DecodeValue(decoder, type.of[1], entry->mutable_value()));
  }
  return absl::OkStatus();
}

absl::Status DecodeTuple(Decoder& decoder, const Type& type, v1::Value* value) {
  v1::List* list = value->mutable_list();
  uint64_t zero;
  if (type.of.empty()) return decoder.Varint(zero);
  for (const Type& element : type.of) {
    WEFT_RETURN_IF_ERROR(DecodeValue(decoder, element, list->add_values()));
  }
  return absl::OkStatus();
}

absl::Status DecodeVariant(Decoder& decoder, const Type& type,
                           v1::Value* value) {
  uint64_t index;
  WEFT_RETURN_IF_ERROR(decoder.Varint(index));
  if (index >= type.of.size()) {
    return Decoder::Malformed("a variant of an unknown kind");
  }
  value->mutable_choice()->set_index(static_cast<uint32_t>(index));
  return DecodeValue(decoder, type.of[index],
                     value->mutable_choice()->mutable_value());
}

// What our own function wrote; that it is malformed would be a bug, and is an
// error nevertheless.
absl::Status DecodeValue(Decoder& decoder, const Type& type, v1::Value* value) {
  bool boolean = false;
  uint64_t zero;
  Tensor tensor;
  switch (type.kind) {
    case Kind::kBool:
      WEFT_RETURN_IF_ERROR(decoder.Read(boolean));
      value->set_boolean(boolean);
      return absl::OkStatus();
    case Kind::kSigned:
    case Kind::kUnsigned:
    case Kind::kFloat: {
      WEFT_ASSIGN_OR_RETURN(const Number number, TakeNumber(decoder, type));
      if (const auto* integer = std::get_if<int64_t>(&number)) {
        value->set_integer(*integer);
      } else if (const auto* natural = std::get_if<uint64_t>(&number)) {
        value->set_natural(*natural);
      } else {
        value->set_real(std::get<double>(number));
      }
      return absl::OkStatus();
    }
    case Kind::kString:
    case Kind::kBytes:
    case Kind::kMessage:
      return DecodeText(decoder, type, value);
    case Kind::kTensor:
      WEFT_RETURN_IF_ERROR(decoder.Read(tensor));
      if (tensor.defined()) *value->mutable_tensor() = EncodeTensor(tensor);
      return absl::OkStatus();
    case Kind::kVector:
      return DecodeElements(decoder, type, value);
    case Kind::kMap:
      return DecodeMap(decoder, type, value);
    case Kind::kTuple:
      return DecodeTuple(decoder, type, value);
    case Kind::kOptional:
      WEFT_RETURN_IF_ERROR(decoder.Read(boolean));
      if (!boolean) return absl::OkStatus();
      return DecodeValue(decoder, type.of[0], value);
    case Kind::kVariant:
      return DecodeVariant(decoder, type, value);
    case Kind::kNone:
      return decoder.Varint(zero);
    case Kind::kVoid:
    case Kind::kOther:
      break;  // CheckUntyped refuses them
  }
  return absl::InternalError(absl::StrCat(type.name, " has no untyped form"));
}

absl::Status CheckType(const Type& type) {
  if (type.kind == Kind::kOther) {
    return absl::UnimplementedError(absl::StrCat(
        type.name,
        " has no untyped form: give the function a protobuf message"));
  }
  for (const Type& part : type.of) WEFT_RETURN_IF_ERROR(CheckType(part));
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseUntyped(const Slices& bytes, v1::CallRequest* request) {
  const Bytes whole = Flatten(bytes);
  const auto size = static_cast<int>(
      std::min<size_t>(whole.size(), std::numeric_limits<int>::max()));
  {
    CodedInputStream in(whole.data(), size);
    in.SetRecursionLimit(kMaxMessageDepth);
    int budget = kMaxFields;
    if (!FieldsFit(in, Level::kRequest, budget)) {
      return absl::InvalidArgumentError(
          budget < 0 ? "a CallRequest of more than 2^18 fields: send numbers "
                       "packed, or as a tensor"
                     : "not a CallRequest, or nested too deep");
    }
  }
  CodedInputStream in(whole.data(), size);
  in.SetRecursionLimit(kMaxMessageDepth);
  if (request->ParseFromCodedStream(&in)) return absl::OkStatus();
  return absl::InvalidArgumentError("not a CallRequest");
}

absl::Status CheckUntyped(const Signature& signature) {
  WEFT_RETURN_IF_ERROR(CheckType(signature.result));
  for (const Type& type : signature.parameters) {
    WEFT_RETURN_IF_ERROR(CheckType(type));
  }
  return absl::OkStatus();
}

absl::StatusOr<Slices> EncodeUntyped(const v1::CallRequest& request,
                                     const Signature& signature) {
  const size_t wanted = signature.parameters.size();
  const auto found = static_cast<size_t>(request.arguments_size());
  if (found != wanted) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted ", wanted, wanted == 1 ? " argument" : " arguments", ", found ",
        found));
  }
  Encoder encoder;
  for (size_t i = 0; i < wanted; ++i) {
    const absl::Status status =
        EncodeValue(request.arguments(static_cast<int>(i)),
                    signature.parameters[i], encoder);
    if (!status.ok()) {
      return Reworded(status,
                      absl::StrCat("argument ", i + 1, ": ", status.message()));
    }
  }
  return std::move(encoder).Finish();
}

absl::Status DecodeUntyped(const Received& result, const Signature& signature,
                           v1::CallReply* reply) {
  Decoder decoder(result);
  if (signature.result.kind != Kind::kVoid) {
    WEFT_RETURN_IF_ERROR(
        DecodeValue(decoder, signature.result, reply->mutable_result()));
  }
  return decoder.AtEnd();
}

}  // namespace weft::rpc
