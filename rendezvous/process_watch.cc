// ProcessWatch: see the header.

#include "weft/rendezvous/process_watch.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rendezvous/boot_id.h"

namespace weft::rendezvous {
namespace {

std::optional<std::string> Link(const char* path) {
  char target[PATH_MAX];
  const ssize_t size = readlink(path, target, sizeof target);
  if (size <= 0) return std::nullopt;
  return std::string(target, size);
}

struct Stat {
  uint64_t run_ticks = 0;  // in user and kernel mode, all threads
  uint64_t started = 0;
};

// Fields 14, 15 and 22 of its stat file (proc(5)), counted from behind the
// name, which may hold anything.
std::optional<Stat> StatOf(uint32_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  const auto skip = [&](int count) {
    std::string skipped;
    for (int i = 0; i < count; ++i) fields >> skipped;
  };
  Stat stat;
  uint64_t user = 0, kernel = 0;
  skip(14 - 3);
  fields >> user >> kernel;
  skip(22 - 16);
  if (!(fields >> stat.started)) return std::nullopt;
  stat.run_ticks = user + kernel;
  return stat;
}

}  // namespace

std::optional<v1::Process> ThisProcess() {
  v1::Process self;
  self.set_pid(static_cast<uint32_t>(getpid()));
  // Otherwise /proc is of another namespace, and tells of others.
  if (Link("/proc/self") != absl::StrCat(self.pid())) return std::nullopt;
  const auto stat = StatOf(self.pid());
  const auto space = Link("/proc/self/ns/pid");
  const std::string boot = BootId();
  if (boot.empty() || !stat.has_value() || !space.has_value()) {
    return std::nullopt;
  }
  self.set_started(stat->started);
  self.set_group(static_cast<uint32_t>(getpgrp()));
  self.set_space(absl::StrCat(boot, " ", *space));
  return self;
}

std::optional<ProcessWatch> ProcessWatch::Of(const v1::Process& process) {
  const std::optional<v1::Process> self = ThisProcess();
  if (!self.has_value() || self->space() != process.space() ||
      process.pid() == 0 || process.pid() > INT_MAX ||
      process.pid() == self->pid()) {
    return std::nullopt;
  }
  // Opened first, so that the start time read below is of the same process.
  net::Descriptor pidfd(static_cast<int>(
      syscall(SYS_pidfd_open, static_cast<pid_t>(process.pid()), 0)));
  if (pidfd.get() < 0) {
    if (errno == ESRCH) return ProcessWatch(net::Descriptor(), 0, 0);
    return std::nullopt;
  }
  const auto stat = StatOf(process.pid());
  if (!stat.has_value()) return std::nullopt;
  if (stat->started != process.started()) {
    return ProcessWatch(net::Descriptor(), 0, 0);
  }
  return ProcessWatch(std::move(pidfd), process.pid(), stat->run_ticks);
}

// Its pid is no other's as long as it has not ended.
bool ProcessWatch::HasRun() {
  const std::optional<Stat> stat = HasEnded() ? std::nullopt : StatOf(pid_);
  if (!stat.has_value()) return false;
  return std::exchange(run_ticks_, stat->run_ticks) < stat->run_ticks;
}

bool ProcessWatch::HasEnded() const {
  if (pidfd_.get() < 0) return true;
  pollfd ended = {pidfd_.get(), POLLIN, 0};
  return poll(&ended, 1, 0) > 0;
}

std::unique_ptr<ExitWatch> ExitWatch::Create(std::function<void()> on_exit) {
  net::Descriptor events(epoll_create1(EPOLL_CLOEXEC));
  net::Descriptor stop(eventfd(0, EFD_CLOEXEC));
  if (events.get() < 0 || stop.get() < 0) return nullptr;
  epoll_event until_stopped = {};
  until_stopped.events = EPOLLIN;
  until_stopped.data.u64 = 1;
  if (epoll_ctl(events.get(), EPOLL_CTL_ADD, stop.get(), &until_stopped) != 0) {
    return nullptr;
  }
  try {
    return std::unique_ptr<ExitWatch>(
        new ExitWatch(std::move(events), std::move(stop), std::move(on_exit)));
  } catch (const std::system_error&) {
    return nullptr;
  }
}

ExitWatch::ExitWatch(net::Descriptor events, net::Descriptor stop,
                     std::function<void()> on_exit)
    : events_(std::move(events)),
      stop_(std::move(stop)),
      on_exit_(std::move(on_exit)),
      thread_([this] { Run(); }) {}

ExitWatch::~ExitWatch() {
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof one);
  thread_.join();
}

bool ExitWatch::Add(const ProcessWatch& process) {
  if (process.pidfd_.get() < 0) return false;
  epoll_event end = {};
  // Once: a descriptor of a process that has ended stays readable.
  end.events = EPOLLIN | EPOLLONESHOT;
  return epoll_ctl(events_.get(), EPOLL_CTL_ADD, process.pidfd_.get(), &end) ==
         0;
}

void ExitWatch::Run() {
  epoll_event events[16];
  for (;;) {
    const int count = epoll_wait(events_.get(), events, 16, -1);
    if (count < 0 && errno != EINTR) return;
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == 1) return;
    }
    if (count > 0) on_exit_();
  }
}

}  // namespace weft::rendezvous
