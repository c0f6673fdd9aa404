// Endpoint::Core: one endpoint's table of methods, its admission and its
// health.

#ifndef WEFT_NET_ENDPOINT_CORE_H_
#define WEFT_NET_ENDPOINT_CORE_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "weft/net/admission.h"
#include "weft/net/channel.h"
#include "weft/net/endpoint.h"
#include "weft/net/health.h"
#include "weft/net/loop/loop_core.h"
#include "weft/net/loop/server_call.h"
#include "weft/net/probe_count.h"

namespace weft::net {

class Endpoint::Core final
    : public CallSink,
      public std::enable_shared_from_this<Endpoint::Core> {
 public:
  Core(Loop::Core& loop, EndpointOptions options);

  absl::Status Open();
  void RegisterUnary(absl::string_view method, UnaryHandler handler,
                     Roles roles);
  void RegisterStream(absl::string_view method, StreamAcceptor acceptor,
                      Roles roles);
  std::map<std::string, Roles> Access() const;
  absl::Status Start();
  absl::Status Shutdown(absl::Duration timeout);
  void OnCall(ServerCall& call) override;

  const std::string& name() const { return options_.name; }
  const std::string& address() const { return address_; }
  Health& health() { return health_; }
  // Answers the call with `why` and writes it down.
  void Refuse(ServerCall& call, absl::string_view kind,
              const absl::Status& why);

 private:
  // One of the two handlers is set.
  struct Method {
    Roles roles;
    UnaryHandler unary;
    StreamAcceptor stream;
  };

  absl::Status CheckCredentials(const Address& address) const;
  absl::Status CheckPeer(const Peer& peer) const;
  Method& AddMethod(absl::string_view method, Roles roles);
  std::set<std::string> Services() const;
  // For a call that has just become ours, true if it was refused: Shutdown()
  // waits for those that are ours when it looks, and must not miss this one.
  bool RefuseAtEnd(ServerCall& call);
  void ServeUnary(Method& method, ServerCall& call,
                  std::unique_ptr<Admission::Ticket> ticket);
  void ServeStream(Method& method, ServerCall& call,
                   std::unique_ptr<Admission::Ticket> ticket);

  void ProbeLater() ABSL_LOCKS_EXCLUDED(probe_mu_);
  void Probe() ABSL_LOCKS_EXCLUDED(probe_mu_);
  void OnProbed(const absl::Status& answer) ABSL_LOCKS_EXCLUDED(probe_mu_);
  absl::Status Reopen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(probe_mu_);
  void EndProbes() ABSL_LOCKS_EXCLUDED(probe_mu_);

  const std::shared_ptr<Loop::Core> loop_;
  const EndpointOptions options_;
  std::string address_;
  std::optional<Address> listening_;
  std::optional<Listener> listener_;  // between Open() and Start()
  absl::flat_hash_map<std::string, Method> methods_;  // constant once started
  const std::shared_ptr<Admission> admission_;
  Health health_;
  std::atomic<bool> started_{false};
  std::atomic<bool> closing_{false};
  std::atomic<bool> shut_{false};

  Mutex probe_mu_;
  bool probes_ended_ ABSL_GUARDED_BY(probe_mu_) = false;
  ProbeCount probe_count_ ABSL_GUARDED_BY(probe_mu_);
  Loop::TimerId probe_timer_ ABSL_GUARDED_BY(probe_mu_) = 0;
  std::unique_ptr<Channel> probe_ ABSL_GUARDED_BY(probe_mu_);
};

}  // namespace weft::net

#endif  // WEFT_NET_ENDPOINT_CORE_H_
