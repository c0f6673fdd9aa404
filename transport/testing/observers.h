// Observers of connections, for tests.

#ifndef WEFT_TRANSPORT_TESTING_OBSERVERS_H_
#define WEFT_TRANSPORT_TESTING_OBSERVERS_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/transport/transport.h"

namespace weft::transport {

// Keeps what it hears; the test waits for it in the transport's own way.
class HearingObserver final : public ConnectionObserver {
 public:
  explicit HearingObserver(Driver& driver)
      : closed_(driver), messages_(driver), written_(driver) {}

  // `messages` must come for got() to be ready.
  void Expect(size_t messages) { expected_ = messages; }
  Future<void> got() { return messages_.future(); }
  Future<void> closed() { return closed_.future(); }
  Future<void> written() { return written_.future(); }

  std::vector<std::string> texts() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return texts_;
  }
  int closings() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return closings_;
  }

  void OnMessage(Slices message) override {
    size_t count;
    {
      MutexLock lock(mu_);
      texts_.emplace_back(Flatten(message).view());
      count = texts_.size();
    }
    if (count == expected_) messages_.Set(absl::OkStatus());
    if (echo != nullptr &&
        echo->Write(std::move(message)) == Connection::Written::kDone) {
      written_.Set(absl::OkStatus());
    }
  }
  void OnWritten() override { written_.Set(absl::OkStatus()); }
  void OnClosed(absl::Status status) override {
    {
      MutexLock lock(mu_);
      ++closings_;
    }
    echo = nullptr;
    closed_.Set(std::move(status));
  }

  std::unique_ptr<Connection> echo;  // what comes goes back there

 private:
  size_t expected_ = 1;
  Promise<void> closed_;
  Promise<void> messages_;
  Promise<void> written_;
  Mutex mu_;
  std::vector<std::string> texts_ ABSL_GUARDED_BY(mu_);
  int closings_ ABSL_GUARDED_BY(mu_) = 0;
};

// Writes texts, one after the other, and notes how the connection ends.
class SendingObserver final : public ConnectionObserver {
 public:
  SendingObserver(Driver& driver, std::deque<std::string> texts)
      : closed_(driver), texts_(std::move(texts)) {}

  void Start(std::unique_ptr<Connection> connection) {
    {
      MutexLock lock(mu_);
      if (!is_closed_) connection_ = std::move(connection);
    }
    SendNext();
  }
  void Close() {
    Connection* connection = nullptr;
    {
      MutexLock lock(mu_);
      if (!is_closed_) connection = connection_.get();
    }
    if (connection != nullptr) connection->Close(absl::AbortedError("enough"));
  }
  Future<void> closed() { return closed_.future(); }

  void OnMessage(Slices) override {}
  void OnWritten() override { SendNext(); }
  void OnClosed(absl::Status status) override {
    {
      MutexLock lock(mu_);
      is_closed_ = true;
    }
    closed_.Set(std::move(status));
  }

 private:
  void SendNext() ABSL_LOCKS_EXCLUDED(mu_) {
    for (;;) {
      Connection* connection;
      std::string text;
      {
        MutexLock lock(mu_);
        if (is_closed_ || connection_ == nullptr || texts_.empty()) return;
        connection = connection_.get();
        text = std::move(texts_.front());
        texts_.pop_front();
      }
      const Connection::Written written =
          connection->Write({Bytes::Copy(text)});
      EXPECT_NE(written, Connection::Written::kRefused);
      if (written != Connection::Written::kDone) return;
    }
  }

  Promise<void> closed_;
  Mutex mu_;
  // Until its own end: the transport releases it after OnClosed.
  std::unique_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> texts_ ABSL_GUARDED_BY(mu_);
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_TESTING_OBSERVERS_H_
