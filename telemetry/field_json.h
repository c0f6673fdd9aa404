// Fields as JSON, for what telemetry writes.

#ifndef WEFT_TELEMETRY_FIELD_JSON_H_
#define WEFT_TELEMETRY_FIELD_JSON_H_

#include <string>

#include "nlohmann/json.hpp"
#include "weft/telemetry/field.h"

namespace weft::telemetry {

// A number that JSON lacks becomes "nan", "inf" or "-inf".
nlohmann::ordered_json ToJson(const Field::Value& value);

// An object in the order of `fields`; of two with one key the later stays.
nlohmann::ordered_json ToJson(const Fields& fields);

// `json` on one line; bytes that are not UTF-8 become U+FFFD.
std::string DumpLine(const nlohmann::ordered_json& json);

}  // namespace weft::telemetry

#endif  // WEFT_TELEMETRY_FIELD_JSON_H_
