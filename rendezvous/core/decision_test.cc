// Every order of messages, deaths and notices of them for a small group, and
// the schedules that broke an earlier rule.

#include "weft/rendezvous/core/decision.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::rendezvous {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using State = DecisionParticipant::State;

// Faults planted into the world, each of which the exploration must find.
enum class Fault {
  kNone,
  kAbortsAlone,      // who is done and has waited for long aborts
  kDecidesTwice,     // a death after the decision turns it
  kNoPromise,        // who answered "done" takes a late COMMIT
  kFirstAnswerWins,  // one "done" is enough to abort
};

struct Options {
  int agents = 3;  // agent 0 coordinates
  int first = 0;   // the first that takes part
  int crashes = 1;
  int failures = 0;
  int timers = 0;
  int cancels = 0;
  Fault fault = Fault::kNone;
};

WorkerKey KeyOf(int agent) {
  return {static_cast<uint32_t>(agent), MakeEpoch(0, 1)};
}
int IndexOf(WorkerKey key) { return static_cast<int>(key.id); }

std::set<WorkerKey> AllKeys(int agents, int first = 0) {
  std::set<WorkerKey> keys;
  for (int i = first; i < agents; ++i) keys.insert(KeyOf(i));
  return keys;
}

class World {
 public:
  explicit World(const Options& options)
      : options_(options),
        coordinator_(AllKeys(options.agents, options.first)) {
    for (int i = 0; i < options.agents; ++i) {
      const DecisionParticipant participant(
          KeyOf(i), KeyOf(0), AllKeys(options.agents, options.first));
      agents_.push_back({participant, true, {}});
    }
  }
  // DecisionParticipant and DecisionCoordinator hold constants.
  World(const World&) = default;

  std::vector<std::string> Moves() const {
    std::vector<std::string> moves;
    for (int i = 0; i < options_.agents; ++i) {
      const Agent& agent = agents_[i];
      if (!agent.is_alive) {
        for (int j = 0; j < options_.agents; ++j) {
          if (agents_[j].is_alive && agents_[j].knows_gone.count(i) == 0) {
            moves.push_back(absl::StrCat("gone ", i, " ", j));
          }
        }
        continue;
      }
      if (i >= options_.first && agent.participant.state() == State::kWorking) {
        moves.push_back(absl::StrCat("done ", i));
        if (options_.failures > 0) moves.push_back(absl::StrCat("fail ", i));
      }
      if (agent.participant.state() == State::kDone && options_.timers > 0) {
        moves.push_back(absl::StrCat("timer ", i));
      }
      if (options_.crashes > 0) moves.push_back(absl::StrCat("crash ", i));
    }
    if (options_.cancels > 0 && agents_[0].is_alive)
      moves.push_back("cancel 0");
    for (size_t m = 0; m < network_.size(); ++m) {
      moves.push_back(absl::StrCat("deliver ", m));
    }
    return moves;
  }

  void Apply(const std::string& move) {
    const std::vector<std::string> words = absl::StrSplit(move, ' ');
    int n = 0;
    ASSERT_TRUE(absl::SimpleAtoi(words[1], &n));
    if (words[0] == "done") {
      Tell(n, DecisionParticipant::WorkDone{});
    } else if (words[0] == "fail") {
      --options_.failures;
      Tell(n, DecisionParticipant::WorkFailed{absl::InternalError("fails")});
    } else if (words[0] == "timer") {
      --options_.timers;
      Timer(n);
    } else if (words[0] == "cancel") {
      --options_.cancels;
      Tell(DecisionCoordinator::Cancelled{absl::CancelledError("given up")});
    } else if (words[0] == "crash") {
      --options_.crashes;
      Crash(n);
    } else if (words[0] == "gone") {
      int to = 0;
      ASSERT_TRUE(absl::SimpleAtoi(words[2], &to));
      LearnGone(to, n);
    } else {
      const Message message = network_[n];
      network_.erase(network_.begin() + n);
      message.deliver(this);
    }
    Check();
  }

  // Every participant is notified of each death and each message arrives.
  void Settle() {
    for (int i = 0; i < options_.agents; ++i) {
      for (int gone = 0; gone < options_.agents; ++gone) {
        if (!agents_[gone].is_alive && agents_[i].is_alive &&
            agents_[i].knows_gone.count(gone) == 0) {
          LearnGone(i, gone);
        }
      }
      if (i >= options_.first && agents_[i].is_alive &&
          agents_[i].participant.state() == State::kWorking) {
        Tell(i, DecisionParticipant::WorkDone{});
      }
    }
    while (!network_.empty() && violation_.empty()) Apply("deliver 0");
    Check();
    if (agents_[0].is_alive && !coordinator_.is_finished()) {
      Fail("the coordinator has not finished");
    }
    for (int i = options_.first; i < options_.agents; ++i) {
      if (agents_[i].is_alive &&
          agents_[i].participant.state() < State::kCommitted) {
        Fail(absl::StrCat("participant ", i, " has not decided"));
      }
    }
  }

  const std::string& violation() const { return violation_; }

  std::string Fingerprint() const {
    std::vector<std::string> texts;
    for (const Message& message : network_) texts.push_back(message.text);
    std::sort(texts.begin(), texts.end());
    std::string text = absl::StrCat(absl::StrJoin(texts, ";"), "|",
                                    coordinator_.Fingerprint());
    for (const Agent& agent : agents_) {
      absl::StrAppend(&text, "|", agent.is_alive,
                      agent.participant.Fingerprint(),
                      absl::StrJoin(agent.knows_gone, ","));
    }
    absl::StrAppend(&text, options_.crashes, options_.failures, options_.timers,
                    options_.cancels);
    return text;
  }

 private:
  struct Agent {
    DecisionParticipant participant;
    bool is_alive = true;
    std::set<int> knows_gone;
  };
  struct Message {
    int from;
    int to;
    std::string text;
    std::function<void(World*)> deliver;
  };

  void Send(int from, int to, const std::string& text,
            std::function<void(World*)> deliver) {
    if (!agents_[to].is_alive || agents_[from].knows_gone.count(to) > 0) return;
    network_.push_back(
        {from, to, absl::StrCat(from, ">", to, " ", text), std::move(deliver)});
  }

  void Tell(const DecisionCoordinator::Event& event) {
    std::vector<DecisionCoordinator::Action> actions;
    coordinator_.OnEvent(event, &actions);
    for (const auto& action : actions) {
      const auto* send = std::get_if<DecisionCoordinator::SendOutcome>(&action);
      if (send == nullptr) continue;
      SendOutcome(IndexOf(send->to), send->outcome);
    }
  }

  void SendOutcome(int to, const Outcome& outcome) {
    Send(0, to, absl::StrCat("outcome ", outcome.ok()),
         [to, outcome](World* w) {
           if (w->options_.fault == Fault::kNoPromise && outcome.ok() &&
               w->agents_[to].participant.state() == State::kDone) {
             // Simulates that no promise was made.
             w->forced_[to] = true;
           }
           w->Tell(to, DecisionParticipant::OutcomeArrived{outcome});
         });
  }

  void Tell(int i, const DecisionParticipant::Event& event) {
    std::vector<DecisionParticipant::Action> actions;
    agents_[i].participant.OnEvent(event, &actions);
    for (const auto& action : actions) Do(i, action);
    if (options_.fault == Fault::kFirstAnswerWins &&
        std::holds_alternative<DecisionParticipant::Answered>(event) &&
        agents_[i].participant.state() == State::kDone) {
      aborted_alone_.insert(i);
    }
  }

  void Do(int i, const DecisionParticipant::Action& action) {
    using P = DecisionParticipant;
    const WorkerKey self = KeyOf(i);
    if (std::holds_alternative<P::SendDone>(action)) {
      Send(i, 0, "done",
           [self](World* w) { w->Tell(DecisionCoordinator::Done{self}); });
    } else if (const auto* failed = std::get_if<P::SendFailed>(&action)) {
      const absl::Status why = failed->why;
      Send(i, 0, "failed", [self, why](World* w) {
        w->Tell(DecisionCoordinator::Failed{self, why});
      });
    } else if (std::holds_alternative<P::AskCoordinator>(action)) {
      Send(i, 0, "ask coordinator",
           [self](World* w) { w->Tell(DecisionCoordinator::Asked{self}); });
    } else if (const auto* ask = std::get_if<P::AskParticipant>(&action)) {
      const int to = IndexOf(ask->to);
      Send(i, to, "ask", [self, to](World* w) { w->Tell(to, P::Asked{self}); });
    } else if (const auto* answer = std::get_if<P::Answer>(&action)) {
      const int to = IndexOf(answer->to);
      const State state = answer->state;
      Send(i, to, absl::StrCat("answer ", static_cast<int>(state)),
           [self, to, state](World* w) {
             w->Tell(to, P::Answered{self, state});
           });
    } else if (std::holds_alternative<P::Acknowledge>(action)) {
      Send(i, 0, "acknowledge", [self](World* w) {
        w->Tell(DecisionCoordinator::Acknowledged{self});
      });
    } else if (const auto* apply = std::get_if<P::Apply>(&action)) {
      if (++applied_[i] > 1) Fail(absl::StrCat(i, " applies twice"));
      if (apply->outcome.ok()) CheckAllDone();
    }
  }

  void Timer(int i) {
    if (options_.fault == Fault::kAbortsAlone) {
      aborted_alone_.insert(i);
      return;
    }
    Tell(i, DecisionParticipant::Timer{});
  }

  void Crash(int i) {
    agents_[i].is_alive = false;
    network_.erase(std::remove_if(network_.begin(), network_.end(),
                                  [i](const Message& m) { return m.to == i; }),
                   network_.end());
  }

  void LearnGone(int i, int gone) {
    agents_[i].knows_gone.insert(gone);
    network_.erase(std::remove_if(network_.begin(), network_.end(),
                                  [&](const Message& m) {
                                    return m.from == gone && m.to == i;
                                  }),
                   network_.end());
    if (i == 0 && options_.fault == Fault::kDecidesTwice &&
        coordinator_.is_decided()) {
      for (int to = 0; to < options_.agents; ++to) {
        SendOutcome(to, absl::UnavailableError("a participant is gone"));
      }
    }
    if (i == 0) Tell(DecisionCoordinator::PeerGone{KeyOf(gone)});
    if (i >= options_.first) {
      Tell(i, DecisionParticipant::PeerGone{KeyOf(gone)});
    }
  }

  // What a participant has decided; a planted fault may have turned it.
  std::optional<bool> Committed(int i) const {
    if (aborted_alone_.count(i) > 0) return false;
    if (forced_.count(i) > 0) return true;
    const State state = agents_[i].participant.state();
    if (state < State::kCommitted) return std::nullopt;
    return state == State::kCommitted;
  }

  void Check() {
    std::optional<bool> first;
    for (int i = options_.first; i < options_.agents; ++i) {
      const std::optional<bool> mine = Committed(i);
      if (!agents_[i].is_alive || !mine.has_value()) continue;
      if (first.has_value() && *first != *mine) Fail("they decide differently");
      first = mine;
    }
  }

  void CheckAllDone() {
    for (int i = options_.first; i < options_.agents; ++i) {
      const State state = agents_[i].participant.state();
      if (state == State::kWorking || state == State::kAborted) {
        Fail(absl::StrCat("a commit without participant ", i));
      }
    }
  }

  void Fail(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }

  Options options_;
  DecisionCoordinator coordinator_;
  std::vector<Agent> agents_;
  std::vector<Message> network_;
  std::map<int, int> applied_;
  std::set<int> aborted_alone_;
  std::map<int, bool> forced_;
  std::string violation_;
};

struct Walk {
  int64_t states = 0;
  std::string violation;
};

Walk Explore(const Options& options, int64_t max_states = 400000) {
  struct Node {
    std::shared_ptr<World> world;
    std::vector<std::string> path;
  };
  Walk walk;
  absl::flat_hash_set<size_t> seen;
  std::deque<Node> open;
  open.push_back({std::make_shared<World>(options), {}});
  while (!open.empty() && walk.states < max_states) {
    Node node = std::move(open.front());
    open.pop_front();
    ++walk.states;
    World settled = *node.world;
    if (settled.violation().empty()) settled.Settle();
    if (!settled.violation().empty()) {
      walk.violation = absl::StrCat(settled.violation(),
                                    " after: ", absl::StrJoin(node.path, ", "));
      return walk;
    }
    for (const std::string& move : node.world->Moves()) {
      auto next = std::make_shared<World>(*node.world);
      next->Apply(move);
      if (!seen.insert(absl::HashOf(next->Fingerprint())).second) continue;
      std::vector<std::string> path = node.path;
      path.push_back(move);
      open.push_back({std::move(next), std::move(path)});
    }
  }
  EXPECT_TRUE(open.empty()) << "not all states fit into " << max_states;
  return walk;
}

Options TwoCrashes() {
  Options options;
  options.crashes = 2;
  return options;
}

Options EverythingOnce() {
  Options options;
  options.failures = 1;
  options.timers = 1;
  options.cancels = 1;
  return options;
}

TEST(DecisionExploration, ParticipantsAgreeUnderTwoCrashes) {
  const Walk walk = Explore(TwoCrashes());
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(DecisionExploration, ParticipantsAgreeUnderFailureTimerCancelAndCrash) {
  const Walk walk = Explore(EverythingOnce());
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(DecisionExploration, FindsEachPlantedFault) {
  for (const Fault fault : {Fault::kAbortsAlone, Fault::kDecidesTwice,
                            Fault::kNoPromise, Fault::kFirstAnswerWins}) {
    Options options = TwoCrashes();
    options.timers = 1;
    if (fault == Fault::kFirstAnswerWins) {
      options = Options();
      options.agents = 4;
      options.first = 1;
    }
    options.fault = fault;
    const Walk walk = Explore(options);
    EXPECT_THAT(walk.violation, AnyOf(HasSubstr("decide differently"),
                                      HasSubstr("a commit without")))
        << static_cast<int>(fault);
  }
}

// ------------------------------------------------------------ by example

std::vector<DecisionParticipant::Action> Tell(
    DecisionParticipant* participant, const DecisionParticipant::Event& event) {
  std::vector<DecisionParticipant::Action> actions;
  participant->OnEvent(event, &actions);
  return actions;
}

std::vector<DecisionCoordinator::Action> Tell(
    DecisionCoordinator* coordinator, const DecisionCoordinator::Event& event) {
  std::vector<DecisionCoordinator::Action> actions;
  coordinator->OnEvent(event, &actions);
  return actions;
}

TEST(Decision, ParticipantStoppedAfterDoneCommitsWhenItIsBack) {
  DecisionParticipant participant(KeyOf(1), KeyOf(0), AllKeys(2));
  Tell(&participant, DecisionParticipant::WorkDone{});
  for (int i = 0; i < 100; ++i) {
    Tell(&participant, DecisionParticipant::Timer{});
    ASSERT_EQ(participant.state(), State::kDone);
  }
  Tell(&participant, DecisionParticipant::OutcomeArrived{absl::OkStatus()});
  EXPECT_EQ(participant.state(), State::kCommitted);
}

TEST(Decision, DeathAfterTheCommitWasDecidedIsReportedAndDoesNotTurnIt) {
  DecisionCoordinator coordinator(AllKeys(2));
  Tell(&coordinator, DecisionCoordinator::Done{KeyOf(0)});
  Tell(&coordinator, DecisionCoordinator::Done{KeyOf(1)});
  ASSERT_TRUE(coordinator.is_decided());
  Tell(&coordinator, DecisionCoordinator::PeerGone{KeyOf(1)});
  const auto actions =
      Tell(&coordinator, DecisionCoordinator::Acknowledged{KeyOf(0)});
  ASSERT_EQ(actions.size(), 1u);
  const auto* finished =
      std::get_if<DecisionCoordinator::Finished>(&actions[0]);
  ASSERT_NE(finished, nullptr);
  EXPECT_TRUE(finished->outcome.ok());
  EXPECT_EQ(finished->lost, std::set<WorkerKey>{KeyOf(1)});
}

TEST(Decision, CoordinatorThatDiesBetweenCommitsCommitsEverywhere) {
  DecisionParticipant first(KeyOf(1), KeyOf(0), AllKeys(3));
  DecisionParticipant second(KeyOf(2), KeyOf(0), AllKeys(3));
  Tell(&first, DecisionParticipant::WorkDone{});
  Tell(&second, DecisionParticipant::WorkDone{});
  Tell(&first, DecisionParticipant::OutcomeArrived{absl::OkStatus()});
  auto actions = Tell(&second, DecisionParticipant::PeerGone{KeyOf(0)});
  ASSERT_EQ(actions.size(), 1u);
  ASSERT_TRUE(
      std::holds_alternative<DecisionParticipant::AskParticipant>(actions[0]));
  actions = Tell(&first, DecisionParticipant::Asked{KeyOf(2)});
  const auto* answer =
      std::get_if<DecisionParticipant::Answer>(&actions.back());
  ASSERT_NE(answer, nullptr);
  Tell(&second, DecisionParticipant::Answered{KeyOf(1), answer->state});
  EXPECT_EQ(second.state(), State::kCommitted);
}

TEST(Decision, CommitOfADeadCoordinatorIsRefusedAfterThePromise) {
  DecisionParticipant participant(KeyOf(1), KeyOf(0), AllKeys(3));
  Tell(&participant, DecisionParticipant::WorkDone{});
  Tell(&participant, DecisionParticipant::Asked{KeyOf(2)});
  Tell(&participant, DecisionParticipant::OutcomeArrived{absl::OkStatus()});
  EXPECT_EQ(participant.state(), State::kDone);
}

}  // namespace
}  // namespace weft::rendezvous
