#include "weft/ps/waits/server_waits.h"

#include <algorithm>
#include <atomic>
#include <set>

#include "absl/strings/match.h"
#include "weft/rpc/call.h"
#include "weft/rpc/session/failure.h"
#include "weft/telemetry/logger.h"
#include "weft/telemetry/telemetry.h"

namespace weft::ps {
namespace {

constexpr absl::Duration kAskTimeout = absl::Seconds(5);
// Whoever waits in short pieces goes on with the same wait.
constexpr absl::Duration kPieces = absl::Seconds(1);
constexpr absl::Duration kMeanwhile = absl::Milliseconds(20);

}  // namespace

// Waits as `inner` does, and reports it.
//
// Thread-safety: thread-safe.
class TableDriver final : public Driver {
 public:
  TableDriver(ServerWaits& waits, std::string table, Driver& inner)
      : waits_(waits), table_(std::move(table)), inner_(inner) {}

  Clock& clock() override { return inner_.clock(); }

  bool Wait(Waitable& what, Instant deadline) override {
    const Instant began = clock().Now();
    Instant next = NextOf(what, began);
    for (;;) {
      const bool is_ready = inner_.Wait(what, std::min(deadline, next));
      if (is_ready && open_.load(std::memory_order_relaxed) == 0) return true;
      const Instant now = clock().Now();
      if (is_ready) {
        EndWait(what, now);
        return true;
      }
      next = OnTime(what, began, now, /*goes_on=*/now < deadline);
      if (now >= deadline) return what.IsReady();
    }
  }

 private:
  struct Open {
    explicit Open(ServerWaits::Wait its_wait) : wait(std::move(its_wait)) {}
    ServerWaits::Wait wait;
    Instant seen;
    bool goes_on = false;  // a thread is in it
    // Several threads may wait for one Future: one of them has `wait`, which
    // ends it if another has seen the end meanwhile.
    bool is_busy = false;
    bool is_over = false;
  };
  using OpenWaits = std::map<const Waitable*, std::shared_ptr<Open>>;

  Instant NextOf(const Waitable& what, Instant began) {
    if (open_.load(std::memory_order_relaxed) > 0) {
      MutexLock lock(mu_);
      const auto it = waits_open_.find(&what);
      if (it != waits_open_.end()) return it->second->wait.next();
    }
    return WaitTimes(began).next();
  }

  // Returns when it is to be called again.
  Instant OnTime(const Waitable& what, Instant began, Instant now,
                 bool goes_on) {
    std::shared_ptr<Open> open;
    std::vector<std::shared_ptr<Open>> given_up;
    {
      MutexLock lock(mu_);
      for (auto it = waits_open_.begin(); it != waits_open_.end();) {
        const Open& one = *it->second;
        if (one.goes_on || one.is_busy || now - one.seen < kPieces) {
          ++it;
          continue;
        }
        given_up.push_back(std::move(it->second));
        it = waits_open_.erase(it);
      }
      std::shared_ptr<Open>& kept = waits_open_[&what];
      if (kept == nullptr) {
        kept = std::make_shared<Open>(
            ServerWaits::Wait(waits_, {table_, "", nullptr}, began));
      }
      kept->seen = now;
      kept->goes_on = goes_on;
      open = kept;
      if (open->is_busy) return now + kMeanwhile;
      open->is_busy = true;
      open_.store(waits_open_.size(), std::memory_order_relaxed);
    }
    for (const auto& one : given_up) one->wait.End(now);
    open->wait.operation_ = waits_.UnderWay(table_);
    open->wait.OnTime(now);
    const Instant next = open->wait.next();
    bool is_over = false;
    {
      MutexLock lock(mu_);
      open->is_busy = false;
      is_over = open->is_over;
    }
    if (is_over) open->wait.End(now);
    return next;
  }

  void EndWait(const Waitable& what, Instant now) {
    std::shared_ptr<Open> open;
    {
      MutexLock lock(mu_);
      const auto it = waits_open_.find(&what);
      if (it == waits_open_.end()) return;
      open = std::move(it->second);
      waits_open_.erase(it);
      open_.store(waits_open_.size(), std::memory_order_relaxed);
      open->is_over = true;
      if (open->is_busy) return;
    }
    open->wait.End(now);
  }

  ServerWaits& waits_;
  const std::string table_;
  Driver& inner_;
  std::atomic<size_t> open_{0};  // of waits_open_
  Mutex mu_;
  OpenWaits waits_open_ ABSL_GUARDED_BY(mu_);
};

ServerWaits::ServerWaits(rpc::Agent& agent) : Library(agent) {}
ServerWaits::~ServerWaits() = default;

std::shared_ptr<ServerWaits> ServerWaits::Of(rpc::Agent& agent) {
  if (auto found = Library::Of<ServerWaits>(agent)) return found;
  std::shared_ptr<ServerWaits> made(new ServerWaits(agent));
  // Where another thread was faster this one has ended, and reports nothing.
  (void)Attach(made, {"weft.ps.waits"});
  return made;
}

void ServerWaits::EndWithAgent(const std::weak_ptr<EndsWithAgent>& one) {
  MutexLock lock(mu_);
  end_with_agent_.erase(
      std::remove_if(end_with_agent_.begin(), end_with_agent_.end(),
                     [](const auto& other) { return other.expired(); }),
      end_with_agent_.end());
  end_with_agent_.push_back(one);
}

void ServerWaits::OnAgentEnd() {
  std::vector<std::weak_ptr<EndsWithAgent>> ending;
  {
    MutexLock lock(mu_);
    ending.swap(end_with_agent_);
  }
  for (const auto& weak : ending) {
    if (const auto live = weak.lock()) live->OnAgentEnd();
  }
}

uint64_t ServerWaits::Begin(Operation operation) {
  MutexLock lock(mu_);
  under_way_.emplace(++last_id_, std::move(operation));
  return last_id_;
}

void ServerWaits::End(uint64_t id) {
  MutexLock lock(mu_);
  under_way_.erase(id);
}

Driver& ServerWaits::DriverFor(const std::string& table, Driver& inner) {
  // What is derived from a watched Future is watched by the same driver.
  if (dynamic_cast<TableDriver*>(&inner) != nullptr) return inner;
  MutexLock lock(mu_);
  std::unique_ptr<TableDriver>& driver = drivers_[{table, &inner}];
  if (driver == nullptr) {
    driver = std::make_unique<TableDriver>(*this, table, inner);
  }
  return *driver;
}

ServerWaits::Operation ServerWaits::UnderWay(const std::string& table) const {
  std::vector<Operation> found;
  {
    MutexLock lock(mu_);
    for (const auto& [id, operation] : under_way_) {
      if (operation.table == table) found.push_back(operation);
    }
  }
  Operation all;
  all.table = table;
  // Nearly always there is one; of several the oldest stands for them.
  if (!found.empty()) all.what = found.front().what;
  all.servers = [this, found] {
    std::set<std::string> servers;
    for (const Operation& one : found) {
      const auto its = one.servers ? one.servers() : ServersCalled();
      servers.insert(its.begin(), its.end());
    }
    return std::vector<std::string>(servers.begin(), servers.end());
  };
  return all;
}

std::vector<std::string> ServerWaits::ServersCalled() const {
  std::set<std::string> servers;
  const rpc::extension::WeakAgent::Use agent(*weak_agent());
  if (!agent) return {};
  for (const rpc::PendingCall& call : agent->Pending()) {
    if (call.is_served || !absl::StrContains(call.function, "ps::")) continue;
    if (absl::StrContains(call.function, "DescribeWaits")) continue;
    servers.insert(call.peer);
  }
  return {servers.begin(), servers.end()};
}

std::vector<ServerWaits::Wait::Asked> ServerWaits::Ask(
    const Operation& operation) const {
  std::vector<Wait::Asked> asked;
  for (std::string& server : operation.servers()) {
    const rpc::extension::WeakAgent::Use agent(*weak_agent());
    if (!agent) break;
    Future<WaitAnswer> answer = rpc::CallAsync(agent->To(server, kAskTimeout),
                                               &DescribeWaits, operation.table);
    asked.push_back({std::move(server), std::move(answer)});
  }
  return asked;
}

void ServerWaits::Say(const std::string& text) const {
  const rpc::extension::WeakAgent::Use agent(*weak_agent());
  if (!agent) return;
  WEFT_LOG(agent->telemetry().logger(), Warning, text);
}

std::vector<ServerAnswer> ServerWaits::Wait::Answers() const {
  std::vector<ServerAnswer> answers;
  std::vector<std::string> still =
      operation_.servers ? operation_.servers() : std::vector<std::string>();
  for (const Asked& one : asked_) {
    // It may have done its part meanwhile.
    if (std::find(still.begin(), still.end(), one.server) == still.end()) {
      continue;
    }
    ServerAnswer answer;
    answer.server = one.server;
    const Result<WaitAnswer>* const said = one.answer.Peek();
    if (said != nullptr) {
      // A server that refuses the question answers it, too; one that is gone is
      // not called (IsLocal).
      answer.has_answered =
          said->ok() || (!absl::IsUnavailable(said->status()) &&
                         !absl::IsDeadlineExceeded(said->status()) &&
                         !rpc::IsLocal(said->status()));
      if (said->ok()) answer.waits = **said;
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

void ServerWaits::Wait::OnTime(Instant now) {
  switch (times_.OnTime(now)) {
    case WaitTimes::Due::kNothing:
      return;
    case WaitTimes::Due::kQuestion:
      asked_ =
          operation_.servers ? waits_->Ask(operation_) : std::vector<Asked>();
      return;
    case WaitTimes::Due::kReport:
      break;
  }
  if (*operation_.what == '\0') return;  // it waits for something of its own
  is_reported_ = true;
  waits_->Say(WaitText(operation_.what, operation_.table, now - times_.since(),
                       waits_->name(), Answers()));
}

void ServerWaits::Wait::End(Instant now) {
  // Nobody reads the answers: they are not to keep the agent from its end.
  for (const Asked& one : asked_) one.answer.Cancel();
  asked_.clear();
  if (!is_reported_) return;
  is_reported_ = false;
  const char* const what = *operation_.what == '\0' ? "Wait" : operation_.what;
  waits_->Say(EndOfWaitText(what, operation_.table, now - times_.since()));
}

}  // namespace weft::ps
