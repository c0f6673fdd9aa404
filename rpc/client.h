// Client: calls a worker's functions without being a worker: it joins no job
// and has no rank.
//
//   WEFT_ASSIGN_OR_RETURN(auto client, rpc::Client::Connect("unix:/run/ps0"));
//   absl::StatusOr<Tensor> y = rpc::Call(client->To(), Scale, x, 2.0);
//
// Calls are typed, have deadlines and can be cancelled as between workers, and
// have a session: each runs once whatever the connection does, until the worker
// is restarted. Then they end with kUnavailable: connect anew. The worker holds
// a client that has been without a connection for 2 s to be gone: it cancels
// its calls and releases its objects. Should it come back, those calls end with
// kUnavailable and OutcomeUnknown, and later ones work.
//
// Who the client is, its certificate says, or the unix socket, which only the
// same user can open.

#ifndef WEFT_RPC_CLIENT_H_
#define WEFT_RPC_CLIENT_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/net/loop/loop.h"
#include "weft/net/tls/credentials.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/directory.h"
#include "weft/transport/transport.h"

namespace weft::rpc {

struct ClientOptions {
  // For TCP: Credentials::ForMember(directory, "admin0").
  net::Credentials credentials = net::Credentials::LocalOnly();
  // Of the worker (ps0). Over TLS its certificate must be for it; elsewhere it
  // is needed only where several workers share the address.
  std::string worker;
  // The worker must be of it. Empty: of whichever job it is.
  std::string job;
  absl::Duration connect_timeout = absl::Seconds(10);
  absl::Duration call_timeout = absl::Seconds(60);  // of a call that names none
  const Registry* registry = nullptr;               // null: Registry::Global()
};

// Thread-safety: thread-safe.
class Client {
 public:
  // Asks the worker at `address` who it is. kUnavailable if nobody listens
  // there, kFailedPrecondition if it is of another job, or for TCP without
  // certificates; kUnauthenticated if its certificate is of another.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      absl::string_view address, ClientOptions options = {});

  // Ends what is open with kCancelled, without waiting for the network.
  ~Client();

  // Whom to call, as Agent::To. It must not outlive the client.
  Target To(std::optional<absl::Duration> timeout = std::nullopt);

  const Worker& worker() const { return worker_; }

 private:
  Client() = default;
  absl::Status Open(absl::string_view address, ClientOptions options);

  Worker worker_;
  // Each may use those above it.
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<FixedDirectory> directory_;
  std::unique_ptr<Agent> agent_;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_CLIENT_H_
