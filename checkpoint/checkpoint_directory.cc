#include "weft/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/base/failpoint.h"
#include "weft/base/status_macros.h"

namespace weft::checkpoint {
namespace {

constexpr absl::string_view kManifest = "manifest.json";
constexpr absl::string_view kLatest = "LATEST";
constexpr absl::string_view kNamePrefix = "NAME-";
constexpr int64_t kMaxNameFileBytes = 1024;

// The name of a checkpoint, given by people.
bool IsLabel(absl::string_view name) {
  return !name.empty() && name.size() <= 63 &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isdigit(c) || absl::ascii_islower(c) || c == '-';
         });
}

// What the name of an attempt or a checkpoint says.
struct ParsedName {
  int64_t number = 0;
  int64_t step = 0;
  std::string nonce;  // of an attempt only
};

std::string CheckpointName(const ParsedName& parsed) {
  return absl::StrFormat("ckpt-%06d-step-%d", parsed.number, parsed.step);
}

std::string AttemptName(const ParsedName& parsed) {
  return absl::StrFormat("tmp-%06d-%d-%s", parsed.number, parsed.step,
                         parsed.nonce);
}

bool ParseNumber(absl::string_view text, int64_t* number) {
  return absl::SimpleAtoi(text, number) && *number >= 0;
}

std::optional<ParsedName> ParseCheckpointName(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '-');
  ParsedName parsed;
  if (parts.size() != 4 || !ParseNumber(parts[1], &parsed.number) ||
      !ParseNumber(parts[3], &parsed.step) || name != CheckpointName(parsed)) {
    return std::nullopt;
  }
  return parsed;
}

// Accepts only what AttemptName makes, so that no name leads elsewhere.
std::optional<ParsedName> ParseAttemptName(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '-');
  ParsedName parsed;
  if (parts.size() != 4 || !ParseNumber(parts[1], &parsed.number) ||
      !ParseNumber(parts[2], &parsed.step) || parts[3].size() != 16 ||
      parts[3].find_first_not_of("0123456789abcdef") !=
          absl::string_view::npos) {
    return std::nullopt;
  }
  parsed.nonce = std::string(parts[3]);
  if (name != AttemptName(parsed)) return std::nullopt;
  return parsed;
}

absl::Status CheckCheckpointName(absl::string_view name) {
  if (ParseCheckpointName(name).has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(name), "\" is no checkpoint's name"));
}

absl::StatusOr<ParsedName> RequireAttempt(absl::string_view name) {
  if (auto parsed = ParseAttemptName(name)) return *std::move(parsed);
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", absl::CHexEscape(name.substr(0, 100)),
      "\" is no attempt at a checkpoint, wanted what Begin returned"));
}

std::string MakeNonce() {
  std::random_device random;
  return absl::StrFormat("%08x%08x", random(), random());
}

// `status`, with what did not happen before it and what to do after.
absl::Status Explain(const absl::Status& status, absl::string_view what) {
  return absl::Status(
      status.code(),
      absl::StrCat(what, ": ", status.message(),
                   absl::IsResourceExhausted(status)
                       ? "; free space there or choose another directory"
                       : ""));
}

// What comes behind that which `digester` has, where reading ended early.
absl::Status DigestRest(FileSystem& files, const std::string& path,
                        Digester& digester) {
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const std::string piece,
                          files.ReadAt(path, digester.bytes(), kPieceBytes));
    if (piece.empty()) return absl::OkStatus();
    digester.Add(piece);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointDirectory>> CheckpointDirectory::Open(
    const Options& options) {
  if (options.path.empty() || options.keep_last < 1 ||
      options.keep_every_steps < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CheckpointDirectory: path \"", options.path, "\", keep_last ",
        options.keep_last, ", keep_every_steps ", options.keep_every_steps,
        "; wanted a path, at least 1, and not negative"));
  }
  std::unique_ptr<CheckpointDirectory> directory(
      new CheckpointDirectory(options));
  WEFT_RETURN_IF_ERROR(directory->files_.MakeDirectories(options.path));
  return directory;
}

CheckpointDirectory::CheckpointDirectory(const Options& options)
    : options_(options),
      files_(options.files != nullptr ? *options.files : LocalFiles()) {}

std::string CheckpointDirectory::PathOf(absl::string_view name,
                                        absl::string_view file) const {
  return absl::StrCat(options_.path, "/", name, file.empty() ? "" : "/", file);
}

absl::StatusOr<std::string> CheckpointDirectory::Save(
    int64_t step, const NamedTensors& tensors, const Metadata& metadata) {
  WEFT_ASSIGN_OR_RETURN(const std::string attempt, Begin(step));
  const absl::StatusOr<FileRecord> shard =
      AddShard(attempt, /*shard=*/0, /*writer=*/"", {tensors, {}});
  if (!shard.ok()) {
    Abandon(attempt);
    return shard.status();
  }
  absl::StatusOr<std::string> name = Commit(attempt, {*shard}, metadata);
  if (!name.ok()) Abandon(attempt);
  return name;
}

absl::StatusOr<std::string> CheckpointDirectory::Begin(int64_t step) {
  if (step < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint of step ", step, ": wanted no negative step"));
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        files_.List(options_.path));
  ParsedName next = {0, step, MakeNonce()};
  for (const std::string& name : names) {
    auto parsed = ParseCheckpointName(name);
    if (!parsed.has_value()) parsed = ParseAttemptName(name);
    if (parsed.has_value()) next.number = std::max(next.number, parsed->number);
  }
  if (next.number == std::numeric_limits<int64_t>::max()) {
    return absl::FailedPreconditionError(absl::StrCat(
        options_.path, " has a checkpoint of number ", next.number,
        ", after which none comes; wanted only what Commit named; rename it"));
  }
  ++next.number;
  const std::string attempt = AttemptName(next);
  const absl::Status made = files_.MakeDirectories(PathOf(attempt));
  if (made.ok()) return attempt;
  return Explain(made,
                 absl::StrCat("checkpoint of step ", step, " was not begun"));
}

absl::StatusOr<FileRecord> CheckpointDirectory::AddShard(
    absl::string_view attempt, int shard, absl::string_view writer,
    const Safetensors& content) {
  return AddShard(attempt, shard, writer, [&](WritableFile& file) {
    return WriteSafetensors(content, file);
  });
}

absl::StatusOr<FileRecord> CheckpointDirectory::AddShard(
    absl::string_view attempt, int shard, absl::string_view writer,
    absl::FunctionRef<absl::Status(WritableFile& file)> write) {
  WEFT_ASSIGN_OR_RETURN(const ParsedName parsed, RequireAttempt(attempt));
  if (shard < 0 || shard > 99999) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", shard, ": allowed is [0, 99999]"));
  }
  FileRecord record = {ShardName(shard), std::string(writer), {}};
  const absl::Status written = [&]() -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(auto raw,
                          files_.Create(PathOf(attempt, record.name)));
    DigestingFile file(std::move(raw));
    WEFT_RETURN_IF_ERROR(write(file));
    WEFT_RETURN_IF_ERROR(file.Sync());
    record.digest = file.Finish();
    return absl::OkStatus();
  }();
  if (written.ok()) return record;
  return Explain(written, absl::StrCat("checkpoint of step ", parsed.step,
                                       " was not written, older ones stay"));
}

absl::StatusOr<std::string> CheckpointDirectory::Commit(
    absl::string_view attempt, std::vector<FileRecord> files,
    const Metadata& metadata, const std::optional<Parent>& parent) {
  WEFT_ASSIGN_OR_RETURN(const ParsedName parsed, RequireAttempt(attempt));
  const std::string name = CheckpointName(parsed);
  const absl::Status prepared = [&]() -> absl::Status {
    std::sort(files.begin(), files.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    Manifest content = {parsed.step, metadata, files, std::string(attempt)};
    const bool is_delta =
        std::any_of(files.begin(), files.end(),
                    [](const FileRecord& file) { return file.is_delta; });
    if (is_delta && parent.has_value()) {
      WEFT_RETURN_IF_ERROR(CheckIsThere(*parent, parsed.number));
      content.parent = parent;
      content.links = parent->links + 1;
    }
    WEFT_ASSIGN_OR_RETURN(const std::string manifest, FormatManifest(content));
    WEFT_RETURN_IF_ERROR(CheckSizes(std::string(attempt), files));
    WEFT_RETURN_IF_ERROR(WriteWhole(PathOf(attempt, kManifest), manifest));
    WEFT_RETURN_IF_ERROR(files_.SyncDirectory(PathOf(attempt)));
    WEFT_RETURN_IF_ERROR(WEFT_FAILPOINT("checkpoint/before_rename"));
    return files_.Rename(PathOf(attempt), PathOf(name));
  }();
  if (!prepared.ok()) {
    return Explain(prepared,
                   absl::StrCat("checkpoint of step ", parsed.step,
                                " was not committed, older ones stay"));
  }
  const absl::Status settled = [&]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(WEFT_FAILPOINT("checkpoint/after_rename"));
    WEFT_RETURN_IF_ERROR(files_.SyncDirectory(options_.path));
    WEFT_RETURN_IF_ERROR(Point(std::string(kLatest), name));
    return Retain(name);
  }();
  if (settled.ok()) return name;
  return Explain(settled,
                 absl::StrCat("checkpoint ", name,
                              " is in place, but not settled: it may not "
                              "survive a power cut"));
}

// `number`: of the checkpoint that needs it.
absl::Status CheckpointDirectory::CheckIsThere(const Parent& parent,
                                               int64_t number) {
  const auto parsed = ParseCheckpointName(parent.name);
  absl::StatusOr<Manifest> found = absl::DataLossError(absl::StrCat(
      "\"", absl::CHexEscape(parent.name),
      "\" is no name of a checkpoint of a smaller number than ", number));
  if (parsed.has_value() && parsed->number < number) {
    found = ReadManifest(parent.name);
  }
  if (found.ok() && found->checksum == parent.checksum &&
      found->links == parent.links) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "it holds what has changed since ", absl::CHexEscape(parent.name),
      " with checksum ", absl::CHexEscape(parent.checksum), ", and ",
      found.ok() ? absl::StrCat("there is one with ", found->checksum)
                 : std::string(found.status().message()),
      "; save all"));
}

absl::StatusOr<std::optional<Parent>> CheckpointDirectory::FindParent(
    int full_every) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, List());
  if (names.empty()) return std::nullopt;
  const absl::StatusOr<std::vector<Link>> chain = Chain(names.back());
  if (!chain.ok()) return std::nullopt;
  const Manifest& newest = chain->front().manifest;
  if (newest.attempt.empty() || newest.links + 1 >= full_every ||
      newest.links + 1 > kMaxLinks) {
    return std::nullopt;
  }
  for (const Link& link : *chain) {
    if (!CheckSizes(link.name, link.manifest.files).ok()) return std::nullopt;
  }
  return Parent{names.back(), newest.attempt, newest.checksum, newest.links};
}

absl::StatusOr<std::vector<CheckpointDirectory::Link>>
CheckpointDirectory::Chain(const std::string& name) {
  std::vector<Link> chain;
  WEFT_ASSIGN_OR_RETURN(Manifest first, ReadManifest(name));
  chain.push_back({name, std::move(first)});
  while (chain.back().manifest.parent.has_value()) {
    const Link& child = chain.back();
    const Parent& wanted = *child.manifest.parent;
    const auto damaged = [&](absl::string_view what) {
      return absl::DataLossError(absl::StrCat(
          PathOf(child.name), " holds what has changed since ",
          absl::CHexEscape(wanted.name), ", ", what,
          child.name == name ? "" : absl::StrCat("; ", name, " needs both")));
    };
    // Numbers fall, so that no chain leads back to itself.
    const auto parsed = ParseCheckpointName(wanted.name);
    if (!parsed.has_value() ||
        parsed->number >= ParseCheckpointName(child.name)->number) {
      return damaged("which is no checkpoint that can come before it");
    }
    absl::StatusOr<Manifest> parent = ReadManifest(wanted.name);
    if (absl::IsNotFound(parent.status())) {
      return damaged(
          absl::StrCat("which is missing; wanted it in ", options_.path,
                       ": bring it back, or use a checkpoint before it"));
    }
    if (!parent.ok()) {
      return damaged(
          absl::StrCat("which is damaged: ", parent.status().message()));
    }
    if (parent->checksum != wanted.checksum || parent->links != wanted.links ||
        parent->attempt != wanted.attempt) {
      return damaged(absl::StrCat(
          "which is another one: wanted the manifest with checksum ",
          wanted.checksum, ", found ", parent->checksum));
    }
    chain.push_back({wanted.name, *std::move(parent)});
  }
  return chain;
}

void CheckpointDirectory::Abandon(absl::string_view attempt) {
  if (ParseAttemptName(attempt).has_value()) RemoveTree(std::string(attempt));
}

absl::Status CheckpointDirectory::WriteWhole(const std::string& path,
                                             absl::string_view bytes) {
  WEFT_ASSIGN_OR_RETURN(const auto file, files_.Create(path));
  WEFT_RETURN_IF_ERROR(file->Append(bytes));
  return file->Sync();
}

absl::Status CheckpointDirectory::Point(const std::string& file,
                                        const std::string& name) {
  const std::string written = PathOf(absl::StrCat(file, ".new"));
  WEFT_RETURN_IF_ERROR(files_.Remove(written));
  WEFT_RETURN_IF_ERROR(WriteWhole(written, name + "\n"));
  WEFT_RETURN_IF_ERROR(files_.Rename(written, PathOf(file)));
  return files_.SyncDirectory(options_.path);
}

absl::Status CheckpointDirectory::SetName(const std::string& name,
                                          const std::string& checkpoint) {
  if (!IsLabel(name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the name of a checkpoint: wanted 1 to 63 of [a-z0-9-], found \"",
        absl::CHexEscape(name), "\""));
  }
  WEFT_RETURN_IF_ERROR(ReadManifest(checkpoint).status());
  return Point(absl::StrCat(kNamePrefix, name), checkpoint);
}

absl::StatusOr<std::string> CheckpointDirectory::Named(
    const std::string& name) {
  WEFT_ASSIGN_OR_RETURN(
      const std::string text,
      files_.Read(PathOf(absl::StrCat(kNamePrefix, name)), kMaxNameFileBytes));
  return std::string(absl::StripAsciiWhitespace(text));
}

absl::StatusOr<std::set<std::string>> CheckpointDirectory::AllNamed() {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                        files_.List(options_.path));
  std::set<std::string> named;
  for (const std::string& file : files) {
    absl::string_view name = file;
    if (!absl::ConsumePrefix(&name, kNamePrefix) || !IsLabel(name)) continue;
    WEFT_ASSIGN_OR_RETURN(std::string checkpoint, Named(std::string(name)));
    named.insert(std::move(checkpoint));
  }
  return named;
}

absl::Status CheckpointDirectory::CheckSizes(
    const std::string& name, const std::vector<FileRecord>& files) {
  for (const FileRecord& file : files) {
    const std::string path = PathOf(name, file.name);
    WEFT_ASSIGN_OR_RETURN(const int64_t found, files_.Size(path));
    if (found != file.digest.bytes) {
      return absl::DataLossError(
          absl::StrCat(path, " of writer \"", absl::CHexEscape(file.writer),
                       "\" has ", found, " bytes, wanted ", file.digest.bytes));
    }
  }
  return absl::OkStatus();
}

std::set<std::string> CheckpointDirectory::WholeOf(
    const std::vector<std::string>& names,
    const std::map<std::string, absl::StatusOr<Manifest>>& manifests) {
  std::set<std::string> whole;
  for (const std::string& name : names) {  // parents come first
    const absl::StatusOr<Manifest>& manifest = manifests.at(name);
    if (!manifest.ok() || !CheckSizes(name, manifest->files).ok()) continue;
    if (manifest->parent.has_value()) {
      const Parent& parent = *manifest->parent;
      if (whole.count(parent.name) == 0 ||
          manifests.at(parent.name)->checksum != parent.checksum) {
        continue;
      }
    }
    whole.insert(name);
  }
  return whole;
}

absl::Status CheckpointDirectory::Retain(const std::string& newest) {
  if (options_.keep_last == Options::kKeepAll) {
    RemoveAbandoned(ParseCheckpointName(newest)->number);
    return absl::OkStatus();
  }
  // Those that it needs were read back when they were the newest.
  WEFT_ASSIGN_OR_RETURN(const std::vector<Link> chain, Chain(newest));
  WEFT_RETURN_IF_ERROR(VerifyFiles(chain.front()));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, List());
  // If one cannot be read, nothing is removed: it may be any.
  WEFT_ASSIGN_OR_RETURN(const std::set<std::string> named, AllNamed());
  std::map<std::string, absl::StatusOr<Manifest>> manifests;
  bool has_deltas = false;
  for (const std::string& name : names) {
    const auto& manifest = manifests.emplace(name, ReadManifest(name)).first;
    has_deltas |= manifest->second.ok() && manifest->second->links > 0;
  }
  const std::set<std::string> whole = WholeOf(names, manifests);
  std::set<std::string> needed;  // by those that stay
  int good = 0;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const absl::StatusOr<Manifest>& manifest = manifests.at(*name);
    const bool is_good = whole.count(*name) > 0;
    const bool is_milestone = is_good && options_.keep_every_steps > 0 &&
                              manifest->step % options_.keep_every_steps == 0;
    if (good >= options_.keep_last && !is_milestone &&
        named.count(*name) == 0 && needed.count(*name) == 0) {
      RemoveTree(*name);
    } else if (manifest.ok()) {
      if (manifest->parent.has_value()) needed.insert(manifest->parent->name);
    } else if (has_deltas) {
      break;  // what it needs is not known, so all that is older stays
    }
    if (is_good) ++good;
  }
  RemoveAbandoned(ParseCheckpointName(newest)->number);
  return absl::OkStatus();
}

// A checkpoint is first renamed to an attempt, so that it is never found in
// part; an attempt that could not be removed is swept up by a later Commit.
void CheckpointDirectory::RemoveTree(const std::string& name) {
  std::string doomed = name;
  if (auto parsed = ParseCheckpointName(name)) {
    parsed->nonce = MakeNonce();
    doomed = AttemptName(*parsed);
    if (!files_.Rename(PathOf(name), PathOf(doomed)).ok()) return;
  }
  const absl::StatusOr<std::vector<std::string>> inside =
      files_.List(PathOf(doomed));
  if (!inside.ok()) return;
  for (const std::string& file : *inside) {
    files_.Remove(PathOf(doomed, file)).IgnoreError();
  }
  files_.Remove(PathOf(doomed)).IgnoreError();
}

void CheckpointDirectory::RemoveAbandoned(int64_t number) {
  const absl::StatusOr<std::vector<std::string>> names =
      files_.List(options_.path);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const auto parsed = ParseAttemptName(name);
    if (parsed.has_value() && parsed->number <= number) RemoveTree(name);
  }
}

absl::StatusOr<std::vector<std::string>> CheckpointDirectory::List() {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        files_.List(options_.path));
  std::vector<std::pair<int64_t, std::string>> numbered;
  for (const std::string& name : names) {
    const auto parsed = ParseCheckpointName(name);
    // Without a manifest it does not exist.
    if (parsed.has_value() && files_.Size(PathOf(name, kManifest)).ok()) {
      numbered.emplace_back(parsed->number, name);
    }
  }
  std::sort(numbered.begin(), numbered.end());
  std::vector<std::string> sorted;
  for (auto& [number, name] : numbered) sorted.push_back(std::move(name));
  return sorted;
}

absl::StatusOr<Manifest> CheckpointDirectory::ReadManifest(
    const std::string& name) {
  WEFT_RETURN_IF_ERROR(CheckCheckpointName(name));
  const std::string path = PathOf(name, kManifest);
  WEFT_ASSIGN_OR_RETURN(const std::string text,
                        files_.Read(path, kMaxManifestBytes));
  return ParseManifest(text, path);
}

absl::StatusOr<Safetensors> CheckpointDirectory::ReadShard(
    const std::string& name, const FileRecord& file, Elements& elements) {
  WEFT_RETURN_IF_ERROR(CheckCheckpointName(name));
  if (!IsShardName(file.name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("file \"", absl::CHexEscape(file.name), "\" of ", name,
                     ": wanted shard-NNNNN.safetensors"));
  }
  const std::string path = PathOf(name, file.name);
  WEFT_ASSIGN_OR_RETURN(const int64_t bytes, files_.Size(path));
  Digester digester;
  absl::StatusOr<Safetensors> content;
  if (bytes == file.digest.bytes) {
    content =
        ReadSafetensors(files_, path, bytes, elements,
                        [&](absl::string_view piece) { digester.Add(piece); });
    WEFT_RETURN_IF_ERROR(elements.failure());
  }
  // That it is damaged says more than what the damage made of it.
  WEFT_RETURN_IF_ERROR(DigestRest(files_, path, digester));
  const Digest found = digester.Finish();
  if (found != file.digest) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", found.bytes, " bytes and SHA-256 ",
                     found.sha256, ", wanted ", file.digest.bytes, " and ",
                     file.digest.sha256, "; it is cut or damaged"));
  }
  return content;
}

absl::StatusOr<Safetensors> CheckpointDirectory::LoadShard(
    const std::string& name, const FileRecord& file, Device device) {
  WEFT_ASSIGN_OR_RETURN(const auto elements, Elements::To(device));
  return ReadShard(name, file, *elements);
}

absl::Status CheckpointDirectory::VerifyFiles(const Link& link) {
  WEFT_RETURN_IF_ERROR(CheckSizes(link.name, link.manifest.files));
  NoElements none;
  for (const FileRecord& file : link.manifest.files) {
    WEFT_RETURN_IF_ERROR(ReadShard(link.name, file, none).status());
  }
  return absl::OkStatus();
}

absl::Status CheckpointDirectory::Verify(const std::string& name) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Link> chain, Chain(name));
  for (const Link& link : chain) {
    const absl::Status verified = VerifyFiles(link);
    if (verified.ok()) continue;
    return &link == &chain.front()
               ? verified
               : Explain(verified,
                         absl::StrCat(PathOf(name), " needs ", link.name,
                                      ", which is damaged"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointDirectory::Loaded> CheckpointDirectory::Load(
    const std::string& name, Device device) {
  WEFT_ASSIGN_OR_RETURN(const auto elements, Elements::To(device));
  return LoadTo(name, *elements);
}

absl::StatusOr<CheckpointDirectory::Loaded> CheckpointDirectory::LoadTo(
    const std::string& name, Elements& elements) {
  Loaded loaded;
  loaded.name = name;
  WEFT_ASSIGN_OR_RETURN(loaded.manifest, ReadManifest(name));
  if (loaded.manifest.parent.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        PathOf(name), " holds what has changed of tables since ",
        absl::CHexEscape(loaded.manifest.parent->name),
        ", not all tensors; restore it by ps::Client::Restore, or make it "
        "whole by weft ckpt merge"));
  }
  WEFT_RETURN_IF_ERROR(CheckSizes(name, loaded.manifest.files));
  for (const FileRecord& file : loaded.manifest.files) {
    WEFT_ASSIGN_OR_RETURN(Safetensors shard, ReadShard(name, file, elements));
    loaded.tensors.merge(shard.tensors);
    if (!shard.tensors.empty()) {  // what merge left behind
      return absl::DataLossError(
          absl::StrCat(PathOf(name, file.name), ": tensor \"",
                       absl::CHexEscape(shard.tensors.begin()->first),
                       "\" is in an earlier shard too"));
    }
  }
  return loaded;
}

absl::StatusOr<CheckpointDirectory::Loaded> CheckpointDirectory::LoadLatest(
    Device device) {
  WEFT_ASSIGN_OR_RETURN(const auto elements, Elements::To(device));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, List());
  std::vector<absl::Status> skipped;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    absl::StatusOr<Loaded> loaded = LoadTo(*name, *elements);
    if (loaded.ok()) {
      loaded->skipped = std::move(skipped);
      return loaded;
    }
    WEFT_RETURN_IF_ERROR(elements->failure());
    skipped.push_back(loaded.status());
  }
  if (skipped.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no checkpoint in ", options_.path));
  }
  return absl::DataLossError(
      absl::StrCat("all ", skipped.size(), " checkpoints in ", options_.path,
                   " are damaged; the newest: ", skipped.front().message()));
}

}  // namespace weft::checkpoint
