#include "weft/launch/run/end_notes.h"

#include <poll.h>

#include "weft/launch/failure/failure_report.h"

namespace weft::launch {
namespace {

// Failures within so long may have one reason.
constexpr absl::Duration kLately = absl::Seconds(5);

}  // namespace

bool HasProcessEnded(const Child& child) {
  if (child.has_ended()) return true;
  pollfd fd = {child.exit_fd(), POLLIN, 0};
  return poll(&fd, 1, 0) == 1;
}

void EndNotes::Begin(Instant now) {
  began_at_ = now;
  oom_kills_ = ReadOomKills();
}

void EndNotes::Look() {
  const OomKills now = ReadOomKills();
  oom_kills_meanwhile_ = Between(oom_kills_, now);
  oom_kills_ = now;
  ++look_;
}

void EndNotes::End(const Child& child, Instant now) {
  ends_[child.name()] = {now - began_at_, oom_kills_meanwhile_, look_};
  if (child.exit().is_failure()) failed_[child.name()] = ReportOf(child);
}

void EndNotes::Ask(const Child& child) {
  if (HasProcessEnded(child)) return;
  asked_.insert(child.name());
  NoteStopped(child);
}

void EndNotes::NoteStopped(const Child& child) {
  if (!child.has_ended() && IsStopped(child.pid())) {
    stopped_.insert(child.name());
  }
}

void EndNotes::Kill(const Child& child) { killed_.insert(child.pid()); }

RankReport EndNotes::ReportOf(const Child& child) const {
  const std::string& name = child.name();
  RankReport report;
  report.name = name;
  report.pid = child.pid();
  report.exit = child.exit();
  if (const auto end = ends_.find(name); end != ends_.end()) {
    report.after = end->second.after;
    report.oom_kills = end->second.oom_kills;
    report.look = end->second.look;
  }
  report.peak_bytes = child.peak_bytes();
  report.was_asked = asked_.count(name) > 0;
  report.was_stopped = stopped_.count(name) > 0;
  report.was_killed = killed_.count(child.pid()) > 0;
  report.tail.assign(child.tail().begin(), child.tail().end());
  return report;
}

std::vector<RankReport> EndNotes::FailedLately(Instant now) const {
  std::vector<RankReport> lately;
  for (const auto& [name, report] : failed_) {
    if (now - began_at_ - report.after <= kLately) lately.push_back(report);
  }
  return lately;
}

}  // namespace weft::launch
