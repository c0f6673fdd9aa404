// The stream backend: ranks of any hosts, over a transport's streams (with
// mutual TLS where the job has certificates), one stream for each pair.
//
// HostOptions::streams makes the host backend use it between hosts; alone it
// serves where ranks share no memory.
//
// A process that ends is found by its peers at once, since its streams end; a
// host that is silent after StreamOptions::dead_after. A rank that waits asks
// the others what they do, so a report of a stuck operation says who has not
// called it and what they called last.

#ifndef WEFT_COLLECTIVES_BACKENDS_STREAM_STREAM_BACKEND_H_
#define WEFT_COLLECTIVES_BACKENDS_STREAM_STREAM_BACKEND_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/collectives/algorithms/link.h"
#include "weft/collectives/algorithms/run_over_link.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/stream/mesh_backend.h"
#include "weft/collectives/backends/stream/streams.h"
#include "weft/collectives/group_endpoint.h"

namespace weft::collectives {

// About what a blocking message and large puts over TCP with mutual TLS cost on
// one machine (54 us, 1.5 GB/s): "Bursts" in bench/RESULTS.md. And by how much
// an all-reduce of 1 MiB on two ranks takes longer by doubling, which reduces
// twice as much, than by halving.
inline LinkCost StreamCost() {
  LinkCost cost;
  cost.seconds_per_message = 60e-6;
  cost.bytes_per_second = 1.5e9;
  cost.seconds_per_reduced_byte = 0.8e-9;
  return cost;
}

struct StreamOptions : GroupTerms {
  // The streams of this process. Must outlive the group and the groups made
  // from it.
  Streams* streams = nullptr;
  int rank = 0;
  // How each rank is reached, this one among them; the name is what it must
  // prove to be where the transport proves names.
  std::vector<transport::Destination> ranks;
  // The cost by which algorithms are chosen; the same on all ranks. The order
  // of additions depends on it, and so do the bits of a result.
  LinkCost cost = StreamCost();
  // Measures it instead, between the first and the last rank, when the group is
  // made: then two runs may choose differently.
  bool measures_cost = false;
};

// Thread-safety: as Backend.
class StreamBackend final : public MeshBackend {
 public:
  // Waits for all ranks. kInvalidArgument: options that make no sense;
  // kDeadlineExceeded and kUnavailable name the ranks that cannot be reached;
  // kPermissionDenied: the certificate of one is of another rank.
  static absl::StatusOr<std::unique_ptr<StreamBackend>> Connect(
      StreamOptions options);
  ~StreamBackend() override;

  absl::string_view name() const override { return "stream"; }
  absl::Status Run(const Operation& operation) override;
  absl::StatusOr<std::unique_ptr<Backend>> Subgroup(
      const SubgroupSpec& spec) override;

  // --- For backends that use it between their hosts. ---

  const LinkCost& cost() const { return cost_; }
  // For an operation that RunWith runs: the ranks known not to have called it,
  // and what they called last; "" if all have. It also asks those ranks, and
  // the next call knows what they answered.
  std::string AskWhoHasNotCalled(const Operation& operation);
  // Called once when the group is aborted, on any thread. Must not block.
  void OnAbort(std::function<void(const absl::Status&)> hook);

 private:
  StreamBackend(StreamOptions options, std::shared_ptr<Mesh> mesh);

  // What a message, and a byte, costs between the first and the last rank.
  absl::Status MeasureCost(Instant deadline);

  const StreamOptions options_;
  LinkCost cost_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_STREAM_STREAM_BACKEND_H_
