// Transport: opens and accepts connections, ordered pipes of messages, by a
// peer's name and address, for several named purposes.
//
// Three implement it: local_transport (threads of one process),
// simulated_transport (a seeded network and a virtual clock) and
// grpc_transport. Each runs the conformance suite in transport_conformance.h.

#ifndef WEFT_TRANSPORT_TRANSPORT_H_
#define WEFT_TRANSPORT_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/memory/segment.h"
#include "weft/net/tls/roles.h"

namespace weft::transport {

// What one end of a connection hears: OnMessage and OnWritten any number of
// times, then OnClosed once. One event at a time, under InlineScope.
class ConnectionObserver {
 public:
  virtual ~ConnectionObserver() = default;
  virtual void OnMessage(Slices message) = 0;
  virtual void OnWritten() = 0;
  virtual void OnClosed(absl::Status status) = 0;
};

// Memory for large bodies that both ends of a connection have mapped, a half
// for each direction. The peer may change what lies in it at any time.
struct BodyMemory {
  static constexpr size_t kBytes = size_t{4} << 20;  // of each direction

  std::byte* out = nullptr;
  const std::byte* in = nullptr;
  std::shared_ptr<memory::Segment> segment;  // keeps both mapped
};

// One end of an ordered pipe of messages, owned by who opened or accepted it.
// Destroying it closes the pipe.
//
// Thread-safety: thread-safe.
class Connection {
 public:
  virtual ~Connection() = default;

  // Starts sending. One at a time: OnWritten says when a message that is under
  // way, and held till then, has been taken; it never runs inside Write.
  enum class Written {
    kRefused,   // and nothing sent: one is under way, or it is closed
    kUnderWay,  // the next may be written after OnWritten
    kDone,      // the next may be written now: no OnWritten comes
  };
  virtual Written Write(Slices message) = 0;
  // Has OnWritten come once all the same, although Write returned kDone, so
  // that a thread which has written much leaves the rest to those that hear.
  // Until then nothing may be written. Where Write never returns kDone: never.
  virtual void RequestOnWritten() {}

  // In OnMessage: true if more messages are likely to be at hand. Then `fn`
  // runs once no more come, on the same thread, so that answers to all of them
  // can be written together.
  virtual bool RunAfterBurst(absl::AnyInvocable<void() &&> /*fn*/) {
    return false;
  }

  // Ends it: both ends hear OnClosed, the other perhaps with `status`.
  virtual void Close(absl::Status status) = 0;

  // The memory for bodies of this connection. It is agreed on as the connection
  // opens, known to both ends once the one that opened it has received a
  // message, and has pages once one of them has asked for it here.
  // kUnimplemented: there is none; kResourceExhausted: no pages.
  virtual absl::StatusOr<BodyMemory> UseBodyMemory();

  // The peer's name and role, where the connection proves them (by a
  // certificate).
  virtual std::string ProvenName() const { return ""; }
  virtual std::string ProvenRole() const { return ""; }
};

// Where a connection leads.
struct Destination {
  std::string name;     // ps0: whoever answers must prove it, where anybody can
  std::string address;  // unix:/path, host:port
  // Transport::memory_socket() of whoever listens there; may be empty.
  std::string memory_socket = {};
};

// What connections are for. Connections of different purposes between the same
// two processes open, close and fail independently.
struct Purpose {
  std::string name;  // "rpc": unique within a transport, equal at both ends
  // The method of its streams, equal at both ends:
  // "/weft.rpc.v1.Worker/Connect".
  std::string method;
  // The roles that may open them, where peers prove their role.
  net::Roles roles = net::Roles::Members();
};

// Thread-safety: thread-safe.
class Transport {
 public:
  using TimerId = int64_t;
  // Returns the observer of a connection that a peer opened, or why not.
  using Acceptor =
      std::function<absl::StatusOr<std::shared_ptr<ConnectionObserver>>(
          std::unique_ptr<Connection>)>;

  virtual ~Transport() = default;

  // How a thread waits for what arrives here, and the clock of its deadlines.
  virtual Driver& driver() = 0;

  // Serves `purpose` from now on: until it has an acceptor, peers are refused
  // with kUnavailable, and may try again. Does nothing if it is registered, or
  // if this transport only connects. REQUIRES: the endpoint has not started.
  virtual void Register(const Purpose& purpose) = 0;

  // Accepts connections of `purpose` from now on; with null no more. Once this
  // has returned, the former acceptor is not called any more. REQUIRES: it is
  // registered.
  virtual void Accept(const Purpose& purpose, Acceptor acceptor) = 0;

  // Opens a connection. Always returns one: a failure is OnClosed, which does
  // not run inside Connect. Messages may be written at once. kUnavailable: the
  // peer is not there, or has no acceptor yet; kUnimplemented: it does not
  // serve `purpose`.
  virtual std::unique_ptr<Connection> Connect(
      const Purpose& purpose, const Destination& to,
      std::shared_ptr<ConnectionObserver> observer) = 0;

  // Where processes of this host hand memory to this one, so that connections
  // to a TCP address share some: for Destination::memory_socket. Empty:
  // nowhere.
  virtual std::string memory_socket() const { return ""; }

  // kResourceExhausted if this process itself lacks what a new connection
  // takes, with the numbers and what to set: then it is not the peer's fault
  // that none comes about.
  virtual absl::Status CheckResources() { return absl::OkStatus(); }

  // Runs `fn` once clock() reaches `when`, on a thread of the transport.
  virtual TimerId RunAt(Instant when, absl::AnyInvocable<void() &&> fn) = 0;
  // True if the timer's function will not run.
  virtual bool CancelTimer(TimerId id) = 0;
  // Returns once the timers' functions that had begun have ended; at once where
  // it is called by one of them.
  virtual void AwaitTimers() = 0;

  Clock& clock() { return driver().clock(); }
};

// kUnimplemented: `peer` does not serve `purpose`; `why` is what it answered.
absl::Status NotServed(const Destination& peer, const Purpose& purpose,
                       absl::string_view why);

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_TRANSPORT_H_
