// What References say about themselves.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rref/references.h"

namespace weft::rref {

References::Counts References::counts() const {
  MutexLock lock(mu_);
  Counts counts;
  counts.held = static_cast<int64_t>(user_.forks());
  counts.open_children = static_cast<int64_t>(user_.open_children());
  counts.owned = static_cast<int64_t>(owner_.objects());
  counts.waiting = static_cast<int64_t>(owner_.waiting_requests());
  for (const auto& [object, calls] : awaiting_) counts.waiting += calls.size();
  counts.creating = static_cast<int64_t>(owner_.expected() + creations_.size());
  return counts;
}

std::vector<References::Holding> References::Holdings() const {
  MutexLock lock(mu_);
  return HoldingsLocked();
}

std::vector<References::Holding> References::HoldingsLocked() const {
  const Instant now = driver_.clock().Now();
  std::vector<Holding> holdings;
  std::vector<ForkOf> forks;
  owner_.ForEachFork(
      [&](const rpc::ObjectId& object, const ForkId& fork, WorkerKey holder) {
        holdings.push_back({object, "", holder.ToString(), absl::Duration()});
        forks.emplace_back(object, fork);
      });
  for (size_t i = 0; i < forks.size(); ++i) {
    const auto it = registered_.find(forks[i]);
    if (it == registered_.end()) continue;
    holdings[i].holder = it->second.holder;
    holdings[i].age = now - it->second.since;
    holdings[i].function = it->second.function;
  }
  return holdings;
}

namespace {

// Open references, with their ages.
using Aged = std::pair<absl::Duration, std::string>;

// In words, longest first.
std::vector<std::string> OldestOf(std::vector<Aged> all, size_t most) {
  std::stable_sort(all.begin(), all.end(), [](const Aged& a, const Aged& b) {
    return a.first > b.first;
  });
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(most, all.size()); ++i) {
    lines.push_back(std::move(all[i].second));
  }
  if (all.size() > most) {
    lines.push_back(absl::StrCat("and ", all.size() - most, " more"));
  }
  return lines;
}

std::string AgeOf(absl::Duration age) {
  return absl::FormatDuration(absl::Trunc(age, absl::Milliseconds(100)));
}

const char* WhyHeld(UserTable::State state, bool has_handle) {
  if (state == UserTable::State::kFailed) return ": its owner is gone";
  if (state == UserTable::State::kDeleting) return ": its end is on the way";
  if (state == UserTable::State::kPending)
    return ": not confirmed by the owner";
  return has_handle ? "" : ": it was passed on";
}

}  // namespace

std::vector<std::string> References::ExplainHeld(size_t most) const {
  const Instant now = driver_.clock().Now();
  std::vector<Aged> all;
  struct Held {
    Token token;
    UserTable::State state;
  };
  std::vector<Held> forks;
  user_.ForEachFork([&](const Token& token, UserTable::State state) {
    forks.push_back({token, state});
  });
  for (const Held& held : forks) {
    const auto since = held_since_.find(held.token.fork);
    const absl::Duration age =
        since == held_since_.end() ? absl::Duration() : now - since->second;
    all.emplace_back(
        age,
        absl::StrCat("object ", held.token.object.ToString(), " of ",
                     weak_agent()->NameOf(held.token.object.owner),
                     " is held here for ", AgeOf(age),
                     WhyHeld(held.state, user_.HasHandle(held.token.fork))));
  }
  std::vector<std::string> children;
  user_.ForEachOpenChild([&](const Token& parent, const ForkId&, WorkerKey to) {
    children.push_back(absl::StrCat("object ", parent.object.ToString(),
                                    " was passed on to ", to.ToString(),
                                    ", which has not confirmed it yet"));
  });
  std::vector<std::string> lines = OldestOf(std::move(all), most);
  if (children.size() > most) children.resize(most);
  lines.insert(lines.end(), children.begin(), children.end());
  return lines;
}

std::vector<std::string> References::ExplainOwned(size_t most) const {
  std::vector<Aged> all;
  for (const Holding& holding : HoldingsLocked()) {
    all.emplace_back(
        holding.age,
        absl::StrCat("object ", holding.object.ToString(),
                     holding.function.empty() ? "" : " (", holding.function,
                     holding.function.empty() ? "" : ")",
                     " of this worker is held by ", holding.holder, " for ",
                     AgeOf(holding.age)));
  }
  return OldestOf(std::move(all), most);
}

std::vector<std::string> References::ExplainLeaks(size_t most) const {
  MutexLock lock(mu_);
  std::vector<std::string> lines = ExplainOwned(most);
  if (weak_agent()->has_ended()) return lines;
  for (std::string& line : ExplainHeld(most)) lines.push_back(std::move(line));
  return lines;
}

telemetry::Fields References::Describe() const {
  const Counts now = counts();
  telemetry::Fields fields;
  fields.emplace_back("held here", now.held);
  fields.emplace_back("passed on and not confirmed", now.open_children);
  fields.emplace_back("shared objects of this worker", now.owned);
  fields.emplace_back("requests that wait for an object", now.waiting);
  fields.emplace_back("objects that are being made", now.creating);
  size_t number = 0;
  for (const std::string& line : ExplainLeaks()) {
    fields.emplace_back(absl::StrCat("reference ", ++number), line);
  }
  return fields;
}

}  // namespace weft::rref
