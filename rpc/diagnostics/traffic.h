// Traffic: how much an agent and each of its peers have exchanged.

#ifndef WEFT_RPC_DIAGNOSTICS_TRAFFIC_H_
#define WEFT_RPC_DIAGNOSTICS_TRAFFIC_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "weft/base/mutex.h"

namespace weft::rpc {

// With one peer, over all of its incarnations. Bytes are those of arguments and
// results.
//
// Thread-safety: thread-safe.
class Traffic {
 public:
  struct Counts {
    int64_t calls = 0;  // made
    int64_t errors = 0;
    int64_t served = 0;
    int64_t served_errors = 0;
    int64_t sent_bytes = 0;
    int64_t received_bytes = 0;
  };

  void CountCall() { Add(calls_, 1); }
  // A request or reply leaves for the first time: not all do.
  void CountSent(size_t bytes) { Add(sent_bytes_, bytes); }
  void CountEnd(bool ok, size_t bytes) {
    if (!ok) Add(errors_, 1);
    Add(received_bytes_, bytes);
  }
  void CountServed(size_t bytes) {
    Add(served_, 1);
    Add(received_bytes_, bytes);
  }
  // Counts a reply; its bytes are counted by CountSent when it is sent.
  void CountReply(bool ok) {
    if (!ok) Add(served_errors_, 1);
  }

  Counts counts() const {
    return {calls_,         errors_,     served_,
            served_errors_, sent_bytes_, received_bytes_};
  }

 private:
  using Count = std::atomic<int64_t>;
  static void Add(Count& count, size_t by) {
    if (by > 0) count.fetch_add(by, std::memory_order_relaxed);
  }

  Count calls_{0};
  Count errors_{0};
  Count served_{0};
  Count served_errors_{0};
  Count sent_bytes_{0};
  Count received_bytes_{0};
};

// The Traffic of each peer by name; those beyond kMaxPeers share one, so that
// names cannot fill the memory.
//
// Thread-safety: thread-safe.
class TrafficTable {
 public:
  static constexpr size_t kMaxPeers = 256;
  static constexpr char kOthers[] = "others";

  // Lives as long as the table.
  Traffic& Of(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    const auto known = by_peer_.find(peer);
    if (known != by_peer_.end()) return *known->second;
    auto& traffic = by_peer_[by_peer_.size() < kMaxPeers ? peer : kOthers];
    if (traffic == nullptr) traffic = std::make_unique<Traffic>();
    return *traffic;
  }

  std::map<std::string, Traffic::Counts> Counts() const
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::map<std::string, Traffic::Counts> counts;
    MutexLock lock(mu_);
    for (const auto& [peer, traffic] : by_peer_) {
      counts[peer] = traffic->counts();
    }
    return counts;
  }

 private:
  mutable Mutex mu_;
  std::map<std::string, std::unique_ptr<Traffic>> by_peer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_DIAGNOSTICS_TRAFFIC_H_
