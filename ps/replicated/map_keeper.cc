#include "weft/ps/replicated/map_keeper.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"

namespace weft::ps {
namespace {

using State = PartitionMap::State;
using Server = PartitionMap::Server;

constexpr absl::Duration kMostTimeout = absl::Seconds(1);
constexpr absl::Duration kBackupsEvery = absl::Milliseconds(200);
// How many conflicts in a row are no reason for a pause. One of those who try
// at a time has made its change.
constexpr int kFreeConflicts = 8;

Instant Now() { return SteadyClock().Now(); }

// 100 ms, and twice as long each time, up to 1 s.
class GrowingPause {
 public:
  absl::Duration Next() {
    return std::exchange(next_, std::min(2 * next_, absl::Seconds(1)));
  }

 private:
  absl::Duration next_ = absl::Milliseconds(100);
};

bool Contains(const std::vector<WorkerKey>& sorted, WorkerKey key) {
  return std::binary_search(sorted.begin(), sorted.end(), key);
}

}  // namespace

// What OnServers said.
struct MapKeeper::View {
  std::vector<Server> live;       // by id, one of each
  std::vector<WorkerKey> exited;  // sorted
  int expected = 0;
  WorkerKey logged;  // has a log; none: nobody is known to

  View(std::vector<Server> members, std::vector<WorkerKey> ended, int wanted,
       WorkerKey with_log)
      : exited(std::move(ended)), expected(wanted), logged(with_log) {
    std::sort(exited.begin(), exited.end());
    std::sort(members.begin(), members.end(),
              [](const Server& a, const Server& b) { return a.key < b.key; });
    for (Server& member : members) {
      if (IsNone(member.key) || Contains(exited, member.key)) continue;
      if (!live.empty() && live.back().key.id == member.key.id) {
        live.back() = member;
      } else {
        live.push_back(member);
      }
    }
  }

  bool IsComplete() const {
    return !live.empty() && static_cast<int64_t>(live.size()) >= expected;
  }

  // Brings `map` up to it, but for backups. False: it was.
  bool Apply(PartitionMap& map) const {
    const uint64_t before = map.epoch();
    map.FailServers(exited);
    for (const Server& server : live) map.AddServer(server.key, server.host);
    if (!IsNone(logged)) map.SetLogged(logged);
    return map.epoch() != before;
  }
};

MapKeeper::MapKeeper(Options options)
    : options_(std::move(options)),
      store_(*options_.store),
      timeout_(std::clamp(options_.store_timeout, absl::Milliseconds(1),
                          kMostTimeout)),
      telemetry_(telemetry::OrSilent(options_.telemetry)) {
  try {
    watching_ = std::thread([this] { Watch(); });
    changing_ = std::thread([this] { Change(); });
    telling_ = std::thread([this] { Tell(); });
  } catch (...) {  // the system has none left
    Stop();
    throw;
  }
}

MapKeeper::~MapKeeper() { Stop(); }

void MapKeeper::Stop() {
  {
    MutexLock lock(mu_);
    is_stopping_ = true;
  }
  changed_.NotifyAll();
  for (std::thread* thread : {&watching_, &changing_, &telling_}) {
    if (thread->joinable()) thread->join();
  }
}

// --- What the owner calls ----------------------------------------------------

void MapKeeper::OnServers(std::vector<Server> live,
                          std::vector<WorkerKey> exited, int expected) {
  const auto is_self = [&](const Server& server) {
    return server.key == options_.self;
  };
  if (!IsNone(options_.self) &&
      std::none_of(live.begin(), live.end(), is_self)) {
    live.push_back({options_.self, options_.host, State::kLive});
  }
  auto view = std::make_shared<const View>(
      std::move(live), std::move(exited), expected,
      options_.has_log ? options_.self : WorkerKey());
  MutexLock lock(mu_);
  view_ = std::move(view);
  no_first_map_ = absl::OkStatus();
  is_asked_ = true;
  changed_.NotifyAll();
}

void MapKeeper::Propose(const MapChange& change,
                        std::function<bool()> may_make) {
  if (change.entry < 0 || change.entry >= PartitionMap::kMostEntries) return;
  MutexLock lock(mu_);
  if (!change.is_of_all() && known_ &&
      (change.entry >= known_->map.entries() ||
       change.changed < known_->map.entry(change.entry).changed)) {
    return;
  }
  Proposal& waits = proposals_[{change.entry, change.kind, change.server}];
  if (change.changed < waits.change.changed ||
      change.generation < waits.change.generation) {
    return;
  }
  waits = {change, std::move(may_make), ++last_proposal_};
  is_asked_ = true;
  changed_.NotifyAll();
}

void MapKeeper::Learn() {
  MutexLock lock(mu_);
  is_asked_ = true;
  changed_.NotifyAll();
}

absl::Status MapKeeper::Offer(absl::string_view encoded) {
  {
    MutexLock lock(mu_);
    if (known_ && known_->encoded == encoded) return absl::OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(PartitionMap map, PartitionMap::Decode(encoded));
  return Adopt(std::make_shared<const Known>(
      Known{std::move(map), std::string(encoded)}));
}

PartitionMap MapKeeper::map() const {
  MutexLock lock(mu_);
  return known_ ? known_->map : PartitionMap();
}

std::string MapKeeper::encoded() const {
  MutexLock lock(mu_);
  return known_ ? known_->encoded : std::string();
}

absl::StatusOr<PartitionMap> MapKeeper::AwaitMap(absl::Duration timeout) const {
  const auto deadline = SteadyDeadline(timeout);
  MutexLock lock(mu_);
  while (!known_ && no_first_map_.ok()) {
    if (changed_.WaitUntil(mu_, deadline)) continue;
    if (known_ || !no_first_map_.ok()) break;
    const std::string servers =
        view_ == nullptr ? "no servers are known"
                         : absl::StrCat(view_->live.size(), " of ",
                                        view_->expected, " servers are there");
    return absl::DeadlineExceededError(absl::StrCat(
        "partition map: there is none at key \"", options_.key, "\" after ",
        absl::FormatDuration(timeout), ": ", servers,
        store_status_.ok()
            ? ""
            : absl::StrCat("; the store: ", store_status_.message())));
  }
  if (!known_) return no_first_map_;
  return known_->map;
}

absl::StatusOr<PartitionMap> MapKeeper::AwaitNewest(absl::Duration timeout) {
  const Instant since = Now();
  const auto deadline = SteadyDeadline(timeout);
  MutexLock lock(mu_);
  is_asked_ = true;
  changed_.NotifyAll();
  while (read_at_ < since || !known_) {
    if (changed_.WaitUntil(mu_, deadline)) continue;
    if (read_at_ >= since && known_) break;
    return absl::UnavailableError(absl::StrCat(
        "partition map: key \"", options_.key,
        "\" of the store was not read within ", absl::FormatDuration(timeout),
        store_status_.ok() ? "" : absl::StrCat(": ", store_status_.message())));
  }
  return known_->map;
}

// --- The watching thread -----------------------------------------------------

void MapKeeper::Watch() {
  uint64_t seen = 0;
  GrowingPause pause;
  while (PauseFor(absl::ZeroDuration())) {
    const Instant asked = Now();
    const auto entry = store_.Wait(options_.key, seen, timeout_);
    if (entry.ok() && entry->version > seen) {
      seen = entry->version;
      pause = GrowingPause();
      if (!Read(*entry).ok()) Learn();  // that attempt says why
      continue;
    }
    // A wait that has lasted was one: there is no newer version.
    if (absl::IsDeadlineExceeded(entry.status()) &&
        Now() - asked >= timeout_ / 2) {
      pause = GrowingPause();
      continue;
    }
    if (!PauseFor(pause.Next())) return;
  }
}

bool MapKeeper::PauseFor(absl::Duration pause) {
  const auto deadline = SteadyDeadline(pause);
  MutexLock lock(mu_);
  while (!is_stopping_ && changed_.WaitUntil(mu_, deadline)) {
  }
  return !is_stopping_;
}

// --- The changing thread -----------------------------------------------------

void MapKeeper::Change() {
  GrowingPause pause;
  int conflicts = 0;
  Instant not_before;
  while (AwaitWork(not_before)) {
    const absl::StatusOr<bool> is_done = Attempt();
    const bool is_conflict = is_done.ok() && !*is_done;
    if (!is_conflict) Note(is_done.status());
    if (is_done.ok() && *is_done) {
      pause = GrowingPause();
      conflicts = 0;
      not_before = Instant();
      continue;
    }
    {
      MutexLock lock(mu_);
      is_asked_ = true;
    }
    if (is_conflict && ++conflicts <= kFreeConflicts) continue;
    if (is_conflict && conflicts == kFreeConflicts + 1) {
      WEFT_LOG(telemetry_.logger(), Warning,
               "partition map: others change it all the time, or it is older "
               "than one that is known; changes wait");
    }
    not_before = Now() + pause.Next();
  }
}

bool MapKeeper::AwaitWork(Instant not_before) {
  MutexLock lock(mu_);
  while (!is_stopping_) {
    Instant due = is_asked_ || has_work_ ? Instant() : next_contact_;
    if (wants_backups_) due = std::min(due, next_backups_);
    const Instant now = Now();
    due = std::max(due, not_before);
    if (due <= now) {
      is_asked_ = false;
      return true;
    }
    changed_.WaitUntil(mu_, SteadyDeadline(due - now));
  }
  return false;
}

absl::StatusOr<bool> MapKeeper::Attempt() {
  const Instant asked = Now();
  auto entry = store_.Get(options_.key, timeout_);
  if (absl::IsNotFound(entry.status())) entry = rendezvous::StoreEntry();
  WEFT_RETURN_IF_ERROR(entry.status());
  KnownMap stored;  // null: the job has none
  if (entry->version != 0) {
    WEFT_ASSIGN_OR_RETURN(stored, Read(*entry));
  }
  Work work = TakeWork({asked, stored ? stored->map.epoch() : 0});
  // It was read just before a newer one was written.
  if (stored && work.known->map.epoch() > stored->map.epoch()) return false;
  if (!PauseFor(absl::ZeroDuration())) return true;  // the keeper ends
  PartitionMap next;
  if (Compose(stored, work, next)) {
    return Write(entry->version, std::move(next), work);
  }
  if (stored) Forget(work.proposals);
  return true;
}

MapKeeper::Work MapKeeper::TakeWork(Contact contact) {
  MutexLock lock(mu_);
  contact_ = contact;
  read_at_ = contact.asked;
  next_contact_ = contact.asked + options_.contact_every;
  has_work_ = false;
  Work work;
  work.known = known_;
  work.view = view_;
  work.proposals = proposals_;
  work.may_add_backups = Now() >= next_backups_;
  if (work.may_add_backups) wants_backups_ = false;
  changed_.NotifyAll();
  return work;
}

bool MapKeeper::Compose(const KnownMap& stored, Work& work,
                        PartitionMap& next) {
  // A store that has lost the map gets it back: the partitions are still there.
  const KnownMap base = stored ? stored : work.known;
  if (base == nullptr) return ComposeFirst(work.view.get(), next);
  next = base->map;
  Proposals refused;
  for (const auto& [place, proposal] : work.proposals) {
    if (proposal.may_make && !proposal.may_make()) {
      refused.emplace(place, proposal);
    } else {
      next.Apply(proposal.change).IgnoreError();  // it comes too late
    }
  }
  Forget(refused);
  for (const auto& [place, proposal] : refused) work.proposals.erase(place);
  const bool has_other_servers = work.view && work.view->Apply(next);
  if (has_other_servers || work.may_add_backups) {
    const std::set<WorkerKey> dropped = NoteDropped(base->map, next);
    work.adds_backups = next.AddBackups(dropped);
    if (next.AddMoves(dropped)) work.adds_backups = true;
  }
  return stored == nullptr || next.epoch() != base->map.epoch();
}

std::set<WorkerKey> MapKeeper::NoteDropped(const PartitionMap& before,
                                           const PartitionMap& after) {
  MutexLock lock(mu_);
  dropped_.OnChange(before, after, Now());
  return dropped_.At(Now());
}

bool MapKeeper::ComposeFirst(const View* view, PartitionMap& next) {
  if (view == nullptr || !view->IsComplete()) return false;
  auto first =
      PartitionMap::Assign(options_.entries, view->live, options_.replicas);
  if (first.ok()) {
    next = *std::move(first);
    std::random_device random;
    next.set_birth(uint64_t{random()} << 32 | random() | 1);
    return true;
  }
  MutexLock lock(mu_);
  no_first_map_ = first.status();
  changed_.NotifyAll();
  return false;
}

absl::StatusOr<bool> MapKeeper::Write(uint64_t version, PartitionMap next,
                                      const Work& work) {
  std::string encoded = next.Encode();
  // Where it fails it may have been written all the same: the next attempt will
  // see.
  WEFT_ASSIGN_OR_RETURN(
      const rendezvous::Store::Swap swap,
      store_.CompareSet(options_.key, version, encoded, timeout_));
  if (!swap.applied) return false;
  WEFT_LOG(telemetry_.logger(), Info, "partition map: made ") << next.Summary();
  Forget(work.proposals);
  if (work.adds_backups) {
    MutexLock lock(mu_);
    next_backups_ = Now() + kBackupsEvery;
  }
  WEFT_RETURN_IF_ERROR(Adopt(std::make_shared<const Known>(
      Known{std::move(next), std::move(encoded)})));
  return true;
}

void MapKeeper::Forget(const Proposals& proposals) {
  MutexLock lock(mu_);
  for (const auto& [place, proposal] : proposals) {
    const auto it = proposals_.find(place);
    if (it != proposals_.end() && it->second.number == proposal.number) {
      proposals_.erase(it);
    }
  }
}

void MapKeeper::Note(const absl::Status& status) {
  absl::Status before;
  {
    MutexLock lock(mu_);
    before = std::exchange(store_status_, status);
  }
  if (absl::IsDataLoss(status)) {
    if (status == before) return;
    WEFT_LOG(telemetry_.logger(), Error, "partition map: ") << status.message();
  } else if (status.code() != before.code()) {
    if (status.ok()) {
      WEFT_LOG(telemetry_.logger(), Info,
               "partition map: the store answers again");
      return;
    }
    WEFT_LOG(telemetry_.logger(), Warning,
             "partition map: the store is asked again: ")
        << status.message();
  }
}

// --- Maps --------------------------------------------------------------------

absl::StatusOr<MapKeeper::KnownMap> MapKeeper::Read(
    const rendezvous::StoreEntry& entry) {
  {
    MutexLock lock(mu_);
    if (known_ && known_->encoded == entry.value) return known_;
  }
  const auto read = [&]() -> absl::StatusOr<KnownMap> {
    WEFT_ASSIGN_OR_RETURN(PartitionMap map, PartitionMap::Decode(entry.value));
    auto known =
        std::make_shared<const Known>(Known{std::move(map), entry.value});
    WEFT_RETURN_IF_ERROR(Adopt(known));
    return known;
  }();
  if (read.ok()) return read;
  return absl::DataLossError(absl::StrCat(
      "key \"", options_.key, "\", version ", entry.version,
      ": the last map that was read is kept: ", read.status().message()));
}

absl::Status MapKeeper::Adopt(const KnownMap& map) {
  MutexLock lock(mu_);
  // A job's partitions stay the same, so this is another job's.
  if (known_ && known_->map.entries() != map->map.entries()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a partition map of ", map->map.entries(),
                     " entries; this job's has ", known_->map.entries()));
  }
  if (known_ && known_->map.epoch() >= map->map.epoch()) {
    return absl::OkStatus();
  }
  if (known_) dropped_.OnChange(known_->map, map->map, Now());
  known_ = map;
  PartitionMap wanted = map->map;
  const bool has_other_servers = view_ && view_->Apply(wanted);
  const std::set<WorkerKey> dropped = dropped_.At(Now());
  wants_backups_ = wanted.AddBackups(dropped);
  if (wanted.AddMoves(dropped)) wants_backups_ = true;
  if (has_other_servers || !proposals_.empty()) has_work_ = true;
  changed_.NotifyAll();
  return absl::OkStatus();
}

// --- The telling thread ------------------------------------------------------

namespace {

// How many partitions `self` had as a backup before, and has now since their
// primary is silent or gone. One that hands over does so of itself.
int PromotedTo(WorkerKey self, const PartitionMap& before,
               const PartitionMap& now) {
  int promoted = 0;
  for (int i = 0; i < std::min(before.entries(), now.entries()); ++i) {
    const PartitionMap::Entry& entry = before.entry(i);
    if (entry.backup == self && !entry.is_handing_over &&
        now.entry(i).primary == self) {
      ++promoted;
    }
  }
  return promoted;
}

// How many partitions `self` serves, or would serve after a death.
int HeldBy(WorkerKey self, const PartitionMap& map) {
  int held = 0;
  for (int i = 0; i < map.entries(); ++i) {
    const PartitionMap::Entry& entry = map.entry(i);
    if (entry.primary == self || (entry.backup == self && entry.in_sync)) {
      ++held;
    }
  }
  return held;
}

}  // namespace

// launch/run/job_event.cc reads what is logged.
void MapKeeper::LogRoles(const PartitionMap& map, const PartitionMap* before,
                         bool* has_held) {
  const int promoted =
      before != nullptr ? PromotedTo(options_.self, *before, map) : 0;
  if (promoted > 0) {
    WEFT_LOG(telemetry_.logger(), Info,
             "promoted; serving as the primary what it was the backup of")
        .With("partitions", promoted);
  }
  if (*has_held) return;
  const int held = HeldBy(options_.self, map);
  if (held == 0) return;
  *has_held = true;
  WEFT_LOG(telemetry_.logger(), Info, "holds partitions of tables from now on")
      .With("partitions", held);
}

void MapKeeper::Tell() {
  uint64_t told = 0;
  KnownMap before;        // null: none was told
  bool has_held = false;  // a partition
  for (;;) {
    KnownMap map;  // null: no newer one
    std::optional<Contact> contact;
    {
      MutexLock lock(mu_);
      while (!is_stopping_ && !contact_ &&
             !(known_ && known_->map.epoch() > told)) {
        changed_.Wait(mu_);
      }
      if (is_stopping_) return;
      if (known_ && known_->map.epoch() > told) map = known_;
      contact = std::exchange(contact_, std::nullopt);
    }
    if (map) {
      told = map->map.epoch();
      LogRoles(map->map, before ? &before->map : nullptr, &has_held);
      before = map;
      if (options_.on_map) options_.on_map(map->map);
    }
    if (contact && options_.on_contact) {
      options_.on_contact(contact->asked, contact->map_epoch);
    }
  }
}

}  // namespace weft::ps
