// SharingTransport: a transport of one process, such as the local or the
// simulated one, whose connections share memory for bodies as those of
// processes of one host do; for tests.

#ifndef WEFT_TRANSPORT_TESTING_MEMORY_SHARING_H_
#define WEFT_TRANSPORT_TESTING_MEMORY_SHARING_H_

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "weft/base/bytes.h"
#include "weft/base/mutex.h"
#include "weft/transport/transport.h"

namespace weft::transport {

// The memory of all connections, and what they count. It keeps a mapping of its
// own of each, as a hostile peer would.
//
// Thread-safety: thread-safe.
class MemoryDepot {
 public:
  static constexpr int64_t kBytes = 2 * BodyMemory::kBytes;

  std::atomic<bool> has_none{false};      // from now on
  std::atomic<int64_t> written_bytes{0};  // by connections
  std::atomic<int64_t> written_messages{0};
  std::atomic<int> asked{0};
  std::atomic<int> ends{0};  // that have some

  // For a new connection.
  uint64_t NewId() { return ++last_id_; }

  absl::StatusOr<BodyMemory> Use(uint64_t id, bool is_caller)
      ABSL_LOCKS_EXCLUDED(mu_) {
    ++asked;
    if (has_none) return absl::ResourceExhaustedError("no memory");
    MutexLock lock(mu_);
    auto segment = segments_.find(id);
    if (segment == segments_.end()) {
      auto made = memory::Segment::Create(kBytes);
      if (!made.ok()) return made.status();
      segment = segments_.emplace(id, *std::move(made)).first;
    }
    auto mapped = memory::Segment::FromFd(dup(segment->second.fd()), kBytes);
    if (!mapped.ok()) return mapped.status();
    if (used_.emplace(id, is_caller).second) ++ends;
    auto own = std::make_shared<memory::Segment>(*std::move(mapped));
    std::byte* const first = own->data();
    std::byte* const second = first + BodyMemory::kBytes;
    if (is_caller) return BodyMemory{first, second, std::move(own)};
    return BodyMemory{second, first, std::move(own)};
  }

  // They stay as long as this does.
  std::vector<memory::Segment*> segments() ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<memory::Segment*> all;
    MutexLock lock(mu_);
    for (auto& [id, segment] : segments_) all.push_back(&segment);
    return all;
  }

 private:
  std::atomic<uint64_t> last_id_{0};
  Mutex mu_;
  std::map<uint64_t, memory::Segment> segments_ ABSL_GUARDED_BY(mu_);
  std::set<std::pair<uint64_t, bool>> used_ ABSL_GUARDED_BY(mu_);
};

// The first message of each connection begins with the number of its memory,
// which the receiving end removes.
//
// Thread-safety: as `inner`.
class SharingTransport final : public Transport {
 public:
  // `depot` must outlive the transport and its connections.
  SharingTransport(std::unique_ptr<Transport> inner, MemoryDepot& depot)
      : inner_(std::move(inner)), depot_(depot) {}

  Driver& driver() override { return inner_->driver(); }
  void Register(const Purpose& purpose) override { inner_->Register(purpose); }
  void Accept(const Purpose& purpose, Acceptor acceptor) override {
    if (acceptor == nullptr) return inner_->Accept(purpose, nullptr);
    inner_->Accept(purpose, [&depot = depot_, acceptor = std::move(acceptor)](
                                std::unique_ptr<Connection> connection) {
      auto end = std::make_unique<CalleeEnd>(std::move(connection), depot);
      auto ears = std::make_shared<ForwardingObserver>(*end);
      auto observer = acceptor(std::move(end));
      if (observer.ok()) ears->SetObserver(*std::move(observer));
      if (observer.ok()) observer = std::move(ears);
      return observer;
    });
  }
  std::unique_ptr<Connection> Connect(
      const Purpose& purpose, const Destination& to,
      std::shared_ptr<ConnectionObserver> observer) override {
    return std::make_unique<CallerEnd>(
        inner_->Connect(purpose, to, std::move(observer)), depot_);
  }
  TimerId RunAt(Instant when, absl::AnyInvocable<void() &&> fn) override {
    return inner_->RunAt(when, std::move(fn));
  }
  bool CancelTimer(TimerId id) override { return inner_->CancelTimer(id); }
  void AwaitTimers() override { inner_->AwaitTimers(); }

 private:
  class End : public Connection {
   public:
    End(std::unique_ptr<Connection> inner, MemoryDepot& depot)
        : inner_(std::move(inner)), depot_(depot) {}

    Written Write(Slices message) override {
      depot_.written_bytes += static_cast<int64_t>(TotalSize(message));
      ++depot_.written_messages;
      return inner_->Write(std::move(message));
    }
    void Close(absl::Status status) override {
      inner_->Close(std::move(status));
    }

   protected:
    MemoryDepot& depot() { return depot_; }

   private:
    const std::unique_ptr<Connection> inner_;
    MemoryDepot& depot_;
  };

  class CallerEnd final : public End {
   public:
    CallerEnd(std::unique_ptr<Connection> inner, MemoryDepot& depot)
        : End(std::move(inner), depot), id_(depot.NewId()) {}

    Written Write(Slices message) override {
      // Set before the write: OnWritten may come before it returns.
      if (!has_sent_id_.exchange(true)) {
        Slices with_id = {Bytes::Copy(absl::string_view(
            reinterpret_cast<const char*>(&id_), sizeof id_))};
        for (Bytes& slice : message) with_id.push_back(std::move(slice));
        message = std::move(with_id);
      }
      return End::Write(std::move(message));
    }
    absl::StatusOr<BodyMemory> UseBodyMemory() override {
      return depot().Use(id_, /*is_caller=*/true);
    }

   private:
    const uint64_t id_;
    std::atomic<bool> has_sent_id_{false};
  };

  class CalleeEnd final : public End {
   public:
    using End::End;

    absl::StatusOr<BodyMemory> UseBodyMemory() override {
      if (*id == 0) return End::UseBodyMemory();
      return depot().Use(*id, /*is_caller=*/false);
    }

    // 0 until its first message has come: that hears the end's
    // ForwardingObserver, which may live longer.
    const std::shared_ptr<std::atomic<uint64_t>> id =
        std::make_shared<std::atomic<uint64_t>>(0);
  };

  // Hears for the end that accepted.
  class ForwardingObserver final : public ConnectionObserver {
   public:
    explicit ForwardingObserver(const CalleeEnd& end) : id_(end.id) {}

    // Before anything is heard.
    void SetObserver(std::shared_ptr<ConnectionObserver> observer) {
      observer_ = std::move(observer);
    }

    void OnMessage(Slices message) override {
      if (*id_ == 0) {
        uint64_t id = 0;
        std::memcpy(&id, message.front().data(), sizeof id);
        *id_ = id;
        Slices rest;
        for (size_t i = 1; i < message.size(); ++i) rest.push_back(message[i]);
        message = std::move(rest);
      }
      observer_->OnMessage(std::move(message));
    }
    void OnWritten() override { observer_->OnWritten(); }
    void OnClosed(absl::Status status) override {
      observer_->OnClosed(std::move(status));
    }

   private:
    std::shared_ptr<ConnectionObserver> observer_;
    const decltype(CalleeEnd::id) id_;
  };

  const std::unique_ptr<Transport> inner_;
  MemoryDepot& depot_;
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_TESTING_MEMORY_SHARING_H_
