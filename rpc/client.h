// Client: calls a worker's functions without being a worker: it joins no job
// and has no rank.
//
//   WEFT_ASSIGN_OR_RETURN(auto client, rpc::Client::Connect("unix:/run/ps0"));
//   absl::StatusOr<Tensor> y = rpc::Call(client->To(), Scale, x, 2.0);
//
// Calls are typed, have deadlines and can be cancelled as between workers, and
// have a session: each runs once, also if the connection breaks, until the
// worker is restarted. Then they end with kUnavailable: connect again. A client
// without a connection for 2 s counts as gone: the worker cancels its calls and
// releases its objects. If the client reconnects later, those calls end with
// kUnavailable and OutcomeUnknown, and new ones work.
//
// The client is identified by its certificate, or by the unix socket, which
// only the same user can open.

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
  // The worker's name (ps0). Over TLS its certificate must have this name;
  // without TLS it is needed only if several workers share the address.
  std::string worker;
  // The job that the worker must belong to. Empty: any job.
  std::string job;
  absl::Duration connect_timeout = absl::Seconds(10);
  absl::Duration call_timeout = absl::Seconds(60);  // of a call that names none
  const Registry* registry = nullptr;               // null: Registry::Global()
};

// Thread-safety: thread-safe.
class Client {
 public:
  // Asks the worker at `address` for its name. kUnavailable if no process
  // listens there, kFailedPrecondition if it belongs to another job, or for TCP
  // without certificates; kUnauthenticated if its certificate has another name.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      absl::string_view address, ClientOptions options = {});

  // Ends what is open with kCancelled, without waiting for the network.
  ~Client();

  // The worker to call, as Agent::To. It must not outlive the client.
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
