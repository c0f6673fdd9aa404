#include "weft/collectives/backends/stream/mesh.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/core/frame.h"
#include "weft/collectives/core/inbox.h"
#include "weft/collectives/operation.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/transport.h"

namespace weft::collectives {
namespace {

using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

// Rank 0 of 2, which has a stream to nobody; frames are those of rank 1.
class MeshTest : public ::testing::Test {
 protected:
  MeshTest() {
    MeshOptions options;
    options.group = "g";
    options.size = 2;
    mesh_ = std::make_shared<Mesh>(std::move(options), ParkingDriver());
  }

  Frame TransferOf(uint64_t sequence, const std::string& content,
                   uint64_t total, uint64_t offset = 0) {
    Frame frame;
    frame.kind = Frame::kTransfer;
    frame.code = static_cast<uint32_t>(DType::kF32);
    frame.sequence = sequence;
    frame.total = total;
    frame.offset = offset;
    frame.content = {Bytes::Copy(content)};
    return frame;
  }
  static Frame OfKind(Frame::Kind kind) {
    Frame frame;
    frame.kind = kind;
    return frame;
  }
  static Frame Hello() {
    Frame hello = OfKind(Frame::kHello);
    hello.code = 1;
    hello.sequence = 2;
    hello.text = "g";
    return hello;
  }
  void Arrive(Frame frame) { mesh_->OnMessage(1, Encode(std::move(frame))); }
  // Receives one f32 from rank 1.
  absl::StatusOr<bool> Receive() {
    Transfer transfer;
    transfer.peer = 1;
    transfer.dtype = DType::kF32;
    transfer.block = {reinterpret_cast<std::byte*>(&received_), 1};
    return mesh_->Advance(transfer);
  }
  void ExpectRefused(const char* why) {
    EXPECT_THAT(Receive(),
                StatusIs(absl::StatusCode::kUnavailable, "rank 1 has ended"));
    EXPECT_THAT(mesh_->AwaitAll(SteadyClock().Now(), [](int) {}),
                StatusIs(absl::StatusCode::kUnavailable, why));
  }

  std::shared_ptr<Mesh> mesh_;
  float received_ = 0;
};

TEST_F(MeshTest, TransferInTwoPartsIsReceived) {
  std::string bytes(Inbox::kChunkBytes + sizeof(float), 0);
  const float last = 2.5f;
  memcpy(&bytes[Inbox::kChunkBytes], &last, sizeof last);
  std::vector<float> received(bytes.size() / sizeof(float));
  Transfer transfer;
  transfer.peer = 1;
  transfer.dtype = DType::kF32;
  transfer.block = {reinterpret_cast<std::byte*>(received.data()),
                    static_cast<int64_t>(received.size())};
  Arrive(TransferOf(1, bytes.substr(0, Inbox::kChunkBytes), bytes.size()));
  EXPECT_THAT(mesh_->Advance(transfer), IsOkAndHolds(false));
  Arrive(TransferOf(1, bytes.substr(Inbox::kChunkBytes), bytes.size(),
                    Inbox::kChunkBytes));
  EXPECT_THAT(mesh_->Advance(transfer), IsOkAndHolds(true));
  EXPECT_EQ(received.back(), last);
}

TEST_F(MeshTest, RankThatCameAndLeftDoesNotFailTheMeeting) {
  Arrive(Hello());
  Arrive(OfKind(Frame::kLeave));
  mesh_->OnClosed(1, absl::OkStatus());
  EXPECT_TRUE(mesh_->HasLeft(1));
  EXPECT_TRUE(mesh_->IsSettled());
  WEFT_EXPECT_OK(mesh_->AwaitAll(SteadyClock().Now(), [](int) {}));
}

TEST_F(MeshTest, TransferThatIsNoWholeNumberOfElementsIsRefused) {
  Arrive(TransferOf(1, "12345", 5));
  ExpectRefused("5 bytes is no tensor");
}

TEST_F(MeshTest, TransferThatBeginsBeforeTheLastHasEndedIsRefused) {
  Arrive(TransferOf(1, std::string(Inbox::kChunkBytes, 'x'),
                    Inbox::kChunkBytes + 4));
  Arrive(TransferOf(2, "1234", 4));
  ExpectRefused("before the last one has ended");
}

TEST_F(MeshTest, AckOfMoreThanWasSentIsRefused) {
  for (const Frame::Kind kind : {Frame::kPartAck, Frame::kTransferAck}) {
    Frame ack;
    ack.kind = kind;
    ack.total = 1;
    Arrive(ack);
    ExpectRefused("an ack is of 1 bytes, of 0 that were sent");
  }
}

TEST_F(MeshTest, PartsBeyondTheWindowAreRefused) {
  const std::string chunk(Inbox::kChunkBytes, 'x');
  for (uint64_t i = 0; i < 32; ++i) {
    Frame part;
    part.kind = Frame::kPart;
    part.sequence = 1;
    part.tag = i;
    part.total = chunk.size();
    part.content = {Bytes::Copy(chunk)};
    Arrive(std::move(part));
  }
  ExpectRefused("more arrives than may be under way");
}

TEST_F(MeshTest, RankThatSaysTwiceWhoItIsIsRefused) {
  Arrive(Hello());
  Arrive(Hello());
  ExpectRefused("a second time");
}

TEST_F(MeshTest, RankThatLeavesTwiceIsRefused) {
  Arrive(OfKind(Frame::kLeave));
  Arrive(OfKind(Frame::kLeave));
  EXPECT_THAT(mesh_->AwaitAll(SteadyClock().Now(), [](int) {}),
              StatusIs(absl::StatusCode::kUnavailable, "leaves a second time"));
}

TEST_F(MeshTest, AnswerToALeaveThatWasNotSaidIsRefused) {
  Arrive(OfKind(Frame::kLeaveAck));
  ExpectRefused("has not left");
}

TEST_F(MeshTest, RankThatHasAnotherGroupInMindIsRefused) {
  Frame hello = Hello();
  hello.sequence = 3;
  Arrive(hello);
  ExpectRefused("wanted rank 1 of the 2 of group g, found rank 1 of the 3");
}

// The others leave such a group by Shrink, and so must this rank.
TEST_F(MeshTest, GroupThatIsAbortedBeforeAllHaveComeIsThereAndBroken) {
  Frame abort = OfKind(Frame::kAbort);
  abort.code = static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition);
  abort.text = "the ranks called different operations";
  Arrive(abort);
  WEFT_EXPECT_OK(
      mesh_->AwaitAll(SteadyClock().Now() + absl::Minutes(1), [](int) {}));
  EXPECT_THAT(mesh_->health(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "different"));
}

// The call is compared even if the rank was not there when its stream was first
// opened.
TEST_F(MeshTest, CallOfARankThatIsFarBehindIsCompared) {
  mesh_->OnClosed(1, absl::UnavailableError("it does not listen yet"));
  WEFT_ASSERT_OK(mesh_->AwaitAll(SteadyClock().Now() + absl::Minutes(1),
                                 [&](int) { Arrive(Hello()); }));
  Operation broadcast;
  broadcast.verb = Verb::kBroadcast;
  for (broadcast.sequence = 0; broadcast.sequence < 1000;
       ++broadcast.sequence) {
    WEFT_ASSERT_OK(mesh_->Begin(broadcast));
  }
  Frame late = OfKind(Frame::kStatus);
  broadcast.sequence = 0;
  late.sequence = 16;  // on the wire
  late.fingerprint = Fingerprint(broadcast);
  late.text = "Broadcast #0";
  Arrive(late);
  WEFT_EXPECT_OK(mesh_->health());
  late.sequence = 17;
  late.fingerprint = ~Fingerprint(broadcast);
  late.text = "Reduce #1";
  Arrive(late);
  EXPECT_THAT(mesh_->health(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "Reduce #1"));
}

// A connection that takes one message and never says that it is written.
class StuckConnection final : public transport::Connection {
 public:
  explicit StuckConnection(std::string name) : name_(std::move(name)) {}
  Written Write(Slices message) override {
    const auto frame = Decode(message);
    parts_ += frame.ok() && frame->kind == Frame::kPart;
    return Written::kUnderWay;
  }
  int parts() const { return parts_; }
  void Close(absl::Status) override {}
  std::string ProvenName() const override { return name_; }

 private:
  const std::string name_;
  int parts_ = 0;
};

// Rank 1 of 2, to which rank 0 opens a stream.
class OpenedMeshTest : public MeshTest {
 protected:
  OpenedMeshTest() {
    MeshOptions options;
    options.group = "g";
    options.rank = 1;
    options.size = 2;
    options.names = {"trainer0", "trainer1"};
    mesh_ = std::make_shared<Mesh>(std::move(options), ParkingDriver());
  }
  absl::Status Open(const std::string& name) {
    return mesh_->OnHello(0, std::make_shared<StuckConnection>(name));
  }
  void ArriveFrom0(Frame frame) {
    mesh_->OnMessage(0, Encode(std::move(frame)));
  }
};

TEST_F(OpenedMeshTest, RankOfAnotherNameIsRefusedAndTheRightOneStillComes) {
  EXPECT_THAT(Open("admin0"), StatusIs(absl::StatusCode::kPermissionDenied,
                                       "rank 0 of group g should be trainer0, "
                                       "and its certificate is of admin0"));
  WEFT_EXPECT_OK(Open("trainer0"));
  EXPECT_THAT(Open("trainer0"), StatusIs(absl::StatusCode::kAlreadyExists));
  Frame hello = Hello();
  hello.code = 0;
  ArriveFrom0(hello);
  WEFT_EXPECT_OK(mesh_->AwaitAll(SteadyClock().Now(), [](int) {}));
}

TEST_F(OpenedMeshTest, AnswersThatAreNotReadAreBounded) {
  WEFT_ASSERT_OK(Open("trainer0"));
  Frame ask = OfKind(Frame::kAnnounce);
  ask.text = "AllReduce #0";
  for (int i = 0; i < 10'000; ++i) ArriveFrom0(ask);
  EXPECT_THAT(mesh_->AwaitAll(SteadyClock().Now(), [](int) {}),
              StatusIs(absl::StatusCode::kUnavailable, "does not read"));
}

// It would lie in memory, copied, until the socket takes it, and be in no cache
// any more.
TEST_F(OpenedMeshTest, ChunkIsNotCopiedBeforeTheOneBeforeIsWritten) {
  const auto connection = std::make_shared<StuckConnection>("trainer0");
  WEFT_ASSERT_OK(mesh_->OnHello(0, connection));
  Operation broadcast;
  broadcast.verb = Verb::kBroadcast;
  broadcast.deadline = SteadyClock().Now();
  WEFT_ASSERT_OK(mesh_->Begin(broadcast));
  Progress progress = {broadcast};
  const std::vector<std::byte> content(4 * Inbox::kChunkBytes);
  EXPECT_THAT(mesh_->Exchange(progress, Mesh::Outgoing{0, content}, {}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "waited"));
  for (int i = 0; i < 8; ++i) mesh_->OnWritten(0);  // whatever was queued
  EXPECT_EQ(connection->parts(), 1);
}

}  // namespace
}  // namespace weft::collectives
