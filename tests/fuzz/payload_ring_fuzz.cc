// payload_ring: whatever a peer says of the memory that bodies pass through,
// chunks that are written lie in it and not on what was not yet read, and
// chunks that are read lie in it.
//
// The input is steps: a byte says what happens, two more how much.

#include <utility>

#include "weft/tests/fuzz/fuzz_target.h"
#include "weft/transport/shm/payload_ring.h"

namespace weft::testing {
namespace {

constexpr uint64_t kCapacity = 4096;

enum Step : char { kReserve, kRelease, kReleaseFar, kTake, kConsume, kSteps };

std::vector<std::string> Seeds() {
  const auto step = [](Step step, unsigned how) {
    return std::string{step, static_cast<char>(how & 255),
                       static_cast<char>(how >> 8)};
  };
  return {
      step(kReserve, 100) + step(kReserve, 3000) + step(kRelease, 128) +
          step(kReserve, 2000),
      step(kReserve, 64) + step(kRelease, 1) + step(kReleaseFar, 9),
      step(kTake, 1000) + step(kConsume, 0) + step(kTake, 3000) +
          step(kTake, 100) + step(kConsume, 0),
      step(kTake, 4096) + step(kTake, 4097) + step(kTake, 0),
  };
}

class Run {
 public:
  void One(Step step, uint64_t how) {
    switch (step) {
      case kReserve:
        return Reserve(how);
      case kRelease:
        return Release(released_ + how);
      case kReleaseFar:
        return Release(~uint64_t{0} - how);
      case kTake:
        return Take(how);
      default:
        reader_.Consume();
        if (reader_.MustReport()) Hold(reader_.MayReport());
        if (reader_.MayReport()) Hold(reader_.Report() % 64 == 0);
        return Hold(!reader_.MayReport());
    }
  }

 private:
  void Reserve(uint64_t bytes) {
    if (bytes == 0) return;
    const auto place = writer_.Reserve(bytes);
    if (!place.has_value()) return Hold(writer_.unread_bytes() > 0);
    Hold(place->size > 0 && place->size <= bytes);
    Hold(place->offset == written_ % kCapacity);
    Hold(place->offset + place->size <= kCapacity);
    written_ += (place->size + 63) / 64 * 64;
    Hold(written_ - released_ <= kCapacity);
    Hold(writer_.unread_bytes() == written_ - released_);
  }

  void Release(uint64_t position) {
    const bool can_be =
        position >= released_ && position <= written_ && position % 64 == 0;
    Hold(writer_.Release(position).ok() == can_be);
    if (can_be) released_ = position;
  }

  void Take(uint64_t size) {
    const auto offset = reader_.Take(size);
    if (offset.ok()) Hold(size > 0 && *offset + size <= kCapacity);
  }

  transport::PayloadWriter writer_{kCapacity};
  transport::PayloadReader reader_{kCapacity};
  uint64_t written_ = 0;
  uint64_t released_ = 0;
};

void RunPayloadRing(absl::string_view input) {
  Run run;
  for (; input.size() >= 3; input.remove_prefix(3)) {
    run.One(static_cast<Step>(static_cast<uint8_t>(input[0]) % kSteps),
            static_cast<uint8_t>(input[1]) |
                uint64_t{static_cast<uint8_t>(input[2])} << 8);
  }
}

WEFT_FUZZ_TARGET(payload_ring, Seeds, NoWords, RunPayloadRing);

}  // namespace
}  // namespace weft::testing
