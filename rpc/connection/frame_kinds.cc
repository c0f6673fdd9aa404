#include "weft/rpc/connection/frame_kinds.h"

#include <iterator>
#include <string>
#include <variant>

#include "weft/rpc/connection/wire.h"

namespace weft::rpc {
namespace {

// The name of the frame in rpc.proto's Batch.
const char* KindOf(const Frame& frame) {
  static constexpr const char* kNames[] = {"hello",  "welcome", "request",
                                           "reply",  "ack",     "cancel",
                                           "closed", "chunk",   "memory"};
  static_assert(std::variant_size_v<Frame> == std::size(kNames));
  return kNames[frame.index()];
}

}  // namespace

std::vector<sim::FaultPlan::Message> FramesOf(const Slices& message) {
  std::vector<sim::FaultPlan::Message> frames;
  ReadBatch(message, Instant(), [&](Frame&& frame) {
    const auto* request = std::get_if<RequestFrame>(&frame);
    frames.push_back(
        {KindOf(frame),
         request == nullptr ? "" : std::string(request->request->function)});
    return absl::OkStatus();
  }).IgnoreError();
  return frames;
}

}  // namespace weft::rpc
