// JobOutcome: see the header.

#include "weft/train/job_outcome.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "weft/base/reworded.h"
#include "weft/base/said_by.h"
#include "weft/rendezvous/store.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

using worker::ExitCode;

constexpr absl::Duration kStoreTimeout = absl::Seconds(2);
// A coordinator that has died is back by then, if it is started again.
constexpr absl::Duration kOutcomeTimeout = absl::Seconds(10);

// Whether worker::IsFinal, in a report.
constexpr char kFinal[] = "final";
constexpr char kPassing[] = "passing";

// The counter of an elastic job's trainers that have completed the training.
constexpr char kCompleted[] = "outcome/completed";

std::string TrainerName(int rank) { return absl::StrCat("trainer", rank); }

std::string KeyOf(absl::string_view trainer) {
  return absl::StrCat("outcome/", trainer);
}

const rendezvous::Departed* FindDeparted(const rendezvous::View& view,
                                         absl::string_view name) {
  for (const rendezvous::Departed& departed : view.departed()) {
    if (departed.name == name) return &departed;
  }
  return nullptr;
}

}  // namespace

std::string FormatFailure(const absl::Status& failure) {
  return absl::StrCat(failure.raw_code(), " ",
                      static_cast<int>(worker::ExitCodeFor(failure)), " ",
                      worker::IsFinal(failure) ? kFinal : kPassing, " ",
                      failure.message());
}

absl::Status ParseFailure(absl::string_view text) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 3));
  int code = 0;
  int exit_code = 0;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &code) || code == 0 ||
      !absl::SimpleAtoi(parts[1], &exit_code) ||
      (parts[2] != kFinal && parts[2] != kPassing)) {
    return absl::InternalError(absl::StrCat("unreadable report: ", text));
  }
  const absl::Status failure = worker::WithExitCode(
      absl::Status(static_cast<absl::StatusCode>(code), parts[3]),
      static_cast<ExitCode>(exit_code));
  return parts[2] == kFinal ? worker::WithoutRestart(failure) : failure;
}

bool IsOfPeer(const absl::Status& status) {
  const ExitCode code = worker::ExitCodeFor(status);
  return code == ExitCode::kPeerLost || code == ExitCode::kTimeout;
}

bool JobOutcome::CanAsk() const {
  return membership_.status().ok() && membership_.coordinator_status().ok();
}

void JobOutcome::Report(const absl::Status& why) {
  if (!membership_.status().ok()) return;
  // Tried also while the coordinator is away: if it comes back, a trainer that
  // leaves without a report would count as one that has finished.
  const rendezvous::Member& self = membership_.self();
  (void)membership_.store().Set(
      KeyOf(self.name), absl::StrCat(self.key.epoch, " ", FormatFailure(why)),
      kStoreTimeout);
}

void JobOutcome::ReportCompleted() {
  (void)membership_.store().Add(kCompleted, 1, kStoreTimeout);
}

std::optional<uint64_t> JobOutcome::CountCompleted() {
  if (!CanAsk()) return std::nullopt;
  const auto entry = membership_.store().Get(kCompleted, kStoreTimeout);
  if (absl::IsNotFound(entry.status())) return 0;
  uint64_t count = 0;
  if (!entry.ok() || !absl::SimpleAtoi(entry->value, &count)) {
    return std::nullopt;
  }
  return count;
}

std::optional<absl::Status> JobOutcome::ReportOf(const std::string& trainer,
                                                 rendezvous::Epoch epoch,
                                                 absl::Duration timeout) {
  if (!membership_.status().ok()) return std::nullopt;
  const auto entry = membership_.store().Get(KeyOf(trainer), timeout);
  if (absl::IsNotFound(entry.status())) return absl::OkStatus();
  if (!entry.ok()) return std::nullopt;
  absl::string_view text = entry->value;
  // An earlier incarnation may have left its own.
  if (!absl::ConsumePrefix(&text, absl::StrCat(epoch, " "))) {
    return absl::OkStatus();
  }
  const absl::Status report = ParseFailure(text);
  return Reworded(report, SaidBy(trainer, report.message()));
}

absl::Status JobOutcome::CauseOf(const absl::Status& own) {
  if (own.ok() || !IsOfPeer(own) || !CanAsk()) return own;
  const auto view = membership_.view();
  for (int rank = 0; rank < trainers_; ++rank) {
    const std::string name = TrainerName(rank);
    const rendezvous::Member* const member = view->Find(name);
    const rendezvous::Departed* const departed = FindDeparted(*view, name);
    if (member == nullptr && departed == nullptr) continue;
    const auto report = ReportOf(
        name, member != nullptr ? member->key.epoch : departed->key.epoch,
        kStoreTimeout);
    if (!report.has_value()) return own;
    const bool is_cause = !report->ok() && !IsOfPeer(*report) &&
                          !worker::SignalOf(*report).has_value();
    if (is_cause) return *report;
  }
  return own;
}

absl::Status JobOutcome::Of(const rendezvous::View& view) {
  std::vector<std::string> died;
  absl::Status failed, stopped;
  bool has_completed = false;
  for (int rank = 0; rank < trainers_; ++rank) {
    const std::string name = TrainerName(rank);
    const rendezvous::Departed* const departed = FindDeparted(view, name);
    if (departed == nullptr) continue;
    if (!departed->left) {
      died.push_back(absl::StrCat(name, ": ", departed->reason));
      continue;
    }
    const auto report = ReportOf(name, departed->key.epoch, kOutcomeTimeout);
    if (!report.has_value()) {
      return absl::UnavailableError(absl::StrCat(
          name,
          " has left, and the coordinator does not answer whether it had "
          "completed the training"));
    }
    if (report->ok()) {
      has_completed = true;
    } else if (worker::SignalOf(*report).has_value()) {
      stopped = *report;
    } else if (!IsOfPeer(*report)) {
      return *report;
    } else {
      failed = *report;
    }
  }
  if (has_completed) return absl::OkStatus();
  if (!died.empty()) {
    return absl::UnavailableError(
        absl::StrCat("trainers died: ", absl::StrJoin(died, "; ")));
  }
  return failed.ok() ? stopped : failed;
}

}  // namespace weft::train
