// What clients, primaries and backups of a partition say to each other.

#ifndef WEFT_PS_CORE_REPLICATION_H_
#define WEFT_PS_CORE_REPLICATION_H_

#include <cstdint>
#include <map>
#include <vector>

#include "weft/base/bytes.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/sequence_window.h"

namespace weft::ps {

// How long a client keeps a push, and when a server says that it has it:
// docs/replication.md. By table.
enum class Durability { kD0, kD1, kD2, kD3 };

// Whether nobody will serve what a table of that level had in the entry.
inline bool IsLostAt(Durability level, const PartitionMap::Entry& entry) {
  return IsNone(entry.primary) &&
         (level != Durability::kD3 || entry.heirs.empty());
}

// The client as which a worker, or all shards of a synchronous table, push:
// one number at all servers of the job.
using ClientId = uint64_t;
inline constexpr ClientId kRounds = 0;

// Names the push of a log entry. In SYNC the pushes of kRounds are the rounds:
// number n is round n - 1.
struct Mark {
  ClientId client = kRounds;
  uint64_t sequence = 0;
  // All below it are stable or given up: the client will not send them again.
  uint64_t first = 1;
};

// Place in a partition's log: the epoch of the primary that wrote it, and its
// number, which counts on from one primary to the next.
struct Lsn {
  uint64_t epoch = 0;
  uint64_t n = 0;
};

struct LogEntry {
  Lsn lsn;
  Mark mark;
  Bytes payload;  // what is applied: a push, or the sum of a round
};

using Marks = std::map<ClientId, SequenceWindow>;

// A push to one partition, or with sequence 0 the question what is stable.
struct PushRequest {
  uint64_t token = 0;  // the caller's, comes back in the answer
  int entry = 0;       // of the map
  WorkerKey to;        // the incarnation that is meant
  uint64_t epoch = 0;  // of the entry, as the client knows it
  Mark mark;
  // Answered once it is stable, whatever the level: other pushes, of this
  // client or of another one, may be right only after it.
  bool until_stable = false;
};

struct ReadRequest {
  uint64_t token = 0;
  int entry = 0;
  WorkerKey to;
  uint64_t epoch = 0;
  // The client's pushes up to this one are to be seen.
  ClientId client = kRounds;
  uint64_t through = 0;
};

enum class Code {
  kOk,      // applied, now or before; read
  kStale,   // another server has the role, or it has it since another epoch
  kFenced,  // it has the role, but may not answer now: ask again soon
  kBusy,    // too much is not yet at the backup: ask again soon
  kBehind,  // read: a push that is to be seen has not come
  kTooFar,  // push: beyond the window; its client breaks the protocol
};

struct Answer {
  uint64_t token = 0;
  Code code = Code::kOk;
  int entry = 0;
  uint64_t epoch = 0;     // as in the request
  uint64_t sequence = 0;  // as in the request
  // The client's pushes up to this one are stable. Holds for ever, whoever has
  // the role later.
  uint64_t stable_through = 0;
  uint64_t map_epoch = 0;  // that the server knows
};

// Between primary and backup of one partition.
struct ReplicaMessage {
  enum class Kind {
    kFill,    // primary: begin anew from this copy, of position `n`; a piece
    kAppend,  // primary: these entries follow each other
    kAck,     // backup: it has all up to `n`, or, of a copy of which not all
              // has come, the first `piece` of `pieces`
    kStale,   // to a primary: its epoch is over
  };
  Kind kind = Kind::kAck;
  int entry = 0;
  uint64_t map_epoch = 0;  // that the sender knows
  uint64_t epoch = 0;      // of the primary
  uint64_t fill = 0;       // which copy of that primary the backup began from
  uint64_t n = 0;
  // kFill: which piece of how many; kAck, see there: else 0 of 0.
  uint32_t piece = 0;
  uint32_t pieces = 0;
  std::vector<LogEntry> entries;  // kAppend
  Marks marks;  // kFill, with the last piece; the driver adds the rows
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_REPLICATION_H_
