#include "weft/worker/join_group.h"

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/clock.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/collectives/backends/nccl/nccl_backend.h"
#include "weft/collectives/backends/same_device/same_device_backend.h"
#include "weft/net/edge/socket_directory.h"
#include "weft/rendezvous/membership.h"
#include "weft/rendezvous/roll_call.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/telemetry/logger.h"

namespace weft::worker {

namespace {

// Those who meet: names and, once they have met, incarnations, by rank.
struct Ranks {
  std::vector<std::string> names;
  std::vector<rendezvous::WorkerKey> keys;
  // Drawn by rank 0: no other meeting has it.
  std::string nonce;
  std::vector<BackendOffer> offers;
  int rank = 0;  // of this worker
};

absl::StatusOr<Ranks> RanksOf(const Worker& worker,
                              const JoinGroupOptions& options) {
  const Options& own = worker.options();
  Ranks ranks;
  ranks.names = options.members;
  if (ranks.names.empty()) {
    const int size = own.role == "ps" ? own.servers : own.trainers;
    for (int rank = 0; rank < size; ++rank) {
      ranks.names.push_back(absl::StrCat(own.role, rank));
    }
  }
  std::vector<std::string> sorted = ranks.names;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  const auto self =
      std::find(ranks.names.begin(), ranks.names.end(), own.name());
  if (self == ranks.names.end() || twice != sorted.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "JoinGroup ", options.name, ": wanted different members, ", own.name(),
        " among them, found [", absl::StrJoin(ranks.names, ", "), "]"));
  }
  ranks.rank = static_cast<int>(self - ranks.names.begin());
  return ranks;
}

// What each brings to the meeting: its incarnation, a nonce, and its backend.
std::string Card(const Worker& worker, const BackendOffer& offer) {
  std::random_device random;
  return absl::StrCat(worker.self().key.id, " ", worker.self().key.epoch, " ",
                      absl::Hex(uint64_t{random()} << 32 | random()), " ",
                      Encode(offer));
}

absl::Status ReadCards(const std::map<std::string, std::string>& cards,
                       Ranks* ranks) {
  for (const std::string& name : ranks->names) {
    const auto card = cards.find(name);
    const std::vector<std::string> parts = absl::StrSplit(
        card == cards.end() ? "" : card->second, absl::MaxSplits(' ', 3));
    rendezvous::WorkerKey key;
    const absl::StatusOr<BackendOffer> offer =
        DecodeOffer(parts.size() == 4 ? parts[3] : "");
    if (!offer.ok() || !absl::SimpleAtoi(parts[0], &key.id) ||
        !absl::SimpleAtoi(parts[1], &key.epoch) || parts[2].size() > 32) {
      return absl::InternalError(
          absl::StrCat("JoinGroup: what ", name,
                       " has brought to the barrier is not of "
                       "JoinGroup"));
    }
    ranks->keys.push_back(key);
    ranks->offers.push_back(*offer);
    if (ranks->nonce.empty()) ranks->nonce = parts[2];
  }
  return absl::OkStatus();
}

// Meets a whole role, where others may come in the place of those that are
// gone.
absl::StatusOr<std::map<std::string, std::string>> MeetAll(
    rendezvous::Membership& members, const std::string& tag,
    const std::string& card, const std::vector<std::string>& names,
    bool may_come_back, Instant deadline) {
  const auto left = [&] {
    return std::max(deadline - SteadyClock().Now(), absl::ZeroDuration());
  };
  for (;;) {
    auto cards = members.AllGather(tag, card, names, left());
    const bool may_pass =
        may_come_back && absl::IsUnavailable(cards.status()) &&
        members.status().ok() && left() > absl::ZeroDuration();
    if (!may_pass) return cards;
    const auto all_there = [&](const rendezvous::View& view) {
      return std::all_of(
          names.begin(), names.end(),
          [&](const std::string& name) { return view.Find(name) != nullptr; });
    };
    const absl::Status back = members.WaitFor(all_there, left()).status();
    if (!members.status().ok()) return members.status();
    if (!back.ok()) {
      return absl::DeadlineExceededError(
          absl::StrCat(cards.status().message(), ", and none came in its place",
                       " in time"));
    }
  }
}

std::string SelectorOf(const Worker& worker, const JoinGroupOptions& options) {
  return options.elastic.selector.empty()
             ? absl::StrCat("role=", worker.options().role)
             : options.elastic.selector;
}

// What cannot be, whoever else comes.
absl::Status CheckElastic(const Worker& worker,
                          const JoinGroupOptions& options) {
  const ElasticMembers& elastic = options.elastic;
  const ElasticMembers unset;
  const bool is_given = !elastic.selector.empty() || elastic.min != unset.min ||
                        elastic.max != unset.max ||
                        elastic.last_call != unset.last_call;
  if (!is_given) return absl::OkStatus();
  if (!worker.options().is_elastic()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "JoinGroup ", options.name,
        ": `elastic` is of an elastic job "
        "(--workers=MIN:MAX), and that of ",
        worker.options().name(), " is ", worker.options().world().ToString()));
  }
  if (!options.members.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("JoinGroup ", options.name,
                     ": wanted `members` or `elastic`, found "
                     "both"));
  }
  return absl::OkStatus();
}

absl::Status CheckBackend(const Worker& worker,
                          const JoinGroupOptions& options) {
  const GroupBackend& backend = options.backend;
  absl::Status wrong = CheckBackendName(backend.name);
  const bool is_of_devices =
      backend.name == "nccl" || backend.name == "same_device";
  if (wrong.ok() && is_of_devices && worker.options().is_elastic()) {
    wrong = absl::InvalidArgumentError(absl::StrCat(
        "backend ", backend.name,
        ": the members of an elastic job change, and take the backend host; "
        "wanted host or auto"));
  }
  if (wrong.ok() && backend.shared != nullptr &&
      (backend.shared->context() != backend.devices ||
       backend.shared->index() != backend.device.index())) {
    wrong = absl::InvalidArgumentError(
        "GroupBackend: wanted the shared device of its device in `shared`");
  }
  if (wrong.ok() && !backend.device.is_cpu() &&
      backend.devices.get() != backend.device.context()) {
    wrong = absl::InvalidArgumentError(
        "GroupBackend: wanted the context of its device in `devices`");
  }
  if (wrong.ok()) return wrong;
  return Reworded(
      wrong, absl::StrCat("JoinGroup ", options.name, ": ", wrong.message()));
}

// Checks against membership that the incarnations of a group are alive.
std::function<absl::Status(int)> CheckMembers(
    rendezvous::Membership& members, std::vector<rendezvous::WorkerKey> keys) {
  return [&members, keys = std::move(keys)](int rank) -> absl::Status {
    const auto view = members.view();
    if (!view->IsGone(keys[rank])) return absl::OkStatus();
    for (const rendezvous::Departed& departed : view->departed()) {
      if (departed.key == keys[rank]) {
        return absl::UnavailableError(departed.reason);
      }
    }
    return absl::UnavailableError("another has taken its place");
  };
}

// `host` with what moves tensors of devices before it, if that is the choice of
// all.
absl::StatusOr<std::unique_ptr<collectives::Backend>> WithChosen(
    Worker& worker, const JoinGroupOptions& options, const Ranks& ranks,
    const collectives::GroupEndpoint& endpoint, const std::string& name,
    std::unique_ptr<collectives::Backend> host) {
  if (options.backend.name == "host" || ranks.offers.empty()) return host;
  const bool is_insecure = worker.options().insecure;
  const auto choice = ChooseBackend(ranks.offers, ranks.names, is_insecure);
  WEFT_RETURN_IF_ERROR(choice.status());  // it was made before
  if (!choice->why.empty()) {
    WEFT_LOG(worker.telemetry().logger(), Info,
             absl::StrCat("JoinGroup ", name, ": backend ", choice->name, ": ",
                          choice->why));
  }
  if (choice->name == "host") return host;
  if (choice->name == "same_device") {
    collectives::SameDeviceOptions same;
    static_cast<collectives::GroupTerms&>(same) = endpoint;
    same.device = options.backend.shared;
    if (same.device == nullptr) {
      WEFT_ASSIGN_OR_RETURN(same.device, collectives::SharedDevice::Create(
                                             options.backend.devices,
                                             options.backend.device.index()));
    }
    return collectives::ConnectSameDevice(std::move(same), std::move(host));
  }
  collectives::NcclOptions nccl;
  static_cast<collectives::GroupEndpoint&>(nccl) = endpoint;
  nccl.context = options.backend.devices;
  nccl.device = options.backend.device.index();
  nccl.insecure = is_insecure;
  nccl.host = ranks.offers[ranks.rank].host;
  nccl.functions = options.backend.nccl;
  return collectives::ConnectNccl(std::move(nccl), std::move(host));
}

// Connects those who have met. `nonce`: no other group of this name has it.
absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> Connect(
    Worker& worker, const JoinGroupOptions& options, const std::string& name,
    Ranks ranks, Instant deadline) {
  const Options& own = worker.options();
  collectives::HostOptions host;
  host.store = &worker.membership().store();
  host.name = absl::StrCat(name, "#", ranks.nonce);
  host.rank = ranks.rank;
  host.size = static_cast<int>(ranks.keys.size());
  host.arena_bytes = options.arena_bytes;
  host.connect_timeout =
      std::max(deadline - SteadyClock().Now(), absl::ZeroDuration());
  host.memory_budget = worker.memory_budget();
  host.streams = &worker.group_streams();
  host.own_stream = {worker.self().name, worker.self().address};
  host.host = options.host_id.empty() ? own.host_id : options.host_id;
  if (host.host.empty()) {  // else it shares no memory with other hosts
    host.own_stream.memory_socket =
        worker.group_streams().transport().memory_socket();
  }
  host.dead_after = own.limits.dead_after;
  host.check_member = CheckMembers(worker.membership(), ranks.keys);
  host.check_wait = [check = host.check_member, names = ranks.names, name,
                     cancel = options.cancel] {
    WEFT_RETURN_IF_ERROR(cancel.status());
    for (size_t rank = 0; rank < names.size(); ++rank) {
      const absl::Status there = check(static_cast<int>(rank));
      if (!there.ok()) {
        return absl::Status(there.code(),
                            absl::StrCat("JoinGroup ", name, ": ", names[rank],
                                         " is gone: ", there.message()));
      }
    }
    return absl::OkStatus();
  };
  host.diagnosis.report = [&worker](absl::string_view report) {
    WEFT_LOG(worker.telemetry().logger(), Warning, report);
  };
  WEFT_ASSIGN_OR_RETURN(host.directory, net::DefaultSocketDirectory(own.job));
  const collectives::GroupEndpoint endpoint = host;
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::Backend> backend,
                        collectives::ConnectHost(std::move(host)));
  WEFT_ASSIGN_OR_RETURN(backend, WithChosen(worker, options, ranks, endpoint,
                                            name, std::move(backend)));
  collectives::GroupOptions group;
  group.name = name;
  group.timeout = options.timeout;
  group.recorder = &worker.telemetry().recorder();
  group.on_broken = [&worker](const absl::Status&) {
    worker.DumpFlightRecorder();
  };
  group.abort_source = worker.group_abort();
  return collectives::ProcessGroup::Create(std::move(backend),
                                           std::move(group));
}

absl::Status CheckIsElastic(const Worker& worker,
                            const JoinGroupOptions& options) {
  if (worker.options().is_elastic()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "MembersWaiting ", options.name, ": the job of ", worker.options().name(),
      " is ", worker.options().world().ToString(), ", not elastic"));
}

Ranks RanksOf(const Worker& worker, const rendezvous::Roll& roll) {
  Ranks ranks;
  ranks.nonce = absl::StrCat(roll.round);
  for (const rendezvous::RollEntry& entry : roll.entries) {
    if (entry.key == worker.self().key) {
      ranks.rank = static_cast<int>(ranks.keys.size());
    }
    ranks.names.push_back(entry.name);
    ranks.keys.push_back(entry.key);
  }
  return ranks;
}

// Whether one of them is gone. Who finds its streams ended hears of it before
// the view does: so it waits, for as long as silence may take to be an end.
bool IsAnyGone(Worker& worker, const std::vector<rendezvous::WorkerKey>& keys,
               Instant deadline) {
  const absl::Duration wait =
      std::min(worker.options().limits.dead_after + absl::Seconds(5),
               deadline - SteadyClock().Now());
  return worker.membership()
      .WaitFor(
          [&](const rendezvous::View& view) {
            return std::any_of(
                keys.begin(), keys.end(),
                [&](rendezvous::WorkerKey key) { return view.IsGone(key); });
          },
          std::max(wait, absl::ZeroDuration()))
      .ok();
}

absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> JoinElastic(
    Worker& worker, const JoinGroupOptions& options, Instant deadline) {
  rendezvous::RollTerms terms;
  terms.selector = SelectorOf(worker, options);
  terms.min = options.elastic.min;
  terms.max = options.elastic.max;
  terms.last_call = options.elastic.last_call;
  const std::string name = absl::StrCat(terms.selector, "/", options.name);
  const auto said_by = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat("JoinGroup: ", status.message()));
  };
  auto call = worker.roll_calls().Begin(options.name, std::move(terms));
  if (!call.ok()) return said_by(call.status());
  (*call)->OnProgress([&worker](const std::string& text) {
    WEFT_LOG(worker.telemetry().logger(), Info, "JoinGroup: " + text);
  });
  while (true) {
    auto roll = (*call)->Next(deadline, options.cancel);
    if (!roll.ok()) return said_by(roll.status());
    Ranks ranks = RanksOf(worker, *roll);
    const std::vector<rendezvous::WorkerKey> keys = ranks.keys;
    auto group = Connect(worker, options, name, std::move(ranks), deadline);
    if (group.ok() || !absl::IsUnavailable(group.status()) ||
        !IsAnyGone(worker, keys, deadline)) {
      return group;
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<std::string>> MembersNow(
    Worker& worker, absl::string_view selector) {
  const auto view = worker.membership().view();
  WEFT_ASSIGN_OR_RETURN(std::vector<const rendezvous::Member*> found,
                        view->Select(selector));
  std::sort(found.begin(), found.end(), [](const auto* a, const auto* b) {
    return std::tie(a->role, a->rank, a->name) <
           std::tie(b->role, b->rank, b->name);
  });
  std::vector<std::string> names;
  for (const rendezvous::Member* member : found) names.push_back(member->name);
  return names;
}

absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> JoinGroup(
    Worker& worker, const JoinGroupOptions& options) {
  const Options& own = worker.options();
  const absl::Duration timeout = options.join_timeout > absl::ZeroDuration()
                                     ? options.join_timeout
                                     : own.join_timeout;
  const Instant deadline = SteadyClock().Now() + timeout;
  WEFT_RETURN_IF_ERROR(CheckElastic(worker, options));
  WEFT_RETURN_IF_ERROR(CheckBackend(worker, options));
  const bool is_of_role = options.members.empty();
  if (is_of_role && own.is_elastic()) {
    return JoinElastic(worker, options, deadline);
  }
  WEFT_ASSIGN_OR_RETURN(Ranks ranks, RanksOf(worker, options));
  const std::string name =
      is_of_role ? absl::StrCat(own.role, "/", options.name) : options.name;
  WEFT_ASSIGN_OR_RETURN(
      const auto cards,
      MeetAll(worker.membership(), absl::StrCat("join_group/", name),
              Card(worker, OfferOf(options.backend, options.host_id.empty()
                                                        ? own.host_id
                                                        : options.host_id)),
              ranks.names, is_of_role, deadline));
  WEFT_RETURN_IF_ERROR(ReadCards(cards, &ranks));
  // Before anything is connected: the same on all ranks.
  const absl::Status chosen =
      ChooseBackend(ranks.offers, ranks.names, own.insecure).status();
  if (!chosen.ok()) {
    return Reworded(chosen,
                    absl::StrCat("JoinGroup ", name, ": ", chosen.message()));
  }
  return Connect(worker, options, name, std::move(ranks), deadline);
}

absl::StatusOr<std::vector<std::string>> MembersWaiting(
    Worker& worker, const JoinGroupOptions& options, absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(CheckIsElastic(worker, options));
  return worker.roll_calls().Waiting(options.name, SelectorOf(worker, options),
                                     timeout);
}

absl::StatusOr<std::vector<std::string>> AwaitMembersWaiting(
    Worker& worker, const JoinGroupOptions& options, absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(CheckIsElastic(worker, options));
  return worker.roll_calls().AwaitWaiting(options.name,
                                          SelectorOf(worker, options), timeout);
}

}  // namespace weft::worker
