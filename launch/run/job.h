// Job: one run of a job's ranks on this host, from their start to the end of
// all.

#ifndef WEFT_LAUNCH_RUN_JOB_H_
#define WEFT_LAUNCH_RUN_JOB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/launch/failure/failure_facts.h"
#include "weft/launch/failure/failure_table.h"
#include "weft/launch/failure/root_cause.h"
#include "weft/launch/run/child.h"
#include "weft/launch/run/end_notes.h"
#include "weft/launch/run/event_log.h"
#include "weft/launch/run/keeper.h"
#include "weft/launch/run/launcher.h"
#include "weft/launch/run/progress_watch.h"
#include "weft/launch/run/signal_scope.h"
#include "weft/launch/run/starts.h"
#include "weft/telemetry/field.h"

namespace weft::launch {

// The phases: all run; some are asked to end; those that do not are killed. All
// that it is given must outlive it.
//
// Thread-safety: on a process's only thread.
class Job {
 public:
  Job(const LaunchOptions& options, const std::string& launcher, int restart,
      SignalScope& signals, Keeper& keeper, EventLog& events);

  absl::StatusOr<int> Run();
  // After Run: whether the same ranks, started again, may do better.
  bool may_start_again() const;

 private:
  absl::Status StartAll();
  absl::Status StartCoordinator();
  void OnCoordinatorExit();
  void EndCoordinator();
  // The job ends since `child` failed first.
  void FailBy(const Child& child);
  void Watch();
  void OnSignal(int signal);
  void OnExits(const std::vector<Child*>& ended);
  // Writes what `child` has written; returns whether there was any.
  bool Forward(Child& child);
  // Whether the others go on without `child`, which has failed.
  bool CanGoOnWithout(const Child& child) const;
  void GoOnWithout(const Child& child);
  // Whether `child`, which has failed, is to be started again. Once for each
  // end.
  bool CanReplace(const Child& child);
  // Whether a trainer has ended well.
  bool HasCompleted() const;
  // Whether all trainers of this node have ended.
  bool HaveTrainersEnded() const;
  // Whether the others of this node are enough to go on for now without a
  // trainer that cannot run.
  bool CanWaitFor(const Child& child) const;
  // Starts it again, in its place in children_, which destroys `child`. If that
  // fails, `child` stays.
  absl::Status Replace(const Child& child);
  // At once, or after a pause.
  void ReplaceOrFail(const std::vector<const Child*>& ranks);
  // Says that it will be, and remembers when.
  void BackOff(const Child& rank, absl::Duration pause);
  // Whether one that is to be started again is still of use.
  bool IsWanted(const Child& rank) const;
  void ReplaceDue();
  void ReplaceNow(const Child& child);
  void EndOthers(int signal);
  void KillIfDue();
  // What holds of all ranks of the job.
  FailureFacts FactsOfJob() const;
  FailureFacts Facts() const;
  // Writes the table, once all have ended, and tells its rows as events.
  RootCause Report();
  // The same where the others go on without `failed`.
  void ReportShrunk(const std::vector<Child*>& failed);
  void TellTable(const FailureFacts& facts, const FailureTable& table);
  void TellEvent(absl::string_view event, const telemetry::Fields& fields);
  // What a line that `child` has written tells of the job.
  void TellJobEvent(const Child& child, absl::string_view line);
  // Says who keeps the job from going on, if anybody does.
  void WatchProgress();
  void TellStart(const Child& child, absl::string_view event);
  void TellEnd(const Child& child);
  int ExitCode() const;
  // Whether starting it again cannot help.
  bool IsFinal(const Child& child) const;
  int PollTimeout() const;
  Instant Now() const { return SteadyClock().Now(); }

  const LaunchOptions& options_;
  const std::string& launcher_;
  const int restart_;
  SignalScope& signals_;
  Keeper& keeper_;
  EventLog& events_;
  std::ostream& out_;
  std::ostream& err_;
  std::vector<std::unique_ptr<Child>> children_;
  std::unique_ptr<Child> coordinator_;  // null: no process of its own
  Starts coordinator_starts_;
  std::map<std::string, Starts> starts_;  // of each rank, by name
  std::map<std::string, Instant> due_;    // when they are started again
  Instant started_at_;
  const Child* culprit_ = nullptr;  // the first that failed by itself
  EndNotes notes_;
  ProgressWatch progress_;
  std::vector<const Child*> left_out_;  // failed, and the others went on
  bool is_final_ = false;               // of the culprit, after Run
  int signal_ = 0;                      // that we were sent
  Instant kill_at_ = Instant::Infinite();
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_JOB_H_
