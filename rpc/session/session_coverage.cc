#include "weft/rpc/session/session_coverage.h"

#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace weft::rpc {
namespace {

constexpr int kCaller = 0;
constexpr int kCallee = 1;
constexpr const char* kHalves[] = {"caller", "callee"};

// In the order of the variants and enumerations of session.h.
enum CallerEvent {
  kStart,
  kAbandon,
  kConnected,
  kDisconnected,
  kForgotten,
  kReply,
  kReplySettled,
  kAnswer,
  kUnreachable,
  kCalleeGone,
  kCallerTick,
  kCallerEnding,
};
constexpr const char* kCallerEvents[] = {
    "start",   "abandon", "connected",   "disconnected", "forgotten", "reply",
    "settled", "closed",  "unreachable", "peer gone",    "tick",      "ending"};
enum CalleeEvent {
  kRequest,
  kAck,
  kCancel,
  kRequestSettled,
  kFinished,
  kCalleeConnected,
  kCalleeDisconnected,
  kCallerGone,
  kCalleeTick,
  kCalleeEnding,
};
constexpr const char* kCalleeEvents[] = {
    "request",   "ack",          "cancel",    "settled", "finished",
    "connected", "disconnected", "peer gone", "tick",    "ending"};
static_assert(std::variant_size_v<CallerSession::Event> == 12);
static_assert(std::variant_size_v<CalleeSession::Event> == 10);

constexpr const char* kCallerStates[] = {
    "new", "waiting", "sent", "settling", "confirming", "cancelling", "ended"};
constexpr const char* kCalleeStates[] = {"unknown",   "settling", "running",
                                         "cancelled", "given up", "answered",
                                         "closed",    "never"};

// Where a transition must be seen.
constexpr int kRare = 0;  // may be seen
constexpr int kAlone = 1 << static_cast<int>(SessionCoverage::Where::kAlone);
constexpr int kCalls = 1 << static_cast<int>(SessionCoverage::Where::kCalls);
// What all calls go through, those of kAgents go through.
constexpr int kAgents = 1 << static_cast<int>(SessionCoverage::Where::kAgents);
constexpr int kAll = kAlone | kAgents | kCalls;

using From = CallerSession::State;
using At = CalleeSession::State;

struct CallerRow {
  From from;
  CallerEvent event;
  From to;
  int in;
};
constexpr CallerRow kCallerTable[] = {
    // A call begins: sent if it can be, ended if that makes no sense any more.
    {From::kUnknown, kStart, From::kWaiting, kAll},
    {From::kUnknown, kStart, From::kSent, kAll},
    {From::kUnknown, kStart, From::kEnded, kAlone},
    {From::kUnknown, kReply, From::kUnknown, kRare},
    // It waits for a connection or for credit, which the end of another gives.
    {From::kWaiting, kConnected, From::kWaiting, kAlone | kAgents},
    {From::kWaiting, kConnected, From::kSent, kAll},
    {From::kWaiting, kConnected, From::kEnded, kRare},  // not served
    {From::kWaiting, kReply, From::kSent, kAlone | kAgents},
    {From::kWaiting, kReplySettled, From::kSent, kAlone},
    {From::kWaiting, kAbandon, From::kSent, kAlone},
    {From::kWaiting, kCallerTick, From::kSent, kAlone | kAgents},
    {From::kWaiting, kReply, From::kEnded, kRare},  // borrowed, changed
    {From::kWaiting, kReply, From::kWaiting, kRare},
    {From::kWaiting, kAbandon, From::kEnded, kAlone | kAgents},
    {From::kWaiting, kCallerTick, From::kEnded, kAlone | kAgents},
    {From::kWaiting, kForgotten, From::kWaiting, kAlone | kAgents},
    {From::kWaiting, kUnreachable, From::kEnded, kAlone | kAgents},
    {From::kWaiting, kCalleeGone, From::kEnded, kAlone | kAgents},
    // It is out: each new connection repeats it.
    {From::kSent, kConnected, From::kSent, kAll},
    {From::kSent, kConnected, From::kCancelling, kRare},  // borrowed, changed
    {From::kSent, kReply, From::kEnded, kAll},
    {From::kSent, kReply, From::kSettling, kAlone},
    {From::kSent, kAbandon, From::kCancelling, kAlone | kAgents},
    {From::kSent, kCallerTick, From::kCancelling, kAlone | kAgents},
    {From::kSent, kForgotten, From::kEnded, kAlone | kAgents},
    {From::kSent, kUnreachable, From::kCancelling, kAlone | kAgents},
    {From::kSent, kCalleeGone, From::kEnded, kAll},
    // What came with its reply is not settled; then the callee confirms that.
    {From::kSettling, kConnected, From::kSettling, kAlone},
    {From::kSettling, kReply, From::kSettling, kAlone},
    {From::kSettling, kReplySettled, From::kConfirming, kAlone},
    {From::kSettling, kReplySettled, From::kCancelling, kAlone},  // refused
    {From::kSettling, kCalleeGone, From::kEnded, kRare},
    {From::kSettling, kForgotten, From::kEnded, kRare},
    {From::kSettling, kAbandon, From::kSettling, kRare},
    {From::kConfirming, kConnected, From::kConfirming, kAlone},
    {From::kConfirming, kReply, From::kConfirming, kAlone},
    {From::kConfirming, kAnswer, From::kEnded, kAlone},
    {From::kConfirming, kCalleeGone, From::kEnded, kRare},
    {From::kConfirming, kForgotten, From::kEnded, kRare},
    {From::kConfirming, kAbandon, From::kConfirming, kRare},
    {From::kConfirming, kReplySettled, From::kConfirming, kRare},
    // It was given up: the callee is asked by each connection until it answers.
    {From::kCancelling, kConnected, From::kCancelling, kAlone | kAgents},
    {From::kCancelling, kReply, From::kCancelling, kAlone | kAgents},
    {From::kCancelling, kAnswer, From::kEnded, kAlone | kAgents},
    {From::kCancelling, kCalleeGone, From::kEnded, kAlone | kAgents},
    {From::kCancelling, kForgotten, From::kEnded, kAlone | kAgents},
    {From::kCancelling, kAbandon, From::kCancelling, kRare},
    {From::kCancelling, kReplySettled, From::kCancelling, kRare},
    // It has ended, and stays so.
    {From::kEnded, kReply, From::kEnded, kAlone},
    {From::kEnded, kAnswer, From::kEnded, kAlone},
    {From::kEnded, kReplySettled, From::kEnded, kRare},
    {From::kEnded, kAbandon, From::kEnded, kRare},
};

struct CalleeRow {
  At from;
  CalleeEvent event;
  At to;
  int in;
};
constexpr CalleeRow kCalleeTable[] = {
    // The first copy of a request, or the fence before it.
    {At::kUnknown, kRequest, At::kRunning, kAll},
    {At::kUnknown, kRequest, At::kSettling, kAlone},
    {At::kUnknown, kRequest, At::kAnswered, kAlone},  // over its limit
    {At::kUnknown, kRequest, At::kUnknown, kRare},    // too many known
    {At::kUnknown, kAck, At::kClosed, kAlone | kAgents},
    {At::kUnknown, kAck, At::kUnknown, kRare},  // too many gaps
    {At::kUnknown, kCancel, At::kNever, kAlone | kAgents},
    {At::kUnknown, kCancel, At::kUnknown, kRare},
    {At::kUnknown, kFinished, At::kUnknown, kRare},
    {At::kUnknown, kRequestSettled, At::kUnknown, kRare},
    // What came with it is not settled.
    {At::kSettling, kRequest, At::kSettling, kAlone},
    {At::kSettling, kRequestSettled, At::kRunning, kAlone},
    {At::kSettling, kRequestSettled, At::kCancelled, kAlone},
    {At::kSettling, kRequestSettled, At::kAnswered,
     kAlone},                                           // it was cancelled
    {At::kSettling, kFinished, At::kAnswered, kAlone},  // refused
    {At::kSettling, kFinished, At::kSettling, kAlone},  // cancelled
    {At::kSettling, kCancel, At::kGivenUp, kAlone},
    {At::kSettling, kCancel, At::kSettling, kRare},
    {At::kSettling, kAck, At::kGivenUp, kRare},
    {At::kSettling, kCallerGone, At::kGivenUp, kRare},
    {At::kSettling, kCallerGone, At::kUnknown, kRare},
    // It runs once, whatever comes meanwhile.
    {At::kRunning, kRequest, At::kRunning, kAlone | kAgents},
    {At::kRunning, kFinished, At::kAnswered, kAll},
    {At::kRunning, kCancel, At::kGivenUp, kAlone | kAgents},
    {At::kRunning, kCancel, At::kRunning, kRare},
    {At::kRunning, kAck, At::kGivenUp, kRare},
    {At::kRunning, kAck, At::kRunning, kRare},
    {At::kRunning, kCalleeTick, At::kCancelled, kAlone | kAgents},
    {At::kRunning, kCallerGone, At::kGivenUp, kAgents},
    {At::kCancelled, kRequest, At::kCancelled, kAlone},
    {At::kCancelled, kFinished, At::kAnswered, kAlone | kAgents},
    {At::kCancelled, kCancel, At::kGivenUp, kAlone | kAgents},
    {At::kCancelled, kCancel, At::kCancelled, kRare},
    {At::kCancelled, kCallerGone, At::kGivenUp, kRare},
    {At::kGivenUp, kRequest, At::kGivenUp, kAlone},
    {At::kGivenUp, kCancel, At::kGivenUp, kAlone},
    {At::kGivenUp, kAck, At::kGivenUp, kAlone | kAgents},
    {At::kGivenUp, kRequestSettled, At::kGivenUp, kAlone},
    {At::kGivenUp, kRequestSettled, At::kClosed, kAlone},
    {At::kGivenUp, kFinished, At::kGivenUp, kAlone},
    {At::kGivenUp, kFinished, At::kClosed, kAlone | kAgents},
    {At::kGivenUp, kFinished, At::kNever, kRare},      // refused
    {At::kGivenUp, kFinished, At::kUnknown, kAgents},  // nobody is left
    // Its reply is kept until it is closed.
    {At::kAnswered, kRequest, At::kAnswered, kAll},
    {At::kAnswered, kAck, At::kClosed, kAll},
    {At::kAnswered, kAck, At::kAnswered, kRare},
    {At::kAnswered, kCancel, At::kClosed, kAlone | kAgents},
    {At::kAnswered, kCancel, At::kNever, kAlone},  // it was not admitted
    {At::kAnswered, kCancel, At::kAnswered, kRare},
    {At::kAnswered, kCallerGone, At::kUnknown, kAgents},
    // A closed call never starts.
    {At::kClosed, kRequest, At::kClosed, kAlone},
    {At::kClosed, kAck, At::kClosed, kAll},
    {At::kClosed, kCancel, At::kClosed, kAlone},
    {At::kNever, kRequest, At::kNever, kAlone | kAgents},
    {At::kNever, kAck, At::kClosed, kAlone | kAgents},
    {At::kNever, kCancel, At::kNever, kAlone},
};

// The ends of intervals, which stand for what lies between.
template <typename Intervals>
void AddEnds(const Intervals& intervals, std::set<uint64_t>* ids) {
  for (const Interval interval : intervals) {
    ids->insert({interval.first, interval.last});
  }
}

// The calls that `event` is about.
std::set<uint64_t> Subjects(const CallerSession::Event& event) {
  if (const auto* abandon = std::get_if<CallerSession::Abandon>(&event)) {
    return {abandon->id};
  }
  if (const auto* reply = std::get_if<CallerSession::Arrived>(&event)) {
    return {reply->reply->id};
  }
  if (const auto* settled = std::get_if<CallerSession::Settled>(&event)) {
    return {settled->id};
  }
  std::set<uint64_t> ids;
  if (const auto* answer = std::get_if<CallerSession::Answered>(&event)) {
    AddEnds(answer->closed.seen, &ids);
    AddEnds(answer->closed.never, &ids);
  }
  return ids;
}

std::set<uint64_t> Subjects(const CalleeSession::Event& event) {
  std::set<uint64_t> ids;
  if (const auto* request = std::get_if<CalleeSession::Arrived>(&event)) {
    ids.insert(request->request->id);
  } else if (const auto* finished =
                 std::get_if<CalleeSession::Finished>(&event)) {
    ids.insert(finished->reply->id);
  } else if (const auto* settled =
                 std::get_if<CalleeSession::Settled>(&event)) {
    ids.insert(settled->id);
  } else if (const auto* acked = std::get_if<CalleeSession::Acked>(&event)) {
    AddEnds(acked->ack.ids, &ids);
    AddEnds(acked->ack.confirm, &ids);
  } else if (const auto* given = std::get_if<CalleeSession::GivenUp>(&event)) {
    AddEnds(given->cancel.ids, &ids);
  }
  return ids;
}

}  // namespace

const std::map<SessionCoverage::Transition, int>& SessionCoverage::Tables() {
  static const auto* const tables = [] {
    auto* const rows = new std::map<Transition, int>;
    for (const CallerRow& row : kCallerTable) {
      (*rows)[{kCaller, static_cast<int>(row.from), row.event,
               static_cast<int>(row.to)}] = row.in;
    }
    for (const CalleeRow& row : kCalleeTable) {
      (*rows)[{kCallee, static_cast<int>(row.from), row.event,
               static_cast<int>(row.to)}] = row.in;
    }
    return rows;
  }();
  return *tables;
}

void SessionCoverage::OnEvent(CallerSession& session,
                              const CallerSession::Event& event, Instant now,
                              std::vector<CallerSession::Action>* actions) {
  using State = CallerSession::State;
  const int kind = static_cast<int>(event.index());
  const std::set<uint64_t> subjects = Subjects(event);
  std::map<uint64_t, State> before;
  for (const uint64_t id : subjects) before[id] = session.StateOf(id);
  session.ForEachPending([&](const Request& request, bool) {
    before[request.id] = session.StateOf(request.id);
  });
  session.ForEachClosing(
      [&](uint64_t id) { before[id] = session.StateOf(id); });
  session.OnEvent(event, now, actions);
  if (const auto* start = std::get_if<CallerSession::Start>(&event)) {
    before[start->request->id] = State::kUnknown;
  }
  for (const auto& [id, from] : before) {
    const State to = session.StateOf(id);
    const bool is_subject =
        subjects.count(id) > 0 || kind == kConnected || kind == kForgotten;
    if (from == to && !is_subject) continue;
    ++counts_[{kCaller, static_cast<int>(from), kind, static_cast<int>(to)}];
  }
}

void SessionCoverage::OnEvent(CalleeSession& session,
                              const CalleeSession::Event& event, Instant now,
                              std::vector<CalleeSession::Action>* actions) {
  using State = CalleeSession::State;
  const int kind = static_cast<int>(event.index());
  const std::set<uint64_t> subjects = Subjects(event);
  std::map<uint64_t, State> before;
  for (const uint64_t id : subjects) before[id] = session.StateOf(id);
  session.ForEachKnown([&](uint64_t id) { before[id] = session.StateOf(id); });
  session.OnEvent(event, now, actions);
  for (const auto& [id, from] : before) {
    const State to = session.StateOf(id);
    if (from == to && subjects.count(id) == 0) continue;
    ++counts_[{kCallee, static_cast<int>(from), kind, static_cast<int>(to)}];
  }
}

void SessionCoverage::Absorb(const SessionCoverage& other) {
  for (const auto& [transition, count] : other.counts_) {
    counts_[transition] += count;
  }
}

std::string SessionCoverage::Name(const Transition& transition) {
  const auto [half, from, event, to] = transition;
  const auto* const states = half == kCaller ? kCallerStates : kCalleeStates;
  const auto* const events = half == kCaller ? kCallerEvents : kCalleeEvents;
  return absl::StrCat(kHalves[half], ": ", states[from], " > ", events[event],
                      " > ", states[to]);
}

int64_t SessionCoverage::CountOf(const Transition& transition) const {
  const auto it = counts_.find(transition);
  return it == counts_.end() ? 0 : it->second;
}

std::string SessionCoverage::Report(Where where) const {
  std::string report;
  for (const auto& [transition, in] : Tables()) {
    const bool is_wanted = (in & 1 << static_cast<int>(where)) != 0;
    const int64_t count = CountOf(transition);
    if (!is_wanted && count == 0) continue;
    absl::StrAppendFormat(&report, "%-44s %8d\n", Name(transition), count);
  }
  return report;
}

absl::Status SessionCoverage::CheckHits(Where where) const {
  std::vector<std::string> wrong;
  for (const auto& [transition, in] : Tables()) {
    if ((in & 1 << static_cast<int>(where)) != 0 && CountOf(transition) == 0) {
      wrong.push_back(absl::StrCat(Name(transition), " never happened"));
    }
  }
  for (const auto& [transition, count] : counts_) {
    if (Tables().count(transition) == 0) {
      wrong.push_back(absl::StrCat(Name(transition),
                                   " is not in the tables, but happened ",
                                   count, " times"));
    }
  }
  if (wrong.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("transitions: ", absl::StrJoin(wrong, "; ")));
}

}  // namespace weft::rpc
