#include "weft/ps/table_access.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "weft/base/status_macros.h"

namespace weft::ps {
namespace {

absl::Status Wrong(absl::string_view rule, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("access to tables: ", why, " in '", absl::CHexEscape(rule),
                   "'; wanted TABLE=ROLE:rw,ROLE:r with TABLE a name or the "
                   "beginning of names with * at its end"));
}

// As TableLayout has names of tables; a prefix may be empty.
bool IsTableName(absl::string_view name) {
  return name.size() <= 256 &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || absl::StrContains("._/-", c);
         });
}

bool IsRole(absl::string_view role) {
  return !role.empty() &&
         std::all_of(role.begin(), role.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || absl::StrContains("_-", c);
         });
}

}  // namespace

absl::StatusOr<TableAccess::Rule> TableAccess::ParseRule(
    absl::string_view text) {
  const std::vector<absl::string_view> sides =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (sides.size() != 2) return Wrong(text, "no '='");
  Rule rule;
  rule.text = std::string(text);
  absl::string_view name = sides[0];
  rule.is_prefix = absl::ConsumeSuffix(&name, "*");
  if (name.empty() && !rule.is_prefix) return Wrong(text, "no table");
  if (absl::StrContains(name, '*')) return Wrong(text, "* amid a name");
  if (!IsTableName(name)) {
    return Wrong(text,
                 "a name that no table has (1 to 256 of [A-Za-z0-9._/-])");
  }
  rule.name = std::string(name);
  for (absl::string_view one : absl::StrSplit(sides[1], ',')) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(one, absl::MaxSplits(':', 1));
    if (parts.size() != 2 || parts[0].empty()) {
      return Wrong(text, absl::StrCat("no ROLE:RIGHTS, found '", one, "',"));
    }
    if (!IsRole(parts[0])) {
      return Wrong(text, absl::StrCat("'", absl::CHexEscape(parts[0]),
                                      "', which is no role,"));
    }
    Allowed allowed;
    allowed.role = std::string(parts[0]);
    for (const char right : parts[1]) {
      if (right != 'r' && right != 'w') {
        return Wrong(text, absl::StrCat("right '", std::string(1, right),
                                        "', which is neither r nor w,"));
      }
      (right == 'r' ? allowed.read : allowed.write) = true;
    }
    const auto is_same = [&](const Allowed& other) {
      return other.role == allowed.role;
    };
    if (std::any_of(rule.roles.begin(), rule.roles.end(), is_same)) {
      return Wrong(text, absl::StrCat("role '", allowed.role, "' twice"));
    }
    rule.roles.push_back(std::move(allowed));
  }
  return rule;
}

absl::StatusOr<TableAccess> TableAccess::Parse(absl::string_view text) {
  TableAccess access;
  if (text.empty()) return access;
  for (absl::string_view one : absl::StrSplit(text, ';')) {
    WEFT_ASSIGN_OR_RETURN(Rule rule, ParseRule(one));
    for (const Rule& before : access.rules_) {
      const bool covers = before.is_prefix
                              ? absl::StartsWith(rule.name, before.name)
                              : !rule.is_prefix && rule.name == before.name;
      if (covers) {
        return Wrong(one, absl::StrCat("a rule that never holds, since '",
                                       before.text, "' comes before,"));
      }
    }
    access.rules_.push_back(std::move(rule));
  }
  return access;
}

std::set<std::string> TableAccess::roles() const {
  std::set<std::string> all;
  for (const Rule& rule : rules_) {
    for (const Allowed& allowed : rule.roles) all.insert(allowed.role);
  }
  return all;
}

const TableAccess::Rule* TableAccess::RuleOf(absl::string_view table) const {
  for (const Rule& rule : rules_) {
    if (rule.is_prefix ? absl::StartsWith(table, rule.name)
                       : table == rule.name) {
      return &rule;
    }
  }
  return nullptr;
}

absl::Status TableAccess::Check(absl::string_view caller,
                                absl::string_view role, absl::string_view table,
                                Right right) const {
  if (is_open() || role.empty()) return absl::OkStatus();
  const Rule* rule = RuleOf(table);
  if (rule != nullptr) {
    for (const Allowed& allowed : rule->roles) {
      if (allowed.role != role) continue;
      if (right == Right::kRead ? allowed.read : allowed.write) {
        return absl::OkStatus();
      }
    }
  }
  return absl::PermissionDeniedError(absl::StrCat(
      caller, " (role ", role, ") may not ",
      right == Right::kRead ? "read" : "change", " table '", table, "': ",
      rule == nullptr ? std::string("no rule of the servers' --table-access "
                                    "names it")
                      : absl::StrCat("the servers' --table-access says '",
                                     rule->text, "'")));
}

absl::Status TableAccess::CheckOpen(absl::string_view caller,
                                    absl::string_view role,
                                    absl::string_view table,
                                    bool is_there) const {
  const absl::Status may_change = Check(caller, role, table, Right::kWrite);
  if (may_change.ok()) return may_change;
  WEFT_RETURN_IF_ERROR(Check(caller, role, table, Right::kRead));
  if (is_there) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(may_change.message(),
                   "; it is not there yet, and who may not change it does not "
                   "make it: open it once a writer has"));
}

}  // namespace weft::ps
