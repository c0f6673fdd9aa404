// CountingTransport: counts what another transport sends, for tests of how many
// messages an operation takes.

#ifndef WEFT_TRANSPORT_TESTING_COUNTING_TRANSPORT_H_
#define WEFT_TRANSPORT_TESTING_COUNTING_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "weft/transport/transport.h"

namespace weft::transport {

// Counts the messages of all transports that count here. A message may carry
// several frames.
//
// Thread-safety: thread-safe.
struct MessageCounts {
  std::atomic<int64_t> connections{0};  // opened, by the end that opens them
  std::atomic<int64_t> messages{0};     // by the end that sends them
  std::atomic<int64_t> bytes{0};        // of these messages
};

// Thread-safety: as the transport within.
class CountingTransport final : public Transport {
 public:
  // `counts` must outlive the transport and its connections.
  CountingTransport(std::unique_ptr<Transport> inner, MessageCounts& counts)
      : inner_(std::move(inner)), counts_(counts) {}

  Driver& driver() override { return inner_->driver(); }
  void Register(const Purpose& purpose) override { inner_->Register(purpose); }
  void Accept(const Purpose& purpose, Acceptor acceptor) override {
    if (acceptor == nullptr) return inner_->Accept(purpose, nullptr);
    inner_->Accept(purpose, [this, acceptor = std::move(acceptor)](
                                std::unique_ptr<Connection> connection) {
      return acceptor(Counted(std::move(connection)));
    });
  }
  std::unique_ptr<Connection> Connect(
      const Purpose& purpose, const Destination& to,
      std::shared_ptr<ConnectionObserver> observer) override {
    ++counts_.connections;
    return Counted(inner_->Connect(purpose, to, std::move(observer)));
  }
  std::string memory_socket() const override { return inner_->memory_socket(); }
  TimerId RunAt(Instant when, absl::AnyInvocable<void() &&> fn) override {
    return inner_->RunAt(when, std::move(fn));
  }
  bool CancelTimer(TimerId id) override { return inner_->CancelTimer(id); }
  void AwaitTimers() override { inner_->AwaitTimers(); }

 private:
  class CountedConnection final : public Connection {
   public:
    CountedConnection(std::unique_ptr<Connection> inner, MessageCounts& counts)
        : inner_(std::move(inner)), counts_(counts) {}

    Written Write(Slices message) override {
      int64_t bytes = 0;
      for (const Bytes& slice : message) {
        bytes += static_cast<int64_t>(slice.size());
      }
      const Written written = inner_->Write(std::move(message));
      if (written != Written::kRefused) {
        ++counts_.messages;
        counts_.bytes += bytes;
      }
      return written;
    }
    void RequestOnWritten() override { inner_->RequestOnWritten(); }
    bool RunAfterBurst(absl::AnyInvocable<void() &&> fn) override {
      return inner_->RunAfterBurst(std::move(fn));
    }
    void Close(absl::Status status) override {
      inner_->Close(std::move(status));
    }
    absl::StatusOr<BodyMemory> UseBodyMemory() override {
      return inner_->UseBodyMemory();
    }
    std::string ProvenName() const override { return inner_->ProvenName(); }
    std::string ProvenRole() const override { return inner_->ProvenRole(); }

   private:
    const std::unique_ptr<Connection> inner_;
    MessageCounts& counts_;
  };

  std::unique_ptr<Connection> Counted(std::unique_ptr<Connection> connection) {
    return std::make_unique<CountedConnection>(std::move(connection), counts_);
  }

  const std::unique_ptr<Transport> inner_;
  MessageCounts& counts_;
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_TESTING_COUNTING_TRANSPORT_H_
