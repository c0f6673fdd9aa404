#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/driver.h"
#include "weft/base/steady_deadline.h"
#include "weft/ps/replicated/table_client.h"
#include "weft/rpc/session/failure.h"

// For whom operations wait, and when they wait no longer.

namespace weft::ps {
namespace {

// How often a thread that waits for stable pushes looks up.
constexpr absl::Duration kLookEvery = absl::Milliseconds(200);
constexpr absl::Duration kPieces = absl::Seconds(1);
// While nobody has answered for longer than kQuiet, the map is asked for.
constexpr absl::Duration kQuiet = absl::Milliseconds(500);
constexpr absl::Duration kLearnEvery = absl::Milliseconds(250);

}  // namespace

void ReplicatedTableClient::OnClose(const absl::Status& why) {
  Work work;
  {
    MutexLock lock(mu_);
    Fail(why, work);
  }
  Finish(std::move(work));
}

void ReplicatedTableClient::NoteEnd(WorkerKey server,
                                    const absl::Status& status) {
  if (rpc::ReasonOf(status) == rpc::Reason::kPeerGone) gone_.insert(server);
}

// A server that is stopped, or whose host is cut off, ends no call, and the map
// may name another one long before a call runs out of its time.
bool ReplicatedTableClient::MayBeElsewhere(Instant now) {
  const bool waits =
      !pulls_.empty() ||
      std::any_of(windows_.begin(), windows_.end(), [](const auto& window) {
        return !window.second.window.IsStable();
      });
  if (!waits) heard_at_ = now;
  if (now - heard_at_ < kQuiet) return false;
  heard_at_ = now - kQuiet + kLearnEvery;
  return true;
}

std::optional<WorkerKey> ReplicatedTableClient::GoneServerOf(
    const PartitionMap::Entry& entry) const {
  if (IsNone(entry.primary)) {
    return entry.heirs.empty() ? WorkerKey() : entry.heirs.front();
  }
  if (gone_.count(entry.primary) == 0) return std::nullopt;
  return entry.primary;
}

ReplicatedTableClient::Names ReplicatedTableClient::NamesOfGone() const {
  Names names;
  {
    MutexLock lock(mu_);
    for (int i = 0; i < map_.entries(); ++i) {
      const auto gone = GoneServerOf(map_.entry(i));
      if (gone.has_value()) names[*gone];
    }
  }
  for (auto& [server, name] : names) name = session_->NameOf(server);
  return names;
}

absl::Status ReplicatedTableClient::CheckIsServed(int partition,
                                                  const Names& gone) const {
  const auto server = GoneServerOf(map_.entry(map_.EntryOf(partition)));
  const auto found = server.has_value() ? gone.find(*server) : gone.end();
  if (found == gone.end()) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat(
      "table '", options_.spec.name(), "': gave up waiting for server ",
      found->second, ", which has partition ", partition, " and is gone"));
}

void ReplicatedTableClient::GiveUpOn(const Names& gone, Work& work) {
  absl::Status why;
  for (auto& [id, window] : windows_) {
    for (auto& [piece, operation] : window.operations) {
      why.Update(CheckIsServed(piece.first, gone));
    }
    for (int p = 0; p < options_.spec.partitions(); ++p) {
      if (window.window.outstanding(p) > 0) why.Update(CheckIsServed(p, gone));
    }
  }
  if (!why.ok()) return Fail(why, work);
  std::map<uint64_t, absl::Status> given_up;
  for (const auto& [id, pull] : pulls_) {
    for (const PullOperation::Item& item : pull.items) {
      if (item.is_done) continue;
      const absl::Status served = CheckIsServed(item.piece.partition, gone);
      if (!served.ok()) given_up.emplace(id, served);
    }
  }
  for (const auto& [id, status] : given_up) EndPull(id, status, work);
}

bool ReplicatedTableClient::AwaitStable(absl::Duration timeout) {
  const Instant began = SteadyClock().Now();
  const Instant give_up = began + timeout;
  std::optional<ServerWaits::Wait> wait;
  {
    MutexLock lock(mu_);
    if (began - stable_seen_ < kPieces) wait = std::move(stable_wait_);
    stable_wait_.reset();
  }
  if (!wait.has_value()) wait = BeginWait("AwaitStable", Awaited::kStable);
  for (Instant now = began;;) {
    bool is_stable = false;
    {
      MutexLock lock(mu_);
      const auto until = SteadyDeadline(std::min(give_up - now, kLookEvery));
      for (bool is_late = false; !is_late;) {
        is_stable = std::all_of(
            windows_.begin(), windows_.end(),
            [](const auto& window) { return window.second.window.IsStable(); });
        if (is_stable) break;
        const BlockingScope blocking;
        is_late = !moved_.WaitUntil(mu_, until);
      }
    }
    now = SteadyClock().Now();
    if (is_stable) {
      wait->End(now);
      return true;
    }
    wait->OnTime(now);
    if (now < give_up) continue;
    MutexLock lock(mu_);
    stable_wait_ = std::move(wait);
    stable_seen_ = now;
    return false;
  }
}

std::string ReplicatedTableClient::DescribeUnstable() const {
  std::string text;
  WorkerKey server;
  {
    MutexLock lock(mu_);
    for (const auto& [id, window] : windows_) {
      for (int p = 0; p < options_.spec.partitions() && text.empty(); ++p) {
        if (window.window.outstanding(p) == 0) continue;
        text = window.window.DescribeWait(p);
        server = map_.entry(map_.EntryOf(p)).primary;
      }
    }
  }
  if (!IsNone(server)) {
    absl::StrAppend(&text, "; that is ", session_->NameOf(server));
  }
  return text;
}

ServerWaits::Wait ReplicatedTableClient::BeginWait(const char* what,
                                                   Awaited awaited) {
  ServerWaits::Operation operation;
  operation.table = options_.spec.name();
  operation.what = what;
  operation.servers = [this, awaited] { return ServersAwaited(awaited); };
  return {*session_->waits(), std::move(operation), SteadyClock().Now()};
}

std::vector<std::string> ReplicatedTableClient::ServersAwaited(
    Awaited what) const {
  std::set<WorkerKey> keys;
  const auto add = [&](int partition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const PartitionMap::Entry& entry = map_.entry(map_.EntryOf(partition));
    if (!IsNone(entry.primary)) keys.insert(entry.primary);
  };
  {
    MutexLock lock(mu_);
    for (const auto& [id, pull] : pulls_) {
      if (what != Awaited::kPulls && what != Awaited::kBoth) break;
      for (const PullOperation::Item& item : pull.items) {
        if (!item.is_done) add(item.piece.partition);
      }
    }
    for (const auto& [id, window] : windows_) {
      if (what == Awaited::kPushes || what == Awaited::kBoth) {
        for (const auto& [piece, operation] : window.operations) {
          add(piece.first);
        }
      }
      for (int p = 0; p < options_.spec.partitions(); ++p) {
        if (what != Awaited::kStable) break;
        if (window.window.outstanding(p) > 0) add(p);
      }
    }
  }
  std::vector<std::string> names;
  for (const WorkerKey& key : keys) names.push_back(session_->NameOf(key));
  return names;
}

}  // namespace weft::ps
