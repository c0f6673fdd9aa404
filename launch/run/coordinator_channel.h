// CoordinatorChannel: how a launcher calls the coordinator of its job.

#ifndef WEFT_LAUNCH_RUN_COORDINATOR_CHANNEL_H_
#define WEFT_LAUNCH_RUN_COORDINATOR_CHANNEL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "weft/net/loop/loop.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/worker/options.h"

namespace weft::launch {

struct CoordinatorChannelOptions {
  std::string job;
  // Where the job meets: unix:PATH or HOST:PORT; or by `init` (init_url.h): of
  // etcd or a file, where its host is found, again and again.
  std::string coordinator;
  std::string init;
  std::string host;  // its host's name: ps0
  // Over TCP: a directory with the certificate of admin0, who is no worker.
  std::string certs;
  bool insecure = false;
};

// Thread-safety: one thread at a time.
class CoordinatorChannel {
 public:
  explicit CoordinatorChannel(const CoordinatorChannelOptions& options);
  CoordinatorChannel(const CoordinatorChannel&) = delete;
  CoordinatorChannel& operator=(const CoordinatorChannel&) = delete;

  const std::string& job() const { return options_.job; }

  // The first call starts threads, and connects to nobody yet. The link lives
  // as long as this. Where a coordinator is to be found calls fail with
  // kUnavailable until it is; each has it looked for. kFailedPrecondition:
  // there is no certificate of admin0; kInvalidArgument: of `init`.
  absl::StatusOr<rendezvous::CoordinatorLink*> Get();

 private:
  worker::Options options_;  // of one who asks
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<rendezvous::CoordinatorLink> link_;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_COORDINATOR_CHANNEL_H_
