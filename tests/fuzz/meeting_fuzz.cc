// meeting: no bytes harm the reader of a rendezvous file, and what it takes is
// what its host says.

#include <xxhash.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "weft/rendezvous/discovery/rendezvous_file.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

std::string Framed(absl::string_view body) {
  const uint64_t hash = XXH64(body.data(), body.size(), 0);
  std::string bytes = "WEFTMEET";
  bytes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  return absl::StrCat(bytes, body);
}

std::vector<std::string> Seeds() {
  rendezvous::v1::Meeting meeting;
  meeting.set_job("job");
  meeting.set_address("unix:/run/ps0.sock");
  meeting.set_nonce(7);
  const std::string body = meeting.SerializeAsString();
  return {body, Framed(body)};
}

std::vector<std::string> Words() { return {"WEFTMEET", "\x0a\x03", "\x12"}; }

// Takes the input as a file, and as what a file with the right checksum holds.
void Run(absl::string_view input) {
  (void)rendezvous::ParseRendezvousFile(input);
  const auto taken = rendezvous::ParseRendezvousFile(Framed(input));
  if (!taken.ok()) return;
  const auto again =
      rendezvous::ParseRendezvousFile(Framed(taken->SerializeAsString()));
  Hold(again.ok() && again->job() == taken->job() &&
       again->address() == taken->address());
}

WEFT_FUZZ_TARGET(meeting, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
