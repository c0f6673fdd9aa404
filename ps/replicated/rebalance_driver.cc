#include "weft/ps/replicated/rebalance_driver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/reworded.h"
#include "weft/ps/replicated/load_report.h"
#include "weft/ps/replicated/service.h"
#include "weft/rpc/call.h"
#include "weft/telemetry/logger.h"
#include "weft/telemetry/telemetry.h"

namespace weft::ps {
namespace {

constexpr absl::Duration kAskTimeout = absl::Seconds(2);
constexpr absl::Duration kTellEvery = absl::Seconds(30);  // kDryRun

v1::BalanceReply::Key ToProto(WorkerKey key) {
  v1::BalanceReply::Key proto;
  proto.set_id(key.id);
  proto.set_epoch(key.epoch);
  return proto;
}

v1::BalanceReply ToProto(const Rebalancer::Plan& plan) {
  v1::BalanceReply reply;
  for (const Rebalancer::Move& move : plan.moves) {
    v1::BalanceReply::Move& to = *reply.add_moves();
    to.set_entry(static_cast<uint32_t>(move.entry));
    *to.mutable_primary_before() = ToProto(move.primary_before);
    *to.mutable_backup_before() = ToProto(move.backup_before);
    *to.mutable_primary() = ToProto(move.primary);
    *to.mutable_backup() = ToProto(move.backup);
    *to.mutable_relieved() = ToProto(move.relieved);
    to.set_load(move.load);
  }
  for (const auto& [key, before] : plan.before) {
    v1::BalanceReply::Server& server = *reply.add_servers();
    *server.mutable_key() = ToProto(key);
    server.set_before(before);
    server.set_after(plan.after.at(key));
  }
  reply.set_held(plan.held);
  return reply;
}

// "entry 5 from 0@1, 1@1 to 2@1, 1@1 (0.120 s a second less for 0@1)": of each
// pair the primary first.
std::string TextOf(const Rebalancer::Move& move) {
  return absl::StrCat(
      "entry ", move.entry, " from ", move.primary_before.ToString(), ", ",
      move.backup_before.ToString(), " to ", move.primary.ToString(), ", ",
      move.backup.ToString(), " (", absl::SixDigits(move.load),
      " s a second less for ", move.relieved.ToString(), ")");
}

}  // namespace

// The answers of all servers.
struct RebalanceDriver::Gathering {
  Mutex mu;
  int left ABSL_GUARDED_BY(mu) = 0;
  absl::Status failed ABSL_GUARDED_BY(mu);
  std::vector<EntryLoad> sums ABSL_GUARDED_BY(mu);
  std::function<void(Loads)> then;

  void Answer(const absl::StatusOr<v1::ServerLoads>& loads) {
    Loads result = absl::UnknownError("");
    {
      MutexLock lock(mu);
      if (!loads.ok()) failed.Update(loads.status());
      if (loads.ok()) Add(*loads);
      if (--left > 0) return;
      result = failed.ok() ? Loads(std::move(sums)) : Loads(failed);
    }
    then(std::move(result));
  }

 private:
  // Nothing in it is trusted.
  void Add(const v1::ServerLoads& loads) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto sane = [](double load) {
      return load > 0 && load < 1e6 ? load : 0;  // NaN is not
    };
    for (const v1::ServerLoads::Entry& entry : loads.entries()) {
      if (entry.entry() >= sums.size()) continue;
      sums[entry.entry()].primary += sane(entry.primary());
      sums[entry.entry()].backup += sane(entry.backup());
    }
  }
};

RebalanceDriver::RebalanceDriver(Options options)
    : options_(std::move(options)), rebalancer_(options_.rebalance) {}

RebalanceDriver::~RebalanceDriver() {
  MutexLock lock(mu_);
  is_ending_ = true;
  while (calls_ > 0) calls_end_.Wait(mu_);
}

bool RebalanceDriver::BeginCall() {
  MutexLock lock(mu_);
  if (is_ending_) return false;
  ++calls_;
  return true;
}

void RebalanceDriver::EndCall() {
  MutexLock lock(mu_);
  if (--calls_ == 0) calls_end_.NotifyAll();
}

void RebalanceDriver::Gather(const PartitionMap& map,
                             std::function<void(Loads)> then) {
  std::vector<WorkerKey> servers;
  for (const PartitionMap::Server& server : map.servers()) {
    if (server.state == PartitionMap::State::kLive) {
      servers.push_back(server.key);
    }
  }
  const auto gathering = std::make_shared<Gathering>();
  gathering->then = std::move(then);
  {
    MutexLock lock(gathering->mu);
    gathering->left = static_cast<int>(servers.size()) + 1;
    gathering->sums.resize(map.entries());
  }
  for (const WorkerKey server : servers) {
    if (server == options_.self) {
      v1::ServerLoads own;
      AddEntries(options_.loads(), own);
      gathering->Answer(own);
      continue;
    }
    if (!BeginCall()) {
      gathering->Answer(absl::UnavailableError("the server shuts down"));
      continue;
    }
    rpc::CallAsync(options_.agent->To(server, kAskTimeout), &LoadsOf)
        .OnReady(
            [this, gathering](const absl::StatusOr<v1::ServerLoads>& loads) {
              gathering->Answer(loads);
              EndCall();
            });
  }
  gathering->Answer(v1::ServerLoads());  // of nobody: all have been asked
}

bool RebalanceDriver::Leads(const PartitionMap& map) const {
  WorkerKey first;
  for (const PartitionMap::Server& server : map.servers()) {
    if (server.state != PartitionMap::State::kLive) continue;
    if (IsNone(first) || server.key.id < first.id) first = server.key;
  }
  return first == options_.self;
}

void RebalanceDriver::OnTick(Instant now) {
  bool is_moving = false;
  {
    MutexLock lock(mu_);
    if (is_ending_ || is_looking_ || now < next_look_) return;
    is_moving = rebalancer_.moves_under_way() > 0;
    next_look_ = now + (is_moving ? options_.step_every : options_.look_every);
    if (!is_moving && options_.mode == RebalanceMode::kOff) return;
  }
  const PartitionMap map = options_.map();
  if (map.epoch() == 0) return;
  if (options_.mode == RebalanceMode::kOff || !Leads(map)) {
    if (is_moving) Look(map, {}, false);
    return;
  }
  {
    MutexLock lock(mu_);
    is_looking_ = true;
  }
  Gather(map, [this, map](const Loads& loads) {
    // Where one does not answer nothing begins.
    const bool has_all = loads.ok();
    if (has_all && options_.mode == RebalanceMode::kDryRun) {
      TellOfPlan(map, *loads);
    }
    Look(map, has_all ? *loads : std::vector<EntryLoad>(),
         has_all && options_.mode == RebalanceMode::kOn);
    MutexLock lock(mu_);
    is_looking_ = false;
  });
}

void RebalanceDriver::Look(const PartitionMap& map,
                           const std::vector<EntryLoad>& loads,
                           bool may_begin) {
  std::vector<MapChange> changes;
  std::vector<Rebalancer::Event> events;
  {
    MutexLock lock(mu_);
    changes = rebalancer_.OnLook(map, loads, SteadyClock().Now(), may_begin);
    events = rebalancer_.TakeEvents();
  }
  TellOf(events);
  for (const MapChange& change : changes) options_.propose(change);
}

void RebalanceDriver::TellOf(const std::vector<Rebalancer::Event>& events) {
  using Kind = Rebalancer::Event::Kind;
  for (const Rebalancer::Event& event : events) {
    WEFT_LOG(options_.agent->telemetry().logger(), Info, "rebalancing: ")
        << (event.kind == Kind::kBegun  ? "begins to move "
            : event.kind == Kind::kMade ? "has moved "
                                        : "gives up moving ")
        << TextOf(event.move);
  }
}

void RebalanceDriver::TellOfPlan(const PartitionMap& map,
                                 const std::vector<EntryLoad>& loads) {
  std::string text;
  {
    MutexLock lock(mu_);
    const Instant now = SteadyClock().Now();
    if (now < next_told_) return;
    for (const Rebalancer::Move& move : rebalancer_.PlanOf(map, loads).moves) {
      absl::StrAppend(&text, text.empty() ? "" : "; ", TextOf(move));
    }
    if (text.empty()) return;
    next_told_ = now + kTellEvery;
  }
  WEFT_LOG(options_.agent->telemetry().logger(), Info,
           "rebalancing: would move ")
      << text;
}

Future<v1::BalanceReply> RebalanceDriver::Balance(bool dry_run) {
  auto [promise, future] = MakePromise<v1::BalanceReply>();
  const auto reply =
      std::make_shared<Promise<v1::BalanceReply>>(std::move(promise));
  const PartitionMap map = options_.map();
  if (map.epoch() == 0) {
    reply->Set(absl::UnavailableError("the job's servers have not all joined"));
    return std::move(future);
  }
  Gather(map, [this, map, dry_run, reply](const Loads& loads) {
    if (!loads.ok()) {
      reply->Set(Reworded(
          loads.status(),
          absl::StrCat("a server did not say what it has to do; try again: ",
                       loads.status().message())));
      return;
    }
    Rebalancer::Plan plan;
    std::vector<Rebalancer::Event> events;
    {
      MutexLock lock(mu_);
      plan = dry_run ? rebalancer_.PlanOf(map, *loads)
                     : rebalancer_.Begin(map, *loads, SteadyClock().Now());
      events = rebalancer_.TakeEvents();
      next_look_ = Instant();
    }
    TellOf(events);
    reply->Set(ToProto(plan));
  });
  return std::move(future);
}

}  // namespace weft::ps
