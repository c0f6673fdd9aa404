// ProgressWatch: see the header.

#include "weft/launch/run/progress_watch.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>

#include "absl/time/time.h"
#include "weft/launch/run/plan.h"
#include "weft/launch/stuck/process_look.h"
#include "weft/launch/stuck/stuck_text.h"

namespace weft::launch {
namespace {

// Between two looks at what the processes do.
constexpr absl::Duration kLookEvery = absl::Seconds(1);
// Between two looks at what the launchers of other nodes have said, and how
// many of these are asked at a time.
constexpr absl::Duration kHearEvery = absl::Milliseconds(200);
constexpr size_t kMostAsked = 16;

}  // namespace

Instant ProgressWatch::next_at() const {
  if (next_look_.is_infinite() || !asks_) return next_look_;
  return std::min(next_look_, next_share_);
}

void ProgressWatch::Check(const std::vector<const Child*>& children,
                          Instant now) {
  if (now >= next_look_) Look(children, now);
  ShareFacts(now);
  const StuckWatch::News news = stuck_.Check(now, elsewhere_, asks_);
  if (news.is_over) {
    err_ << "weft: the job goes on, after "
         << absl::FormatDuration(absl::Trunc(news.lasted, absl::Seconds(1)))
         << "\n";
    err_.flush();
    tell_event_("unstuck", {{"lasted_s", absl::ToDoubleSeconds(news.lasted)}});
  }
  if (news.causes.empty()) return;
  const std::vector<RankFacts> facts = stuck_.Facts(now, elsewhere_);
  for (const StuckCause& cause : news.causes) {
    const std::string text = StuckText(cause, facts, host_, options_.job);
    err_ << "weft: no progress: " << telemetry::Printable(text) << "\n";
    tell_event_("stuck", StuckFields(cause, facts, host_));
  }
  err_.flush();
}

void ProgressWatch::Look(const std::vector<const Child*>& children,
                         Instant now) {
  next_look_ = now + kLookEvery;
  for (const Child* child : children) {
    if (child->has_ended()) continue;
    if (const auto seen = LookAt(child->pid()); seen.has_value()) {
      stuck_.Look(child->name(), *seen, now);
    }
  }
}

void ProgressWatch::ShareFacts(Instant now) {
  if (options_.share_facts == nullptr) return;
  std::set<int> nodes;
  for (const std::string& name : stuck_.AwaitedElsewhere(elsewhere_)) {
    const std::optional<int> node = NodeOf(options_, name);
    if (!node.has_value() || *node == options_.node) continue;
    if (nodes.size() < kMostAsked) nodes.insert(*node);
  }
  if (now < next_share_ && asks_ == !nodes.empty()) return;
  asks_ = !nodes.empty();
  next_share_ = now + (asks_ ? kHearEvery : kLookEvery);
  elsewhere_ = options_.share_facts(stuck_.Facts(now), nodes);
}

}  // namespace weft::launch
