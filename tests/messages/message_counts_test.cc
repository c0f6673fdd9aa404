// How many messages each operation between agents takes. docs/performance.md
// has the table; a path that sends more fails here, on any machine.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/base/future.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/scope.h"
#include "weft/optimizer/distributed_optimizer.h"
#include "weft/optimizer/rules/rule_spec.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/ps/many.h"
#include "weft/ps/server.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/function.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/testing/counting_transport.h"

namespace weft {
namespace {

using ::weft::testing::IsOk;

int64_t Next(int64_t number) { return number + 1; }
WEFT_RPC(Next);

class Layer {
 public:
  explicit Layer(int64_t width)
      : w_(std::make_shared<Variable>(
            Tensor::Full({width, width}, 0.01, DType::kF32),
            /*requires_grad=*/true)) {}
  Variable Forward(const Variable& x) { return MatMul(x, *w_); }
  rref::RRef<Variable> Weight(rpc::CallContext& call) {
    return rref::MakeLocal(call.agent(), w_).value();
  }

 private:
  std::shared_ptr<Variable> w_;
};
WEFT_RPC_CLASS(Layer, int64_t);
WEFT_RPC_METHOD(Layer, Forward);
WEFT_RPC_METHOD(Layer, Weight);

rpc::RanksOptions Counting(transport::MessageCounts& counts) {
  rpc::RanksOptions options;
  options.counts = &counts;
  return options;
}

// The messages of each of `rounds` calls of `operation`, once the connections
// are there: the fewest of some series, for an acknowledgement that no message
// took along within its time travels by itself, which is so for all of them
// where other programs hold the cores.
double MessagesOf(transport::MessageCounts& counts,
                  const std::function<void()>& operation, int rounds = 50) {
  constexpr int kSeries = 10;
  operation();
  double fewest = std::numeric_limits<double>::infinity();
  for (int series = 0; series < kSeries; ++series) {
    const int64_t before = counts.messages;
    for (int i = 0; i < rounds; ++i) operation();
    fewest = std::min(fewest,
                      static_cast<double>(counts.messages - before) / rounds);
  }
  return fewest;
}

TEST(MessageCounts, FirstCallsOfManyWorkersOpenOneConnectionEach) {
  constexpr int kWorkers = 32;
  constexpr int kPairs = kWorkers * (kWorkers - 1);
  transport::MessageCounts counts;
  rpc::Ranks ranks(kWorkers, Counting(counts));
  const auto call_all = [&] {
    std::vector<Future<int64_t>> results;
    for (int from = 0; from < kWorkers; ++from) {
      for (int to = 0; to < kWorkers; ++to) {
        if (from == to) continue;
        results.push_back(rpc::CallAsync(ranks[from].To(absl::StrCat("w", to)),
                                         Next, int64_t{to}));
      }
    }
    for (auto& result : results) {
      ASSERT_THAT(result.Wait(absl::Seconds(60)).status(), IsOk());
    }
  };
  call_all();
  EXPECT_EQ(counts.connections, kPairs);
  // Hello, Welcome, request, reply, and an acknowledgement of the reply.
  EXPECT_LE(counts.messages, 5 * kPairs);
  const int64_t first = counts.messages;
  call_all();
  EXPECT_EQ(counts.connections, kPairs);
  EXPECT_LE(counts.messages - first, 4 * kPairs);
}

class PathTest : public ::testing::Test {
 protected:
  PathTest() {
    for (int i = 0; i < 3; ++i) {
      references_.push_back(rref::References::Open(ranks_[i]).value());
      contexts_.push_back(dist_autograd::Contexts::Open(ranks_[i]).value());
    }
  }
  ~PathTest() override {
    for (const auto& contexts : contexts_) contexts->Close();
    for (const auto& references : references_) {
      EXPECT_THAT(references->Close(absl::Seconds(20)), IsOk());
    }
  }
  rpc::Target To(int rank) { return ranks_[0].To(absl::StrCat("w", rank)); }

  transport::MessageCounts counts_;
  rpc::Ranks ranks_{3, Counting(counts_)};
  std::vector<std::shared_ptr<rref::References>> references_;
  std::vector<std::shared_ptr<dist_autograd::Contexts>> contexts_;
};

TEST_F(PathTest, Call) {
  const double messages = MessagesOf(counts_, [&] {
    ASSERT_THAT(rpc::Call(To(1), Next, int64_t{1}).status(), IsOk());
  });
  RecordProperty("messages", absl::StrCat(messages));
  EXPECT_LE(messages, 2.2);
}

TEST_F(PathTest, CreateAndFetch) {
  const double messages = MessagesOf(counts_, [&] {
    const auto object = rref::BeginRemote(To(1), Next, int64_t{1});
    ASSERT_THAT(object.status(), IsOk());
    ASSERT_THAT(rref::Fetch(*object).status(), IsOk());
  });
  RecordProperty("messages", absl::StrCat(messages));
  // 4.2 to 4.5; on a busy machine an acknowledgement goes alone more often.
  EXPECT_LE(messages, 6);
}

TEST_F(PathTest, PassThroughTwoOwners) {
  const auto first = rref::Make<Layer>(To(1), 4).value();
  const auto second = rref::Make<Layer>(To(2), 4).value();
  const Tensor x = Tensor::Full({2, 4}, 1, DType::kF32);
  const double messages = MessagesOf(counts_, [&] {
    const dist_autograd::Scope pass(*contexts_[0]);
    const Variable h = pass.Call(first, &Layer::Forward, Variable(x)).value();
    const Variable y = pass.Call(second, &Layer::Forward, h).value();
    ASSERT_THAT(pass.Backward(Sum(y)), IsOk());
  });
  RecordProperty("messages", absl::StrCat(messages));
  EXPECT_LE(messages, 26);
}

TEST_F(PathTest, PassWithAStepOfTheOptimizer) {
  const auto layer = rref::Make<Layer>(To(1), 4).value();
  auto optimizer = optimizer::DistributedOptimizer::Create(
                       ranks_[0], optimizer::SgdOptions{0.01},
                       {rref::Call(layer, &Layer::Weight).value()})
                       .value();
  const Tensor x = Tensor::Full({2, 4}, 1, DType::kF32);
  const double messages = MessagesOf(counts_, [&] {
    const dist_autograd::Scope pass(*contexts_[0]);
    const Variable y = pass.Call(layer, &Layer::Forward, Variable(x)).value();
    ASSERT_THAT(pass.Backward(Sum(y)), IsOk());
    ASSERT_THAT(optimizer->Step(pass), IsOk());
  });
  RecordProperty("messages", absl::StrCat(messages));
  EXPECT_LE(messages, 14);
}

// Pulls and pushes of 26 tables, each of which has rows on all three servers.
TEST(MessageCounts, TablesOfAParameterServerShareAMessage) {
  constexpr int kTables = 26, kServers = 3;
  transport::MessageCounts counts;
  std::vector<std::unique_ptr<ps::Server>> servers;
  rpc::Ranks ranks(kServers + 1, Counting(counts));
  ps::ClientOptions options;
  options.agent = &ranks[kServers];
  for (int i = 0; i < kServers; ++i) {
    servers.push_back(
        std::make_unique<ps::Server>(ps::ServerOptions{i, kServers}));
    ranks[i].SetLocal(servers[i].get());
    options.servers.push_back(absl::StrCat("w", i));
  }
  ps::Client client(options);
  std::vector<std::unique_ptr<ps::SparseTable>> tables;
  std::vector<ps::PullOf> pulls;
  std::vector<ps::PushOf> pushes;
  for (int i = 0; i < kTables; ++i) {
    ps::v1::TableSpec spec;
    spec.set_name(absl::StrCat("t", i));
    spec.set_kind(ps::v1::TableSpec::SPARSE);
    spec.set_mode(ps::v1::TableSpec::ASYNC);
    spec.set_dim(2);
    spec.mutable_rule()->mutable_sgd()->set_lr(1);
    tables.push_back(client.Sparse(spec).value());
    const Tensor keys = Tensor::Arange(100, DType::kI64);
    pulls.push_back({tables[i].get(), keys});
    pushes.push_back({tables[i].get(), keys, Tensor::Ones({100, 2})});
  }
  const double pull = MessagesOf(counts, [&] {
    ASSERT_THAT(ps::PullMany(pulls).Wait(absl::Seconds(60)), IsOk());
  });
  const double push = MessagesOf(counts, [&] {
    ASSERT_THAT(ps::PushMany(pushes).Wait(absl::Seconds(60)), IsOk());
  });
  RecordProperty("pull", absl::StrCat(pull));
  RecordProperty("push", absl::StrCat(push));
  // A request and a reply for each server, as Call.
  EXPECT_LE(pull, 2.2 * kServers);
  EXPECT_LE(push, 2.2 * kServers);
}

}  // namespace
}  // namespace weft
