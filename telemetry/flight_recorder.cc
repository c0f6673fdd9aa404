#include "weft/telemetry/flight_recorder.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "weft/telemetry/field.h"
#include "weft/telemetry/field_json.h"

namespace weft::telemetry {
namespace {

constexpr size_t kDescribed = 32;

// Words of a slot before those of the detail.
enum : size_t { kNumber, kAt, kWhat, kA, kB, kDetail };

double AgeInSeconds(const FlightEntry& entry, Instant newest) {
  return absl::ToDoubleSeconds(newest - entry.at);
}

Instant Newest(const std::vector<FlightEntry>& entries) {
  Instant newest;
  for (const FlightEntry& entry : entries) newest = std::max(newest, entry.at);
  return newest;
}

}  // namespace

FlightRecorder::FlightRecorder(const Clock* clock, bool enabled)
    : clock_(clock != nullptr ? *clock : SteadyClock()),
      slots_(enabled ? kCapacity : 0) {}

void FlightRecorder::Put(const char* what, absl::string_view who,
                         absl::string_view name, int64_t a, int64_t b) {
  std::array<uint64_t, kWords> words{};
  const uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
  words[kNumber] = number;
  words[kAt] = static_cast<uint64_t>(clock_.Now().nanoseconds());
  words[kWhat] = reinterpret_cast<uintptr_t>(what);
  words[kA] = static_cast<uint64_t>(a);
  words[kB] = static_cast<uint64_t>(b);
  // Detail is ended by a zero byte or by its full length.
  char* detail = reinterpret_cast<char*>(&words[kDetail]);
  const size_t used = std::min(who.size(), kDetailBytes);
  std::copy_n(who.data(), used, detail);  // who may be null, if it is empty
  if (!name.empty() && used + 1 < kDetailBytes) {
    const size_t kept = std::min(name.size(), kDetailBytes - used - 1);
    detail[used] = ' ';
    std::memcpy(detail + used + 1, name.data() + name.size() - kept, kept);
  }

  Slot& slot = slots_[number % kCapacity];
  const uint64_t mine = 2 * (number + 1);
  uint64_t version = slot.version.load(std::memory_order_relaxed);
  const bool is_free = version % 2 == 0 && version < mine;
  if (!is_free || !slot.version.compare_exchange_strong(
                      version, mine - 1, std::memory_order_acquire)) {
    lost_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  // Each store is a release so that none is seen before the odd version. (A
  // fence would do, but ThreadSanitizer does not know fences.)
  for (size_t i = 0; i < kWords; ++i) {
    slot.words[i].store(words[i], std::memory_order_release);
  }
  slot.version.store(mine, std::memory_order_release);
}

bool FlightRecorder::Read(const Slot& slot, FlightEntry* entry) {
  const uint64_t before = slot.version.load(std::memory_order_acquire);
  if (before == 0 || before % 2 == 1) return false;
  std::array<uint64_t, kWords> words;
  for (size_t i = 0; i < kWords; ++i) {
    words[i] = slot.words[i].load(std::memory_order_acquire);
  }
  if (slot.version.load(std::memory_order_relaxed) != before) return false;
  entry->number = words[kNumber];
  entry->at = Instant::FromNanoseconds(static_cast<int64_t>(words[kAt]));
  entry->what = reinterpret_cast<const char*>(words[kWhat]);
  entry->a = static_cast<int64_t>(words[kA]);
  entry->b = static_cast<int64_t>(words[kB]);
  const char* detail = reinterpret_cast<const char*>(&words[kDetail]);
  entry->detail.assign(detail, strnlen(detail, kDetailBytes));
  return true;
}

std::vector<FlightEntry> FlightRecorder::Entries() const {
  std::vector<FlightEntry> entries;
  FlightEntry entry;
  for (const Slot& slot : slots_) {
    if (Read(slot, &entry)) entries.push_back(entry);
  }
  std::sort(entries.begin(), entries.end(),
            [](const FlightEntry& a, const FlightEntry& b) {
              return a.number < b.number;
            });
  return entries;
}

std::string FlightRecorder::DumpText() const {
  const std::vector<FlightEntry> entries = Entries();
  const Instant newest = Newest(entries);
  std::string text = absl::StrCat("flight recorder: ", entries.size(), " of ",
                                  recorded(), " entries, ", lost(), " lost\n");
  for (const FlightEntry& entry : entries) {
    absl::StrAppendFormat(&text, "%8d -%.6fs %s a=%d b=%d %s\n", entry.number,
                          AgeInSeconds(entry, newest), entry.what, entry.a,
                          entry.b, Printable(entry.detail));
  }
  return text;
}

Fields FlightRecorder::Describe() const {
  const std::vector<FlightEntry> entries = Entries();
  const Instant newest = Newest(entries);
  Fields fields;
  fields.emplace_back("recorded", static_cast<int64_t>(recorded()));
  const size_t shown = std::min(entries.size(), kDescribed);
  for (auto it = entries.rbegin(); it != entries.rbegin() + shown; ++it) {
    fields.emplace_back(
        absl::StrCat(it->number),
        absl::StrFormat("-%.6fs %s a=%d b=%d %s", AgeInSeconds(*it, newest),
                        it->what, it->a, it->b, it->detail));
  }
  return fields;
}

std::string FlightRecorder::DumpJson() const {
  const std::vector<FlightEntry> entries = Entries();
  const Instant newest = Newest(entries);
  nlohmann::ordered_json dump = {{"recorded", recorded()}, {"lost", lost()}};
  nlohmann::ordered_json& list = dump["entries"];
  list = nlohmann::ordered_json::array();
  for (const FlightEntry& entry : entries) {
    list.push_back({{"number", entry.number},
                    {"age_s", AgeInSeconds(entry, newest)},
                    {"what", entry.what},
                    {"detail", entry.detail},
                    {"a", entry.a},
                    {"b", entry.b}});
  }
  return DumpLine(dump);
}

}  // namespace weft::telemetry
