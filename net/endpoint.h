// Endpoint: a rank's one address, on which every service is registered.
//
// Each endpoint also serves grpc.health.v1.Health (Check, Watch) and, over unix
// sockets or to role admin, grpc.reflection.v1alpha.

#ifndef WEFT_NET_ENDPOINT_H_
#define WEFT_NET_ENDPOINT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/bytes.h"
#include "weft/net/loop/loop.h"
#include "weft/net/stream.h"
#include "weft/net/tls/peer.h"
#include "weft/net/tls/roles.h"

namespace weft::net {

// One unary call that waits for its answer. A handler may keep it and answer
// later, from any thread. Dropped unanswered, it answers kInternal.
//
// Thread-safety: one thread at a time.
class IncomingCall {
 public:
  class State;
  explicit IncomingCall(std::shared_ptr<State> state);
  IncomingCall(IncomingCall&&) noexcept;
  IncomingCall& operator=(IncomingCall&&) noexcept;
  ~IncomingCall();

  const Peer& peer() const;
  const std::string& method() const;
  const Metadata& metadata() const;
  // What the caller still waits; infinite if it set no deadline.
  absl::Duration remaining() const;
  // Its caller went away or gave up: an answer reaches nobody.
  bool is_cancelled() const;
  // Runs `fn` when that happens, on the Loop; at once if it has. Not after the
  // answer.
  void OnCancel(absl::AnyInvocable<void() &&> fn);

  const Slices& request() const;
  Slices TakeRequest();

  // REQUIRES: not answered yet.
  void Reply(Slices response);
  void Reply(absl::Status error);

 private:
  std::shared_ptr<State> state_;
};

// What one endpoint lets in at a time. Beyond it callers get
// kResourceExhausted.
struct AdmissionLimits {
  int64_t max_calls = 4096;
  int64_t max_calls_per_peer = 256;
  int64_t max_bytes = int64_t{1} << 30;  // of requests that wait for an answer
  int64_t max_bytes_per_peer = int64_t{256} << 20;
};

struct EndpointOptions {
  std::string name;  // ps0; what a Channel's options name
  // unix:/path or host:port; port 0 is chosen by the system.
  std::string listen;
  // What address() says; empty: as listened, with the real port.
  std::string advertise;
  AdmissionLimits limits;

  // How often it asks its own address, by a new connection, whether it serves.
  // After `probe_misses` in a row without an answer the listener is made anew;
  // if that cannot be done, or after as many misses again, `on_unreachable`
  // learns why, on the Loop: a program may end there, for its supervisor to
  // start another. Zero: never.
  absl::Duration probe_every = absl::Seconds(5);
  int probe_misses = 3;
  std::function<void(const absl::Status& why)> on_unreachable = nullptr;
};

// Thread-safety: register from one thread before Start(); the rest is
// thread-safe.
class Endpoint {
 public:
  // Handlers run on the Loop: hand longer work to an executor.
  using UnaryHandler = absl::AnyInvocable<void(IncomingCall call)>;
  // Returns the observer of a new stream, or the error that refuses it. The
  // stream may be written already here; OnMessage comes after the return. Keep
  // `stream` as long as it shall live.
  using StreamAcceptor =
      absl::AnyInvocable<absl::StatusOr<std::shared_ptr<StreamObserver>>(
          std::unique_ptr<Stream> stream)>;

  // Listens, so that address() is known, and serves after Start().
  //   kInvalidArgument     a name that is not 1 to 63 of [A-Za-z0-9_-], or an
  //                        address that cannot be read
  //   kAlreadyExists       the Loop has an endpoint of that name
  //   kFailedPrecondition  TCP without certificates, a socket directory that
  //                        others may enter, or the Loop was shut down
  //   kUnavailable         the address is in use
  static absl::StatusOr<std::unique_ptr<Endpoint>> Open(
      Loop& loop, EndpointOptions options);

  // Shuts down with no grace if Shutdown() was not called.
  ~Endpoint();

  // `method` is a gRPC path: /weft.rpc.v1.Worker/Call. Peers of other roles
  // than `roles` get kPermissionDenied. REQUIRES: not started, not registered
  // yet.
  void RegisterUnary(absl::string_view method, UnaryHandler handler,
                     Roles roles = Roles::Members());
  void RegisterStream(absl::string_view method, StreamAcceptor acceptor,
                      Roles roles = Roles::Members());
  // The roles that may call each method, as registered.
  std::map<std::string, Roles> Access() const;

  absl::Status Start();

  const std::string& name() const;
  const std::string& address() const;

  // What health checks answer; SERVING after Start().
  void SetServing(bool serving);

  // Refuses new calls, waits for those in progress, and after `timeout` ends
  // them with kUnavailable: then kDeadlineExceeded. Idempotent. REQUIRES: not
  // in a callback of the Loop.
  absl::Status Shutdown(absl::Duration timeout);

  class Core;

 private:
  explicit Endpoint(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

}  // namespace weft::net

#endif  // WEFT_NET_ENDPOINT_H_
