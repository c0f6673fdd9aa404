// ConnectQueue: lets an agent make few first connections at once.
//
// Where every worker of a job calls every other for the first time, all of them
// would make all connections at the same time, and each connection would take
// as long as all together: on a host of few cores longer than handshakes and
// peers are waited for. So few are made at once, fewer while each takes long,
// and more while each is quick, as between hosts that are far apart.
//
// A peer that does not answer must not keep others waiting: where no connection
// has come about for kPatience, those under way count no more, and twice as
// many may be made at once.

#ifndef WEFT_RPC_AGENT_CONNECT_QUEUE_H_
#define WEFT_RPC_AGENT_CONNECT_QUEUE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"

namespace weft::rpc {

// Thread-safety: thread-safe.
class ConnectQueue : public std::enable_shared_from_this<ConnectQueue> {
 public:
  static constexpr int kAtFirst = 8;
  static constexpr int kLeast = 2;
  static constexpr int kMost = 64;
  static constexpr absl::Duration kQuick = absl::Milliseconds(200);
  static constexpr absl::Duration kSlow = absl::Milliseconds(500);
  static constexpr absl::Duration kPatience = absl::Seconds(1);

  // The place of one attempt. Whoever holds it lets it go when the attempt has
  // failed or, after Succeeded(), succeeded.
  class Attempt {
   public:
    Attempt(std::weak_ptr<ConnectQueue> queue, uint64_t round, Instant began)
        : queue_(std::move(queue)), round_(round), began_(began) {}
    ~Attempt();
    Attempt(const Attempt&) = delete;
    Attempt& operator=(const Attempt&) = delete;

    void Succeeded() { has_succeeded_ = true; }

   private:
    const std::weak_ptr<ConnectQueue> queue_;
    const uint64_t round_;
    const Instant began_;
    bool has_succeeded_ = false;
  };
  using Place = std::unique_ptr<Attempt>;
  // Begins an attempt.
  using Begin = std::function<void(Place place)>;
  // Runs a function at a time, as Transport::RunAt.
  using RunAt = std::function<void(Instant when, std::function<void()> fn)>;

  // `first`: which peer's turn it is first, by its id; the others follow by
  // theirs. Different for each agent, so that not all begin with one peer.
  ConnectQueue(const Clock& clock, RunAt run_at, uint32_t first)
      : clock_(clock), run_at_(std::move(run_at)), first_(first) {}

  // Calls `begin` once: now, or later on a thread of `run_at` or of who lets a
  // place go. Never under a lock.
  void Enter(uint32_t peer, Begin begin) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Left(uint64_t round, absl::Duration took, bool has_succeeded)
      ABSL_LOCKS_EXCLUDED(mu_);
  void LookAround() ABSL_LOCKS_EXCLUDED(mu_);
  // Takes those whose turn it is.
  std::vector<Begin> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins them. An attempt may end as it begins, many in a row: so one caller
  // at a time begins all, on a flat stack.
  void BeginNext() ABSL_LOCKS_EXCLUDED(mu_);
  void LookAroundLater();

  const Clock& clock_;
  const RunAt run_at_;
  const uint32_t first_;
  Mutex mu_;
  std::multimap<uint32_t, Begin> waiting_ ABSL_GUARDED_BY(mu_);
  int at_once_ ABSL_GUARDED_BY(mu_) = kAtFirst;
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  // Places of earlier rounds count no more.
  uint64_t round_ ABSL_GUARDED_BY(mu_) = 0;
  Instant left_at_ ABSL_GUARDED_BY(mu_);  // the last that has succeeded
  bool is_looking_ ABSL_GUARDED_BY(mu_) = false;
  bool is_beginning_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_CONNECT_QUEUE_H_
