#include "weft/collectives/backends/local/local_world.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/core/called_operations.h"

namespace weft::collectives {
namespace {

using Bytes = std::vector<std::byte>;

struct Message {
  uint64_t sequence = 0;  // of the operation; of a transfer, unused
  uint64_t tag = 0;
  DType dtype = DType::kU8;
  Bytes bytes;
  Instant arrives_at = {};
};

// With what the message takes besides.
int64_t KeptBytes(const Message& message) {
  return static_cast<int64_t>(message.bytes.size()) + 64;
}

}  // namespace

// What all groups of one world share: one lock, and who is dead or held.
class LocalWorld::State {
 public:
  State(int size, Options world_options)
      : options(std::move(world_options)),
        killed(size),
        held(size),
        sends_until(size),
        takes_until(size) {}

  // When a message of so many bytes, sent now, is there.
  Instant ArrivalOf(int from, int to, size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // The group of `members`, ranks of the world, with this name.
  std::shared_ptr<Group> Find(absl::Span<const int> members,
                              absl::string_view name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Wakes all who wait, in all groups.
  void WakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const Options options;
  Mutex mu;
  std::vector<bool> killed ABSL_GUARDED_BY(mu);
  std::vector<bool> held ABSL_GUARDED_BY(mu);
  // By rank, under a link model.
  std::vector<Instant> sends_until ABSL_GUARDED_BY(mu);
  std::vector<Instant> takes_until ABSL_GUARDED_BY(mu);
  // Kept to the end: a rank may come to one after others have left it.
  std::map<std::string, std::shared_ptr<Group>> groups ABSL_GUARDED_BY(mu);
};

// One group. All of it is guarded by State::mu.
class LocalWorld::Group {
 public:
  explicit Group(absl::Span<const int> world_ranks)
      : members(world_ranks.begin(), world_ranks.end()),
        called(size()),
        left(members.size()),
        wakers(members.size()),
        messages(members.size() * members.size()),
        transfers(members.size() * members.size()),
        kept_bytes(members.size() * members.size()) {}

  int size() const { return static_cast<int>(members.size()); }
  std::deque<Message>& MessagesOf(int from, int to) {
    return messages[from * size() + to];
  }
  std::deque<Message>& TransfersOf(int from, int to) {
    return transfers[from * size() + to];
  }
  int64_t& KeptBytesOf(int from, int to) {
    return kept_bytes[from * size() + to];
  }
  void Wake(int rank) {
    ++events;
    if (wakers[rank].has_value()) wakers[rank]->Set(absl::OkStatus());
    wakers[rank].reset();
    for (Promise<void>& waiter : transfer_waiters[rank]) {
      waiter.Set(absl::OkStatus());
    }
    transfer_waiters[rank].clear();
  }
  void WakeAll() {
    for (int r = 0; r < size(); ++r) Wake(r);
  }
  void Abort(const absl::Status& why) {
    if (aborted.ok()) aborted = why;
    WakeAll();
  }

  const std::vector<int> members;  // ranks of the world
  CalledOperations called;
  std::vector<bool> left;
  std::vector<std::optional<Promise<void>>> wakers;
  std::map<int, std::vector<Promise<void>>> transfer_waiters;
  std::vector<std::deque<Message>> messages;
  std::vector<std::deque<Message>> transfers;
  std::vector<int64_t> kept_bytes;  // of transfers
  std::atomic<uint64_t> events{0};
  absl::Status aborted;
};

namespace {

using State = LocalWorld::State;
using Group = LocalWorld::Group;

class LocalBackend final : public Backend {
 public:
  LocalBackend(std::shared_ptr<State> world, std::shared_ptr<Group> group,
               int rank)
      : world_(std::move(world)), group_(std::move(group)), rank_(rank) {}

  ~LocalBackend() override {
    MutexLock lock(world_->mu);
    group_->left[rank_] = true;
    group_->called.End(rank_);
    group_->WakeAll();
  }

  absl::string_view name() const override { return "local"; }
  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  Driver& driver() override { return *world_->options.driver; }

  absl::Status Run(const Operation& operation) override;
  void Refuse(const Operation& operation, const absl::Status& why) override;
  void Abort(const absl::Status& why) override {
    MutexLock lock(world_->mu);
    group_->Abort(why);
  }
  absl::Status health() const override {
    MutexLock lock(world_->mu);
    return Health();
  }
  absl::StatusOr<bool> Advance(Transfer& transfer) override;
  uint64_t transfer_events() const override { return group_->events.load(); }
  void AwaitTransfers(uint64_t seen, Instant until) override;
  absl::StatusOr<Tensor> Allocate(const Shape& shape, DType dtype) override {
    return Tensor::Empty(shape, dtype);
  }
  absl::StatusOr<std::unique_ptr<Backend>> Subgroup(
      absl::Span<const int> members, absl::string_view name,
      Instant deadline) override;

  // --- For the link of an operation. ---

  absl::Status Send(const Operation& operation, int to,
                    absl::Span<const std::byte> bytes);
  absl::Status Receive(const Operation& operation, int from,
                       absl::Span<std::byte> bytes);

 private:
  // Killed, or aborted.
  absl::Status Health() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_->mu) {
    const int world_rank = group_->members[rank_];
    if (world_->killed[world_rank]) {
      return absl::CancelledError(absl::StrCat("rank ", rank_, " was killed"));
    }
    return group_->aborted;
  }
  absl::Status Begin(Announcement mine)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_->mu);
  // Whether the message is there, or why it will not come. Of one that is on
  // its way, also when it is there.
  absl::StatusOr<bool> Look(const Operation& operation, int from,
                            absl::Span<std::byte> bytes, Instant* arrives_at)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_->mu);
  absl::StatusOr<bool> CheckSender(const Operation& operation, int from) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_->mu);
  std::string DescribeWait(const Operation& operation, int from) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_->mu);
  std::string CurrentOperationOf(int rank) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_->mu);
  absl::StatusOr<bool> CheckReceiver(int to) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_->mu);
  absl::StatusOr<bool> TakeTransfer(Transfer& transfer, int from)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_->mu);

  const std::shared_ptr<State> world_;
  const std::shared_ptr<Group> group_;
  const int rank_;
};

class LocalLink final : public Link {
 public:
  LocalLink(LocalBackend& backend, const Operation& operation)
      : backend_(backend), operation_(operation) {}

  int rank() const override { return backend_.rank(); }
  int size() const override { return backend_.size(); }
  absl::Status Send(int to, absl::Span<const std::byte> bytes) override {
    return backend_.Send(operation_, to, bytes);
  }
  absl::Status Receive(int from, absl::Span<std::byte> bytes) override {
    return backend_.Receive(operation_, from, bytes);
  }
  // A send never waits.
  absl::Status SendReceive(int to, absl::Span<const std::byte> out, int from,
                           absl::Span<std::byte> in) override {
    WEFT_RETURN_IF_ERROR(Send(to, out));
    return Receive(from, in);
  }

 private:
  LocalBackend& backend_;
  const Operation& operation_;
};

// Records what this rank does, and compares it with what the others did under
// the same number.
absl::Status LocalBackend::Begin(Announcement mine) {
  WEFT_RETURN_IF_ERROR(Health());
  const bool is_refused = mine.is_refused;
  const absl::Status compared = group_->called.Add(rank_, std::move(mine));
  if (!compared.ok()) group_->Abort(compared);
  if (is_refused) group_->WakeAll();
  return group_->aborted;
}

absl::Status LocalBackend::Run(const Operation& operation) {
  {
    MutexLock lock(world_->mu);
    WEFT_RETURN_IF_ERROR(Begin(Announce(operation)));
  }
  LocalLink link(*this, operation);
  return RunOverLink(link, operation, world_->options.cost);
}

void LocalBackend::Refuse(const Operation& operation, const absl::Status& why) {
  MutexLock lock(world_->mu);
  Begin(AnnounceRefusal(operation, why)).IgnoreError();
}

absl::Status LocalBackend::Send(const Operation& operation, int to,
                                absl::Span<const std::byte> bytes) {
  MutexLock lock(world_->mu);
  WEFT_RETURN_IF_ERROR(Health());
  Message message;
  message.sequence = operation.sequence;
  message.dtype = operation.dtype;
  message.bytes.assign(bytes.begin(), bytes.end());
  message.arrives_at = world_->ArrivalOf(group_->members[rank_],
                                         group_->members[to], bytes.size());
  group_->MessagesOf(rank_, to).push_back(std::move(message));
  group_->Wake(to);
  return absl::OkStatus();
}

std::string LocalBackend::CurrentOperationOf(int rank) const {
  return group_->called.Describe(rank);
}

// The ranks that are waited for: those that have not called `operation`, or
// `from`.
std::string LocalBackend::DescribeWait(const Operation& operation,
                                       int from) const {
  const std::string text =
      group_->called.DescribeRanksBefore(operation.sequence, rank_);
  return text.empty() ? absl::StrCat("rank ", from, " has sent nothing and ",
                                     CurrentOperationOf(from))
                      : text;
}

// What says that a message of `from` will not come; true if one may.
absl::StatusOr<bool> LocalBackend::CheckSender(const Operation& operation,
                                               int from) const {
  WEFT_RETURN_IF_ERROR(group_->called.CheckRefusals(operation.sequence));
  if (world_->killed[group_->members[from]]) {
    return absl::UnavailableError(absl::StrCat("rank ", from, " has ended; it ",
                                               CurrentOperationOf(from)));
  }
  if (group_->left[from]) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", from, " has left the group; it ", CurrentOperationOf(from)));
  }
  return true;
}

absl::StatusOr<bool> LocalBackend::Look(const Operation& operation, int from,
                                        absl::Span<std::byte> bytes,
                                        Instant* arrives_at) {
  WEFT_RETURN_IF_ERROR(Health());
  std::deque<Message>& queue = group_->MessagesOf(from, rank_);
  // Of operations that somebody refused, messages may be left.
  while (!queue.empty() && queue.front().sequence < operation.sequence) {
    queue.pop_front();
  }
  const int world_rank = group_->members[from];
  const bool is_there =
      !queue.empty() && queue.front().sequence == operation.sequence;
  if (is_there && world_->held[world_rank] && !world_->killed[world_rank]) {
    return false;
  }
  if (!is_there || world_->held[world_rank]) {
    WEFT_RETURN_IF_ERROR(CheckSender(operation, from).status());
    return false;
  }
  if (queue.front().arrives_at > world_->options.driver->clock().Now()) {
    *arrives_at = queue.front().arrives_at;
    return false;
  }
  const Message message = std::move(queue.front());
  queue.pop_front();
  if (message.bytes.size() != bytes.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", from, " sent ", message.bytes.size(),
                     " bytes, rank ", rank_, " wants ", bytes.size(), "; rank ",
                     from, " ", CurrentOperationOf(from)));
  }
  if (!bytes.empty()) memcpy(bytes.data(), message.bytes.data(), bytes.size());
  return true;
}

absl::Status LocalBackend::Receive(const Operation& operation, int from,
                                   absl::Span<std::byte> bytes) {
  const DiagnosisOptions& diagnosis = world_->options.diagnosis;
  Clock& clock = driver().clock();
  Instant report_at = clock.Now() + diagnosis.report_after;
  while (true) {
    std::optional<Future<void>> woken;
    std::string report;
    Instant arrives_at = Instant::Infinite();
    {
      MutexLock lock(world_->mu);
      absl::StatusOr<bool> there = Look(operation, from, bytes, &arrives_at);
      const bool is_late = clock.Now() >= operation.deadline;
      if (there.ok() && !*there && is_late) {
        there = absl::DeadlineExceededError(absl::StrCat(
            "rank ", rank_,
            " waited for others: ", DescribeWait(operation, from)));
      }
      if (!there.ok()) {
        // One that was killed tells nobody.
        const bool is_dead = world_->killed[group_->members[rank_]];
        if (!is_dead && !absl::IsAborted(there.status())) {
          group_->Abort(there.status());
        }
        return there.status();
      }
      if (*there) return absl::OkStatus();
      if (clock.Now() >= report_at) {
        report = absl::StrCat(Describe(operation), ": rank ", rank_,
                              " still waits: ", DescribeWait(operation, from));
        report_at = Instant::Infinite();
      }
      woken = group_->wakers[rank_].emplace(driver()).future();
    }
    if (!report.empty()) Report(diagnosis, report);
    const Instant until = std::min({report_at, operation.deadline, arrives_at});
    woken->Wait(until - clock.Now()).IgnoreError();
  }
}

absl::StatusOr<bool> LocalBackend::TakeTransfer(Transfer& transfer, int from) {
  std::deque<Message>& queue = group_->TransfersOf(from, rank_);
  const auto it = std::find_if(
      queue.begin(), queue.end(),
      [&](const Message& message) { return message.tag == transfer.tag; });
  if (world_->held[group_->members[from]]) return false;
  int64_t& kept = group_->KeptBytesOf(from, rank_);
  if (it == queue.end()) {
    const bool is_full = kept >= world_->options.max_unasked_bytes;
    if (!is_full || transfer.peer < 0) return false;
    return TooMuchUnasked(from, kept, queue.front().tag);
  }
  const Message message = std::move(*it);
  queue.erase(it);
  kept -= KeptBytes(message);
  group_->Wake(from);  // It may send more.
  transfer.peer = from;
  const int64_t item = ItemSize(message.dtype);
  const int64_t elements = static_cast<int64_t>(message.bytes.size()) / item;
  if (message.dtype != transfer.dtype || elements != transfer.block.elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wants ", Name(transfer.dtype), "[", transfer.block.elements,
        "], rank ", from, " sent ", Name(message.dtype), "[", elements, "]"));
  }
  if (elements > 0) {
    memcpy(transfer.block.memory, message.bytes.data(), message.bytes.size());
  }
  return true;
}

// False while `to` may take what was sent.
absl::StatusOr<bool> LocalBackend::CheckReceiver(int to) const {
  if (!group_->left[to] && !world_->killed[group_->members[to]]) return false;
  return absl::UnavailableError(absl::StrCat("rank ", to, " has ended"));
}

absl::StatusOr<bool> LocalBackend::Advance(Transfer& transfer) {
  MutexLock lock(world_->mu);
  WEFT_RETURN_IF_ERROR(Health());
  if (transfer.is_send) {
    const std::byte* begin = transfer.block.memory;
    const int64_t bytes = transfer.block.elements * ItemSize(transfer.dtype);
    int64_t& kept = group_->KeptBytesOf(rank_, transfer.peer);
    if (kept >= world_->options.max_unasked_bytes) {
      return CheckReceiver(transfer.peer);
    }
    std::deque<Message>& queue = group_->TransfersOf(rank_, transfer.peer);
    queue.push_back(
        {0, transfer.tag, transfer.dtype, Bytes(begin, begin + bytes), {}});
    kept += KeptBytes(queue.back());
    group_->Wake(transfer.peer);
    return true;
  }
  int gone = 0;
  for (int from = 0; from < size(); ++from) {
    if (from == rank_ || (transfer.peer >= 0 && transfer.peer != from)) {
      ++gone;
      continue;
    }
    WEFT_ASSIGN_OR_RETURN(const bool taken, TakeTransfer(transfer, from));
    if (taken) return true;
    gone += group_->left[from] || world_->killed[group_->members[from]];
  }
  if (gone < size()) return false;
  return absl::UnavailableError(
      transfer.peer < 0 ? "all other ranks have ended"
                        : absl::StrCat("rank ", transfer.peer, " has ended"));
}

void LocalBackend::AwaitTransfers(uint64_t seen, Instant until) {
  Clock& clock = driver().clock();
  std::optional<Future<void>> woken;
  {
    MutexLock lock(world_->mu);
    if (group_->events.load() != seen) return;
    Promise<void> waker(driver());
    woken = waker.future();
    group_->transfer_waiters[rank_].push_back(std::move(waker));
  }
  woken->Wait(until - clock.Now()).IgnoreError();
}

absl::StatusOr<std::unique_ptr<Backend>> LocalBackend::Subgroup(
    absl::Span<const int> members, absl::string_view name, Instant) {
  MutexLock lock(world_->mu);
  std::vector<int> world_ranks;
  for (const int member : members) {
    world_ranks.push_back(group_->members[member]);
  }
  const int place = static_cast<int>(
      std::find(members.begin(), members.end(), rank_) - members.begin());
  return std::unique_ptr<Backend>(
      new LocalBackend(world_, world_->Find(world_ranks, name), place));
}

}  // namespace

std::shared_ptr<Group> LocalWorld::State::Find(absl::Span<const int> members,
                                               absl::string_view name) {
  std::shared_ptr<Group>& group = groups[std::string(name)];
  if (group == nullptr) group = std::make_shared<Group>(members);
  return group;
}

Instant LocalWorld::State::ArrivalOf(int from, int to, size_t bytes) {
  const Instant now = options.driver->clock().Now();
  if (!options.link.has_value()) return now;
  const absl::Duration time = absl::Seconds(static_cast<double>(bytes) /
                                            options.link->bytes_per_second);
  sends_until[from] = std::max(now, sends_until[from]) + time;
  // Its last byte comes no earlier than it was sent, and than those before.
  takes_until[to] = std::max(takes_until[to] + time,
                             sends_until[from] + options.link->latency);
  return takes_until[to];
}

void LocalWorld::State::WakeAll() {
  for (auto& [name, group] : groups) group->WakeAll();
}

LocalWorld::LocalWorld(int size) : LocalWorld(size, Options()) {}

LocalWorld::LocalWorld(int size, Options options)
    : state_(std::make_shared<State>(size, std::move(options))) {
  WEFT_CHECK(size > 0);
}

LocalWorld::~LocalWorld() = default;

std::unique_ptr<Backend> LocalWorld::Connect(int rank) {
  MutexLock lock(state_->mu);
  const int size = static_cast<int>(state_->killed.size());
  WEFT_CHECK(rank >= 0 && rank < size);
  std::vector<int> all(size);
  for (int r = 0; r < size; ++r) all[r] = r;
  return std::make_unique<LocalBackend>(state_, state_->Find(all, ""), rank);
}

void LocalWorld::Kill(int rank) {
  MutexLock lock(state_->mu);
  state_->killed[rank] = true;
  for (auto& [name, group] : state_->groups) {
    for (int r = 0; r < group->size(); ++r) {
      if (group->members[r] == rank) group->called.End(r);
    }
  }
  state_->WakeAll();
}

void LocalWorld::Hold(int rank) {
  MutexLock lock(state_->mu);
  state_->held[rank] = true;
}

void LocalWorld::Release(int rank) {
  MutexLock lock(state_->mu);
  state_->held[rank] = false;
  state_->WakeAll();
}

}  // namespace weft::collectives
