#include "weft/checkpoint/manifest.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"

namespace weft::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kFormat = "weft-checkpoint";
constexpr int64_t kVersion = 1;
constexpr int64_t kVersionOfDelta = 2;
constexpr absl::string_view kOpening = "{\"checksum\":\"";
constexpr absl::string_view kAfterChecksum = "\",\n";
constexpr size_t kChecksumDigits = 64;

bool IsHex(const std::string& text, size_t digits) {
  return text.size() == digits &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

absl::Status CheckFiles(const std::vector<FileRecord>& files) {
  std::set<absl::string_view> names;
  for (const FileRecord& file : files) {
    if (!IsShardName(file.name) || !names.insert(file.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("file \"", absl::CHexEscape(file.name),
                       "\" of writer \"", absl::CHexEscape(file.writer),
                       "\": wanted shard-NNNNN.safetensors, each once"));
    }
    if (file.digest.bytes < 0 || !IsHex(file.digest.sha256, 64) ||
        !IsHex(file.digest.xxh3, 16)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "file \"", file.name, "\" has no valid size, sha256 or xxh3"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckParent(const Manifest& manifest) {
  const bool is_delta =
      std::any_of(manifest.files.begin(), manifest.files.end(),
                  [](const FileRecord& file) { return file.is_delta; });
  if (is_delta != manifest.parent.has_value()) {
    return absl::InvalidArgumentError(
        is_delta ? "a file holds what has changed since another checkpoint, "
                   "and no parent is given"
                 : "a parent is given, and no file needs it");
  }
  if (!is_delta) return absl::OkStatus();
  const Parent& parent = *manifest.parent;
  if (!parent.name.empty() && IsHex(parent.checksum, kChecksumDigits) &&
      parent.links >= 0 && parent.links + 1 == manifest.links &&
      manifest.links <= kMaxLinks) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "its parent \"", absl::CHexEscape(parent.name), "\" with checksum \"",
      absl::CHexEscape(parent.checksum), "\" and ", manifest.links,
      " links cannot be: wanted a name, 64 digits and 1 to ", kMaxLinks));
}

// The text after the checksum, once that is right.
absl::StatusOr<absl::string_view> CheckedBody(absl::string_view text) {
  const size_t checksum_end = kOpening.size() + kChecksumDigits;
  if (!absl::StartsWith(text, kOpening) || text.size() < checksum_end ||
      !absl::StartsWith(text.substr(checksum_end), kAfterChecksum)) {
    return absl::DataLossError(
        "it does not begin with a checksum; it is cut or damaged");
  }
  const absl::string_view wanted =
      text.substr(kOpening.size(), kChecksumDigits);
  const absl::string_view body =
      text.substr(checksum_end + kAfterChecksum.size());
  const std::string found = DigestOf(body).sha256;
  if (found == wanted) return body;
  return absl::DataLossError(
      absl::StrCat("its content has SHA-256 ", found, ", wanted ",
                   IsHex(std::string(wanted), kChecksumDigits)
                       ? wanted
                       : "64 digits, which are damaged",
                   "; it is cut or damaged"));
}

// Json::get makes something of any number, also of one that no integer holds.
absl::StatusOr<int64_t> IntegerAt(const Json& json, const char* key) {
  const Json& found = json.at(key);
  const bool fits =
      found.is_number_unsigned()
          ? found.get<uint64_t>() <= std::numeric_limits<int64_t>::max()
          : found.is_number_integer();
  if (fits) return found.get<int64_t>();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", key, "\": wanted an integer of 64 bits, found ",
                   found.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

// Throws Json::exception where a member is missing or of another type.
absl::StatusOr<Manifest> Extract(const Json& json) {
  Manifest manifest;
  WEFT_ASSIGN_OR_RETURN(manifest.step, IntegerAt(json, "step"));
  manifest.metadata = json.at("metadata").get<Metadata>();
  for (const Json& file : json.at("files")) {
    WEFT_ASSIGN_OR_RETURN(const int64_t bytes, IntegerAt(file, "bytes"));
    manifest.files.push_back({file.at("name").get<std::string>(),
                              file.at("writer").get<std::string>(),
                              {bytes, file.at("sha256").get<std::string>(),
                               file.at("xxh3").get<std::string>()},
                              file.value("delta", false)});
  }
  manifest.attempt = json.value("attempt", "");
  if (json.at("version") == kVersion) return manifest;
  WEFT_ASSIGN_OR_RETURN(manifest.links, IntegerAt(json, "links"));
  const Json& parent = json.at("parent");
  manifest.parent = {parent.at("name").get<std::string>(),
                     parent.at("attempt").get<std::string>(),
                     parent.at("checksum").get<std::string>(),
                     manifest.links - 1};
  return manifest;
}

absl::StatusOr<Manifest> Parse(absl::string_view text) {
  WEFT_ASSIGN_OR_RETURN(const absl::string_view body, CheckedBody(text));
  // What is nested deeper than ours is dropped while it is read.
  constexpr int kMaxDepth = 4;
  const auto is_shallow = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kMaxDepth;
  };
  const Json json = Json::parse(absl::StrCat("{", body), is_shallow,
                                /*allow_exceptions=*/false);
  try {
    if (json.at("format") != std::string(kFormat)) {
      return absl::InvalidArgumentError("its format is not weft-checkpoint");
    }
    if (json.at("version") != kVersion &&
        json.at("version") != kVersionOfDelta) {
      return absl::UnimplementedError(absl::StrCat(
          "its version is ", json.at("version").dump(), ", this build reads ",
          kVersion, " and ", kVersionOfDelta));
    }
    WEFT_ASSIGN_OR_RETURN(Manifest manifest, Extract(json));
    WEFT_RETURN_IF_ERROR(CheckFiles(manifest.files));
    WEFT_RETURN_IF_ERROR(CheckParent(manifest));
    manifest.checksum =
        std::string(text.substr(kOpening.size(), kChecksumDigits));
    return manifest;
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(e.what());
  }
}

}  // namespace

std::string ShardName(int shard) {
  WEFT_CHECK(shard >= 0 && shard < 100000) << shard;
  return absl::StrFormat("shard-%05d.safetensors", shard);
}

bool IsShardName(absl::string_view name) {
  constexpr absl::string_view kPattern = "shard-00000.safetensors";
  if (name.size() != kPattern.size()) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool fits = kPattern[i] == '0' ? absl::ascii_isdigit(name[i])
                                         : name[i] == kPattern[i];
    if (!fits) return false;
  }
  return true;
}

absl::StatusOr<std::string> FormatManifest(const Manifest& manifest) {
  WEFT_RETURN_IF_ERROR(CheckFiles(manifest.files));
  WEFT_RETURN_IF_ERROR(CheckParent(manifest));
  Json json = {
      {"format", std::string(kFormat)},
      {"version", manifest.parent.has_value() ? kVersionOfDelta : kVersion},
      {"step", manifest.step},
      {"metadata", manifest.metadata},
      {"files", Json::array()}};
  for (const FileRecord& file : manifest.files) {
    json["files"].push_back({{"name", file.name},
                             {"writer", file.writer},
                             {"bytes", file.digest.bytes},
                             {"sha256", file.digest.sha256},
                             {"xxh3", file.digest.xxh3}});
    if (file.is_delta) json["files"].back()["delta"] = true;
  }
  if (!manifest.attempt.empty()) json["attempt"] = manifest.attempt;
  if (manifest.parent.has_value()) {
    json["links"] = manifest.links;
    json["parent"] = {{"name", manifest.parent->name},
                      {"attempt", manifest.parent->attempt},
                      {"checksum", manifest.parent->checksum}};
  }
  try {
    const std::string body = json.dump().substr(1) + "\n";
    return absl::StrCat(kOpening, DigestOf(body).sha256, kAfterChecksum, body);
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(
        "FormatManifest: a writer or metadata is not UTF-8: ", e.what()));
  }
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text,
                                       absl::string_view where) {
  absl::StatusOr<Manifest> manifest = Parse(text);
  if (manifest.ok()) return manifest;
  return absl::Status(
      manifest.status().code(),
      absl::StrCat(where, " is no manifest: ", manifest.status().message()));
}

}  // namespace weft::checkpoint
