#include "weft/launch/commands/json_value.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/tensor/codec.h"
#include "weft/tensor/tensor.h"

namespace weft::launch {
namespace {

using Json = nlohmann::json;
using Kind = rpc::Type::Kind;
using rpc::Type;
using rpc::v1::Value;

constexpr int kMaxLevels = 64;

absl::Status Wanted(absl::string_view wanted, const Json& found) {
  std::string text = found.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = absl::StrCat(text.substr(0, 60), "...");
  return absl::InvalidArgumentError(
      absl::StrCat("wanted ", wanted, ", found ", text));
}

absl::StatusOr<double> RealFromJson(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  return Wanted("a number", json);
}

Json JsonFromReal(double real) {
  if (std::isfinite(real)) return real;
  return std::isnan(real) ? "nan" : real > 0 ? "inf" : "-inf";
}

// ----------------------------------------------------------------- tensors

// The numbers of nested arrays, row-major, and their sizes from the outside.
absl::Status Flatten(const Json& json, size_t depth, Shape& shape,
                     std::vector<double>& values) {
  if (!json.is_array()) {
    if (depth < static_cast<size_t>(shape.size())) {
      return Wanted("an array as long as its neighbours", json);
    }
    if (json.is_boolean()) {
      values.push_back(json.get<bool>() ? 1 : 0);
      return absl::OkStatus();
    }
    WEFT_ASSIGN_OR_RETURN(const double value, RealFromJson(json));
    values.push_back(value);
    return absl::OkStatus();
  }
  const auto size = static_cast<int64_t>(json.size());
  if (depth == static_cast<size_t>(shape.size())) {
    if (!values.empty()) {
      return Wanted("a number, as its neighbours are", json);
    }
    if (depth == kMaxDims) return Wanted("at most 32 dimensions", json);
    shape.push_back(size);
  } else if (shape[depth] != size) {
    return Wanted(absl::StrCat("an array of ", shape[depth]), json);
  }
  for (const Json& element : json) {
    WEFT_RETURN_IF_ERROR(Flatten(element, depth + 1, shape, values));
  }
  return absl::OkStatus();
}

absl::StatusOr<DType> DTypeNamed(const Json& json) {
  for (const DType dtype : kAllDTypes) {
    if (json == std::string(Name(dtype))) return dtype;
  }
  return Wanted("f32, f64, i64, u8, bool, f16, bf16, i32 or i8 as dtype", json);
}

// Conversions of numbers wrap, or are undefined, where one is no size.
absl::StatusOr<Shape> ShapeFromJson(const Json& json) {
  constexpr absl::string_view kWanted =
      "an array of whole numbers from 0 as shape";
  if (!json.is_array()) return Wanted(kWanted, json);
  Shape shape;
  for (const Json& size : json) {
    if (!size.is_number_unsigned() ||
        size.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
      return Wanted(kWanted, json);
    }
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

// The least and the most that an element may be; of i64 what a double, by which
// numbers are read, tells from its neighbours.
std::pair<double, double> RangeOf(DType dtype) {
  constexpr double kExact = 9007199254740991;  // 2^53 - 1
  switch (dtype) {
    case DType::kI64:
      return {-kExact, kExact};
    case DType::kI32:
      return {std::numeric_limits<int32_t>::min(),
              std::numeric_limits<int32_t>::max()};
    case DType::kI8:
      return {std::numeric_limits<int8_t>::min(),
              std::numeric_limits<int8_t>::max()};
    case DType::kU8:
      return {0, std::numeric_limits<uint8_t>::max()};
    default:
      return {0, 1};
  }
}

// A conversion would cut or wrap such a number, or is undefined.
absl::Status CheckFit(const std::vector<double>& values, DType dtype) {
  if (IsFloating(dtype)) return absl::OkStatus();
  const auto [least, most] = RangeOf(dtype);
  for (const double value : values) {
    // NaN fails these comparisons, and is refused.
    if (value >= least && value <= most && value == std::trunc(value)) continue;
    return Wanted(
        absl::StrCat("whole numbers from ", Json(least).dump(), " to ",
                     Json(most).dump(), " in values of ", Name(dtype)),
        JsonFromReal(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> TensorFromJson(const Json& json) {
  DType dtype = DType::kF32;
  const bool is_object = json.is_object();
  if (is_object && json.contains("dtype")) {
    WEFT_ASSIGN_OR_RETURN(dtype, DTypeNamed(json["dtype"]));
  }
  if (is_object && !json.contains("values")) {
    return Wanted("{\"dtype\", \"shape\", \"values\"}", json);
  }
  Shape shape;
  std::vector<double> values;
  WEFT_RETURN_IF_ERROR(
      Flatten(is_object ? json["values"] : json, 0, shape, values));
  WEFT_RETURN_IF_ERROR(CheckFit(values, dtype));
  Shape given = shape;
  if (is_object && json.contains("shape")) {
    WEFT_ASSIGN_OR_RETURN(given, ShapeFromJson(json["shape"]));
  }
  return CatchToStatus([&] {
    return Tensor::FromVector<double>(values, shape).Reshape(given).To(dtype);
  });
}

Json JsonFromTensor(const rpc::v1::Value& value) {
  if (!value.has_tensor()) return nullptr;
  const absl::StatusOr<Tensor> tensor = DecodeTensor(value.tensor());
  if (!tensor.ok()) return std::string(tensor.status().message());
  Json values = Json::array();
  if (IsFloating(tensor->dtype())) {
    const Tensor reals = tensor->To(DType::kF64).Contiguous();
    for (const double real : reals.span<double>()) {
      values.push_back(JsonFromReal(real));
    }
  } else {
    const Tensor whole = tensor->To(DType::kI64).Contiguous();
    const bool is_bool = tensor->dtype() == DType::kBool;
    for (const int64_t one : whole.span<int64_t>()) {
      values.push_back(is_bool ? Json(one != 0) : Json(one));
    }
  }
  return {{"dtype", std::string(Name(tensor->dtype()))},
          {"shape", std::vector<int64_t>(tensor->shape().begin(),
                                         tensor->shape().end())},
          {"values", std::move(values)}};
}

// -------------------------------------------------------------- containers

// [key, value] or an object's member.
absl::Status AddEntry(const Json& key, const Json& value, const Type& type,
                      Value* map) {
  rpc::v1::Entry* entry = map->mutable_map()->add_entries();
  WEFT_ASSIGN_OR_RETURN(*entry->mutable_key(), ValueFromJson(key, type.of[0]));
  WEFT_ASSIGN_OR_RETURN(*entry->mutable_value(),
                        ValueFromJson(value, type.of[1]));
  return absl::OkStatus();
}

absl::StatusOr<Value> MapFromJson(const Json& json, const Type& type) {
  Value map;
  map.mutable_map();
  if (type.of[0].kind == Kind::kString && json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      WEFT_RETURN_IF_ERROR(AddEntry(key, value, type, &map));
    }
    return map;
  }
  if (!json.is_array()) return Wanted(type.name, json);
  for (const Json& pair : json) {
    if (!pair.is_array() || pair.size() != 2) {
      return Wanted("[key, value]", pair);
    }
    WEFT_RETURN_IF_ERROR(AddEntry(pair[0], pair[1], type, &map));
  }
  return map;
}

absl::StatusOr<Value> ListFromJson(const Json& json, const Type& type) {
  if (!json.is_array()) return Wanted(type.name, json);
  const bool is_tuple = type.kind == Kind::kTuple;
  if (is_tuple && json.size() != type.of.size()) {
    return Wanted(absl::StrCat(type.name, ", an array of ", type.of.size()),
                  json);
  }
  Value list;
  list.mutable_list();
  for (size_t i = 0; i < json.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(
        *list.mutable_list()->add_values(),
        ValueFromJson(json[i], is_tuple ? type.of[i] : type.of[0]));
  }
  return list;
}

absl::StatusOr<Value> ChoiceFromJson(const Json& json, const Type& type) {
  if (!json.is_object() || !json.contains("index") ||
      !json["index"].is_number_unsigned() || json["index"] >= type.of.size()) {
    return Wanted(absl::StrCat(type.name, ", as {\"index\", \"value\"}"), json);
  }
  const auto index = json["index"].get<uint32_t>();
  Value value;
  value.mutable_choice()->set_index(index);
  WEFT_ASSIGN_OR_RETURN(
      *value.mutable_choice()->mutable_value(),
      ValueFromJson(json.value("value", Json()), type.of[index]));
  return value;
}

absl::StatusOr<Value> NumberFromJson(const Json& json, const Type& type) {
  Value value;
  if (json.is_number_unsigned()) {
    value.set_natural(json.get<uint64_t>());
  } else if (json.is_number_integer()) {
    value.set_integer(json.get<int64_t>());
  } else if (type.kind == Kind::kFloat) {
    const absl::StatusOr<double> real = RealFromJson(json);
    if (!real.ok()) return Wanted(type.name, json);
    value.set_real(*real);
  } else {
    return Wanted(type.name, json);
  }
  return value;
}

absl::StatusOr<Value> TextFromJson(const Json& json, const Type& type) {
  Value value;
  if (!json.is_string()) return Wanted(type.name, json);
  if (type.kind == Kind::kString) {
    value.set_text(json.get<std::string>());
    return value;
  }
  std::string bytes;
  if (!absl::Base64Unescape(json.get<std::string>(), &bytes)) {
    return Wanted(absl::StrCat(type.name, " as base64"), json);
  }
  if (type.kind == Kind::kMessage) {
    value.set_message(std::move(bytes));
  } else {
    value.set_bytes(std::move(bytes));
  }
  return value;
}

std::string BytesOf(const Value& value) {
  return value.kind_case() == Value::kText      ? value.text()
         : value.kind_case() == Value::kMessage ? value.message()
                                                : value.bytes();
}

Json JsonFromList(const Value& value, const Type& type) {
  Json list = Json::array();
  for (const int64_t one : value.integers().values()) list.push_back(one);
  for (const uint64_t one : value.naturals().values()) list.push_back(one);
  for (const double one : value.reals().values()) {
    list.push_back(JsonFromReal(one));
  }
  const auto& values = value.list().values();
  for (int i = 0; i < values.size(); ++i) {
    const size_t at = type.kind == Kind::kTuple ? static_cast<size_t>(i) : 0;
    if (at < type.of.size()) {
      list.push_back(JsonFromValue(values[i], type.of[at]));
    }
  }
  return list;
}

Json JsonFromMap(const Value& value, const Type& type) {
  const bool is_object = type.of[0].kind == Kind::kString;
  Json map = is_object ? Json::object() : Json::array();
  for (const rpc::v1::Entry& entry : value.map().entries()) {
    Json key = JsonFromValue(entry.key(), type.of[0]);
    Json held = JsonFromValue(entry.value(), type.of[1]);
    if (is_object && key.is_string()) {
      map[key.get<std::string>()] = std::move(held);
    } else if (!is_object) {
      map.push_back({std::move(key), std::move(held)});
    }
  }
  return map;
}

}  // namespace

Json ParseJson(const std::string& text) {
  bool is_deep = false;
  Json parsed = Json::parse(
      text,
      [&](int around, Json::parse_event_t event, const Json&) {
        const bool begins = event == Json::parse_event_t::array_start ||
                            event == Json::parse_event_t::object_start;
        is_deep |= begins && around >= kMaxLevels;
        return !is_deep;
      },
      /*allow_exceptions=*/false);
  return is_deep ? Json(Json::value_t::discarded) : parsed;
}

absl::StatusOr<Value> ValueFromJson(const Json& json, const Type& type) {
  Value value;
  switch (type.kind) {
    case Kind::kBool:
      if (!json.is_boolean()) return Wanted(type.name, json);
      value.set_boolean(json.get<bool>());
      return value;
    case Kind::kSigned:
    case Kind::kUnsigned:
    case Kind::kFloat:
      return NumberFromJson(json, type);
    case Kind::kString:
    case Kind::kBytes:
    case Kind::kMessage:
      return TextFromJson(json, type);
    case Kind::kTensor: {
      if (json.is_null()) return value;
      WEFT_ASSIGN_OR_RETURN(const Tensor tensor, TensorFromJson(json));
      *value.mutable_tensor() = EncodeTensor(tensor);
      return value;
    }
    case Kind::kVector:
    case Kind::kTuple:
      return ListFromJson(json, type);
    case Kind::kMap:
      return MapFromJson(json, type);
    case Kind::kOptional:
      if (json.is_null()) return value;
      return ValueFromJson(json, type.of[0]);
    case Kind::kVariant:
      return ChoiceFromJson(json, type);
    case Kind::kNone:
      if (!json.is_null()) return Wanted("null", json);
      return value;
    case Kind::kVoid:
    case Kind::kOther:
      break;
  }
  return absl::UnimplementedError(
      absl::StrCat(type.name, " has no untyped form"));
}

Json JsonFromValue(const Value& value, const Type& type) {
  if (value.kind_case() == Value::KIND_NOT_SET) return nullptr;
  switch (type.kind) {
    case Kind::kBool:
      return value.boolean();
    case Kind::kSigned:
      return value.integer();
    case Kind::kUnsigned:
      return value.natural();
    case Kind::kFloat:
      return JsonFromReal(value.real());
    case Kind::kString:
      if (value.kind_case() == Value::kText) return value.text();
      return absl::Base64Escape(BytesOf(value));
    case Kind::kBytes:
    case Kind::kMessage:
      return absl::Base64Escape(BytesOf(value));
    case Kind::kTensor:
      return JsonFromTensor(value);
    case Kind::kVector:
    case Kind::kTuple:
      return JsonFromList(value, type);
    case Kind::kMap:
      return JsonFromMap(value, type);
    case Kind::kOptional:
      return JsonFromValue(value, type.of[0]);
    case Kind::kVariant:
      if (value.choice().index() >= type.of.size()) return nullptr;
      return {{"index", value.choice().index()},
              {"value", JsonFromValue(value.choice().value(),
                                      type.of[value.choice().index()])}};
    case Kind::kNone:
    case Kind::kVoid:
    case Kind::kOther:
      break;
  }
  return nullptr;
}

}  // namespace weft::launch
