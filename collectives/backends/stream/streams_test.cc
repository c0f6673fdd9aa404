#include "weft/collectives/backends/stream/streams.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/collectives/backends/stream/mesh.h"
#include "weft/collectives/backends/stream/streams_state.h"
#include "weft/collectives/core/frame.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/local_transport.h"
#include "weft/transport/transport.h"

namespace weft::collectives {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// What a peer with the certificate of `name` has opened.
class PeerConnection final : public transport::Connection {
 public:
  explicit PeerConnection(std::string name) : name_(std::move(name)) {}

  Written Write(Slices) override { return Written::kDone; }
  void Close(absl::Status why) override { closed_ = why; }
  std::string ProvenName() const override { return name_; }

  // Why this end has closed it; OK: it has not.
  const absl::Status& closed() const { return closed_; }

 private:
  const std::string name_;
  absl::Status closed_;
};

Frame Hello(int rank, const std::string& group) {
  Frame hello;
  hello.kind = Frame::kHello;
  hello.code = static_cast<uint32_t>(rank);
  hello.sequence = 2;
  hello.text = group;
  return hello;
}

class StreamsTest : public ::testing::Test {
 protected:
  struct Stream {
    std::shared_ptr<PeerConnection> connection;
    absl::StatusOr<std::shared_ptr<transport::ConnectionObserver>> end =
        nullptr;

    void Say(Frame frame) { (*end)->OnMessage(Encode(std::move(frame))); }
  };

  Stream Open(const std::string& name) {
    Stream stream;
    stream.connection = std::make_shared<PeerConnection>(name);
    stream.end = streams_.state()->Accept(stream.connection);
    return stream;
  }
  // Rank 1 of trainer0 and trainer1.
  std::shared_ptr<Mesh> MakeGroup() {
    MeshOptions options;
    options.group = "g";
    options.rank = 1;
    options.size = 2;
    options.names = {"trainer0", "trainer1"};
    auto mesh = std::make_shared<Mesh>(std::move(options), ParkingDriver());
    WEFT_EXPECT_OK(streams_.state()->Add(mesh));
    return mesh;
  }

  transport::LocalNetwork network_;
  std::unique_ptr<transport::Transport> transport_ =
      *network_.MakeTransport("trainer1");
  Streams streams_{*transport_};
};

absl::Status Await(Mesh& mesh) {
  return mesh.AwaitAll(SteadyClock().Now() + absl::Seconds(30), [](int) {});
}

TEST_F(StreamsTest, StreamThatNamesGroupsWithoutEndIsEnded) {
  Stream stream = Open("trainer0");
  for (int i = 0; i < 3; ++i) stream.Say(Hello(0, absl::StrCat("group", i)));
  EXPECT_THAT(stream.connection->closed(), IsOk());
  for (int i = 0; i < 3; ++i) stream.Say(Hello(0, absl::StrCat("group", i)));
  EXPECT_THAT(stream.connection->closed(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  // A stream whose names are too long to keep is ended as well.
  Stream other = Open("trainer0");
  for (int i = 0; i < 5; ++i) other.Say(Hello(0, std::string(4096, 'g')));
  EXPECT_THAT(other.connection->closed(),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(StreamsTest, StreamsThatNameGroupsWithoutEndAreBounded) {
  std::vector<Stream> streams;
  absl::Status status;
  while (status.ok() && streams.size() < 2000) {
    streams.push_back(Open("trainer0"));
    status = streams.back().end.status();
    if (status.ok()) streams.back().Say(Hello(0, "none"));
  }
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kResourceExhausted, "trainer0"));
  EXPECT_LT(streams.size(), 200u);
  EXPECT_THAT(Open("trainer2").end.status(), IsOk()) << "the others still may";
  for (Stream& stream : streams) {
    if (stream.end.ok()) (*stream.end)->OnClosed(absl::OkStatus());
  }
  EXPECT_THAT(Open("trainer0").end.status(), IsOk())
      << "once it has ended some";
}

TEST_F(StreamsTest, StreamOfAnotherNameIsEndedAndTheGroupGoesOn) {
  const auto mesh = MakeGroup();
  Stream wrong = Open("admin0");
  wrong.Say(Hello(0, "g"));
  EXPECT_THAT(wrong.connection->closed(),
              StatusIs(absl::StatusCode::kPermissionDenied, "admin0"));
  Stream right = Open("trainer0");
  right.Say(Hello(0, "g"));
  EXPECT_THAT(right.connection->closed(), IsOk());
  EXPECT_THAT(Await(*mesh), IsOk());
  EXPECT_THAT(mesh->health(), IsOk());
}

TEST_F(StreamsTest, StreamOfAnotherNameThatCameBeforeTheGroupIsEnded) {
  Stream wrong = Open("admin0");
  wrong.Say(Hello(0, "g"));
  Stream right = Open("trainer0");
  right.Say(Hello(0, "g"));
  const auto mesh = MakeGroup();
  EXPECT_THAT(wrong.connection->closed(),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(Await(*mesh), IsOk());
}

TEST_F(StreamsTest, WhatBreaksAGroupBeforeItIsMadeHereIsHeard) {
  Stream stream = Open("trainer0");
  stream.Say(Hello(0, "g"));
  Frame abort;
  abort.kind = Frame::kAbort;
  abort.code = static_cast<uint32_t>(absl::StatusCode::kCancelled);
  abort.text = "revoked";
  stream.Say(abort);
  Frame leave;
  leave.kind = Frame::kLeave;
  stream.Say(leave);
  EXPECT_THAT(stream.connection->closed(), IsOk());
  const auto mesh = MakeGroup();
  EXPECT_THAT(Await(*mesh), IsOk());
  EXPECT_THAT(mesh->health(),
              StatusIs(absl::StatusCode::kCancelled, "revoked"));
  EXPECT_TRUE(mesh->HasLeft(0));
}

}  // namespace
}  // namespace weft::collectives
