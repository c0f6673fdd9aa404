#include "weft/collectives/backends/stream/mesh_backend.h"

#include "weft/base/catch_to_status.h"
#include "weft/collectives/backends/stream/mesh.h"

namespace weft::collectives {
namespace {

class MeshLink final : public Link {
 public:
  MeshLink(Mesh& mesh, const Operation& operation)
      : mesh_(mesh), progress_{operation} {}

  absl::Status AwaitCompared() { return mesh_.AwaitCompared(progress_); }
  void EndWait(const absl::Status& status) { mesh_.EndWait(progress_, status); }

  int rank() const override { return mesh_.rank(); }
  int size() const override { return mesh_.size(); }
  absl::Status Send(int to, absl::Span<const std::byte> bytes) override {
    return mesh_.Exchange(progress_, Mesh::Outgoing{to, bytes}, {});
  }
  absl::Status Receive(int from, absl::Span<std::byte> bytes) override {
    return mesh_.Exchange(progress_, {}, InTo(from, bytes));
  }
  absl::Status SendReceive(int to, absl::Span<const std::byte> out, int from,
                           absl::Span<std::byte> in) override {
    return mesh_.Exchange(progress_, Mesh::Outgoing{to, out}, InTo(from, in));
  }
  absl::Status SendReduce(int to, absl::Span<const std::byte> out, int from,
                          int64_t bytes, int64_t item,
                          TakePiece take) override {
    PieceReader reader(item, take);
    Mesh::Incoming in;
    in.from = from;
    in.bytes = bytes;
    in.reader = &reader;
    return mesh_.Exchange(progress_, Mesh::Outgoing{to, out}, in);
  }

 private:
  static Mesh::Incoming InTo(int from, absl::Span<std::byte> bytes) {
    Mesh::Incoming in;
    in.from = from;
    in.bytes = static_cast<int64_t>(bytes.size());
    in.memory = bytes.data();
    return in;
  }

  Mesh& mesh_;
  Progress progress_;
};

}  // namespace

int MeshBackend::rank() const { return mesh_->rank(); }
int MeshBackend::size() const { return mesh_->size(); }
Driver& MeshBackend::driver() { return mesh_->driver(); }

absl::Status MeshBackend::RunWith(
    const Operation& operation,
    const std::function<absl::Status(Link&)>& body) {
  absl::Status status = mesh_->Begin(operation);
  if (status.ok()) {
    MeshLink link(*mesh_, operation);
    // What was sent before a barrier is compared before it ends.
    if (operation.verb == Verb::kBarrier) status = link.AwaitCompared();
    if (status.ok()) status = CatchToStatus([&] { return body(link); });
    link.EndWait(status);
  }
  if (!status.ok() && !absl::IsAborted(status)) mesh_->Abort(status);
  return status;
}

void MeshBackend::Refuse(const Operation& operation, const absl::Status& why) {
  mesh_->Refuse(operation, why);
}
void MeshBackend::Abort(const absl::Status& why) { mesh_->Abort(why); }
absl::Status MeshBackend::health() const { return mesh_->health(); }
absl::Status MeshBackend::CheckRanks() { return mesh_->CheckRanks(); }
void MeshBackend::EndShrink(uint64_t key, const absl::Status& why) {
  mesh_->EndShrink(key, why);
}
absl::Status MeshBackend::CheckShrink(uint64_t key) const {
  return mesh_->CheckShrink(key);
}
absl::StatusOr<bool> MeshBackend::Advance(Transfer& transfer) {
  return mesh_->Advance(transfer);
}
uint64_t MeshBackend::transfer_events() const {
  return mesh_->transfer_events();
}
const DiagnosisOptions* MeshBackend::diagnosis() const {
  return &mesh_->options().diagnosis;
}
void MeshBackend::AskPeer(int peer) { mesh_->AskPeer(peer); }
std::string MeshBackend::DescribePeer(int peer, absl::string_view lacks,
                                      Instant since) const {
  return mesh_->DescribePeer(peer, lacks, since);
}
void MeshBackend::AwaitTransfers(uint64_t seen, Instant until) {
  mesh_->AwaitTransfers(seen, until);
}

}  // namespace weft::collectives
