// Mesh: the streams between the ranks of one group, one for each pair.
//
// The lower rank of a pair opens it; each end first says who it is, of which
// group. A rank keeps what has come and was not asked for yet; how much it may
// be is bounded by acks: of an operation's messages Inbox::kPartWindow bytes,
// of Sends `max_unasked_bytes` are on their way to a rank that does not take
// them.

#ifndef WEFT_COLLECTIVES_BACKENDS_STREAM_MESH_H_
#define WEFT_COLLECTIVES_BACKENDS_STREAM_MESH_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/collectives/algorithms/piece_reader.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/stream/frame.h"
#include "weft/collectives/backends/stream/inbox.h"
#include "weft/collectives/called_operations.h"
#include "weft/collectives/diagnosis.h"
#include "weft/collectives/operation.h"
#include "weft/transport/transport.h"

namespace weft::collectives {

struct MeshOptions {
  std::string group;  // its name, unique among those of the transport
  int rank = 0;
  int size = 1;
  // names[r]: what rank r is called in messages, and what it must prove to be
  // where connections prove anything. Empty: "rank r".
  std::vector<std::string> names;
  int64_t max_unasked_bytes = kMostUnaskedBytes;
  // Of a peer that does not even answer: it is taken for dead.
  absl::Duration dead_after = absl::Seconds(10);
  DiagnosisOptions diagnosis;
};

// A collective operation as it goes on over a mesh. Times are of the wait that
// has begun last.
struct Progress {
  const Operation& operation;
  std::vector<uint64_t> sent = {};  // messages, to each rank
  Instant waits_since = {};
  Instant report_at = {};
  Instant ask_at = {};
  bool is_waiting = false;
};

// Thread-safety: thread-safe; Begin and Exchange, one thread at a time.
class Mesh final : public std::enable_shared_from_this<Mesh> {
 public:
  // `driver` must outlive it.
  Mesh(MeshOptions options, Driver& driver);

  const MeshOptions& options() const { return options_; }
  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  Driver& driver() const { return driver_; }

  // --- The life of a group. ---

  // This rank has opened a stream to `peer`, a higher rank.
  void OnOpened(int peer, std::shared_ptr<transport::Connection> connection)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until all ranks have said who they are, or until the group is
  // aborted: then it is OK, and health() is not. kDeadlineExceeded and
  // kUnavailable name those who have not. `open` opens the stream to a higher
  // rank once more, where it was refused.
  absl::Status AwaitAll(Instant deadline,
                        const std::function<void(int peer)>& open)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Called once when the group is aborted, on any thread. Must not block.
  void OnAbort(std::function<void(const absl::Status&)> hook)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Notifies the others, and releases streams once they have left too. A
  // difference between the ranks that is found from here on, or was and nobody
  // has heard of it, is reported.
  void Leave() ABSL_LOCKS_EXCLUDED(mu_);
  // After Leave: waits until the others have received all that this rank has
  // sent, or have ended; at most until `deadline`. If streams end before, peers
  // miss what was under way: the last message of a barrier.
  void AwaitDelivery(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // After Leave: whether all frames have been taken by the connections, or have
  // none, and each other rank has left too or knows that this one has.
  bool IsSettled() const ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether `peer` has said that it leaves.
  bool HasLeft(int peer) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status health() const ABSL_LOCKS_EXCLUDED(mu_);

  // --- Operations. ---

  // Says that this rank has called it; kFailedPrecondition if another rank has
  // called another under this number.
  absl::Status Begin(const Operation& operation) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until every rank to which this one has sent messages of operations
  // has compared them with what it has called itself, and has found no
  // difference: what others have to say against an earlier operation has come.
  absl::Status AwaitCompared(Progress& progress) ABSL_LOCKS_EXCLUDED(mu_);
  // Says to all that this rank refuses it.
  void Refuse(const Operation& operation, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);

  // What is known of that, "" if all have; asks all ranks, whose answers the
  // next call knows.
  std::string AskWhoHasNotCalled(const Operation& operation)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Of an operation whose elements travel outside of this mesh: waits, at most
  // until `until`, for why it cannot end: why the group was aborted, or which
  // rank has left or ended. OK if neither is known.
  absl::Status AwaitFailure(const Operation& operation, Instant until)
      ABSL_LOCKS_EXCLUDED(mu_);

  struct Outgoing {
    int to = 0;
    absl::Span<const std::byte> bytes;
  };
  struct Incoming {
    int from = 0;
    int64_t bytes = 0;
    std::byte* memory = nullptr;    // for them, or:
    PieceReader* reader = nullptr;  // takes them
  };
  // Sends one message and takes one, either of which may be absent. Errors as
  // Backend::Run.
  absl::Status Exchange(Progress& progress, const absl::optional<Outgoing>& out,
                        const absl::optional<Incoming>& in)
      ABSL_LOCKS_EXCLUDED(mu_);

  // --- Sends and receives: as in Backend. ---

  absl::StatusOr<bool> Advance(Transfer& transfer) ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t transfer_events() const { return events_.load(); }
  void AwaitTransfers(uint64_t seen, Instant until) ABSL_LOCKS_EXCLUDED(mu_);

  // --- For the ends of connections. ---

  // A peer has opened a stream, and its first message, which OnMessage gets
  // next, says that it is this rank. kPermissionDenied: the connection proves
  // that it is not; kAlreadyExists: that rank has a stream already. The stream
  // is then the caller's to end, and the group goes on.
  absl::Status OnHello(int peer,
                       std::shared_ptr<transport::Connection> connection)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnMessage(int peer, const Slices& message) ABSL_LOCKS_EXCLUDED(mu_);
  void OnWritten(int peer) ABSL_LOCKS_EXCLUDED(mu_);
  void OnClosed(int peer, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Of the process: its streams are gone.
  void Drop() ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing more will come or go: it has left, and so have all others.
  bool is_over() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Chunks of Sends that wait to be written, at most, to one rank.
  static constexpr size_t kMostQueued = 16;
  // Chunks of an operation that wait to be written, at most, to one rank: each
  // is copied when the one before it is written, so that it is in the core's
  // cache when the socket takes it.
  static constexpr size_t kMostPartsQueued = 1;

  struct Peer {
    explicit Peer(int64_t most_kept) : inbox(most_kept) {}

    std::shared_ptr<transport::Connection> connection;
    bool is_writing = false;
    struct Outgoing {
      Slices message;
      bool is_answer;
    };
    std::deque<Outgoing> outbox;
    int answers = 0;          // of these
    bool has_stream = false;  // or had one
    bool has_said_hello = false;
    bool has_left = false;
    bool knows_of_leave = false;  // it has all that this rank has sent
    absl::Status gone;            // why it says no more
    Instant heard;
    Inbox inbox;
    bool has_uncompared = false;        // parts were sent since it was asked
    uint64_t asked = 0, answered = 0;   // of AwaitCompared
    int64_t parts_under_way = 0;        // bytes sent, and no ack has come
    bool awaits_room = false;           // in the outbox, for a part
    const Transfer* sending = nullptr;  // the one that is half sent
    uint64_t transfers_sent = 0;
    int64_t transfers_under_way = 0;
  };

  // Why the group was aborted, for a caller to hear; OK: it was not.
  absl::Status Health() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    is_heard_ = is_heard_ || !aborted_.ok();
    return aborted_;
  }
  // Queues a frame; Flush, which every function calls after it has released the
  // lock, writes what was queued.
  void Post(int peer, Frame frame, bool is_answer = false)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // As Post; an error if `peer` asks more than it reads.
  absl::Status Answer(int peer, Frame frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PostToAll(const Frame& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  void Pump(int peer) ABSL_LOCKS_EXCLUDED(mu_);
  Frame AbortFrame() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AbortLocked(const absl::Status& why, bool tell)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReportIfUnheard() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Wakes who waits for room in the outbox of `p`.
  void WakeIfThereIsRoom(const Peer& p) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // An error if `peer` must say no more.
  absl::Status TakeFrame(int peer, Frame frame)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeHello(int peer, const Frame& hello)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static absl::Status TakeAck(uint64_t bytes, int64_t& under_way);
  // Acknowledges what was taken of its parts, if that is due.
  void AckParts(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Compares it; an error if `peer` must say no more.
  absl::Status Record(int peer, Announcement announcement)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Frame OwnHello() const;
  std::string NameOf(int peer) const;
  static Frame FrameOf(Frame::Kind kind, const Announcement& mine,
                       uint64_t tag = 0);
  // What this rank has called, if that is the last.
  const Announcement* FindOwn(uint64_t sequence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Nothing more comes from it, for this reason.
  void OnGone(int peer, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets its stream go where nothing more is to be said or heard.
  void ReleaseIfOver(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The next chunk of a message, if the window has room for it.
  bool SendChunk(Progress& progress, const Outgoing& out, int64_t& sent)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Copies what has come, or hands it on.
  enum class Took { kNothing, kSome, kAll };
  absl::StatusOr<Took> TakeSome(Progress& progress, const Incoming& in)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Why nothing more will come from `peer`, or OK.
  absl::Status CheckPeers(const Operation& operation, int peer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AwaitProgress(Progress& progress, int peer, uint64_t seen)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::string DescribeWait(const Operation& operation, int peer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<bool> SendTransfer(Transfer& transfer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The first message of `from` with that tag, if it is whole.
  absl::StatusOr<std::optional<Message>> FindTransfer(const Transfer& transfer,
                                                      int from)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckTransferPeers(const Transfer& transfer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const MeshOptions options_;
  Driver& driver_;
  mutable Mutex mu_;
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mu_);
  std::vector<int> to_pump_ ABSL_GUARDED_BY(mu_);
  // Released by Flush, without the lock.
  std::vector<std::shared_ptr<transport::Connection>> to_release_
      ABSL_GUARDED_BY(mu_);
  CalledOperations called_ ABSL_GUARDED_BY(mu_);
  int untold_ ABSL_GUARDED_BY(mu_) = 0;  // operations since all were told
  uint64_t asked_ ABSL_GUARDED_BY(mu_) = 0;
  bool has_left_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  mutable bool is_heard_ ABSL_GUARDED_BY(mu_) = false;
  // A difference between the ranks that no caller here will hear of.
  bool is_report_due_ ABSL_GUARDED_BY(mu_) = false;
  bool is_hook_due_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void(const absl::Status&)> abort_hook_ ABSL_GUARDED_BY(mu_);
  std::vector<Promise<void>> waiters_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> events_{0};
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_STREAM_MESH_H_
