// What a peer may send that keeps to no protocol: each entry of Contexts
// refuses it, the process goes on, and the passes of others end as they would.

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/dist_autograd/participant.h"
#include "weft/dist_autograd/pass_calls.h"
#include "weft/dist_autograd/pass_fixture.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/call.h"
#include "weft/tests/support/patience.h"

namespace weft::dist_autograd {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

constexpr int kRoot = 0, kOwner = 1, kHostile = 2;

// Its backward reads what it saved, [2, 3], by the shape of that.
Variable ReluHere(const Variable& x) { return Relu(x); }
WEFT_RPC(ReluHere);
Variable RowsOf(const Variable& table) {
  return Embedding(table, Tensor::FromVector<int64_t>({0, 1, 1}));
}
WEFT_RPC(RowsOf);
int64_t Plain(int64_t x) { return x; }
WEFT_RPC(Plain);

class Raw final : public rpc::Attachment {
 public:
  explicit Raw(std::string bytes) : bytes_(std::move(bytes)) {}
  absl::StatusOr<Bytes> Freeze() override { return Bytes::Own(bytes_); }
  void OnOutcome(uint64_t, rpc::AttachmentOutcome) override {}

 private:
  const std::string bytes_;
};

// What a recorded message carries, as Contexts write it.
struct Header {
  ContextId context;
  uint64_t number = 1;
  uint64_t slots = 1;
  std::vector<std::pair<WorkerKey, MessageIntervals>> lineage;

  std::string ToBytes() const {
    rpc::Encoder e;
    e.Write(context);
    e.Varint(number);
    e.Varint(slots);
    e.Varint(lineage.size());
    for (const auto& [producer, intervals] : lineage) {
      e.Write(producer, intervals);
    }
    e.Write(std::string("F"));
    const Slices slices = std::move(e).Finish().value();
    std::string bytes;
    for (const Bytes& slice : slices) {
      bytes.append(slice.view().data(), slice.size());
    }
    return bytes;
  }
};

class HostileTest : public PassFixture {
 protected:
  HostileTest() : PassFixture(3) {}
  rpc::Target From(int from, int to) {
    return ranks_[from].To(absl::StrCat("w", to));
  }
  rpc::Target Carrying(const std::string& bytes) {
    return From(kHostile, kOwner)
        .WithAttachment(Contexts::kKind, [bytes](const rpc::CodecContext&) {
          return std::make_unique<Raw>(bytes);
        });
  }
  // The root has sent ones, [2, 3], to the owner, which sent message 1 back.
  Variable CallOwner(const Scope& scope) {
    return scope
        .Call(To(kOwner), ReluHere, Variable(Tensor::Ones({2, 3}), true))
        .value();
  }
  std::vector<Gradient> Slots(const Gradient& gradient) { return {gradient}; }
};

TEST_F(HostileTest, GradientsThatDoNotFitTheirSlotFailThePassAlone) {
  // The consumer itself is hostile here: it is the root of its own pass.
  const Scope scope(*contexts_[kRoot]);
  const Variable x(Tensor::Ones({2, 3}), true);
  const Variable y = scope.Call(To(kOwner), ReluHere, x).value();
  SparseRows outside{Tensor::FromVector<int64_t>({5}), Tensor::Ones({1, 3}), 2};
  SparseRows negative{Tensor::FromVector<int64_t>({-1}), Tensor::Ones({1, 3}),
                      2};
  const std::vector<std::vector<Gradient>> wrong = {
      {},
      {Gradient(Tensor::Ones({2, 3})), Gradient(Tensor::Ones({2, 3}))},
      {Gradient(Tensor::Ones({200, 300}))},
      {Gradient(Tensor::Ones({1}))},
      {Gradient(Tensor::Ones({}))},
      {Gradient(Tensor::Ones({2, 3}, DType::kF64))},
      {Gradient(Tensor::Ones({2, 3}, DType::kI64))},
      {Gradient(outside)},
      {Gradient(negative)}};
  uint64_t number = 1000;
  for (const std::vector<Gradient>& slots : wrong) {
    const PassId pass{KeyOf(kRoot), ++number};
    const Future<uint64_t> part = rpc::CallAsync(
        To(kOwner), internal::TakePart, scope.id(), pass,
        MessageIntervals{{1, 1}},
        std::vector<WorkerKey>{KeyOf(kRoot), KeyOf(kOwner)}, false, false);
    EXPECT_THAT(rpc::Call(To(kOwner), internal::TakeGradients, scope.id(), pass,
                          uint64_t{1}, slots),
                StatusIs(absl::StatusCode::kInvalidArgument, "slot"));
    EXPECT_FALSE(part.Wait(kPatience).ok());
    EXPECT_THAT(rpc::Call(To(kOwner), internal::TakeOutcome, scope.id(), pass,
                          static_cast<int64_t>(absl::StatusCode::kAborted),
                          std::string("no")),
                IsOk());
  }
  ASSERT_THAT(scope.Backward(Sum(y)), IsOk());
  EXPECT_EQ(scope.GradientOf(x).ToDense().ToVector<float>(),
            std::vector<float>(6, 1.0f));
}

TEST_F(HostileTest, OnlyWhoGotAMessageSendsItsGradients) {
  const Scope scope(*contexts_[kRoot]);
  const Variable y = CallOwner(scope);
  const PassId pass{KeyOf(kRoot), 1};
  EXPECT_THAT(
      rpc::Call(From(kHostile, kOwner), internal::TakeGradients, scope.id(),
                pass, uint64_t{1}, Slots(Tensor::Ones({2, 3}))),
      StatusIs(absl::StatusCode::kPermissionDenied, "worker w2"));
  for (const uint64_t number :
       {uint64_t{0}, uint64_t{2}, std::numeric_limits<uint64_t>::max()}) {
    EXPECT_THAT(
        rpc::Call(From(kHostile, kOwner), internal::TakeGradients, scope.id(),
                  pass, number, Slots(Tensor::Ones({2, 3}))),
        StatusIs(absl::StatusCode::kNotFound, "unknown at its producer"));
  }
  ASSERT_THAT(scope.Backward(Sum(y)), IsOk());
}

TEST_F(HostileTest, PassOfAnotherRootIsNotItsOwn) {
  const Scope scope(*contexts_[kRoot]);
  const Variable y = CallOwner(scope);
  const PassId pass{KeyOf(kRoot), 1};
  const rpc::Target owner = From(kHostile, kOwner);
  const auto refused =
      StatusIs(absl::StatusCode::kPermissionDenied, "is not w2's");
  EXPECT_THAT(rpc::Call(owner, internal::TakePart, scope.id(), pass,
                        MessageIntervals{{1, 1}},
                        std::vector<WorkerKey>{KeyOf(kHostile)}, false, false)
                  .status(),
              refused);
  EXPECT_THAT(rpc::Call(owner, internal::TakeOutcome, scope.id(), pass,
                        int64_t{0}, std::string()),
              refused);
  EXPECT_THAT(rpc::Call(owner, internal::RepeatOutcome, scope.id(), pass,
                        int64_t{1}, std::string("no")),
              refused);
  EXPECT_THAT(rpc::Call(owner, internal::AskAwaited, scope.id(), pass).status(),
              refused);
  EXPECT_THAT(rpc::Call(owner, internal::AwaitEnd, scope.id(), pass),
              StatusIs(absl::StatusCode::kPermissionDenied, "only its root"));
  ASSERT_THAT(scope.Backward(Sum(y)), IsOk());
}

TEST_F(HostileTest, OnlyAParticipantFailsAPass) {
  const Scope scope(*contexts_[kRoot]);
  const Variable x(Tensor::Ones({2, 3}), true);
  const PassId pass{KeyOf(kRoot), 1};
  const auto fail = [&](int from, int64_t code) {
    return rpc::CallAsync(From(from, kRoot), internal::FailPass, scope.id(),
                          pass, code, std::string("no"))
        .Wait(kPatience);
  };
  EXPECT_THAT(fail(kOwner, 14), StatusIs(absl::StatusCode::kNotFound, "open"));
  int calls = 0;
  x.AddHook([&](const weft::Gradient& g) {
    if (++calls > 1) return g;
    EXPECT_THAT(fail(kHostile, 14),
                StatusIs(absl::StatusCode::kPermissionDenied, "worker w2"));
    for (const int64_t code : {int64_t{-1}, int64_t{0}, int64_t{17}}) {
      EXPECT_THAT(fail(kOwner, code),
                  StatusIs(absl::StatusCode::kInvalidArgument, "has the code"));
    }
    EXPECT_THAT(fail(kOwner, 14), IsOk());
    return g;
  });
  const Variable y = scope.Call(To(kOwner), ReluHere, x).value();
  PassOptions options;
  options.retain_graph = true;
  EXPECT_THAT(scope.Backward(Sum(y), options),
              StatusIs(absl::StatusCode::kUnavailable, "no"));
  EXPECT_FALSE(scope.GradientOf(x).defined());
  EXPECT_THAT(fail(kOwner, 14), StatusIs(absl::StatusCode::kNotFound, "open"));
  ASSERT_THAT(scope.Backward(Sum(y), options), IsOk());
}

TEST_F(HostileTest, OutcomesThatCannotBeAreRefused) {
  const Scope scope(*contexts_[kRoot]);
  const Variable y = CallOwner(scope);
  uint64_t number = 1000;
  for (const int64_t code : {int64_t{-1}, int64_t{17}, int64_t{1} << 40,
                             std::numeric_limits<int64_t>::min()}) {
    const PassId pass{KeyOf(kRoot), ++number};
    EXPECT_THAT(rpc::Call(To(kOwner), internal::TakeOutcome, scope.id(), pass,
                          code, std::string("x")),
                StatusIs(absl::StatusCode::kInvalidArgument, "has the code"));
  }
  // COMMIT before PREPARE, before the part is done, and twice.
  for (int times = 0; times < 3; ++times) {
    const PassId pass{KeyOf(kRoot), ++number};
    const auto commit = [&] {
      return rpc::Call(To(kOwner), internal::TakeOutcome, scope.id(), pass,
                       int64_t{0}, std::string());
    };
    for (int i = 0; i < times; ++i) EXPECT_THAT(commit(), IsOk());
    const Future<uint64_t> part = rpc::CallAsync(
        To(kOwner), internal::TakePart, scope.id(), pass,
        MessageIntervals{{1, 1}}, std::vector<WorkerKey>(), false, false);
    EXPECT_THAT(commit(), IsOk());
    EXPECT_THAT(commit(), IsOk());
    EXPECT_THAT(
        part.Wait(kPatience).status(),
        StatusIs(absl::StatusCode::kFailedPrecondition, "before all had done"));
    EXPECT_THAT(rpc::Call(To(kOwner), internal::TakeGradients, scope.id(), pass,
                          uint64_t{1}, Slots(Tensor::Ones({2, 3}))),
                IsOk());
  }
  ASSERT_THAT(scope.Backward(Sum(y)), IsOk());
}

TEST_F(HostileTest, LiveMessagesThatAreNotThereAreRefused) {
  const Scope scope(*contexts_[kRoot]);
  const Variable y = CallOwner(scope);
  uint64_t number = 1000;
  for (const MessageIntervals& live :
       std::vector<MessageIntervals>{{{1, 100}},
                                     {{2, 2}},
                                     {{kLastMessage, kLastMessage}, {1, 1}},
                                     {{1, kLastMessage}, {5, 5}},
                                     {{7, 9}, {3, 4}, {1, 1}}}) {
    const PassId pass{KeyOf(kRoot), ++number};
    EXPECT_THAT(
        rpc::Call(To(kOwner), internal::TakePart, scope.id(), pass, live,
                  std::vector<WorkerKey>{WorkerKey{77, 7}}, true, true)
            .status(),
        StatusIs(absl::StatusCode::kNotFound));
    // A root does so too; the part has then ended before the next pass.
    EXPECT_THAT(rpc::Call(To(kOwner), internal::TakeOutcome, scope.id(), pass,
                          static_cast<int64_t>(absl::StatusCode::kAborted),
                          std::string("no")),
                IsOk());
  }
  ASSERT_THAT(scope.Backward(Sum(y)), IsOk());
}

TEST_F(HostileTest, ContextsOfOthersDoNotStay) {
  // The contexts of a living worker that has not created it, of the callee
  // itself, and of a worker that does not exist.
  for (const ContextId& id :
       {ContextId{KeyOf(kRoot), 999}, ContextId{KeyOf(kOwner), 1},
        ContextId{WorkerKey{77, 7}, 1}}) {
    Header header;
    header.context = id;
    rpc::Call(Carrying(header.ToBytes()), Plain, 1).status().IgnoreError();
    EXPECT_TRUE(Becomes([&] { return OpenContexts(kOwner) == 0; }))
        << id.ToString();
  }
  const Scope own(*contexts_[kOwner]);
  EXPECT_EQ(own.id().number, 1u);
}

TEST_F(HostileTest, HeadersThatCannotBeAreRefused) {
  const Scope scope(*contexts_[kHostile]);
  const auto call = [&](const Header& header) {
    return rpc::Call(Carrying(header.ToBytes()), Plain, 1).status();
  };
  Header good;
  good.context = scope.id();
  EXPECT_THAT(call(good), IsOk());
  for (const uint64_t number :
       {uint64_t{0}, kLastMessage, std::numeric_limits<uint64_t>::max()}) {
    Header header = good;
    header.number = number;
    EXPECT_FALSE(call(header).ok()) << number;
  }
  for (const uint64_t slots :
       {uint64_t{0}, uint64_t{1} << 17, std::numeric_limits<uint64_t>::max()}) {
    Header header = good;
    header.slots = slots;
    EXPECT_FALSE(call(header).ok()) << slots;
  }
  // More than any lineage has, in the worst order to sort them.
  Header header = good;
  header.lineage.push_back({KeyOf(kOwner), {}});
  for (uint64_t n = 200000; n > 0; --n) {
    header.lineage.back().second.push_back({2 * n, 2 * n});
  }
  EXPECT_THAT(call(header), StatusIs(absl::StatusCode::kInvalidArgument,
                                     "too many intervals"));
  header = good;
  header.lineage.push_back({KeyOf(kOwner), {}});  // none of that producer
  EXPECT_THAT(call(header), IsOk());

  std::mt19937 random(1);
  header.lineage.back().second = {{1, 3}, {5, 5}};
  for (int i = 0; i < 1000; ++i) {
    std::string bytes = header.ToBytes();
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 4), '\7');
    for (unsigned n = random() % 4; n > 0 && !bytes.empty(); --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    rpc::Call(Carrying(bytes), Plain, 1).status().IgnoreError();
  }
  EXPECT_THAT(call(good), IsOk());
  // Those that it may have created, by other numbers, end with it.
  Kill(kHostile);
}

TEST_F(HostileTest, OutcomeIsToldToParticipantsAlone) {
  const Scope scope(*contexts_[kRoot]);
  const Variable y = CallOwner(scope);
  const PassId pass{KeyOf(kRoot), 1000};
  const Future<uint64_t> part = rpc::CallAsync(
      To(kOwner), internal::TakePart, scope.id(), pass,
      MessageIntervals{{1, 1}},
      std::vector<WorkerKey>{KeyOf(kRoot), KeyOf(kOwner)}, false, false);
  EXPECT_TRUE(Becomes([&] {
    const auto lines = contexts_[kOwner]->ExplainPasses();
    return lines.size() == 1 &&
           lines[0].find("the gradients of message 1") != std::string::npos;
  }));
  EXPECT_THAT(
      rpc::Call(From(kHostile, kOwner), internal::AskOutcome, scope.id(), pass)
          .status(),
      StatusIs(absl::StatusCode::kPermissionDenied, "has no part"));
  EXPECT_FALSE(part.IsReady());
  EXPECT_THAT(rpc::Call(To(kOwner), internal::TakeOutcome, scope.id(), pass,
                        static_cast<int64_t>(absl::StatusCode::kAborted),
                        std::string("no")),
              IsOk());
  ASSERT_THAT(scope.Backward(Sum(y)), IsOk());
}

class CountingParticipant final : public Participant {
 public:
  absl::StatusOr<bool> Prepare() override { return ++prepared > 0; }
  Future<void> Commit() override {
    ++committed;
    return MakeReady();
  }
  void Abort() override {}

  std::atomic<int> prepared{0}, committed{0};
};

// The owner has changes in store for the step of the root's context.
TEST_F(HostileTest, OnlyWhoTookPartInAPassStepsItsContext) {
  const Scope scope(*contexts_[kRoot]);
  const Variable y = CallOwner(scope);
  const auto changes = std::make_shared<CountingParticipant>();
  ASSERT_THAT((*contexts_[kOwner]->Find(scope.id()))->AddParticipant(changes),
              IsOk());
  const auto step = [&](const rpc::Target& owner) {
    const auto prepared = rpc::Call(owner, PrepareParticipants, scope.id());
    const absl::Status committed =
        rpc::Call(owner, CommitParticipants, scope.id());
    EXPECT_EQ(prepared.status().code(), committed.code());
    return committed;
  };
  const auto refused = StatusIs(absl::StatusCode::kPermissionDenied,
                                "and took part in no pass of it");
  EXPECT_THAT(step(From(kHostile, kOwner)), refused);
  // Neither a call in the context makes it one of the pass...
  ASSERT_THAT(
      rpc::Call(Carrying(Header{scope.id(), 0, 0, {}}.ToBytes()), Plain, 1),
      IsOk());
  EXPECT_THAT(step(From(kHostile, kOwner)), refused);
  ASSERT_THAT(scope.Backward(Sum(y)), IsOk());
  EXPECT_THAT(step(From(kHostile, kOwner)), refused);
  EXPECT_EQ(changes->prepared + changes->committed, 0);
  // ...nor does it keep the root from its step, and from a second one.
  EXPECT_THAT(step(To(kOwner)), IsOk());
  EXPECT_EQ(changes->prepared, 1);
  EXPECT_EQ(changes->committed, 1);
  // Where the context has no part there is nothing to do.
  EXPECT_THAT(rpc::Call(From(kOwner, kHostile), CommitParticipants,
                        ContextId{KeyOf(kRoot), 999}),
              IsOk());
}

}  // namespace
}  // namespace weft::dist_autograd
