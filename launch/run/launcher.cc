// Launcher: see the header.

#include "weft/launch/run/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/launch/run/keeper.h"
#include "weft/launch/run/rank_mark.h"
#include "weft/net/tls/identity.h"
#include "weft/telemetry/field.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

constexpr char kTrainer[] = "trainer";
constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

absl::Status BadRole(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      why, "; wanted ROLE=COUNT:'PROGRAM ARGS', as in ps=2:bin/server"));
}

// Empty where ranks can leave no word.
std::string NoRestartFile(const LaunchOptions& options,
                          const std::string& rank) {
  if (options.directory.empty()) return "";
  return absl::StrCat(options.directory, "/", rank, ".no-restart");
}

bool IsIgnored(int signal) {
  struct sigaction now;
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

// Signals as readable events, from its making to its end.
class SignalScope {
 public:
  SignalScope() {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : kPassedOn) {
      if (signal == SIGHUP && IsIgnored(signal)) continue;  // by nohup
      sigaddset(&set, signal);
    }
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, &before_);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~SignalScope() {
    if (fd_ >= 0) close(fd_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  int fd() const { return fd_; }
  // The next that came; 0 if none.
  int Take() {
    signalfd_siginfo info;
    return read(fd_, &info, sizeof(info)) == sizeof(info)
               ? static_cast<int>(info.ssi_signo)
               : 0;
  }

 private:
  sigset_t before_;
  int fd_;
};

// One run of a job's ranks, from their start to the end of all. The phases: all
// run; some are asked to end; those that do not are killed.
class Job {
 public:
  Job(const LaunchOptions& options, const std::string& launcher, int restart,
      SignalScope& signals, Keeper& keeper)
      : options_(options),
        launcher_(launcher),
        restart_(restart),
        signals_(signals),
        keeper_(keeper),
        out_(options.out != nullptr ? *options.out : std::cout),
        err_(options.err != nullptr ? *options.err : std::cerr) {}

  absl::StatusOr<int> Run();
  // After Run: whether the same ranks, started again, may do better.
  bool may_start_again() const;

 private:
  absl::Status StartAll();
  void Watch();
  void OnSignal(int signal);
  void OnExits(const std::vector<Child*>& ended);
  // Writes what `child` has written; returns whether there was any.
  bool Forward(Child& child);
  // Whether the others go on without `child`, which has failed.
  bool CanGoOnWithout(const Child& child) const;
  void GoOnWithout(const Child& child);
  void EndOthers(int signal);
  void KillIfDue();
  void Report() const;
  int ExitCode() const;
  static bool IsVictim(const Child& child);
  // Whether starting it again cannot help.
  bool IsFinal(const Child& child) const;
  int PollTimeout() const;
  Instant Now() const { return SteadyClock().Now(); }

  const LaunchOptions& options_;
  const std::string& launcher_;
  const int restart_;
  SignalScope& signals_;
  Keeper& keeper_;
  std::ostream& out_;
  std::ostream& err_;
  std::vector<std::unique_ptr<Child>> children_;
  Instant started_at_;
  const Child* culprit_ = nullptr;  // the first that failed by itself
  absl::Duration failed_after_;
  std::vector<const Child*> left_out_;  // failed, and the others went on
  bool is_final_ = false;               // of the culprit, after Run
  int signal_ = 0;                      // that we were sent
  Instant kill_at_ = Instant::Infinite();
  std::vector<std::string> killed_;
};

absl::StatusOr<int> Job::Run() {
  started_at_ = Now();
  WEFT_RETURN_IF_ERROR(StartAll());
  Watch();
  out_.flush();
  if (culprit_ != nullptr) Report();
  is_final_ = culprit_ != nullptr && IsFinal(*culprit_);
  for (const auto& child : children_) {
    const std::string file = NoRestartFile(options_, child->name());
    if (!file.empty()) unlink(file.c_str());
  }
  return ExitCode();
}

absl::Status Job::StartAll() {
  for (ChildSpec& spec : PlanChildren(options_, restart_, launcher_)) {
    const std::string file = NoRestartFile(options_, spec.name);
    if (!file.empty()) unlink(file.c_str());  // of an earlier run of the job
    auto child = Child::Start(std::move(spec));
    if (!child.ok()) {
      for (const auto& started : children_) keeper_.Forget(started->pid());
      children_.clear();  // kills them
      return child.status();
    }
    keeper_.Watch((*child)->pid());
    children_.push_back(*std::move(child));
  }
  return absl::OkStatus();
}

int Job::PollTimeout() const {
  if (kill_at_.is_infinite()) return -1;
  const int64_t ms = absl::ToInt64Milliseconds(kill_at_ - Now()) + 1;
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60000));
}

void Job::Watch() {
  for (;;) {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    std::vector<Child*> owners = {nullptr};
    const auto add = [&](int fd, Child* owner) {
      if (fd < 0) return;
      fds.push_back({fd, POLLIN, 0});
      owners.push_back(owner);
    };
    bool is_any_alive = false;
    for (const auto& child : children_) {
      add(child->output_fd(0), child.get());
      add(child->output_fd(1), child.get());
      if (child->has_ended()) continue;
      is_any_alive = true;
      add(child->exit_fd(), child.get());
    }
    if (!is_any_alive) return;
    if (poll(fds.data(), fds.size(), PollTimeout()) < 0 && errno != EINTR) {
      err_ << "weft: poll failed: " << strerror(errno) << "\n";
      return;
    }
    while (const int signal = signals_.Take()) OnSignal(signal);
    std::vector<Child*> ended;
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      if (!owners[i]->has_ended() && fds[i].fd == owners[i]->exit_fd()) {
        ended.push_back(owners[i]);
      } else {
        Forward(*owners[i]);
      }
    }
    OnExits(ended);
    KillIfDue();
  }
}

bool Job::Forward(Child& child) {
  bool found = false;
  const std::string prefix =
      options_.prefix ? absl::StrCat("[", child.name(), "] ") : "";
  for (int stream : {0, 1}) {
    std::ostream& to = stream == 0 ? out_ : err_;
    const std::vector<std::string> lines = child.ReadLines(stream);
    // In one write each: other processes may write to the same pipe.
    for (const std::string& line : lines) {
      to << absl::StrCat(prefix, line, "\n");
    }
    if (!lines.empty()) to.flush();
    found = found || !lines.empty();
  }
  if (const absl::Status log = child.TakeLogError(); !log.ok()) {
    err_ << "weft: " << log.message() << "\n";
  }
  return found;
}

void Job::OnExits(const std::vector<Child*>& ended) {
  std::vector<Child*> failed;
  std::vector<std::string> marks;
  for (Child* child : ended) {
    const Exit exit = child->Reap();
    marks.push_back(MarkOf(launcher_, restart_, child->name()));
    keeper_.Forget(child->pid());
    if (options_.on_exit) options_.on_exit(*child, exit);
    while (Forward(*child)) {
    }
    if (exit.is_failure()) failed.push_back(child);
  }
  // Nothing of a rank outlives it, in whatever group or session it is.
  if (!marks.empty()) KillMarked(marks);
  // A rank that ends after it was asked to has not failed.
  if (culprit_ != nullptr || signal_ != 0) return;
  const Child* first = nullptr;
  for (Child* child : failed) {
    if (CanGoOnWithout(*child)) {
      GoOnWithout(*child);
    } else if (first == nullptr || !IsVictim(*child)) {
      // Of several that ended at once, one that lost a peer is no culprit.
      first = child;
    }
  }
  if (first == nullptr) return;
  if (IsVictim(*first) && !left_out_.empty()) first = left_out_.front();
  culprit_ = first;
  failed_after_ = Now() - started_at_;
  err_ << "weft: " << first->name() << " failed: " << first->exit().ToString()
       << "; ending the others\n";
  err_.flush();
  EndOthers(SIGTERM);
}

bool Job::CanGoOnWithout(const Child& child) const {
  if (child.role() != kTrainer || IsFinal(child) ||
      static_cast<int>(left_out_.size()) >= options_.allowed_trainer_exits) {
    return false;
  }
  return std::any_of(
      children_.begin(), children_.end(), [&](const auto& other) {
        return other->role() == kTrainer &&
               (!other->has_ended() || !other->exit().is_failure());
      });
}

void Job::GoOnWithout(const Child& child) {
  left_out_.push_back(&child);
  err_ << "weft: " << child.name() << " failed: " << child.exit().ToString()
       << "; the others go on without it, failure " << left_out_.size()
       << " of the " << options_.allowed_trainer_exits
       << " that --allow-trainer-exits allows\n";
  err_.flush();
}

void Job::OnSignal(int signal) {
  if (signal == SIGUSR2) {  // workers write their flight recorders and go on
    for (const auto& child : children_) child->Signal(signal);
    return;
  }
  if (signal_ != 0 && signal == SIGINT) {
    kill_at_ = Now();  // the user means it
    return;
  }
  if (signal_ == 0) signal_ = signal;
  err_ << "weft: passing SIG" << sigabbrev_np(signal)
       << " on to all ranks; Ctrl-C again kills them\n";
  err_.flush();
  EndOthers(signal);
}

void Job::EndOthers(int signal) {
  for (const auto& child : children_) child->Signal(signal);
  kill_at_ = std::min(kill_at_, Now() + options_.shutdown_timeout);
}

void Job::KillIfDue() {
  if (Now() < kill_at_) return;
  kill_at_ = Instant::Infinite();
  for (const auto& child : children_) {
    if (child->has_ended()) continue;
    killed_.push_back(child->name());
    child->Signal(SIGKILL);
  }
}

bool Job::may_start_again() const {
  return culprit_ != nullptr && signal_ == 0 && !is_final_;
}

bool Job::IsVictim(const Child& child) {
  return child.exit().code == static_cast<int>(worker::ExitCode::kPeerLost) ||
         child.exit().code == static_cast<int>(worker::ExitCode::kTimeout);
}

bool Job::IsFinal(const Child& child) const {
  const int code = child.exit().shell_code();
  if (code == static_cast<int>(worker::ExitCode::kUsage) ||
      code == static_cast<int>(worker::ExitCode::kConfig) ||
      code == static_cast<int>(worker::ExitCode::kDiverged) ||
      code == static_cast<int>(worker::ExitCode::kBadCheckpoint)) {
    return true;
  }
  const std::string file = NoRestartFile(options_, child.name());
  return !file.empty() && access(file.c_str(), F_OK) == 0;
}

int Job::ExitCode() const {
  if (culprit_ != nullptr) return culprit_->exit().shell_code();
  return signal_ == 0 ? 0 : 128 + signal_;
}

void Job::Report() const {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  err_ << "weft: ---- " << culprit_->name() << " failed first\n"
       << "  how: " << culprit_->exit().ToString() << ", after "
       << absl::FormatDuration(
              absl::Trunc(failed_after_, absl::Milliseconds(1)))
       << " (pid " << culprit_->pid() << " on " << host << ")\n";
  if (culprit_->tail().empty()) {
    err_ << "  it wrote nothing\n";
  } else {
    const size_t lines = culprit_->tail().size();
    err_ << (lines == 1 ? std::string("  the last line")
                        : absl::StrCat("  the last ", lines, " lines"))
         << " of its output:\n";
    for (const std::string& line : culprit_->tail()) {
      err_ << "    | " << telemetry::Printable(line) << "\n";
    }
  }
  std::vector<std::string> others;
  for (const auto& child : children_) {
    if (child.get() == culprit_) continue;
    const bool was_killed = std::find(killed_.begin(), killed_.end(),
                                      child->name()) != killed_.end();
    others.push_back(absl::StrCat(child->name(), " ",
                                  was_killed
                                      ? "killed, as it did not end when asked"
                                      : child->exit().ToString()));
  }
  if (!options_.log_dir.empty()) {
    err_ << "  all of its output: " << options_.log_dir << "/"
         << culprit_->name() << ".log\n";
  }
  if (!others.empty()) {
    err_ << "  the others then: " << absl::StrJoin(others, "; ") << "\n";
  }
  err_ << "weft: ----\n";
  err_.flush();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> SplitWords(absl::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool has_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0 && c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
      has_word = true;
    } else if (c == '\\' && quote != '\'' && i + 1 < text.size()) {
      word += text[++i];
      has_word = true;
    } else if (quote == 0 && absl::ascii_isspace(c)) {
      if (has_word) words.push_back(std::exchange(word, ""));
      has_word = false;
    } else {
      word += c;
      has_word = true;
    }
  }
  if (quote != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a quote (", std::string(1, quote), ") is not closed"));
  }
  if (has_word) words.push_back(std::move(word));
  return words;
}

absl::StatusOr<RoleSpec> ParseRole(absl::string_view text) {
  const size_t colon = text.find(':');
  const size_t equals = text.find('=');
  if (colon == absl::string_view::npos || equals == absl::string_view::npos ||
      equals > colon) {
    return BadRole("there is no '=' or no ':'");
  }
  RoleSpec role;
  role.role = std::string(text.substr(0, equals));
  if (!absl::SimpleAtoi(text.substr(equals + 1, colon - equals - 1),
                        &role.count) ||
      role.count < 1 || role.count > 1024) {
    return BadRole("the count is not a number from 1 to 1024");
  }
  absl::StatusOr<std::vector<std::string>> words =
      SplitWords(text.substr(colon + 1));
  if (!words.ok()) return BadRole(words.status().message());
  role.argv = *std::move(words);
  if (role.role.empty()) return BadRole("the role has no name");
  // It becomes a part of workers' names, and of the paths of their logs.
  if (const absl::Status named = net::ValidateIdentity({"job", role.role, 0});
      !named.ok()) {
    return BadRole(named.message());
  }
  if (role.argv.empty()) return BadRole("there is no program");
  return role;
}

std::vector<ChildSpec> PlanChildren(const LaunchOptions& options, int restart,
                                    const std::string& launcher) {
  int total = 0;
  for (const RoleSpec& role : options.roles) total += role.count;
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  std::vector<ChildSpec> children;
  for (const RoleSpec& role : options.roles) {
    for (int local = 0; local < role.count; ++local) {
      const std::string rank = absl::StrCat(options.node * role.count + local);
      const std::string size = absl::StrCat(options.nodes * role.count);
      ChildSpec child;
      child.name = absl::StrCat(role.role, rank);
      child.role = role.role;
      child.argv = role.argv;
      child.environment = {
          {"RANK", rank},
          {"LOCAL_RANK", absl::StrCat(local)},
          {"ROLE_RANK", rank},
          {"GROUP_RANK", absl::StrCat(options.node)},
          {"WORLD_SIZE", size},
          {"LOCAL_WORLD_SIZE", absl::StrCat(role.count)},
          {"ROLE_WORLD_SIZE", size},
          {"GROUP_WORLD_SIZE", absl::StrCat(options.nodes)},
          {"ROLE_NAME", role.role},
          {"MASTER_ADDR", options.master_addr},
          {"MASTER_PORT", absl::StrCat(options.master_port)},
          {"TORCHELASTIC_RUN_ID", options.job},
          {"TORCHELASTIC_RESTART_COUNT", absl::StrCat(restart)},
          {"TORCHELASTIC_MAX_RESTARTS", absl::StrCat(options.max_restarts)},
          {"WEFT_JOB", options.job},
          {"WEFT_ROLE", role.role},
          {"WEFT_RANK", rank},
          {"WEFT_RANKS_ON_HOST", absl::StrCat(total)},
      };
      if (options.nodes > 1) {
        child.environment["WEFT_START"] = absl::StrCat(restart + 1);
        child.environment["WEFT_WORLD_ORIGIN"] = absl::StrCat(
            "weft run --nnodes=", options.nodes, " on node ", options.node);
      }
      if (!launcher.empty()) {
        child.environment[kRankMark] = MarkOf(launcher, restart, child.name);
      }
      if (const std::string file = NoRestartFile(options, child.name);
          !file.empty()) {
        child.environment[worker::kNoRestartFile] = file;
      }
      if (!options.log_dir.empty()) {
        child.log_file = absl::StrCat(options.log_dir, "/", child.name, ".log");
      }
      if (!options.coordinator.empty()) {
        child.environment["WEFT_COORDINATOR"] = options.coordinator;
      }
      for (const RoleSpec& other : options.roles) {
        const std::string all = absl::StrCat(options.nodes * other.count);
        if (other.role == "ps") child.environment["WEFT_SERVERS"] = all;
        if (other.role == "trainer") child.environment["WEFT_TRAINERS"] = all;
      }
      // Ranks that share a host share its cores.
      if (total > 1 && getenv("OMP_NUM_THREADS") == nullptr) {
        child.environment["OMP_NUM_THREADS"] =
            absl::StrCat(std::max(1, cores / total));
      }
      for (const auto& [name, value] : options.environment) {
        child.environment[name] = value;
      }
      children.push_back(std::move(child));
    }
  }
  return children;
}

absl::StatusOr<int> Run(const LaunchOptions& options) {
  // Both outlive each start of the ranks: no signal is lost between two, and
  // the keeper is forked before anything here may start a thread.
  SignalScope signals;
  const std::string launcher = DrawLauncherId();
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<Keeper> keeper,
                        Keeper::Start(launcher, options.sweep));
  for (int restart = 0;; ++restart) {
    Job job(options, launcher, restart, signals, *keeper);
    const absl::StatusOr<int> code = job.Run();
    if (!code.ok() || restart >= options.max_restarts ||
        !job.may_start_again()) {
      return code;
    }
    std::ostream& err = options.err != nullptr ? *options.err : std::cerr;
    err << "weft: starting all ranks again, restart " << restart + 1 << " of "
        << options.max_restarts << "\n";
    err.flush();
  }
}

}  // namespace weft::launch
