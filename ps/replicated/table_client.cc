#include "weft/ps/replicated/table_client.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/driver.h"
#include "weft/base/steady_deadline.h"
#include "weft/ps/core/round_gate.h"
#include "weft/ps/lost_partition.h"
#include "weft/ps/replicated/frame.h"
#include "weft/ps/replicated/replicated_server.h"
#include "weft/ps/replicated/table_client_calls.h"
#include "weft/rpc/call.h"
#include "weft/rpc/session/failure.h"

namespace weft::ps {

using replicated_calls::IsForGood;
using replicated_calls::kChanges;
using replicated_calls::kPushes;
using replicated_calls::SetKey;
using replicated_calls::StatusOf;

namespace {

constexpr absl::Duration kPushTimeout = absl::Seconds(5);
// How often a thread that waits for room looks up.
constexpr absl::Duration kLookEvery = absl::Milliseconds(200);

}  // namespace

ReplicatedTableClient::ReplicatedTableClient(
    std::shared_ptr<ReplicaSession> session, Options options)
    : session_(std::move(session)),
      options_(std::move(options)),
      client_(ClientIdOf(session_->key(), options_.opening)),
      map_(session_->map()),
      last_push_(options_.first_sequence - 1) {}

std::shared_ptr<ReplicatedTableClient> ReplicatedTableClient::Make(
    std::shared_ptr<ReplicaSession> session, Options options) {
  std::shared_ptr<ReplicatedTableClient> table(
      new ReplicatedTableClient(session, std::move(options)));
  session->Add(table);
  table->OnMap(session->map());
  return table;
}

ReplicatedTableClient::Window& ReplicatedTableClient::NewWindow(
    uint64_t id, ClientId client, uint64_t first) {
  ClientWindowOptions options;
  options.client = client;
  options.level = LevelOf(options_.spec);
  options.first_sequence = first;
  if (client == kRounds) {
    options.most_outstanding = RoundGate<int>::kLookahead + 1;
  }
  const auto [it, is_new] =
      windows_.try_emplace(id, options, options_.spec.partitions(), map_);
  it->second.next = first;
  return it->second;
}

uint64_t ReplicatedTableClient::WindowOfShard(int shard, int64_t round) {
  const uint64_t first = static_cast<uint64_t>(round) + 1;
  const auto newest = of_shard_.find(shard);
  if (newest != of_shard_.end()) {
    const auto it = windows_.find(newest->second);
    // Other clients gave the parts of rounds that this client has skipped:
    // after such a gap a new window begins.
    if (it != windows_.end() && first <= it->second.next) return it->first;
  }
  const uint64_t id = ++last_id_;
  of_shard_[shard] = id;
  NewWindow(id, kRounds, first).shard = shard;
  return id;
}

Future<void> ReplicatedTableClient::PushPart(int shard, int64_t round,
                                             bool take_over, bool closes,
                                             std::vector<Piece> pieces) {
  if (shard < 0 || round < 0) {
    return MakeReady<void>(absl::FailedPreconditionError(
        absl::StrCat("table '", options_.spec.name(), "': part of shard ",
                     shard, " in round ", round, ": no such shard or round")));
  }
  uint64_t id = 0;
  {
    MutexLock lock(mu_);
    if (!failure_.ok()) return MakeReady<void>(failure_);
    id = WindowOfShard(shard, round);
    Window& window = windows_.at(id);
    window.take_over = take_over;
    const uint64_t sequence = static_cast<uint64_t>(round) + 1;
    if (sequence < window.next) {  // it was pushed before
      for (const auto& [piece, operation] : window.operations) {
        if (piece.second == sequence) return operation->promise.future();
      }
      return MakeReady<void>(absl::OkStatus());
    }
    window.next = sequence + 1;
  }
  return PushTo(id, std::move(pieces), closes);
}

Future<void> ReplicatedTableClient::Push(std::vector<Piece> pieces) {
  {
    MutexLock lock(mu_);
    if (windows_.find(kPushes) == windows_.end()) {
      NewWindow(kPushes, client_, options_.first_sequence);
    }
  }
  return PushTo(kPushes, std::move(pieces), /*closes=*/true);
}

Future<ReplicatedTableClient::Clocks> ReplicatedTableClient::Join(
    const std::vector<int>& partitions) {
  {
    MutexLock lock(mu_);
    if (windows_.find(kPushes) == windows_.end()) {
      NewWindow(kPushes, client_, options_.first_sequence);
    }
  }
  const Bytes join = EncodeJoin(options_.rank);
  std::vector<Piece> pieces;
  for (const int partition : partitions) pieces.push_back({partition, join});
  const auto operation = std::make_shared<Operation>();
  operation->closes = operation->joins = true;
  return PushTo(kPushes, std::move(pieces), operation).Then([operation] {
    return operation->clocks;
  });
}

Future<void> ReplicatedTableClient::Leave(const std::vector<int>& partitions) {
  const Bytes leave = EncodeLeave(options_.rank);
  std::vector<Piece> pieces;
  for (const int partition : partitions) pieces.push_back({partition, leave});
  Options after = options_;
  {
    MutexLock lock(mu_);
    after.first_sequence = last_push_ + 1;
  }
  if (status().ok()) return Push(std::move(pieces));
  // Its windows have ended. What servers lack of its pushes is given up: the
  // first number that is outstanding is this one.
  const auto another = Make(session_, std::move(after));
  return another->Push(std::move(pieces)).Then([another] {});
}

Future<void> ReplicatedTableClient::Change(std::vector<Piece> pieces) {
  {
    MutexLock lock(mu_);
    // In SYNC no push has this number, for those are parts of rounds. In ASYNC
    // both must be of one window, whose numbers a server marks.
    if (is_sync() && windows_.find(kChanges) == windows_.end()) {
      NewWindow(kChanges, client_, 1);
    }
    if (!is_sync() && windows_.find(kPushes) == windows_.end()) {
      NewWindow(kPushes, client_, options_.first_sequence);
    }
  }
  return PushTo(is_sync() ? kChanges : kPushes, std::move(pieces),
                /*closes=*/!is_sync());
}

Future<void> ReplicatedTableClient::PushTo(uint64_t id,
                                           std::vector<Piece> pieces,
                                           bool closes) {
  const auto operation = std::make_shared<Operation>();
  operation->closes = closes;
  return PushTo(id, std::move(pieces), operation);
}

Future<void> ReplicatedTableClient::PushTo(
    uint64_t id, std::vector<Piece> pieces,
    const std::shared_ptr<Operation>& operation) {
  Future<void> future = operation->promise.future();
  operation->deadline = SteadyClock().Now() + options_.timeout;
  operation->left = pieces.size();
  if (pieces.empty()) {
    operation->promise.Set(absl::OkStatus());
    return future;
  }
  size_t next = 0;
  std::optional<ServerWaits::Wait> wait;  // for room
  for (bool is_over = false; !is_over;) {
    Work work;
    {
      MutexLock lock(mu_);
      if (wait.has_value()) AwaitRoom(id, pieces[next], *operation, work);
      is_over = PushPieces(id, pieces, next, operation, work);
      const auto it = windows_.find(id);
      if (it != windows_.end()) Collect(id, it->second, work);
    }
    Finish(std::move(work));
    if (is_over) break;
    if (!wait.has_value()) wait.emplace(BeginWait("Push", Awaited::kStable));
    wait->OnTime(SteadyClock().Now());
  }
  if (wait.has_value()) wait->End(SteadyClock().Now());
  return future;
}

bool ReplicatedTableClient::PushPieces(
    uint64_t id, std::vector<Piece>& pieces, size_t& next,
    const std::shared_ptr<Operation>& operation, Work& work) {
  const Instant now = SteadyClock().Now();
  for (; next < pieces.size() && !operation->has_ended; ++next) {
    Piece& piece = pieces[next];
    const auto it = windows_.find(id);
    if (!failure_.ok() || it == windows_.end()) {
      End(operation,
          failure_.ok() ? absl::CancelledError("the push was refused")
                        : failure_,
          work);
      break;
    }
    Window& window = it->second;
    if (!window.window.HasRoom(piece.partition,
                               static_cast<int64_t>(piece.payload.size()))) {
      return false;
    }
    if (window.window.IsLost(piece.partition)) {
      Fail(Lost(piece.partition), work);
      End(operation, failure_, work);
      break;
    }
    const uint64_t sequence =
        window.window.Push(piece.partition, std::move(piece.payload), now);
    window.operations[{piece.partition, sequence}] = operation;
    if (id == kPushes) last_push_ = std::max(last_push_, sequence);
  }
  return true;
}

void ReplicatedTableClient::AwaitRoom(uint64_t id, const Piece& piece,
                                      const Operation& operation, Work& work) {
  const int64_t bytes = static_cast<int64_t>(piece.payload.size());
  const Instant now = SteadyClock().Now();
  const auto until =
      SteadyDeadline(std::min(operation.deadline - now, kLookEvery));
  for (bool is_late = false, is_over = false; !is_over;) {
    const auto it = windows_.find(id);
    if (!failure_.ok() || operation.has_ended || it == windows_.end() ||
        it->second.window.HasRoom(piece.partition, bytes)) {
      return;
    }
    if (is_late) {
      return Fail(
          absl::DeadlineExceededError(absl::StrCat(
              "table '", options_.spec.name(), "': no room for a push: ",
              it->second.window.DescribeWait(piece.partition))),
          work);
    }
    const BlockingScope blocking;
    is_over = !moved_.WaitUntil(mu_, until);
    is_late = is_over && SteadyClock().Now() >= operation.deadline;
    is_over = is_over && !is_late;
  }
}

absl::Status ReplicatedTableClient::Lost(int partition) const {
  return LostPartition(
      absl::StrCat("table '", options_.spec.name(),
                   "': all servers that had partition ", partition,
                   " are gone: restore a checkpoint (ps::Client::Restore) and "
                   "open the table again, or start the job again with "
                   "--resume"));
}

void ReplicatedTableClient::Collect(uint64_t id, Window& window, Work& work) {
  using Kind = ClientWindow::Action::Kind;
  for (ClientWindow::Action& action : window.window.TakeActions()) {
    switch (action.kind) {
      case Kind::kSend: {
        Work::Call& call = work.pushes[{action.request.to, id}];
        if (call.payloads.empty()) {
          call.to = action.request.to;
          call.window = id;
          call.request.set_table(options_.spec.name());
          SetKey(call.to, call.request.mutable_to());
          call.request.set_opening(options_.opening);
          call.request.set_opened_at(options_.opened_at);
          call.request.set_generation(options_.generation);
          call.request.set_rank(options_.rank);
          call.request.set_shard(window.shard);
          call.request.set_take_over(window.take_over);
        }
        v1::PushSpan* span = call.request.add_spans();
        span->set_partition(static_cast<uint32_t>(action.partition));
        span->set_epoch(action.request.epoch);
        span->set_client(window.client);
        span->set_sequence(action.request.mark.sequence);
        span->set_first(action.request.mark.first);
        call.payloads.push_back(std::move(action.payload));
        break;
      }
      case Kind::kAnswered: {
        const auto it = window.operations.find(
            {action.partition, action.request.mark.sequence});
        if (it == window.operations.end()) break;
        const std::shared_ptr<Operation> operation = std::move(it->second);
        window.operations.erase(it);
        if (--operation->left == 0) End(operation, absl::OkStatus(), work);
        break;
      }
      case Kind::kStable:
        break;
      case Kind::kLearnMap:
        work.learns_map = true;
        break;
      case Kind::kBroken: {
        const auto it = window.operations.find(
            {action.partition, action.request.mark.sequence});
        const absl::Status broken = absl::InternalError(absl::StrCat(
            "table '", options_.spec.name(), "' partition ", action.partition,
            ": push ", action.request.mark.sequence,
            " is beyond what a server remembers"));
        if (it != window.operations.end()) End(it->second, broken, work);
        return Fail(broken, work);
      }
    }
  }
  moved_.NotifyAll();
}

void ReplicatedTableClient::End(const std::shared_ptr<Operation>& operation,
                                const absl::Status& status, Work& work) {
  if (std::exchange(operation->has_ended, true)) return;
  work.done.push_back([operation, status] { operation->promise.Set(status); });
}

void ReplicatedTableClient::Fail(const absl::Status& status, Work& work) {
  if (failure_.ok()) failure_ = status;
  for (auto& [id, window] : windows_) {
    for (auto& [piece, operation] : window.operations) {
      End(operation, status, work);
    }
  }
  windows_.clear();
  of_shard_.clear();
  while (!pulls_.empty()) EndPull(pulls_.begin()->first, status, work);
  moved_.NotifyAll();
}

void ReplicatedTableClient::Refuse(uint64_t id, int partition,
                                   uint64_t sequence,
                                   const absl::Status& status, Work& work) {
  const auto it = windows_.find(id);
  if (it == windows_.end()) return;
  const auto found = it->second.operations.find({partition, sequence});
  if (found == it->second.operations.end()) return;
  if (found->second->closes) return Fail(status, work);
  // What else is in the window was of the same kind.
  Window window = std::move(it->second);
  windows_.erase(it);
  for (auto& [piece, operation] : window.operations) {
    End(operation, status, work);
  }
  if (id == kChanges) {
    uint64_t last = 0;
    for (const auto& [piece, operation] : window.operations) {
      last = std::max(last, piece.second);
    }
    NewWindow(kChanges, client_, last + 1);
  }
}

void ReplicatedTableClient::Finish(Work work) {
  for (auto& done : work.done) done();
  for (auto& [key, call] : work.pushes) {
    const auto shared = std::make_shared<Work::Call>(std::move(call));
    session_
        ->CallAsync(shared->to, kPushTimeout, &PushSpans, shared->request,
                    shared->payloads)
        .OnReady([weak = weak_from_this(),
                  shared](const absl::StatusOr<v1::PushReply>& reply) {
          if (const auto self = weak.lock()) self->OnPushed(*shared, reply);
        });
  }
  for (Work::PullCall& call : work.pulls) {
    const auto shared = std::make_shared<Work::PullCall>(std::move(call));
    session_
        ->CallAsync(shared->to, shared->timeout, &PullSpans, shared->request,
                    shared->payloads)
        .OnReady([weak = weak_from_this(),
                  shared](const absl::StatusOr<PullSpansReply>& reply) {
          if (const auto self = weak.lock()) self->OnPulled(*shared, reply);
        });
  }
  for (WorkerKey server : work.opens) {
    // The server took the role of one that had not yet told it of the table.
    (void)session_->CallAsync(server, kPushTimeout, &OpenReplicated,
                              options_.spec, options_.opening,
                              options_.opened_at);
  }
  if (work.learns_map) session_->Learn();
}

void ReplicatedTableClient::OnPushed(
    const Work::Call& call, const absl::StatusOr<v1::PushReply>& reply) {
  Work work;
  {
    MutexLock lock(mu_);
    const Instant now = SteadyClock().Now();
    const int spans = reply.ok() ? reply->spans_size() : 0;
    if (reply.ok() && spans != call.request.spans_size()) {
      Fail(absl::InternalError("a server answered other spans than it got"),
           work);
    }
    if (!reply.ok() && IsForGood(reply.status())) {
      // Nobody waits for some of them: those that are sent again because the
      // server that has answered them is gone.
      for (const v1::PushSpan& sent : call.request.spans()) {
        Refuse(call.window, static_cast<int>(sent.partition()), sent.sequence(),
               reply.status(), work);
      }
    }
    NoteEnd(call.to, reply.status());
    if (reply.ok()) heard_at_ = now;
    // Also where all that it was asked is what is stable: the window asks on,
    // and learns nothing by itself from a server that is gone.
    work.learns_map = !reply.ok();
    if (!reply.ok() && absl::IsNotFound(reply.status())) {
      work.opens.push_back(call.to);
    }
    for (int i = 0; i < call.request.spans_size(); ++i) {
      const auto it = windows_.find(call.window);
      if (it == windows_.end()) break;
      const v1::PushSpan& sent = call.request.spans(i);
      const int partition = static_cast<int>(sent.partition());
      if (!reply.ok()) {
        PushRequest request;
        request.epoch = sent.epoch();
        request.mark.sequence = sent.sequence();
        it->second.window.OnFailure(partition, request, now);
        continue;
      }
      const v1::SpanAnswer& span = reply->spans(i);
      if (span.status() != 0) {
        const absl::Status refused = StatusOf(span);
        // kResourceExhausted: there is no memory for its rows.
        const bool is_full = absl::IsResourceExhausted(refused);
        if (is_full &&
            it->second.operations.count({partition, sent.sequence()}) == 0) {
          // Answered by a server that has died since, and not stable: this one
          // cannot take it, and it would be lost without a word.
          Fail(refused, work);
        } else if (IsForGood(refused) || is_full) {
          Refuse(call.window, partition, sent.sequence(), refused, work);
        } else {
          PushRequest request;
          request.epoch = sent.epoch();
          request.mark.sequence = sent.sequence();
          it->second.window.OnFailure(partition, request, now);
        }
        continue;
      }
      if (options_.spec.has_staleness() &&
          span.code() == static_cast<int>(Code::kOk)) {
        const auto asked =
            it->second.operations.find({partition, sent.sequence()});
        if (asked != it->second.operations.end() && asked->second->joins) {
          asked->second->clocks[partition] = span.clock();
        }
      }
      Answer answer;
      answer.code = static_cast<Code>(span.code());
      answer.epoch = sent.epoch();
      answer.sequence = sent.sequence();
      answer.stable_through = span.stable_through();
      answer.map_epoch = reply->map_epoch();
      it->second.window.OnAnswer(partition, answer, now);
    }
    const auto it = windows_.find(call.window);
    if (it != windows_.end()) Collect(call.window, it->second, work);
  }
  Finish(std::move(work));
}

// --- Time and the map --------------------------------------------------------

void ReplicatedTableClient::OnMap(const PartitionMap& map) {
  Work work;
  {
    MutexLock lock(mu_);
    if (map.epoch() <= map_.epoch()) return;
    map_ = map;
    for (auto it = gone_.begin(); it != gone_.end();) {
      const bool is_of_map = std::any_of(
          map.servers().begin(), map.servers().end(),
          [&](const PartitionMap::Server& one) { return one.key == *it; });
      it = is_of_map ? std::next(it) : gone_.erase(it);
    }
    if (map.generation() > options_.generation && failure_.ok()) {
      Fail(absl::FailedPreconditionError(absl::StrCat(
               "table '", options_.spec.name(),
               "': a checkpoint was restored since; open it again")),
           work);
    }
    const Instant now = SteadyClock().Now();
    for (auto& [id, window] : windows_) {
      window.window.OnMap(map, now);
      Collect(id, window, work);
      if (!failure_.ok()) break;
    }
    std::vector<uint64_t> ids;
    for (const auto& [id, pull] : pulls_) ids.push_back(id);
    for (uint64_t id : ids) {
      const auto it = pulls_.find(id);
      if (it != pulls_.end()) Ask(id, it->second, work);
    }
  }
  Finish(std::move(work));
}

void ReplicatedTableClient::OnTick(Instant now) {
  Work work;
  absl::Status late;
  WorkerKey late_at;  // who is to answer
  {
    MutexLock lock(mu_);
    std::vector<uint64_t> over;
    for (auto& [id, window] : windows_) {
      window.window.OnTick(now);
      Collect(id, window, work);
      if (!failure_.ok()) break;
      const auto newest = of_shard_.find(window.shard);
      const bool is_newest =
          id <= kPushes || (newest != of_shard_.end() && newest->second == id);
      if (!is_newest && window.window.IsStable()) over.push_back(id);
    }
    for (uint64_t id : over) windows_.erase(id);
    for (auto& [id, window] : windows_) {
      for (auto& [piece, operation] : window.operations) {
        if (window.window.IsLost(piece.first)) {
          late = Lost(piece.first);
        } else if (now >= operation->deadline) {
          late = absl::DeadlineExceededError(
              absl::StrCat("table '", options_.spec.name(),
                           "': ", window.window.DescribeWait(piece.first)));
          late_at = map_.entry(map_.EntryOf(piece.first)).primary;
        } else {
          continue;
        }
        break;
      }
      // What was answered and is not stable is lost, too.
      for (int p = 0; p < options_.spec.partitions() && late.ok(); ++p) {
        if (window.window.outstanding(p) > 0 && window.window.IsLost(p)) {
          late = Lost(p);
        }
      }
      if (!late.ok()) break;
    }
    if (MayBeElsewhere(now)) work.learns_map = true;
  }
  if (!IsNone(late_at)) {
    late = absl::Status(late.code(), absl::StrCat(late.message(), "; that is ",
                                                  session_->NameOf(late_at)));
  }
  const Names gone = session_->gives_up(now) ? NamesOfGone() : Names();
  {
    MutexLock lock(mu_);
    if (!late.ok()) Fail(late, work);
    if (!gone.empty()) GiveUpOn(gone, work);
    std::vector<uint64_t> ids;
    for (const auto& [id, pull] : pulls_) ids.push_back(id);
    for (uint64_t id : ids) {
      const auto it = pulls_.find(id);
      if (it == pulls_.end()) continue;
      PullOperation& pull = it->second;
      if (now >= pull.deadline) {
        EndPull(
            id,
            absl::DeadlineExceededError(absl::StrCat(
                "pull from table '", options_.spec.name(), "': ",
                pull.last.ok() ? "no server answered" : pull.last.message())),
            work);
      } else if (now >= pull.ask_at) {
        Ask(id, pull, work);
      }
    }
  }
  Finish(std::move(work));
}

absl::Status ReplicatedTableClient::status() const {
  MutexLock lock(mu_);
  return failure_;
}

}  // namespace weft::ps
