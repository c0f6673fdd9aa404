#include "weft/ps/checkpoint_root.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::ps {
namespace {

namespace fs = std::filesystem;

std::string Shown(const std::string& path) {
  return absl::CHexEscape(absl::string_view(path).substr(0, 1000));
}

// What is not there yet has no links.
absl::StatusOr<fs::path> Follow(const std::string& path) {
  std::error_code error;
  if (path.find('\0') != std::string::npos) {
    error = std::make_error_code(std::errc::invalid_argument);
  }
  fs::path end;
  if (!error) end = fs::absolute(path, error);
  if (!error) end = fs::weakly_canonical(end, error);
  if (!error && end.filename().empty()) end = end.parent_path();  // "run/"
  if (!error) return end;
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot follow the path \"", Shown(path), "\": ", error.message()));
}

// Whole names are compared: /root2 is not below /root.
bool IsAtOrBelow(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end())
             .first == root.end();
}

}  // namespace

absl::StatusOr<std::string> CheckpointRoot::Resolve(
    const std::string& directory) const {
  if (path_.empty()) {
    return absl::FailedPreconditionError(
        "this server was given no directory for checkpoints: start it with "
        "--checkpoint-dir=DIR (ps::ServerOptions::checkpoint_dir), the "
        "trainers' directory or one above it");
  }
  WEFT_ASSIGN_OR_RETURN(const fs::path root, Follow(path_));
  const absl::StatusOr<fs::path> resolved = Follow(directory);
  // The caller must not learn whether a path outside of the root exists.
  if (!resolved.ok() || !IsAtOrBelow(*resolved, root)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "\"", Shown(directory), "\" is not in this server's --checkpoint-dir, ",
        root.string(), ", nor below it"));
  }
  std::error_code error;
  if (fs::is_directory(*resolved, error)) return resolved->string();
  return absl::NotFoundError(absl::StrCat(
      "no directory ", resolved->string(),
      " on this server's host: wanted one on a file system that all servers "
      "see, made by who begins the checkpoint"));
}

}  // namespace weft::ps
