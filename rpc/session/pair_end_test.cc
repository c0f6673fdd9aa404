// Tests of how two agents that call each other end: every order of their calls,
// ends, departures and messages, over the sessions that the agents use.

#include <cstdint>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/session/session.h"

namespace weft::rpc {
namespace {

using ::testing::HasSubstr;

// What an agent may do wrong as it ends.
enum class Fault {
  kNone,
  kKeepsConnections,   // closes them only when the peer has left
  kLeavesBeforeReply,  // leaves although a caller has not read its reply
};

struct PairOptions {
  int calls[2] = {1, 1};  // how many each side may make
  bool ends[2] = {true, true};
  int disconnects = 0;
  Fault fault = Fault::kNone;
};

// Two agents as Agent::Shutdown, Membership::Leave and Endpoint::Shutdown drive
// them. Copyable, so that a walk can branch. Side 0 calls side 1 over link 0,
// side 1 calls side 0 over link 1.
class PairWorld {
 public:
  explicit PairWorld(PairOptions options) : options_(options) {
    for (int i = 0; i < 2; ++i) links_.emplace_back();
  }

  std::vector<std::string> Moves() const;
  void Apply(const std::string& move);
  // What is wrong if nothing more can happen here.
  std::string CheckAtRest() const;
  const std::string& violation() const { return violation_; }
  std::string Fingerprint() const;

 private:
  enum class Stage { kServing, kRefusing, kReleased, kLeft, kEnded };
  enum class Kind {
    kRequest,
    kAck,
    kCancel,
    kReply,
    kClosed,
    kCloseConnection
  };
  struct Message {
    Kind kind;
    RequestPtr request;
    ReplyPtr reply;
    Ack ack = {};
    Cancel cancel = {};
    Closed closed = {};
  };
  struct Fate {
    bool ran = false;
    bool ended = false;
  };
  // The calls of one side to the other.
  struct Link {
    CallerSession caller{"peer"};
    CalleeSession callee{Limits()};
    bool has_begun = false;    // the callee knows the session
    bool caller_open = false;  // each end of the connection
    bool callee_open = false;
    std::deque<Message> to_callee;
    std::deque<Message> to_caller;
    std::set<uint64_t> running;
    std::map<uint64_t, Fate> fates;
    std::optional<Instant> caller_wake;
    std::optional<Instant> callee_wake;
    int made = 0;
  };

  void Tell(int i, const CallerSession::Event& event);
  void Tell(int i, const CalleeSession::Event& event);
  void StartCall(int i);
  void Connect(int i);
  void CloseCallerEnd(int i);
  void CloseCalleeEnd(int i);
  void DeliverToCallee(int i);
  void DeliverToCaller(int i);
  void Release(int side);
  void Hear(int side);
  void Tick(int i);
  bool IsIdle(int side) const;
  bool OwesReply(int side) const;

  PairOptions options_;
  Instant now_;
  std::vector<Link> links_;
  Stage stages_[2] = {Stage::kServing, Stage::kServing};
  bool has_heard_[2] = {false, false};
  // A connection broke: a callee that leaves before its caller is back takes
  // the reply along.
  bool was_cut_ = false;
  std::string violation_;
};

std::vector<std::string> PairWorld::Moves() const {
  std::vector<std::string> moves;
  const auto add = [&](const char* what, int i) {
    moves.push_back(absl::StrCat(what, " ", i));
  };
  for (int i = 0; i < 2; ++i) {
    const Link& link = links_[i];
    const Stage stage = stages_[i];
    const bool has_left = stage >= Stage::kLeft;
    if (stage == Stage::kServing && link.made < options_.calls[i] &&
        !has_heard_[i]) {
      add("call", i);
    }
    if (!link.caller_open && !link.caller.is_gone() &&
        link.caller.pending_calls() > 0) {
      add("connect", i);
    }
    if (!link.to_callee.empty()) add("deliver-to-callee", i);
    if (!link.to_caller.empty()) add("deliver-to-caller", i);
    if (!link.running.empty()) add("finish", i);
    if (link.caller_open && link.callee_open && options_.disconnects > 0) {
      add("disconnect", i);
    }
    if (link.caller_wake.has_value() || link.callee_wake.has_value()) {
      add("tick", i);
    }
    if (stage == Stage::kServing && options_.ends[i]) add("shut-down", i);
    if (stage == Stage::kRefusing && IsIdle(i)) add("release", i);
    const bool may_leave =
        !OwesReply(i) || options_.fault == Fault::kLeavesBeforeReply;
    if (stage == Stage::kReleased && may_leave) add("leave", i);
    const bool peer_left = stages_[1 - i] >= Stage::kLeft;
    if (peer_left && !has_left && !has_heard_[i]) add("hear", i);
    // The streams of the peer's calls are what the endpoint waits for.
    if (stage == Stage::kLeft && !links_[1 - i].callee_open) add("end", i);
  }
  return moves;
}

void PairWorld::Apply(const std::string& move) {
  const int i = move.back() - '0';
  const std::string what = move.substr(0, move.size() - 2);
  Link& link = links_[i];
  if (what == "call") {
    StartCall(i);
  } else if (what == "connect") {
    Connect(i);
  } else if (what == "deliver-to-callee") {
    DeliverToCallee(i);
  } else if (what == "deliver-to-caller") {
    DeliverToCaller(i);
  } else if (what == "finish") {
    auto reply = std::make_shared<Reply>();
    reply->id = *link.running.begin();
    link.running.erase(link.running.begin());
    Tell(i, CalleeSession::Finished{std::move(reply)});
  } else if (what == "disconnect") {
    --options_.disconnects;
    was_cut_ = true;
    link.to_callee.clear();
    link.to_caller.clear();
    link.caller_open = link.callee_open = false;
    Tell(i, CallerSession::Event(CallerSession::Disconnected{}));
    Tell(i, CalleeSession::Event(CalleeSession::Disconnected{}));
  } else if (what == "tick") {
    Tick(i);
  } else if (what == "shut-down") {
    stages_[i] = Stage::kRefusing;
  } else if (what == "release") {
    Release(i);
  } else if (what == "leave") {
    stages_[i] = Stage::kLeft;
  } else if (what == "hear") {
    Hear(i);
  } else if (what == "end") {
    stages_[i] = Stage::kEnded;
  } else {
    violation_ = absl::StrCat("unknown move ", move);
  }
}

void PairWorld::Tell(int i, const CallerSession::Event& event) {
  Link& link = links_[i];
  std::vector<CallerSession::Action> actions;
  link.caller.OnEvent(event, now_, &actions);
  bool hangs_up = false;
  for (CallerSession::Action& action : actions) {
    if (auto* send = std::get_if<CallerSession::SendRequest>(&action)) {
      link.to_callee.push_back({Kind::kRequest, send->request, nullptr});
    } else if (auto* ack = std::get_if<CallerSession::SendAck>(&action)) {
      link.to_callee.push_back({Kind::kAck, nullptr, nullptr, ack->ack});
    } else if (auto* cancel = std::get_if<CallerSession::SendCancel>(&action)) {
      link.to_callee.push_back(
          {Kind::kCancel, nullptr, nullptr, {}, cancel->cancel});
    } else if (auto* done = std::get_if<CallerSession::Complete>(&action)) {
      Fate& fate = link.fates[done->id];
      fate.ended = true;
      if (fate.ran && done->reply == nullptr && !was_cut_) {
        violation_ = absl::StrCat("a call of side ", i, " ran, and its reply ",
                                  "was lost: ", done->status.message());
      }
    } else if (auto* wake = std::get_if<CallerSession::WakeAt>(&action)) {
      // Deadlines never pass here.
      if (wake->when < now_ + absl::Minutes(1)) link.caller_wake = wake->when;
    } else if (std::holds_alternative<CallerSession::CloseConnection>(action)) {
      hangs_up = true;
    }
  }
  if (hangs_up && link.caller_open) CloseCallerEnd(i);
}

void PairWorld::Tell(int i, const CalleeSession::Event& event) {
  Link& link = links_[i];
  std::vector<CalleeSession::Action> actions;
  link.callee.OnEvent(event, now_, &actions);
  bool hangs_up = false;
  for (CalleeSession::Action& action : actions) {
    if (auto* run = std::get_if<CalleeSession::Run>(&action)) {
      if (stages_[1 - i] == Stage::kServing) {
        link.fates[run->request->id].ran = true;
        link.running.insert(run->request->id);
        continue;
      }
      auto refusal = std::make_shared<Reply>();
      refusal->id = run->request->id;
      refusal->status = absl::UnavailableError("shutting down");
      Tell(i, CalleeSession::Finished{std::move(refusal)});
    } else if (auto* send = std::get_if<CalleeSession::SendReply>(&action)) {
      link.to_caller.push_back({Kind::kReply, nullptr, send->reply});
    } else if (auto* closed = std::get_if<CalleeSession::SendClosed>(&action)) {
      link.to_caller.push_back(
          {Kind::kClosed, nullptr, nullptr, {}, {}, closed->closed});
    } else if (auto* wake = std::get_if<CalleeSession::WakeAt>(&action)) {
      if (wake->when < now_ + absl::Minutes(1)) link.callee_wake = wake->when;
    } else if (std::holds_alternative<CalleeSession::CloseConnection>(action)) {
      hangs_up = true;
    }
  }
  if (hangs_up && link.callee_open) CloseCalleeEnd(i);
}

void PairWorld::StartCall(int i) {
  auto request = std::make_shared<Request>();
  request->function = "F";
  request->deadline = Instant() + absl::Hours(1);
  links_[i].fates[++links_[i].made];
  Tell(i, CallerSession::Start{std::move(request)});
}

// As AgentState::CheckHello and Endpoint judge it.
void PairWorld::Connect(int i) {
  Link& link = links_[i];
  const Stage callee = stages_[1 - i];
  const bool returns = link.has_begun && link.caller.resumes();
  const bool has_heard = has_heard_[1 - i];  // that this caller has left
  if (callee >= Stage::kLeft || has_heard ||
      (callee >= Stage::kRefusing && !returns)) {
    Tell(i, CallerSession::Unreachable{absl::UnavailableError("refused")});
    return;
  }
  // Messages of an earlier connection are ignored.
  link.to_callee.clear();
  link.to_caller.clear();
  link.has_begun = link.caller_open = link.callee_open = true;
  Tell(i, CalleeSession::Event(CalleeSession::Connected{}));
  Tell(i, CallerSession::Connected{Limits(), std::nullopt, ""});
}

void PairWorld::CloseCallerEnd(int i) {
  Link& link = links_[i];
  link.caller_open = false;
  link.to_caller.clear();
  if (link.callee_open)
    link.to_callee.push_back({Kind::kCloseConnection, nullptr, nullptr});
  Tell(i, CallerSession::Event(CallerSession::Disconnected{}));
}

void PairWorld::CloseCalleeEnd(int i) {
  Link& link = links_[i];
  link.callee_open = false;
  link.to_callee.clear();
  if (link.caller_open)
    link.to_caller.push_back({Kind::kCloseConnection, nullptr, nullptr});
  Tell(i, CalleeSession::Event(CalleeSession::Disconnected{}));
}

void PairWorld::DeliverToCallee(int i) {
  Link& link = links_[i];
  const Message message = link.to_callee.front();
  link.to_callee.pop_front();
  if (message.kind == Kind::kCloseConnection) {
    link.callee_open = false;
    link.to_caller.clear();
    return Tell(i, CalleeSession::Event(CalleeSession::Disconnected{}));
  }
  if (!link.callee_open) return;
  if (message.kind == Kind::kRequest) {
    return Tell(i, CalleeSession::Arrived{message.request});
  }
  if (message.kind == Kind::kCancel) {
    return Tell(i, CalleeSession::GivenUp{message.cancel});
  }
  Tell(i, CalleeSession::Acked{message.ack});
}

void PairWorld::DeliverToCaller(int i) {
  Link& link = links_[i];
  const Message message = link.to_caller.front();
  link.to_caller.pop_front();
  if (message.kind == Kind::kCloseConnection) {
    link.caller_open = false;
    link.to_callee.clear();
    return Tell(i, CallerSession::Event(CallerSession::Disconnected{}));
  }
  if (!link.caller_open) return;
  if (message.kind == Kind::kClosed) {
    return Tell(i, CallerSession::Answered{message.closed});
  }
  Tell(i, CallerSession::Arrived{message.reply});
}

bool PairWorld::IsIdle(int side) const {
  return links_[side].caller.pending_calls() == 0 &&
         links_[1 - side].callee.running_calls() == 0;
}

bool PairWorld::OwesReply(int side) const {
  return links_[1 - side].callee.unacknowledged() > 0;
}

void PairWorld::Release(int side) {
  stages_[side] = Stage::kReleased;
  if (options_.fault == Fault::kKeepsConnections) return;
  Tell(side, CallerSession::Ending{absl::CancelledError("shut down")});
  Tell(1 - side, CalleeSession::Event(CalleeSession::Ending{}));
}

// As Agent::PeerGone.
void PairWorld::Hear(int side) {
  has_heard_[side] = true;
  const absl::Status gone = absl::UnavailableError("the peer has left");
  Tell(side, CallerSession::PeerGone{gone});
  if (links_[side].caller_open) CloseCallerEnd(side);
  Tell(1 - side, CalleeSession::PeerGone{gone});
  if (links_[1 - side].callee_open) CloseCalleeEnd(1 - side);
}

void PairWorld::Tick(int i) {
  Link& link = links_[i];
  if (const auto when = std::exchange(link.caller_wake, std::nullopt)) {
    now_ = std::max(now_, *when);
    Tell(i, CallerSession::Event(CallerSession::Tick{}));
  }
  if (const auto when = std::exchange(link.callee_wake, std::nullopt)) {
    now_ = std::max(now_, *when);
    Tell(i, CalleeSession::Event(CalleeSession::Tick{}));
  }
}

std::string PairWorld::CheckAtRest() const {
  for (int i = 0; i < 2; ++i) {
    for (const auto& [id, fate] : links_[i].fates) {
      if (!fate.ended) return absl::StrCat("call ", id, " never ends");
    }
    if (!options_.ends[i] || stages_[i] == Stage::kEnded) continue;
    return absl::StrCat("side ", i, " waits for ever in stage ",
                        static_cast<int>(stages_[i]));
  }
  return "";
}

std::string PairWorld::Fingerprint() const {
  std::string text = absl::StrCat(options_.disconnects);
  for (int i = 0; i < 2; ++i) {
    const Link& link = links_[i];
    absl::StrAppend(&text, "|", static_cast<int>(stages_[i]), has_heard_[i],
                    link.caller.Fingerprint(), "|", link.callee.Fingerprint(),
                    "|", link.has_begun, link.caller_open, link.callee_open,
                    link.made, link.caller_wake.has_value(),
                    link.callee_wake.has_value());
    for (const auto* way : {&link.to_callee, &link.to_caller}) {
      absl::StrAppend(&text, "|");
      for (const Message& message : *way) {
        absl::StrAppend(&text, static_cast<int>(message.kind), " ",
                        message.request ? message.request->id : 0, " ",
                        message.reply ? message.reply->id : 0, " ");
        for (const Intervals& ids : {message.ack.ids, message.cancel.ids}) {
          for (const Interval interval : ids) {
            absl::StrAppend(&text, interval.first, "-", interval.last, " ");
          }
        }
      }
    }
    for (const auto& [id, fate] : link.fates) {
      absl::StrAppend(&text, "|", id, fate.ran, fate.ended,
                      link.running.count(id));
    }
  }
  return text;
}

struct Walk {
  int64_t states = 0;
  int64_t at_rest = 0;
  std::string violation;  // with the moves that led to it
};

// Breadth first, so that a violation comes with the shortest way to it.
Walk Explore(const PairOptions& options, int64_t max_states = 2000000) {
  struct Node {
    PairWorld world;
    std::vector<std::string> path;
  };
  Walk walk;
  absl::flat_hash_set<size_t> seen;
  std::deque<Node> open;
  open.push_back({PairWorld(options), {}});
  while (!open.empty() && walk.states < max_states) {
    const Node node = std::move(open.front());
    open.pop_front();
    ++walk.states;
    const std::vector<std::string> moves = node.world.Moves();
    std::string violation = node.world.violation();
    if (moves.empty()) {
      ++walk.at_rest;
      if (violation.empty()) violation = node.world.CheckAtRest();
    }
    if (!violation.empty()) {
      walk.violation =
          absl::StrCat(violation, " after: ", absl::StrJoin(node.path, ", "));
      return walk;
    }
    for (const std::string& move : moves) {
      PairWorld next = node.world;
      next.Apply(move);
      if (!seen.insert(absl::HashOf(next.Fingerprint())).second) continue;
      std::vector<std::string> path = node.path;
      path.push_back(move);
      open.push_back({std::move(next), std::move(path)});
    }
  }
  EXPECT_TRUE(open.empty()) << "not all states fit into " << max_states;
  std::cout << walk.states << " states, " << walk.at_rest << " at rest\n";
  return walk;
}

TEST(PairEnd, TwoAgentsThatShutDownAtAnyMomentBothEndAndLoseNoReply) {
  const Walk walk = Explore({});
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(PairEnd, AnAgentEndsBesideAPeerThatStays) {
  PairOptions options;
  options.ends[1] = false;
  options.calls[1] = 2;
  const Walk walk = Explore(options);
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(PairEnd, ABrokenConnectionKeepsNeitherSideFromEnding) {
  PairOptions options;
  options.calls[1] = 0;
  options.disconnects = 2;
  const Walk walk = Explore(options);
  EXPECT_THAT(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(PairEnd, ExplorationFindsAnAgentThatKeepsConnectionsUntilItsPeerEnds) {
  PairOptions options;
  options.fault = Fault::kKeepsConnections;
  EXPECT_THAT(Explore(options).violation, HasSubstr("waits for ever"));
}

TEST(PairEnd, AnAgentThatLeavesBeforeItsReplyIsReadIsFound) {
  PairOptions options;
  options.fault = Fault::kLeavesBeforeReply;
  EXPECT_THAT(Explore(options).violation, HasSubstr("its reply was lost"));
}

}  // namespace
}  // namespace weft::rpc
