// PinnedServers: the incarnations of the servers that hold a client's tables.
//
// A server that died has lost its tables. The next one of its name begins
// without them, or has those that another client has made since. So a client
// stays with the incarnations that it found, and once one of them has ended,
// every operation says so.

#ifndef WEFT_PS_PINNED_SERVERS_H_
#define WEFT_PS_PINNED_SERVERS_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/rpc/call.h"

namespace weft::ps {

// Thread-safety: thread-safe. Must not outlive the targets' agent.
class PinnedServers {
 public:
  // Pins `targets`, which are in the order of the servers' index. Calls to one
  // that is not there fail.
  explicit PinnedServers(const std::vector<rpc::Target>& targets);

  const rpc::Target& operator[](int server) const { return targets_[server]; }
  std::vector<rpc::Target> WithTimeout(absl::Duration timeout) const;

  // OK until the end of one of them was seen; then kUnavailable, which names
  // it, what was lost and what to do.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

  // Adds to the error of a call to one of them what was lost, if that one is
  // gone; else returns it unchanged.
  absl::Status Note(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  // `result` of calls to `servers`, with Note() of its error.
  template <typename T>
  static Future<T> Watch(const std::shared_ptr<PinnedServers>& servers,
                         Future<T> result);

 private:
  std::vector<rpc::Target> targets_;

  mutable Mutex mu_;
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
};

template <typename T>
Future<T> PinnedServers::Watch(const std::shared_ptr<PinnedServers>& servers,
                               Future<T> result) {
  Promise<T> promise(result.driver());
  Future<T> noted = promise.future();
  promise.OnCancel(
      [result](const absl::Status& reason) { result.Cancel(reason); });
  result.OnReady(
      [servers, promise = std::move(promise)](const Result<T>& ended) mutable {
        const absl::Status& status = weft::internal::StatusOf(ended);
        if (status.ok()) {
          promise.Set(ended);
        } else {
          promise.Set(servers->Note(status));
        }
      });
  return noted;
}

}  // namespace weft::ps

#endif  // WEFT_PS_PINNED_SERVERS_H_
