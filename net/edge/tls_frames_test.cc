// Test that floods of HTTP/2 frames over TLS are cut and named, and that what
// honest peers send is not.

#include "weft/net/edge/tls_frames.h"

#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <atomic>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/edge/raw_peer.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::net {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;

constexpr size_t kMiB = 1 << 20;

class TlsFramesTest : public ::testing::Test {
 protected:
  TlsFramesTest() {
    telemetry::Telemetry::Options options;
    options.log_output = &log_;
    telemetry_ = std::make_unique<telemetry::Telemetry>(options);
    LoopOptions loop = With(job_.For("ps", 0));
    loop.telemetry = telemetry_.get();
    AdmissionLimits limits;
    limits.max_bytes = limits.max_bytes_per_peer = 1024 * kMiB;
    server_ = Node::Make("ps0", "127.0.0.1:0", std::move(loop), limits);
    member_ = *Loop::Create(With(job_.For("trainer", 0)));
    channel_ = Connect(*member_, server_->address());
  }
  ~TlsFramesTest() override {
    channel_ = nullptr;
    member_ = nullptr;
  }

  absl::StatusOr<Slices> Call(Slices request) {
    return channel_->UnaryCall(kEcho, std::move(request), kSoon).Wait(kSoon);
  }
  // A peer with the certificate of trainer9, from an address of its own.
  std::unique_ptr<RawPeer> LetIn() {
    const Credentials credentials = job_.For("trainer", 9);
    RawPeer::Hello hello;
    hello.certificate = credentials.certificate();
    hello.key = credentials.key();
    auto peer = std::make_unique<RawPeer>(server_->address(), "127.0.0.2");
    EXPECT_TRUE(peer->ShakeHands(hello));
    EXPECT_TRUE(peer->Write(Preface()));
    EXPECT_TRUE(peer->AwaitFrame(kSettingsFrame));
    return peer;
  }
  double Count(const std::string& name, telemetry::Metrics::Labels labels) {
    return telemetry_->metrics().CounterFor(name, std::move(labels)).Value();
  }
  double Cut() {
    return Count("weft_net_refused_total", {{"kind", "http2_frames"}});
  }
  std::string Log() {
    server_ = nullptr;
    return log_.str();
  }

  std::ostringstream log_;
  std::unique_ptr<telemetry::Telemetry> telemetry_;
  Job job_;
  std::unique_ptr<Node> server_;
  std::unique_ptr<Loop> member_;
  std::unique_ptr<Channel> channel_;
};

TEST_F(TlsFramesTest, FloodEndsTheConnectionAndIsNamedByCertificateAndAddress) {
  WEFT_EXPECT_OK(Call(Text("x")).status());
  auto peer = LetIn();
  const std::string settings = Frame(kSettingsFrame, 0, 0, "");
  bool open = true;
  for (int i = 0; open && i < 1'000'000; ++i) {
    open = peer->Write(settings);
    peer->Discard();
  }
  EXPECT_FALSE(open);
  EXPECT_TRUE(Becomes([&] {
    return Count("weft_net_floods_total",
                 {{"peer", "trainer9 at 127.0.0.2"}}) == 1;
  }));
  EXPECT_EQ(Cut(), 1);
  WEFT_EXPECT_OK(Call(Text("x")).status());  // by the connection that it had
  EXPECT_THAT(Log(), AllOf(HasSubstr("refused kind=http2_frames "
                                     "who=\"trainer9 (127.0.0.2:"),
                           HasSubstr("of type SETTINGS")));
}

TEST_F(TlsFramesTest, HeaderWithoutEndEndsTheConnectionAtItsLimit) {
  auto peer = LetIn();
  const std::string part(16'384, 'x');
  // A literal whose value has 2^27 bytes.
  const std::string endless("\0\1x\x7f\x81\xff\xff\x3f", 8);
  int64_t sent = 0;
  for (bool open = peer->Write(Frame(kHeadersFrame, 0, 1, endless));
       open && sent < 1 << 30; sent += part.size())
    open = peer->Write(Frame(kContinuationFrame, 0, 1, part));
  EXPECT_LT(sent, 1 << 30);
  EXPECT_TRUE(Becomes([&] { return Cut() == 1; }));
  EXPECT_THAT(Log(), HasSubstr("at most 65536 are read"));
}

TEST_F(TlsFramesTest, FloodBelowGrpcsOwnLimitsIsCutBeforeACallToo) {
  auto peer = LetIn();
  bool open = true;
  for (int i = 0; open && i < 1'000'000; ++i)
    open = peer->Write(Frame(0x77, 0, 0, ""));
  EXPECT_FALSE(open);
  EXPECT_TRUE(Becomes([&] { return Cut() == 1; }));
}

TEST_F(TlsFramesTest, LargeMessagesAndManySmallOnesAreNotCut) {
  const std::string large(64 * kMiB, 'x');
  const auto reply = Call(Text(large));
  WEFT_ASSERT_OK(reply.status());
  EXPECT_EQ(TotalSize(*reply), large.size());
  for (int i = 0; i < 3'000; ++i) WEFT_ASSERT_OK(Call(Text("x")).status());
  // As many at a time as the connection takes.
  std::vector<Future<Slices>> calls;
  for (int i = 0; i < 5'000; ++i)
    calls.push_back(channel_->UnaryCall(kEcho, {}, kSoon));
  for (const auto& call : calls) WEFT_ASSERT_OK(call.Wait(kSoon).status());
  EXPECT_EQ(Cut(), 0);
}

TEST_F(TlsFramesTest, StreamOfSmallMessagesIsNotCut) {
  constexpr size_t kMessages = 5'000;
  auto recorder = std::make_shared<Recorder>();
  auto stream = channel_->OpenStream(kPump, recorder);
  for (size_t i = 1; i <= kMessages; ++i) {
    ASSERT_TRUE(stream->Write(Text("")));
    ASSERT_TRUE(recorder->AwaitWritten(static_cast<int>(i)));
  }
  EXPECT_EQ(recorder->AwaitMessages(kMessages).size(), kMessages);
  EXPECT_EQ(Cut(), 0);
  stream->Close(absl::CancelledError("done"));
  EXPECT_TRUE(absl::IsCancelled(recorder->closed().Wait(kSoon)));
}

// It sends nothing but what HTTP/2 has it send for the data that it reads.
TEST_F(TlsFramesTest, ReaderOfALongStreamIsNotCut) {
  constexpr size_t kMessages = 1'500;  // of 64 KiB
  class Reader final : public StreamObserver {
   public:
    void OnMessage(Slices) override { ++read; }
    void OnWritten() override {}
    void OnClosed(absl::Status) override { closed = true; }
    std::atomic<size_t> read{0};
    std::atomic<bool> closed{false};
  };
  auto reader = std::make_shared<Reader>();
  auto stream = channel_->OpenStream(kFlood, reader);
  EXPECT_TRUE(
      Becomes([&] { return reader->read >= kMessages || reader->closed; }));
  EXPECT_GE(reader->read, kMessages);
  EXPECT_EQ(Cut(), 0);
  stream->Close(absl::CancelledError("done"));
  EXPECT_TRUE(Becomes([&] { return reader->closed.load(); }));
}

// SSL_set_bio here is not libssl's: who owns what must be the same, or this
// frees twice or leaks (see it under asan).
TEST(SetBio, TakesTheReferencesThatOpenSslTakes) {
  SSL_CTX* const context = SSL_CTX_new(TLS_method());
  const auto bio = [] { return BIO_new(BIO_s_mem()); };
  const auto with = [&](auto set) {
    SSL* const ssl = SSL_new(context);
    set(ssl);
    SSL_free(ssl);
  };
  with([&](SSL* ssl) {  // one for both, twice
    BIO* const both = bio();
    SSL_set_bio(ssl, both, both);
    SSL_set_bio(ssl, both, both);
    EXPECT_EQ(SSL_get_rbio(ssl), both);
    EXPECT_EQ(SSL_get_wbio(ssl), both);
  });
  with([&](SSL* ssl) {  // two, of which each is replaced
    BIO* const in = bio();
    BIO* const out = bio();
    SSL_set_bio(ssl, in, out);
    BIO* const other_out = bio();
    SSL_set_bio(ssl, in, other_out);
    BIO* const other_in = bio();
    SSL_set_bio(ssl, other_in, other_out);
    EXPECT_EQ(SSL_get_rbio(ssl), other_in);
    EXPECT_EQ(SSL_get_wbio(ssl), other_out);
  });
  with([&](SSL* ssl) {  // one for both, and then two
    BIO* const both = bio();
    SSL_set_bio(ssl, both, both);
    SSL_set_bio(ssl, bio(), bio());
    EXPECT_NE(SSL_get_rbio(ssl), SSL_get_wbio(ssl));
  });
  with([&](SSL* ssl) {
    SSL_set_bio(ssl, nullptr, bio());
    EXPECT_EQ(SSL_get_rbio(ssl), nullptr);
  });
  SSL_CTX_free(context);
}

}  // namespace
}  // namespace weft::net
