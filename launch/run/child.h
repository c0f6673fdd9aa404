// Child: one process that the launcher started: its group, its output, its end.

#ifndef WEFT_LAUNCH_RUN_CHILD_H_
#define WEFT_LAUNCH_RUN_CHILD_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/launch/failure/exit.h"

namespace weft::launch {

struct ChildSpec {
  std::string name;               // ps0
  std::vector<std::string> argv;  // argv[0] is looked up in PATH
  std::map<std::string, std::string> environment;  // over the launcher's own
  std::string log_file;  // gets all output, at its end; empty: none
  std::string role;      // ps
};

// Leads a process group of its own, and dies with the launcher, however that
// ends. Its standard input is /dev/null.
//
// Thread-safety: one thread at a time.
class Child {
 public:
  // kNotFound, kPermissionDenied: argv[0] cannot be run, or the log file cannot
  // be opened.
  static absl::StatusOr<std::unique_ptr<Child>> Start(ChildSpec spec);

  // Kills the group if it has not been reaped.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const ChildSpec& spec() const { return spec_; }
  const std::string& name() const { return spec_.name; }
  const std::string& role() const { return spec_.role; }
  pid_t pid() const { return pid_; }
  // Becomes readable when the process ends.
  int exit_fd() const { return pid_fd_; }
  // What it writes to standard output and standard error. -1 once closed.
  int output_fd(int stream) const { return streams_[stream].fd; }

  // Reads what there is and returns its whole lines, without their ends; at the
  // end of the output also the last piece.
  std::vector<std::string> ReadLines(int stream);
  // The last lines that ReadLines returned, of both streams.
  const std::deque<std::string>& tail() const { return tail_; }

  // Why the log file could not be written to, once; nothing more is written to
  // the file after that.
  absl::Status TakeLogError();

  // After exit_fd() became readable. The rest of the group is killed: nothing
  // of a rank outlives it.
  Exit Reap();
  bool has_ended() const { return has_ended_; }
  const Exit& exit() const { return exit_; }
  // The most memory that it, or a process of its own that it has waited for,
  // has had at a time, in bytes; once it has ended.
  int64_t peak_bytes() const { return peak_bytes_; }

  // Sends `signal` to the whole process group.
  void Signal(int signal);

 private:
  struct Stream {
    int fd = -1;
    std::string partial;
  };

  explicit Child(ChildSpec spec) : spec_(std::move(spec)) {}
  absl::Status OpenLog();
  void WriteLog(absl::string_view bytes);

  const ChildSpec spec_;
  pid_t pid_ = -1;
  int pid_fd_ = -1;
  Stream streams_[2];
  int log_fd_ = -1;
  absl::Status log_error_;
  std::deque<std::string> tail_;
  bool has_ended_ = false;
  Exit exit_;
  int64_t peak_bytes_ = 0;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_CHILD_H_
