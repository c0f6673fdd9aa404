// CoordinatorCore: who is let into the job.

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/core/coordinator_core.h"
#include "weft/rendezvous/member.h"
#include "weft/rendezvous/wire.h"
#include "weft/rendezvous/world.h"

namespace weft::rendezvous {
namespace {

// The limits of what a job may set as the silence after which a member is dead.
constexpr absl::Duration kLeastSilence = absl::Milliseconds(100);
constexpr absl::Duration kMostSilence = absl::Hours(1);

// Whether `incarnation` is one of those that had the name.
bool HasIncarnation(const v1::Departed& departed, uint64_t incarnation) {
  return absl::c_linear_search(departed.incarnations(), incarnation);
}

bool IsSame(const v1::World& a, const v1::World& b) {
  return FromWire(a) == FromWire(b);
}

}  // namespace

absl::Status CoordinatorCore::CheckJoin(const v1::JoinRequest& request) const {
  const v1::Member& member = request.member();
  WEFT_RETURN_IF_ERROR(ValidateName(request.job()));
  const World wanted = FromWire(request.world());
  const bool is_admin = member.role() == kAdminRole;
  if (!is_admin || wanted.is_fixed()) WEFT_RETURN_IF_ERROR(wanted.Validate());
  if (member.incarnation() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(member.name(), ": its incarnation is 0"));
  }
  if (members_.has_world() && !is_admin &&
      !IsSame(members_.world(), request.world())) {
    return absl::FailedPreconditionError(absl::StrCat(
        member.name(), " ", wanted.DifferenceFrom(FromWire(members_.world()))));
  }
  if (is_admin) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(CheckStart(request));
  if (wanted.size() > options_.max_names) {
    return absl::InvalidArgumentError(absl::StrCat(
        member.name(), " expects the world \"", wanted.ToString(), "\" of ",
        wanted.size(), " workers; a coordinator takes at most ",
        options_.max_names));
  }
  if (wanted.is_fixed()) {
    if (!wanted.Place(member.role(), member.rank()).has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          member.role(), " ", member.rank(), " has no place in the world \"",
          wanted.ToString(), "\": ranks count from 0"));
    }
    if (member.name() != absl::StrCat(member.role(), member.rank())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "worker name \"", member.name(), "\": a fixed world wants \"",
          member.role(), member.rank(), "\""));
    }
    return absl::OkStatus();
  }
  const Slot* slot = members_.Find(member.name());
  if ((slot == nullptr || !slot->is_in) && members_.present() >= wanted.max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        member.name(), ": the job is full, it has ", members_.present(),
        " of at most ", wanted.max, " workers"));
  }
  return absl::OkStatus();
}

absl::Status CoordinatorCore::CheckStart(const v1::JoinRequest& request) const {
  const uint32_t own = options_.start;
  if (own == 0 || request.start() == 0 || request.start() == own) {
    return absl::OkStatus();
  }
  if (request.start() > own) {  // who asks again finds its successor
    return absl::UnavailableError(absl::StrCat(
        "the ranks of the job are started again (start ", request.start(),
        "), and this coordinator of start ", own, " is about to end"));
  }
  return absl::AbortedError(absl::StrCat(
      request.member().name(), " is of start ", request.start(),
      " of the job's ranks; meanwhile they were started again (start ", own,
      ")"));
}

void CoordinatorCore::On(Ticket ticket, const v1::JoinRequest& request) {
  const absl::Status status = CheckJoin(request);
  if (!status.ok()) return Fail(ticket, status);
  Slot* slot = members_.Find(request.member().name());
  if (slot == nullptr) {
    const auto names = static_cast<int>(members_.slots().size());
    if (names >= options_.max_names) {
      return Fail(ticket, absl::ResourceExhaustedError(absl::StrCat(
                              request.member().name(), ": the job has had ",
                              names, " names, the most it may have")));
    }
    return Admit(ticket, request);
  }
  if (!slot->is_in) {
    // A copy of an old request must not bring a dead incarnation back.
    if (HasIncarnation(slot->departed, request.member().incarnation())) {
      return Fail(ticket,
                  absl::AbortedError(absl::StrCat("this incarnation is gone: ",
                                                  slot->departed.reason())));
    }
    return Admit(ticket, request);
  }
  if (slot->member.incarnation() == request.member().incarnation()) {
    Hear(*slot);
    admitted_.emplace(ticket, slot->member);
    return;
  }
  if (held() >= options_.max_held_calls) {
    return Fail(ticket, absl::ResourceExhaustedError(
                            "coordinator: too many calls are waiting"));
  }
  // The holder may be dead without our knowing: its next heartbeat, or the lack
  // of one, decides.
  held_joins_.Hold(ticket, request.member().name(), Until(request.wait_ms()),
                   request);
}

void CoordinatorCore::TakeSilenceLimits(const v1::World& world) {
  if (!options_.takes_silence_limits || world.dead_after_ms() == 0) return;
  const absl::Duration suspect = absl::Milliseconds(world.suspect_after_ms());
  const absl::Duration dead = absl::Milliseconds(world.dead_after_ms());
  if (suspect < kLeastSilence || dead <= suspect || dead > kMostSilence) return;
  options_.suspect_after = suspect;
  options_.dead_after = dead;
}

void CoordinatorCore::Admit(Ticket ticket, const v1::JoinRequest& request) {
  if (options_.job.empty()) {
    options_.job = request.job();
    v1::LogRecord record;
    record.mutable_opened()->set_job(options_.job);
    record.mutable_opened()->set_term(term_);
    actions_.push_back(Persist{std::move(record)});
  }
  const bool sets_world =
      !members_.has_world() && request.member().role() != kAdminRole;
  if (sets_world) TakeSilenceLimits(request.world());
  const Slot& slot = members_.Admit(
      request.member(), sets_world ? &request.world() : nullptr, attended_);
  if (sets_world) {
    v1::LogRecord record;
    *record.mutable_world() = request.world();
    record.set_version(members_.version());
    actions_.push_back(Persist{std::move(record)});
  }
  PersistJoined(slot);
  Say(absl::StrCat(slot.member.name(), " joined from ", slot.member.address(),
                   " as ", FromWire(slot.member.key()).ToString()));
  admitted_.emplace(ticket, slot.member);
}

void CoordinatorCore::PersistJoined(const Slot& slot) {
  v1::LogRecord record;
  *record.mutable_joined() = slot.member;
  record.set_version(slot.changed_at);
  actions_.push_back(Persist{std::move(record)});
}

void CoordinatorCore::AnswerJoin(Ticket ticket, const v1::Member& admitted) {
  const Slot& slot = *members_.Find(admitted.name());
  if (!slot.is_in || slot.member.key().epoch() != admitted.key().epoch()) {
    return Fail(ticket,
                absl::AbortedError(absl::StrCat("this incarnation is gone: ",
                                                slot.departed.reason())));
  }
  v1::JoinReply reply;
  *reply.mutable_key() = admitted.key();
  reply.set_is_durable(options_.is_durable);
  reply.set_knows_everyone(true);
  actions_.push_back(
      Answer{ticket, absl::OkStatus(), std::move(reply), members_.Whole()});
}

void CoordinatorCore::SettleHeldJoins(const std::string& name,
                                      bool holder_lives) {
  for (const auto& [ticket, request] : held_joins_.TakeFor(name)) {
    if (holder_lives) {
      Fail(ticket, absl::AlreadyExistsError(absl::StrCat(
                       "worker ", name, " is in job \"", options_.job,
                       "\" already, at ", members_.Find(name)->member.address(),
                       ": give the one at ", request.member().address(),
                       " another --rank, or end that one first")));
    } else {
      On(ticket, request);
    }
  }
}

}  // namespace weft::rendezvous
