// Child: see the header.

#include "weft/launch/run/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::launch {
namespace {

constexpr size_t kTailLines = 20;
// A line without end is cut here, so that no rank can fill the launcher.
constexpr size_t kMaxLineBytes = 64 << 10;

void CloseIfOpen(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

// Runs in the child: becomes the program `argv`. If that fails, writes errno to
// `error_fd` and ends.
[[noreturn]] void Become(const std::vector<char*>& argv,
                         const std::vector<char*>& environment, pid_t launcher,
                         int out, int err, int error_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(127);  // it ended before the line above
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execvpe(argv[0], argv.data(), environment.data());
  const int error = errno;
  (void)!write(error_fd, &error, sizeof(error));
  _exit(127);
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(
    const std::map<std::string, std::string>& over) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (over.count(text.substr(0, text.find('='))) == 0) all.push_back(text);
  }
  for (const auto& [name, value] : over) {
    all.push_back(absl::StrCat(name, "=", value));
  }
  return all;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Child>> Child::Start(ChildSpec spec) {
  std::unique_ptr<Child> child(new Child(std::move(spec)));
  WEFT_RETURN_IF_ERROR(child->OpenLog());
  std::vector<std::string> words = child->spec_.argv;
  std::vector<std::string> settings = Environment(child->spec_.environment);
  const std::vector<char*> argv = Pointers(words);
  const std::vector<char*> environment = Pointers(settings);
  int pipes[3][2];  // output, error, and what exec says
  for (int i = 0; i < 3; ++i) {
    if (pipe2(pipes[i], O_CLOEXEC) == 0) continue;
    const int error = errno;
    for (int j = 0; j < i; ++j) {
      close(pipes[j][0]);
      close(pipes[j][1]);
    }
    return absl::ErrnoToStatus(error, absl::StrCat(child->name(), ": pipe"));
  }
  const pid_t launcher = getpid();
  child->pid_ = fork();
  if (child->pid_ == 0) {
    Become(argv, environment, launcher, pipes[0][1], pipes[1][1], pipes[2][1]);
  }
  int error = child->pid_ < 0 ? errno : 0;
  for (auto& pipe : pipes) close(pipe[1]);
  for (int i = 0; i < 2; ++i) {
    child->streams_[i].fd = pipes[i][0];
    fcntl(pipes[i][0], F_SETFL, O_NONBLOCK);
  }
  if (child->pid_ > 0) {
    setpgid(child->pid_, child->pid_);  // whoever of the two comes first
    while (read(pipes[2][0], &error, sizeof(error)) < 0 && errno == EINTR) {
    }
  }
  close(pipes[2][0]);
  if (error == 0) {
    child->pid_fd_ = static_cast<int>(syscall(SYS_pidfd_open, child->pid_, 0));
    if (child->pid_fd_ >= 0) return child;
    error = errno;
  }
  const std::string what =
      absl::StrCat(child->name(), ": cannot run ", child->spec_.argv.front());
  if (child->pid_ < 0 && error == EAGAIN) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": fork: ", std::strerror(error)));
  }
  return absl::ErrnoToStatus(error, what);
}

absl::Status Child::OpenLog() {
  if (spec_.log_file.empty()) return absl::OkStatus();
  log_fd_ = open(spec_.log_file.c_str(),
                 O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log_fd_ >= 0) return absl::OkStatus();
  return absl::ErrnoToStatus(
      errno, absl::StrCat(name(), ": cannot write ", spec_.log_file));
}

void Child::WriteLog(absl::string_view bytes) {
  while (log_fd_ >= 0 && !bytes.empty()) {
    const ssize_t n = write(log_fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      log_error_ = absl::ErrnoToStatus(
          errno, absl::StrCat(name(), ": its output does not go to ",
                              spec_.log_file, " any more"));
      CloseIfOpen(log_fd_);
      return;
    }
    bytes.remove_prefix(n);
  }
}

absl::Status Child::TakeLogError() {
  return std::exchange(log_error_, absl::OkStatus());
}

Child::~Child() {
  if (pid_ > 0 && !has_ended_) {
    kill(pid_, SIGKILL);
    Reap();
  }
  CloseIfOpen(pid_fd_);
  CloseIfOpen(log_fd_);
  for (Stream& stream : streams_) CloseIfOpen(stream.fd);
}

std::vector<std::string> Child::ReadLines(int stream) {
  Stream& from = streams_[stream];
  std::vector<std::string> lines;
  char block[16 << 10];
  while (from.fd >= 0) {
    const ssize_t n = read(from.fd, block, sizeof(block));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      CloseIfOpen(from.fd);
      break;
    }
    WriteLog({block, static_cast<size_t>(n)});
    from.partial.append(block, n);
    size_t begin = 0;
    for (size_t end;
         (end = from.partial.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      lines.push_back(from.partial.substr(begin, end - begin));
    }
    from.partial.erase(0, begin);
    if (from.partial.size() > kMaxLineBytes) {
      lines.push_back(std::move(from.partial));
      from.partial.clear();
    }
    // One rank that writes without pause must not keep the others waiting.
    if (lines.size() >= 1000) break;
  }
  if (from.fd < 0 && !from.partial.empty()) {
    lines.push_back(std::exchange(from.partial, std::string()));
  }
  for (const std::string& line : lines) {
    tail_.push_back(line);
    if (tail_.size() > kTailLines) tail_.pop_front();
  }
  return lines;
}

Exit Child::Reap() {
  // The dead leader keeps the group's number until it is reaped.
  kill(-pid_, SIGKILL);
  int status = 0;
  rusage usage = {};
  while (wait4(pid_, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  has_ended_ = true;
  peak_bytes_ = int64_t{usage.ru_maxrss} * 1024;
  if (WIFSIGNALED(status)) exit_.signal = WTERMSIG(status);
  if (WIFEXITED(status)) exit_.code = WEXITSTATUS(status);
  return exit_;
}

void Child::Signal(int signal) {
  if (!has_ended_) kill(-pid_, signal);
}

}  // namespace weft::launch
