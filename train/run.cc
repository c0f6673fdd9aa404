#include "weft/train/run.h"

#include <signal.h>
#include <xxhash.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/clock.h"
#include "weft/base/parker.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/membership.h"
#include "weft/rendezvous/store.h"
#include "weft/telemetry/logger.h"
#include "weft/train/job_outcome.h"
#include "weft/train/settings.h"
#include "weft/train/start_unless_stopped.h"
#include "weft/train/stop_signal.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

constexpr absl::Duration kGoodBye = absl::Seconds(30);
// The same after a failure: the host of the coordinator still lets the others
// leave.
constexpr absl::Duration kHastyGoodBye = absl::Seconds(3);
constexpr absl::Duration kAgreement = absl::Minutes(2);
// Whether others wait to take part: what is not answered is asked again.
constexpr absl::Duration kToAsk = absl::Seconds(1);
// A call that waits for them is made again after this time.
constexpr absl::Duration kToComeFor = absl::Seconds(10);
// A trainer that is asked to stop while the trainers of an elastic job meet
// waits so long for the meeting, which ends soon where there are enough of
// them, and leaves after a step. If the meeting lasts longer, the others may
// have been asked as well: the trainer saves what it has done, and ends.
constexpr absl::Duration kToMeet = absl::Seconds(2);
// How many times longer than silence is borne a newcomer may do one thing of
// the hand-over, while the others stand still.
constexpr int kHangsAfter = 3;
// The coordinator may be on its way back.
constexpr absl::Duration kToNote = absl::Seconds(20);

absl::Status CheckWorker(const worker::Options& worker) {
  const auto usage = [](const std::string& message) {
    return worker::WithExitCode(absl::InvalidArgumentError(message),
                                worker::ExitCode::kUsage);
  };
  if (worker.role != "trainer") {
    return usage(absl::StrCat("--role=", worker.role,
                              " (or WEFT_ROLE): this program is a trainer; "
                              "wanted --role=trainer"));
  }
  return absl::OkStatus();
}

// `error` with what to do next, where starting again is a way on.
absl::Status WithWayOn(const absl::Status& error, const Options& options) {
  const bool is_lost = IsOfPeer(error) || worker::SignalOf(error).has_value();
  if (!is_lost) return error;
  const std::string way_on =
      options.checkpoint_dir.empty()
          ? "start the job again; with --checkpoint-dir it would go on from a "
            "checkpoint by --resume"
          : absl::StrCat("start the job again with --resume to go on from ",
                         options.checkpoint_dir);
  return Reworded(error, absl::StrCat(error.message(), "; ", way_on));
}

// Reports to the other workers why this trainer has not completed its training,
// and returns with what it is to end: the cause, which another may have
// reported.
absl::Status Conclude(worker::Worker& worker, const Options& options,
                      const absl::StatusOr<Result>& result) {
  absl::Status why = result.status();
  if (result.ok() && result->was_stopped) {
    const int signal = StopSignal();
    why = worker::EndedBySignal(
        signal != 0 ? signal : SIGTERM,  // that another rank was sent
        absl::StrCat(worker.self().name,
                     " was asked to stop before the training was complete"));
  }
  if (why.ok()) {
    // Its servers end by that.
    if (worker.options().is_elastic() && worker.options().servers > 0) {
      JobOutcome(worker.membership(), 0).ReportCompleted();
    }
    return why;
  }
  // The others go on: none of them ends by it.
  if (worker.options().is_elastic()) return WithWayOn(why, options);
  JobOutcome outcome(worker.membership(), worker.options().trainers);
  outcome.Report(why);
  return WithWayOn(outcome.CauseOf(why), options);
}

worker::ShutdownOptions GoodBye(const worker::Options& options,
                                bool has_completed) {
  worker::ShutdownOptions good_bye;
  good_bye.deadline = has_completed ? kGoodBye : kHastyGoodBye;
  // With servers no trainer calls another: each ends when it is done. Without,
  // trainer 0 hosts what the others need to leave, and to learn why it failed.
  const bool is_alone = options.is_elastic() && !options.hosts_coordinator();
  if (options.servers > 0 || !has_completed || is_alone) {
    good_bye.together = "name=" + options.name();
  }
  good_bye.graceful = has_completed || options.hosts_coordinator();
  return good_bye;
}

absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> MakeGroup(
    worker::Worker& worker, const worker::JoinGroupOptions& options,
    const DataParallelTraining::Elastic::Prepare& prepare) {
  auto group = worker::JoinGroup(worker, options);
  if (group.ok() && prepare != nullptr) prepare(**group);
  return group;
}

}  // namespace

absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> Job::JoinGroup(
    const worker::JoinGroupOptions& options) {
  const worker::Options& self = worker_.options();
  if (!self.is_elastic()) return Join(options);
  return worker::WithExitCode(
      absl::InvalidArgumentError(absl::StrCat(
          "--workers=", self.min_workers, ":", self.max_workers,
          " (or WEFT_WORKERS): this program is of no elastic job, whose "
          "trainers come together by train::Job::MakeElastic; wanted "
          "--trainers=N")),
      worker::ExitCode::kUsage);
}

absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> Job::Join(
    const worker::JoinGroupOptions& options,
    const DataParallelTraining::Elastic::Prepare& prepare) {
  rendezvous::Membership& membership = worker_.membership();
  const worker::Options& self = worker_.options();
  absl::Status stopped;
  absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> group;
  Parker joined;
  const auto told_to_stop = [&] {
    return worker::EndedBySignal(
        StopSignal(),
        absl::StrCat(worker_.self().name,
                     " was asked to stop while the trainers met"));
  };
  {
    const OnStopSignal leave([&] {
      if (self.is_elastic() &&
          joined.ParkUntil(SteadyClock().Now() + kToMeet)) {
        return;
      }
      stopped = told_to_stop();
      // One that leaves without a report has completed its training.
      if (!self.is_elastic()) {
        JobOutcome(membership, self.trainers).Report(stopped);
      }
      membership.Leave(kHastyGoodBye).IgnoreError();
    });
    group = [&]() -> decltype(group) {
      if (self.is_elastic()) return JoinElastic(options, prepare);
      WEFT_RETURN_IF_ERROR(AgreeOnSettings(membership, self.rank, self.trainers,
                                           options_.settings.All(),
                                           kAgreement));
      return worker::JoinGroup(worker_, options);
    }();
    joined.Unpark();
  }
  if (!stopped.ok()) return stopped;
  // Another that was asked as well may have left before this one could.
  if (!group.ok() && StopSignal() != 0 && !self.is_elastic()) {
    return told_to_stop();
  }
  return group;
}

// The group that was made while the training went on, if there is one.
absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> Job::JoinElastic(
    const worker::JoinGroupOptions& options,
    const DataParallelTraining::Elastic::Prepare& prepare) {
  if (auto made = next_group_.Take()) {
    if (made->ok() || !worker_.membership().status().ok()) {
      return *std::move(made);
    }
    WEFT_LOG(worker_.telemetry().logger(), Warning,
             "the group with those who waited was not made; meeting again")
        .With("why", made->status().message());
  }
  return MakeGroup(worker_, options, prepare);
}

void Job::EndJoin() {
  end_join_.Cancel(absl::CancelledError("the training has ended"));
  if (auto made = next_group_.Take()) made->IgnoreError();
}

// Who has the state goes on without it: it has nothing that others lack.
void Job::EndHung(const std::string& what, absl::Duration after) {
  worker_.DumpFlightRecorder();
  worker_.membership().Leave(kHastyGoodBye).IgnoreError();
  ExitIfError(worker::WithExitCode(
      absl::DeadlineExceededError(absl::StrCat(
          worker_.self().name, " has been ", what, " for more than ",
          absl::FormatDuration(after),
          " while the others waited to give it the state of the training: it "
          "has left, and they go on without it. The flight recording says what "
          "it has done; a longer --silence gives it more time")),
      worker::ExitCode::kTimeout));
}

// A question to the coordinator each time would make all ranks wait for its
// answer: they wait for this one in the next operation.
bool Job::HasNewcomers(const worker::JoinGroupOptions& options) {
  const auto came = newcomers_.TakeIfDone();
  if (!newcomers_.has_begun()) {
    // Where it has no thread nobody is taken in now.
    newcomers_
        .Begin("who waits for an elastic training",
               [this, options]() -> absl::StatusOr<bool> {
                 WEFT_RETURN_IF_ERROR(
                     worker::AwaitMembersWaiting(worker_, options, kToComeFor)
                         .status());
                 return true;
               })
        .IgnoreError();
  }
  if (!came.has_value() || !came->ok()) return false;
  // They may be in a group by now.
  const auto waiting = worker::MembersWaiting(worker_, options, kToAsk);
  return waiting.ok() && !waiting->empty();
}

DataParallelTraining::Elastic Job::MakeElastic(
    int max, worker::JoinGroupOptions options) {
  const worker::Options& self = worker_.options();
  options.elastic.min = self.min_workers;
  options.elastic.max = std::min(max, self.max_workers);
  DataParallelTraining::Elastic elastic;
  elastic.max_ranks = options.elastic.max;
  elastic.asked_to_leave = AskedToStop;
  const std::string& saved = options_.checkpoint_dir;
  elastic.has_trained =
      [this, key = absl::StrCat(
                 "train/", absl::Hex(XXH3_64bits(saved.data(), saved.size())))](
          bool begins) -> absl::StatusOr<bool> {
    rendezvous::Store& store = worker_.membership().store();
    if (begins) {
      WEFT_RETURN_IF_ERROR(store.Set(key, "begun", kToNote).status());
      return true;
    }
    const absl::Status known = store.Get(key, kToNote).status();
    if (absl::IsNotFound(known)) return false;
    WEFT_RETURN_IF_ERROR(known);
    return true;
  };
  elastic.hangs_after = kHangsAfter * self.limits.dead_after;
  elastic.on_hang = [this, after = elastic.hangs_after](
                        const std::string& what) { EndHung(what, after); };
  options.cancel = end_join_.token();
  elastic.join = [this, options](const auto& prepare) {
    return Join(options, prepare);
  };
  elastic.join_ahead = [this, options](auto prepare) {
    // Where it has no thread, JoinElastic says so.
    next_group_
        .Begin("the next group of an elastic training",
               [this, options, prepare = std::move(prepare)] {
                 return MakeGroup(worker_, options, prepare);
               })
        .IgnoreError();
  };
  elastic.has_joined_ahead = [this] { return next_group_.is_done(); };
  elastic.has_newcomers = [this, options] { return HasNewcomers(options); };
  return elastic;
}

absl::Status Run(worker::Options worker_options, const Options& options,
                 absl::FunctionRef<absl::StatusOr<Result>(Job& job)> train,
                 absl::FunctionRef<absl::Status(const Result& result)> print) {
  WEFT_RETURN_IF_ERROR(CheckWorker(worker_options));
  WEFT_ASSIGN_OR_RETURN(const auto worker,
                        StartUnlessStopped(std::move(worker_options)));
  // From here on a signal ends training after the step, with a checkpoint.
  Job job(*worker, options);
  const absl::StatusOr<Result> result =
      CatchToStatus([&] { return train(job); });
  job.EndJoin();
  // Must come before this worker leaves: the others end by what it says.
  const absl::Status cause = Conclude(*worker, options, result);
  const absl::Status ended =
      worker->Shutdown(GoodBye(worker->options(), result.ok())).status();
  // A trainer that was asked to stop while it met the others has not failed.
  const bool has_failed =
      !result.ok() && !worker::SignalOf(result.status()).has_value();
  if (has_failed || !ended.ok()) worker->DumpFlightRecorder();
  if (!result.ok()) return cause;
  const absl::Status printed = CatchToStatus([&] { return print(*result); });
  if (!result->saved.ok()) return result->saved;
  // The training is complete: once more it would end no better.
  for (const absl::Status& status : {printed, ended}) {
    if (!status.ok()) return worker::WithoutRestart(status);
  }
  return cause;
}

}  // namespace weft::train
