#include "weft/collectives/backends/mpi/mpi_channels.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/base/mutex.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"

namespace weft::collectives {

// What the mesh has written, at most one message for each peer, until it is
// sent.
class MpiChannels::Outboxes {
 public:
  explicit Outboxes(int peers) : peers_(peers) {}

  transport::Connection::Written Put(int peer, Slices message)
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::string bytes;
    for (const Bytes& slice : message) absl::StrAppend(&bytes, slice.view());
    MutexLock lock(mu_);
    Peer& p = peers_[peer];
    if (is_stopped_ || p.is_closed || p.is_full) {
      return transport::Connection::Written::kRefused;
    }
    p.is_full = true;
    p.message = std::make_shared<std::string>(std::move(bytes));
    has_news_ = true;
    changed_.NotifyAll();
    return transport::Connection::Written::kUnderWay;
  }
  // What is to be sent; null: nothing.
  std::shared_ptr<std::string> Take(int peer) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return std::move(peers_[peer].message);
  }
  // What was taken has been sent.
  void OnSent(int peer) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    peers_[peer].is_full = false;
  }
  void Close(int peer) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    peers_[peer].is_closed = true;
  }
  void Stop() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    is_stopped_ = true;
    changed_.NotifyAll();
  }
  bool is_stopped() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return is_stopped_;
  }
  // Waits until there is something to send, or `most` has passed.
  void Await(absl::Duration most) ABSL_LOCKS_EXCLUDED(mu_) {
    const auto until =
        std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(most);
    MutexLock lock(mu_);
    if (!has_news_ && !is_stopped_) changed_.WaitUntil(mu_, until);
    has_news_ = false;
  }

 private:
  struct Peer {
    std::shared_ptr<std::string> message;
    bool is_full = false;
    bool is_closed = false;
  };

  mutable Mutex mu_;
  CondVar changed_;
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool has_news_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mu_);
};

// What the mesh has of one peer.
class MpiChannels::Connection final : public transport::Connection {
 public:
  Connection(std::shared_ptr<Outboxes> outboxes, int peer)
      : outboxes_(std::move(outboxes)), peer_(peer) {}
  ~Connection() override { outboxes_->Close(peer_); }

  Written Write(Slices message) override {
    return outboxes_->Put(peer_, std::move(message));
  }
  void Close(absl::Status) override { outboxes_->Close(peer_); }

 private:
  const std::shared_ptr<Outboxes> outboxes_;
  const int peer_;
};

absl::Duration MpiPollInterval(absl::Duration idle) {
  if (idle < absl::Milliseconds(10)) return absl::Microseconds(20);
  if (idle < absl::Seconds(1)) return absl::Microseconds(200);
  return absl::Milliseconds(1);
}

MpiChannels::MpiChannels(MpiSession::State& session, int tag,
                         std::vector<int> ranks, std::shared_ptr<Mesh> mesh)
    : session_(session),
      tag_(tag),
      ranks_(std::move(ranks)),
      mesh_(std::move(mesh)),
      outboxes_(std::make_shared<Outboxes>(static_cast<int>(ranks_.size()))),
      not_heard_(ranks_.size()),
      sending_(ranks_.size()) {}

MpiChannels::~MpiChannels() {
  outboxes_->Stop();
  if (thread_.joinable()) thread_.join();
  sending_.push_back(std::move(receiving_));
  for (UnderWay& one : sending_) {
    if (one.request == MPI_REQUEST_NULL) continue;
    int is_done = 0;
    MPI_Test(&one.request, &is_done, MPI_STATUS_IGNORE);
    if (is_done == 0) session_.Keep(std::move(one.bytes));
  }
}

absl::Status MpiChannels::Start() {
  for (int r = 0; r < mesh_->size(); ++r) {
    if (r == mesh_->rank()) continue;
    auto connection = std::make_shared<Connection>(outboxes_, r);
    if (r > mesh_->rank()) {
      mesh_->OnOpened(r, std::move(connection));
    } else {
      not_heard_[r] = std::move(connection);
    }
  }
  WEFT_ASSIGN_OR_RETURN(thread_,
                        StartThread("mpi messages", [this] { Run(); }));
  return absl::OkStatus();
}

void MpiChannels::Run() {
  InlineScope callbacks;
  Instant active_at = SteadyClock().Now();
  while (!outboxes_->is_stopped()) {
    bool has_moved = false;
    for (int r = 0; r <= mesh_->size(); ++r) {
      if (r == mesh_->rank()) continue;
      const absl::StatusOr<bool> moved =
          r == mesh_->size() ? Receive() : Send(r);
      if (!moved.ok()) return OnFailure(moved.status());
      has_moved = has_moved || *moved;
    }
    const Instant now = SteadyClock().Now();
    if (has_moved) {
      active_at = now;
    } else {
      outboxes_->Await(MpiPollInterval(now - active_at));
    }
  }
}

absl::StatusOr<bool> MpiChannels::Send(int peer) {
  UnderWay& one = sending_[peer];
  if (one.bytes == nullptr) {
    one.bytes = outboxes_->Take(peer);
    if (one.bytes == nullptr) return false;
    WEFT_RETURN_IF_ERROR(MpiStatus(
        MPI_Isend(one.bytes->data(), static_cast<int>(one.bytes->size()),
                  MPI_BYTE, ranks_[peer], tag_, session_.messages(),
                  &one.request),
        "MPI_Isend"));
  }
  int is_done = 0;
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Test(&one.request, &is_done, MPI_STATUS_IGNORE),
                "MPI_Test of a message sent"));
  if (is_done == 0) return false;
  one.bytes = nullptr;
  outboxes_->OnSent(peer);
  mesh_->OnWritten(peer);
  return true;
}

absl::StatusOr<bool> MpiChannels::Receive() {
  int is_done = 0;
  if (receiving_.bytes == nullptr) {
    MPI_Message message;
    MPI_Status status;
    WEFT_RETURN_IF_ERROR(
        MpiStatus(MPI_Improbe(MPI_ANY_SOURCE, tag_, session_.messages(),
                              &is_done, &message, &status),
                  "MPI_Improbe"));
    if (is_done == 0) return false;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    const auto from =
        std::find(ranks_.begin(), ranks_.end(), status.MPI_SOURCE);
    receiving_from_ = from == ranks_.end()
                          ? -1  // of another group, with the same hash
                          : static_cast<int>(from - ranks_.begin());
    receiving_.bytes = std::make_shared<std::string>(bytes, '\0');
    WEFT_RETURN_IF_ERROR(
        MpiStatus(MPI_Imrecv(receiving_.bytes->data(), bytes, MPI_BYTE,
                             &message, &receiving_.request),
                  "MPI_Imrecv"));
  }
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Test(&receiving_.request, &is_done, MPI_STATUS_IGNORE),
                "MPI_Test of a message taken"));
  if (is_done == 0) return false;
  const std::shared_ptr<std::string> bytes = std::move(receiving_.bytes);
  receiving_.bytes = nullptr;
  const int from = receiving_from_;
  if (from < 0) return true;
  if (const auto connection = std::move(not_heard_[from])) {
    not_heard_[from] = nullptr;
    WEFT_RETURN_IF_ERROR(mesh_->OnHello(from, connection));
  }
  mesh_->OnMessage(from, {Bytes::Own(std::move(*bytes))});
  return true;
}

void MpiChannels::OnFailure(const absl::Status& why) {
  for (int r = 0; r < mesh_->size(); ++r) {
    if (r != mesh_->rank()) mesh_->OnClosed(r, why);
  }
}

}  // namespace weft::collectives
