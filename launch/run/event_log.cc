#include "weft/launch/run/event_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/telemetry/field_json.h"

namespace weft::launch {

EventLog::EventLog(std::string job, int node)
    : job_(std::move(job)), node_(node) {}

EventLog::~EventLog() {
  if (fd_ >= 0) close(fd_);
}

absl::Status EventLog::Open(const std::string& path) {
  path_ = path;
  // A pipe that nobody reads is an error, and not awaited.
  fd_ = open(path.c_str(),
             O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd_ >= 0) return absl::OkStatus();
  return absl::ErrnoToStatus(
      errno, absl::StrCat("the events of the job: cannot write ", path));
}

void EventLog::Write(int start, absl::string_view event,
                     const telemetry::Fields& fields) {
  if (fd_ < 0) return;
  telemetry::Fields all = {
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(),
                                absl::UTCTimeZone())},
      {"job", job_},
      {"node", node_},
      {"start", start},
      {"event", event}};
  all.insert(all.end(), fields.begin(), fields.end());
  const std::string line =
      absl::StrCat(telemetry::DumpLine(telemetry::ToJson(all)), "\n");
  // In one write, which another program sees whole or not at all.
  ssize_t n = 0;
  do {
    n = write(fd_, line.data(), line.size());
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(line.size())) return;
  error_ = absl::ErrnoToStatus(
      n < 0 ? errno : ENOSPC,
      absl::StrCat("the events of the job do not go to ", path_, " any more"));
  close(std::exchange(fd_, -1));
}

absl::Status EventLog::TakeError() {
  return std::exchange(error_, absl::OkStatus());
}

}  // namespace weft::launch
