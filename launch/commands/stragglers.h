// Stragglers: for whom the ranks of a group waited in its operations, and how
// long, as each rank's own clock has it: no two clocks are compared.
//
// Whoever comes to an operation last is in it for the shortest time; who is in
// it for longer has waited for it. While several are missing each of them has
// an equal part of that. Only operations in which each rank waits for all.

#ifndef WEFT_LAUNCH_COMMANDS_STRAGGLERS_H_
#define WEFT_LAUNCH_COMMANDS_STRAGGLERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace weft::launch {

// An operation that a worker has finished.
struct TimedCall {
  std::string verb;  // "AllReduce"
  int64_t fingerprint = 0;
  double seconds = 0;  // that it was in it
};

// By worker, then by the number of the operation in the group.
using TimedCalls = std::map<std::string, std::map<int64_t, TimedCall>>;

struct Waiting {
  // Seconds that others waited for a worker, all of them together.
  std::map<std::string, double> for_worker;
  int64_t operations = 0;
  int64_t newest = 0;  // number

  double seconds() const;
};

// Of operations that all workers have finished, by verb and fingerprint; empty
// of fewer than two workers.
std::map<std::pair<std::string, int64_t>, Waiting> WaitingIn(
    const TimedCalls& calls);

// The same for people, in lines that end with "\n": the whole, then the
// operations of which the most was lost. Empty: nobody has waited for a
// millisecond.
std::string StragglerText(const TimedCalls& calls);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_COMMANDS_STRAGGLERS_H_
