// What operations on tables with two replicas end with that cannot end
// otherwise: the client and its tables are gone, the agent has ended, or the
// worker gives up on servers that are gone.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/ps/client.h"
#include "weft/ps/replicated/replica_session.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// Less than an operation may take (kTimeout), by far.
constexpr absl::Duration kSoon = absl::Seconds(10);

class SessionEnd : public ::testing::Test {
 protected:
  SessionEnd()
      : job_(std::make_unique<TestJob>(2, 1, nullptr, "", /*replicas=*/2)),
        client_(job_->MakeClient(0)),
        keys_(Tensor::Arange(100, DType::kI64)) {}

  std::unique_ptr<SparseTable> Open(const std::string& name) {
    v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 1);
    spec.set_name(name);
    auto table = client_->Sparse(spec);
    EXPECT_THAT(table.status(), IsOk());
    EXPECT_THAT(Push(**table).Wait(kTimeout), IsOk());
    return *std::move(table);
  }

  Future<void> Push(SparseTable& table) {
    return table.Push(keys_, Tensor::Full({100, 2}, -1));
  }

  // All servers, so that nobody is left to say that rows are lost.
  void KillServers() { job_->KillServers({0, 1}); }

  std::unique_ptr<TestJob> job_;
  std::unique_ptr<Client> client_;
  const Tensor keys_;
};

TEST_F(SessionEnd, PullEndsWithTheClientAndItsTables) {
  auto table = Open("a");
  auto other = Open("b");
  KillServers();
  const Future<Tensor> pull = table->Pull(keys_);
  table.reset();
  other.reset();
  // The client may open others.
  EXPECT_THAT(pull.Wait(absl::Milliseconds(100)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  client_.reset();
  EXPECT_THAT(pull.Wait(kSoon).status(),
              StatusIs(absl::StatusCode::kCancelled, "closed"));
  // So a worker that ends in good order waits for no call.
  EXPECT_THAT(job_->trainer(0).AwaitIdle(kSoon), IsOk());
}

TEST_F(SessionEnd, PullEndsWithTheAgentWhileTheTableIsOpen) {
  const auto table = Open("a");
  KillServers();
  const Future<Tensor> pull = table->Pull(keys_);
  const Future<void> push = Push(*table);
  job_.reset();
  EXPECT_THAT(pull.Wait(kSoon).status(),
              StatusIs(absl::StatusCode::kCancelled, "closed"));
  EXPECT_THAT(push.Wait(kSoon),
              StatusIs(absl::StatusCode::kCancelled, "closed"));
  EXPECT_THAT(table->Pull(keys_).Wait(kSoon).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "closed"));
}

TEST_F(SessionEnd, WhatWaitsForServersThatAreGoneIsGivenUp) {
  const auto pulled = Open("a");
  const auto pushed = Open("b");
  KillServers();
  const Future<Tensor> pull = pulled->Pull(keys_);
  const Future<void> push = Push(*pushed);
  client_->GiveUpOnGoneServers();
  EXPECT_THAT(pull.Wait(kSoon).status(),
              StatusIs(absl::StatusCode::kCancelled,
                       "table 'a': gave up waiting for server ps"));
  EXPECT_THAT(push.Wait(kSoon),
              StatusIs(absl::StatusCode::kCancelled,
                       "table 'b': gave up waiting for server ps"));
}

// As a trainer does that is asked to stop while its servers are dead. One that
// has asked servers before knows who they were, and one that has not does not.
TEST_F(SessionEnd, OpeningThatWaitsForServersThatAreGoneIsGivenUp) {
  std::atomic<bool> stop{false};
  ClientOptions options = job_->OptionsOfClient(0, absl::Minutes(2));
  options.is_asked_to_stop = [&stop] { return stop.load(); };
  options.client = 1;
  Client known(options);
  options.client = 2;
  Client unknown(options);
  v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 1);
  ASSERT_THAT(known.Sparse(spec).status(), IsOk());
  KillServers();
  std::thread stopper([&stop] {
    absl::SleepFor(absl::Milliseconds(200));
    stop = true;
  });
  spec.set_name("b");
  const Instant began = SteadyClock().Now();
  for (Client* client : {&known, &unknown}) {
    EXPECT_THAT(client->Sparse(spec).status(),
                StatusIs(absl::StatusCode::kCancelled, "is asked to stop"));
  }
  EXPECT_LT(SteadyClock().Now() - began, kSoon);
  stopper.join();
}

TEST_F(SessionEnd, NothingIsGivenUpThatAnotherServerTakesOver) {
  const auto table = Open("a");
  ASSERT_TRUE(job_->BecomesReplicated());
  client_->GiveUpOnGoneServers();
  absl::SleepFor(ReplicaSession::kGiveUpAfter);  // it holds from now on
  EXPECT_THAT(table->Pull(keys_).Wait(kTimeout).status(), IsOk());
}

// 2 s for each would be a minute for as many tables as a recommender has.
TEST_F(SessionEnd, TablesThatCannotBecomeStableEndTogether) {
  std::vector<std::unique_ptr<SparseTable>> tables;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"}) {
    tables.push_back(Open(name));
  }
  KillServers();
  for (const auto& table : tables) (void)Push(*table);
  const Instant began = SteadyClock().Now();
  tables.clear();
  EXPECT_LT(SteadyClock().Now() - began, kSoon);
}

}  // namespace
}  // namespace weft::ps
