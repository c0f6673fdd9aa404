#include "weft/collectives/run/transfer_wait.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::collectives {

TransferWait::TransferWait(Backend& backend, std::string group, CallSite site,
                           std::vector<Part> parts, Instant now)
    : backend_(backend),
      group_(std::move(group)),
      site_(site),
      parts_(std::move(parts)),
      is_reported_(parts_.size(), false) {
  reports_.Begin(*backend_.diagnosis(), now);
  ask_at_ = now + backend_.diagnosis()->report_after / 4;
}

std::string TransferWait::TextOf(const Part& part) const {
  return absl::StrCat(
      part.is_send ? "Send" : "Receive", " at ", site_.ToString(), " of tag ",
      part.tag, part.is_send ? " to " : " from ",
      part.peer < 0 ? "any rank" : absl::StrCat("rank ", part.peer));
}

std::string TransferWait::WhomOf(const Part& part) const {
  const char* const lacks =
      part.is_send ? "has not received it" : "has not sent it";
  std::vector<std::string> whom;
  for (int r = 0; r < backend_.size(); ++r) {
    const bool is_awaited =
        part.peer < 0 ? r != backend_.rank() : r == part.peer;
    if (!is_awaited) continue;
    whom.push_back(backend_.DescribePeer(r, lacks, reports_.since()));
  }
  return absl::StrJoin(whom, "; ");
}

void TransferWait::OnTime(Instant now) {
  if (now >= ask_at_) {
    // Once before each report, which comes after twice as long as the last.
    ask_at_ = reports_.due() + (reports_.due() - reports_.since()) / 4;
    for (const Part& part : parts_) {
      if (!part.is_done()) backend_.AskPeer(part.peer);
    }
  }
  if (!reports_.IsDue(now)) return;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].is_done()) {
      EndReported(i, now, absl::OkStatus());
      continue;
    }
    is_reported_[i] = true;
    Report(*backend_.diagnosis(),
           WaitText(TextOf(parts_[i]), backend_.rank(), group_,
                    now - reports_.since(), WhomOf(parts_[i])));
  }
}

void TransferWait::EndReported(size_t part, Instant now,
                               const absl::Status& status) {
  if (!is_reported_[part]) return;
  is_reported_[part] = false;
  Report(*backend_.diagnosis(),
         EndOfWaitText(TextOf(parts_[part]), backend_.rank(), group_,
                       now - reports_.since(), status));
}

void TransferWait::End(Instant now, const absl::Status& status) {
  for (size_t i = 0; i < parts_.size(); ++i) EndReported(i, now, status);
}

}  // namespace weft::collectives
