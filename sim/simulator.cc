#include "weft/sim/simulator.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/driver.h"

namespace weft::sim {

Simulator::EventId Simulator::Schedule(Instant at, Task event,
                                       std::string label) {
  const EventId id = next_id_++;
  const Key key(std::max(at, Now()), random_.Next(), id);
  events_.emplace(key, Event{std::move(event), std::move(label)});
  keys_.emplace(id, key);
  return id;
}

bool Simulator::Cancel(EventId id) {
  const auto found = keys_.find(id);
  if (found == keys_.end()) return false;
  events_.erase(found->second);
  keys_.erase(found);
  return true;
}

Instant Simulator::NextAt() const {
  return events_.empty() ? Instant::Infinite()
                         : std::get<Instant>(events_.begin()->first);
}

bool Simulator::Step() {
  if (events_.empty()) return false;
  auto node = events_.extract(events_.begin());
  keys_.erase(std::get<2>(node.key()));
  clock_.now_ = std::get<Instant>(node.key());
  Note(node.mapped().label);
  InlineScope scope;
  std::move(node.mapped().run)();
  return true;
}

int64_t Simulator::RunUntil(Instant deadline) {
  WEFT_CHECK(!deadline.is_infinite()) << "use RunUntilIdle";
  int64_t ran = 0;
  for (; NextAt() <= deadline; ++ran) Step();
  AdvanceTo(std::max(deadline, Now()));
  return ran;
}

int64_t Simulator::RunUntilIdle(int64_t max_events) {
  int64_t ran = 0;
  while (ran < max_events && Step()) ++ran;
  return ran;
}

void Simulator::AdvanceTo(Instant at) {
  WEFT_CHECK(at >= Now() && at <= NextAt() && !at.is_infinite());
  clock_.now_ = at;
}

void Simulator::Note(absl::string_view what) {
  std::string line = absl::StrCat(Now().nanoseconds(), " ", what);
  trace_hash_ =
      XXH3_64bits_withSeed(line.data(), line.size(), /*seed=*/trace_hash_);
  if (trace_.size() == kTraceLines) trace_.pop_front();
  trace_.push_back(std::move(line));
}

}  // namespace weft::sim
