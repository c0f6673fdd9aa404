// Health: answers grpc.health.v1 for one endpoint.

#ifndef WEFT_NET_HEALTH_H_
#define WEFT_NET_HEALTH_H_

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "weft/base/mutex.h"
#include "weft/net/endpoint.h"

namespace weft::net {

// Thread-safety: thread-safe.
class Health {
 public:
  enum class Status { kServing, kNotServing, kServiceUnknown };

  Health() = default;
  ~Health();

  Endpoint::UnaryHandler CheckHandler();
  Endpoint::StreamAcceptor WatchAcceptor();

  // The services that may be asked for, beside the empty name.
  void SetServices(std::set<std::string> services) ABSL_LOCKS_EXCLUDED(mu_);
  void SetServing(bool serving) ABSL_LOCKS_EXCLUDED(mu_);
  // Tells the watchers that nothing is served any more, and ends them.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Watcher;

  Status StatusOf(const std::string& service) ABSL_LOCKS_EXCLUDED(mu_);
  void AddWatcher(std::weak_ptr<Watcher> watcher) ABSL_LOCKS_EXCLUDED(mu_);
  void ForEachWatcher(absl::FunctionRef<void(Watcher&)> fn)
      ABSL_LOCKS_EXCLUDED(mu_);

  Mutex mu_;
  bool serving_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::string> services_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mu_);
};

inline constexpr char kHealthCheckMethod[] = "/grpc.health.v1.Health/Check";
inline constexpr char kHealthWatchMethod[] = "/grpc.health.v1.Health/Watch";

}  // namespace weft::net

#endif  // WEFT_NET_HEALTH_H_
