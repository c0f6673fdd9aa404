// MpiChannels: the messages of a Mesh over MPI, which one thread sends and
// takes.

#ifndef WEFT_COLLECTIVES_BACKENDS_MPI_MPI_CHANNELS_H_
#define WEFT_COLLECTIVES_BACKENDS_MPI_MPI_CHANNELS_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/collectives/backends/mpi/mpi_state.h"
#include "weft/collectives/backends/stream/mesh.h"

namespace weft::collectives {

// Thread-safety: Start and the destructor, one thread.
class MpiChannels {
 public:
  // Messages have `tag`; ranks[r] is MPI's rank of the mesh's rank r. `session`
  // must outlive it.
  MpiChannels(MpiSession::State& session, int tag, std::vector<int> ranks,
              std::shared_ptr<Mesh> mesh);
  // What has not been sent is not.
  ~MpiChannels();
  MpiChannels(const MpiChannels&) = delete;
  MpiChannels& operator=(const MpiChannels&) = delete;

  // Hands the mesh its connections. kResourceExhausted: no thread.
  absl::Status Start();

 private:
  class Outboxes;
  class Connection;

  // A message that MPI sends or takes.
  struct UnderWay {
    std::shared_ptr<std::string> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void Run();
  // Each does what can be done without waiting; true if that was something.
  absl::StatusOr<bool> Send(int peer);
  absl::StatusOr<bool> Receive();
  void OnFailure(const absl::Status& why);

  MpiSession::State& session_;
  const int tag_;
  const std::vector<int> ranks_;
  const std::shared_ptr<Mesh> mesh_;
  const std::shared_ptr<Outboxes> outboxes_;
  // Connections to lower ranks that have not sent anything yet: the lower rank
  // sends the first message.
  std::vector<std::shared_ptr<transport::Connection>> not_heard_;
  std::vector<UnderWay> sending_;  // by peer
  UnderWay receiving_;
  int receiving_from_ = -1;
  std::thread thread_;
};

// How long a thread that polls MPI sleeps, having found nothing since
// `idle_since`.
absl::Duration MpiPollInterval(absl::Duration idle);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_MPI_MPI_CHANNELS_H_
