// CoordinatorChannel: how a launcher calls the coordinator of its job.

#ifndef WEFT_LAUNCH_RUN_COORDINATOR_CHANNEL_H_
#define WEFT_LAUNCH_RUN_COORDINATOR_CHANNEL_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "weft/net/channel.h"
#include "weft/net/loop/loop.h"

namespace weft::launch {

struct CoordinatorChannelOptions {
  std::string job;
  std::string coordinator;  // unix:PATH or HOST:PORT
  std::string host;         // its host's name: ps0
  // Over TCP: a directory with the certificate of admin0, who is no worker.
  std::string certs;
  bool insecure = false;
};

// Thread-safety: one thread at a time.
class CoordinatorChannel {
 public:
  explicit CoordinatorChannel(CoordinatorChannelOptions options)
      : options_(std::move(options)) {}

  const std::string& job() const { return options_.job; }

  // The first call starts threads, and connects to nobody yet. The channel
  // lives as long as this. kFailedPrecondition: there is no certificate of
  // admin0.
  absl::StatusOr<net::Channel*> Get();

 private:
  const CoordinatorChannelOptions options_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<net::Channel> channel_;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_COORDINATOR_CHANNEL_H_
