#include "weft/collectives/backends/stream/mesh.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/stream/frame.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

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
  void Arrive(Frame frame) { mesh_->OnMessage(1, Encode(std::move(frame))); }
  // Of one f32 from rank 1.
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
    EXPECT_THAT(mesh_->AwaitAll({"r0", "r1"}, SteadyClock().Now(), [](int) {}),
                StatusIs(absl::StatusCode::kUnavailable, why));
  }

  std::shared_ptr<Mesh> mesh_;
  float received_ = 0;
};

TEST_F(MeshTest, TransferInTwoPartsIsReceived) {
  const float sent = 2.5f;
  const std::string bytes(reinterpret_cast<const char*>(&sent), sizeof sent);
  Arrive(TransferOf(1, bytes.substr(0, 3), 4));
  EXPECT_THAT(Receive(), IsOkAndHolds(false));
  Arrive(TransferOf(1, bytes.substr(3), 4, 3));
  EXPECT_THAT(Receive(), IsOkAndHolds(true));
  EXPECT_EQ(received_, sent);
}

TEST_F(MeshTest, RankThatCameAndLeftDoesNotFailTheMeeting) {
  Frame hello;
  hello.kind = Frame::kHello;
  hello.code = 1;
  hello.text = "g";
  Arrive(hello);
  Frame leave;
  leave.kind = Frame::kLeave;
  Arrive(leave);
  mesh_->OnClosed(1, absl::OkStatus());
  EXPECT_TRUE(mesh_->HasLeft(1));
  EXPECT_TRUE(mesh_->HasWrittenAll());
  WEFT_EXPECT_OK(
      mesh_->AwaitAll({"r0", "r1"}, SteadyClock().Now(), [](int) {}));
}

TEST_F(MeshTest, TransferThatIsNoWholeNumberOfElementsIsRefused) {
  Arrive(TransferOf(1, "12345", 5));
  ExpectRefused("5 bytes is no tensor");
}

TEST_F(MeshTest, TransferThatBeginsBeforeTheLastHasEndedIsRefused) {
  Arrive(TransferOf(1, "12", 4));
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
  const std::string chunk(1 << 20, 'x');
  for (uint64_t i = 0; i < 17; ++i) {
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

}  // namespace
}  // namespace weft::collectives
