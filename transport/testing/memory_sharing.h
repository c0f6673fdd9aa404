// MemorySharing: a transport of one process, such as the local or the simulated
// one, whose connections share memory as processes of one host do; for tests.

#ifndef WEFT_TRANSPORT_TESTING_MEMORY_SHARING_H_
#define WEFT_TRANSPORT_TESTING_MEMORY_SHARING_H_

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "weft/base/mutex.h"
#include "weft/transport/transport.h"

namespace weft::transport {

// What passes between the transports, and what they count. It keeps a mapping
// of its own of all memory that was offered, as a hostile peer would.
//
// Thread-safety: thread-safe.
class MemoryDepot {
 public:
  // Which ends fail from now on.
  std::atomic<bool> fails_to_offer{false};
  std::atomic<bool> fails_to_take{false};

  std::atomic<int64_t> written_bytes{0};  // by connections
  std::atomic<int> offered{0};
  std::atomic<int> taken{0};

  absl::StatusOr<SharedMemory> Offer(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    ++offered;
    if (fails_to_offer) return absl::UnavailableError("no memory to offer");
    auto made = memory::Segment::Create(bytes);
    if (!made.ok()) return made.status();
    auto offer = std::make_shared<memory::Segment>(*std::move(made));
    auto spy = memory::Segment::FromFd(dup(offer->fd()), bytes);
    if (!spy.ok()) return spy.status();
    MutexLock lock(mu_);
    segments_.push_back(std::make_shared<memory::Segment>(*std::move(spy)));
    return SharedMemory{segments_.size(), std::move(offer)};
  }

  absl::StatusOr<SharedMemory> Take(uint64_t token, int64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (fails_to_take) return absl::UnavailableError("no memory to take");
    MutexLock lock(mu_);
    if (token == 0 || token > segments_.size()) {
      return absl::NotFoundError("no such memory");
    }
    auto mapped =
        memory::Segment::FromFd(dup(segments_[token - 1]->fd()), bytes);
    if (!mapped.ok()) return mapped.status();
    ++taken;
    return SharedMemory{token,
                        std::make_shared<memory::Segment>(*std::move(mapped))};
  }

  std::vector<std::shared_ptr<memory::Segment>> segments()
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return segments_;
  }

 private:
  Mutex mu_;
  std::vector<std::shared_ptr<memory::Segment>> segments_ ABSL_GUARDED_BY(mu_);
};

// Thread-safety: as `inner`.
class SharingTransport final : public Transport {
 public:
  SharingTransport(std::unique_ptr<Transport> inner,
                   std::shared_ptr<MemoryDepot> depot)
      : inner_(std::move(inner)), depot_(std::move(depot)) {}

  Driver& driver() override { return inner_->driver(); }
  void Register(const Purpose& purpose) override { inner_->Register(purpose); }
  void Accept(const Purpose& purpose, Acceptor acceptor) override {
    if (acceptor == nullptr) return inner_->Accept(purpose, nullptr);
    inner_->Accept(purpose, [depot = depot_, acceptor = std::move(acceptor)](
                                std::shared_ptr<Connection> connection) {
      return acceptor(std::make_shared<End>(std::move(connection), depot,
                                            Connection::MemoryRole::kTakes));
    });
  }
  std::shared_ptr<Connection> Connect(
      const Purpose& purpose, const Destination& to,
      std::shared_ptr<ConnectionObserver> observer) override {
    return std::make_shared<End>(
        inner_->Connect(purpose, to, std::move(observer)), depot_,
        Connection::MemoryRole::kOffers);
  }
  TimerId RunAt(Instant when, absl::AnyInvocable<void() &&> fn) override {
    return inner_->RunAt(when, std::move(fn));
  }
  bool CancelTimer(TimerId id) override { return inner_->CancelTimer(id); }
  void AwaitTimers() override { inner_->AwaitTimers(); }

 private:
  class End final : public Connection {
   public:
    End(std::shared_ptr<Connection> inner, std::shared_ptr<MemoryDepot> depot,
        MemoryRole role)
        : inner_(std::move(inner)), depot_(std::move(depot)), role_(role) {}

    Written Write(Slices message) override {
      depot_->written_bytes += static_cast<int64_t>(TotalSize(message));
      return inner_->Write(std::move(message));
    }
    void Close(absl::Status status) override {
      inner_->Close(std::move(status));
    }
    MemoryRole memory_role() const override { return role_; }
    absl::StatusOr<SharedMemory> OfferMemory(int64_t bytes) override {
      return depot_->Offer(bytes);
    }
    absl::StatusOr<SharedMemory> TakeMemory(uint64_t token,
                                            int64_t bytes) override {
      return depot_->Take(token, bytes);
    }

   private:
    const std::shared_ptr<Connection> inner_;
    const std::shared_ptr<MemoryDepot> depot_;
    const MemoryRole role_;
  };

  const std::unique_ptr<Transport> inner_;
  const std::shared_ptr<MemoryDepot> depot_;
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_TESTING_MEMORY_SHARING_H_
