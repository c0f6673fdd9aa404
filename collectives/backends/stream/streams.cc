#include "weft/collectives/backends/stream/streams.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/stream/mesh.h"
#include "weft/collectives/backends/stream/streams_state.h"
#include "weft/collectives/core/frame.h"

namespace weft::collectives {
using transport::Connection;

// How long the end of a process waits for peers to have what it has sent: many
// round trips between hosts.
constexpr absl::Duration kDeliveryPatience = absl::Seconds(2);
// What a peer may say before this process has made the group that it names: who
// it is, that it has aborted the group, and that it leaves.
constexpr size_t kMostEarlyMessages = 4;
constexpr size_t kMostEarlyBytes = 16 << 10;

// This end of one stream.
class MeshEnd final : public transport::ConnectionObserver {
 public:
  // The end of a stream that this rank has opened.
  MeshEnd(std::weak_ptr<Streams::State> state, std::shared_ptr<Mesh> mesh,
          int peer)
      : state_(std::move(state)), mesh_(std::move(mesh)), peer_(peer) {}
  // The end of a stream that a peer has opened.
  MeshEnd(std::weak_ptr<Streams::State> state,
          std::shared_ptr<Connection> connection)
      : proven_name(connection->ProvenName()),
        state_(std::move(state)),
        connection_(std::move(connection)) {}

  const std::string proven_name;  // "" of one that this rank has opened

  void OnMessage(Slices message) override;
  void OnWritten() override {
    if (const auto mesh = this->mesh(); mesh != nullptr) mesh->OnWritten(peer_);
  }
  void OnClosed(absl::Status status) override;

  // Gives the stream to the group that it is for. Not under the state's lock.
  void Join(const std::shared_ptr<Mesh>& mesh, int peer);
  void Refuse(const absl::Status& why);

 private:
  void Deliver(const std::shared_ptr<Mesh>& mesh, const Slices& message);
  std::shared_ptr<Mesh> mesh() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return mesh_;
  }
  std::shared_ptr<Connection> TakeConnection() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return std::move(connection_);
  }

  const std::weak_ptr<Streams::State> state_;
  mutable Mutex mu_;
  std::shared_ptr<Mesh> mesh_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);  // until hello
  // What has come before `mesh_`, or while it gets this.
  std::deque<Slices> early_ ABSL_GUARDED_BY(mu_);
  size_t early_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_joining_ ABSL_GUARDED_BY(mu_) = false;
  int peer_ = -1;  // written before mesh_ is
};

void MeshEnd::OnMessage(Slices message) {
  std::shared_ptr<Mesh> mesh;
  bool is_first = false;
  bool is_too_much = false;
  {
    MutexLock lock(mu_);
    if (mesh_ != nullptr && !is_joining_) {
      mesh = mesh_;
    } else {
      is_first = early_bytes_ == 0;
      for (const Bytes& slice : message) early_bytes_ += slice.size();
      early_.push_back(message);
      is_too_much = !is_joining_ && (early_.size() > kMostEarlyMessages ||
                                     early_bytes_ > kMostEarlyBytes);
    }
  }
  if (mesh != nullptr) return Deliver(mesh, message);
  if (is_too_much) {
    return Refuse(absl::ResourceExhaustedError(
        "it says more before its group is there than who it is"));
  }
  if (!is_first) return;
  absl::StatusOr<Frame> frame = Decode(message);
  if (frame.ok() && frame->kind != Frame::kHello) {
    frame = absl::FailedPreconditionError(
        "the first message of a stream does not say of which group it is");
  }
  if (!frame.ok()) return Refuse(frame.status());
  const auto state = state_.lock();
  if (state == nullptr) return Refuse(absl::CancelledError("shutting down"));
  state->OnHello(this, frame->text, static_cast<int>(frame->code));
}

void MeshEnd::Deliver(const std::shared_ptr<Mesh>& mesh,
                      const Slices& message) {
  mesh->OnMessage(peer_, message);
  if (const auto state = state_.lock(); state != nullptr) {
    state->ForgetIfOver(mesh);
  }
}

void MeshEnd::OnClosed(absl::Status status) {
  std::shared_ptr<Mesh> mesh;
  {
    MutexLock lock(mu_);
    mesh = std::move(mesh_);
    mesh_ = nullptr;
  }
  const std::shared_ptr<Connection> connection = TakeConnection();
  const auto state = state_.lock();
  if (mesh != nullptr) mesh->OnClosed(peer_, status);
  if (state == nullptr) return;
  if (mesh != nullptr) state->ForgetIfOver(mesh);
  state->ForgetEnd(this);
}

void MeshEnd::Join(const std::shared_ptr<Mesh>& mesh, int peer) {
  const std::shared_ptr<Connection> connection = TakeConnection();
  if (connection == nullptr) return;  // closed meanwhile
  {
    MutexLock lock(mu_);
    peer_ = peer;
    mesh_ = mesh;
    is_joining_ = true;
  }
  const absl::Status status = mesh->OnHello(peer, connection);
  while (status.ok()) {
    Slices message;
    {
      MutexLock lock(mu_);
      is_joining_ = !early_.empty();
      if (!is_joining_) return;
      message = std::move(early_.front());
      early_.pop_front();
    }
    Deliver(mesh, message);
  }
  {
    MutexLock lock(mu_);
    mesh_ = nullptr;
    early_.clear();
  }
  connection->Close(status);
}

void MeshEnd::Refuse(const absl::Status& why) {
  const std::shared_ptr<Connection> connection = TakeConnection();
  {
    MutexLock lock(mu_);
    early_.clear();
  }
  if (connection != nullptr) connection->Close(why);
}

// --- Streams::State. ---------------------------------------------------------

absl::StatusOr<std::shared_ptr<transport::ConnectionObserver>>
Streams::State::Accept(std::shared_ptr<Connection> connection) {
  auto end = std::make_shared<MeshEnd>(weak_from_this(), std::move(connection));
  MutexLock lock(mu_);
  if (is_over_) return absl::CancelledError("shutting down");
  if (ends_.size() >= kMostWithoutGroup) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMostWithoutGroup, " streams wait for their groups"));
  }
  const auto is_of_same = [&](const auto& other) {
    return other.second->proven_name == end->proven_name;
  };
  if (!end->proven_name.empty() &&
      std::count_if(ends_.begin(), ends_.end(), is_of_same) >=
          kMostWithoutGroupOfOne) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMostWithoutGroupOfOne, " streams of ", end->proven_name,
                     " wait for their groups"));
  }
  ends_[end.get()] = end;
  return end;
}

void Streams::State::OnHello(MeshEnd* key, const std::string& group, int rank) {
  std::shared_ptr<Mesh> mesh;
  std::shared_ptr<MeshEnd> end;
  {
    MutexLock lock(mu_);
    const auto found = ends_.find(key);
    if (found == ends_.end()) return;
    end = found->second;
    const auto it = groups_.find(group);
    if (it == groups_.end()) {
      waiting_[group].push_back({end, rank});
      return;
    }
    mesh = it->second;
    ends_.erase(key);
  }
  end->Join(mesh, rank);
}

absl::Status Streams::State::Add(const std::shared_ptr<Mesh>& mesh) {
  std::vector<Waiting> waiting;
  const std::string& name = mesh->options().group;
  {
    MutexLock lock(mu_);
    if (is_over_) return absl::CancelledError("the process ends its streams");
    if (!groups_.emplace(name, mesh).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("this process has a rank of group ", name,
                       " already: each rank and each name is used once"));
    }
    waiting.swap(waiting_[name]);
    waiting_.erase(name);
    for (const Waiting& one : waiting) ends_.erase(one.end.get());
  }
  for (const Waiting& one : waiting) one.end->Join(mesh, one.rank);
  return absl::OkStatus();
}

void Streams::State::ForgetIfOver(const std::shared_ptr<Mesh>& mesh) {
  if (!mesh->is_over()) return;
  MutexLock lock(mu_);
  const auto it = groups_.find(mesh->options().group);
  if (it != groups_.end() && it->second == mesh) groups_.erase(it);
}

void Streams::State::ForgetEnd(MeshEnd* end) {
  std::shared_ptr<MeshEnd> last;  // released outside of the lock
  MutexLock lock(mu_);
  const auto it = ends_.find(end);
  if (it == ends_.end()) return;
  last = std::move(it->second);
  ends_.erase(it);
  for (auto& [group, waiting] : waiting_) {
    for (auto one = waiting.begin(); one != waiting.end(); ++one) {
      if (one->end.get() != end) continue;
      waiting.erase(one);
      return;
    }
  }
}

void Streams::State::AwaitDelivery(Instant deadline) {
  std::vector<std::shared_ptr<Mesh>> meshes;
  {
    MutexLock lock(mu_);
    for (const auto& [name, mesh] : groups_) meshes.push_back(mesh);
  }
  for (const auto& mesh : meshes) mesh->AwaitDelivery(deadline);
}

void Streams::State::End() {
  std::map<std::string, std::shared_ptr<Mesh>> groups;
  std::map<MeshEnd*, std::shared_ptr<MeshEnd>> ends;
  {
    MutexLock lock(mu_);
    is_over_ = true;
    groups.swap(groups_);
    ends.swap(ends_);
    waiting_.clear();
  }
  for (const auto& [name, mesh] : groups) mesh->Drop();
  for (const auto& [key, end] : ends) {
    end->Refuse(absl::CancelledError("the process ends its streams"));
  }
}

std::shared_ptr<transport::ConnectionObserver> Streams::State::MakeEnd(
    std::shared_ptr<Mesh> mesh, int peer) {
  return std::make_shared<MeshEnd>(weak_from_this(), std::move(mesh), peer);
}

const transport::Purpose& StreamPurpose() {
  static const auto* const kPurpose = new transport::Purpose{
      "collectives", "/weft.collectives.v1.Group/Connect",
      net::Roles::Members()};
  return *kPurpose;
}

Streams::Streams(transport::Transport& transport)
    : transport_(transport), state_(std::make_shared<State>()) {
  transport_.Register(StreamPurpose());
  transport_.Accept(
      StreamPurpose(),
      [state =
           std::weak_ptr<State>(state_)](std::shared_ptr<Connection> connection)
          -> absl::StatusOr<std::shared_ptr<transport::ConnectionObserver>> {
        const auto alive = state.lock();
        if (alive == nullptr) return absl::CancelledError("shutting down");
        return alive->Accept(std::move(connection));
      });
}

Streams::~Streams() {
  transport_.Accept(StreamPurpose(), nullptr);
  state_->AwaitDelivery(transport_.clock().Now() + kDeliveryPatience);
  state_->End();
}

}  // namespace weft::collectives
