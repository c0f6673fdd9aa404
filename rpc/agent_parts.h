// AgentParts: what calls, handles and streams use of the agent behind them.

#ifndef WEFT_RPC_AGENT_PARTS_H_
#define WEFT_RPC_AGENT_PARTS_H_

#include <memory>

#include "weft/base/driver.h"
#include "weft/rpc/diagnostics/leaks.h"
#include "weft/rpc/object_table.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/stream_table.h"

namespace weft::rpc::internal {

// Thread-safety: thread-safe.
class AgentParts {
 public:
  virtual ~AgentParts() = default;
  virtual WorkerKey key() const = 0;  // the agent's own
  virtual Driver& driver() const = 0;
  virtual ObjectTable& objects() = 0;
  virtual StreamTable& streams() = 0;
  // Calls that end hold it, perhaps after the agent.
  virtual const std::shared_ptr<OpenHandles>& handles() const = 0;
};

}  // namespace weft::rpc::internal

#endif  // WEFT_RPC_AGENT_PARTS_H_
