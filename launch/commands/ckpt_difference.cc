// weft ckpt diff: what it shows.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/launch/commands/ckpt_commands.h"
#include "weft/telemetry/field.h"

namespace weft::launch {
namespace {

using nlohmann::json;
using telemetry::Printable;

json Number(double value) {
  return std::isfinite(value) ? json(value) : json("inf");
}

json TableJson(const ps::TableDifference& table) {
  json out = {{"name", Printable(table.name)},
              {"kind", table.is_dense ? "dense" : "sparse"},
              {"in_a", table.is_in_a},
              {"in_b", table.is_in_b},
              {"version_a", table.version_a},
              {"version_b", table.version_b},
              {"rows_a", table.rows_a},
              {"rows_b", table.rows_b},
              {"compared", table.is_compared}};
  if (!table.spec.empty()) out["spec"] = Printable(table.spec);
  if (!table.is_compared) return out;
  out["elements_changed"] = table.weights.elements;
  out["largest"] = Number(table.weights.largest);
  out["added"] = table.added;
  out["removed"] = table.removed;
  out["changed"] = table.changed;
  out["state_changed"] = table.state_changed;
  if (table.weights.largest > 0) out["largest_key"] = table.largest_key;
  return out;
}

json TensorJson(const ps::TensorDifference& tensor) {
  json out = {{"name", Printable(tensor.name)},
              {"type_a", tensor.type_a},
              {"type_b", tensor.type_b}};
  if (tensor.type_a == tensor.type_b) {
    out["elements_changed"] = tensor.elements.elements;
    out["largest"] = Number(tensor.elements.largest);
  }
  return out;
}

std::string Text(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string TextOfTable(const json& table) {
  if (!table["in_a"])
    return absl::StrCat("only in b, ", Text(table["rows_b"]), " rows");
  if (!table["in_b"])
    return absl::StrCat("only in a, ", Text(table["rows_a"]), " rows");
  std::string text = absl::StrCat(
      "version ", Text(table["version_a"]), " to ", Text(table["version_b"]),
      ", rows ", Text(table["rows_a"]), " to ", Text(table["rows_b"]));
  if (table.contains("spec")) {
    absl::StrAppend(&text, "; spec: ", Text(table["spec"]));
  }
  if (!table["compared"]) return absl::StrCat(text, "; not comparable");
  absl::StrAppend(&text, "\n    ", Text(table["added"]), " added, ",
                  Text(table["removed"]), " removed, ", Text(table["changed"]),
                  " changed in ", Text(table["elements_changed"]),
                  " elements, largest difference ", Text(table["largest"]));
  if (table.contains("largest_key")) {
    absl::StrAppend(&text, " in row ", Text(table["largest_key"]));
  }
  if (table["state_changed"] != 0) {
    absl::StrAppend(&text, "; ", Text(table["state_changed"]),
                    " more in steps or slots only");
  }
  return text;
}

std::string TextOfTensor(const json& tensor) {
  const std::string a = tensor["type_a"];
  const std::string b = tensor["type_b"];
  if (a.empty()) return absl::StrCat("only in b, ", b);
  if (b.empty()) return absl::StrCat("only in a, ", a);
  if (a != b) return absl::StrCat(a, " to ", b);
  return absl::StrCat(a, ": ", Text(tensor["elements_changed"]),
                      " elements changed, largest difference ",
                      Text(tensor["largest"]));
}

}  // namespace

json DifferenceJson(const std::string& a, const std::string& b,
                    const ps::Difference& difference) {
  json tables = json::array();
  for (const auto& table : difference.tables) {
    tables.push_back(TableJson(table));
  }
  json tensors = json::array();
  for (const auto& tensor : difference.tensors) {
    tensors.push_back(TensorJson(tensor));
  }
  return {{"a", a},
          {"b", b},
          {"equal", difference.IsNone()},
          {"tables", std::move(tables)},
          {"tensors", std::move(tensors)}};
}

void PrintDifference(const json& difference) {
  std::printf("a %s\nb %s\n", Text(difference["a"]).c_str(),
              Text(difference["b"]).c_str());
  for (const json& table : difference["tables"]) {
    std::printf("  table %s: %s\n", Text(table["name"]).c_str(),
                TextOfTable(table).c_str());
  }
  for (const json& tensor : difference["tensors"]) {
    std::printf("  tensor %s: %s\n", Text(tensor["name"]).c_str(),
                TextOfTensor(tensor).c_str());
  }
  if (difference["equal"]) std::printf("they are equal\n");
}

}  // namespace weft::launch
