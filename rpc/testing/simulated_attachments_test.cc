// Tokens between simulated workers, whatever breaks: who has sent one learns
// the truth about it, once.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/testing/simulated_agents.h"
#include "weft/rpc/testing/token_books.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::weft::testing::IsOk;

// The books of all incarnations, by key.
using Library = std::map<WorkerKey, std::shared_ptr<TokenBooks>>;

Token Swap(CallContext& context, const Token& token, int64_t ms) {
  auto* const agents = context.Local<SimulatedAgents>();
  for (int64_t i = 0; i < ms && !context.cancel().IsCancelled(); i += 5) {
    agents->Sleep(absl::Milliseconds(5));
  }
  return Token{absl::StrCat("back:", token.text)};
}
WEFT_RPC(Swap);

int64_t Confirm(int64_t x) { return x; }
WEFT_RPC(Confirm);

class World {
 public:
  World(uint64_t seed, double rate)
      : agents_(seed, Options(rate)), random_(seed) {
    agents_.OnStart([this](int, Agent& agent) {
      const auto books = TokenBooks::Open(agent);
      books->ConfirmBy([&agent]() -> Future<void> {
        return CallAsync(agent.To("w3", absl::Seconds(2)), Confirm, 1)
            .Then([](int64_t) {});
      });
      agent.SetLocal(&agents_);
      library_[agent.key()] = books;
    });
  }

  static SimulatedAgents::Options Options(double rate) {
    SimulatedAgents::Options options;
    options.workers = 4;
    options.faults = SimulatedAgents::AllFaults(rate);
    options.give_up_after = absl::Milliseconds(100);  // of a partition, a half
    options.limits.calls = 3;
    options.limits.sessions = 2;
    return options;
  }

  void Run() {
    for (const absl::Status& status : agents_.Run(2, [&](int main) {
           for (int i = 0; i < 12; ++i) Exchange(main, i);
           return AwaitOutcomes(main);
         })) {
      EXPECT_THAT(status, IsOk());
    }
  }

  // What was sent and told, over all books; each checked against the others.
  void Check(std::map<std::string, int64_t>* ends) {
    std::set<std::string> taken;
    for (const auto& [key, books] : library_) {
      for (const Token& token : books->taken()) {
        EXPECT_TRUE(taken.insert(token.text).second)
            << token.text << " was taken twice";
      }
    }
    for (const auto& [key, books] : library_) {
      const bool lives = key.id < 2;  // these never crash
      for (const TokenBooks::Sent& sent : books->sent()) {
        EXPECT_LE(sent.told, 1) << sent.text;
        if (lives) {
          EXPECT_EQ(sent.told, 1) << sent.text;
        }
        if (sent.told == 0) continue;
        ++(*ends)[NameOf(sent.outcome)];
        if (sent.outcome == AttachmentOutcome::kDelivered) {
          EXPECT_EQ(taken.count(sent.text), 1u) << sent.text;
        } else if (sent.outcome == AttachmentOutcome::kRefused) {
          EXPECT_EQ(taken.count(sent.text), 0u) << sent.text;
        }
      }
    }
  }

 private:
  void Exchange(int main, int i) {
    const int to = (main + 1 + static_cast<int>(random_() % 3)) % 4;
    if (to == main) return;
    const auto timeout = absl::Milliseconds(5 + random_() % 200);
    const auto call =
        CallAsync(agents_[main].To(absl::StrCat("w", to), timeout), Swap,
                  Token{absl::StrCat("t", main, ".", i)},
                  static_cast<int64_t>(random_() % 40));
    if (random_() % 4 == 0) {
      agents_.Sleep(absl::Milliseconds(random_() % 20));
      call.Cancel();
    }
    call.Wait(absl::Seconds(60)).status().IgnoreError();
  }

  absl::Status AwaitOutcomes(int main) {
    const auto books = library_[agents_[main].key()];
    for (int i = 0; i < 3000; ++i) {
      const auto sent = books->sent();
      if (std::all_of(sent.begin(), sent.end(),
                      [](const auto& one) { return one.told > 0; })) {
        return absl::OkStatus();
      }
      agents_.Sleep(absl::Milliseconds(20));
    }
    return absl::DeadlineExceededError(
        absl::StrCat("after a minute: ", books->Outcomes()));
  }

  Library library_;
  SimulatedAgents agents_;
  std::mt19937_64 random_;
};

TEST(SimulatedAttachments, EachGetsOneOutcomeUnderFaults) {
  std::map<std::string, int64_t> ends;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    World world(seed, 0.02);
    world.Run();
    world.Check(&ends);
    if (::testing::Test::HasFailure()) break;
  }
  for (const auto& [end, count] : ends)
    std::cout << end << " " << count << "\n";
  EXPECT_GT(ends["delivered"], 100);
  EXPECT_GT(ends["refused"], 10);
  EXPECT_GT(ends["abandoned"], 10);
}

}  // namespace
}  // namespace weft::rpc
