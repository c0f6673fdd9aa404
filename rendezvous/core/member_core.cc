// MemberCore: see the header.

#include "weft/rendezvous/core/member_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/net/call/connection_reset.h"
#include "weft/rendezvous/wire.h"

namespace weft::rendezvous {
namespace {

// A longer pause between two events is this worker's own absence: one that
// waits for the coordinator has an event at least every `call_timeout` (Tick).
constexpr absl::Duration kLongestAttention = absl::Seconds(3);

// Whether the same request may fare better later.
bool IsPassing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsUnknown(status) ||
         absl::IsResourceExhausted(status);
}

template <typename T>
absl::StatusOr<MemberCore::Reply> ParseAs(const std::string& bytes) {
  T reply;
  if (reply.ParseFromString(bytes)) return MemberCore::Reply(std::move(reply));
  return absl::InvalidArgumentError("it cannot be read");
}

absl::StatusOr<MemberCore::Reply> ParseAny(size_t index,
                                           const std::string& bytes) {
  switch (index) {
    case 0:
      return ParseAs<v1::JoinReply>(bytes);
    case 1:
      return ParseAs<v1::HeartbeatReply>(bytes);
    case 2:
      return ParseAs<v1::WatchReply>(bytes);
    default:
      return ParseAs<v1::LeaveReply>(bytes);
  }
}

}  // namespace

absl::string_view MemberCore::MethodOf(size_t index) {
  return MethodsOf<Request>::Names()[index];
}

absl::StatusOr<MemberCore::Reply> MemberCore::ParseReply(
    size_t index, const std::string& bytes, absl::string_view coordinator) {
  absl::StatusOr<Reply> reply = ParseAny(index, bytes);
  if (reply.ok()) return reply;
  return BadAnswer(coordinator, MethodOf(index), reply.status().message());
}

MemberCore::Actions MemberCore::OnEvent(Instant now, const Event& event) {
  attended_ += std::min(now - now_, kLongestAttention);
  now_ = now;
  if (state_ == State::kEnded) return {};
  if (std::holds_alternative<Start>(event)) {
    state_ = State::kJoining;
    SendNow(Purpose::kJoin);
  } else if (std::holds_alternative<WantToLeave>(event)) {
    if (state_ == State::kIn) {
      state_ = State::kLeaving;
      leaving_at_ = now_;
      SendNow(Purpose::kLeave);
    } else if (state_ != State::kLeaving) {
      End(absl::OkStatus());
    }
  } else if (const auto* replied = std::get_if<Replied>(&event)) {
    for (int i = 0; i < 4; ++i) {
      if (pending_[i].call != replied->call) continue;
      pending_[i].call = 0;
      OnReply(static_cast<Purpose>(i), *replied);
      break;
    }
  } else if (const auto* refreshed = std::get_if<Refreshed>(&event)) {
    if (state_ == State::kIn) OnView(refreshed->view);
  } else if (const auto* host = std::get_if<HostEnded>(&event)) {
    OnHostEnded(host->name);
  } else if (std::holds_alternative<HostRan>(event)) {
    host_ran_at_ = attended_;
  } else if (const auto* ended = std::get_if<MemberEnded>(&event)) {
    OnMemberEnded(ended->key);
  } else {
    OnTimer();
  }
  return std::exchange(actions_, {});
}

void MemberCore::OnTimer() {
  if (tick_at_.has_value() && *tick_at_ <= now_) tick_at_.reset();
  if (pending(Purpose::kHeartbeat).call != 0) Tick();
  for (int i = 0; i < 4 && state_ != State::kEnded; ++i) {
    Pending& pending = pending_[i];
    if (!pending.due.has_value() || *pending.due > now_) continue;
    SendNow(static_cast<Purpose>(i));
  }
}

void MemberCore::OnReply(Purpose purpose, const Replied& replied) {
  if (replied.reply.ok()) heard_at_ = attended_;
  switch (purpose) {
    case Purpose::kJoin:
      return OnJoinReply(replied);
    case Purpose::kHeartbeat:
      return OnHeartbeatReply(replied.reply.status());
    case Purpose::kWatch:
      return OnWatchReply(replied);
    case Purpose::kLeave:
      return OnLeaveReply(replied.reply.status());
  }
}

void MemberCore::OnLeaveReply(const absl::Status& status) {
  if (status.ok() || !IsPassing(status)) return End(absl::OkStatus());
  // It ends once all others have left, and it may do so before a lost answer
  // was asked for again.
  const bool is_over = !is_durable_ && absl::IsUnavailable(status) &&
                       now_ - leaving_at_ >= options_.leave_unheard_after;
  if (is_over) return End(absl::OkStatus());
  SendAfter(Purpose::kLeave, options_.retry_pause);
}

void MemberCore::OnHostEnded(const std::string& name) {
  if (is_durable_) {  // it will know its members when it is started again
    actions_.push_back(Warn{absl::StrCat(
        "the process of ", name,
        ", which hosted the coordinator, has ended; "
        "waiting for it to start again, for ",
        absl::FormatDuration(options_.give_up_after), " at most")});
    // Where the coordinator starts again, that incarnation is gone.
    for (const v1::Member& member : view_->members()) {
      if (member.hosts_coordinator() && member.name() == name) {
        return OnMemberEnded(FromWire(member.key()));
      }
    }
    return;
  }
  Lose(absl::StatusCode::kUnavailable,
       absl::StrCat("the process of ", name,
                    ", which hosted the coordinator, "
                    "has ended and, without --coordinator-log, would not know "
                    "its members again"));
}

void MemberCore::OnMemberEnded(WorkerKey key) {
  if (state_ != State::kIn || key == key_) return;
  const bool is_member = std::any_of(
      view_->members().begin(), view_->members().end(),
      [&](const v1::Member& member) { return FromWire(member.key()) == key; });
  if (!is_member || !ended_.insert(key).second) return;
  actions_.push_back(NewView{ShownView()});
}

MemberCore::ViewPtr MemberCore::ShownView() const {
  if (ended_.empty()) return view_;
  v1::View shown = *view_;
  shown.clear_members();
  for (const v1::Member& member : view_->members()) {
    if (ended_.count(FromWire(member.key())) == 0) {
      *shown.add_members() = member;
      continue;
    }
    auto* const departed = shown.mutable_departed();
    const auto earlier = std::find_if(
        departed->begin(), departed->end(), [&](const v1::Departed& other) {
          return other.key().id() == member.key().id();
        });
    v1::Departed* const gone =
        earlier != departed->end() ? &*earlier : shown.add_departed();
    gone->Clear();
    gone->set_name(member.name());
    *gone->mutable_key() = member.key();
    gone->set_reason("its process has ended");
  }
  return std::make_shared<const v1::View>(std::move(shown));
}

void MemberCore::OnJoinReply(const Replied& replied) {
  const absl::StatusOr<Reply>& reply = replied.reply;
  if (!reply.ok()) {
    if (absl::IsAborted(reply.status())) {  // it was let in, and is gone since
      return Lose(absl::StatusCode::kAborted, reply.status().message());
    }
    if (!IsPassing(reply.status())) return End(reply.status());
    if (!net::WasConnectionReset(reply.status())) {
      reset_since_.reset();
    } else if (!reset_since_.has_value()) {
      reset_since_ = now_;
    } else if (now_ - *reset_since_ >= options_.give_up_after_resets_for) {
      return End(reply.status());
    }
    actions_.push_back(Waiting{std::string(reply.status().message()),
                               absl::IsResourceExhausted(reply.status())});
    return SendAfter(Purpose::kJoin, options_.retry_pause);
  }
  const auto& joined = std::get<v1::JoinReply>(*reply);
  const v1::View& told =
      replied.told != nullptr ? *replied.told : joined.view();
  const absl::StatusOr<ViewPtr> view = WholeOf(told);
  const absl::Status fit =
      view.ok() ? CheckHas(**view, options_.self.name(), joined.key())
                : view.status();
  if (!fit.ok()) {
    return End(BadAnswer(options_.coordinator, "Join", fit.message()));
  }
  key_ = FromWire(joined.key());
  is_durable_ = joined.is_durable();
  state_ = State::kIn;
  actions_.push_back(Joined{key_, joined.knows_everyone()});
  TakeView(*view, told);
  if (state_ != State::kIn) return;
  SendAfter(Purpose::kHeartbeat, options_.heartbeat_interval);
  SendNow(Purpose::kWatch);
}

void MemberCore::OnHeartbeatReply(const absl::Status& status) {
  late_heartbeats_ =
      absl::IsDeadlineExceeded(status) ? late_heartbeats_ + 1 : 0;
  if (status.ok()) {
    to_repeat_.clear();
  } else if (!IsPassing(status)) {
    return LoseBy(status);
  } else if (attended_ - heard_at_ >= LongestSilence()) {
    const absl::Duration silent =
        absl::Trunc(attended_ - heard_at_, absl::Seconds(1));
    return Lose(
        absl::StatusCode::kUnavailable,
        absl::StrCat("the coordinator has been silent for ",
                     absl::FormatDuration(silent),
                     is_durable_ ? ""
                                 : " and, without --coordinator-log, would not "
                                   "know its members again",
                     ": ", status.message()));
  }
  SendAfter(Purpose::kHeartbeat, options_.heartbeat_interval);
}

void MemberCore::OnWatchReply(const Replied& replied) {
  const absl::StatusOr<Reply>& reply = replied.reply;
  if (!reply.ok()) {
    if (!IsPassing(reply.status())) return LoseBy(reply.status());
    return SendAfter(Purpose::kWatch, options_.retry_pause);
  }
  const bool wanted_whole = wants_whole_;
  if (OnView(replied.told != nullptr
                 ? *replied.told
                 : std::get<v1::WatchReply>(*reply).view()) ||
      (wants_whole_ && !wanted_whole)) {
    watch_backoff_.Reset();
    return SendNow(Purpose::kWatch);
  }
  if (state_ == State::kEnded) return;
  const absl::Duration pause =
      watch_backoff_.Pause(now_ - pending(Purpose::kWatch).sent_at);
  return pause > absl::ZeroDuration() ? SendAfter(Purpose::kWatch, pause)
                                      : SendNow(Purpose::kWatch);
}

// A member that leaves may see it in the view, should the answer be lost.
bool MemberCore::OnView(const v1::View& told) {
  if (told.version() <= view_->version()) return false;
  absl::StatusOr<ViewPtr> view = WholeOf(told);
  if (absl::IsDataLoss(view.status())) {  // records of it may have been lost
    wants_whole_ = true;
    return false;
  }
  if (!view.ok()) {
    LoseBy(BadAnswer(options_.coordinator, "Watch", view.status().message()));
    return false;
  }
  TakeView(*std::move(view), told);
  return state_ != State::kEnded;
}

absl::StatusOr<MemberCore::ViewPtr> MemberCore::WholeOf(
    const v1::View& told) const {
  if (options_.views != nullptr) {
    if (ViewPtr known = options_.views->Find(told.version())) return known;
  }
  if (told.since() == 0) return Checked(told);
  WEFT_ASSIGN_OR_RETURN(v1::View merged, Merge(*view_, told));
  return Checked(std::move(merged));
}

absl::StatusOr<MemberCore::ViewPtr> MemberCore::Checked(v1::View view) const {
  WEFT_RETURN_IF_ERROR(CheckView(view));
  auto checked = std::make_shared<const v1::View>(std::move(view));
  if (options_.views != nullptr) options_.views->Keep(checked);
  return checked;
}

void MemberCore::TakeView(ViewPtr view, const v1::View& told) {
  if (view->version() <= view_->version()) return;
  // Where changes fit the earlier view both have the same departed.
  if (TermOf(view->version()) > TermOf(view_->version())) {
    to_repeat_ =
        told.since() == 0 ? GoneButIn(*view) : std::vector<v1::Departed>();
  }
  wants_whole_ = false;
  view_ = std::move(view);
  if (!ended_.empty()) {
    std::set<WorkerKey> still_members;
    for (const v1::Member& member : view_->members()) {
      const WorkerKey key = FromWire(member.key());
      if (ended_.count(key) != 0) still_members.insert(key);
    }
    ended_ = std::move(still_members);
  }
  actions_.push_back(NewView{ShownView()});
  for (const v1::Departed& departed : told.departed()) {
    const bool is_self =
        departed.key().id() == key_.id && departed.key().epoch() >= key_.epoch;
    if (is_self && state_ == State::kLeaving) return End(absl::OkStatus());
    if (is_self && state_ == State::kIn) {
      return Lose(absl::StatusCode::kAborted,
                  absl::StrCat("declared gone: ", departed.reason()));
    }
  }
}

std::vector<v1::Departed> MemberCore::GoneButIn(const v1::View& view) const {
  std::map<uint32_t, uint64_t> epochs;
  if (view_->departed_size() == 0) return {};
  for (const v1::Member& member : view.members()) {
    epochs[member.key().id()] = member.key().epoch();
  }
  std::vector<v1::Departed> gone;
  for (const v1::Departed& departed : view_->departed()) {
    const auto in = epochs.find(departed.key().id());
    if (in != epochs.end() && in->second <= departed.key().epoch()) {
      gone.push_back(departed);
    }
  }
  return gone;
}

void MemberCore::SendNow(Purpose purpose) {
  Pending& due = pending(purpose);
  due.call = ++last_call_;
  due.sent_at = now_;
  due.due.reset();
  actions_.push_back(Send{due.call, MakeRequest(purpose), TimeoutOf(purpose)});
  if (purpose == Purpose::kHeartbeat) Tick();
}

void MemberCore::Tick() {
  if (tick_at_.has_value()) return;
  tick_at_ = now_ + options_.call_timeout;
  actions_.push_back(SetTimer{options_.call_timeout});
}

void MemberCore::SendAfter(Purpose purpose, absl::Duration pause) {
  if (state_ == State::kLeaving && purpose != Purpose::kLeave) return;
  pending(purpose).due = now_ + pause;
  actions_.push_back(SetTimer{pause});
}

absl::Duration MemberCore::LongestSilence() const {
  const bool is_busy =
      host_ran_at_.has_value() &&
      attended_ - *host_ran_at_ < options_.give_up_for_good_after;
  return is_durable_ || is_busy ? options_.give_up_after
                                : options_.give_up_for_good_after;
}

absl::Duration MemberCore::TimeoutOf(Purpose purpose) const {
  if (purpose == Purpose::kHeartbeat) {
    const absl::Duration longer =
        options_.call_timeout * (1 << std::min(2 * late_heartbeats_, 20));
    const absl::Duration left = LongestSilence() - (attended_ - heard_at_);
    return std::max(options_.call_timeout, std::min(longer, left));
  }
  const bool is_held = purpose == Purpose::kJoin || purpose == Purpose::kWatch;
  return options_.call_timeout + (is_held ? options_.hold : absl::Duration());
}

MemberCore::Request MemberCore::MakeRequest(Purpose purpose) const {
  const uint32_t hold_ms = absl::ToInt64Milliseconds(options_.hold);
  switch (purpose) {
    case Purpose::kJoin: {
      v1::JoinRequest join;
      join.set_job(options_.job);
      *join.mutable_member() = options_.self;
      *join.mutable_world() = options_.world;
      join.set_wait_ms(hold_ms);
      join.set_start(options_.start);
      return join;
    }
    case Purpose::kHeartbeat: {
      v1::HeartbeatRequest heartbeat;
      heartbeat.set_job(options_.job);
      *heartbeat.mutable_key() = ToWire(key_);
      heartbeat.set_incarnation(options_.self.incarnation());
      *heartbeat.mutable_departed() = {to_repeat_.begin(), to_repeat_.end()};
      return heartbeat;
    }
    case Purpose::kWatch: {
      v1::WatchRequest watch;
      watch.set_job(options_.job);
      watch.set_known_version(view_->version());
      watch.set_wait_ms(hold_ms);
      watch.set_takes_changes(!wants_whole_);
      return watch;
    }
    case Purpose::kLeave:
      break;
  }
  v1::LeaveRequest leave;
  leave.set_job(options_.job);
  *leave.mutable_key() = ToWire(key_);
  leave.set_incarnation(options_.self.incarnation());
  return leave;
}

void MemberCore::Lose(absl::StatusCode code, absl::string_view why) {
  // A member that leaves wants nothing else: an answer overtook that to Leave.
  if (state_ == State::kLeaving) return End(absl::OkStatus());
  End(absl::Status(code, absl::StrCat(options_.self.name(), " is out of job \"",
                                      options_.job, "\": ", why,
                                      "; start it again to join anew")));
}

void MemberCore::LoseBy(const absl::Status& answer) {
  Lose(absl::IsInternal(answer) ? absl::StatusCode::kInternal
                                : absl::StatusCode::kAborted,
       answer.message());
}

void MemberCore::End(absl::Status status) {
  state_ = State::kEnded;
  actions_.push_back(Ended{std::move(status)});
}

}  // namespace weft::rendezvous
