// Streams::State: the groups and streams of a process.

#ifndef WEFT_COLLECTIVES_BACKENDS_STREAM_STREAMS_STATE_H_
#define WEFT_COLLECTIVES_BACKENDS_STREAM_STREAMS_STATE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backends/stream/mesh.h"
#include "weft/collectives/backends/stream/streams.h"
#include "weft/transport/transport.h"

namespace weft::collectives {

class MeshEnd;

// A peer may open its stream before this process has made the group: then the
// stream waits for it, and its opener's deadline ends that.
//
// Thread-safety: thread-safe.
class Streams::State final : public std::enable_shared_from_this<State> {
 public:
  // kInvalidArgument: the name is used already.
  absl::Status Add(const std::shared_ptr<Mesh>& mesh) ABSL_LOCKS_EXCLUDED(mu_);
  // The observer of a stream that `mesh` opens to `peer`.
  std::shared_ptr<transport::ConnectionObserver> MakeEnd(
      std::shared_ptr<Mesh> mesh, int peer);
  void ForgetIfOver(const std::shared_ptr<Mesh>& mesh) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the last messages of groups that this process has left are
  // delivered: see Mesh.
  void AwaitDelivery(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void End() ABSL_LOCKS_EXCLUDED(mu_);

  // --- Streams that peers open. ---

  absl::StatusOr<std::shared_ptr<transport::ConnectionObserver>> Accept(
      std::shared_ptr<transport::Connection> connection)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnHello(MeshEnd* key, const std::string& group, int rank)
      ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetEnd(MeshEnd* end) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static constexpr size_t kMostWithoutGroup = 1024;
  // The same for the streams of one peer, where streams prove who has opened
  // them.
  static constexpr int kMostWithoutGroupOfOne = 128;

  struct Waiting {
    std::shared_ptr<MeshEnd> end;
    int rank;
  };

  Mutex mu_;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, std::shared_ptr<Mesh>> groups_ ABSL_GUARDED_BY(mu_);
  // Streams that have no group yet; and of these, those that have named one.
  std::map<MeshEnd*, std::shared_ptr<MeshEnd>> ends_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::vector<Waiting>> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_STREAM_STREAMS_STATE_H_
