// ServerWaits: says in a worker's log for whom it waits where a thread of it
// waits long for an operation on a table.
//
// It is the thread that waits which asks the servers and reports, by the Driver
// of the Future that it waits for: what is under way, and nobody waits for,
// keeps nobody from going on.

#ifndef WEFT_PS_WAITS_SERVER_WAITS_H_
#define WEFT_PS_WAITS_SERVER_WAITS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/ps/waits/wait_board.h"
#include "weft/ps/waits/wait_text.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/extension/library.h"

namespace weft::ps {

class TableDriver;

// What ends with an agent.
class EndsWithAgent {
 public:
  virtual ~EndsWithAgent() = default;
  // The agent ends. Called once, and not after the agent's end.
  virtual void OnAgentEnd() = 0;
};

// Thread-safety: thread-safe.
class ServerWaits final : public rpc::extension::Library,
                          public std::enable_shared_from_this<ServerWaits> {
 public:
  // The one of `agent`, made when it is first asked for.
  static std::shared_ptr<ServerWaits> Of(rpc::Agent& agent);
  ~ServerWaits() override;

  // Tells `one`, while it lives, of the end of the agent.
  void EndWithAgent(const std::weak_ptr<EndsWithAgent>& one)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Those that have not answered an operation yet; must not call this back.
  using Servers = std::function<std::vector<std::string>()>;
  struct Operation {
    std::string table;
    const char* what = "";  // "Pull"; a literal
    Servers servers;        // null: those that calls of this agent wait for
  };

  // `result`, whose waits are reported. What is derived from it has a Driver
  // that lives as long as the agent.
  template <typename T>
  static Future<T> Watch(const std::shared_ptr<ServerWaits>& waits,
                         Operation operation, Future<T> result);

  // For a thread that waits for something else than a Future.
  class Wait {
   public:
    // `waits` must outlive it.
    Wait(ServerWaits& waits, Operation operation, Instant now)
        : waits_(&waits), operation_(std::move(operation)), times_(now) {}
    Instant next() const { return times_.next(); }
    // Asks or reports what is due. Holds no lock, and waits for nothing.
    void OnTime(Instant now);
    // It is over.
    void End(Instant now);

   private:
    friend class ServerWaits;
    friend class TableDriver;
    struct Asked {
      std::string server;
      Future<WaitAnswer> answer;
    };
    std::vector<ServerAnswer> Answers() const;

    ServerWaits* waits_;
    Operation operation_;
    WaitTimes times_;
    std::vector<Asked> asked_;
    bool is_reported_ = false;
  };

 private:
  explicit ServerWaits(rpc::Agent& agent);
  void OnAgentEnd() override ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t Begin(Operation operation) ABSL_LOCKS_EXCLUDED(mu_);
  void End(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  Driver& DriverFor(const std::string& table, Driver& inner)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool has_ended() const { return weak_agent()->has_ended(); }

  friend class TableDriver;
  // What is under way on `table`: all as one operation. Without a `what`:
  // nothing is.
  Operation UnderWay(const std::string& table) const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::string> ServersCalled() const;
  std::vector<Wait::Asked> Ask(const Operation& operation) const;
  void Say(const std::string& text) const;

  mutable Mutex mu_;
  std::vector<std::weak_ptr<EndsWithAgent>> end_with_agent_
      ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Operation> under_way_ ABSL_GUARDED_BY(mu_);
  // By table, and the driver that it stands before.
  std::map<std::pair<std::string, Driver*>, std::unique_ptr<TableDriver>>
      drivers_ ABSL_GUARDED_BY(mu_);
};

template <typename T>
Future<T> ServerWaits::Watch(const std::shared_ptr<ServerWaits>& waits,
                             Operation operation, Future<T> result) {
  if (result.IsReady() || waits->has_ended()) return result;
  Promise<T> promise(waits->DriverFor(operation.table, result.driver()));
  Future<T> watched = promise.future();
  promise.OnCancel(
      [result](const absl::Status& reason) { result.Cancel(reason); });
  const uint64_t id = waits->Begin(std::move(operation));
  result.OnReady([waits, id, promise = std::move(promise)](
                     const Result<T>& ended) mutable {
    waits->End(id);
    promise.Set(ended);
  });
  return watched;
}

}  // namespace weft::ps

#endif  // WEFT_PS_WAITS_SERVER_WAITS_H_
