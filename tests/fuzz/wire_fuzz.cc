// wire: no message harms the reader of batches, whichever end sent it; each
// frame that is accepted is written and read again.

#include <type_traits>
#include <utility>
#include <variant>

#include "weft/base/clock.h"
#include "weft/rpc/connection/wire.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using rpc::BatchWriter;
using rpc::Frame;

std::string Whole(BatchWriter&& batch) {
  return std::string(Flatten(std::move(batch).Finish()).view());
}

rpc::Hello SomeHello() {
  rpc::Hello hello;
  hello.job = "job";
  hello.build = "weft 0.1";
  hello.name = "trainer0";
  hello.from = {1, 77};
  hello.to = {0, 76};
  hello.registry = 0x1234567890abcdef;
  hello.generation = 2;
  hello.resumes = true;
  return hello;
}

rpc::Welcome SomeWelcome() {
  rpc::Welcome welcome;
  welcome.status = absl::UnavailableError("forgotten");
  welcome.forgotten = true;
  welcome.replaced = true;
  welcome.build = "weft 0.1";
  return welcome;
}

rpc::Request SomeRequest(size_t body_bytes) {
  rpc::Request request;
  request.id = 3;
  request.function = "ps::Push";
  request.signature = 0xfeedbeef;
  request.deadline = Instant() + absl::Seconds(5);
  request.depth = 2;
  request.chain = "trainer0 > ps0:Push";
  request.attachments = {{"weft.rref", Bytes::Copy("token")}};
  request.body = {Bytes::Own(std::string(body_bytes, 'b'))};
  return request;
}

rpc::Reply SomeReply(size_t body_bytes) {
  rpc::Reply reply;
  reply.id = 3;
  reply.body = {Bytes::Own(std::string(body_bytes, 'r'))};
  return reply;
}

rpc::Reply SomeError() {
  rpc::Reply reply;
  reply.id = 4;
  reply.status = absl::DataLossError("lost");
  reply.status.SetPayload("weft/detail", absl::Cord("bytes"));
  reply.refusal = rpc::Refusal::kOverLimit;
  return reply;
}

// Messages of callers and of callees, one kind at a time and then together.
std::vector<std::string> Batches() {
  std::vector<BatchWriter> batches(6);
  batches[0].Add(SomeHello());
  batches[1].Add(SomeWelcome());
  batches[2].Add(SomeRequest(5), Instant(), /*body_follows=*/false);
  batches[2].Add(rpc::Ack{{{1, 2}, {5, 9}}, {{11, 12}}});
  batches[2].Add(rpc::Cancel{{{13, 14}}});
  batches[3].Add(SomeReply(5), /*body_follows=*/false);
  batches[3].Add(SomeError(), /*body_follows=*/false);
  batches[3].Add(rpc::Closed{{{1, 2}}, {{5, 9}}});
  batches[4].Add(SomeRequest(6), Instant(), /*body_follows=*/true);
  batches[4].Add(SomeReply(6), /*body_follows=*/true);
  batches[4].Add(rpc::Chunk{3, {Bytes::Copy("abc")}});
  batches[4].Add(rpc::Chunk{3, {Bytes::Copy("def")}});
  batches[5].Add(rpc::Consumed{65536});
  batches[5].Add(rpc::Chunk{3, {}, 64});
  std::vector<std::string> seeds;
  for (BatchWriter& batch : batches) seeds.push_back(Whole(std::move(batch)));
  return seeds;
}

std::vector<std::string> Words() {
  using std::string_literals::operator""s;
  return {"\x40\x06",
          "\x40\x80\x80\x80\x80\x80\x80\x80\x80\x7f",
          "\x08\x03",
          "\x32\x05\x08\x03\x7a\x01x",
          "\xff\xff\xff\xff\x0f",
          "\x22\x04\x08\x03\x40\x02",
          "\x2a\x00"s};
}

void Rewrite(const Frame& frame, BatchWriter* batch) {
  if (const auto* request = std::get_if<rpc::RequestFrame>(&frame)) {
    return batch->Add(*request->request, Instant(), /*body_follows=*/false);
  }
  if (const auto* reply = std::get_if<rpc::ReplyFrame>(&frame)) {
    return batch->Add(*reply->reply, /*body_follows=*/false);
  }
  std::visit(
      [batch](const auto& other) {
        using Kind = std::decay_t<decltype(other)>;
        if constexpr (!std::is_same_v<Kind, rpc::RequestFrame> &&
                      !std::is_same_v<Kind, rpc::ReplyFrame>) {
          batch->Add(other);
        }
      },
      frame);
}

// The first byte says where the message is cut into two slices.
void RunWire(absl::string_view input) {
  if (input.empty()) return;
  const absl::string_view message = input.substr(1);
  const size_t cut = static_cast<uint8_t>(input[0]) % (message.size() + 1);
  BatchWriter again;
  int frames = 0;
  (void)rpc::ReadBatch(
      {Bytes::Copy(message.substr(0, cut)), Bytes::Copy(message.substr(cut))},
      Instant(), [&](const Frame& frame) {
        ++frames;
        Rewrite(frame, &again);
        return absl::OkStatus();
      });
  int read = 0;
  const absl::Status status =
      rpc::ReadBatch(std::move(again).Finish(), Instant(), [&](const Frame&) {
        ++read;
        return absl::OkStatus();
      });
  Hold(status.ok() && read == frames);
}

std::vector<std::string> WireSeeds() {
  std::vector<std::string> seeds = Batches();
  for (std::string& seed : seeds) seed.insert(0, 1, '\x03');
  return seeds;
}

WEFT_FUZZ_TARGET(wire, WireSeeds, Words, RunWire);

}  // namespace
}  // namespace weft::testing
