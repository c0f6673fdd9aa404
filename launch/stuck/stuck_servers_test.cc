// FindStuck on what trainers of simulated jobs with parameter servers write of
// their waits, with faults that the test injects: it must name each fault, of
// its class, and nobody else.
//
// All trainers are at the same round of a table, which every server closes once
// it has the part of each. A fault keeps a trainer from its push, a server from
// its work, or cuts a link. What a server says of itself, and so each line, is
// made of that.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/launch/stuck/stuck.h"
#include "weft/launch/stuck/wait_line.h"
#include "weft/ps/waits/wait_text.h"
#include "weft/sim/random.h"

namespace weft::launch {
namespace {

using Process = RankFacts::Process;

enum class Kind {
  kTrainerBusy,
  kTrainerStopped,
  kServerBusy,
  kServerStopped,
  kServerGone,
  kCutLink,
};
constexpr int kKinds = 6;

struct Fault {
  Kind kind = Kind::kTrainerBusy;
  int trainer = -1;
  int server = -1;
};

std::string TrainerName(int t) { return absl::StrCat("trainer", t); }
std::string ServerName(int s) { return absl::StrCat("ps", s); }

StuckCause CauseOf(const Fault& fault) {
  switch (fault.kind) {
    case Kind::kTrainerBusy:
      return {StuckClass::kBusy, {TrainerName(fault.trainer)}};
    case Kind::kTrainerStopped:
      return {StuckClass::kStopped, {TrainerName(fault.trainer)}};
    case Kind::kServerBusy:
      return {StuckClass::kBusy, {ServerName(fault.server)}};
    case Kind::kServerStopped:
      return {StuckClass::kStopped, {ServerName(fault.server)}};
    case Kind::kServerGone:
      return {StuckClass::kGone, {ServerName(fault.server)}};
    case Kind::kCutLink:
      return {StuckClass::kCutLink,
              {ServerName(fault.server), TrainerName(fault.trainer)}};
  }
  return {};
}

class JobWithServers {
 public:
  explicit JobWithServers(uint64_t seed) : random_(seed) {
    trainers_ = 2 + static_cast<int>(random_.Below(7));
    servers_ = 1 + static_cast<int>(random_.Below(4));
    const int wanted = 1 + static_cast<int>(random_.Below(2));
    std::set<int> trainers, servers;  // that have a fault
    for (int i = 0; i < 50 && static_cast<int>(faults_.size()) < wanted; ++i) {
      Fault fault;
      fault.kind = static_cast<Kind>(random_.Below(kKinds));
      const bool is_trainer = fault.kind == Kind::kTrainerBusy ||
                              fault.kind == Kind::kTrainerStopped;
      const bool is_link = fault.kind == Kind::kCutLink;
      if (is_trainer || is_link) {
        fault.trainer = static_cast<int>(random_.Below(trainers_));
      }
      if (!is_trainer) fault.server = static_cast<int>(random_.Below(servers_));
      if (trainers.count(fault.trainer) + servers.count(fault.server) > 0) {
        continue;
      }
      if (fault.trainer >= 0) trainers.insert(fault.trainer);
      if (fault.server >= 0) servers.insert(fault.server);
      // Somebody must be left to wait.
      if (static_cast<int>(trainers.size()) == trainers_ && !is_link) break;
      faults_.push_back(fault);
    }
  }

  const std::vector<Fault>& faults() const { return faults_; }

  std::vector<RankFacts> Facts() {
    std::vector<RankFacts> all;
    for (int s = 0; s < servers_; ++s) {
      all.push_back(FactsOf(ServerName(s)));
      if (Has(Kind::kServerStopped, -1, s)) Stop(&all.back());
      if (Has(Kind::kServerGone, -1, s)) all.back().process = Process::kGone;
    }
    for (int t = 0; t < trainers_; ++t) {
      all.push_back(FactsOf(TrainerName(t)));
      if (Has(Kind::kTrainerStopped, t)) Stop(&all.back());
      if (!Pushes(t)) continue;
      std::vector<ps::ServerAnswer> answers;
      for (int s = 0; s < servers_; ++s) {
        if (!Missing(s).empty()) answers.push_back(AnswerOf(s, t));
      }
      if (answers.empty()) continue;
      const std::string line = ps::WaitText(
          "PushPull", "users", absl::Seconds(4.5), TrainerName(t), answers);
      const auto read = WaitLineIn(
          absl::StrCat("12:00 ", TrainerName(t), " ", line, " (x.cc:1)"));
      EXPECT_TRUE(read.has_value()) << line;
      lines_ += absl::StrCat("  ", TrainerName(t), ": ", line, "\n");
      if (read.has_value()) all.back().waits = {read->wait};
    }
    return all;
  }
  const std::string& lines() const { return lines_; }

 private:
  static RankFacts FactsOf(const std::string& name) {
    RankFacts facts;
    facts.name = name;
    facts.process = Process::kRuns;
    facts.is_heard = true;
    return facts;
  }
  static void Stop(RankFacts* facts) {
    facts->process = Process::kStopped;
    facts->stopped = absl::Seconds(5);
  }
  bool Has(Kind kind, int trainer, int server = -1) const {
    return absl::c_any_of(faults_, [&](const Fault& fault) {
      return fault.kind == kind && fault.trainer == trainer &&
             fault.server == server;
    });
  }
  bool Pushes(int t) const {
    return !Has(Kind::kTrainerBusy, t) && !Has(Kind::kTrainerStopped, t);
  }
  // The trainers whose parts a server has not taken. One that is busy has some
  // in its queue.
  std::set<int> Missing(int s) {
    if (const auto it = missing_.find(s); it != missing_.end()) {
      return it->second;
    }
    std::set<int>& missing = missing_[s];
    const bool takes =
        !Has(Kind::kServerStopped, -1, s) && !Has(Kind::kServerGone, -1, s);
    for (int t = 0; t < trainers_; ++t) {
      if (!Pushes(t) || !takes || Has(Kind::kCutLink, t, s)) missing.insert(t);
    }
    if (Has(Kind::kServerBusy, -1, s)) {
      for (int t = 0; t < trainers_; ++t) {
        if (random_.Chance(0.5)) missing.insert(t);
      }
      // Of one that it has taken it would have to close the round.
      int queued = static_cast<int>(random_.Below(trainers_));
      while (!Pushes(queued)) queued = (queued + 1) % trainers_;
      missing.insert(queued);
    }
    return missing;
  }
  ps::ServerAnswer AnswerOf(int s, int asking) {
    ps::ServerAnswer answer;
    answer.server = ServerName(s);
    answer.has_answered = !Has(Kind::kServerStopped, -1, s) &&
                          !Has(Kind::kServerGone, -1, s) &&
                          !Has(Kind::kCutLink, asking, s);
    if (!answer.has_answered) return answer;
    std::vector<std::string> workers;
    for (const int t : Missing(s)) workers.push_back(TrainerName(t));
    answer.waits = {{"users", "round 3", workers, 4.0}};
    return answer;
  }

  sim::Random random_;
  int trainers_ = 0;
  int servers_ = 0;
  std::vector<Fault> faults_;
  std::map<int, std::set<int>> missing_;
  std::string lines_;
};

std::string Text(const std::vector<StuckCause>& causes) {
  std::vector<std::string> all;
  for (const StuckCause& cause : causes) {
    all.push_back(
        absl::StrCat(NameOf(cause.why), " ", absl::StrJoin(cause.ranks, ",")));
  }
  return absl::StrJoin(all, "; ");
}

TEST(StuckServers, EachFaultIsNamedWithItsClassAndNobodyElse) {
  std::map<Kind, int> named;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    JobWithServers job(seed);
    const std::vector<RankFacts> facts = job.Facts();
    const std::vector<StuckCause> causes = FindStuck(facts, absl::Seconds(4));
    std::vector<StuckCause> wanted;
    for (const Fault& fault : job.faults()) {
      // Of one for which nobody is known to wait nothing shows, but of a
      // trainer that is stopped, where nobody else computes.
      const StuckCause cause = CauseOf(fault);
      const bool shows = fault.kind == Kind::kTrainerStopped ||
                         !VictimsOf(cause, facts).empty();
      if (!shows) continue;
      wanted.push_back(cause);
      ++named[fault.kind];
    }
    const auto are_equal = [](const StuckCause& a, const StuckCause& b) {
      return a.why == b.why && a.ranks == b.ranks;
    };
    const auto are_in = [&](const auto& some, const auto& others) {
      return absl::c_all_of(some, [&](const StuckCause& one) {
        return absl::c_any_of(others, [&](const StuckCause& other) {
          return are_equal(one, other);
        });
      });
    };
    ASSERT_TRUE(are_in(wanted, causes) && are_in(causes, wanted))
        << "seed " << seed << ": wanted " << Text(wanted) << ", found "
        << Text(causes) << "\n"
        << job.lines();
  }
  EXPECT_EQ(named.size(), static_cast<size_t>(kKinds));
  for (const auto& [kind, count] : named) EXPECT_GT(count, 100);
}

}  // namespace
}  // namespace weft::launch
