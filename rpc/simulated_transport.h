// SimulatedNetwork: agents under a seeded simulation: virtual time, latencies,
// broken connections; all on one thread.

#ifndef WEFT_RPC_SIMULATED_TRANSPORT_H_
#define WEFT_RPC_SIMULATED_TRANSPORT_H_

#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "weft/rpc/transport.h"
#include "weft/sim/sim_driver.h"
#include "weft/sim/simulator.h"

namespace weft::rpc {

// Like gRPC's, a connection delivers in order, or breaks and loses what is
// under way; each end learns of that in its own time.
//
// Thread-safety: as its Simulator.
class SimulatedNetwork {
 public:
  struct Options {
    absl::Duration min_latency = absl::Microseconds(50);
    absl::Duration max_latency = absl::Milliseconds(2);
    // How often a message breaks the connection that it travels on.
    double breaks = 0;
  };

  // `simulator` must outlive it.
  SimulatedNetwork(sim::Simulator& simulator, Options options);

  // A transport reached at `address`; the network must outlive it.
  std::unique_ptr<Transport> MakeTransport(std::string address);

  int64_t broken() const { return broken_; }

 private:
  class Pipe;
  class End;
  class SimulatedTransport;

  absl::Duration Latency();
  void Arrive(const std::shared_ptr<Pipe>& pipe, const std::string& address);

  sim::Simulator& simulator_;
  sim::SimDriver driver_;
  const Options options_;
  std::map<std::string, Transport::Acceptor> acceptors_;
  int64_t broken_ = 0;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_SIMULATED_TRANSPORT_H_
