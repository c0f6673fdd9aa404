// ProcessWatch: see the header.

#include "weft/rendezvous/process_watch.h"

#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace weft::rendezvous {
namespace {

std::optional<std::string> Link(const char* path) {
  char target[PATH_MAX];
  const ssize_t size = readlink(path, target, sizeof target);
  if (size <= 0) return std::nullopt;
  return std::string(target, size);
}

// Field 22 of its stat file (proc(5)), counted from behind the name, which may
// hold anything.
std::optional<uint64_t> StartOf(uint32_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  uint64_t started;
  if (!(fields >> started)) return std::nullopt;
  return started;
}

}  // namespace

std::optional<v1::Process> ThisProcess() {
  v1::Process self;
  self.set_pid(static_cast<uint32_t>(getpid()));
  // Otherwise /proc is of another namespace, and tells of others.
  if (Link("/proc/self") != absl::StrCat(self.pid())) return std::nullopt;
  const auto started = StartOf(self.pid());
  const auto space = Link("/proc/self/ns/pid");
  std::ifstream boot_file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  if (!(boot_file >> boot) || !started.has_value() || !space.has_value()) {
    return std::nullopt;
  }
  self.set_started(*started);
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
    if (errno == ESRCH) return ProcessWatch(net::Descriptor());
    return std::nullopt;
  }
  const auto started = StartOf(process.pid());
  if (!started.has_value()) return std::nullopt;
  if (*started != process.started()) return ProcessWatch(net::Descriptor());
  return ProcessWatch(std::move(pidfd));
}

bool ProcessWatch::HasEnded() const {
  if (pidfd_.get() < 0) return true;
  pollfd ended = {pidfd_.get(), POLLIN, 0};
  return poll(&ended, 1, 0) > 0;
}

}  // namespace weft::rendezvous
