#include "weft/worker/telemetry/trace_file.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/worker/exit_code.h"

namespace weft::worker {
namespace {

// What Spans::WriteChromeTrace writes begins so, and others' traces do not.
constexpr absl::string_view kTraceBegin =
    "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["
    "{\"name\":\"process_name\",\"ph\":\"M\",";

constexpr absl::Duration kPatience = absl::Seconds(10);

// The file at `path`, behind all links; `path` if nothing is there.
std::string RealPath(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(
      realpath(path.c_str(), nullptr), &std::free);
  return real == nullptr ? path : real.get();
}

// What would be lost if a new file took its name: a device, a pipe, or the file
// behind /dev/stdout, to which others write too.
bool IsReplaceable(const std::string& path) {
  if (absl::StartsWith(path, "/dev/") || absl::StartsWith(path, "/proc/")) {
    return false;
  }
  struct stat file;
  return stat(path.c_str(), &file) != 0 || S_ISREG(file.st_mode);
}

// 0 if nothing but an empty file or a trace would be lost at `path`; EEXIST if
// something else would; else why that cannot be known.
int ErrorOfReplacing(const std::string& path) {
  const net::Descriptor file(
      open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (file.get() < 0) return errno == ENOENT ? 0 : errno;
  std::string begin(kTraceBegin.size(), '\0');
  size_t size = 0;
  while (size < begin.size()) {
    const ssize_t n = read(file.get(), &begin[size], begin.size() - size);
    if (n == 0) break;
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) size += static_cast<size_t>(n);
  }
  begin.resize(size);
  return begin.empty() || begin == kTraceBegin ? 0 : EEXIST;
}

// 0, or the error. `fd` may be of a pipe and may not block.
int WriteAll(int fd, absl::string_view text) {
  const Instant deadline = SteadyClock().Now() + kPatience;
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return errno;
    const absl::Duration left = deadline - SteadyClock().Now();
    if (left <= absl::ZeroDuration()) return ETIMEDOUT;
    pollfd room = {fd, POLLOUT, 0};
    poll(&room, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  }
  return 0;
}

// Blocks SIGPIPE on this thread: a pipe whose reader left is an error, no end
// of the process.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &former_);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;
  ~WithoutSigpipe() {
    const timespec at_once = {};
    sigtimedwait(&sigpipe_, nullptr, &at_once);  // that of our write
    pthread_sigmask(SIG_SETMASK, &former_, nullptr);
  }

 private:
  sigset_t sigpipe_;
  sigset_t former_;
};

}  // namespace

TraceFile::TraceFile(std::string path, absl::string_view worker,
                     telemetry::Telemetry& telemetry)
    : option_(std::move(path)),
      path_(absl::StrReplaceAll(option_, {{"{name}", worker}})),
      telemetry_(telemetry) {}

std::string TraceFile::Spans() const {
  std::ostringstream out;
  telemetry_.spans().WriteChromeTrace(out);
  return out.str();
}

absl::Status TraceFile::Open() {
  if (path_.empty()) return absl::OkStatus();
  MutexLock lock(mu_);
  if (IsReplaceable(path_)) return Replace(RealPath(path_));
  // Without waiting for the reader of a pipe, which may never come.
  output_ = net::Descriptor(open(
      path_.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  return output_.get() < 0 ? Failed(path_, errno) : absl::OkStatus();
}

absl::Status TraceFile::Write() {
  if (path_.empty()) return absl::OkStatus();
  MutexLock lock(mu_);
  if (output_.get() >= 0) return Append();
  // The file may have become another since Open().
  return IsReplaceable(path_) ? Replace(RealPath(path_))
                              : Failed(path_, EEXIST);
}

absl::Status TraceFile::Append() {
  const WithoutSigpipe guard;
  const int error = WriteAll(output_.get(), Spans());
  return error == 0 ? absl::OkStatus() : Failed(path_, error);
}

absl::Status TraceFile::Replace(const std::string& file) {
  // Looks each time: another program may have put its own file there since.
  if (const int found = ErrorOfReplacing(file); found != 0) {
    return Failed(file, found);
  }
  const std::string part = absl::StrCat(file, ".part");
  // A part that a killed worker left may be replaced. A link is removed without
  // a check, since it is no file of a worker.
  if (!std::filesystem::is_symlink(part)) {
    if (const int found = ErrorOfReplacing(part); found != 0) {
      return Failed(part, found);
    }
  }
  unlink(part.c_str());
  const net::Descriptor made(
      open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
           0666));
  int error = made.get() < 0 ? errno : WriteAll(made.get(), Spans());
  if (error == 0 && std::rename(part.c_str(), file.c_str()) == 0) {
    return absl::OkStatus();
  }
  if (error == 0) error = errno;
  if (made.get() >= 0) unlink(part.c_str());
  return Failed(path_, error);
}

absl::Status TraceFile::Failed(const std::string& file, int error) const {
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  const bool is_forbidden = error == EACCES || error == EPERM;
  std::string why = std::strerror(error);
  if (error == ENXIO) why = "a pipe that nobody reads, or no such device";
  if (error == ETIMEDOUT) why = "its reader took nothing for ten seconds";
  if (error == EEXIST) {
    why =
        "a file that is no trace, which is not replaced: move it, or choose "
        "another path";
  } else if (is_forbidden) {
    absl::StrAppend(&why,
                    ": only a file that may be read, and is empty or a trace, "
                    "is replaced: choose another path");
  }
  return WithExitCode(
      absl::Status(
          is_forbidden ? absl::StatusCode::kPermissionDenied
                       : absl::StatusCode::kUnavailable,
          absl::StrCat("--trace=", option_, ": wanted a file to write, found ",
                       file, ": ", why)),
      is_full ? ExitCode::kResource : ExitCode::kConfig);
}

void TraceFile::WriteOrLog() {
  const absl::Status written = Write();
  if (written.ok()) return;
  WEFT_LOG(telemetry_.logger(), Warning, "no trace was written: ")
      << written.message();
}

}  // namespace weft::worker
