#include "weft/worker/telemetry/flight_dump.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/io/write_all.h"
#include "weft/base/status_macros.h"
#include "weft/net/edge/socket_directory.h"

namespace weft::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kSuffix[] = ".flight";

absl::Status CheckRoom(const std::string& directory) {
  std::error_code error;
  int dumps = 0;
  fs::directory_iterator it(directory, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    if (it->path().extension() == kSuffix) ++dumps;
  }
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("--dump-dir=", directory, ": ", error.message()));
  }
  if (dumps < kMaxDumps) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(directory, " holds ", dumps, " files *", kSuffix,
                   ", of which no more than ", kMaxDumps,
                   " are kept: remove those that are not needed"));
}

// Opens a new file, with the lowest number that no file has.
absl::StatusOr<int> OpenNew(const std::string& stem, std::string* path) {
  for (int n = 0; n < kMaxDumps; ++n) {
    *path = absl::StrCat(stem, "-", n, kSuffix);
    const int fd =
        open(path->c_str(),
             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) return fd;
    if (errno != EEXIST) break;
  }
  return absl::UnavailableError(absl::StrCat(*path, ": ", strerror(errno)));
}

}  // namespace

absl::Status CheckDumpDirectory(const std::string& directory) {
  if (directory.empty()) return absl::OkStatus();
  // The slash makes a file fail, which is no directory.
  if (access((fs::path(directory) / "").c_str(), W_OK | X_OK) == 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("--dump-dir=", directory,
                   ": wanted a directory to write in: ", strerror(errno)));
}

absl::StatusOr<std::string> WriteDump(const telemetry::FlightRecorder& recorder,
                                      std::string directory,
                                      absl::string_view job,
                                      absl::string_view name) {
  if (directory.empty()) {
    WEFT_ASSIGN_OR_RETURN(directory, net::DefaultSocketDirectory(job));
  }
  WEFT_RETURN_IF_ERROR(CheckRoom(directory));
  std::string path;
  WEFT_ASSIGN_OR_RETURN(
      const int fd, OpenNew(absl::StrCat((fs::path(directory) / "").string(),
                                         job, "-", name, "-", getpid()),
                            &path));
  const int error = WriteAll(fd, recorder.DumpText());
  close(fd);
  if (error == 0) return path;
  return absl::UnavailableError(absl::StrCat(path, ": ", strerror(error)));
}

}  // namespace weft::worker
