// Keeper: see the header.

#include "weft/launch/run/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "weft/launch/run/rank_mark.h"

namespace weft::launch {
namespace {

// What the keeper's process runs: a message above 0 is a group to watch, below
// 0 one to forget.
[[noreturn]] void Keep(int fd, const std::string& launcher,
                       const std::function<void()>& sweep) {
  setpgid(0, 0);  // a terminal's Ctrl-C is not for it
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
    sigaction(signal, &ignore, nullptr);
  }
  std::set<pid_t> groups;
  pid_t message;
  for (;;) {
    const ssize_t n = read(fd, &message, sizeof(message));
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof(message)) break;
    if (message > 0) groups.insert(message);
    if (message < 0) groups.erase(-message);
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  KillMarked({MarkOfAll(launcher)});
  if (sweep) sweep();
  _exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::Start(
    const std::string& launcher, const std::function<void()>& sweep) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const pid_t pid = fork();
  if (pid < 0) {
    const int error = errno;
    close(fds[0]);
    close(fds[1]);
    if (error == EAGAIN) {
      return absl::ResourceExhaustedError(
          absl::StrCat("fork: ", std::strerror(error)));
    }
    return absl::ErrnoToStatus(error, "fork");
  }
  if (pid == 0) {
    close(fds[1]);
    // A reader of the launcher's output must not wait for the keeper.
    const int null = open("/dev/null", O_RDWR);
    for (int fd : {0, 1, 2}) dup2(null, fd);
    Keep(fds[0], launcher, sweep);
  }
  close(fds[0]);
  return std::unique_ptr<Keeper>(new Keeper(pid, fds[1]));
}

Keeper::~Keeper() {
  close(fd_);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Keeper::Watch(pid_t group) { Tell(group); }

void Keeper::Forget(pid_t group) { Tell(-group); }

void Keeper::Tell(pid_t message) {
  // A message is shorter than PIPE_BUF, so it goes whole. Without the keeper
  // the ranks themselves still die with the launcher.
  while (write(fd_, &message, sizeof(message)) < 0 && errno == EINTR) {
  }
}

}  // namespace weft::launch
