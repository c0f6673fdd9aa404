// AgentParts: what calls, handles and streams use of the agent behind them.

#ifndef WEFT_RPC_AGENT_PARTS_H_
#define WEFT_RPC_AGENT_PARTS_H_

#include <memory>

#include "weft/base/driver.h"
#include "weft/rpc/diagnostics/leaks.h"
#include "weft/rpc/object_table.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/session/limits.h"
#include "weft/rpc/stream_table.h"

namespace weft::rpc::internal {

// Thread-safety: thread-safe.
class AgentParts {
 public:
  AgentParts(WorkerKey own_key, Driver& own_driver, const Limits& limits)
      : key(own_key),
        driver(own_driver),
        objects(own_key, limits.objects),
        streams(limits.streams) {}

  const WorkerKey key;  // the agent's own
  Driver& driver;
  ObjectTable objects;
  StreamTable streams;
  // Calls that end hold it, perhaps after the agent.
  const std::shared_ptr<OpenHandles> handles = std::make_shared<OpenHandles>();
};

}  // namespace weft::rpc::internal

#endif  // WEFT_RPC_AGENT_PARTS_H_
