#include "weft/rref/core/ref_world.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "weft/base/check.h"

namespace weft::rref {

namespace {

constexpr uint64_t kSecret = 7;
const char* const kKindNames[] = {
    "create",        "created", "cancel create", "fenced",      "create end",
    "token",         "settled", "fork request",  "fork answer", "delete",
    "delete answer", "fetch",   "fetched",       "ask creator", "answer owner"};

WorkerKey KeyOf(int agent, uint32_t life) {
  return {static_cast<uint32_t>(agent), rendezvous::MakeEpoch(0, life)};
}

int ToInt(const std::string& text) {
  int value = 0;
  WEFT_CHECK(absl::SimpleAtoi(text, &value)) << text;
  return value;
}

}  // namespace

RefWorld::RefWorld(const RefWorldOptions& options) : options_(options) {
  for (int i = 0; i < options.agents; ++i) {
    Agent agent;
    agent.key = KeyOf(i, 1);
    agents_.push_back(std::move(agent));
  }
}

// A move names its agents and messages by index, and a fork by its place in
// the order of its agent's table.
std::vector<std::string> RefWorld::Moves() const {
  std::vector<std::string> moves;
  const int agents = static_cast<int>(agents_.size());
  for (int i = 0; i < agents; ++i) {
    if (!agents_[i].is_alive) {
      for (int j = 0; j < agents; ++j) {
        if (agents_[j].is_alive && agents_[j].knows_gone.count(i) == 0) {
          moves.push_back(absl::StrCat("gone ", i, " ", j));
        }
      }
      continue;
    }
    if (created_ < options_.max_objects && agents_[0].is_alive &&
        agents_[i].knows_gone.empty()) {
      moves.push_back(absl::StrCat("create ", i));
    }
    if (options_.crashes > 0) moves.push_back(absl::StrCat("crash ", i));
    AddHandleMoves(i, &moves);
  }
  for (size_t m = 0; m < network_.size(); ++m) {
    if (!CanDeliver(network_[m])) continue;
    moves.push_back(absl::StrCat("deliver ", m));
    const bool may_refuse =
        (network_[m].kind == Kind::kToken && options_.refusals > 0) ||
        (network_[m].kind == Kind::kCreate && options_.failures > 0);
    if (may_refuse) moves.push_back(absl::StrCat("refuse ", m));
  }
  return moves;
}

void RefWorld::AddHandleMoves(int agent,
                              std::vector<std::string>* moves) const {
  const UserTable& user = agents_[agent].user;
  int place = -1;
  user.ForEachFork([&](const Token& token, UserTable::State state) {
    ++place;
    if (!user.HasHandle(token.fork)) return;
    // A request keeps a handle of the reference that it goes through.
    if (fetches_.count({agent, token.fork}) == 0 ||
        options_.fault == Fault::kUseNotCounted) {
      moves->push_back(absl::StrCat("drop ", agent, " ", place));
    }
    if (state == UserTable::State::kFailed) return;
    const bool is_creation = roots_.at(token.object) == token.fork;
    if (options_.give_ups > 0 && state == UserTable::State::kPending &&
        is_creation) {
      moves->push_back(absl::StrCat("give_up ", agent, " ", place));
    }
    // A fork that came from another agent is confirmed before user code sees
    // it; a creation is used and shared at once.
    if (state != UserTable::State::kConfirmed && !is_creation) return;
    if (options_.fetches > 0) {
      moves->push_back(absl::StrCat("fetch ", agent, " ", place));
    }
    if (options_.shares == 0) return;
    for (size_t to = 0; to < agents_.size(); ++to) {
      if (agents_[agent].knows_gone.count(static_cast<int>(to)) > 0) continue;
      moves->push_back(absl::StrCat("share ", agent, " ", place, " ", to));
    }
  });
}

void RefWorld::Apply(const std::string& move) {
  const std::vector<std::string> words = absl::StrSplit(move, ' ');
  ++counts_[words[0]];
  const int first = ToInt(words[1]);
  Token token;  // of the fork that the move names
  if (words[0] == "drop" || words[0] == "fetch" || words[0] == "share" ||
      words[0] == "give_up") {
    int place = ToInt(words[2]);
    agents_[first].user.ForEachFork([&](const Token& t, UserTable::State) {
      if (place-- == 0) token = t;
    });
  }
  if (words[0] == "create") {
    Create(first);
  } else if (words[0] == "drop") {
    Tell(first, UserTable::Dropped{token.fork});
  } else if (words[0] == "fetch") {
    --options_.fetches;
    Fetch(first, token.fork);
  } else if (words[0] == "give_up") {
    --options_.give_ups;
    GiveUp(first, token.object);
  } else if (words[0] == "share") {
    --options_.shares;
    Share(first, ToInt(words[3]), token.fork);
  } else if (words[0] == "deliver") {
    Deliver(first, true);
  } else if (words[0] == "refuse") {
    Deliver(first, false);
  } else if (words[0] == "crash") {
    --options_.crashes;
    Crash(first);
  } else if (words[0] == "gone") {
    LearnGone(ToInt(words[2]), first);
  } else {
    WEFT_CHECK(false) << move;
  }
  Check();
}

std::string RefWorld::Do(const std::string& move) {
  const std::vector<std::string> words = absl::StrSplit(move, ' ');
  std::string wanted = move;
  if (words.size() == 4 && (words[0] == "deliver" || words[0] == "refuse")) {
    const std::string kind = absl::StrReplaceAll(words[1], {{"_", " "}});
    size_t m = 0;
    while (m < network_.size() &&
           !(kKindNames[static_cast<int>(network_[m].kind)] == kind &&
             network_[m].from == ToInt(words[2]) &&
             network_[m].to == ToInt(words[3]))) {
      ++m;
    }
    wanted = absl::StrCat(words[0], " ", m);
  }
  const std::vector<std::string> moves = Moves();
  if (std::find(moves.begin(), moves.end(), wanted) == moves.end()) {
    std::string text = absl::StrJoin(moves, ", ");
    for (const Message& m : network_) {
      absl::StrAppend(&text, "; ", kKindNames[static_cast<int>(m.kind)], " ",
                      m.from, ">", m.to);
    }
    return text;
  }
  Apply(wanted);
  return "";
}

// ------------------------------------------------------------ what agents do

void RefWorld::Create(int creator) {
  ++created_;
  Agent& agent = agents_[creator];
  Token token{{agents_[0].key, agent.key, agent.next_call++},
              {agent.key, agent.next_fork++},
              kSecret};
  creations_[token.object] = Creation::kSent;
  roots_[token.object] = token.fork;
  Tell(creator, UserTable::Creating{token});
  Send({Kind::kCreate, creator, 0, token});
}

void RefWorld::GiveUp(int creator, const ObjectId& object) {
  given_up_.insert(object);
  const Token root{object, roots_.at(object), kSecret};
  Tell(creator, UserTable::Created{root.fork, absl::CancelledError("gave up")});
  if (options_.fault == Fault::kCreationNotFenced) return;
  Send({Kind::kCancelCreate, creator, 0, root});
}

void RefWorld::Share(int from, int to, const ForkId& fork) {
  Agent& agent = agents_[from];
  const Token* held = TokenOf(from, fork);
  Token token{held->object, {agent.key, agent.next_fork++}, held->secret};
  const bool registered = from == 0 && agent.owner.Contains(token.object);
  if (registered) {
    Tell(from, OwnerTable::Shared{token, agents_[to].key});
  } else {
    Tell(from, UserTable::Shared{fork, token.fork, agents_[to].key});
    if (options_.fault == Fault::kParentNotKept) {
      Tell(from, UserTable::ChildSettled{token.fork});
    }
  }
  if (!shares_.insert({token.fork, {from, to, registered}}).second) {
    Fail(absl::StrCat(token.fork.ToString(), " was made twice"));
  }
  Send({Kind::kToken, from, to, token, registered});
}

void RefWorld::Fetch(int agent, const ForkId& fork) {
  const Token token = *TokenOf(agent, fork);
  if (agents_[agent].knows_gone.count(0) > 0) {
    return;
  }
  fetches_.emplace(agent, fork);
  Send({Kind::kFetch, agent, 0, token});
}

void RefWorld::Send(Message message) {
  if (!agents_[message.to].is_alive) return;
  network_.push_back(std::move(message));
}

// ------------------------------------------------------------ the tables

void RefWorld::Tell(int index, const OwnerTable::Event& event) {
  std::vector<OwnerTable::Action> actions;
  agents_[index].owner.OnEvent(event, &actions);
  for (const OwnerTable::Action& action : actions) {
    const auto* answer = std::get_if<OwnerTable::Answer>(&action);
    ++counts_[answer != nullptr ? "action answer" : "action free"];
    if (answer == nullptr) continue;
    const int to = IndexOf(answer->to);
    if (to < 0 || std::holds_alternative<OwnerTable::DeleteRequested>(event)) {
      continue;  // DeliverMessage answers a delete itself
    }
    Send({Kind::kForkAnswer, index, to,
          Token{answer->object, answer->fork, kSecret}, answer->status.ok()});
  }
}

void RefWorld::Tell(int index, const UserTable::Event& event) {
  std::vector<UserTable::Action> actions;
  agents_[index].user.OnEvent(event, &actions);
  // A call to an incarnation that is known to be gone fails at once.
  const bool no_owner = agents_[index].knows_gone.count(0) > 0;
  for (const UserTable::Action& action : actions) {
    if (const auto* ask = std::get_if<UserTable::SendForkRequest>(&action)) {
      ++counts_["action request"];
      if (no_owner) {
        Tell(index, UserTable::Registered{ask->token.fork,
                                          absl::UnavailableError("gone")});
        continue;
      }
      Send({Kind::kForkRequest, index, 0, ask->token});
      if (options_.fault == Fault::kRepeatedRequest) {
        Send({Kind::kForkRequest, index, 0, ask->token});
      }
    } else if (const auto* end = std::get_if<UserTable::SendDelete>(&action)) {
      ++counts_["action delete"];
      if (no_owner) {
        Tell(index, UserTable::Deleted{end->fork});
        continue;
      }
      Send({Kind::kDelete, index, 0, Token{end->object, end->fork, kSecret}});
    } else {
      ++counts_["action ready"];
      OnReady(index, std::get<UserTable::Ready>(action));
    }
  }
}

void RefWorld::OnReady(int agent, const UserTable::Ready& ready) {
  const auto share = shares_.find(ready.token.fork);
  if (share == shares_.end()) return;
  // The receiver's part of the message is done: its sender is notified.
  const Message settled{Kind::kSettled, agent, share->second.from,
                        ready.token,    true,  share->second.registered};
  shares_.erase(share);
  if (options_.fault != Fault::kSettlementLost) Send(settled);
}

// ------------------------------------------------------------ the network

bool RefWorld::MayCome(const ObjectId& object) const {
  if (agents_[0].owner.Expects(object)) return true;
  const auto it = creations_.find(object);
  if (it == creations_.end() || it->second != Creation::kSent) return false;
  return !KnowsGone(0, object.creator);
}

bool RefWorld::KnowsGone(int agent, WorkerKey key) const {
  const int index = IndexOf(key);
  return index < 0 || agents_[agent].knows_gone.count(index) > 0;
}

bool RefWorld::CanDeliver(const Message& message) const {
  // The owner lets a fetch wait until the object is there, and a creator is
  // asked of a call that is open until it has ended.
  if (message.kind == Kind::kFetch) return !MayCome(message.token.object);
  if (message.kind == Kind::kAskCreator) {
    return ended_.count(message.token.object) > 0;
  }
  return true;
}

void RefWorld::Deliver(size_t index, bool accept) {
  const Message message = network_[index];
  network_.erase(network_.begin() + index);
  const std::string kind = kKindNames[static_cast<int>(message.kind)];
  ++counts_[absl::StrCat(accept ? "delivered " : "refused ", kind)];
  const Token& token = message.token;
  switch (message.kind) {
    case Kind::kCreate:
      if (!accept) --options_.failures;
      return DeliverCreate(message, accept);
    case Kind::kCreateEnd:
      return DeliverCreateEnd(message);
    case Kind::kFenced:
      return DeliverFenced(message);
    case Kind::kAskCreator:
      return Send({Kind::kAnswerOwner, message.to, 0, token});
    case Kind::kAnswerOwner:
      if (agents_[0].owner.Contains(token.object) ||
          agents_[0].owner.Expects(token.object)) {
        return;
      }
      return Tell(0, OwnerTable::NotMade{token.object,
                                         absl::NotFoundError("never came")});
    case Kind::kCreated:
      if (given_up_.count(token.object) > 0) return;
      ended_.insert(token.object);
      return Tell(message.to,
                  UserTable::Created{
                      token.fork, message.ok ? absl::OkStatus()
                                             : absl::InternalError("throws")});
    case Kind::kCancelCreate:
      return DeliverCancel(message);
    case Kind::kToken:
      if (!accept) --options_.refusals;
      return DeliverToken(message, accept);
    case Kind::kSettled:
      return DeliverSettled(message);
    case Kind::kForkRequest:
      return DeliverForkRequest(message);
    case Kind::kForkAnswer:
      Tell(message.to, UserTable::Registered{
                           token.fork, message.ok ? absl::OkStatus()
                                                  : absl::NotFoundError("")});
      // The call that waited for the reference fails, and drops it.
      if (!message.ok && agents_[message.to].user.HasHandle(token.fork)) {
        Tell(message.to, UserTable::Dropped{token.fork});
      }
      return;
    case Kind::kDelete:
      return DeliverDelete(message);
    case Kind::kDeleteAnswer:
      return Tell(message.to, UserTable::Deleted{token.fork});
    case Kind::kFetch:
      return DeliverFetch(message);
    case Kind::kFetched:
      fetches_.erase(fetches_.find({message.to, token.fork}));
      return;
  }
}

// The function runs; its reply leaves before the owner's table gets the event
// of its end.
void RefWorld::DeliverCreate(const Message& message, bool succeeds) {
  const Token& token = message.token;
  if (creations_[token.object] == Creation::kNever) return;  // fenced
  creations_[token.object] = Creation::kRunning;
  Tell(0, OwnerTable::Expected{token});
  Send({Kind::kCreateEnd, 0, 0, token, succeeds});
  Send({Kind::kCreated, 0, message.from, token, succeeds});
}

void RefWorld::DeliverCreateEnd(const Message& message) {
  const Token& token = message.token;
  creations_[token.object] = Creation::kRan;
  // The creator's references end with it.
  if (message.ok && !KnowsGone(0, token.object.creator)) {
    return Tell(0, OwnerTable::Made{token});
  }
  if (options_.fault == Fault::kFailedCreationUnknown) return;
  Tell(0, OwnerTable::NotMade{token.object, absl::InternalError("throws")});
}

// The creator has given the call up, and learns whether it had come.
void RefWorld::DeliverCancel(const Message& message) {
  const Token& token = message.token;
  const bool had_come = creations_[token.object] != Creation::kSent;
  if (!had_come) creations_[token.object] = Creation::kNever;
  Send({Kind::kFenced, 0, message.from, token, had_come});
}

// Deletes the object that it may have made.
void RefWorld::DeliverFenced(const Message& message) {
  ended_.insert(message.token.object);
  if (message.ok) Send({Kind::kDelete, message.to, 0, message.token});
}

void RefWorld::DeliverForkRequest(const Message& message) {
  const Token& token = message.token;
  Tell(0, OwnerTable::ForkRequested{agents_[message.from].key, token, true});
  if (agents_[0].owner.Contains(token.object) ||
      agents_[0].owner.Expects(token.object)) {
    return;
  }
  if (KnowsGone(0, token.object.creator)) {
    return Tell(
        0, OwnerTable::NotMade{token.object, absl::UnavailableError("gone")});
  }
  if (options_.fault == Fault::kCreatorNotAsked) return;
  Send({Kind::kAskCreator, 0, IndexOf(token.object.creator), token});
}

void RefWorld::DeliverDelete(const Message& message) {
  const Token& token = message.token;
  const WorkerKey from = agents_[message.from].key;
  const bool expected = agents_[0].owner.Expects(token.object, token.fork);
  // If its creation was given up, the owner may hold nothing of the object.
  if (!expected && given_up_.count(token.object) == 0 &&
      !agents_[0].owner.Holds(token.object, token.fork, from)) {
    Fail(absl::StrCat(token.fork.ToString(), " is deleted twice"));
  }
  if (!expected || options_.fault != Fault::kEarlyDeleteLost) {
    Tell(0, OwnerTable::DeleteRequested{from, token.object, token.fork});
  }
  Send({Kind::kDeleteAnswer, 0, message.from, token});
}

void RefWorld::DeliverToken(const Message& message, bool accept) {
  if (accept) {
    return Tell(message.to, UserTable::Received{message.token, message.ok});
  }
  const auto share = shares_.find(message.token.fork);
  if (share == shares_.end()) return Fail("a message is settled twice");
  const bool registered = share->second.registered;
  shares_.erase(share);
  if (options_.fault == Fault::kRefusalNotReported) return;
  Send({Kind::kSettled, message.to, message.from, message.token, false,
        registered});
}

void RefWorld::DeliverSettled(const Message& message) {
  const Token& token = message.token;
  if (!message.registered) {
    return Tell(message.to, UserTable::ChildSettled{token.fork});
  }
  if (!message.ok) {
    Tell(message.to, OwnerTable::ShareFailed{token.object, token.fork});
  }
}

void RefWorld::DeliverFetch(const Message& message) {
  const Token& token = message.token;
  const Agent& sender = agents_[message.from];
  const UserTable::State state = sender.user.StateOf(token.fork);
  if (sender.is_alive && state == UserTable::State::kConfirmed &&
      !agents_[0].owner.Contains(token.object)) {
    Fail(
        absl::StrCat("fetch of ", token.object.ToString(), ", which is freed"));
  }
  if (sender.is_alive && (state == UserTable::State::kDeleting ||
                          state == UserTable::State::kUnknown)) {
    Fail("a fetch arrives after its reference was given up");
  }
  Send({Kind::kFetched, 0, message.from, token});
}

// ------------------------------------------------------------ death

void RefWorld::Crash(int index) {
  crashed_ = true;
  agents_[index].is_alive = false;
  agents_[index].user = UserTable();
  agents_[index].owner = OwnerTable(100);
  EndFetchesOf(index);
  network_.erase(
      std::remove_if(network_.begin(), network_.end(),
                     [&](const Message& m) { return m.to == index; }),
      network_.end());
  if (options_.restarts > 0) {
    --options_.restarts;
    Restart(index);
  }
}

// The next incarnation is another agent, which nobody else knows yet.
void RefWorld::Restart(int index) {
  Agent next;
  const bool same = options_.fault == Fault::kSameIncarnation;
  next.key = same ? agents_[index].key : KeyOf(index, 2);
  agents_.push_back(std::move(next));
}

// From now on nothing comes from `gone`, and what `agent` waits for from it
// has failed.
void RefWorld::LearnGone(int index, int gone) {
  agents_[index].knows_gone.insert(gone);
  const WorkerKey key = agents_[gone].key;
  network_.erase(std::remove_if(network_.begin(), network_.end(),
                                [&](const Message& m) {
                                  return m.from == gone && m.to == index;
                                }),
                 network_.end());
  for (auto it = shares_.begin(); it != shares_.end();) {
    const bool ends = it->second.from == gone && it->second.to == index;
    it = ends ? shares_.erase(it) : std::next(it);
  }
  if (index == 0) Tell(0, OwnerTable::PeerGone{key});
  Tell(index, UserTable::PeerGone{key, absl::UnavailableError("gone")});
  if (gone == 0) EndFetchesOf(index);
}

void RefWorld::EndFetchesOf(int agent) {
  for (auto it = fetches_.begin(); it != fetches_.end();) {
    it = it->first == agent ? fetches_.erase(it) : std::next(it);
  }
}

// ------------------------------------------------------------ what must hold

void RefWorld::Check() {
  if (!agents_[0].is_alive) return;
  for (size_t i = 0; i < agents_.size(); ++i) {
    if (!agents_[i].is_alive ||
        agents_[0].knows_gone.count(static_cast<int>(i)) > 0) {
      continue;
    }
    agents_[i].user.ForEachFork(
        [&](const Token& token, UserTable::State state) {
          CheckFork(static_cast<int>(i), token, state);
        });
  }
}

void RefWorld::CheckFork(int agent, const Token& token,
                         UserTable::State state) {
  const OwnerTable& owner = agents_[0].owner;
  if (state == UserTable::State::kConfirmed &&
      !owner.Holds(token.object, token.fork, agents_[agent].key) &&
      !owner.Expects(token.object, token.fork)) {
    Fail(absl::StrCat("agent ", agent, " holds ", token.fork.ToString(),
                      ", which the owner does not know"));
  }
  // With crashes an ancestor may die before its child is registered.
  const bool may_be_lost = crashed_ || given_up_.count(token.object) > 0;
  if (state == UserTable::State::kPending && !may_be_lost &&
      creations_[token.object] == Creation::kRan &&
      !owner.Contains(token.object)) {
    bool failed = false;  // the answer that says so is on its way
    for (const Message& m : network_) {
      const bool answers =
          m.kind == Kind::kForkAnswer || m.kind == Kind::kCreated;
      failed |= answers && !m.ok && m.token.object == token.object;
    }
    if (!failed && options_.failures == 0 && counts_["refused create"] == 0) {
      Fail(absl::StrCat(token.object.ToString(), " was freed while agent ",
                        agent, " waits to register ", token.fork.ToString()));
    }
  }
}

void RefWorld::Settle() {
  for (size_t i = 0; i < agents_.size(); ++i) {
    for (size_t gone = 0; gone < agents_.size(); ++gone) {
      if (agents_[gone].is_alive || !agents_[i].is_alive ||
          agents_[i].knows_gone.count(static_cast<int>(gone)) > 0) {
        continue;
      }
      LearnGone(static_cast<int>(i), static_cast<int>(gone));
    }
  }
  for (int round = 0; round < 4; ++round) {
    while (!network_.empty() && violation_.empty()) {
      size_t next = 0;
      while (next < network_.size() && !CanDeliver(network_[next])) ++next;
      if (next == network_.size()) break;
      Deliver(next, true);
      Check();
    }
    for (size_t i = 0; i < agents_.size(); ++i) {
      std::vector<ForkId> held;
      const UserTable& user = agents_[i].user;
      user.ForEachFork([&](const Token& token, UserTable::State) {
        if (user.HasHandle(token.fork) &&
            fetches_.count({static_cast<int>(i), token.fork}) == 0) {
          held.push_back(token.fork);
        }
      });
      for (const ForkId& fork : held) {
        Tell(static_cast<int>(i), UserTable::Dropped{fork});
      }
    }
  }
  if (violation_.empty()) CheckEmpty();
}

void RefWorld::CheckEmpty() {
  for (size_t i = 0; i < agents_.size(); ++i) {
    const Agent& agent = agents_[i];
    if (!agent.is_alive) continue;
    if (agent.user.forks() > 0 || agent.user.open_children() > 0) {
      Fail(
          absl::StrCat("agent ", i, " still holds ", agent.user.Fingerprint()));
    }
    if (agent.owner.objects() > 0 || agent.owner.waiting_requests() > 0 ||
        agent.owner.expected() > 0) {
      Fail(absl::StrCat("the owner still has ", agent.owner.Fingerprint()));
    }
  }
}

void RefWorld::Fail(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

// ------------------------------------------------------------ small things

const Token* RefWorld::TokenOf(int agent, const ForkId& fork) const {
  const Token* found = nullptr;
  agents_[agent].user.ForEachFork([&](const Token& t, UserTable::State) {
    if (t.fork == fork) found = &t;
  });
  WEFT_CHECK(found != nullptr) << fork.ToString();
  return found;
}

int RefWorld::IndexOf(WorkerKey key) const {
  for (size_t i = agents_.size(); i-- > 0;) {
    if (agents_[i].key == key) return static_cast<int>(i);
  }
  return -1;
}

std::string RefWorld::Fingerprint() const {
  std::vector<std::string> messages;
  for (const Message& m : network_) {
    messages.push_back(
        absl::StrCat(kKindNames[static_cast<int>(m.kind)], m.from, ">", m.to,
                     m.token.object.ToString(), m.token.fork.ToString(), m.ok,
                     m.registered));
  }
  std::sort(messages.begin(), messages.end());
  std::string text = absl::StrJoin(messages, ";");
  for (const Agent& agent : agents_) {
    absl::StrAppend(&text, "|", agent.is_alive, agent.next_fork,
                    agent.owner.Fingerprint(), "/", agent.user.Fingerprint(),
                    absl::StrJoin(agent.knows_gone, ","));
  }
  for (const auto& [id, state] : creations_) {
    absl::StrAppend(&text, id.ToString(), static_cast<int>(state),
                    given_up_.count(id), ended_.count(id));
  }
  absl::StrAppend(&text, options_.shares, options_.fetches, options_.refusals,
                  options_.failures, options_.give_ups, options_.crashes,
                  created_);
  return text;
}

}  // namespace weft::rref
