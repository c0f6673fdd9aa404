// View: see the header.

#include "weft/rendezvous/view.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/status_macros.h"

namespace weft::rendezvous {
namespace {

constexpr size_t kShown = 32;  // of those who are missing, in a Summary

bool ById(const Member& a, const Member& b) { return a.key.id < b.key.id; }

// True if `member` has `value` under `name`; ranks compare as text.
bool Matches(const Member& member, absl::string_view name,
             absl::string_view value) {
  if (name == "role") return member.role == value;
  if (name == "rank") return absl::StrCat(member.rank) == value;
  if (name == "name") return member.name == value;
  const auto label = member.labels.find(std::string(name));
  return label != member.labels.end() && label->second == value;
}

}  // namespace

absl::Status ValidateName(absl::string_view name) {
  const bool is_fit =
      !name.empty() && name.size() < 128 &&
      std::all_of(name.begin(), name.end(), [](unsigned char c) {
        return std::isalnum(c) || c == '-' || c == '_' || c == ':';
      });
  if (is_fit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("worker name \"", name.substr(0, 128),
                   "\": wanted 1 to 127 letters, digits, '-', '_' or ':'"));
}

View::View(Epoch version, World world, std::vector<Member> members,
           std::vector<Departed> departed, Epoch complete_at)
    : version_(version),
      world_(std::move(world)),
      members_(std::move(members)),
      departed_(std::move(departed)),
      complete_at_(complete_at) {
  std::sort(members_.begin(), members_.end(), ById);
  std::sort(
      departed_.begin(), departed_.end(),
      [](const Departed& a, const Departed& b) { return a.key.id < b.key.id; });
}

const Member* View::Find(absl::string_view name) const {
  for (const Member& member : members_) {
    if (member.name == name) return &member;
  }
  return nullptr;
}

const Member* View::Find(WorkerKey key) const {
  Member wanted;
  wanted.key = key;
  const auto at =
      std::lower_bound(members_.begin(), members_.end(), wanted, ById);
  return at != members_.end() && at->key == key ? &*at : nullptr;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseSelector(
    absl::string_view selector) {
  std::vector<std::pair<std::string, std::string>> wanted;
  for (absl::string_view part :
       absl::StrSplit(selector, ',', absl::SkipWhitespace())) {
    const std::vector<std::string> sides = absl::StrSplit(part, '=');
    if (sides.size() != 2 || sides[0].empty() || sides[1].empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "selector \"", selector,
          "\": wanted name=value,..., as in role=ps,zone=a; found \"", part,
          "\""));
    }
    wanted.emplace_back(sides[0], sides[1]);
  }
  return wanted;
}

absl::StatusOr<std::vector<const Member*>> View::Select(
    absl::string_view selector) const {
  WEFT_ASSIGN_OR_RETURN(const auto wanted, ParseSelector(selector));
  std::vector<const Member*> chosen;
  for (const Member& member : members_) {
    if (std::all_of(wanted.begin(), wanted.end(), [&](const auto& pair) {
          return Matches(member, pair.first, pair.second);
        })) {
      chosen.push_back(&member);
    }
  }
  return chosen;
}

bool View::IsGone(WorkerKey key) const {
  for (const Departed& departed : departed_) {
    if (departed.key.id == key.id && key.epoch <= departed.key.epoch) {
      return true;
    }
  }
  for (const Member& member : members_) {
    if (member.key.id == key.id) return key.epoch < member.key.epoch;
  }
  return false;
}

int View::Counted() const {
  return std::count_if(members_.begin(), members_.end(),
                       [](const Member& m) { return m.role != kAdminRole; });
}

std::vector<std::string> View::Missing() const {
  if (!world_.is_fixed()) {
    const int missing = world_.min - Counted();
    if (missing <= 0) return {};
    return {absl::StrCat(missing, " more")};
  }
  std::vector<std::string> missing;
  for (const auto& [role, count] : world_.roles) {
    std::vector<bool> is_there(count);
    for (const Member& member : members_) {
      if (member.role == role && member.rank >= 0 && member.rank < count) {
        is_there[member.rank] = true;
      }
    }
    for (int rank = 0; rank < count; ++rank) {
      if (!is_there[rank]) missing.push_back(absl::StrCat(role, rank));
    }
  }
  return missing;
}

std::string View::Summary() const {
  const std::vector<std::string> missing = Missing();
  std::string text =
      world_.is_fixed() ? absl::StrCat(Counted(), "/", world_.size(), " joined")
                        : absl::StrCat(Counted(), " joined (", world_.min,
                                       " to ", world_.max, ")");
  if (missing.empty()) return text;
  const size_t shown = std::min(missing.size(), kShown);
  absl::StrAppend(
      &text, ", missing ",
      absl::StrJoin(missing.begin(), missing.begin() + shown, ", "));
  if (shown < missing.size()) {
    absl::StrAppend(&text, " and ", missing.size() - shown, " more");
  }
  return text;
}

}  // namespace weft::rendezvous
