// What a peer may send that keeps to no protocol: each entry of References
// refuses it, the process goes on, and others lose nothing.

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/codec/worker_codec.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rref {

// What every worker serves; the sources name them.
namespace internal {
Future<void> AdoptObject(rpc::CallContext& context, rpc::ObjectId object,
                         WorkerKey parent, uint64_t number, uint64_t secret);
Future<void> RegisterFork(rpc::CallContext& context, rpc::ObjectId object,
                          WorkerKey parent, uint64_t number, uint64_t secret);
using DeletedFork = std::tuple<rpc::ObjectId, WorkerKey, uint64_t>;
absl::Status DeleteForks(rpc::CallContext& context,
                         const std::vector<DeletedFork>& forks);
Future<void> AskCreator(rpc::CallContext& context, rpc::ObjectId object);
}  // namespace internal

// An attachment of the test's making.
class Raw final : public rpc::Attachment {
 public:
  explicit Raw(std::string bytes) : bytes_(std::move(bytes)) {}
  absl::StatusOr<Bytes> Freeze() override { return Bytes::Own(bytes_); }
  void OnOutcome(uint64_t, rpc::AttachmentOutcome) override {}

 private:
  const std::string bytes_;
};

// A result whose message carries one.
struct WithRaw {
  std::string kind;
  std::string bytes;
};

}  // namespace weft::rref

namespace weft::rpc {

template <>
struct Codec<rref::WithRaw> {
  static std::string TypeName() { return "test.WithRaw"; }
  static void Encode(const rref::WithRaw& with, Encoder& e) {
    if (!with.kind.empty()) {
      e.Stage(with.kind,
              [&] { return std::make_unique<rref::Raw>(with.bytes); });
    }
    e.Write(true);
  }
  static absl::Status Decode(Decoder& d, rref::WithRaw&) {
    bool any = false;
    return d.Read(any);
  }
};

}  // namespace weft::rpc

namespace weft::rref {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int kOwner = 0, kHolder = 1, kHostile = 2;

class Cell {
 public:
  explicit Cell(int64_t value) : value_(value) {}
  int64_t Get() { return value_; }

 private:
  const int64_t value_;
};
WEFT_RPC_CLASS(Cell, int64_t);
WEFT_RPC_METHOD(Cell, Get);

int64_t GetOf(const RRef<Cell>& cell) { return Call(cell, &Cell::Get).value(); }
WEFT_RPC(GetOf);
int64_t Double(int64_t x) { return 2 * x; }
WEFT_RPC(Double);
// Waits until the test says so.
std::atomic<bool> may_end{false};
int64_t DoubleLate(int64_t x) {
  EXPECT_TRUE(Becomes([] { return may_end.load(); }));
  return 2 * x;
}
WEFT_RPC(DoubleLate);
WithRaw AnswerWith(const std::string& kind, const std::string& bytes) {
  return {kind, bytes};
}
WEFT_RPC(AnswerWith);

template <typename... T>
std::string Encoded(const T&... values) {
  rpc::Encoder e;
  e.Write(values...);
  const Slices slices = std::move(e).Finish().value();
  std::string bytes;
  for (const Bytes& slice : slices) {
    bytes.append(slice.view().data(), slice.size());
  }
  return bytes;
}

// As References write them.
std::string TokensAsBytes(const std::vector<Token>& tokens,
                          bool registered = false) {
  std::string bytes(1, static_cast<char>(tokens.size()));
  for (const Token& t : tokens) {
    bytes +=
        Encoded(t.object, t.fork.parent, t.fork.number, t.secret, registered);
  }
  return bytes;
}

class HostileTest : public ::testing::Test {
 protected:
  HostileTest() {
    for (int i = 0; i < 3; ++i) {
      references_.push_back(References::Open(ranks_[i]).value());
    }
  }
  ~HostileTest() override {
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(Becomes([&] { return IsEmpty(i); }))
          << "w" << i << " still has: "
          << ::testing::PrintToString(references_[i]->ExplainLeaks());
    }
    for (const auto& references : references_)
      EXPECT_THAT(references->Close(kLong), IsOk());
  }
  bool IsEmpty(int rank) const {
    const References::Counts c = references_[rank]->counts();
    return c.held + c.open_children + c.owned + c.waiting + c.creating == 0;
  }
  WorkerKey KeyOf(int rank) { return ranks_[rank].key(); }
  rpc::Target From(int from, int to, absl::Duration timeout = kLong) {
    return ranks_[from].To(absl::StrCat("w", to), timeout);
  }
  // Calls of the hostile worker that carry `bytes`.
  rpc::Target Carrying(absl::string_view kind, const std::string& bytes,
                       int to = kOwner, absl::Duration timeout = kLong) {
    return From(kHostile, to, timeout)
        .WithAttachment(kind, [bytes](const rpc::CodecContext&) {
          return std::make_unique<Raw>(bytes);
        });
  }
  // Makes an object at the owner to which the holder has a reference.
  RRef<Cell> MakeCell() {
    RRef<Cell> cell = rref::Make<Cell>(From(kHolder, kOwner), 10).value();
    EXPECT_TRUE(
        Becomes([&] { return !references_[kOwner]->Holdings().empty(); }));
    return cell;
  }

  rpc::Ranks ranks_{3};
  std::vector<std::shared_ptr<References>> references_;
};

TEST_F(HostileTest, TokenTwiceInAMessageIsRefused) {
  Token token;
  token.object = {KeyOf(kHostile), KeyOf(kHostile), 7};
  token.fork = {KeyOf(kHostile), 100};
  for (const bool registered : {false, true}) {
    EXPECT_THAT(rpc::Call(Carrying(References::kKind,
                                   TokensAsBytes({token, token}, registered)),
                          Double, 1)
                    .status(),
                StatusIs(absl::StatusCode::kAlreadyExists, "a second time"));
  }
  // The second token names another object, but the same fork.
  Token other = token;
  other.object.call = 8;
  EXPECT_THAT(rpc::Call(Carrying(References::kKind,
                                 TokensAsBytes({token, other}, true)),
                        Double, 1)
                  .status(),
              StatusIs(absl::StatusCode::kAlreadyExists, "a second time"));
}

// Each of these numbers is one that the receiver is about to give.
TEST_F(HostileTest, TokenOfAForkOfAnotherIsRefused) {
  for (uint64_t number = 1; number < 20; ++number) {
    for (const int parent : {kOwner, kHolder}) {
      Token token;
      token.object = {KeyOf(kHostile), KeyOf(kHostile), 7};
      token.fork = {KeyOf(parent), number};
      EXPECT_THAT(
          rpc::Call(Carrying(References::kKind, TokensAsBytes({token}, true)),
                    Double, 1)
              .status(),
          StatusIs(absl::StatusCode::kPermissionDenied, "by the parent"));
    }
  }
  const RRef<Cell> cell =
      MakeLocal(ranks_[kOwner], std::make_shared<Cell>(10)).value();
  EXPECT_THAT(rpc::Call(From(kOwner, kHolder), GetOf, cell), IsOkAndHolds(10));
}

TEST_F(HostileTest, TokensOfWhatIsNotThereEndTheirCallAlone) {
  const RRef<Cell> cell = MakeCell();
  const std::vector<rpc::ObjectId> objects = {
      {KeyOf(kOwner), KeyOf(kHostile), 12345},
      {KeyOf(kOwner), KeyOf(kOwner), uint64_t{1} << 60},
      {KeyOf(kOwner), {77, 5}, 1},
      {{77, 5}, KeyOf(kHostile), 1},
      {{77, 5}, {78, 5}, 1},
      cell.id()};
  uint64_t number = 0;
  for (const rpc::ObjectId& object : objects) {
    Token token;
    token.object = object;
    token.fork = {KeyOf(kHostile), ++number};
    for (const int to : {kOwner, kHolder}) {
      EXPECT_FALSE(
          rpc::Call(Carrying(References::kKind, TokensAsBytes({token}), to),
                    Double, 1)
              .ok());
      token.fork.number = ++number;
    }
  }
  EXPECT_THAT(Call(cell, &Cell::Get), IsOkAndHolds(10));
}

TEST_F(HostileTest, BytesThatAreNoAttachmentAreRefused) {
  const RRef<Cell> cell = MakeCell();
  Token token;
  token.object = {KeyOf(kOwner), KeyOf(kHostile), 9};
  token.fork = {KeyOf(kHostile), 1};
  const std::vector<std::pair<absl::string_view, std::string>> kinds = {
      {References::kKind, TokensAsBytes({token, token})},
      {References::kCreationKind, Encoded(uint64_t{1}, uint64_t{2})},
      {References::kAwaitKind, Encoded(token.object)}};
  std::mt19937 random(1);
  std::vector<Future<int64_t>> calls;
  for (const auto& [kind, good] : kinds) {
    for (int i = 0; i < 300; ++i) {
      std::string bytes = good;
      bytes.resize(random() % (good.size() + 4), '\7');
      for (unsigned n = random() % 4; n > 0 && !bytes.empty(); --n) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      calls.push_back(rpc::CallAsync(
          Carrying(kind, bytes, kOwner, absl::Milliseconds(200)), Double, 1));
      calls.push_back(rpc::CallAsync(From(kOwner, kHostile), AnswerWith,
                                     std::string(kind), bytes)
                          .Then([](const WithRaw&) { return int64_t{0}; }));
    }
  }
  for (const Future<int64_t>& call : calls) {
    call.Wait(kLong).status().IgnoreError();
  }
  EXPECT_THAT(Call(cell, &Cell::Get), IsOkAndHolds(10));
}

TEST_F(HostileTest, OnlyRequestsMakeObjectsAndWaitForThem) {
  for (const absl::string_view kind :
       {References::kCreationKind, References::kAwaitKind}) {
    const std::string bytes =
        kind == References::kAwaitKind
            ? Encoded(rpc::ObjectId{KeyOf(kOwner), KeyOf(kHostile), 9})
            : Encoded(uint64_t{1}, uint64_t{2});
    EXPECT_THAT(
        rpc::Call(From(kOwner, kHostile), AnswerWith, std::string(kind), bytes)
            .status(),
        StatusIs(absl::StatusCode::kInternal, kind));
  }
}

TEST_F(HostileTest, ForkOfAnotherIsNotDeleted) {
  const RRef<Cell> cell = MakeCell();
  const Token& token = cell.reference()->token();
  const auto forks = [](const Token& of) {
    return std::vector<internal::DeletedFork>{
        {of.object, of.fork.parent, of.fork.number},
        {of.object, of.fork.parent, of.fork.number}};
  };
  EXPECT_THAT(
      rpc::Call(From(kHostile, kOwner), internal::DeleteForks, forks(token)),
      StatusIs(absl::StatusCode::kPermissionDenied, "is not held by"));
  EXPECT_THAT(rpc::Call(From(kHostile, kOwner), internal::DeleteForks,
                        std::vector<internal::DeletedFork>(
                            1000, {rpc::ObjectId{}, WorkerKey{}, 0})),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Call(cell, &Cell::Get), IsOkAndHolds(10));
}

// The number of a fork is known to all who may guess it.
TEST_F(HostileTest, RequestsOfAnotherHolderAreNeitherEndedNorReplaced) {
  may_end = false;
  const auto made = BeginRemote(From(kHolder, kOwner), DoubleLate, 1);
  ASSERT_THAT(made.status(), IsOk());
  const Token held = (*made).reference()->token();
  EXPECT_TRUE(
      Becomes([&] { return references_[kOwner]->counts().creating == 1; }));
  // w1 registers a second fork of its own, which waits for the object.
  const Future<void> honest =
      rpc::CallAsync(From(kHolder, kOwner), internal::RegisterFork, held.object,
                     KeyOf(kHolder), uint64_t{500}, held.secret);
  EXPECT_TRUE(
      Becomes([&] { return references_[kOwner]->counts().waiting == 1; }));
  EXPECT_THAT(rpc::Call(From(kHostile, kOwner), internal::DeleteForks,
                        std::vector<internal::DeletedFork>{
                            {held.object, KeyOf(kHolder), 500}}),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_FALSE(honest.IsReady());
  // The same number, for an object of its own that is never made.
  const auto own = BeginRemote(From(kHostile, kOwner), DoubleLate, 1);
  ASSERT_THAT(own.status(), IsOk());
  EXPECT_TRUE(
      Becomes([&] { return references_[kOwner]->counts().creating == 2; }));
  const Token mine = (*own).reference()->token();
  const Future<void> early =
      rpc::CallAsync(From(kHostile, kOwner), internal::RegisterFork,
                     mine.object, KeyOf(kHolder), uint64_t{501}, mine.secret);
  EXPECT_TRUE(
      Becomes([&] { return references_[kOwner]->counts().waiting == 2; }));
  const RRef<Cell> cell = MakeCell();
  const Token& token = cell.reference()->token();
  EXPECT_THAT(
      rpc::Call(From(kHolder, kOwner), internal::RegisterFork, token.object,
                KeyOf(kHolder), uint64_t{501}, token.secret),
      IsOk());
  EXPECT_THAT(rpc::Call(From(kHolder, kOwner), internal::DeleteForks,
                        std::vector<internal::DeletedFork>{
                            {token.object, KeyOf(kHolder), 501}}),
              IsOk());
  may_end = true;
  EXPECT_THAT(honest.Wait(kLong), IsOk());
  EXPECT_THAT(early.Wait(kLong), IsOk());
  EXPECT_THAT(rpc::Call(From(kHolder, kOwner), internal::DeleteForks,
                        std::vector<internal::DeletedFork>{
                            {held.object, KeyOf(kHolder), 500}}),
              IsOk());
  EXPECT_THAT(rpc::Call(From(kHostile, kOwner), internal::DeleteForks,
                        std::vector<internal::DeletedFork>{
                            {mine.object, KeyOf(kHolder), 501}}),
              IsOk());
}

TEST_F(HostileTest, ForkOfAnObjectOfAnotherOwnerIsNotRegistered) {
  const RRef<Cell> cell = MakeCell();
  const Token& token = cell.reference()->token();
  EXPECT_THAT(
      rpc::Call(From(kHostile, kHolder), internal::RegisterFork, token.object,
                KeyOf(kHostile), uint64_t{1}, token.secret),
      StatusIs(absl::StatusCode::kInvalidArgument, "is not of w1"));
}

TEST_F(HostileTest, ObjectIsSharedOnceAndByItsCreator) {
  const auto handle = rpc::Make<Cell>(From(kHolder, kOwner), 10);
  ASSERT_THAT(handle.status(), IsOk());
  EXPECT_THAT(
      rpc::Call(From(kHostile, kOwner), internal::AdoptObject, handle->id(),
                KeyOf(kHostile), uint64_t{1}, uint64_t{2}),
      StatusIs(absl::StatusCode::kPermissionDenied, "w2's to share"));
  const RRef<Cell> cell = Share(ranks_[kHolder], *handle).value();
  ASSERT_THAT(cell.Confirmed().Wait(kLong), IsOk());
  // A second secret would make those that were given before worthless.
  EXPECT_THAT(
      rpc::Call(From(kHolder, kOwner), internal::AdoptObject, handle->id(),
                KeyOf(kHolder), uint64_t{900}, uint64_t{2}),
      StatusIs(absl::StatusCode::kAlreadyExists, "shared already"));
  EXPECT_THAT(rpc::Call(From(kHolder, kHostile), GetOf, cell),
              IsOkAndHolds(10));
}

TEST_F(HostileTest, OnlyTheOwnerAsksTheCreator) {
  const RRef<Cell> cell = MakeCell();
  EXPECT_THAT(
      rpc::Call(From(kHostile, kHolder), internal::AskCreator, cell.id()),
      StatusIs(absl::StatusCode::kPermissionDenied, "is not of w2"));
}

}  // namespace
}  // namespace weft::rref
