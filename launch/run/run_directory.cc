#include "weft/launch/run/run_directory.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "weft/launch/run/run_lock.h"
#include "weft/net/edge/socket_file.h"
#include "weft/transport/shm/memory_budget.h"

namespace weft::launch {

namespace fs = std::filesystem;

namespace {

// Empty if there is no such directory.
std::vector<fs::path> FilesIn(const std::string& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator it(directory, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    found.push_back(it->path());
  }
  return found;
}

// Whether `directory` holds recordings alone, none younger than `before`.
bool HoldsOldRecordingsOnly(const fs::path& directory, time_t before) {
  const std::vector<fs::path> files = FilesIn(directory.string());
  return !files.empty() &&
         std::all_of(files.begin(), files.end(), [&](const fs::path& path) {
           struct stat file;
           return path.extension() == ".flight" &&
                  lstat(path.c_str(), &file) == 0 && S_ISREG(file.st_mode) &&
                  file.st_mtime < before;
         });
}

}  // namespace

std::vector<std::string> SweepRunDirectory(const std::string& directory) {
  std::vector<std::string> kept;
  std::error_code error;
  for (const fs::path& path : FilesIn(directory)) {
    if (path.extension() == ".flight") {
      kept.push_back(path.string());
    } else {
      fs::remove_all(path, error);
    }
  }
  if (kept.empty()) fs::remove(directory, error);
  std::sort(kept.begin(), kept.end());
  return kept;
}

void RemoveOldRecordings(const std::string& directory, absl::Time now) {
  const time_t before = absl::ToTimeT(now - kKeepRecordings);
  for (const fs::path& run :
       FilesIn(fs::path(directory).parent_path().string())) {
    std::error_code error;
    if (run.filename().string().rfind("run-", 0) != 0 ||
        run == fs::path(directory) ||
        !fs::is_directory(fs::symlink_status(run, error)) ||
        !HoldsOldRecordingsOnly(run, before)) {
      continue;
    }
    for (const fs::path& path : FilesIn(run.string())) fs::remove(path, error);
    fs::remove(run, error);
  }
}

void SweepJobDirectory(const std::string& directory) {
  for (const fs::path& path : FilesIn(directory)) {
    RemoveUnheldRunLock(path.string());
    std::error_code error;
    if (!fs::is_socket(fs::symlink_status(path, error))) continue;
    // Coordinators and endpoints have one type of socket, shared memory has the
    // other; a call with the wrong type removes nothing.
    for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
      net::RemoveAbandonedSocket(path.string(), type).IgnoreError();
    }
  }
  transport::MemoryBudget::RemoveUnused(directory);
  std::error_code not_empty;
  fs::remove(directory, not_empty);
}

}  // namespace weft::launch
