// Member: one worker of the job, as all others see it.

#ifndef WEFT_RENDEZVOUS_MEMBER_H_
#define WEFT_RENDEZVOUS_MEMBER_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::rendezvous {

// How far a worker has come with ending; never goes back.
enum class Phase {
  kActive,
  kQuiescing,  // makes no new calls of its own; serves those of others
  kDrained,    // has none in progress that it began
};

struct Member {
  std::string name;  // ps0, trainer1
  WorkerKey key;     // given by the coordinator
  std::string role;  // ps, trainer, admin
  int rank = 0;      // within its role
  std::string address;
  // Drawn by the process when it starts; not 0.
  uint64_t incarnation = 0;
  std::map<std::string, std::string> labels;
  // Silent for a while, and perhaps alive.
  bool suspect = false;
  Phase phase = Phase::kActive;
};

// A fresh random number, not 0, for Member::incarnation.
uint64_t DrawIncarnation();

// The last incarnation of a name that is gone; all earlier ones are gone too.
struct Departed {
  std::string name;
  WorkerKey key;
  std::string reason;
  bool left = false;  // by its own wish
};

// 1 to 127 of [A-Za-z0-9_:-]. kInvalidArgument quotes the name and the rule.
absl::Status ValidateName(absl::string_view name);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_MEMBER_H_
