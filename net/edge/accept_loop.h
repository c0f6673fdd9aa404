// AcceptLoop: the edge guard. It accepts connections for a Loop's endpoints and
// hands over those that are fit.
//
// gRPC's own listener ends when descriptors run out, has no cap on
// connections, and gives a silent one two minutes. Here a connection waits, at
// no cost to gRPC, until it has said all that it says before it wants an
// answer; and no more than `max_handshakes` TCP connections are with gRPC
// without having made a call. Which one gets a place, and which makes room when
// descriptors or places run out: see PendingConnections. One that has made a
// call stays, unless it floods us with calls, or over TLS with frames of HTTP/2
// (FrameGuard).

#ifndef WEFT_NET_EDGE_ACCEPT_LOOP_H_
#define WEFT_NET_EDGE_ACCEPT_LOOP_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/net/edge/frame_guard.h"
#include "weft/net/edge/listener.h"
#include "weft/net/edge/pending_connections.h"
#include "weft/net/edge/tls_frames.h"
#include "weft/net/refusal_log.h"
#include "weft/telemetry/telemetry.h"

namespace weft::net {

// As LoopOptions has them, for a world of one.
struct AcceptLoopOptions {
  int max_connections = 68;
  int max_connections_per_address = 51;  // a unix socket's count as of one
  int max_handshakes = 16;               // under way; others wait
  // For a connection to begin, and then to shake hands.
  absl::Duration handshake_timeout = absl::Seconds(5);
  // How many calls gRPC has open over the connections from these peers; null:
  // no check. A peer with four times `max_calls_per_connection` is cut off.
  std::function<std::map<std::string, int64_t>(const std::set<std::string>&)>
      open_streams = nullptr;
  int max_calls_per_connection = 256;
  // Limits of peers over TLS: a flood of frames ends their connection.
  FrameGuard::Options frames = {};
  // These must outlive the loop.
  telemetry::Telemetry* telemetry = nullptr;  // null: silent
  RefusalLog* refusal_log = nullptr;          // null: silent
  const Clock* clock = nullptr;               // null: SteadyClock()
};

// Thread-safety: thread-safe.
class AcceptLoop {
 public:
  // Owns the descriptor from then on. Runs on the loop's own thread, and must
  // not call the AcceptLoop.
  using Deliver = std::function<void(int fd)>;

  static absl::StatusOr<std::unique_ptr<AcceptLoop>> Create(
      AcceptLoopOptions options);
  ~AcceptLoop();  // closes what was not handed over

  // Accepts no more. From one thread at a time; idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // What a connection must begin with: a ClientHello of TLS 1.2 or newer, in
  // one record, or the preface of HTTP/2. It is handed over once that is whole;
  // whatever else comes to kTls is refused before a byte of it reaches gRPC.
  enum class Speaks { kTls, kHttp2 };
  // Accepts from `listener` until Remove, which returns its last Deliver done.
  // The listener is owned here. Connections that begin with kLocalProtocol go
  // to `deliver_local`, if there is one.
  absl::Status Add(Listener listener, Speaks speaks, Deliver deliver,
                   Deliver deliver_local = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const Address& address) ABSL_LOCKS_EXCLUDED(mu_);

  // A call came over the connection from `peer` (ip:port): it has shaken hands.
  void MarkServed(absl::string_view peer) ABSL_LOCKS_EXCLUDED(mu_, shaking_mu_);

  // The addresses, without ports, of the connections of TCP that shake hands
  // now, or have ended that a moment ago. May be called from within a
  // handshake.
  std::vector<std::string> Handshaking() ABSL_LOCKS_EXCLUDED(shaking_mu_);

  // Ends the connection from `peer` (ip:port), whose calls are too many, and
  // has its address wait for a while before others of it begin. `limit` and
  // `why` are written down once.
  void CutOff(absl::string_view peer, absl::string_view limit,
              const std::string& why) ABSL_LOCKS_EXCLUDED(mu_);

  // An address waits for that.
  bool IsHoldingBack() ABSL_LOCKS_EXCLUDED(mu_);

  // That are open, and how many may be.
  int connections() ABSL_LOCKS_EXCLUDED(mu_);
  int max_connections() const { return options_.max_connections; }

 private:
  using Id = PendingConnections::Id;
  struct Connection {
    int fd;
    ino_t inode;  // tells a descriptor that gRPC closed from its successor
    std::string address;  // without port; "unix" for unix sockets
    std::string peer;     // ip:port
    int listener;
    bool handed_over = false;
    bool cut_off = false;
    int64_t heard = 0;  // bytes, at the last look
    // What TLS reads and writes, once the connection is handed over.
    std::shared_ptr<const TlsFrames> frames = nullptr;
  };
  struct Source {
    Listener listener;
    Speaks speaks;
    Deliver deliver;
    Deliver deliver_local;  // may be null
  };
  // `kind` as the refusal_log takes it.
  struct Refusal {
    std::string kind;
    std::string why;
  };

  class Floods;  // that gRPC's threads have found

  AcceptLoop(const AcceptLoopOptions& options, int epoll, int wake,
             int reserve);

  void Run();
  void EndFloods() ABSL_LOCKS_EXCLUDED(mu_);
  bool IsWatched(const Connection& connection) const;
  bool IsWatching() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return watched_ > 0 && options_.open_streams != nullptr;
  }
  void Watch() ABSL_LOCKS_EXCLUDED(mu_);
  std::set<std::string> FindBusyPeers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // REQUIRES: IsWatched(connection).
  void CutOff(Connection& connection, const Refusal& refusal,
              absl::Duration held_back) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `who`: the name in its certificate, if any.
  void CountFlood(const Connection& connection, const std::string& who)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int RoundTimeoutMs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Accept(int listener) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AcceptOne(int listener) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SurviveExhaustion(int listener) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Admit(int fd, int listener) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsFull() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsFullAt(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Refusal> MakeRoomFor(int fd, const std::string& address,
                                     bool is_unix)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EvictFor(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Hear(Id id, uint32_t events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HandOver(Id id, bool is_local = false)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DeliverTls(Id id, const Source& source)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DeliverReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SweepHandshakes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsGone(const Connection& connection) const;
  void Expire() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends `victim`, if there is one, for the place that `limit` denies to
  // another.
  bool Evict(std::optional<Id> victim, const char* limit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Close(Id id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(Id id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refuse(const Refusal& refusal, const std::string& peer);
  void NoteHandshake(const std::string& peer) ABSL_LOCKS_EXCLUDED(shaking_mu_);
  int CountOf(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Instant Now() const { return clock_.Now(); }
  void Wake();

  const AcceptLoopOptions options_;
  const Clock& clock_;
  const int epoll_;
  const int wake_;
  telemetry::Telemetry& telemetry_;
  const std::shared_ptr<Floods> floods_;
  std::thread thread_;

  std::atomic<bool> any_pending_{false};  // spares MarkServed the lock

  Mutex mu_;
  // Given up for a moment when descriptors run out.
  int reserve_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Id next_id_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<Id, Connection> connections_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int> counts_ ABSL_GUARDED_BY(mu_);  // by address
  PendingConnections pending_ ABSL_GUARDED_BY(mu_);
  Instant swept_ ABSL_GUARDED_BY(mu_);
  Instant next_watch_ ABSL_GUARDED_BY(mu_);
  int64_t watches_ ABSL_GUARDED_BY(mu_) = 0;
  int watched_ ABSL_GUARDED_BY(mu_) = 0;  // connections of TCP at gRPC
  std::map<int, Source> sources_ ABSL_GUARDED_BY(mu_);
  bool warned_of_tls_ ABSL_GUARDED_BY(mu_) = false;
  // In the metric of floods.
  std::set<std::string> flooders_ ABSL_GUARDED_BY(mu_);

  // Taken within mu_, and by handshakes, which may run within it.
  Mutex shaking_mu_;
  std::map<std::string, Instant> shaking_ ABSL_GUARDED_BY(shaking_mu_);
};

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_ACCEPT_LOOP_H_
