#include "weft/collectives/backends/device/device_flights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/reworded.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"

namespace weft::collectives {
namespace {

// How often an event is asked for: at first, and at last.
constexpr absl::Duration kLeastPause = absl::Microseconds(5);
constexpr absl::Duration kMostPause = absl::Microseconds(200);
// How often is looked whether all ranks live.
constexpr absl::Duration kCheckRanksInterval = absl::Milliseconds(100);

}  // namespace

DeviceFlights::~DeviceFlights() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status DeviceFlights::Start() {
  WEFT_ASSIGN_OR_RETURN(thread_, StartThread("flights", [this] { Run(); }));
  return absl::OkStatus();
}

void DeviceFlights::Add(DeviceFlight flight) {
  MutexLock lock(mu_);
  flights_.push_back(std::move(flight));
  changed_.NotifyAll();
}

void DeviceFlights::Run() {
  absl::Duration pause = kLeastPause;
  while (true) {
    DeviceFlight* first = nullptr;
    {
      MutexLock lock(mu_);
      while (flights_.empty() && !stopping_) changed_.Wait(mu_);
      if (flights_.empty()) return;
      first = &flights_.front();
    }
    absl::optional<absl::Status> end = Look(*first);
    if (!end.has_value()) {
      absl::SleepFor(pause);
      pause = std::min(pause * 2, kMostPause);
      continue;
    }
    pause = kLeastPause;
    std::list<DeviceFlight> ended;
    {
      MutexLock lock(mu_);
      ended.splice(ended.end(), flights_, flights_.begin());
    }
    DeviceFlight& flight = ended.front();
    flight.passage = nullptr;
    flight.scratch = {};
    std::move(flight.done)(*std::move(end));
  }
}

absl::optional<absl::Status> DeviceFlights::Look(DeviceFlight& flight) {
  if (flight.ended.has_value()) return flight.ended;
  if (!flight.failure.ok()) Break(flight.failure);
  const absl::StatusOr<bool> is_over = stream_.runtime().Query(flight.event);
  if (!is_over.ok()) {
    // The device has failed, and runs nothing any more.
    Break(is_over.status());
    return is_over.status();
  }
  const bool has_failed = !broken_.ok() || !flight.failure.ok();
  if (*is_over && (has_failed || communicator_.HasEnded(flight.scratch))) {
    if (flight.passage != nullptr) flight.passage->Finish();
    return flight.failure.ok() ? broken_ : flight.failure;
  }
  if (broken_.ok()) {
    if (const absl::Status why = CheckAll(); !why.ok()) Break(why);
    return absl::nullopt;
  }
  if (host_.driver().clock().Now() < given_up_at_) return absl::nullopt;
  return flight.failure.ok() ? broken_ : flight.failure;
}

absl::Status DeviceFlights::CheckAll() {
  WEFT_RETURN_IF_ERROR(host_.health());
  const Instant now = host_.driver().clock().Now();
  if (now >= check_ranks_at_) {
    check_ranks_at_ = now + kCheckRanksInterval;
    WEFT_RETURN_IF_ERROR(host_.CheckRanks());
  }
  const absl::Status error = communicator_.AsyncError();
  if (!error.ok()) {
    return Reworded(error, absl::StrCat(title_, " has failed on rank ",
                                        host_.rank(), ": ", error.message()));
  }
  return CheckDeadlines();
}

absl::Status DeviceFlights::CheckDeadlines() {
  const Instant now = host_.driver().clock().Now();
  MutexLock lock(mu_);
  for (const DeviceFlight& flight : flights_) {
    if (flight.ended.has_value() || now < flight.operation->deadline) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("all ranks have called it, and ", title_,
                     " has not ended it in time on rank ", host_.rank(), ": ",
                     Describe(*flight.operation)));
  }
  return absl::OkStatus();
}

void DeviceFlights::Break(const absl::Status& why) {
  if (!broken_.ok()) return;
  host_.Abort(why);
  broken_ = why;
  given_up_at_ = host_.driver().clock().Now() + longest_end_;
  communicator_.Abort();
}

}  // namespace weft::collectives
