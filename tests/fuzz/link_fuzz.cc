// link: no messages harm the link that puts bodies together from their chunks,
// nor make it hold more than it was allowed; nor those about memory for them
// that two processes share. The first byte says whether there is some.

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "weft/base/clock.h"
#include "weft/memory/segment.h"
#include "weft/rpc/connection/link.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

constexpr int64_t kMaxBytes = 8192;

// A connection that says nothing. If it `shares`, it has memory for bodies, to
// which nobody else writes.
class Silent final : public transport::Connection {
 public:
  explicit Silent(bool shares) : shares_(shares) {}
  Written Write(Slices) override { return Written::kUnderWay; }
  void Close(absl::Status) override {}
  absl::StatusOr<transport::BodyMemory> UseBodyMemory() override {
    if (!shares_) return Connection::UseBodyMemory();
    constexpr size_t kBytes = transport::BodyMemory::kBytes;
    static const auto segment =
        std::make_shared<memory::Segment>(*memory::Segment::Create(2 * kBytes));
    return transport::BodyMemory{segment->data(), segment->data() + kBytes,
                                 segment};
  }

 private:
  const bool shares_;
};

// Bodies come whole, and none is larger than allowed.
class Owner final : public rpc::LinkOwner {
 public:
  absl::Status OnFrame(rpc::Link&, rpc::Frame&& frame) override {
    Hold(!std::holds_alternative<rpc::Chunk>(frame));
    if (const auto* request = std::get_if<rpc::RequestFrame>(&frame)) {
      Check(TotalSize(request->request->body), request->body_bytes);
    }
    if (const auto* reply = std::get_if<rpc::ReplyFrame>(&frame)) {
      Check(TotalSize(reply->reply->body), reply->body_bytes);
    }
    return absl::OkStatus();
  }
  // Wants all bodies but those of call 3.
  absl::StatusOr<bool> WantsBody(rpc::Link&, const rpc::Frame& frame) override {
    if (const auto* request = std::get_if<rpc::RequestFrame>(&frame)) {
      return request->request->id != 3;
    }
    if (const auto* chunk = std::get_if<rpc::Chunk>(&frame)) {
      return chunk->id != 3;
    }
    return true;
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

std::string ChunkOf(uint64_t id, const std::string& data) {
  rpc::BatchWriter batch;
  batch.Add(rpc::Chunk{id, {Bytes::Copy(data)}});
  return Message(std::move(batch));
}

std::string Consumed(uint64_t position) {
  rpc::BatchWriter batch;
  batch.Add(rpc::Consumed{position});
  return Message(std::move(batch));
}

std::string InMemory(uint64_t id, uint64_t bytes) {
  rpc::BatchWriter batch;
  batch.Add(rpc::Chunk{id, {}, bytes});
  return Message(std::move(batch));
}

std::vector<std::string> Seeds() {
  rpc::Reply reply;
  reply.id = 9;
  reply.body = {Bytes::Copy("reply")};
  rpc::BatchWriter replies;
  replies.Add(reply, /*body_follows=*/true);
  const std::string announced = Message(std::move(replies));
  std::vector<std::string> seeds;
  for (const char shares : {0, 1}) {
    for (const std::string& messages :
         {Announcement(1, 6) + ChunkOf(1, "abc") + ChunkOf(1, "def"),
          Announcement(1, 4) + Announcement(2, 3) + ChunkOf(2, "abc") +
              ChunkOf(1, "abcd"),
          announced + ChunkOf(9, "re") + ChunkOf(9, "ply"),
          Announcement(3, 4) + ChunkOf(3, "abcd") + Announcement(1, 1) +
              ChunkOf(1, "a"),
          Announcement(3, 9) + InMemory(3, 9) + Announcement(1, 9) +
              InMemory(1, 9),
          Announcement(1, 4096) + ChunkOf(1, std::string(100, 'x')),
          Announcement(1, 100) + InMemory(1, 60) + InMemory(1, 40),
          Announcement(1, 100) + InMemory(1, 100) + Consumed(0), Consumed(64),
          InMemory(1, 9)}) {
      seeds.push_back(shares + messages);
    }
  }
  return seeds;
}

std::vector<std::string> Words() {
  return {ChunkOf(1, "a"),    ChunkOf(2, ""), InMemory(1, 9),
          Announcement(3, 2), "\x40\x02",     "\xff\xff\xff\xff\x0f"};
}

void Run(absl::string_view input) {
  if (input.empty()) return;
  const auto link = std::make_shared<rpc::Link>(std::make_shared<Owner>(),
                                                SteadyClock(), kMaxBytes);
  link->Attach(std::make_shared<Silent>(input[0] % 2 != 0));
  link->Append(std::make_unique<rpc::Welcome>());
  link->Drain();
  link->OnWritten();
  for (const std::string& message : Split(input.substr(1))) {
    link->OnMessage({Bytes::Copy(message)});
  }
  link->OnClosed(absl::UnavailableError("the fuzzer closes the connection"));
}

WEFT_FUZZ_TARGET(link, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
