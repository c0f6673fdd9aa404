// BarrierClient: see the header.

#include "weft/rendezvous/client/barrier_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/client/coordinator_call.h"
#include "weft/rendezvous/core/poll_backoff.h"
#include "weft/rendezvous/wire.h"

namespace weft::rendezvous {
namespace {

// "trainer1, trainer2 and 5 more"; empty if none is named.
std::string MissingIn(const v1::BarrierReply& reply) {
  std::string text = absl::StrJoin(reply.missing(), ", ");
  const auto named = static_cast<uint32_t>(reply.missing_size());
  if (reply.missing_count() > named) {
    absl::StrAppend(&text, " and ", reply.missing_count() - named, " more");
  }
  return text;
}

}  // namespace

BarrierClient::BarrierClient(TimerSource& timers,
                             std::shared_ptr<CoordinatorLink> link,
                             std::string job, std::shared_ptr<OpenCalls> calls,
                             std::function<absl::Status()> ask_status,
                             WaitReport report)
    : timers_(timers),
      link_(std::move(link)),
      job_(std::move(job)),
      calls_(std::move(calls)),
      ask_status_(std::move(ask_status)),
      report_(std::move(report)) {}

absl::Status BarrierClient::Arrive(const Member& self,
                                   v1::BarrierRequest& request) {
  WEFT_RETURN_IF_ERROR(calls_->status());
  MutexLock lock(mu_);
  request.set_arrival(++last_arrival_);
  if (!arrivals_.emplace(request.tag(), last_arrival_).second) {
    return absl::FailedPreconditionError(absl::StrCat("Barrier ", request.tag(),
                                                      ": another thread of ",
                                                      self.name, " is there"));
  }
  return absl::OkStatus();
}

// One that waits for long does not keep all later ones unsettled.
void BarrierClient::SaySettled(v1::BarrierRequest& request) {
  MutexLock lock(mu_);
  uint64_t lowest = last_arrival_;
  request.clear_unsettled();
  for (const auto& [tag, number] : arrivals_) {
    lowest = std::min(lowest, number);
    request.add_unsettled(number);
  }
  request.set_settled_below(lowest);
  request.set_arrivals(last_arrival_);
}

absl::StatusOr<v1::BarrierReply> BarrierClient::Meet(
    v1::BarrierRequest& request, Instant deadline, std::string* missing) {
  WaitReports reports(
      report_,
      absl::StrCat("Barrier ", WordOf(request.tag()), " of the coordinator"),
      now());
  absl::StatusOr<v1::BarrierReply> reply =
      MeetUntil(request, deadline, reports, missing);
  const bool is_open = reply.ok() && reply->released();
  reports.End(now(), reply.ok() && !is_open
                         ? absl::DeadlineExceededError("some are missing")
                         : reply.status());
  return reply;
}

absl::StatusOr<v1::BarrierReply> BarrierClient::MeetUntil(
    v1::BarrierRequest& request, Instant deadline, WaitReports& reports,
    std::string* missing) {
  PollBackoff backoff;
  for (;;) {
    const Instant asked = now();
    absl::StatusOr<v1::BarrierReply> reply = CallUntil<v1::BarrierReply>(
        *link_, timers_, "Barrier", std::min(deadline, reports.due()),
        [&](absl::Duration hold) {
          request.set_remaining_ms(absl::ToInt64Milliseconds(
              std::max(deadline - now(), absl::ZeroDuration())));
          request.set_wait_ms(absl::ToInt64Milliseconds(hold));
          SaySettled(request);
          return request;
        },
        *calls_);
    const Instant answered = now();
    if (!reply.ok()) {
      const bool goes_on = absl::IsDeadlineExceeded(reply.status()) &&
                           answered < deadline && calls_->status().ok();
      if (!goes_on) return reply;
      reports.OnTime(answered, "the coordinator does not answer");
      continue;
    }
    if (reply->released()) return reply;
    *missing = MissingIn(*reply);
    if (answered >= deadline || !calls_->status().ok()) return reply;
    reports.OnTime(answered, absl::StrCat("missing ", *missing));
    PauseFor(timers_,
             std::min(backoff.Pause(answered - asked), deadline - answered));
  }
}

absl::StatusOr<std::map<std::string, std::string>> BarrierClient::Gathered(
    absl::string_view tag, std::vector<std::string> members,
    v1::BarrierReply reply) const {
  std::map<std::string, std::string> gathered;
  for (std::string& member : members) gathered[std::move(member)];
  for (v1::Brought& brought : *reply.mutable_brought()) {
    const auto of = gathered.find(brought.name());
    if (of == gathered.end()) {
      return BadAnswer(
          link_->address(), "Barrier",
          absl::StrCat("\"", absl::CHexEscape(brought.name()), "\" is at ", tag,
                       ", which waits for ", gathered.size(), " others"));
    }
    of->second = std::move(*brought.mutable_payload());
  }
  return gathered;
}

absl::StatusOr<std::map<std::string, std::string>> BarrierClient::Gather(
    const Member& self, absl::string_view tag, absl::string_view payload,
    std::vector<std::string> members, bool is_everyone,
    absl::Duration timeout) {
  const Instant deadline = now() + timeout;
  v1::BarrierRequest request;
  request.set_job(job_);
  *request.mutable_key() = ToWire(self.key);
  request.set_tag(std::string(tag));
  request.set_payload(std::string(payload));
  request.set_everyone(is_everyone);
  if (!is_everyone) {
    *request.mutable_members() = {members.begin(), members.end()};
  }
  WEFT_RETURN_IF_ERROR(Arrive(self, request));
  std::string missing;
  absl::StatusOr<v1::BarrierReply> reply = Meet(request, deadline, &missing);
  {
    MutexLock lock(mu_);
    arrivals_.erase(std::string(tag));
  }
  if (reply.ok() && reply->released()) {
    return Gathered(tag, std::move(members), *std::move(reply));
  }
  // The coordinator may know before this worker that it is gone.
  if (absl::IsFailedPrecondition(reply.status())) {
    WEFT_RETURN_IF_ERROR(ask_status_());
  }
  WEFT_RETURN_IF_ERROR(calls_->status());
  if (absl::IsAborted(reply.status())) {
    return absl::UnavailableError(reply.status().message());
  }
  if (!reply.ok() && !absl::IsDeadlineExceeded(reply.status())) {
    return reply.status();
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "Barrier ", tag, ": after ", absl::FormatDuration(timeout), " missing ",
      missing.empty() ? "the coordinator's answer" : missing));
}

}  // namespace weft::rendezvous
