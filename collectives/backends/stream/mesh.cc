#include "weft/collectives/backends/stream/mesh.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::collectives {
namespace {

// A rank that waits asks all others what they do: first after this long, for
// each kAskedAtOnce ranks of the group, whose answers cost as much...
constexpr absl::Duration kAskAfter = absl::Milliseconds(50);
constexpr int kAskedAtOnce = 16;
constexpr absl::Duration kLongestAskAfter = absl::Milliseconds(500);
// ...and then so often, by which it also finds out whether they live.
constexpr absl::Duration kAskInterval = absl::Seconds(1);
// How often a rank opens a stream that was refused.
constexpr absl::Duration kOpenInterval = absl::Milliseconds(50);
// How often one that waits for the others to come looks whether to go on.
constexpr absl::Duration kCheckInterval = absl::Milliseconds(50);
// Answers that wait to be written to one rank. A rank asks a second time after
// a second.
constexpr int kMostAnswers = 256;
constexpr int64_t kChunkBytes = Inbox::kChunkBytes;

// Numbers on the wire: those below 16 are of the backend's own operations,
// whose sequence counts up to 0 from below.
uint64_t WireSequence(const Operation& operation) {
  return operation.sequence + 16;
}

Announcement OnWire(Announcement announcement) {
  announcement.sequence += 16;
  return announcement;
}

}  // namespace

MeshOptions::MeshOptions(const GroupTerms& terms, int rank, int size)
    : diagnosis(terms.diagnosis) {
  group = terms.name;
  this->rank = rank;
  this->size = size;
  max_unasked_bytes = terms.max_unasked_bytes;
  dead_after = terms.dead_after;
}

Mesh::Mesh(MeshOptions options, Driver& driver)
    : options_(std::move(options)),
      driver_(driver),
      core_(options_),
      peers_(options_.size) {}

// --- The life of a group. ----------------------------------------------------

void Mesh::OnOpened(int peer,
                    std::shared_ptr<transport::Connection> connection) {
  {
    MutexLock lock(mu_);
    if (!core_.Open(peer)) return;
    peers_[peer].connection = std::move(connection);
    Act();
  }
  Flush();
}

absl::Status Mesh::OnHello(int peer,
                           std::shared_ptr<transport::Connection> connection) {
  {
    MutexLock lock(mu_);
    WEFT_RETURN_IF_ERROR(
        core_.Accept(peer, connection->ProvenName(), driver_.clock().Now()));
    peers_[peer].connection = std::move(connection);
    Act();
  }
  Flush();
  return absl::OkStatus();
}

void Mesh::Join(int peer, std::shared_ptr<transport::Connection> connection) {
  MutexLock lock(mu_);
  core_.Join(peer, driver_.clock().Now());
  peers_[peer].connection = std::move(connection);
}

absl::Status Mesh::AwaitAll(Instant deadline,
                            const std::function<void(int peer)>& open,
                            const std::function<absl::Status()>& check) {
  Instant open_again_at = driver_.clock().Now();
  while (true) {
    Promise<void> waker(driver_);
    Future<void> woken = waker.future();
    std::vector<int> refused;
    const Instant now = driver_.clock().Now();
    if (check != nullptr) WEFT_RETURN_IF_ERROR(check());
    {
      MutexLock lock(mu_);
      WEFT_ASSIGN_OR_RETURN(const bool have_come,
                            core_.HaveAllCome(/*is_late=*/now >= deadline));
      if (have_come) return absl::OkStatus();
      if (now >= open_again_at) refused = core_.TakeRefused();
      if (!refused.empty()) open_again_at = now + kOpenInterval;
      waiters_.push_back(std::move(waker));
    }
    // Their processes may not have got so far.
    for (const int r : refused) open(r);
    Instant again = now < open_again_at ? open_again_at : deadline;
    if (check != nullptr) again = std::min(again, now + kCheckInterval);
    woken.Wait(std::min(deadline, again) - now).IgnoreError();
  }
}

void Mesh::OnAbort(std::function<void(const absl::Status&)> hook) {
  absl::Status why;
  {
    MutexLock lock(mu_);
    abort_hook_ = hook;
    why = core_.broken();
    hook_due_.reset();
  }
  if (!why.ok() && hook) hook(why);
}

void Mesh::Leave() {
  {
    MutexLock lock(mu_);
    abort_hook_ = nullptr;
    core_.Leave();
    Act();
  }
  Flush();
}

void Mesh::AwaitDelivery(Instant deadline) {
  while (true) {
    Promise<void> waker(driver_);
    Future<void> woken = waker.future();
    const Instant now = driver_.clock().Now();
    {
      MutexLock lock(mu_);
      if (core_.IsDelivered() || now >= deadline) return;
      waiters_.push_back(std::move(waker));
    }
    woken.Wait(deadline - now).IgnoreError();
  }
}

bool Mesh::is_over() const {
  MutexLock lock(mu_);
  return core_.IsOver();
}

bool Mesh::HasLeft(int peer) const {
  MutexLock lock(mu_);
  return core_.HasLeft(peer);
}

bool Mesh::IsSettled() const {
  MutexLock lock(mu_);
  for (int r = 0; r < size(); ++r) {
    const Peer& p = peers_[r];
    if (p.connection == nullptr) continue;
    const bool has_written = !p.is_writing && p.outbox.empty();
    if (!has_written || (!core_.HasLeft(r) && !core_.KnowsOfLeave(r))) {
      return false;
    }
  }
  return true;
}

void Mesh::Drop() {
  {
    MutexLock lock(mu_);
    core_.CloseAll(absl::CancelledError("this process ends its streams"));
    Act();
  }
  Flush();
}

void Mesh::Abort(const absl::Status& why) {
  {
    MutexLock lock(mu_);
    core_.Abort(why);
    Act();
  }
  Flush();
}

void Mesh::EndShrink(uint64_t key, const absl::Status& why) {
  {
    MutexLock lock(mu_);
    core_.EndShrink(key, why);
    Act();
  }
  Flush();
}

absl::Status Mesh::CheckShrink(uint64_t key) const {
  MutexLock lock(mu_);
  return core_.CheckShrink(key);
}

absl::Status Mesh::health() const {
  MutexLock lock(mu_);
  return core_.Health();
}

absl::Status Mesh::CheckRanks() const {
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(core_.Health());
  for (int r = 0; r < size(); ++r) {
    if (r == rank() || core_.HasLeft(r)) continue;
    WEFT_RETURN_IF_ERROR(core_.CheckTransferPeer(r));
  }
  return absl::OkStatus();
}

// --- What the core asks for. -------------------------------------------------

void Mesh::Act() {
  while (true) {
    core_.TakeActions(actions_);
    for (GroupCore::Action& action : actions_.todo) {
      if (action.kind == GroupCore::Action::kRelease) {
        Release(action.peer);
      } else {
        Post(action.peer, Encode(std::move(action.frame)), action.is_answer);
      }
    }
    if (actions_.broken.has_value()) hook_due_ = actions_.broken;
    if (!actions_.report.empty()) report_due_ = actions_.report;
    if (actions_.wakes) Wake();
    if (actions_.todo.empty()) return;
  }
}

void Mesh::Post(int peer, Slices message, bool is_answer) {
  Peer& p = peers_[peer];
  if (p.connection == nullptr) return;
  if (is_answer && p.answers >= kMostAnswers) {
    core_.Close(peer,
                absl::ResourceExhaustedError(absl::StrCat(
                    "it asks, and does not read ", kMostAnswers, " answers")));
    return;
  }
  p.outbox.push_back({std::move(message), is_answer});
  p.answers += is_answer;
  if (!p.is_writing) to_pump_.push_back(peer);
}

void Mesh::Release(int peer) {
  Peer& p = peers_[peer];
  to_release_.push_back(std::move(p.connection));
  p.connection = nullptr;
  p.outbox.clear();
  p.answers = 0;
}

void Mesh::Flush() {
  std::vector<int> peers;
  std::vector<std::shared_ptr<transport::Connection>> released;
  std::function<void(const absl::Status&)> hook;
  std::optional<absl::Status> why;
  std::string report;
  {
    MutexLock lock(mu_);
    peers.swap(to_pump_);
    released.swap(to_release_);
    report.swap(report_due_);
    why.swap(hook_due_);
    if (why.has_value()) hook = abort_hook_;
  }
  for (const int peer : peers) Pump(peer);
  if (hook) hook(*why);
  if (!report.empty()) Report(options_.diagnosis, report);
}

void Mesh::Pump(int peer) {
  while (true) {
    std::shared_ptr<transport::Connection> connection;
    Slices message;
    {
      MutexLock lock(mu_);
      Peer& p = peers_[peer];
      if (p.is_writing || p.outbox.empty() || p.connection == nullptr) return;
      p.is_writing = true;
      connection = p.connection;
      message = std::move(p.outbox.front().message);
      p.answers -= p.outbox.front().is_answer;
      p.outbox.pop_front();
      WakeIfThereIsRoom(p);
    }
    using Written = transport::Connection::Written;
    const Written written = connection->Write(std::move(message));
    if (written == Written::kUnderWay) return;
    MutexLock lock(mu_);
    Peer& p = peers_[peer];
    p.is_writing = false;
    if (written == Written::kRefused) {  // it is closed
      p.outbox.clear();
      p.answers = 0;
    }
    WakeIfThereIsRoom(p);
  }
}

void Mesh::OnWritten(int peer) {
  {
    MutexLock lock(mu_);
    Peer& p = peers_[peer];
    p.is_writing = false;
    WakeIfThereIsRoom(p);
  }
  Pump(peer);
}

void Mesh::WakeIfThereIsRoom(const Peer& p) {
  const bool is_awaited =
      (p.sending != nullptr && p.outbox.size() < kMostQueued) ||
      (p.awaits_room && p.outbox.size() < kMostPartsQueued);
  if (is_awaited) Wake();
}

void Mesh::Wake() {
  ++events_;
  for (Promise<void>& waiter : waiters_) waiter.Set(absl::OkStatus());
  waiters_.clear();
}

// --- What arrives. -----------------------------------------------------------

void Mesh::OnClosed(int peer, const absl::Status& status) {
  {
    MutexLock lock(mu_);
    peers_[peer].is_writing = false;
    core_.Close(peer, status.ok()
                          ? absl::UnavailableError("it has closed its stream")
                          : status);
    Act();
  }
  Flush();
}

void Mesh::OnMessage(int peer, const Slices& message) {
  absl::StatusOr<Frame> frame = Decode(message);
  {
    MutexLock lock(mu_);
    core_.Receive(peer, std::move(frame), driver_.clock().Now());
    Act();
  }
  Flush();
}

// --- What was called. --------------------------------------------------------

absl::Status Mesh::Begin(const Operation& operation) {
  Announcement mine = OnWire(Announce(operation));
  absl::Status status;
  {
    MutexLock lock(mu_);
    status = core_.Begin(std::move(mine));
    Act();
  }
  Flush();
  return status;
}

absl::Status Mesh::AwaitCompared(Progress& progress) {
  progress.is_waiting = false;
  {
    MutexLock lock(mu_);
    core_.AskCompared();
    Act();
  }
  Flush();
  while (true) {
    const uint64_t seen = events_.load();
    int awaited = -1;
    {
      MutexLock lock(mu_);
      WEFT_RETURN_IF_ERROR(core_.Health());
      awaited = core_.AwaitedAnswer();
      if (awaited >= 0) {
        WEFT_RETURN_IF_ERROR(
            core_.CheckPeer(WireSequence(progress.operation), awaited));
      }
    }
    if (awaited < 0) {
      EndWait(progress, absl::OkStatus());
      return absl::OkStatus();
    }
    WEFT_RETURN_IF_ERROR(AwaitProgress(progress, awaited, seen));
  }
}

void Mesh::Refuse(const Operation& operation, const absl::Status& why) {
  {
    MutexLock lock(mu_);
    core_.Refuse(OnWire(AnnounceRefusal(operation, why)));
    Act();
  }
  Flush();
}

std::string Mesh::AskWhoHasNotCalled(const Operation& operation) {
  std::string text;
  {
    MutexLock lock(mu_);
    core_.Ask(WireSequence(operation));
    text = core_.DescribeRanksBefore(WireSequence(operation));
    Act();
  }
  Flush();
  return text;
}

absl::Status Mesh::AwaitFailure(const Operation& operation, Instant until) {
  while (true) {
    const Instant now = driver_.clock().Now();
    Promise<void> waker(driver_);
    Future<void> woken = waker.future();
    {
      MutexLock lock(mu_);
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        WEFT_RETURN_IF_ERROR(core_.CheckPeer(WireSequence(operation), r));
      }
      if (now >= until) return core_.Health();
      waiters_.push_back(std::move(waker));
    }
    woken.Wait(until - now).IgnoreError();
  }
}

// --- Messages of operations. -------------------------------------------------

bool Mesh::SendChunk(Progress& progress, const Outgoing& out, int64_t& sent) {
  const int64_t total = static_cast<int64_t>(out.bytes.size());
  const int64_t n = std::min(kChunkBytes, total - sent);
  {
    MutexLock lock(mu_);
    Peer& p = peers_[out.to];
    p.awaits_room = p.outbox.size() >= kMostPartsQueued;
    if (p.awaits_room) return false;
    if (!core_.TakePartRoom(out.to, n, /*is_first=*/sent == 0)) return false;
  }
  Frame part;
  part.sequence = WireSequence(progress.operation);
  part.total = static_cast<uint64_t>(total);
  part.offset = static_cast<uint64_t>(sent);
  part.content = CopyOf(out.bytes.data() + sent, n);
  {
    MutexLock lock(mu_);
    core_.SendPart(out.to, progress.sent[out.to], std::move(part),
                   /*is_compared=*/progress.operation.verb == Verb::kBarrier);
    Act();
  }
  Flush();
  sent += n;
  if (sent == total) ++progress.sent[out.to];
  return true;
}

absl::StatusOr<Mesh::Took> Mesh::TakeSome(Progress& progress,
                                          const Incoming& in) {
  Slices content;
  uint64_t at = 0;
  {
    MutexLock lock(mu_);
    const absl::StatusOr<Message*> next =
        core_.NextPart(WireSequence(progress.operation), in.from, in.bytes);
    Act();
    WEFT_RETURN_IF_ERROR(next.status());
    if (*next == nullptr) return Took::kNothing;
    content = std::exchange((*next)->content, {});
    at = (*next)->taken;
  }
  uint64_t bytes = 0;
  for (const Bytes& slice : content) {
    if (in.reader != nullptr) {
      in.reader->Feed(
          {reinterpret_cast<const std::byte*>(slice.data()), slice.size()});
    } else {
      memcpy(in.memory + at + bytes, slice.data(), slice.size());
    }
    bytes += slice.size();
  }
  content.clear();
  bool is_whole;
  {
    MutexLock lock(mu_);
    is_whole = core_.TookOfPart(in.from, bytes);
    Act();
  }
  Flush();
  return is_whole ? Took::kAll : Took::kSome;
}

absl::Status Mesh::AwaitProgress(Progress& progress, int peer, uint64_t seen) {
  const Operation& operation = progress.operation;
  const uint64_t sequence = WireSequence(operation);
  const Instant now = driver_.clock().Now();
  if (!progress.is_waiting) {
    progress.is_waiting = true;
    progress.reports.Begin(options_.diagnosis, now);
    const absl::Duration ask_after = std::min(
        kAskAfter * std::max(1, size() / kAskedAtOnce), kLongestAskAfter);
    progress.ask_at =
        now + std::min(ask_after, options_.diagnosis.report_after / 2);
  }
  std::string report;
  Promise<void> waker(driver_);
  Future<void> woken = waker.future();
  {
    MutexLock lock(mu_);
    if (events_.load() != seen) return absl::OkStatus();
    if (now >= operation.deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "rank ", rank(), " waited for others: ",
          core_.DescribeWait(sequence, peer, progress.reports.since())));
    }
    if (core_.IsSilent(peer, progress.reports.since(), now)) {
      Act();
      return absl::OkStatus();
    }
    if (now >= progress.ask_at) {
      progress.ask_at = now + kAskInterval;
      core_.Ask(sequence);
      Act();
    }
    if (progress.reports.IsDue(now)) {
      const Instant since = progress.reports.since();
      report = WaitText(operation, rank(), options_.group, now - since,
                        core_.DescribeWait(sequence, peer, since));
    }
    waiters_.push_back(std::move(waker));
  }
  Flush();
  if (!report.empty()) Report(options_.diagnosis, report);
  const Instant until =
      std::min({progress.ask_at, progress.reports.due(), operation.deadline});
  woken.Wait(until - now).IgnoreError();
  return absl::OkStatus();
}

void Mesh::EndWait(Progress& progress, const absl::Status& status) {
  progress.is_waiting = false;
  if (!progress.reports.has_reported()) return;
  Report(
      options_.diagnosis,
      EndOfWaitText(progress.operation, rank(), options_.group,
                    driver_.clock().Now() - progress.reports.since(), status));
  progress.reports = {};
}

absl::Status Mesh::Exchange(Progress& progress,
                            const absl::optional<Outgoing>& out,
                            const absl::optional<Incoming>& in) {
  progress.sent.resize(size());
  progress.is_waiting = false;
  const uint64_t sequence = WireSequence(progress.operation);
  int64_t sent = 0;
  bool is_sent = !out.has_value();
  bool is_taken = !in.has_value();
  while (true) {
    const uint64_t seen = events_.load();
    bool has_moved = false;
    while (!is_sent && SendChunk(progress, *out, sent)) {
      has_moved = true;
      is_sent = sent == static_cast<int64_t>(out->bytes.size());
    }
    if (!is_taken) {
      WEFT_ASSIGN_OR_RETURN(const Took took, TakeSome(progress, *in));
      has_moved = has_moved || took != Took::kNothing;
      is_taken = took == Took::kAll;
    }
    if (has_moved) EndWait(progress, absl::OkStatus());
    if (is_sent && is_taken) return absl::OkStatus();
    if (has_moved) continue;
    {
      MutexLock lock(mu_);
      // Returned whatever came meanwhile: the core takes it for heard.
      WEFT_RETURN_IF_ERROR(core_.Health());
      absl::Status status;
      if (!is_taken) status = core_.CheckPeer(sequence, in->from);
      if (!is_sent && status.ok()) {
        status = core_.CheckPeer(sequence, out->to);
      }
      // An event that came meanwhile may be the one awaited.
      if (!status.ok() && events_.load() == seen) return status;
    }
    WEFT_RETURN_IF_ERROR(
        AwaitProgress(progress, is_taken ? out->to : in->from, seen));
  }
}

}  // namespace weft::collectives
