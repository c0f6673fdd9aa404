#include "weft/rendezvous/core/roll_call_core.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/member.h"

namespace weft::rendezvous {
namespace {

constexpr char kFirstLine[] = "weft roll call 1";
// So many of the last closed rolls are kept. A worker that was on one and looks
// again only after as many others does not find its roll, and comes anew.
constexpr size_t kMostClosed = 8;
constexpr size_t kShown = 32;
constexpr int64_t kNever = -1;

void Append(absl::string_view kind, const std::vector<RollEntry>& entries,
            std::string* text) {
  for (const RollEntry& entry : entries) {
    absl::StrAppend(text, kind, " ", entry.name, " ", entry.role, " ",
                    entry.rank, " ", entry.key.id, " ", entry.key.epoch, " ",
                    entry.ticket, "\n");
  }
}

bool ReadEntry(const std::vector<absl::string_view>& words, RollEntry* entry) {
  if (words.size() != 7) return false;
  entry->name = std::string(words[1]);
  entry->role = std::string(words[2]);
  return ValidateName(entry->name).ok() && ValidateName(entry->role).ok() &&
         absl::SimpleAtoi(words[3], &entry->rank) &&
         absl::SimpleAtoi(words[4], &entry->key.id) &&
         absl::SimpleAtoi(words[5], &entry->key.epoch) &&
         absl::SimpleAtoi(words[6], &entry->ticket);
}

// "t MIN MAX LAST_CALL_MS SELECTOR"
bool ReadTerms(absl::string_view line, RollTerms* terms) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::MaxSplits(' ', 4));
  int64_t last_call = 0;
  if (words.size() != 5 || words[0] != "t" ||
      !absl::SimpleAtoi(words[1], &terms->min) ||
      !absl::SimpleAtoi(words[2], &terms->max) ||
      !absl::SimpleAtoi(words[3], &last_call)) {
    return false;
  }
  terms->last_call = last_call == kNever ? absl::InfiniteDuration()
                                         : absl::Milliseconds(last_call);
  terms->selector = std::string(words[4]);
  return terms->Validate().ok();
}

bool ReadRoll(const std::vector<absl::string_view>& words, Roll* roll) {
  return words.size() == 3 && absl::SimpleAtoi(words[1], &roll->round) &&
         absl::SimpleAtoi(words[2], &roll->epoch);
}

std::string ListOf(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kShown);
  std::string text = absl::StrJoin(names.begin(), names.begin() + shown, ", ");
  if (shown < names.size()) {
    absl::StrAppend(&text, " and ", names.size() - shown, " more");
  }
  return text;
}

bool IsOfTheLiving(const Roll& roll, const View& view) {
  return std::none_of(
      roll.entries.begin(), roll.entries.end(),
      [&](const RollEntry& entry) { return view.IsGone(entry.key); });
}

std::set<WorkerKey> KeysOf(const std::vector<RollEntry>& entries) {
  std::set<WorkerKey> keys;
  for (const RollEntry& entry : entries) keys.insert(entry.key);
  return keys;
}

}  // namespace

// --- The terms. --------------------------------------------------------------

absl::Status RollTerms::Validate() const {
  WEFT_RETURN_IF_ERROR(ParseSelector(selector).status());
  if (selector.find_first_of("\r\n") != std::string::npos) {
    return absl::InvalidArgumentError("a selector is of one line");
  }
  if (min < 1 || max < min || max > kMostOnARoll) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted 1 <= min <= max <= ", kMostOnARoll, ", found min ",
                     min, " and max ", max));
  }
  if (last_call < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted a last call after a time of zero or more, found ",
                     absl::FormatDuration(last_call)));
  }
  return absl::OkStatus();
}

std::string RollTerms::ToString() const {
  return absl::StrCat(selector.empty() ? "all" : selector, ", ", min, " to ",
                      max,
                      last_call == absl::InfiniteDuration()
                          ? ""
                          : absl::StrCat(", last call after ",
                                         absl::FormatDuration(last_call)));
}

bool operator==(const RollTerms& a, const RollTerms& b) {
  return a.selector == b.selector && a.min == b.min && a.max == b.max &&
         absl::ToInt64Milliseconds(a.last_call) ==
             absl::ToInt64Milliseconds(b.last_call);
}

bool InRollOrder(const RollEntry& a, const RollEntry& b) {
  return std::tie(a.role, a.rank, a.name) < std::tie(b.role, b.rank, b.name);
}

// --- The value. --------------------------------------------------------------

std::string RollCallState::Encode() const {
  const int64_t last_call = terms.last_call == absl::InfiniteDuration()
                                ? kNever
                                : absl::ToInt64Milliseconds(terms.last_call);
  std::string text =
      absl::StrCat(kFirstLine, "\nround ", round, "\nt ", terms.min, " ",
                   terms.max, " ", last_call, " ", terms.selector, "\n");
  Append("p", present, &text);
  for (const Roll& roll : closed) {
    absl::StrAppend(&text, "c ", roll.round, " ", roll.epoch, "\n");
    Append("m", roll.entries, &text);
  }
  return text;
}

absl::StatusOr<RollCallState> RollCallState::Decode(absl::string_view text) {
  RollCallState state;
  if (text.empty()) return state;
  const auto bad = [](absl::string_view line) {
    return absl::InvalidArgumentError(
        absl::StrCat("no value of a roll call: \"", line.substr(0, 100), "\""));
  };
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.size() < 4 || lines[0] != kFirstLine || !lines.back().empty()) {
    return bad(lines[0]);
  }
  if (!absl::StartsWith(lines[1], "round ") ||
      !absl::SimpleAtoi(lines[1].substr(6), &state.round)) {
    return bad(lines[1]);
  }
  if (!ReadTerms(lines[2], &state.terms)) return bad(lines[2]);
  for (size_t i = 3; i + 1 < lines.size(); ++i) {
    const std::vector<absl::string_view> words = absl::StrSplit(lines[i], ' ');
    RollEntry entry;
    Roll roll;
    if (words[0] == "c" && ReadRoll(words, &roll)) {
      state.closed.push_back(std::move(roll));
    } else if (words[0] == "p" && state.closed.empty() &&
               ReadEntry(words, &entry)) {
      state.present.push_back(std::move(entry));
    } else if (words[0] == "m" && !state.closed.empty() &&
               ReadEntry(words, &entry)) {
      state.closed.back().entries.push_back(std::move(entry));
    } else {
      return bad(lines[i]);
    }
  }
  return state;
}

// --- One worker's part. ------------------------------------------------------

RollCallCore::RollCallCore(std::string name, RollEntry self, RollTerms terms)
    : name_(std::move(name)),
      self_(std::move(self)),
      terms_(std::move(terms)) {}

const Roll* RollCallCore::FindOwn() const {
  for (const Roll& roll : state_.closed) {
    for (const RollEntry& entry : roll.entries) {
      if (entry == self_) return &roll;
    }
  }
  return nullptr;
}

std::vector<const Member*> RollCallCore::Missing(
    const View& view, const RollCallState& state) const {
  const std::set<WorkerKey> present = KeysOf(state.present);
  auto found = view.Select(terms_.selector);
  if (!found.ok()) return {};
  std::vector<const Member*> missing;
  for (const Member* member : *found) {
    if (member->role != kAdminRole && present.count(member->key) == 0) {
      missing.push_back(member);
    }
  }
  return missing;
}

bool RollCallCore::IsToClose(const View& view, Instant now) {
  const int count = static_cast<int>(state_.present.size());
  if (count < terms_.min) {
    enough_since_.reset();
    return false;
  }
  if (!enough_since_.has_value() || enough_in_ != state_.round) {
    enough_in_ = state_.round;
    enough_since_ = now;
  }
  if (now - *enough_since_ >= terms_.last_call) return true;
  return !LacksFormer(view) &&
         (count >= terms_.max || Missing(view, state_).empty());
}

// Also of one that this view, which may be an old one, does not know yet.
bool RollCallCore::LacksFormer(const View& view) const {
  if (state_.closed.empty()) return false;
  const std::set<WorkerKey> present = KeysOf(state_.present);
  const std::vector<RollEntry>& former = state_.closed.back().entries;
  return std::any_of(former.begin(), former.end(), [&](const RollEntry& entry) {
    return present.count(entry.key) == 0 && !view.IsGone(entry.key);
  });
}

void RollCallCore::Close(Epoch epoch) {
  Roll roll;
  roll.round = state_.round++;
  roll.epoch = epoch;
  std::vector<RollEntry>& present = state_.present;
  std::sort(present.begin(), present.end(), InRollOrder);
  // Those of the newest roll keep their places before newcomers.
  const std::set<WorkerKey> former = state_.closed.empty()
                                         ? std::set<WorkerKey>()
                                         : KeysOf(state_.closed.back().entries);
  std::stable_partition(
      present.begin(), present.end(),
      [&](const RollEntry& entry) { return former.count(entry.key) > 0; });
  const auto end =
      present.begin() + std::min<size_t>(present.size(), terms_.max);
  roll.entries.assign(present.begin(), end);
  present.erase(present.begin(), end);
  std::sort(roll.entries.begin(), roll.entries.end(), InRollOrder);
  state_.closed.push_back(std::move(roll));
  if (state_.closed.size() > kMostClosed) {
    state_.closed.erase(state_.closed.begin());
  }
}

RollCallCore::Step RollCallCore::OnRead(absl::string_view value,
                                        const View& view, Instant now) {
  absl::StatusOr<RollCallState> state = RollCallState::Decode(value);
  if (!state.ok()) {
    return absl::InternalError(
        absl::StrCat("roll call ", name_, ": ", state.status().message()));
  }
  state_ = *std::move(state);
  if (const Roll* const own = FindOwn(); own != nullptr) {
    if (IsOfTheLiving(*own, view)) return *own;
    ComeAnew();
  }
  std::vector<RollEntry>& present = state_.present;
  const size_t came = present.size();
  present.erase(std::remove_if(present.begin(), present.end(),
                               [&](const RollEntry& entry) {
                                 const bool is_own = entry.name == self_.name;
                                 return is_own ? !(entry == self_)
                                               : view.IsGone(entry.key);
                               }),
                present.end());
  bool is_changed = present.size() != came;
  if (std::find(present.begin(), present.end(), self_) == present.end()) {
    if (!present.empty() && state_.terms != terms_) {
      return absl::FailedPreconditionError(
          absl::StrCat("roll call ", name_, ": wanted (", terms_.ToString(),
                       "), found (", state_.terms.ToString(), "), with which ",
                       present[0].name, " has come: give the same everywhere"));
    }
    state_.terms = terms_;
    present.push_back(self_);
    is_changed = true;
  }
  if (IsToClose(view, now)) {
    Close(view.version());
    return Write{state_.Encode()};
  }
  if (is_changed) return Write{state_.Encode()};
  Wait wait;
  if (enough_since_.has_value()) wait.until = *enough_since_ + terms_.last_call;
  return wait;
}

RollCallCore::Step RollCallCore::OnGiveUp(absl::string_view value,
                                          const View& view) {
  absl::StatusOr<RollCallState> state = RollCallState::Decode(value);
  if (!state.ok()) return Wait{};
  state_ = *std::move(state);
  if (const Roll* const own = FindOwn();
      own != nullptr && IsOfTheLiving(*own, view)) {
    return *own;
  }
  RollCallState without = state_;
  std::vector<RollEntry>& present = without.present;
  const auto at = std::find(present.begin(), present.end(), self_);
  if (at == present.end()) return Wait{};
  present.erase(at);
  return Write{without.Encode()};
}

std::string RollCallCore::Describe(const View& view) const {
  std::vector<std::string> come, missing;
  for (const RollEntry& entry : state_.present) come.push_back(entry.name);
  for (const Member* member : Missing(view, state_)) {
    std::string text = member->name;
    for (const Roll& roll : state_.closed) {
      const bool is_on = std::any_of(
          roll.entries.begin(), roll.entries.end(),
          [&](const RollEntry& entry) { return entry.key == member->key; });
      if (is_on)
        text = absl::StrCat(member->name, " (of round ", roll.round, ")");
    }
    missing.push_back(std::move(text));
  }
  const int lacking = terms_.min - static_cast<int>(come.size()) -
                      static_cast<int>(missing.size());
  if (lacking > 0) {
    missing.push_back(absl::StrCat(lacking, " more, which the job has not"));
  }
  return absl::StrCat("roll call ", name_, " (", terms_.ToString(), "), round ",
                      state_.round, ": ", come.size(), " have come (",
                      ListOf(come), "), waiting for ",
                      missing.empty() ? "nobody" : ListOf(missing));
}

}  // namespace weft::rendezvous
