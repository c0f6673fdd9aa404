// FunctionAccess: the functions that an agent serves, and the roles that may
// call each.

#ifndef WEFT_RPC_AGENT_FUNCTION_ACCESS_H_
#define WEFT_RPC_AGENT_FUNCTION_ACCESS_H_

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/net/refusal_log.h"
#include "weft/net/tls/roles.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/session/message.h"

namespace weft::rpc {

// Thread-safety: thread-safe.
class FunctionAccess {
 public:
  // All must outlive it.
  FunctionAccess(const AgentOptions& options, const Registry& registry,
                 net::RefusalLog& refusal_log)
      : options_(options), registry_(registry), refusal_log_(refusal_log) {}

  const Registry& registry() const { return registry_; }
  // The function that `request` names, with its signature; else why it cannot
  // be served.
  absl::StatusOr<const Function*> Find(const Request& request,
                                       Refusal* refusal) const;
  // One that this program itself calls. kFailedPrecondition if it has none.
  absl::StatusOr<const Function*> FindOwn(Function::Address address) const;
  absl::StatusOr<const Function*> FindOwn(absl::string_view method) const;

  // Whether the role that `caller` has proven, if any, is for `function`; Check
  // says why not, also in the log of refusals.
  bool MayCall(const Function& function, const Worker& caller) const;
  absl::Status Check(const Function& function, const Worker& caller);
  // What a caller whose registry differs may call. None: too much to tell.
  std::optional<FunctionTable> TableFor(const Worker& caller) const;

 private:
  net::Roles RolesOf(const Function& function) const;

  const AgentOptions& options_;
  const Registry& registry_;
  net::RefusalLog& refusal_log_;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_FUNCTION_ACCESS_H_
