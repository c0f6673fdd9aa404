// Job: see the header.

#include "weft/launch/run/job.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/status_macros.h"
#include "weft/launch/failure/failure_report.h"
#include "weft/launch/failure/how_it_ended.h"
#include "weft/launch/run/job_event.h"
#include "weft/launch/run/plan.h"
#include "weft/launch/run/rank_mark.h"
#include "weft/telemetry/field.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/options.h"

namespace weft::launch {
namespace {

// After a failure, how long workers of other nodes may still leave before it is
// killed. Those of this node have ended.
constexpr absl::Duration kHastyEnd = absl::Seconds(5);
// An event: a rank that the others go on without meanwhile.
constexpr absl::string_view kRankRestarted = "rank_restarted";
std::string HostName() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return host;
}

}  // namespace

Job::Job(const LaunchOptions& options, const std::string& launcher, int restart,
         SignalScope& signals, Keeper& keeper, EventLog& events)
    : options_(options),
      launcher_(launcher),
      restart_(restart),
      signals_(signals),
      keeper_(keeper),
      events_(events),
      out_(options.out != nullptr ? *options.out : std::cout),
      err_(options.err != nullptr ? *options.err : std::cerr),
      progress_(options, HostName(), err_,
                [this](absl::string_view event, const auto& fields) {
                  TellEvent(event, fields);
                }) {}

absl::StatusOr<int> Job::Run() {
  started_at_ = Now();
  notes_.Begin(started_at_);
  if (const absl::Status started = StartAll(); !started.ok()) {
    EndCoordinator();
    return started;
  }
  Watch();
  EndCoordinator();
  out_.flush();
  std::string root;
  if (culprit_ != nullptr) root = Report().rank;
  TellEvent("ranks_ended", {{"exit_code", ExitCode()}, {"root_cause", root}});
  is_final_ = culprit_ != nullptr && IsFinal(*culprit_);
  for (const auto& child : children_) {
    const std::string file = NoRestartFile(options_, child->name());
    if (!file.empty()) unlink(file.c_str());
  }
  return ExitCode();
}

// The log of each start is its own: the coordinator of an earlier start knows
// workers that are no more.
absl::Status Job::StartCoordinator() {
  ChildSpec spec = PlanCoordinator(options_, restart_, launcher_);
  WEFT_ASSIGN_OR_RETURN(coordinator_, Child::Start(std::move(spec)));
  keeper_.Watch(coordinator_->pid());
  coordinator_starts_.Begin(Now());
  TellStart(*coordinator_, "coordinator_started");
  return absl::OkStatus();
}

void Job::OnCoordinatorExit() {
  notes_.Look();
  const Exit exit = coordinator_->Reap();
  keeper_.Forget(coordinator_->pid());
  while (Forward(*coordinator_)) {
  }
  TellEnd(*coordinator_);
  coordinator_starts_.End(Now());
  const bool may_stay = !coordinator_starts_.is_hopeless();
  absl::Status started;
  const bool is_final =
      IsFinal(*coordinator_) ||
      exit.shell_code() == static_cast<int>(worker::ExitCode::kAuth);
  if (!is_final && may_stay) {
    err_ << "weft: " << coordinator_->name()
         << " has ended: " << exit.ToString() << "; starting it again\n";
    err_.flush();
    std::unique_ptr<Child> ended = std::move(coordinator_);
    started = StartCoordinator();
    if (started.ok()) return;
    err_ << "weft: " << started.message() << "\n";
    coordinator_ = std::move(ended);
  }
  if (culprit_ == nullptr && signal_ == 0) FailBy(*coordinator_);
}

void Job::EndCoordinator() {
  if (coordinator_ == nullptr) return;
  const bool is_hasty = culprit_ != nullptr || signal_ != 0;
  Instant kill_at =
      Now() + (is_hasty ? std::min(kHastyEnd, options_.shutdown_timeout)
                        : options_.shutdown_timeout);
  if (!coordinator_->has_ended()) coordinator_->Signal(SIGTERM);
  while (!coordinator_->has_ended()) {
    pollfd fds[] = {{coordinator_->exit_fd(), POLLIN, 0},
                    {signals_.fd(), POLLIN, 0}};
    const int64_t ms =
        std::max<int64_t>(absl::ToInt64Milliseconds(kill_at - Now()) + 1, 0);
    if (poll(fds, 2, static_cast<int>(ms)) < 0 && errno != EINTR) break;
    while (const int signal = signals_.Take()) {
      if (signal != SIGUSR2) kill_at = Now();
    }
    if (fds[0].revents == 0 && Now() < kill_at) continue;
    if (fds[0].revents == 0) coordinator_->Signal(SIGKILL);
    coordinator_->Reap();
    keeper_.Forget(coordinator_->pid());
    TellEnd(*coordinator_);
  }
  while (Forward(*coordinator_)) {
  }
  if (const std::string log = CoordinatorLog(options_, restart_, launcher_);
      !log.empty()) {
    unlink(log.c_str());
  }
}

absl::Status Job::StartAll() {
  if (!options_.coordinator_argv.empty()) {
    WEFT_RETURN_IF_ERROR(StartCoordinator());
  }
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
    starts_[(*child)->name()].Begin(Now());
    TellStart(**child, "rank_started");
    children_.push_back(*std::move(child));
  }
  return absl::OkStatus();
}

int Job::PollTimeout() const {
  Instant next = std::min(kill_at_, progress_.next_at());
  for (const auto& [name, due] : due_) next = std::min(next, due);
  if (next.is_infinite()) return -1;
  const int64_t ms = absl::ToInt64Milliseconds(next - Now()) + 1;
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
    if (coordinator_ != nullptr) {
      add(coordinator_->output_fd(0), coordinator_.get());
      add(coordinator_->output_fd(1), coordinator_.get());
      if (!coordinator_->has_ended()) {
        add(coordinator_->exit_fd(), coordinator_.get());
      }
    }
    bool is_any_alive = false;
    for (const auto& child : children_) {
      add(child->output_fd(0), child.get());
      add(child->output_fd(1), child.get());
      if (child->has_ended()) continue;
      is_any_alive = true;
      add(child->exit_fd(), child.get());
    }
    if (!is_any_alive && due_.empty()) return;
    if (poll(fds.data(), fds.size(), PollTimeout()) < 0 && errno != EINTR) {
      err_ << "weft: poll failed: " << strerror(errno) << "\n";
      return;
    }
    while (const int signal = signals_.Take()) OnSignal(signal);
    std::vector<Child*> ended;
    bool has_coordinator_ended = false;
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      if (!owners[i]->has_ended() && fds[i].fd == owners[i]->exit_fd()) {
        if (owners[i] == coordinator_.get()) {
          has_coordinator_ended = true;
        } else {
          ended.push_back(owners[i]);
        }
      } else {
        Forward(*owners[i]);
      }
    }
    OnExits(ended);
    if (has_coordinator_ended) OnCoordinatorExit();
    ReplaceDue();
    KillIfDue();
    WatchProgress();
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
      TellJobEvent(child, line);
      progress_.Line(child.name(), line, Now());
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
  if (!ended.empty()) notes_.Look();
  for (Child* child : ended) {
    const Exit exit = child->Reap();
    marks.push_back(MarkOf(launcher_, restart_, child->name()));
    keeper_.Forget(child->pid());
    if (options_.on_exit) options_.on_exit(*child, exit);
    while (Forward(*child)) {
    }
    TellEnd(*child);
    if (exit.is_failure()) failed.push_back(child);
  }
  // Nothing of a rank outlives it, in whatever group or session it is.
  if (!marks.empty()) KillMarked(marks);
  // A rank that ends after it was asked to has not failed.
  if (culprit_ != nullptr || signal_ != 0) return;
  const Child* first = nullptr;
  std::vector<const Child*> again;  // to be started
  for (Child* child : failed) {
    if (CanReplace(*child)) {
      again.push_back(child);
    } else if (CanGoOnWithout(*child)) {
      GoOnWithout(*child);
    } else if (first == nullptr ||
               (HasLostPeer(first->exit()) && !HasLostPeer(child->exit()))) {
      // Where several ended at once, one that lost a peer is no culprit.
      first = child;
    }
  }
  if (first == nullptr) {
    ReportShrunk(failed);
    return ReplaceOrFail(again);
  }
  if (HasLostPeer(first->exit())) {
    if (!again.empty()) {
      first = again.front();
    } else if (!left_out_.empty()) {
      first = left_out_.front();
    }
  }
  FailBy(*first);
}

void Job::FailBy(const Child& child) {
  culprit_ = &child;
  TellEvent("job_failed", {{"first", child.name()}});
  err_ << "weft: " << child.name() << " failed: " << child.exit().ToString()
       << "; ending the others\n";
  err_.flush();
  EndOthers(SIGTERM);
}

bool Job::CanGoOnWithout(const Child& child) const {
  if (child.role() == kTrainer && !options_.workers.empty() && HasCompleted()) {
    return true;
  }
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
  TellEvent("rank_left_out", {{"rank", child.name()}});
  err_ << "weft: " << child.name() << " failed: " << child.exit().ToString()
       << "; the others go on without it";
  if (options_.allowed_trainer_exits > 0) {
    err_ << ", failure " << left_out_.size() << " of the "
         << options_.allowed_trainer_exits
         << " that --allow-trainer-exits allows";
  }
  err_ << "\n";
  err_.flush();
}

bool Job::CanReplace(const Child& child) {
  if (IsFinal(child)) return false;
  Starts& starts = starts_[child.name()];
  if (child.role() == kTrainer) {
    if (options_.workers.empty() || HasCompleted()) return false;
    starts.End(Now());
    return !starts.is_hopeless() || CanWaitFor(child);
  }
  if (options_.replicas < 2 || child.role() != kServer) return false;
  starts.End(Now());
  return !HaveTrainersEnded() && !starts.never_takes_part();
}

bool Job::HaveTrainersEnded() const {
  const auto is_trainer = [](const auto& other) {
    return other->role() == kTrainer;
  };
  // Where others start the trainers it is not known when those end.
  return std::any_of(children_.begin(), children_.end(), is_trainer) &&
         std::all_of(children_.begin(), children_.end(),
                     [&](const auto& other) {
                       return !is_trainer(other) || other->has_ended();
                     });
}

bool Job::CanWaitFor(const Child& child) const {
  const Instant now = Now();
  const auto stayed =
      std::count_if(children_.begin(), children_.end(), [&](const auto& other) {
        const auto starts = starts_.find(other->name());
        return other.get() != &child && other->role() == kTrainer &&
               !other->has_ended() && starts != starts_.end() &&
               starts->second.HasStayed(now);
      });
  // Trainers of other nodes may make up for those that are missing here.
  int least = 1;
  const std::vector<std::string> workers =
      absl::StrSplit(options_.workers, ':');
  if (options_.nodes > 1 || !absl::SimpleAtoi(workers.front(), &least)) {
    least = 1;
  }
  return stayed >= std::max(least, 1);
}

bool Job::HasCompleted() const {
  return std::any_of(children_.begin(), children_.end(), [](const auto& other) {
    return other->role() == kTrainer && other->has_ended() &&
           !other->exit().is_failure();
  });
}

void Job::ReplaceOrFail(const std::vector<const Child*>& ranks) {
  for (const Child* rank : ranks) {
    if (culprit_ != nullptr) return;
    const Starts& starts = starts_[rank->name()];
    const absl::Duration pause =
        rank->role() == kTrainer ? starts.Pause() : starts.PauseOfQuickEnds();
    if (pause > absl::ZeroDuration()) {
      BackOff(*rank, pause);
      continue;
    }
    err_ << "weft: " << rank->name()
         << " has ended: " << rank->exit().ToString()
         << "; starting it again, and the others go on\n";
    err_.flush();
    ReplaceNow(*rank);
  }
}

void Job::BackOff(const Child& rank, absl::Duration pause) {
  const Starts& starts = starts_[rank.name()];
  const bool is_trainer = rank.role() == kTrainer;
  const int ends = is_trainer ? starts.futile_starts() : starts.quick_ends();
  err_ << "weft: " << rank.name() << " has ended: " << rank.exit().ToString()
       << ", before it had "
       << (is_trainer ? "taken part for " : "been there for ")
       << absl::FormatDuration(kQuickEnd) << ", " << ends
       << " times in a row; starting it again in "
       << absl::FormatDuration(pause) << ", and the others go on\n";
  err_.flush();
  TellEvent("rank_backs_off", {{"rank", rank.name()},
                               {"futile_starts", ends},
                               {"pause_s", absl::ToDoubleSeconds(pause)}});
  due_[rank.name()] = Now() + pause;
}

bool Job::IsWanted(const Child& rank) const {
  if (culprit_ != nullptr || signal_ != 0) return false;
  return rank.role() == kTrainer ? !HasCompleted() : !HaveTrainersEnded();
}

void Job::ReplaceDue() {
  if (due_.empty()) return;
  const Instant now = Now();
  std::vector<const Child*> ranks;
  for (const auto& child : children_) {
    const auto due = due_.find(child->name());
    if (due == due_.end()) continue;
    const bool is_wanted = IsWanted(*child);
    if (is_wanted && now < due->second) continue;
    due_.erase(due);
    if (is_wanted) ranks.push_back(child.get());
  }
  for (const Child* rank : ranks) ReplaceNow(*rank);
}

void Job::ReplaceNow(const Child& child) {
  if (culprit_ != nullptr) return;
  const absl::Status started = Replace(child);
  if (started.ok()) return;
  err_ << "weft: " << started.message() << "\n";
  FailBy(child);
}

absl::Status Job::Replace(const Child& child) {
  ChildSpec spec = child.spec();
  spec.environment["WEFT_REJOIN"] = "true";
  WEFT_ASSIGN_OR_RETURN(auto next, Child::Start(std::move(spec)));
  keeper_.Watch(next->pid());
  starts_[next->name()].Begin(Now());
  TellStart(*next, kRankRestarted);
  const auto place =
      std::find_if(children_.begin(), children_.end(),
                   [&](const auto& other) { return other.get() == &child; });
  *place = std::move(next);
  return absl::OkStatus();
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
  TellEvent("signal", {{"signal", sigabbrev_np(signal)}});
  err_ << "weft: passing SIG" << sigabbrev_np(signal)
       << " on to all ranks; Ctrl-C again kills them\n";
  err_.flush();
  EndOthers(signal);
}

void Job::EndOthers(int signal) {
  for (const auto& child : children_) notes_.Ask(*child);
  if (coordinator_ != nullptr) notes_.NoteStopped(*coordinator_);
  for (const auto& child : children_) child->Signal(signal);
  // What is stopped cannot end before it goes on.
  for (const auto& child : children_) {
    if (notes_.was_stopped(child->name())) child->Signal(SIGCONT);
  }
  kill_at_ = std::min(kill_at_, Now() + options_.shutdown_timeout);
}

void Job::KillIfDue() {
  if (Now() < kill_at_) return;
  kill_at_ = Instant::Infinite();
  for (const auto& child : children_) {
    if (child->has_ended()) continue;
    notes_.Kill(*child);
    child->Signal(SIGKILL);
  }
}

bool Job::may_start_again() const {
  return culprit_ != nullptr && signal_ == 0 && !is_final_;
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
  // A coordinator that does not stay has failed whatever it says.
  if (culprit_ != nullptr) return std::max(culprit_->exit().shell_code(), 1);
  return signal_ == 0 ? 0 : 128 + signal_;
}

FailureFacts Job::FactsOfJob() const {
  FailureFacts facts;
  for (const RoleSpec& role : options_.roles) {
    facts.roles.push_back({role.role, options_.nodes * role.count});
  }
  facts.roles.push_back({worker::kCoordinatorRole, 1});
  facts.host = HostName();
  facts.log_dir = options_.log_dir;
  return facts;
}

FailureFacts Job::Facts() const {
  FailureFacts facts = FactsOfJob();
  for (const auto& child : children_) {
    facts.ranks.push_back(notes_.ReportOf(*child));
  }
  if (coordinator_ != nullptr && (culprit_ == coordinator_.get() ||
                                  notes_.was_stopped(coordinator_->name()))) {
    facts.ranks.push_back(notes_.ReportOf(*coordinator_));
  }
  facts.first = culprit_->name();
  return facts;
}

RootCause Job::Report() {
  const FailureFacts facts = Facts();
  FailureTable table = MakeFailureTable(facts);
  TellTable(facts, table);
  return std::move(table.cause);
}

void Job::ReportShrunk(const std::vector<Child*>& failed) {
  if (failed.empty()) return;
  FailureFacts facts = FactsOfJob();
  facts.ranks = notes_.FailedLately(Now());
  facts.is_shrunk = true;
  for (const auto& child : children_) {
    if (!child->has_ended()) ++facts.going_on;
  }
  std::set<std::string> names;
  for (const Child* child : failed) names.insert(child->name());
  const auto own = std::find_if(
      failed.begin(), failed.end(),
      [](const Child* child) { return !HasLostPeer(child->exit()); });
  facts.first = (own != failed.end() ? *own : failed.front())->name();
  TellTable(facts, MakeShrunkTable(facts, names));
}

void Job::TellTable(const FailureFacts& facts, const FailureTable& table) {
  for (const telemetry::Fields& row : FailureFields(facts, table)) {
    TellEvent("failure", row);
  }
  err_ << FailureReport(facts, table);
  err_.flush();
}

void Job::TellEvent(absl::string_view event, const telemetry::Fields& fields) {
  events_.Write(restart_, event, fields);
  if (const absl::Status error = events_.TakeError(); !error.ok()) {
    err_ << "weft: " << error.message() << "\n";
    err_.flush();
  }
}

void Job::TellJobEvent(const Child& child, absl::string_view line) {
  const std::optional<JobEvent> event = JobEventIn(line);
  if (!event.has_value()) return;
  telemetry::Fields fields = {{"rank", child.name()}};
  if (event->step >= 0) fields.push_back({"step", event->step});
  if (event->partitions >= 0) {
    fields.push_back({"partitions", event->partitions});
  }
  if (event->ranks >= 0) fields.push_back({"ranks", event->ranks});
  if (event->event == "server_joined") starts_[child.name()].Join(Now());
  if (event->event == "rank_joined") {
    starts_[child.name()].Join(Now());
    progress_.Joined(child.name());
  }
  TellEvent(event->event, fields);
}

void Job::WatchProgress() {
  // All are ending.
  if (culprit_ != nullptr || signal_ != 0) return progress_.Stop();
  std::vector<const Child*> processes;
  for (const auto& child : children_) processes.push_back(child.get());
  if (coordinator_ != nullptr) processes.push_back(coordinator_.get());
  progress_.Check(processes, Now());
}

void Job::TellStart(const Child& child, absl::string_view event) {
  const bool joins_others = event == kRankRestarted && child.role() == kTrainer;
  progress_.Start(child, joins_others, Now());
  TellEvent(event, {{"rank", child.name()}, {"pid", child.pid()}});
}

void Job::TellEnd(const Child& child) {
  progress_.End(child.name());
  notes_.End(child, Now());
  const RankReport report = notes_.ReportOf(child);
  TellEvent("rank_ended", {{"rank", report.name},
                           {"pid", report.pid},
                           {"how", HowItEnded(report)},
                           {"exit_code", report.exit.shell_code()},
                           {"after_s", absl::ToDoubleSeconds(report.after)},
                           {"peak_bytes", report.peak_bytes}});
}

}  // namespace weft::launch
