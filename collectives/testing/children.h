// Children: the ranks of a test as processes.

#ifndef WEFT_COLLECTIVES_TESTING_CHILDREN_H_
#define WEFT_COLLECTIVES_TESTING_CHILDREN_H_

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

namespace weft::collectives {

// Runs `body` in a child for each rank, which ends with what it returns.
// REQUIRES: no threads yet.
class Children {
 public:
  template <typename Body>
  Children(int size, Body body) {
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) _exit(body(rank));
      pids_.push_back(pid);
    }
  }
  ~Children() {
    for (const pid_t pid : pids_) {
      if (pid == kNobody) continue;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  pid_t pid(int rank) const { return pids_[rank]; }
  // The exit code, or 128 + the signal that ended it.
  int Wait(int rank) {
    int status = 0;
    waitpid(pids_[rank], &status, 0);
    pids_[rank] = kNobody;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  static constexpr pid_t kNobody = -1;
  std::vector<pid_t> pids_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_TESTING_CHILDREN_H_
