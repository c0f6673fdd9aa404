// Exit: how a process ended.

#ifndef WEFT_LAUNCH_FAILURE_EXIT_H_
#define WEFT_LAUNCH_FAILURE_EXIT_H_

#include <string>

namespace weft::launch {

struct Exit {
  int code = 0;    // if it ended by itself
  int signal = 0;  // that killed it; else 0

  bool is_failure() const { return code != 0 || signal != 0; }
  // The code that a shell would report: the exit code, or 128 + signal.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
  std::string ToString() const;  // "exit code 3 (...)", "killed by SIGKILL"
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_FAILURE_EXIT_H_
