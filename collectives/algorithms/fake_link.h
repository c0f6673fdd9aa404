// FakeLinks: the links of an operation whose ranks are threads of one process:
// they count what is sent, and break on demand.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_FAKE_LINK_H_
#define WEFT_COLLECTIVES_ALGORITHMS_FAKE_LINK_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "weft/base/mutex.h"
#include "weft/collectives/algorithms/link.h"

namespace weft::collectives {

// Must outlive its links. Messages are kept until they are received.
// Thread-safety: thread-safe.
class FakeLinks {
 public:
  struct Sent {
    int64_t messages = 0;
    int64_t bytes = 0;
  };

  explicit FakeLinks(int size) : sent_(size) {}

  // `rank`'s own; one thread uses it.
  std::unique_ptr<Link> Get(int rank) {
    return std::make_unique<One>(*this, rank);
  }
  int size() const { return static_cast<int>(sent_.size()); }

  // `rank` sends `messages` more messages. After that its operations, and those
  // of ranks that wait for it, end in kUnavailable.
  void BreakAfter(int rank, int64_t messages) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    broken_ = rank;
    messages_left_ = messages;
  }

  Sent SentBy(int rank) const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return sent_[rank];
  }
  // Messages that nobody has received.
  int64_t CountLeft() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    int64_t left = 0;
    for (const auto& [pair, messages] : boxes_) {
      left += static_cast<int64_t>(messages.size());
    }
    return left;
  }

 private:
  using Message = std::vector<std::byte>;

  // Hands a message over in pieces of at most this, as transports do.
  static constexpr int64_t kPieceBytes = 48;

  class One final : public Link {
   public:
    One(FakeLinks& links, int rank) : links_(links), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return links_.size(); }
    absl::Status Send(int to, absl::Span<const std::byte> bytes) override {
      return links_.Send(rank_, to, bytes);
    }
    absl::Status Receive(int from, absl::Span<std::byte> bytes) override {
      return links_.Receive(rank_, from, bytes);
    }
    absl::Status SendReceive(int to, absl::Span<const std::byte> out, int from,
                             absl::Span<std::byte> in) override {
      const absl::Status sent = Send(to, out);
      return sent.ok() ? Receive(from, in) : sent;
    }
    absl::Status SendReduce(int to, absl::Span<const std::byte> out, int from,
                            int64_t bytes, int64_t item,
                            TakePiece take) override {
      Message in(bytes);
      const absl::Status status =
          SendReceive(to, out, from, absl::MakeSpan(in));
      if (!status.ok()) return status;
      const int64_t most = kPieceBytes / item * item;
      for (int64_t at = 0; at < bytes; at += most) {
        take(at, absl::MakeConstSpan(in).subspan(at, most));
      }
      return status;
    }

   private:
    FakeLinks& links_;
    const int rank_;
  };

  static absl::Status Broken(int rank) {
    return absl::UnavailableError(absl::StrCat("rank ", rank, " has ended"));
  }

  absl::Status Send(int from, int to, absl::Span<const std::byte> bytes)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (from == to) return absl::InternalError("a message to itself");
    if (from == broken_ && messages_left_-- <= 0) {
      has_ended_ = true;
      changed_.NotifyAll();
      return Broken(from);
    }
    if (to == broken_ && has_ended_) return Broken(to);
    ++sent_[from].messages;
    sent_[from].bytes += static_cast<int64_t>(bytes.size());
    boxes_[{from, to}].emplace_back(bytes.begin(), bytes.end());
    changed_.NotifyAll();
    return absl::OkStatus();
  }

  absl::Status Receive(int to, int from, absl::Span<std::byte> bytes)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(30);
    std::deque<Message>& box = boxes_[{from, to}];
    while (box.empty()) {
      // A rank that hears of the end ends too, so that the ranks that wait for
      // it hear of it.
      if (has_ended_) return Broken(broken_);
      if (!changed_.WaitUntil(mu_, deadline)) {
        return absl::DeadlineExceededError(
            absl::StrCat("rank ", to, " waits for rank ", from));
      }
    }
    const Message message = std::move(box.front());
    box.pop_front();
    if (message.size() != bytes.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", from, " sent ", message.size(), " bytes, rank ",
                       to, " wants ", bytes.size()));
    }
    if (!message.empty()) memcpy(bytes.data(), message.data(), message.size());
    return absl::OkStatus();
  }

  mutable Mutex mu_;
  CondVar changed_;
  std::map<std::pair<int, int>, std::deque<Message>> boxes_
      ABSL_GUARDED_BY(mu_);  // by sender and receiver
  std::vector<Sent> sent_ ABSL_GUARDED_BY(mu_);
  int broken_ ABSL_GUARDED_BY(mu_) = -1;
  int64_t messages_left_ ABSL_GUARDED_BY(mu_) = 0;
  bool has_ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_FAKE_LINK_H_
