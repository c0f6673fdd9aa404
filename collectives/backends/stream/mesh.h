// Mesh: the streams between the ranks of one group, one for each pair, which
// the lower rank opens.
//
// What is said over them, and what a rank may believe, is GroupCore's: this
// class has the lock, the streams and what waits to be written to them, and the
// waits of callers.

#ifndef WEFT_COLLECTIVES_BACKENDS_STREAM_MESH_H_
#define WEFT_COLLECTIVES_BACKENDS_STREAM_MESH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
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
#include "weft/collectives/core/group_core.h"
#include "weft/collectives/diagnosis.h"
#include "weft/collectives/group_endpoint.h"
#include "weft/collectives/operation.h"
#include "weft/transport/transport.h"

namespace weft::collectives {

struct MeshOptions : GroupCoreOptions {
  MeshOptions() = default;
  MeshOptions(const GroupTerms& terms, int rank, int size);

  DiagnosisOptions diagnosis;
};

// A collective operation as it goes on over a mesh. Times are of the wait that
// has begun last.
struct Progress {
  const Operation& operation;
  std::vector<uint64_t> sent = {};  // messages, to each rank
  WaitReports reports = {};         // of a wait, until something is moved
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
  // `connection` leads to `peer`, as is known without its saying so.
  void Join(int peer, std::shared_ptr<transport::Connection> connection)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until all ranks have said who they are, or until the group is
  // aborted: then it is OK, and health() is not. kDeadlineExceeded and
  // kUnavailable name those who have not. `open` opens the stream to a higher
  // rank once more, where it was refused. An error of `check`, which may be
  // null, ends the wait and is its result.
  absl::Status AwaitAll(Instant deadline,
                        const std::function<void(int peer)>& open,
                        const std::function<absl::Status()>& check = nullptr)
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
  // As in Backend.
  void EndShrink(uint64_t key, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckShrink(uint64_t key) const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether `peer` has said that it leaves.
  bool HasLeft(int peer) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status health() const ABSL_LOCKS_EXCLUDED(mu_);
  // As in Backend.
  absl::Status CheckRanks() const ABSL_LOCKS_EXCLUDED(mu_);

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

  // As in Backend.
  void AskPeer(int peer) ABSL_LOCKS_EXCLUDED(mu_);
  std::string DescribePeer(int peer, absl::string_view lacks,
                           Instant since) const ABSL_LOCKS_EXCLUDED(mu_);

  // For an operation whose elements travel outside of this mesh. Waits, at most
  // until `until`, for the reason why it cannot end: why the group was aborted,
  // or which rank has left or ended. OK if neither is known.
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
  // The wait is over: with `status`, if that is an error. Reports it, if the
  // wait was reported.
  void EndWait(Progress& progress, const absl::Status& status);
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
  // The process ends, and its streams are gone.
  void Drop() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether nothing more will come or go: this rank has left, and so have all
  // others.
  bool is_over() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Chunks of Sends that wait to be written, at most, to one rank.
  static constexpr size_t kMostQueued = 16;
  // Chunks of an operation that wait to be written, at most, to one rank: each
  // is copied when the one before it is written, so that it is in the core's
  // cache when the socket takes it.
  static constexpr size_t kMostPartsQueued = 1;

  struct Peer {
    std::shared_ptr<transport::Connection> connection;
    bool is_writing = false;
    struct Outgoing {
      Slices message;
      bool is_answer;
    };
    std::list<Outgoing> outbox;  // a list takes nothing while it is empty
    int answers = 0;             // of these
    bool awaits_room = false;    // in the outbox, for a part
    const Transfer* sending = nullptr;  // the one that is half sent
  };

  // Does what the core asks for, as far as that may be done under the lock.
  void Act() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Post(int peer, Slices message, bool is_answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Release(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The rest, without it: every function calls it last.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  void Pump(int peer) ABSL_LOCKS_EXCLUDED(mu_);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Wakes who waits for room in the outbox of `p`.
  void WakeIfThereIsRoom(const Peer& p) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The next chunk of a message, if the window has room for it.
  bool SendChunk(Progress& progress, const Outgoing& out, int64_t& sent)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Copies what has come, or hands it on.
  enum class Took { kNothing, kSome, kAll };
  absl::StatusOr<Took> TakeSome(Progress& progress, const Incoming& in)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitProgress(Progress& progress, int peer, uint64_t seen)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool SendTransfer(Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const MeshOptions options_;
  Driver& driver_;
  mutable Mutex mu_;
  mutable GroupCore core_ ABSL_GUARDED_BY(mu_);
  GroupCore::Actions actions_ ABSL_GUARDED_BY(mu_);  // Act's, for its memory
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mu_);
  std::vector<int> to_pump_ ABSL_GUARDED_BY(mu_);
  // Released by Flush, without the lock.
  std::vector<std::shared_ptr<transport::Connection>> to_release_
      ABSL_GUARDED_BY(mu_);
  std::function<void(const absl::Status&)> abort_hook_ ABSL_GUARDED_BY(mu_);
  // What the hook and the user are still to hear.
  std::optional<absl::Status> hook_due_ ABSL_GUARDED_BY(mu_);
  std::string report_due_ ABSL_GUARDED_BY(mu_);
  std::vector<Promise<void>> waiters_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> events_{0};
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_STREAM_MESH_H_
