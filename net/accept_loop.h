// AcceptLoop: the edge guard. It accepts connections for a Loop's endpoints and
// hands over those that are fit.
//
// gRPC's own listener stops for good when descriptors run out, has no cap on
// connections, and gives a silent one two minutes. Here a connection waits, at
// no cost to gRPC, until it has said its first byte; the oldest silent one
// makes room when descriptors or places run out; and no more than
// `max_handshakes` TCP connections are with gRPC without having made a call.

#ifndef WEFT_NET_ACCEPT_LOOP_H_
#define WEFT_NET_ACCEPT_LOOP_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/net/audit.h"
#include "weft/net/listener.h"

namespace weft::net {

// As LoopOptions has them, for a world of one.
struct AcceptLoopOptions {
  int max_connections = 68;
  int max_connections_per_address = 51;  // a unix socket's count as of one
  int max_handshakes = 16;               // under way; others wait
  // For a connection to say something, and then to shake hands.
  absl::Duration handshake_timeout = absl::Seconds(5);
  Audit* audit = nullptr;  // null: silent; else it must outlive the loop
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

  // What a connection must begin with. Whatever else comes to kTls (plain text,
  // TLS 1.1 and older) is refused before a byte of it reaches gRPC.
  enum class Speaks { kTls, kAnything };
  // Accepts from `listener` until Remove, which returns its last Deliver done.
  // The listener is owned here.
  absl::Status Add(Listener listener, Speaks speaks, Deliver deliver)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const Address& address) ABSL_LOCKS_EXCLUDED(mu_);

  // A call came over the connection from `peer` (ip:port): it has shaken hands.
  void MarkServed(absl::string_view peer) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class State { kSilent, kReady, kDelivered, kServed };
  struct Connection {
    int fd;
    ino_t inode;  // tells a descriptor that gRPC closed from its successor
    std::string address;  // without port; "unix" for unix sockets
    std::string peer;     // ip:port
    State state;
    Instant since;
    int listener;
  };
  struct Source {
    Listener listener;
    Speaks speaks;
    Deliver deliver;
  };
  // `kind` as the audit takes it.
  struct Refusal {
    const char* kind;
    std::string why;
  };
  using Id = int64_t;

  AcceptLoop(AcceptLoopOptions options, int epoll, int wake, int reserve);

  void Run();
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
  void BecomeReady(Id id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DeliverReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireSilent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // For the place that `limit` denies to another; only at `address`, if given.
  bool EvictOldestSilent(const char* limit,
                         std::optional<absl::string_view> address = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Close(Id id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refuse(const Refusal& refusal, const std::string& peer);
  int CountOf(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int Handshakes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Wake();

  const AcceptLoopOptions options_;
  const int epoll_;
  const int wake_;
  std::thread thread_;

  std::atomic<bool> any_unserved_{false};  // spares MarkServed the lock

  Mutex mu_;
  // Given up for a moment when descriptors run out.
  int reserve_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Id next_id_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<Id, Connection> connections_ ABSL_GUARDED_BY(mu_);  // oldest first
  std::map<int, Source> sources_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::net

#endif  // WEFT_NET_ACCEPT_LOOP_H_
