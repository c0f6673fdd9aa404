// RingTransport: a transport of one process, such as the local one, whose
// connections go over to rings in shared memory as those within a host do; for
// tests.

#ifndef WEFT_TRANSPORT_TESTING_RING_TRANSPORT_H_
#define WEFT_TRANSPORT_TESTING_RING_TRANSPORT_H_

#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "weft/base/check.h"
#include "weft/base/mutex.h"
#include "weft/net/loop/memory_queue.h"
#include "weft/net/loop/poller.h"
#include "weft/transport/shm/ring_connection.h"
#include "weft/transport/transport.h"

namespace weft::transport {

// The two ends of a new pair of rings, as two processes would map them.
struct RingPair {
  SharedRings caller;
  SharedRings callee;

  static RingPair Make() {
    auto memory = *SharedRings::CreateMemory();
    auto again = *SharedRings::MapMemory(dup(memory.fd()));
    net::EventFd own = *net::EventFd::Create();
    net::EventFd peer = *net::EventFd::Create();
    const auto copy = [](const net::EventFd& event_fd) {
      return *net::EventFd::FromDescriptor(net::Descriptor(dup(event_fd.fd())));
    };
    net::EventFd own_there = copy(own);
    net::EventFd peer_there = copy(peer);
    return {{std::make_shared<memory::Segment>(std::move(memory)),
             std::move(own), std::move(peer), true},
            {std::make_shared<memory::Segment>(std::move(again)),
             std::move(peer_there), std::move(own_there), false}};
  }
};

// Where callees find the offers made to them: by the address and the purpose,
// in the order of the connections.
class RingDepot {
 public:
  void Put(const std::string& address, const Purpose& purpose,
           SharedRings rings) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    offered_[{address, purpose.name}].push_back(std::move(rings));
  }
  std::optional<SharedRings> Take(const std::string& address,
                                  const Purpose& purpose)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    std::deque<SharedRings>& rings = offered_[{address, purpose.name}];
    if (rings.empty()) return std::nullopt;
    std::optional<SharedRings> first = std::move(rings.front());
    rings.pop_front();
    return first;
  }

 private:
  Mutex mu_;
  std::map<std::pair<std::string, std::string>, std::deque<SharedRings>>
      offered_ ABSL_GUARDED_BY(mu_);
};

// Thread-safety: as `inner`.
class RingTransport final : public Transport {
 public:
  // `depot` must outlive it.
  RingTransport(std::unique_ptr<Transport> inner, std::string address,
                RingDepot& depot)
      : address_(std::move(address)),
        depot_(depot),
        watch_(std::make_shared<Watch>()),
        inner_(std::move(inner)) {}
  ~RingTransport() override {
    inner_ = nullptr;
    Discard();
    watch_->End();
  }

  Driver& driver() override { return watch_->poller(); }

  void Register(const Purpose& purpose) override { inner_->Register(purpose); }
  void Accept(const Purpose& purpose, Acceptor acceptor) override {
    if (acceptor == nullptr) return inner_->Accept(purpose, nullptr);
    inner_->Accept(purpose, [this, purpose, acceptor = std::move(acceptor)](
                                std::unique_ptr<Connection> connection) {
      net::FairLockHolder turn(watch_->running());
      std::optional<SharedRings> rings = depot_.Take(address_, purpose);
      if (!rings.has_value()) return acceptor(std::move(connection));
      auto ring = Start(*std::move(rings));
      auto observer = acceptor(ring->Attach(std::move(connection)));
      if (!observer.ok()) {
        ring->Discard();
        return observer;
      }
      ring->Observe(*std::move(observer));
      observer = std::make_shared<ForwardingObserver>(std::move(ring), watch_);
      return observer;
    });
  }
  std::unique_ptr<Connection> Connect(
      const Purpose& purpose, const Destination& to,
      std::shared_ptr<ConnectionObserver> observer) override {
    RingPair pair = RingPair::Make();
    depot_.Put(to.address, purpose, std::move(pair.callee));
    auto ring = Start(std::move(pair.caller));
    ring->Observe(std::move(observer));
    return ring->Attach(inner_->Connect(
        purpose, to, std::make_shared<ForwardingObserver>(ring, watch_)));
  }

  TimerId RunAt(Instant when, absl::AnyInvocable<void() &&> fn) override {
    return inner_->RunAt(when, [watch = watch_, fn = std::move(fn)]() mutable {
      net::FairLockHolder turn(watch->running());
      std::move(fn)();
    });
  }
  bool CancelTimer(TimerId id) override { return inner_->CancelTimer(id); }
  void AwaitTimers() override { inner_->AwaitTimers(); }

 private:
  class Watch final : public net::MemoryWatch {
   public:
    Watch() { WEFT_CHECK(poller_.Start().ok()); }
    absl::Status AddMemory(std::shared_ptr<net::MemorySource> source) override {
      return queue_->Add(std::move(source));
    }
    void RemoveMemory(const net::MemorySource* source) override {
      queue_->Remove(source);
    }
    void End() {
      queue_->End();
      poller_.Join();
    }
    net::Poller& poller() { return poller_; }
    net::FairLock& running() { return group_.running; }

   private:
    const std::unique_ptr<net::MemoryQueue> queue_ =
        *net::MemoryQueue::Create();
    net::PollerGroup group_;
    net::Poller poller_{*queue_, OptionsOf(group_)};

    static net::PollerOptions OptionsOf(net::PollerGroup& group) {
      net::PollerOptions options;
      options.group = &group;
      return options;
    }
  };

  // What a stream hears is heard among the events of the rings.
  class ForwardingObserver final : public ConnectionObserver {
   public:
    ForwardingObserver(std::shared_ptr<RingConnection> ring,
                       std::shared_ptr<Watch> watch)
        : ring_(std::move(ring)), watch_(std::move(watch)) {}
    void OnMessage(Slices message) override {
      net::FairLockHolder turn(watch_->running());
      ring_->OnMessage(std::move(message));
    }
    void OnWritten() override {
      net::FairLockHolder turn(watch_->running());
      ring_->OnWritten();
    }
    void OnClosed(absl::Status status) override {
      net::FairLockHolder turn(watch_->running());
      ring_->OnClosed(std::move(status));
    }

   private:
    const std::shared_ptr<RingConnection> ring_;
    const std::shared_ptr<Watch> watch_;
  };

  std::shared_ptr<RingConnection> Start(SharedRings rings)
      ABSL_LOCKS_EXCLUDED(mu_) {
    auto ring = std::make_shared<RingConnection>(std::move(rings), watch_);
    WEFT_CHECK(ring->Start().ok());
    MutexLock lock(mu_);
    rings_.push_back(ring);
    return ring;
  }

  // Breaks the cycle of an end and its observer, which hold each other, when
  // `inner_` releases the end without closing it.
  void Discard() ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<std::weak_ptr<RingConnection>> rings;
    {
      MutexLock lock(mu_);
      rings.swap(rings_);
    }
    for (const std::weak_ptr<RingConnection>& ring : rings) {
      net::FairLockHolder turn(watch_->running());
      if (const auto left = ring.lock()) left->Discard();
    }
  }

  const std::string address_;
  RingDepot& depot_;
  const std::shared_ptr<Watch> watch_;
  Mutex mu_;
  std::vector<std::weak_ptr<RingConnection>> rings_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Transport> inner_;
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_TESTING_RING_TRANSPORT_H_
