// MeshBackend: what the backends over a Mesh have in common, which is all but
// how the mesh's connections are made and which code moves the elements.

#ifndef WEFT_COLLECTIVES_BACKENDS_STREAM_MESH_BACKEND_H_
#define WEFT_COLLECTIVES_BACKENDS_STREAM_MESH_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/collectives/algorithms/link.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

class Mesh;

// Thread-safety: as Backend.
class MeshBackend : public Backend {
 public:
  int rank() const override;
  int size() const override;
  Driver& driver() override;
  void Refuse(const Operation& operation, const absl::Status& why) override;
  void Abort(const absl::Status& why) override;
  absl::Status health() const override;
  absl::Status CheckRanks() override;
  void EndShrink(uint64_t key, const absl::Status& why) override;
  absl::Status CheckShrink(uint64_t key) const override;
  absl::StatusOr<bool> Advance(Transfer& transfer) override;
  uint64_t transfer_events() const override;
  void AwaitTransfers(uint64_t seen, Instant until) override;
  const DiagnosisOptions* diagnosis() const override;
  void AskPeer(int peer) override;
  std::string DescribePeer(int peer, absl::string_view lacks,
                           Instant since) const override;
  absl::StatusOr<Tensor> Allocate(const Shape& shape, DType dtype) override {
    return Tensor::Empty(shape, dtype);
  }

  // As Run: `body` gets the link to all ranks and does the operation.
  absl::Status RunWith(const Operation& operation,
                       const std::function<absl::Status(Link&)>& body);

 protected:
  explicit MeshBackend(std::shared_ptr<Mesh> mesh) : mesh_(std::move(mesh)) {}

  Mesh& mesh() const { return *mesh_; }
  const std::shared_ptr<Mesh>& shared_mesh() const { return mesh_; }

 private:
  const std::shared_ptr<Mesh> mesh_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_STREAM_MESH_BACKEND_H_
