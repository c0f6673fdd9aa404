#include "weft/rendezvous/roll_call.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/store.h"
#include "weft/rendezvous/view.h"

namespace weft::rendezvous {
namespace {

// How long a wait at the store lasts before the view is looked at again.
constexpr absl::Duration kLeastLook = absl::Milliseconds(50);
constexpr absl::Duration kMostLook = absl::Milliseconds(500);
// If many come at once, each write makes the others' writes fail: a worker that
// finds the value changed more than kQuickWrites times waits, longer each time.
constexpr int kQuickWrites = 3;
constexpr absl::Duration kLeastPause = absl::Milliseconds(1);
constexpr absl::Duration kMostPause = absl::Milliseconds(200);
// Where so many workers are present, each also waits before it reads a changed
// value: otherwise every newcomer would wake all at once.
constexpr int kMany = 8;
constexpr absl::Duration kPauseOfEach = absl::Milliseconds(1);
constexpr absl::Duration kTellInterval = absl::Seconds(1);
// The time to remove this worker from the round, after its deadline.
constexpr absl::Duration kGiveUpTimeout = absl::Seconds(2);

absl::Duration Left(Instant deadline) {
  return std::max(deadline - SteadyClock().Now(), absl::ZeroDuration());
}

std::string KeyOf(const std::string& name, const std::string& selector) {
  return absl::StrCat("roll_call/", selector, "/", name);
}

uint64_t DrawTicket() {
  std::random_device random;
  // The low half counts.
  return uint64_t{random()} << 32;
}

// An absent key is an empty entry.
absl::StatusOr<StoreEntry> Read(Store& store, const std::string& key,
                                absl::Duration timeout) {
  absl::StatusOr<StoreEntry> entry = store.Get(key, timeout);
  if (absl::IsNotFound(entry.status())) return StoreEntry();
  return entry;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RollCall>> RollCalls::Begin(std::string name,
                                                           RollTerms terms) {
  const Member& self = membership_.self();
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("roll call ", name, " of ", self.name, ": ", why));
  };
  if (const absl::Status valid = terms.Validate(); !valid.ok()) {
    return bad(valid.message());
  }
  WEFT_ASSIGN_OR_RETURN(const auto found,
                        View(1, World(), {self}, {}).Select(terms.selector));
  if (found.empty() || self.role == kAdminRole) {
    return bad(absl::StrCat("the selector \"", terms.selector,
                            "\" is of others; wanted one of this worker"));
  }
  const std::string key = KeyOf(name, terms.selector);
  {
    MutexLock lock(mu_);
    if (!begun_.insert(key).second) {
      return absl::FailedPreconditionError(
          absl::StrCat("roll call ", name, " (", terms.selector,
                       "): another thread of ", self.name, " is at it"));
    }
  }
  RollEntry entry;
  entry.name = self.name;
  entry.role = self.role;
  entry.rank = self.rank;
  entry.key = self.key;
  entry.ticket = DrawTicket();
  return std::unique_ptr<RollCall>(new RollCall(
      *this, key,
      RollCallCore(std::move(name), std::move(entry), std::move(terms))));
}

void RollCalls::End(const std::string& key) {
  MutexLock lock(mu_);
  begun_.erase(key);
}

absl::StatusOr<std::vector<std::string>> RollCalls::Waiting(
    const std::string& name, const std::string& selector,
    absl::Duration timeout) {
  WEFT_ASSIGN_OR_RETURN(
      const StoreEntry entry,
      Read(membership_.store(), KeyOf(name, selector), timeout));
  return WaitingIn(name, entry.value);
}

absl::StatusOr<std::vector<std::string>> RollCalls::AwaitWaiting(
    const std::string& name, const std::string& selector,
    absl::Duration timeout) {
  const Instant deadline = SteadyClock().Now() + timeout;
  const std::string key = KeyOf(name, selector);
  WEFT_ASSIGN_OR_RETURN(StoreEntry entry,
                        Read(membership_.store(), key, timeout));
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> names,
                          WaitingIn(name, entry.value));
    if (!names.empty()) return names;
    WEFT_ASSIGN_OR_RETURN(
        entry, membership_.store().Wait(key, entry.version, Left(deadline)));
  }
}

absl::StatusOr<std::vector<std::string>> RollCalls::WaitingIn(
    const std::string& name, const std::string& value) const {
  absl::StatusOr<RollCallState> state = RollCallState::Decode(value);
  if (!state.ok()) {
    return absl::InternalError(
        absl::StrCat("roll call ", name, ": ", state.status().message()));
  }
  std::sort(state->present.begin(), state->present.end(), InRollOrder);
  const auto view = membership_.view();
  std::vector<std::string> names;
  for (const RollEntry& one : state->present) {
    if (!view->IsGone(one.key)) names.push_back(one.name);
  }
  return names;
}

RollCall::RollCall(RollCalls& calls, std::string key, RollCallCore core)
    : calls_(calls),
      membership_(calls.membership_),
      key_(std::move(key)),
      core_(std::move(core)),
      random_(std::random_device()()) {}

RollCall::~RollCall() { calls_.End(key_); }

absl::StatusOr<Roll> RollCall::Next(Instant deadline,
                                    const CancelToken& cancel) {
  if (!std::exchange(is_first_, false)) core_.ComeAnew();
  // So that all who were in the job before this call are waited for.
  const absl::Status fresh = membership_.Refresh(Left(deadline));
  if (absl::IsDeadlineExceeded(fresh)) return fresh;
  WEFT_RETURN_IF_ERROR(membership_.status());
  absl::StatusOr<Roll> roll = Follow(deadline, cancel);
  const bool gives_up =
      absl::IsDeadlineExceeded(roll.status()) ||
      (cancel.IsCancelled() && roll.status() == cancel.status());
  return gives_up ? GiveUp(roll.status()) : std::move(roll);
}

absl::StatusOr<Roll> RollCall::Follow(Instant deadline,
                                      const CancelToken& cancel) {
  Store& store = membership_.store();
  absl::Duration look = kLeastLook, pause = kLeastPause;
  int refused = 0;  // writes, in a row
  absl::StatusOr<StoreEntry> entry = Read(store, key_, Left(deadline));
  while (true) {
    WEFT_RETURN_IF_ERROR(membership_.status());
    WEFT_RETURN_IF_ERROR(cancel.status());
    const auto view = membership_.view();
    const Instant now = SteadyClock().Now();
    if (now >= deadline) {
      std::string text = core_.Describe(*view);
      if (!entry.ok()) {
        absl::StrAppend(&text, "; the coordinator: ", entry.status().message());
      }
      return absl::DeadlineExceededError(text);
    }
    if (!entry.ok()) {  // the coordinator does not answer: it may yet
      if (!absl::IsDeadlineExceeded(entry.status()) &&
          !absl::IsUnavailable(entry.status())) {
        return entry.status();
      }
      look = std::min(look * 2, kMostLook);
      (void)membership_.WaitFor([](const View&) { return false; },
                                std::min(Left(deadline), look));
      entry = Read(store, key_, Left(deadline));
      continue;
    }
    RollCallCore::Step step = core_.OnRead(entry->value, *view, now);
    if (auto* roll = std::get_if<Roll>(&step)) return std::move(*roll);
    if (auto* why = std::get_if<absl::Status>(&step)) return *why;
    if (auto* write = std::get_if<RollCallCore::Write>(&step)) {
      auto swap =
          store.CompareSet(key_, entry->version, write->value, Left(deadline));
      if (!swap.ok()) {
        entry = swap.status();
      } else if (!swap->applied && ++refused > kQuickWrites) {
        Pause(pause, deadline);
        pause = std::min(pause * 2, kMostPause);
        entry = Read(store, key_, Left(deadline));
      } else {
        entry = std::move(swap->now);
      }
      look = kLeastLook;
      continue;
    }
    pause = kLeastPause;
    refused = 0;
    Tell(*view, now);
    const Instant until =
        std::min(deadline, std::get<RollCallCore::Wait>(step).until);
    absl::StatusOr<StoreEntry> next =
        store.Wait(key_, entry->version, std::min(look, Left(until)));
    look = std::min(look + look / 2, kMostLook);
    // Nothing new there: perhaps in the view, or it is time for a last call.
    if (!next.ok() && absl::IsDeadlineExceeded(next.status())) continue;
    entry = std::move(next);
    if (entry.ok() && core_.present() >= kMany) {
      Pause(kPauseOfEach * core_.present(), deadline);
      entry = Read(store, key_, Left(deadline));
    }
  }
}

void RollCall::Pause(absl::Duration most, Instant deadline) {
  const absl::Duration wait =
      std::uniform_real_distribution<double>(0.5, 1)(random_) * most;
  (void)membership_.WaitFor([](const View&) { return false; },
                            std::min(Left(deadline), wait));
}

void RollCall::Tell(const View& view, Instant now) {
  if (!progress_ || now < tell_at_) return;
  tell_at_ = now + kTellInterval;
  std::string text = core_.Describe(view);
  if (text != told_) progress_(text);
  told_ = std::move(text);
}

absl::StatusOr<Roll> RollCall::GiveUp(const absl::Status& why) {
  Store& store = membership_.store();
  const Instant deadline = SteadyClock().Now() + kGiveUpTimeout;
  absl::StatusOr<StoreEntry> entry = Read(store, key_, Left(deadline));
  while (entry.ok()) {
    RollCallCore::Step step = core_.OnGiveUp(entry->value, *membership_.view());
    if (auto* roll = std::get_if<Roll>(&step)) return std::move(*roll);
    auto* const write = std::get_if<RollCallCore::Write>(&step);
    if (write == nullptr) break;
    auto swap =
        store.CompareSet(key_, entry->version, write->value, Left(deadline));
    if (!swap.ok()) break;
    entry = std::move(swap->now);
  }
  return why;
}

}  // namespace weft::rendezvous
