// EventLog: the events of a job, one JSON object a line, for programs that
// watch it.
//
//   {"time":"2026-11-28T20:21:01.123456Z","job":"mnist","node":0,"start":0,
//    "event":"rank_ended","rank":"ps1","pid":4711,"how":"killed by SIGKILL",
//    "exit_code":137,"after_s":12.3,"peak_bytes":73400320}
//
// docs/cli.md lists the events.

#ifndef WEFT_LAUNCH_RUN_EVENT_LOG_H_
#define WEFT_LAUNCH_RUN_EVENT_LOG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/telemetry/field.h"

namespace weft::launch {

// Thread-safety: one thread at a time.
class EventLog {
 public:
  // Writes nothing.
  EventLog() = default;
  EventLog(std::string job, int node);
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Behind what the file holds. Its error says the path.
  absl::Status Open(const std::string& path);

  // `start`: how often all ranks have been started again before.
  void Write(int start, absl::string_view event,
             const telemetry::Fields& fields);

  // Why the file could not be written to, once; nothing more is written to it
  // after that.
  absl::Status TakeError();

 private:
  std::string job_;
  int node_ = 0;
  std::string path_;
  int fd_ = -1;
  absl::Status error_;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_EVENT_LOG_H_
