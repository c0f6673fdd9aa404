// JSON as people type it, and weft.rpc.v1.Value as workers take it.
//
//   bool, numbers, string   true, 2, 0.5, "text"; "nan", "inf", "-inf"
//   bytes, proto:NAME       base64, of the serialised message
//   tensor                  [[1, 2], [3, 4]] is f32; or {"dtype": "i64",
//                           "shape": [2, 2], "values": [1, 2, 3, 4]}, of
//                           numbers to 2^53; null
//   vector, tuple           an array
//   map                     an object where keys are strings, else an array of
//                           [key, value]
//   optional, none          null, or the value
//   variant                 {"index": 0, "value": ...}

#ifndef WEFT_LAUNCH_COMMANDS_JSON_VALUE_H_
#define WEFT_LAUNCH_COMMANDS_JSON_VALUE_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/codec/signature.h"

namespace weft::launch {

// is_discarded() if `text` is no JSON or nests deeper than 64 levels, which the
// types of a function do not.
nlohmann::json ParseJson(const std::string& text);

// kInvalidArgument says what was wanted and what was found. Whether a number
// fits is the worker's to say.
absl::StatusOr<rpc::v1::Value> ValueFromJson(const nlohmann::json& json,
                                             const rpc::Type& type);

nlohmann::json JsonFromValue(const rpc::v1::Value& value,
                             const rpc::Type& type);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_COMMANDS_JSON_VALUE_H_
