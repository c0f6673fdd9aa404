// FlightRecorder: the last 4096 things a rank did, always kept, for the minute
// before something went wrong.

#ifndef WEFT_TELEMETRY_FLIGHT_RECORDER_H_
#define WEFT_TELEMETRY_FLIGHT_RECORDER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "weft/base/clock.h"
#include "weft/telemetry/field.h"

namespace weft::telemetry {

struct FlightEntry {
  uint64_t number;  // counts all entries ever recorded, from 0
  Instant at;
  const char* what;
  std::string detail;
  int64_t a;
  int64_t b;
};

// Thread-safety: thread-safe and without locks. A reader never stops a writer.
// An entry is lost, and counted, only if its writer was overtaken by 4096
// others while it wrote.
class FlightRecorder {
 public:
  static constexpr size_t kCapacity = 4096;
  static constexpr size_t kDetailBytes = 48;

  // `clock` must outlive the recorder; null is SteadyClock(). One that is not
  // enabled records nothing.
  explicit FlightRecorder(const Clock* clock = nullptr, bool enabled = true);

  // `what` is a literal such as "rpc.call"; `detail` is cut at kDetailBytes;
  // what `a` and `b` mean is for `what` to say.
  template <size_t N>
  void Record(const char (&what)[N], absl::string_view detail = "",
              int64_t a = 0, int64_t b = 0) {
    if (!slots_.empty()) Put(what, detail, "", a, b);
  }
  // The detail is "<who> <name>". If that is too long, the end of `name` is
  // kept: of a::b::Function it says the most.
  template <size_t N>
  void RecordFor(const char (&what)[N], absl::string_view who,
                 absl::string_view name, int64_t a = 0, int64_t b = 0) {
    if (!slots_.empty()) Put(what, who, name, a, b);
  }

  // What is kept now, oldest first. Entries being written are left out.
  std::vector<FlightEntry> Entries() const;

  uint64_t recorded() const { return next_.load(std::memory_order_relaxed); }
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

  // One line for each entry, with the seconds since the newest of them.
  std::string DumpText() const;
  // How many, and the newest of them, newest first.
  Fields Describe() const;
  // {"recorded", "lost", "entries": [{number, age_s, what, detail, a, b}]}.
  std::string DumpJson() const;

 private:
  static constexpr size_t kWords = 5 + kDetailBytes / 8;

  // A seqlock: `version` is odd while it is written and 2 * (number + 1) once
  // entry `number` is in it.
  struct Slot {
    std::atomic<uint64_t> version{0};
    std::array<std::atomic<uint64_t>, kWords> words{};
  };

  void Put(const char* what, absl::string_view who, absl::string_view name,
           int64_t a, int64_t b);
  static bool Read(const Slot& slot, FlightEntry* entry);

  const Clock& clock_;
  std::vector<Slot> slots_;  // kCapacity or none
  std::atomic<uint64_t> next_{0};
  std::atomic<uint64_t> lost_{0};
};

}  // namespace weft::telemetry

#endif  // WEFT_TELEMETRY_FLIGHT_RECORDER_H_
