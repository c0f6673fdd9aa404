// Replica: one server's copy of one partition: primary, backup or neither, as
// the map says.
//
// The primary gives each change the next number of its log (Lsn), applies it,
// and sends it to the backup, which applies the same in the same order. What
// was applied of which client travels with the entries, so that a backup that
// is promoted answers a push that is sent again as the primary had.
//
// A change is stable once no single death can lose it: it is on all copies that
// may be promoted. With D0 and D1 a push is answered once it is applied; a
// client of D1 keeps it until it is stable. With D2 it is answered once it is
// stable; with D3 both copies have it on disk by then as well.
//
// A primary answers only while it holds a lease (leases.h) of the coordinator,
// and one of its backup, if that may be promoted. A backup that is promoted
// answers once all leases that it has granted to the former primary are over,
// or that one's exit is proven. So no two servers answer at the same time.
//
// A new backup begins with a copy of the rows, which comes in pieces, and then
// follows the log, while the primary goes on. The map counts it as in sync once
// it has all that is stable; from a moment before that on nothing is stable
// that it has not.
//
// A third copy (PartitionMap::Entry::next) is filled in the same way, and takes
// the backup's place from a moment on at which it has the same. A primary that
// hands its role over takes nothing new, so that its backup comes to have all;
// then both change roles, and keep their rows.
//
// Pure: no lock, clock, thread or I/O. Events come in by On...; what is to be
// done comes out by TakeActions and is done in that order, before the next
// event: a copy (kCopy) is of the rows as they are then.
//
// What a peer sends is not trusted: what does not fit is dropped.
//
// Thread-safety: one thread at a time, under the partition's lock.

#ifndef WEFT_PS_CORE_REPLICA_H_
#define WEFT_PS_CORE_REPLICA_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/ps/core/replication/leases.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/replication/replication.h"

namespace weft::ps {

struct ReplicaOptions {
  Durability level = Durability::kD1;
  // With one copy left: if true, nothing becomes stable before there is a
  // second; else all that the one copy has is stable.
  bool stalls_alone = false;
  // Bytes of log entries that are not stable, or that a new backup lacks.
  // Beyond them pushes are refused until the backup has more.
  int64_t most_bytes = int64_t{1} << 28;
  size_t most_of_a_message = 64;  // entries
  // How far behind a new backup may be when the primary begins to wait for it.
  uint64_t most_lag = 64;
  absl::Duration resend_after = absl::Milliseconds(100);
  // The most pieces of a copy under way; if none of them arrives for
  // `resend_pieces_after`, they are sent again, and the copy is made anew.
  uint32_t most_pieces = 4;
  absl::Duration resend_pieces_after = absl::Seconds(1);
  absl::Duration fill_again_after = absl::Seconds(60);
  // A new backup is filled once BeginFill is called: so that a server which
  // has many to fill copies them one after another. Until then nothing is kept
  // for it. False: at once.
  bool fills_when_told = false;
  // After this time of silence a primary drops its backup, and a backup asks
  // for the primary's role.
  absl::Duration silence = absl::Milliseconds(300);
  // The same where the backup is heard of, but acknowledges nothing of what it
  // lacks.
  absl::Duration stall = absl::Milliseconds(300);
};

// The time, and the leases of this server.
struct Now {
  Instant time;
  const Leases& leases;
};

class Replica {
 public:
  // Begins empty, with `marks` applied, as each server does when the table is
  // made or restored. It has no role before OnMap.
  Replica(WorkerKey self, int entry, ReplicaOptions options, Marks marks = {});

  // D3: what an earlier incarnation of this server had on its disk: a copy of
  // position `n` with its marks, which is in the rows already, and the entries
  // after it, which are applied (kApply). Before OnMap. It is kept until the
  // map lets this server be the primary of what it has (kRevive), or has
  // another one that goes on without it.
  void Recover(uint64_t n, Marks marks, const std::vector<LogEntry>& entries);

  struct Action {
    enum class Kind {
      kServe,  // it has the role; SYNC: a new gate, see NextRound()
      kApply,  // `log_entry` to the rows
      kLoad,   // the rows that came with `message`: those of piece 0 in place
               // of all, others beside what is there
      kCopy,   // the rows as they are; then OnCopied
      kDrop,   // the rows: this server has no part in the partition
      kSend,   // `message` to server `to`; of kFill with that piece of the copy
      kAnswerPush,  // `answer` to the client
      kRead,        // read for `answer.token`, and keep it until...
      kAnswerRead,  // ... `answer` to the client, with what was read if OK
      kPropose,     // `change` to the map
      kLearnMap,    // there is a newer one
    };
    Kind kind = Kind::kApply;
    LogEntry log_entry;
    WorkerKey to;
    ReplicaMessage message;
    Answer answer;
    MapChange change;
  };
  std::vector<Action> TakeActions() { return std::exchange(actions_, {}); }
  // The same, into `to`, whose memory the next ones get.
  void TakeActions(std::vector<Action>& to) {
    to.clear();
    to.swap(actions_);
  }
  bool has_actions() const { return !actions_.empty(); }

  // Maps older than the newest one, and those without this partition, change
  // nothing.
  void OnMap(const PartitionMap& map, const Now& now);
  void OnMessage(WorkerKey from, const ReplicaMessage& message, const Now& now);
  // The rows were copied, for kCopy, and make so many pieces, at least one.
  void OnCopied(uint32_t pieces);
  // The copy is in use. One backup at a time is filled.
  bool is_filling() const {
    return is_primary() && (backup_.is_filling() || next_.is_filling());
  }
  // fills_when_told: whether a backup waits to be filled, and may be now; and
  // the moment to begin.
  bool waits_to_fill() const {
    return is_primary() && !is_filling() &&
           (backup_.waits_to_fill || next_.waits_to_fill);
  }
  void BeginFill(const Now& now);
  // ASYNC.
  void OnPush(const PushRequest& request, const Bytes& payload, const Now& now);
  // `is_behind`: what the read is to see besides has not come.
  void OnRead(const ReadRequest& request, const Now& now,
              bool is_behind = false);
  // D3: all up to `n` is on this server's disk.
  void OnDurable(uint64_t n, const Now& now);
  // To be called about every 50 ms.
  void OnTick(const Now& now);

  // --- SYNC: rounds, of whose parts RoundGate keeps account. ---

  // Whether a part may go to the gate. If not, it is answered.
  bool OnPart(const PushRequest& request, const Now& now);
  // The part is in the gate, or was before: answers it when that is due.
  void AnswerPart(const PushRequest& request, const Now& now);
  // The next round has closed. If its sum could be another one were it made
  // again (a round without all its shards), reads wait until it is stable.
  // REQUIRES: is_primary(), HasRoom().
  void AppendRound(const Bytes& sum, bool is_repeatable, const Now& now);
  bool HasRoom() const {
    return log_bytes_ < options_.most_bytes && !is_handing_over();
  }
  int64_t NextRound() const {
    return static_cast<int64_t>(AppliedThrough(kRounds));
  }

  // Whether this server has the role and may answer.
  bool MayAnswer(const Now& now) const;
  // Whether a request is for this server now: if not, it is answered with why.
  bool Accepts(int entry, WorkerKey to, uint64_t epoch, const Now& now) const;
  bool is_primary() const { return role_ == Role::kPrimary; }
  bool has_role() const { return role_ != Role::kNone; }
  // Whether no other copy may be promoted.
  bool is_alone() const { return is_primary() && !backup_.counts; }
  // Whether the backup has all that is stable, and will have whatever becomes
  // so. The map may count an entry as in sync once that is so of each partition
  // of each table in it.
  bool is_backup_ready() const {
    return is_primary() && backup_.counts && backup_.acked >= stable_;
  }
  // The same of the copy that is to take the backup's place.
  bool is_next_ready() const {
    return is_primary() && next_.counts && next_.acked >= stable_;
  }
  // Takes nothing new.
  bool is_handing_over() const {
    return is_primary() && entry_.is_handing_over;
  }
  // Whether the backup has all, and the same is so until the map is another
  // one. The map may let it take the role once that is so of each partition of
  // each table in the entry.
  bool IsReadyToHandOver(const Now& now) const;
  // Whether the rows are a copy of the partition, all that it is up to end():
  // of a backup that is being filled they are none.
  bool has_content() const {
    return is_primary() || content_epoch_ != 0 || is_recovered_;
  }
  uint64_t end() const { return end_; }              // of the log
  const Marks& applied() const { return applied_; }  // of all up to it
  uint64_t stable() const { return stable_; }        // all up to it is
  // A client's pushes up to it are.
  uint64_t AppliedThrough(ClientId client) const;
  uint64_t StableThrough(ClientId client) const;
  // Drops what is known of a client that is gone.
  void Forget(ClientId client);

  // For explorations: equal texts, equal states, times relative to now.
  std::string Snapshot(Instant now) const;

 private:
  enum class Role { kNone, kPrimary, kBackup };
  // A backup, as its primary sees it.
  struct Peer {
    WorkerKey key;
    uint64_t fill = 0;
    bool waits_to_fill = false;
    uint32_t pieces = 0;  // of the copy; 0: it is not made yet
    uint32_t sent = 0;
    uint32_t taken = 0;
    Instant resent;
    Marks marks;             // of the copy
    bool is_filled = false;  // has the copy, and takes entries
    uint64_t acked = 0;      // it has all up to here
    // Whether nothing is stable before this server has it, since it may be
    // promoted, now or later.
    bool counts = false;
    Instant moved;  // when the copy was made, or it has acknowledged more

    bool is_filling() const {
      return !IsNone(key) && !is_filled && !waits_to_fill;
    }
  };
  // A copy of which not all has come.
  struct Receiving {
    uint64_t epoch = 0;
    uint64_t fill = 0;
    uint32_t pieces = 0;
    uint32_t has = 0;
  };
  struct Held {
    bool is_read = false;
    Answer answer;
    ClientId client = kRounds;
    bool until_stable = false;
    uint64_t n = 0;  // read: due once all up to it is stable
  };

  Action& Add(Action::Kind kind);
  void Propose(MapChange::Kind kind, const Now& now);
  void Send(WorkerKey to, ReplicaMessage message);
  void Reply(const Held& held, Code code);
  // Whether the request is answered with why it is not for this server now.
  bool Refuse(int entry, WorkerKey to, uint64_t epoch, Held held,
              const Now& now);
  static Held HeldOf(const PushRequest& request);

  void TakeRole(WorkerKey former, const Now& now);
  // `keeps`: what it has is the backup's, or the primary's of a later epoch.
  void LoseRole(bool keeps);
  // Whether the map may yet ask for what an earlier incarnation had: the entry
  // is lost, or will be once it is known that that one has gone.
  bool MayRevive() const;
  // What this server is by entry_, which was `before`.
  void ChangeRole(const PartitionMap::Entry& before, const Now& now);
  void SetPeers(const Now& now);
  void SetPeer(Peer& peer, WorkerKey key, bool in_sync, const Now& now);
  void StartFill(Peer& peer, const Now& now);
  void SendPieces(Peer& peer);
  void TakePiece(const ReplicaMessage& message);
  bool OnPieceAck(Peer& peer, const ReplicaMessage& message, const Now& now);
  void SendEntries(const Peer& peer, uint64_t after);
  void OnAck(WorkerKey from, const ReplicaMessage& message, const Now& now);
  void OnFromPrimary(WorkerKey from, const ReplicaMessage& message);
  void TakeEntries(const std::vector<LogEntry>& entries);
  void Acknowledge();
  void CountPeerIfClose(Peer& peer, const Now& now);
  void HandOverIfReady(const Now& now);
  void TickPeer(Peer& peer, const Now& now);
  void TickAsPrimary(const Now& now);

  void Append(const Mark& mark, const Bytes& payload, const Now& now);
  static bool Apply(const Mark& mark, Marks& to);
  void AdvanceStable(const Now& now);
  void TrimLog();
  void ReleaseHeld(const Now& now);
  bool IsDue(const Held& held) const;

  WorkerKey self_;
  int number_;  // the entry's
  ReplicaOptions options_;

  uint64_t map_epoch_ = 0;
  PartitionMap::Entry entry_;
  Role role_ = Role::kNone;
  uint64_t proposed_ = 0;  // entry_.changed of the last proposal...
  Instant proposed_at_;    // ... and when

  uint64_t end_ = 0;
  uint64_t durable_ = 0;       // D3
  bool is_recovered_ = false;  // and has had no part since
  Marks applied_;              // of all up to end_
  // Backup: of which primary, and which copy of it, the content is.
  uint64_t content_epoch_ = 0;
  uint64_t content_fill_ = 0;
  Receiving receiving_;

  // --- As primary. ---
  Instant answers_from_;  // until then the former primary may answer
  WorkerKey former_;
  Peer backup_;
  Peer next_;              // is to take its place
  Instant hands_over_at_;  // since when it takes nothing new
  uint64_t fills_ = 0;
  std::deque<LogEntry> log_;  // (base_, end_]
  uint64_t base_ = 0;
  int64_t log_bytes_ = 0;
  uint64_t stable_ = 0;
  Marks stable_marks_;  // of all up to stable_
  // The log's end and the marks when this server took the role; they are not in
  // the log.
  uint64_t taken_at_ = 0;
  Marks taken_marks_;
  uint64_t unrepeatable_ = 0;  // reads wait until it is stable
  std::vector<Held> held_;

  std::vector<Action> actions_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_REPLICA_H_
