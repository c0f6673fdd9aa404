// JobOutcome: how the trainers of a job ended, as its workers learn it from the
// store of the job.
//
// A trainer that fails, or is stopped by a signal, reports that before it
// leaves. A worker that would end because its peers have gone reads the reports
// and ends with their cause. A trainer that leaves without a report has
// completed its training.

#ifndef WEFT_TRAIN_JOB_OUTCOME_H_
#define WEFT_TRAIN_JOB_OUTCOME_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/rendezvous/membership.h"
#include "weft/rendezvous/view.h"

namespace weft::train {

// One error as text that another worker reads: code, exit code, whether it
// IsFinal, and message.
std::string FormatFailure(const absl::Status& failure);
// kInternal if `text` is no such text.
absl::Status ParseFailure(absl::string_view text);

// Whether `status` says only that a peer is lost or a deadline has passed: the
// error of a worker that is not itself the cause.
bool IsOfPeer(const absl::Status& status);

// Thread-safety: thread-safe.
class JobOutcome {
 public:
  // `membership` must outlive it; `trainers` is their number in the job.
  JobOutcome(rendezvous::Membership& membership, int trainers)
      : membership_(membership), trainers_(trainers) {}

  // Tells the others why this trainer ends: an error, or EndedBySignal. Waits 2
  // s at most; without a coordinator the report is lost.
  void Report(const absl::Status& why);

  // In an elastic job: this trainer has completed the training. The job
  // remembers it: then trainers that are gone will not come back.
  void ReportCompleted();
  // How often trainers have said so, in earlier runs of the job as well;
  // nothing if the coordinator does not answer.
  std::optional<uint64_t> CountCompleted();

  // `own`, unless it IsOfPeer and a trainer has reported an error that is not:
  // then that report, which begins with the name of the trainer.
  absl::Status CauseOf(const absl::Status& own);

  // How a job ended whose trainers have all gone, as `view` has it. The first
  // of:
  //   what a trainer reported that is not IsOfPeer
  //   kUnavailable if the coordinator does not answer, for 10 s, whether a
  //   trainer that has left made a report
  //   OK if a trainer has left without a report: it has completed the training,
  //   in place of others that died
  //   kUnavailable, which names the trainers that died without leaving
  //   what another trainer that failed reported
  //   the report of a trainer that was stopped by a signal
  absl::Status Of(const rendezvous::View& view);

 private:
  // Whether there is a coordinator that could answer.
  bool CanAsk() const;
  // The report of that incarnation of the trainer; OK if there is none, nothing
  // if the coordinator does not answer.
  std::optional<absl::Status> ReportOf(const std::string& trainer,
                                       rendezvous::Epoch epoch,
                                       absl::Duration timeout);

  rendezvous::Membership& membership_;
  const int trainers_;
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_JOB_OUTCOME_H_
