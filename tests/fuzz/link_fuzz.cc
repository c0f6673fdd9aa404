// link: no messages harm the link that puts bodies together from their pieces,
// nor make it hold more than it was allowed.

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "weft/base/clock.h"
#include "weft/rpc/link.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

constexpr int64_t kMaxBytes = 4096;

class Silent final : public rpc::Connection {
 public:
  Written Write(Slices) override { return Written::kUnderWay; }
  void Close(absl::Status) override {}
};

// Bodies come whole, and none is larger than allowed.
class Owner final : public rpc::LinkOwner {
 public:
  absl::Status OnFrame(rpc::Link&, rpc::Frame&& frame) override {
    Hold(!std::holds_alternative<rpc::Piece>(frame));
    if (const auto* request = std::get_if<rpc::RequestFrame>(&frame)) {
      Check(TotalSize(request->request->body), request->body_bytes);
    }
    if (const auto* reply = std::get_if<rpc::ReplyFrame>(&frame)) {
      Check(TotalSize(reply->reply->body), reply->body_bytes);
    }
    return absl::OkStatus();
  }
  void OnLinkClosed(rpc::Link&, absl::Status) override {}

 private:
  static void Check(size_t size, uint64_t announced) {
    Hold(announced == 0 || size == announced);
    Hold(announced <= static_cast<uint64_t>(kMaxBytes));
  }
};

// Messages, each after its length in a byte.
std::vector<std::string> Split(absl::string_view input) {
  std::vector<std::string> messages;
  while (!input.empty()) {
    const auto size = static_cast<uint8_t>(input[0]);
    messages.emplace_back(input.substr(1, size));
    input.remove_prefix(std::min(input.size(), size_t{1} + size));
  }
  return messages;
}

std::string Message(rpc::BatchWriter&& batch) {
  const std::string bytes(Flatten(std::move(batch).Finish()).view());
  return std::string(1, static_cast<char>(bytes.size())) + bytes;
}

std::string Announcement(uint64_t id, size_t bytes) {
  rpc::Request request;
  request.id = id;
  request.function = "f";
  request.deadline = Instant() + absl::Seconds(1);
  request.body = {Bytes::Own(std::string(bytes, 'b'))};
  rpc::BatchWriter batch;
  batch.Add(request, Instant(), /*body_follows=*/true);
  return Message(std::move(batch));
}

std::string PieceOf(uint64_t id, const std::string& data) {
  rpc::BatchWriter batch;
  batch.Add(rpc::Piece{id, {Bytes::Copy(data)}});
  return Message(std::move(batch));
}

std::string Ring(rpc::RingMessage::Kind kind, uint64_t bytes,
                 uint64_t position) {
  rpc::BatchWriter batch;
  batch.Add(rpc::RingMessage{kind, 9, bytes, position});
  return Message(std::move(batch));
}

std::vector<std::string> Seeds() {
  using Kind = rpc::RingMessage::Kind;
  rpc::Reply reply;
  reply.id = 9;
  reply.body = {Bytes::Copy("reply")};
  rpc::BatchWriter replies;
  replies.Add(reply, /*body_follows=*/true);
  const std::string announced = Message(std::move(replies));
  return {Announcement(1, 6) + PieceOf(1, "abc") + PieceOf(1, "def"),
          Announcement(1, 4) + Announcement(2, 3) + PieceOf(2, "abc") +
              PieceOf(1, "abcd"),
          announced + PieceOf(9, "re") + PieceOf(9, "ply"),
          Announcement(1, 4096) + PieceOf(1, std::string(100, 'x')),
          Ring(Kind::kWanted, 0, 0) + Ring(Kind::kAccepted, 0, 0),
          Ring(Kind::kOffered, 65536, 0) + Ring(Kind::kConsumed, 0, 64) +
              Ring(Kind::kRefused, 0, 0)};
}

std::vector<std::string> Words() {
  return {PieceOf(1, "a"), PieceOf(2, ""), Announcement(3, 2), "\x40\x02",
          "\xff\xff\xff\xff\x0f"};
}

void Run(absl::string_view input) {
  const auto link = std::make_shared<rpc::Link>(std::make_shared<Owner>(),
                                                SteadyClock(), kMaxBytes);
  link->Attach(std::make_shared<Silent>());
  for (const std::string& message : Split(input)) {
    link->OnMessage({Bytes::Copy(message)});
  }
  link->OnClosed(absl::UnavailableError("the fuzzer hangs up"));
}

WEFT_FUZZ_TARGET(link, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
