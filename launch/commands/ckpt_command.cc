// weft ckpt: checkpoints from the outside: lists, verifies, compares, merges
// and exports them, and serves exports.

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "weft/base/status_macros.h"
#include "weft/launch/commands/ckpt_commands.h"
#include "weft/launch/commands/commands.h"
#include "weft/ps/export/difference.h"
#include "weft/ps/export/export_table.h"
#include "weft/ps/export/exported_table.h"
#include "weft/ps/export/merge.h"
#include "weft/ps/export/saved_checkpoint.h"
#include "weft/telemetry/field.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"

namespace weft::launch {
namespace {

using nlohmann::json;
using ps::SavedCheckpoint;
using telemetry::Printable;

constexpr char kVerbs[] =
    "weft ckpt list DIR                        the checkpoints of a directory\n"
    "weft ckpt verify DIR [NAME]               reads all of them, or one\n"
    "weft ckpt diff DIR A B                    what has changed from A to B\n"
    "weft ckpt merge DIR NAME --out=DIR        one file for each table\n"
    "weft ckpt export DIR NAME --table=T --out=FILE\n"
    "                                          a table for who only reads it\n"
    "weft ckpt serve FILE... --listen=ADDRESS  exports, to rpc::Client\n"
    "weft ckpt serve --follow=DIR --listen=ADDRESS\n"
    "                                          the newest checkpoint of DIR\n"
    "\nNAME is a checkpoint's, \"latest\", or a label. Each has --help.\n";

absl::Status Usage(absl::string_view verb, absl::string_view wanted) {
  return worker::WithExitCode(absl::InvalidArgumentError(absl::StrCat(
                                  "weft ckpt ", verb, ": wanted ", wanted)),
                              worker::ExitCode::kUsage);
}

// Damage has an exit code of its own; what was named and is not there is a
// mistake of who called.
absl::Status Failed(const absl::Status& status) {
  if (absl::IsNotFound(status)) {
    return worker::WithExitCode(status, worker::ExitCode::kConfig);
  }
  if (absl::IsDataLoss(status)) {
    return worker::WithExitCode(status, worker::ExitCode::kBadCheckpoint);
  }
  return status;
}

// A verb's flags and its words, of which there must be `least` to `most`.
absl::StatusOr<std::vector<std::string>> Words(worker::Flags& flags, int argc,
                                               char** argv,
                                               const std::string& verb,
                                               const std::string& wanted,
                                               size_t least, size_t most) {
  flags.AllowPositional(wanted, /*anywhere=*/true);
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  const std::vector<std::string> words = flags.positional();
  if (words.size() >= least && words.size() <= most) return words;
  return Usage(verb, wanted);
}

absl::Status Removed(const std::string& directory, const std::string& what) {
  return Failed(absl::NotFoundError(absl::StrCat(
      directory, ": ", what,
      " was removed while it was read, by a job that saves there; try again, "
      "or raise its --keep")));
}

absl::StatusOr<std::shared_ptr<const SavedCheckpoint>> OpenNamed(
    const std::string& directory, const std::string& name,
    const SavedCheckpoint::Options& options = SavedCheckpoint::Options()) {
  const auto resolved = SavedCheckpoint::Resolve(directory, name);
  if (!resolved.ok()) return Failed(resolved.status());
  auto opened = SavedCheckpoint::Open(directory, *resolved, options);
  if (opened.ok()) return opened;
  if (SavedCheckpoint::IsRemoved(directory, *resolved)) {
    return Removed(directory, *resolved);
  }
  return worker::WithExitCode(opened.status(),
                              worker::ExitCode::kBadCheckpoint);
}

std::string RuleOf(const ps::v1::TableSpec& spec) {
  // The name of the field that is set, as in proto/optimizer.proto.
  const auto* const message = &spec.rule();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  message->GetReflection()->ListFields(*message, &fields);
  for (const auto* field : fields) {
    if (field->containing_oneof() != nullptr) return field->name();
  }
  return "none";
}

json TableJson(const std::string& name, const ps::SavedTable& table) {
  const bool is_dense = table.spec.kind() == ps::v1::TableSpec::DENSE;
  json out = {{"name", name},
              {"kind", is_dense ? "dense" : "sparse"},
              {"mode", ps::v1::TableSpec::Mode_Name(table.spec.mode())},
              {"rule", RuleOf(table.spec)},
              {"version", table.version},
              {"rows", table.rows < 0 ? json() : json(table.rows)},
              {"partitions", table.spec.partitions()},
              {"files", table.files.size()}};
  if (table.deltas > 0) {
    out["delta_partitions"] = table.deltas;
    out["own_rows"] = table.own_rows;
    out["removed_rows"] = table.own_removed;
  }
  out[is_dense ? "elements" : "dim"] =
      is_dense ? table.spec.elements() : table.spec.dim();
  return out;
}

// Step and bytes are null if the manifest, which tells them, is damaged.
json CheckpointJson(const SavedCheckpoint& saved,
                    const std::vector<absl::Status>& problems) {
  int64_t bytes = 0;
  json files = json::array();
  for (const SavedCheckpoint::File& file : saved.files()) {
    bytes += file.record.digest.bytes;
    files.push_back({{"name", file.record.name},
                     {"writer", Printable(file.record.writer)},
                     {"bytes", file.record.digest.bytes}});
  }
  json tables = json::array();
  for (const auto& [name, table] : saved.tables()) {
    tables.push_back(TableJson(name, table));
  }
  const bool is_known = saved.has_manifest();
  json out = {{"name", saved.name()},
              {"damaged", !problems.empty()},
              {"step", is_known ? json(saved.manifest().step) : json()},
              {"links", is_known ? json(saved.manifest().links) : json()},
              {"parent", saved.manifest().parent.has_value()
                             ? json(Printable(saved.manifest().parent->name))
                             : json()},
              {"bytes", is_known ? json(bytes) : json()},
              {"files", std::move(files)},
              {"tables", std::move(tables)},
              {"problems", json::array()}};
  for (const absl::Status& problem : problems) {
    out["problems"].push_back(Printable(problem.message()));
  }
  return out;
}

std::string RowsText(const json& table) {
  const bool is_delta = table.contains("own_rows");
  const std::string own =
      is_delta ? absl::StrCat("saved here, ",
                              table["removed_rows"].get<int64_t>(), " gone")
               : "";
  if (table["rows"].is_null()) {
    return absl::StrCat(table["own_rows"].get<int64_t>(), " rows ", own);
  }
  const std::string rows = absl::StrCat(table["rows"].get<int64_t>(), " rows");
  if (!is_delta) return rows;
  return absl::StrCat(rows, ", ", table["own_rows"].get<int64_t>(), " of them ",
                      own);
}

void PrintCheckpoint(const json& saved) {
  const std::string name = saved["name"];
  if (saved["step"].is_null()) {
    std::printf("%s  damaged, its manifest cannot be read\n", name.c_str());
  } else {
    std::printf("%s  step %lld, %zu files, %lld bytes%s%s\n", name.c_str(),
                static_cast<long long>(saved["step"].get<int64_t>()),
                saved["files"].size(),
                static_cast<long long>(saved["bytes"].get<int64_t>()),
                saved["parent"].is_null()
                    ? ""
                    : absl::StrCat(", changes since ",
                                   saved["parent"].get<std::string>())
                          .c_str(),
                saved["damaged"].get<bool>() ? ", damaged" : "");
  }
  for (const json& table : saved["tables"]) {
    const bool is_dense = table["kind"] == "dense";
    std::printf(
        "  %s  %s %s %lld, %s, rule %s, version %lld\n",
        table["name"].get<std::string>().c_str(),
        table["kind"].get<std::string>().c_str(), is_dense ? "elements" : "dim",
        static_cast<long long>(
            table[is_dense ? "elements" : "dim"].get<int64_t>()),
        RowsText(table).c_str(), table["rule"].get<std::string>().c_str(),
        static_cast<long long>(table["version"].get<int64_t>()));
  }
  for (const json& problem : saved["problems"]) {
    std::printf("  DAMAGED: %s\n", problem.get<std::string>().c_str());
  }
}

void PrintJson(const json& value) {
  std::printf(
      "%s\n",
      value.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
}

// Each of the checkpoints, examined as far as `options` say, but for those that
// are removed meanwhile; as text each is printed once it has been examined.
json Show(const std::string& directory, const std::vector<std::string>& names,
          SavedCheckpoint::Options options, bool as_json) {
  json all = json::array();
  SavedCheckpoint::Opened opened;  // each is read once, whoever needs it
  options.opened = &opened;
  for (const std::string& name : names) {
    std::vector<absl::Status> problems;
    const auto saved =
        SavedCheckpoint::Examine(directory, name, options, problems);
    if (!problems.empty() && SavedCheckpoint::IsRemoved(directory, name)) {
      continue;
    }
    if (saved->manifest().links == 0) opened = {{name, saved}};
    all.push_back(CheckpointJson(*saved, problems));
    if (!as_json) PrintCheckpoint(all.back());
  }
  return all;
}

// "2 whole: A, B".
void PrintNames(const char* what, const std::vector<std::string>& names) {
  std::printf("%zu %s%s%s\n", names.size(), what, names.empty() ? "" : ": ",
              absl::StrJoin(names, ", ").c_str());
}

absl::StatusOr<int> List(int argc, char** argv) {
  bool as_json = false;
  worker::Flags flags("weft ckpt list",
                      "Shows the checkpoints of a directory, oldest first, by "
                      "their manifests and headers; verify reads all of them.");
  flags.Add("json", &as_json, "as one JSON object");
  WEFT_ASSIGN_OR_RETURN(const auto words,
                        Words(flags, argc, argv, "list", "DIR", 1, 1));
  const auto names = SavedCheckpoint::List(words[0]);
  if (!names.ok()) return Failed(names.status());
  SavedCheckpoint::Options options;
  options.check_digests = options.check_rows = false;
  json all = Show(words[0], *names, options, as_json);
  if (as_json) {
    PrintJson({{"checkpoints", std::move(all)}});
  } else if (all.empty()) {
    std::printf("%s has no checkpoints\n", words[0].c_str());
  }
  return 0;
}

absl::StatusOr<int> Verify(int argc, char** argv) {
  bool as_json = false;
  worker::Flags flags(
      "weft ckpt verify",
      "Reads all checkpoints of a directory, or one, and those that it needs: "
      "each file's size, hashes "
      "and structure, and of each\ntable that all partitions are there, with "
      "their own keys in order. Says at the end which are whole and which are "
      "damaged. Exit code 0 if\nall are whole, 1 if one is not.");
  flags.Add("json", &as_json, "as one JSON object");
  WEFT_ASSIGN_OR_RETURN(const auto words,
                        Words(flags, argc, argv, "verify", "DIR [NAME]", 1, 2));
  std::vector<std::string> names;
  if (words.size() == 2) {
    const auto name = SavedCheckpoint::Resolve(words[0], words[1]);
    if (!name.ok()) return Failed(name.status());
    names.push_back(*name);
  } else {
    auto all = SavedCheckpoint::List(words[0]);
    if (!all.ok()) return Failed(all.status());
    names = *std::move(all);
    if (names.empty()) {
      return Failed(absl::NotFoundError(
          absl::StrCat(words[0], " has no checkpoints to verify")));
    }
  }
  json all = Show(words[0], names, {}, as_json);
  if (all.empty()) return Removed(words[0], absl::StrJoin(names, ", "));
  std::vector<std::string> whole;
  std::vector<std::string> damaged;
  for (const json& saved : all) {
    auto& names_of = saved["damaged"].get<bool>() ? damaged : whole;
    names_of.push_back(saved["name"].get<std::string>());
  }
  if (as_json) {
    PrintJson({{"checkpoints", std::move(all)},
               {"whole", whole},
               {"damaged", damaged}});
  } else {
    PrintNames("whole", whole);
    PrintNames("damaged", damaged);
  }
  return damaged.empty() ? 0 : 1;
}

absl::StatusOr<int> Diff(int argc, char** argv) {
  bool as_json = false;
  worker::Flags flags("weft ckpt diff",
                      "Shows what has changed from checkpoint A to B: rows of "
                      "tables by their keys, and tensors of trainers.");
  flags.Add("json", &as_json, "as one JSON object");
  WEFT_ASSIGN_OR_RETURN(const auto words,
                        Words(flags, argc, argv, "diff", "DIR A B", 3, 3));
  WEFT_ASSIGN_OR_RETURN(const auto a, OpenNamed(words[0], words[1]));
  WEFT_ASSIGN_OR_RETURN(const auto b, OpenNamed(words[0], words[2]));
  const auto difference = ps::DifferenceBetween(*a, *b);
  if (!difference.ok()) return Failed(difference.status());
  const json described = DifferenceJson(a->name(), b->name(), *difference);
  if (as_json) {
    PrintJson(described);
  } else {
    PrintDifference(described);
  }
  return 0;
}

absl::StatusOr<int> Merge(int argc, char** argv) {
  std::string out;
  worker::Flags flags("weft ckpt merge",
                      "Writes a checkpoint of many servers as one with a file "
                      "for each table, into another directory. One of what has "
                      "changed becomes one of\nall that there was.");
  flags.Add("out", &out, "the directory that gets it");
  WEFT_ASSIGN_OR_RETURN(const auto words, Words(flags, argc, argv, "merge",
                                                "DIR NAME --out=DIR", 2, 2));
  if (out.empty()) return Usage("merge", "--out=DIR");
  WEFT_ASSIGN_OR_RETURN(const auto saved, OpenNamed(words[0], words[1]));
  const auto name = ps::Merge(*saved, out);
  if (!name.ok()) return Failed(name.status());
  std::printf("%s/%s\n", out.c_str(), name->c_str());
  return 0;
}

absl::StatusOr<int> Export(int argc, char** argv) {
  std::string table;
  std::string out;
  worker::Flags flags(
      "weft ckpt export",
      "Writes a table of a checkpoint as one safetensors file, its rows by "
      "ascending key. A file that is\nthere is replaced at once, and a weft "
      "ckpt serve of it goes over to the new one.");
  flags.Add("table", &table, "which");
  flags.Add("out", &out, "the file");
  WEFT_ASSIGN_OR_RETURN(const auto words,
                        Words(flags, argc, argv, "export",
                              "DIR NAME --table=T --out=FILE", 2, 2));
  if (table.empty() || out.empty()) {
    return Usage("export", "DIR NAME --table=T --out=FILE");
  }
  SavedCheckpoint::Options options;
  options.table = table;
  WEFT_ASSIGN_OR_RETURN(const auto saved,
                        OpenNamed(words[0], words[1], options));
  const absl::Status exported = ps::ExportTable(*saved, table, out);
  if (!exported.ok()) return Failed(exported);
  ps::ExportedTable::Options unread;
  unread.check_content = false;  // it was hashed as it was written
  WEFT_ASSIGN_OR_RETURN(const auto opened,
                        ps::ExportedTable::Open(out, unread));
  std::printf("%s: %lld rows of dim %lld, version %lld, from %s\n", out.c_str(),
              static_cast<long long>(opened->rows()),
              static_cast<long long>(opened->dim()),
              static_cast<long long>(opened->version()), saved->name().c_str());
  return 0;
}

}  // namespace

absl::StatusOr<int> CkptCommand(int argc, char** argv) {
  const std::string verb = argc < 2 ? "" : argv[1];
  if (verb == "--help" || verb == "-h") {
    std::fputs(kVerbs, stdout);
    return 0;
  }
  const std::pair<const char*, absl::StatusOr<int> (*)(int, char**)> kAll[] = {
      {"list", List},   {"verify", Verify}, {"diff", Diff},
      {"merge", Merge}, {"export", Export}, {"serve", CkptServeCommand}};
  std::vector<std::string> known;
  for (const auto& [name, run] : kAll) {
    if (verb == name) return run(argc - 1, argv + 1);
    known.push_back(name);
  }
  const std::string nearest = worker::NearestName(verb, known);
  return worker::WithExitCode(
      absl::InvalidArgumentError(absl::StrCat(
          "weft ckpt: wanted list, verify, diff, merge, export or serve, found "
          "\"",
          verb, "\"",
          nearest.empty() ? ""
                          : absl::StrCat("; did you mean ", nearest, "?"))),
      worker::ExitCode::kUsage);
}

}  // namespace weft::launch
