// EtcdJournal: see the header.

#include "weft/rendezvous/journal/etcd_journal.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/proto/etcd.pb.h"
#include "weft/rendezvous/member.h"

namespace weft::rendezvous {
namespace {

// etcd takes requests of up to 1.5 MiB.
constexpr size_t kPieceBytes = 512 << 10;
constexpr int64_t kPiecesARange = 16;
constexpr absl::Duration kAnswerTime = absl::Seconds(2);
// How often etcd looks which leases have ended.
constexpr absl::Duration kExpiryCheck = absl::Milliseconds(500);
constexpr absl::Duration kPause = absl::Milliseconds(100);
// The same of one that stands by.
constexpr absl::Duration kLook = absl::Milliseconds(500);
// How often a host puts its key again before it fails: its lease may expire
// before it reads the key back.
constexpr int kMaxPuts = 10;

std::string HostKey(const std::string& prefix, const std::string& job) {
  return absl::StrCat(prefix, "/", job, "/host");
}

// The first key after all that begin with `prefix`, which ends in no 0xff.
std::string EndOf(std::string prefix) {
  ++prefix.back();
  return prefix;
}

template <typename Reply>
absl::StatusOr<Reply> Parse(const absl::StatusOr<std::string>& bytes) {
  if (!bytes.ok()) return bytes.status();
  Reply reply;
  if (reply.ParseFromString(*bytes)) return reply;
  return absl::DataLossError("an answer of etcd cannot be read");
}

bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

etcdserverpb::Compare IsAt(const std::string& key, int64_t revision) {
  etcdserverpb::Compare compare;
  compare.set_key(key);
  if (revision == 0) {
    compare.set_target(etcdserverpb::Compare::CREATE);
    compare.set_create_revision(0);  // absent
  } else {
    compare.set_target(etcdserverpb::Compare::MOD);
    compare.set_mod_revision(revision);
  }
  return compare;
}

etcdserverpb::RequestOp Put(const std::string& key, std::string value,
                            int64_t lease = 0) {
  etcdserverpb::RequestOp op;
  op.mutable_request_put()->set_key(key);
  op.mutable_request_put()->set_value(std::move(value));
  op.mutable_request_put()->set_lease(lease);
  return op;
}

// Keeps the host's key there while its process lives. What it shares with the
// callbacks of its calls.
class Lease : public std::enable_shared_from_this<Lease> {
 public:
  Lease(TimerSource& timers, std::shared_ptr<CoordinatorLink> etcd,
        absl::Duration time, std::string host_key, std::string host)
      : timers_(timers),
        etcd_(std::move(etcd)),
        time_(time),
        host_key_(std::move(host_key)),
        host_(std::move(host)) {}

  // Renews the lease `id` from now on. The host's key exists under it.
  void Keep(int64_t id) {
    {
      MutexLock lock(mu_);
      id_ = id;
    }
    Later();
  }
  // The condition that the journal is still this host's. None: it is unknown
  // now.
  void SetGuard(std::optional<etcdserverpb::Compare> guard) {
    MutexLock lock(mu_);
    guard_ = std::move(guard);
  }
  // Whether another host has taken the journal over.
  bool is_lost() const {
    MutexLock lock(mu_);
    return is_lost_;
  }
  // The key goes with it, so that a successor need not wait.
  void End() {
    etcdserverpb::LeaseRevokeRequest revoke;
    {
      MutexLock lock(mu_);
      is_over_ = true;
      revoke.set_id(id_);
    }
    (void)etcd_
        ->Call("Lease/LeaseRevoke", revoke.SerializeAsString(), kAnswerTime)
        .Wait(kAnswerTime / 4);
  }

 private:
  void Later() {
    timers_.RunAfter(time_ / 4, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Renew();
    });
  }

  void Renew() {
    etcdserverpb::LeaseKeepAliveRequest request;
    {
      MutexLock lock(mu_);
      if (is_over_) return;
      request.set_id(id_);
    }
    // A stream by etcd's definition; one message each way is a unary call too.
    etcd_
        ->Call("Lease/LeaseKeepAlive", request.SerializeAsString(), kAnswerTime)
        .OnReady([weak = weak_from_this()](
                     const absl::StatusOr<std::string>& bytes) {
          const auto self = weak.lock();
          if (self == nullptr) return;
          const auto reply = Parse<etcdserverpb::LeaseKeepAliveResponse>(bytes);
          if (reply.ok() && reply->ttl() == 0) return self->TakeAnother();
          self->Later();
        });
  }

  // The lease ran out while this process could not renew it. Unless another
  // host has taken over meanwhile, writes the key again under a new lease.
  void TakeAnother() {
    etcdserverpb::LeaseGrantRequest grant;
    grant.set_ttl(absl::ToInt64Seconds(time_));
    etcd_->Call("Lease/LeaseGrant", grant.SerializeAsString(), kAnswerTime)
        .OnReady([weak = weak_from_this()](
                     const absl::StatusOr<std::string>& bytes) {
          const auto self = weak.lock();
          if (self == nullptr) return;
          const auto granted = Parse<etcdserverpb::LeaseGrantResponse>(bytes);
          if (!granted.ok()) return self->Later();
          {
            MutexLock lock(self->mu_);
            if (self->is_over_) return;
            self->id_ = granted->id();
          }
          self->PutHostAgain();
        });
  }

  void PutHostAgain() {
    etcdserverpb::TxnRequest put;
    std::optional<etcdserverpb::Compare> guard;
    {
      MutexLock lock(mu_);
      if (is_over_) return;
      guard = guard_;
      *put.add_success() = Put(host_key_, host_, id_);
    }
    if (!guard.has_value()) return PutLater();
    *put.add_compare() = *guard;
    *put.add_compare() = IsAt(host_key_, 0);  // nor is another about to
    etcd_->Call("KV/Txn", put.SerializeAsString(), kAnswerTime)
        .OnReady([weak = weak_from_this(),
                  guard = *guard](const absl::StatusOr<std::string>& bytes) {
          const auto self = weak.lock();
          if (self == nullptr) return;
          const auto done = Parse<etcdserverpb::TxnResponse>(bytes);
          if (done.ok() && !done->succeeded()) return self->SeeWhy(guard);
          if (done.ok() || !MayPass(done.status())) return self->Later();
          self->PutLater();
        });
  }

  void PutLater() {
    timers_.RunAfter(time_ / 4, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->PutHostAgain();
    });
  }

  // Why the key was not put there while the head was to be as `guard` has it.
  void SeeWhy(const etcdserverpb::Compare& guard) {
    etcdserverpb::RangeRequest range;  // of the head and the host
    range.set_key(guard.key());
    range.set_range_end(host_key_ + '\0');
    etcd_->Call("KV/Range", range.SerializeAsString(), kAnswerTime)
        .OnReady([weak = weak_from_this(),
                  guard](const absl::StatusOr<std::string>& bytes) {
          const auto self = weak.lock();
          if (self == nullptr) return;
          const auto found = Parse<etcdserverpb::RangeResponse>(bytes);
          if (!found.ok()) return self->PutLater();
          int64_t revision = 0;
          bool is_there = false;  // by an earlier try
          for (const etcdserverpb::KeyValue& kv : found->kvs()) {
            if (kv.key() == guard.key()) revision = kv.mod_revision();
            if (kv.key() == self->host_key_)
              is_there = kv.value() == self->host_;
          }
          if (revision != guard.mod_revision() && self->Lose(guard)) return;
          is_there ? self->Later() : self->PutLater();
        });
  }

  // The head is not as `guard` has it. False: perhaps by this host's own doing.
  bool Lose(const etcdserverpb::Compare& guard) {
    MutexLock lock(mu_);
    is_lost_ =
        guard_.has_value() && guard_->mod_revision() == guard.mod_revision();
    return is_lost_;
  }

  TimerSource& timers_;
  const std::shared_ptr<CoordinatorLink> etcd_;
  const absl::Duration time_;
  const std::string host_key_;
  const std::string host_;
  mutable Mutex mu_;
  int64_t id_ ABSL_GUARDED_BY(mu_) = 0;
  // While this host changes the head, there is none.
  std::optional<etcdserverpb::Compare> guard_ ABSL_GUARDED_BY(mu_);
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  bool is_lost_ ABSL_GUARDED_BY(mu_) = false;
};

class EtcdJournal final : public Journal {
 public:
  EtcdJournal(TimerSource& timers, std::shared_ptr<CoordinatorLink> etcd,
              EtcdJournalOptions options)
      : timers_(timers),
        etcd_(std::move(etcd)),
        options_(std::move(options)),
        base_(absl::StrCat(options_.prefix, "/", options_.job, "/")) {}
  ~EtcdJournal() override {
    if (lease_ != nullptr) lease_->End();
  }

  absl::Status Open() {
    WEFT_RETURN_IF_ERROR(Named(BecomeHost()));
    WEFT_RETURN_IF_ERROR(Named(TakeHead()));
    WEFT_RETURN_IF_ERROR(Named(Read()));
    patience_ = options_.append_patience;
    return absl::OkStatus();
  }

  const std::vector<v1::LogRecord>& history() const override {
    return history_;
  }
  absl::Status Append(const std::vector<v1::LogRecord>& records) override {
    if (!broken_.ok()) return broken_;
    return Remember(AppendFrames(FrameRecords(records)));
  }
  absl::Status Rewrite(const std::vector<v1::LogRecord>& records) override {
    if (!broken_.ok()) return broken_;
    absl::Status settled = Settle();
    return Remember(settled.ok() ? WriteAnew(records) : settled);
  }
  absl::Status status() const override {
    return lease_->is_lost() ? Named(TakenOver()) : absl::OkStatus();
  }
  int64_t bytes() const override { return bytes_; }
  std::string where() const override {
    return absl::StrCat("coordinator journal in etcd at ", etcd_->address());
  }

 private:
  absl::Status Named(const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat(where(), ": ", status.message()));
  }
  // Errors that do not pass stay.
  absl::Status Remember(const absl::Status& status) {
    const absl::Status named = Named(status);
    if (!absl::IsUnavailable(named)) broken_ = named;
    return named;
  }
  Instant Now() const { return timers_.driver().clock().Now(); }
  void Pause(absl::Duration time = kPause) const {
    auto [promise, pause] = MakePromise<void>(timers_.driver());
    timers_.RunAfter(
        time, [p = std::move(promise)]() mutable { p.Set(absl::OkStatus()); });
    (void)pause.Wait(absl::Seconds(1));
  }

  // All requests may be repeated.
  template <typename Reply, typename Request>
  absl::StatusOr<Reply> Ask(const char* method, const Request& request) {
    const Instant deadline = Now() + patience_;
    for (;;) {
      const auto reply = Parse<Reply>(
          etcd_->Call(method, request.SerializeAsString(), kAnswerTime)
              .Wait(kAnswerTime));
      if (reply.ok() || !MayPass(reply.status())) return reply;
      if (Now() >= deadline) {
        return absl::UnavailableError(reply.status().message());
      }
      Pause();
    }
  }
  absl::StatusOr<std::optional<etcdserverpb::KeyValue>> Get(
      const std::string& key) {
    etcdserverpb::RangeRequest range;
    range.set_key(key);
    WEFT_ASSIGN_OR_RETURN(auto found,
                          Ask<etcdserverpb::RangeResponse>("KV/Range", range));
    if (found.kvs().empty()) return std::nullopt;
    return std::move(*found.mutable_kvs(0));
  }

  // Puts the host's key there, under a lease, once no other's is.
  absl::Status BecomeHost() {
    const std::string key = HostKey(options_.prefix, options_.job);
    v1::Meeting meeting;
    meeting.set_job(options_.job);
    meeting.set_address(options_.address);
    meeting.set_nonce(DrawIncarnation());
    const std::string host = meeting.SerializeAsString();
    Instant deadline = Instant::Infinite();
    if (options_.stands_by) WEFT_RETURN_IF_ERROR(StandBy(key));
    for (int puts = 0; puts < kMaxPuts;) {
      WEFT_ASSIGN_OR_RETURN(const auto holder, Get(key));
      // The time counts from when etcd answers.
      deadline = std::min(deadline, Now() + 2 * options_.lease + kExpiryCheck);
      if (!holder.has_value()) {
        ++puts;
        WEFT_RETURN_IF_ERROR(PutHost(key, host));
      } else if (holder->value() == host) {
        // Kept from here on: reading what is there may take longer.
        lease_ =
            std::make_shared<Lease>(timers_, etcd_, options_.lease, key, host);
        lease_->Keep(lease_id_);
        return absl::OkStatus();
      } else if (options_.stands_by) {  // another was faster
        WEFT_RETURN_IF_ERROR(StandBy(key));
      } else if (Now() >= deadline) {
        v1::Meeting other;
        other.ParseFromString(holder->value());
        return absl::FailedPreconditionError(
            absl::StrCat("the coordinator of job \"", options_.job, "\" is at ",
                         other.address(), ", not at ", options_.address,
                         ": end that one, or give this job another name"));
      } else {
        Pause();
      }
    }
    return absl::UnavailableError(absl::StrCat("the key ", key,
                                               " was put there ", kMaxPuts,
                                               " times, and is not there"));
  }

  // Waits until nobody's key is there.
  absl::Status StandBy(const std::string& key) {
    for (;;) {
      WEFT_RETURN_IF_ERROR(options_.cancel.status());
      etcdserverpb::RangeRequest range;
      range.set_key(key);
      const auto found = Parse<etcdserverpb::RangeResponse>(
          etcd_->Call("KV/Range", range.SerializeAsString(), kAnswerTime)
              .Wait(kAnswerTime));
      if (found.ok() && found->kvs().empty()) return absl::OkStatus();
      if (!found.ok() && !MayPass(found.status())) return found.status();
      Pause(kLook);
    }
  }

  absl::Status PutHost(const std::string& key, const std::string& host) {
    etcdserverpb::LeaseGrantRequest grant;
    grant.set_ttl(absl::ToInt64Seconds(options_.lease));
    WEFT_ASSIGN_OR_RETURN(
        const auto lease,
        Ask<etcdserverpb::LeaseGrantResponse>("Lease/LeaseGrant", grant));
    etcdserverpb::TxnRequest take;
    *take.add_compare() = IsAt(key, 0);
    *take.add_success() = Put(key, host, lease.id());
    lease_id_ = lease.id();
    return Ask<etcdserverpb::TxnResponse>("KV/Txn", take).status();
  }

  // The state of the journal while a head of that value is there.
  struct Head {
    std::string value;
    uint64_t generation = 0;
    uint64_t next_piece = 0;
    int64_t bytes = 0;

    // Compares all but the value.
    bool IsLike(const Head& other) const {
      return generation == other.generation && next_piece == other.next_piece &&
             bytes == other.bytes;
    }
  };

  // Makes the journal this one's: `revision` is the head's that was seen.
  absl::Status PutHead(int64_t revision, Head head,
                       const etcdserverpb::RequestOp* besides) {
    v1::JournalHead message;
    message.set_generation(head.generation);
    message.set_nonce(DrawIncarnation());
    head.value = message.SerializeAsString();
    // The same again, lest they grow with an outage: one of them is put at
    // most.
    if (!unsettled_.empty() && unsettled_.back().IsLike(head)) {
      head = std::move(unsettled_.back());
      unsettled_.pop_back();
    }
    etcdserverpb::TxnRequest take;
    *take.add_compare() = IsAt(base_ + "head", revision);
    *take.add_success() = Put(base_ + "head", head.value);
    if (besides != nullptr) *take.add_success() = *besides;
    unsettled_.push_back(std::move(head));
    lease_->SetGuard(std::nullopt);
    WEFT_RETURN_IF_ERROR(
        Ask<etcdserverpb::TxnResponse>("KV/Txn", take).status());
    return FindHead();
  }

  // Finds which of the heads that were written exists: an answer may have been
  // lost and the repetition refused.
  absl::Status FindHead() {
    WEFT_ASSIGN_OR_RETURN(const auto now, Get(base_ + "head"));
    for (const Head& head : unsettled_) {
      if (!now.has_value() || now->value() != head.value) continue;
      guard_ = IsAt(base_ + "head", now->mod_revision());
      lease_->SetGuard(guard_);
      generation_ = head.generation;
      next_piece_ = head.next_piece;
      bytes_ = head.bytes;
      unsettled_.clear();
      return absl::OkStatus();
    }
    return TakenOver();
  }

  // A head whose writing was not answered may be there, or come yet. Whichever
  // it is, another one after it decides.
  absl::Status Settle() {
    if (unsettled_.empty()) return absl::OkStatus();
    return PutHead(guard_.mod_revision(),
                   {"", generation_, next_piece_, bytes_}, nullptr);
  }

  absl::Status AppendFrames(absl::string_view frames) {
    WEFT_RETURN_IF_ERROR(Settle());
    uint64_t next = next_piece_;  // the same again, unless all are there
    WEFT_RETURN_IF_ERROR(Write(generation_, &next, frames));
    next_piece_ = next;
    bytes_ += static_cast<int64_t>(frames.size());
    return absl::OkStatus();
  }

  absl::Status TakeHead() {
    WEFT_ASSIGN_OR_RETURN(const auto seen, Get(base_ + "head"));
    v1::JournalHead head;
    if (seen.has_value() && !head.ParseFromString(seen->value())) {
      return absl::DataLossError(
          absl::StrCat("the key ", base_, "head is none of Weft's"));
    }
    return PutHead(seen.has_value() ? seen->mod_revision() : 0,
                   {"", head.generation(), 0, 0}, nullptr);
  }

  absl::Status Read() {
    const std::string prefix = LogPrefix(generation_);
    std::string frames;
    etcdserverpb::RangeRequest range;
    range.set_key(prefix);
    range.set_range_end(EndOf(prefix));
    range.set_limit(kPiecesARange);
    for (;;) {
      WEFT_ASSIGN_OR_RETURN(const auto found, Ask<etcdserverpb::RangeResponse>(
                                                  "KV/Range", range));
      for (const etcdserverpb::KeyValue& piece : found.kvs()) {
        frames += piece.value();
        range.set_key(piece.key() + '\0');
        absl::string_view key = piece.key();
        uint64_t number = 0;
        if (!absl::ConsumePrefix(&key, prefix) ||
            !absl::SimpleHexAtoi(key, &number)) {
          return absl::DataLossError(
              absl::StrCat("the key ", piece.key(), " is none of Weft's"));
        }
        if (number != next_piece_) {
          return absl::DataLossError(
              absl::StrCat("the key ", PieceKey(generation_, next_piece_),
                           " is missing before ", piece.key(),
                           "; put it back, or delete all keys that begin with ",
                           base_, " to begin with an empty journal"));
        }
        ++next_piece_;
      }
      if (!found.more()) break;
      if (found.kvs().empty()) {
        return absl::DataLossError("etcd has more of the log, and gives none");
      }
    }
    absl::string_view rest = frames;
    WEFT_RETURN_IF_ERROR(TakeRecords(&rest, &history_));
    bytes_ = frames.size() - rest.size();
    // A truncated record must not precede the next ones.
    return rest.empty() ? absl::OkStatus() : WriteAnew(history_);
  }

  absl::Status WriteAnew(const std::vector<v1::LogRecord>& records) {
    const uint64_t generation = generation_ + 1;
    const std::string frames = FrameRecords(records);
    uint64_t next = 0;
    const std::string leftover = LogPrefix(generation);
    WEFT_RETURN_IF_ERROR(Change(DeleteAll(leftover)));
    WEFT_RETURN_IF_ERROR(Write(generation, &next, frames));
    const etcdserverpb::RequestOp old = DeleteAll(LogPrefix(generation_));
    return PutHead(guard_.mod_revision(),
                   {"", generation, next, static_cast<int64_t>(frames.size())},
                   &old);
  }

  absl::Status Write(uint64_t generation, uint64_t* next,
                     absl::string_view frames) {
    for (; !frames.empty(); ++*next) {
      WEFT_RETURN_IF_ERROR(
          Change(Put(PieceKey(generation, *next),
                     std::string(frames.substr(0, kPieceBytes)))));
      frames.remove_prefix(std::min(frames.size(), kPieceBytes));
    }
    return absl::OkStatus();
  }

  // Only while the journal is this one's; done once or twice is the same.
  absl::Status Change(etcdserverpb::RequestOp op) {
    etcdserverpb::TxnRequest change;
    *change.add_compare() = guard_;
    *change.add_success() = std::move(op);
    WEFT_ASSIGN_OR_RETURN(const auto done,
                          Ask<etcdserverpb::TxnResponse>("KV/Txn", change));
    return done.succeeded() ? absl::OkStatus() : TakenOver();
  }

  absl::Status TakenOver() const {
    return absl::AbortedError(absl::StrCat("another coordinator of job \"",
                                           options_.job, "\" has taken over"));
  }
  std::string LogPrefix(uint64_t generation) const {
    return absl::StrCat(base_, "log/", absl::Hex(generation, absl::kZeroPad16),
                        "/");
  }
  std::string PieceKey(uint64_t generation, uint64_t number) const {
    return absl::StrCat(LogPrefix(generation),
                        absl::Hex(number, absl::kZeroPad16));
  }
  static etcdserverpb::RequestOp DeleteAll(const std::string& prefix) {
    etcdserverpb::RequestOp op;
    op.mutable_request_delete_range()->set_key(prefix);
    op.mutable_request_delete_range()->set_range_end(EndOf(prefix));
    return op;
  }

  TimerSource& timers_;
  const std::shared_ptr<CoordinatorLink> etcd_;
  const EtcdJournalOptions options_;
  const std::string base_;  // of all keys
  int64_t lease_id_ = 0;
  std::shared_ptr<Lease> lease_;  // once this is the host
  etcdserverpb::Compare guard_;   // holds while the journal is this one's
  std::vector<Head> unsettled_;   // written, with no answer yet
  absl::Duration patience_ = options_.patience;
  uint64_t generation_ = 0;
  uint64_t next_piece_ = 0;
  int64_t bytes_ = 0;
  absl::Status broken_;
  std::vector<v1::LogRecord> history_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> OpenEtcdJournal(
    TimerSource& timers, std::shared_ptr<CoordinatorLink> etcd,
    EtcdJournalOptions options) {
  auto journal = std::make_unique<EtcdJournal>(timers, std::move(etcd),
                                               std::move(options));
  WEFT_RETURN_IF_ERROR(journal->Open());
  return journal;
}

Future<std::string> FindByEtcd(CoordinatorLink& etcd, const std::string& prefix,
                               const std::string& job) {
  etcdserverpb::RangeRequest range;
  range.set_key(HostKey(prefix, job));
  return etcd.Call("KV/Range", range.SerializeAsString(), kAnswerTime)
      .Then([job](const std::string& bytes) -> absl::StatusOr<std::string> {
        etcdserverpb::RangeResponse found;
        v1::Meeting meeting;
        if (!found.ParseFromString(bytes) ||
            (found.kvs_size() > 0 &&
             !meeting.ParseFromString(found.kvs(0).value()))) {
          return absl::DataLossError("what etcd holds there is none of Weft's");
        }
        if (meeting.address().empty()) {
          return absl::NotFoundError(absl::StrCat(
              "no coordinator of job \"", job, "\" is known to etcd now"));
        }
        return meeting.address();
      });
}

}  // namespace weft::rendezvous
