// Loop: the process's one completion queue, and who polls it.
//
// gRPC has one designated poller for a process, so every call, served or
// issued, goes through one queue, and at most one thread is inside it. A thread
// that waits through driver() takes the queue and polls itself: its reply costs
// no thread switch. Others park; whoever leaves hands the queue on. A
// background thread holds it while nobody waits. See docs/performance.md for
// what each hand-over costs.
//
// Memory that is shared with other processes of the host, and the sockets of
// streams within it (net/call/local_stream.h), are looked at by a second poller
// of the same kind; who waits, waits where the last event came.
//
// Callbacks of Loop, Endpoint, Channel and Stream run on whichever thread
// polls, one at a time, under InlineScope: a wait inside fails with
// kFailedPrecondition. They must be short.

#ifndef WEFT_NET_LOOP_LOOP_H_
#define WEFT_NET_LOOP_LOOP_H_

#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/net/tls/credentials.h"

namespace weft::telemetry {
class Telemetry;
}

namespace weft::net {

struct LoopOptions {
  Credentials credentials = Credentials::LocalOnly();
  // How often to look whether the files of the credentials have changed. New
  // connections use what is there.
  absl::Duration certificate_check = absl::Seconds(10);
  // Null: silent. Must outlive the Loop.
  telemetry::Telemetry* telemetry = nullptr;

  // How long a poller looks without sleeping after the last event. About one
  // wake-up of a halted core. Less counts as 10 us: to sleep and to be woken
  // takes more of both ends' cores.
  absl::Duration spin = absl::Microseconds(50);
  // Ranks on this host, this one included. Nobody spins when they outnumber the
  // cores.
  int ranks_on_host = 1;

  int64_t max_message_bytes = int64_t{256} << 20;  // of one message, both ways
  int64_t max_buffered_bytes = int64_t{2} << 30;   // of messages not whole yet
  int64_t max_metadata_bytes = 8 << 10;
  // Calls that are open at a time over one connection; more wait at their
  // caller. A caller that knows the limit and exceeds it loses the connection.
  int max_calls_per_connection = 256;
  // Failed calls, refused or cancelled, that one peer may have at once; a
  // quarter as many more each second. Beyond it the connection is cut, and the
  // peer's address waits a second before it may come again.
  int max_wasted_calls_per_peer = 1024;
  int read_chunk_bytes =
      4 << 20;  // of clients; the largest piece in which a socket is read

  absl::Duration keepalive_interval = absl::Seconds(10);
  absl::Duration keepalive_timeout = absl::Seconds(5);

  // The edge: what is refused before gRPC sees it.
  int world_size = 1;       // members expected; sets the default below
  int max_connections = 0;  // 0: 4 * world_size + 64
  int max_connections_per_address = 0;  // 0: three quarters of max_connections
  int max_handshakes = 16;  // handed to gRPC and without a call yet (TCP)
  absl::Duration handshake_timeout = absl::Seconds(5);
};

class MemoryWatch;

// Thread-safety: thread-safe.
class Loop {
 public:
  class Core;

  // kResourceExhausted: too few descriptors, threads or memory are left.
  static absl::StatusOr<std::unique_ptr<Loop>> Create(LoopOptions options = {});

  // Shuts down with no grace if Shutdown() was not called. REQUIRES: every
  // Endpoint and Channel is gone.
  ~Loop();

  // How a thread waits: by polling here. Futures of Channel carry it.
  Driver& driver();

  // Runs `fn` soon, in the order of posting. Dropped unrun (and destroyed)
  // after Shutdown.
  void Post(absl::AnyInvocable<void() &&> fn);

  // Runs `fn` once the steady clock has reached `when`, within about a
  // millisecond.
  using TimerId = int64_t;
  TimerId RunAt(Instant when, absl::AnyInvocable<void() &&> fn);
  // True if `fn` will not run.
  bool CancelTimer(TimerId id);

  // Ends calls that are open with kUnavailable after `timeout`, then stops the
  // threads. Always ok; idempotent. REQUIRES: not in a callback of the Loop.
  absl::Status Shutdown(absl::Duration timeout);

  const Credentials& credentials() const;  // as at the beginning
  // Uses others for new connections: see Tls::Renew. kFailedPrecondition if the
  // Loop has none.
  absl::Status RenewCredentials(const Credentials& credentials);
  // Where shared memory is looked at. Outlives the Loop, and then refuses.
  std::shared_ptr<MemoryWatch> memory_watch() const;
  telemetry::Telemetry& telemetry() const;

  Core& core() { return *core_; }  // for net itself, which shares it

 private:
  explicit Loop(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

}  // namespace weft::net

#endif  // WEFT_NET_LOOP_LOOP_H_
