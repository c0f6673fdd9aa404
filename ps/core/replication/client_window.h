// ClientWindow: the pushes of one client to the partitions of one table, from
// when they are made until no single death can lose them.
//
// It numbers the pushes to each partition, sends them to whoever has the
// partition's role, and keeps them until they are stable. Where another server
// takes the role it sends all that are left again, in order; that server
// applies those that it has not. It never has more outstanding than servers
// remember (SequenceWindow), nor more bytes than `most_bytes`: whoever pushes
// waits for room.
//
// For a SYNC table a window is that of one shard of the data, under the number
// of the round plus one as sequence.
//
// Pure: no lock, clock, thread or I/O. Thread-safety: one thread at a time.

#ifndef WEFT_PS_CORE_CLIENT_WINDOW_H_
#define WEFT_PS_CORE_CLIENT_WINDOW_H_

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/replication/replication.h"

namespace weft::ps {

struct ClientWindowOptions {
  ClientId client = kRounds;
  // At D0 a push is forgotten once it is answered.
  Durability level = Durability::kD1;
  uint64_t first_sequence = 1;
  // Outstanding pushes of a partition.
  uint64_t most_outstanding = SequenceWindow::kWidth;
  int64_t most_bytes = int64_t{1} << 30;  // of all partitions
  absl::Duration retry_after =
      absl::Milliseconds(20);                      // a refusal, or an error
  absl::Duration resend_after = absl::Seconds(1);  // no answer
  // What has been answered, but is not known to be stable, is asked about.
  absl::Duration ask_every = absl::Milliseconds(50);
};

class ClientWindow {
 public:
  // For a table of `partitions` partitions. REQUIRES: map.epoch() > 0.
  ClientWindow(ClientWindowOptions options, int partitions, PartitionMap map);

  struct Action {
    enum class Kind {
      kSend,      // `request` with `payload`; sequence 0: what is stable?
      kAnswered,  // push `request.mark.sequence` is acknowledged: tell its
                  // caller
      kStable,    // all pushes up to that one are on all copies
      kLearnMap,  // there is a newer one than map().epoch()
      kBroken,    // that push was refused for good: the server is no such one
    };
    Kind kind = Kind::kSend;
    int partition = 0;
    PushRequest request;
    Bytes payload;
  };
  std::vector<Action> TakeActions() { return std::exchange(actions_, {}); }

  // Whether a push of so many bytes may be made. A push bigger than most_bytes
  // may if there is no other.
  bool HasRoom(int partition, int64_t bytes) const;
  // Returns its number. REQUIRES: HasRoom.
  uint64_t Push(int partition, Bytes payload, Instant now);

  // Maps older than the newest one change nothing.
  void OnMap(const PartitionMap& map, Instant now);
  void OnAnswer(int partition, const Answer& answer, Instant now);
  // A call for `request` failed, and nobody knows what became of it.
  void OnFailure(int partition, const PushRequest& request, Instant now);
  // To be called about every 20 ms.
  void OnTick(Instant now);

  const PartitionMap& map() const { return map_; }
  // Where to read a partition; `token` is for the caller to set.
  ReadRequest Read(int partition) const;
  // Whether nothing is outstanding, so that a client may close.
  bool IsStable() const;
  int64_t outstanding_bytes() const { return bytes_; }
  uint64_t outstanding(int partition) const {
    return partitions_[partition].frames.size();
  }
  // Whether all copies of the partition are lost: what waits will not end. At
  // D3 not before no server is left that may have it on disk.
  bool IsLost(int partition) const {
    return IsLostAt(options_.level, EntryOf(partition));
  }
  // "partition 3: pushes 5 to 9 wait for server 2@1.4, epoch 7 of map 9"; for
  // errors of waits.
  std::string DescribeWait(int partition) const;

  // For explorations: equal texts, equal states.
  std::string Snapshot(Instant now) const;

 private:
  struct Frame {
    uint64_t sequence = 0;
    Bytes payload;
    bool is_sent = false;      // to the server that has the role
    bool is_applied = false;   // that server has said so
    bool is_answered = false;  // to its caller
  };
  struct Partition {
    uint64_t last = 0;  // sequence
    std::deque<Frame> frames;
    uint64_t epoch = 0;       // of the entry, to which is_sent belongs
    bool is_refused = false;  // nothing is sent before retry_at
    Instant retry_at;
    Instant resend_at;
    Instant ask_at;
  };

  Action& Add(Action::Kind kind, int partition, uint64_t sequence);
  void AddSend(int partition, uint64_t sequence, Bytes payload);
  Frame* Find(int partition, uint64_t sequence);
  const PartitionMap::Entry& EntryOf(int partition) const {
    return map_.entry(map_.EntryOf(partition));
  }
  void SendUnsent(int partition, Instant now);
  void Acknowledge(int partition, Frame& frame);
  void Release(int partition, uint64_t through);
  void Refused(int partition, uint64_t sequence, Instant now);
  void Retry(int partition, Instant now);

  ClientWindowOptions options_;
  PartitionMap map_;
  std::vector<Partition> partitions_;
  int64_t bytes_ = 0;
  std::vector<Action> actions_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_CLIENT_WINDOW_H_
