#include "weft/train/saving/checkpoint_run.h"

#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "weft/base/status_macros.h"

namespace weft::train {
namespace {

constexpr char kRun[] = "run";  // in a checkpoint's metadata

}  // namespace

absl::StatusOr<CheckpointRun> BeginRun(
    checkpoint::CheckpointDirectory& directory, bool is_resumed) {
  std::random_device random;
  CheckpointRun run;
  run.id = absl::StrFormat("%08x%08x", random(), random());
  if (!is_resumed) return run;
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, directory.List());
  if (!names.empty()) run.before = names.back();
  return run;
}

std::string FormatRun(const CheckpointRun& run) {
  return absl::StrCat(run.id, " ", run.before);
}

CheckpointRun ParseRun(absl::string_view text) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 1));
  return {parts.first, parts.second};
}

absl::Status CheckRun(checkpoint::CheckpointDirectory& directory,
                      const CheckpointRun& run) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, directory.List());
  if (names.empty() || names.back() == run.before) return absl::OkStatus();
  const auto manifest = directory.ReadManifest(names.back());
  if (!manifest.ok()) return absl::OkStatus();  // damaged: whose, is not known
  const auto found = manifest->metadata.find(kRun);
  if (found != manifest->metadata.end() && found->second == run.id) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(absl::StrCat(
      directory.path(), "/", names.back(),
      " was saved by another run since this one began; give each run a "
      "--checkpoint-dir of its own, or move that run's checkpoints away"));
}

void AddRun(const CheckpointRun& run, checkpoint::Metadata* metadata) {
  (*metadata)[kRun] = run.id;
}

}  // namespace weft::train
