#include "weft/tests/support/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

extern char** environ;

namespace weft::testing {
namespace {

std::chrono::steady_clock::time_point After(absl::Duration timeout) {
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) {
    pointers.push_back(const_cast<char*>(s.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

// Later ones win, so the command's own come after and hide the inherited.
std::vector<std::string> EnvironmentWith(const std::vector<std::string>& own) {
  std::vector<std::string> all = own;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name(*entry, strcspn(*entry, "=") + 1);
    bool is_replaced = false;
    for (const std::string& mine : own) {
      is_replaced |= absl::StartsWith(mine, name);
    }
    if (!is_replaced) all.emplace_back(*entry);
  }
  return all;
}

// In the child: only what is safe after fork in a process with threads.
[[noreturn]] void Exec(pid_t parent, int output_fd, char* const* argv,
                       char* const* env) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  dup2(output_fd, STDOUT_FILENO);
  dup2(output_fd, STDERR_FILENO);
  execve(argv[0], argv, env);
  const char* why = strerrordesc_np(errno);
  for (const char* text :
       {"cannot run ", static_cast<const char*>(argv[0]), ": ", why, "\n"}) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0) break;
  }
  _exit(127);
}

int ExitCodeOf(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Process>> Process::Start(Command command) {
  if (command.argv.empty()) {
    return absl::InvalidArgumentError("Process: no program given");
  }
  const std::vector<std::string> environment = EnvironmentWith(command.env);
  const std::vector<char*> argv = Pointers(command.argv);
  const std::vector<char*> env = Pointers(environment);
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe2: ", strerror(errno)));
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Exec(parent, fds[1], argv.data(), env.data());
  close(fds[1]);
  fcntl(fds[0], F_SETFL, O_NONBLOCK);
  if (pid < 0) {
    close(fds[0]);
    return absl::ResourceExhaustedError(
        absl::StrCat("fork: ", strerror(errno)));
  }
  return std::unique_ptr<Process>(new Process(pid, fds[0]));
}

Process::Process(pid_t pid, int output_fd)
    : pid_(pid), output_fd_(output_fd), reader_([this] { ReadOutput(); }) {}

Process::~Process() {
  Signal(SIGKILL);
  reader_.join();
  close(output_fd_);
}

std::string Process::output() const {
  MutexLock lock(mu_);
  return output_;
}

absl::Status Process::WaitForOutput(absl::string_view text,
                                    absl::Duration timeout) {
  const auto deadline = After(timeout);
  MutexLock lock(mu_);
  bool in_time = true;
  while (!absl::StrContains(output_, text)) {
    if (output_ended_) {
      return absl::FailedPreconditionError(
          absl::StrCat("the process ended without writing '", text,
                       "'; it wrote:\n", output_));
    }
    if (!in_time) {
      return absl::DeadlineExceededError(
          absl::StrCat("no '", text, "' after ", absl::FormatDuration(timeout),
                       "; the process wrote:\n", output_));
    }
    in_time = changed_.WaitUntil(mu_, deadline);
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Process::Wait(absl::Duration timeout) {
  const auto deadline = After(timeout);
  MutexLock lock(mu_);
  bool in_time = true;
  while (!ended_) {
    if (!in_time) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the process still runs after ", absl::FormatDuration(timeout),
          "; it wrote:\n", output_));
    }
    in_time = changed_.WaitUntil(mu_, deadline);
  }
  return exit_code_;
}

// Under the lock and only before it is reaped: its id may be another's after.
void Process::Signal(int signal) {
  MutexLock lock(mu_);
  if (!ended_) kill(pid_, signal);
}

// Ends with the process, though a child of it may hold the pipe open.
void Process::ReadOutput() {
  const int process_fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  bool is_open = true;
  bool is_alive = process_fd >= 0;
  while (is_alive && is_open) {
    pollfd fds[] = {{output_fd_, POLLIN, 0}, {process_fd, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) break;
    is_alive = (fds[1].revents & POLLIN) == 0;  // before the last of its output
    is_open = ReadAvailable();
  }
  if (process_fd >= 0) close(process_fd);
  siginfo_t info;  // wait without reaping, so that Signal stays safe
  while (waitid(P_PID, pid_, &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  MutexLock lock(mu_);
  int status = 0;
  waitpid(pid_, &status, 0);
  exit_code_ = ExitCodeOf(status);
  ended_ = true;
  output_ended_ = true;
  changed_.NotifyAll();
}

bool Process::ReadAvailable() {
  char buffer[4096];
  while (true) {
    const ssize_t n = read(output_fd_, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 && errno == EAGAIN;
    MutexLock lock(mu_);
    output_.append(buffer, n);
    changed_.NotifyAll();
  }
}

absl::StatusOr<std::vector<std::unique_ptr<Process>>> SpawnWorkers(
    int size, absl::FunctionRef<Command(int rank)> command_of) {
  std::vector<std::unique_ptr<Process>> processes;
  for (int rank = 0; rank < size; ++rank) {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Process> process,
                          Process::Start(command_of(rank)));
    processes.push_back(std::move(process));
  }
  return processes;
}

std::string RunfilePath(absl::string_view path) {
  const char* root = std::getenv("TEST_SRCDIR");
  const char* workspace = std::getenv("TEST_WORKSPACE");
  if (root == nullptr || workspace == nullptr) return std::string(path);
  return absl::StrCat(root, "/", workspace, "/", path);
}

}  // namespace weft::testing
