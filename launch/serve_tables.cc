#include "weft/launch/serve_tables.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/clock.h"
#include "weft/ps/server.h"
#include "weft/ps/service.h"
#include "weft/rendezvous/store.h"
#include "weft/rendezvous/view.h"
#include "weft/telemetry/logger.h"

namespace weft::launch {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);

std::string TrainerName(int rank) { return absl::StrCat("trainer", rank); }

// What a view says of the trainer of that rank.
enum class Trainer { kToCome, kHere, kLeft, kDied };

Trainer StateOf(const rendezvous::View& view, int rank) {
  const std::string name = TrainerName(rank);
  if (view.Find(name) != nullptr) return Trainer::kHere;
  for (const rendezvous::Departed& departed : view.departed()) {
    if (departed.name == name) {
      return departed.left ? Trainer::kLeft : Trainer::kDied;
    }
  }
  return Trainer::kToCome;
}

// Rounds wait for the trainers that are here or still to come.
void TellServer(const rendezvous::View& view, int trainers,
                ps::Server& server) {
  for (int rank = 0; rank < trainers; ++rank) {
    switch (StateOf(view, rank)) {
      case Trainer::kToCome:
      case Trainer::kHere:
        server.Admit(rank);
        break;
      case Trainer::kLeft:
      case Trainer::kDied:
        server.DeclareDead(rank);
        break;
    }
  }
}

// Of this life of the server: an earlier one may have left its word.
std::string ServingKey(const rendezvous::Member& server) {
  return absl::StrCat("serving/", server.name, "/", server.incarnation);
}

bool AllGone(const rendezvous::View& view, int trainers) {
  for (int rank = 0; rank < trainers; ++rank) {
    const Trainer state = StateOf(view, rank);
    if (state == Trainer::kToCome || state == Trainer::kHere) return false;
  }
  return true;
}

absl::Status HowTheyEnded(const rendezvous::View& view, int trainers) {
  std::vector<std::string> died;
  for (const rendezvous::Departed& departed : view.departed()) {
    for (int rank = 0; rank < trainers; ++rank) {
      if (departed.name == TrainerName(rank) && !departed.left) {
        died.push_back(absl::StrCat(departed.name, ": ", departed.reason));
      }
    }
  }
  if (died.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("trainers died: ", absl::StrJoin(died, "; ")));
}

// Until all trainers have gone.
absl::Status Serve(worker::Worker& worker, ps::Server& server,
                   absl::FunctionRef<bool()> asked_to_stop,
                   absl::Duration grace) {
  const int trainers = worker.options().trainers;
  const auto follow = worker.membership().OnChange(
      [&](std::shared_ptr<const rendezvous::View> view) {
        TellServer(*view, trainers, server);
      });
  Instant stop_by = Instant::Infinite();
  for (;;) {
    const auto gone = worker.membership().WaitFor(
        [&](const rendezvous::View& view) { return AllGone(view, trainers); },
        kTick);
    const Instant now = SteadyClock().Now();
    server.Expire(now);
    if (gone.ok()) return HowTheyEnded(**gone, trainers);
    if (!absl::IsDeadlineExceeded(gone.status())) return gone.status();
    if (stop_by == Instant::Infinite() && asked_to_stop()) {
      WEFT_LOG(worker.telemetry().logger(), Info,
               "asked to stop; serving until the trainers have left");
      stop_by = now + grace;
    }
    if (now >= stop_by) return absl::OkStatus();
  }
}

}  // namespace

absl::Status ServeTables(worker::Worker& worker,
                         absl::FunctionRef<bool()> asked_to_stop,
                         absl::Duration grace) {
  ps::Server server({worker.options().rank, worker.options().servers, 1024,
                     &worker.telemetry()});
  worker.agent().SetLocal(&server);
  absl::Status ended =
      worker.membership()
          .store()
          .Set(ServingKey(worker.self()), "yes", worker.options().rpc_timeout)
          .status();
  if (ended.ok()) {
    ended = Serve(worker, server, asked_to_stop, grace);
  }
  server.Shutdown(absl::CancelledError(
      absl::StrCat("parameter server ", worker.self().name, " shuts down")));
  worker.agent().SetLocal<ps::Server>(nullptr);
  return ended;
}

absl::Status AwaitTables(worker::Worker& worker, absl::Duration timeout) {
  const Instant deadline = SteadyClock().Now() + timeout;
  for (int rank = 0; rank < worker.options().servers; ++rank) {
    const std::string name = absl::StrCat("ps", rank);
    const auto view = worker.membership().view();
    const rendezvous::Member* server = view->Find(name);
    if (server == nullptr) {
      return absl::UnavailableError(
          absl::StrCat(name, " has gone before it served tables"));
    }
    const auto serving = worker.membership().store().Wait(
        ServingKey(*server), 0,
        std::max(deadline - SteadyClock().Now(), absl::ZeroDuration()));
    if (!serving.ok()) {
      return absl::Status(serving.status().code(),
                          absl::StrCat(name, " does not serve tables yet: ",
                                       serving.status().message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::launch
