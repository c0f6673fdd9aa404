// SimulatedJob: see the header.

#include "weft/rendezvous/testing/simulated_job.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/rendezvous/wire.h"
#include "weft/rendezvous/world.h"

namespace weft::rendezvous {
namespace {

constexpr absl::Duration kRefusalTime = absl::Microseconds(200);
constexpr absl::Duration kRetryPause = absl::Milliseconds(100);
constexpr absl::Duration kHold = absl::Seconds(5);
constexpr absl::Duration kAnswerTime = absl::Seconds(2);
constexpr size_t kHeartbeat = 1;
constexpr size_t kBarrier = 6;
// Calls of barriers are told from those of the core by this bit.
constexpr uint64_t kOfBarrier = uint64_t{1} << 63;

// In the order of CoordinatorCore::Request.
template <typename T>
CoordinatorCore::Request Parse(const std::string& body) {
  T request;
  WEFT_CHECK(request.ParseFromString(body));
  return request;
}

CoordinatorCore::Request ParseRequest(size_t method, const std::string& body) {
  switch (method) {
    case 0:
      return Parse<v1::JoinRequest>(body);
    case kHeartbeat:
      return Parse<v1::HeartbeatRequest>(body);
    case 2:
      return Parse<v1::WatchRequest>(body);
    case 4:
      return Parse<v1::LeaveRequest>(body);
    default:
      return Parse<v1::BarrierRequest>(body);
  }
}

absl::Duration CpuTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

// From the index in MemberCore::Request to that in CoordinatorCore's, and back.
size_t ToCoordinators(size_t index) { return index == 3 ? 4 : index; }
size_t ToMembers(size_t index) { return index == 4 ? 3 : index; }

}  // namespace

struct SimulatedJob::Envelope {
  bool is_answer = false;
  size_t method = 0;  // index in CoordinatorCore::Request
  uint64_t call = 0;
  absl::Status status;  // of an answer
  std::string body;
  // Which belongs to `body`, where views are shared.
  std::shared_ptr<const CoordinatorCore::Told> told;
  int rank = 0;  // of the member
};

SimulatedJob::SimulatedJob(sim::Simulator& simulator, sim::SimNetwork& network,
                           Options options, JobObserver* observer)
    : simulator_(simulator),
      network_(network),
      options_(std::move(options)),
      observer_(observer != nullptr ? *observer : silent_) {
  counts_.members.resize(options_.members);
  coordinator_ = std::make_unique<Coordinator>(*this);
  network_.AddNode(CoordinatorName(), *coordinator_);
  for (int rank = 0; rank < options_.members; ++rank) {
    members_.push_back(std::make_unique<Member>(*this, rank));
    network_.AddNode(NameOf(rank), *members_.back());
  }
}

SimulatedJob::~SimulatedJob() = default;

const std::string& SimulatedJob::CoordinatorName() {
  static const std::string& name = *new std::string("coordinator");
  return name;
}

std::string SimulatedJob::NameOf(int rank) {
  return absl::StrCat("trainer", rank);
}

bool SimulatedJob::Agrees() const {
  if (!coordinator_->is_up()) return false;
  const Epoch version = coordinator_->version();
  return std::all_of(members_.begin(), members_.end(), [&](const auto& member) {
    return !member->is_up() ||
           (member->is_in() && member->view().version() == version);
  });
}

JobCounts SimulatedJob::TakeCounts() {
  JobCounts taken = std::exchange(counts_, JobCounts());
  counts_.members.resize(options_.members);
  return taken;
}

// Its bytes are the envelope itself, which goes by reference.
void SimulatedJob::Send(const std::string& from, const std::string& to,
                        Envelope envelope) {
  int64_t bytes = static_cast<int64_t>(envelope.body.size());
  if (envelope.told != nullptr) {  // with its tag and its length
    bytes += static_cast<int64_t>(envelope.told->bytes.size()) + 4;
  }
  (envelope.is_answer ? counts_.answers : counts_.requests)[envelope.method]
      .Add(bytes);
  if (envelope.method != kHeartbeat) counts_.members[envelope.rank].Add(bytes);
  auto owner = std::make_shared<const Envelope>(std::move(envelope));
  const Envelope* const begin = owner.get();
  network_.Send(from, to, Bytes::Wrap(begin, sizeof(Envelope), owner));
}

const SimulatedJob::Envelope& SimulatedJob::Open(const Bytes& message) {
  return *static_cast<const Envelope*>(message.owner().get());
}

// The coordinator.

void SimulatedJob::Coordinator::OnStart(int64_t incarnation) {
  if (incarnation > 1) Begin();
}

void SimulatedJob::Coordinator::OnCrash() {
  ++life_;
  core_.reset();
}

void SimulatedJob::Coordinator::Begin() {
  ++life_;
  callers_.clear();
  v1::LogRecord opened;
  opened.mutable_opened()->set_term(++term_);
  log_.push_back(opened);
  CoordinatorCore::Options options = job_.options_.coordinator;
  options.is_durable = true;
  core_ = std::make_unique<CoordinatorCore>(options, term_, log_,
                                            job_.simulator_.Now());
  job_.observer_.OnCoordinatorStart(term_);
  tick_at_ = Instant::Infinite();
  Do(CoordinatorCore::Tick{});
}

void SimulatedJob::Coordinator::OnMessage(const std::string& from,
                                          int64_t /*from_incarnation*/,
                                          const Bytes& message) {
  const Envelope& e = Open(message);
  const uint64_t ticket = ++last_ticket_;
  callers_[ticket] = {from, e.rank, e.method, e.call};
  Do(CoordinatorCore::Call{ticket, ParseRequest(e.method, e.body)});
}

void SimulatedJob::Coordinator::ReportExit(const std::string& name,
                                           uint64_t incarnation) {
  v1::ReportExitRequest report;
  report.set_job("job");
  report.set_name(name);
  report.set_incarnation(incarnation);
  report.set_reason("killed by SIGKILL");
  Do(CoordinatorCore::Call{++last_ticket_, std::move(report)});
}

void SimulatedJob::Coordinator::Arm() {
  const Instant now = job_.simulator_.Now();
  const Instant at =
      std::max(std::min(core_->NextTick(), now + absl::Milliseconds(500)),
               now + absl::Milliseconds(1));
  if (at >= tick_at_) return;
  if (!tick_at_.is_infinite()) job_.simulator_.Cancel(tick_);
  tick_at_ = at;
  tick_ = job_.simulator_.Schedule(
      at,
      [this, life = life_] {
        if (life != life_) return;
        tick_at_ = Instant::Infinite();
        Do(CoordinatorCore::Tick{});
      },
      "coordinator tick");
}

void SimulatedJob::Coordinator::Do(CoordinatorCore::Event event) {
  const absl::Duration began = CpuTime();
  const CoordinatorCore::Actions actions =
      core_->OnEvent(job_.simulator_.Now(), std::move(event));
  job_.counts_.coordinator_time += CpuTime() - began;
  ++job_.counts_.coordinator_events;
  for (const auto& action : actions) {
    if (const auto* persist = std::get_if<CoordinatorCore::Persist>(&action)) {
      job_.observer_.OnRecord(persist->record);
      job_.counts_.log.Add(
          static_cast<int64_t>(persist->record.ByteSizeLong()));
      log_.push_back(persist->record);
    } else if (const auto* answer =
                   std::get_if<CoordinatorCore::Answer>(&action)) {
      const auto caller = callers_.find(answer->ticket);
      if (caller == callers_.end()) {  // of ReportExit
        WEFT_CHECK(std::holds_alternative<v1::ReportExitReply>(answer->reply))
            << "answered twice";
        continue;
      }
      Reply(caller->second, *answer);
      callers_.erase(caller);
    }
  }
  Arm();
}

void SimulatedJob::Coordinator::Reply(const Caller& caller,
                                      const CoordinatorCore::Answer& answer) {
  Envelope e;
  e.is_answer = true;
  e.method = caller.method;
  e.call = caller.call;
  e.rank = caller.rank;
  e.status = answer.status;
  if (!answer.status.ok()) {
    job_.observer_.OnRefusal(answer.status);
  } else if (job_.options_.shares_views) {
    e.body = std::visit([](const auto& m) { return m.SerializeAsString(); },
                        answer.reply);
    e.told = answer.told;
  } else {
    e.body = answer.Encode();
  }
  job_.Send(CoordinatorName(), caller.name, std::move(e));
}

// A member.

SimulatedJob::Member::Member(SimulatedJob& job, int rank)
    : job_(job), rank_(rank), name_(NameOf(rank)) {}

void SimulatedJob::Member::OnStart(int64_t incarnation) {
  if (incarnation > 1 && job_.options_.has_supervisor) Begin();
}

void SimulatedJob::Member::OnCrash() {
  ++life_;
  core_.reset();
  barrier_.Clear();
}

void SimulatedJob::Member::Begin() {
  ++life_;
  calls_.clear();
  barrier_.Clear();
  job_.observer_.OnBegin(name_);
  MemberCore::Options options;
  options.job = "job";
  options.self.set_name(name_);
  options.self.set_role("trainer");
  options.self.set_rank(rank_);
  options.self.set_incarnation(incarnation_ = ++job_.last_incarnation_);
  if (job_.options_.describe) job_.options_.describe(rank_, options.self);
  options.world = ToWire(World::Fixed(0, job_.options_.members));
  if (job_.options_.shares_views) options.views = &job_.views_;
  core_ = std::make_unique<MemberCore>(options, job_.simulator_.Now());
  Do(MemberCore::Start{});
}

void SimulatedJob::Member::Leave() {
  if (core_ != nullptr) Do(MemberCore::WantToLeave{});
}

void SimulatedJob::Member::OnMessage(const std::string& /*from*/,
                                     int64_t /*from_incarnation*/,
                                     const Bytes& message) {
  if (core_ == nullptr) return;
  const Envelope& e = Open(message);
  const auto call = calls_.find(e.call);
  if (call == calls_.end()) return;  // of a former life, or answered
  job_.simulator_.Cancel(call->second);
  calls_.erase(call);
  if (e.method == kBarrier) {
    v1::BarrierReply reply;
    WEFT_CHECK(reply.ParseFromString(e.body));
    return BarrierAnswered(e.status, reply);
  }
  MemberCore::Replied replied{e.call, absl::UnknownError("")};
  if (!e.status.ok()) {
    replied.reply = e.status;
  } else {
    replied.reply =
        MemberCore::ParseReply(ToMembers(e.method), e.body, CoordinatorName());
    WEFT_CHECK(replied.reply.ok());
    if (e.told != nullptr) {
      replied.told = std::shared_ptr<const v1::View>(e.told, &e.told->view);
    }
  }
  Do(replied);
}

void SimulatedJob::Member::OnReset(const std::string& peer) {
  if (!job_.options_.refuses || core_ == nullptr) return;
  if (peer != CoordinatorName()) return;
  for (const auto& [call, timeout] : std::map(calls_)) {
    Fail(call, absl::UnavailableError("connection reset"));
  }
}

sim::Simulator::EventId SimulatedJob::Member::After(absl::Duration delay,
                                                    std::function<void()> event,
                                                    const char* label) {
  return job_.simulator_.After(
      delay,
      [this, life = life_, event = std::move(event)] {
        if (life == life_) event();
      },
      label);
}

void SimulatedJob::Member::Do(const MemberCore::Event& event) {
  absl::Status end;
  bool has_ended = false;
  for (auto& action : core_->OnEvent(job_.simulator_.Now(), event)) {
    if (auto* send = std::get_if<MemberCore::Send>(&action)) {
      Send(*send);
    } else if (auto* timer = std::get_if<MemberCore::SetTimer>(&action)) {
      After(
          timer->after,
          [this] {
            if (core_ != nullptr) Do(MemberCore::Timer{});
          },
          "member timer");
    } else if (auto* joined = std::get_if<MemberCore::Joined>(&action)) {
      job_.observer_.OnJoined(name_, joined->key);
    } else if (auto* changed = std::get_if<MemberCore::NewView>(&action)) {
      job_.observer_.OnView(name_, *changed->view);
    } else if (auto* ended = std::get_if<MemberCore::Ended>(&action)) {
      has_ended = true;
      end = ended->status;
    }
  }
  if (!has_ended) return;
  job_.observer_.OnEnd(name_, end);
  core_.reset();
  if (!job_.options_.has_supervisor) return;
  After(
      absl::Milliseconds(200),
      [this] {
        if (core_ == nullptr) Begin();
      },
      "supervisor");
}

void SimulatedJob::Member::Send(const MemberCore::Send& send) {
  Call(send.call, ToCoordinators(send.request.index()),
       std::visit([](const auto& m) { return m.SerializeAsString(); },
                  send.request),
       send.timeout);
}

void SimulatedJob::Member::Call(uint64_t call, size_t method, std::string body,
                                absl::Duration timeout) {
  const bool is_refused =
      job_.options_.refuses && !job_.network_.IsUp(CoordinatorName());
  calls_[call] = After(
      is_refused ? kRefusalTime : timeout,
      [this, call, is_refused] {
        Fail(call, is_refused ? absl::UnavailableError("connection refused")
                              : absl::DeadlineExceededError(""));
      },
      "call timeout");
  if (is_refused) return;
  Envelope e;
  e.method = method;
  e.call = call;
  e.rank = rank_;
  e.body = std::move(body);
  job_.Send(name_, CoordinatorName(), std::move(e));
}

void SimulatedJob::Member::Fail(uint64_t call, const absl::Status& why) {
  const auto open = calls_.find(call);
  if (core_ == nullptr || open == calls_.end()) return;
  job_.simulator_.Cancel(open->second);
  calls_.erase(open);
  if ((call & kOfBarrier) != 0) return BarrierAnswered(why, {});
  Do(MemberCore::Replied{call, why});
}

void SimulatedJob::Member::Arrive(const std::string& tag) {
  barrier_.Clear();
  barrier_.set_job("job");
  *barrier_.mutable_key() = ToWire(core_->key());
  barrier_.set_tag(tag);
  barrier_.set_everyone(true);
  barrier_.set_arrival(++last_barrier_);
  barrier_.set_arrivals(last_barrier_);
  barrier_.set_settled_below(last_barrier_);
  barrier_.add_unsettled(last_barrier_);
  barrier_.set_wait_ms(absl::ToInt64Milliseconds(kHold));
  barrier_.set_remaining_ms(absl::ToInt64Milliseconds(absl::Minutes(10)));
  SendBarrier();
}

void SimulatedJob::Member::SendBarrier() {
  Call(kOfBarrier | ++last_barrier_, kBarrier, barrier_.SerializeAsString(),
       kHold + kAnswerTime);
}

void SimulatedJob::Member::BarrierAnswered(const absl::Status& status,
                                           const v1::BarrierReply& reply) {
  if (!is_waiting()) return;
  if (status.ok() && !reply.released()) return SendBarrier();
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    After(
        kRetryPause,
        [this] {
          if (core_ != nullptr && is_waiting()) SendBarrier();
        },
        "barrier again");
    return;
  }
  met_ = status;
  barrier_.Clear();
}

}  // namespace weft::rendezvous
