// TableAccess: which roles may read and which may change which tables, where
// peers prove their role by a certificate.
//
// Thread-safety: a value; const methods may be called by several threads.

#ifndef WEFT_PS_TABLE_ACCESS_H_
#define WEFT_PS_TABLE_ACCESS_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::ps {

class TableAccess {
 public:
  enum class Right {
    kRead,   // pulls, and to open a table that is there
    kWrite,  // pushes, first values, learning rates, and to make the table
  };

  // All members may do everything.
  TableAccess() = default;

  // "users*=trainer:rw,admin:r;*=trainer:rw": rules of tables, the name of one
  // or, with * at the end, the beginning of names; of each the roles with their
  // rights, r and w, and no blanks. Only the first rule that fits a table's
  // name counts: a role that it does not name has no rights. Where no rule
  // fits, no role has any. Empty: TableAccess(). kInvalidArgument says what is
  // wrong where.
  static absl::StatusOr<TableAccess> Parse(absl::string_view text);

  bool is_open() const { return rules_.empty(); }
  // The roles that its rules name.
  std::set<std::string> roles() const;

  // kPermissionDenied names caller, role, table and what the rule allows. A
  // caller that has proved no role, as at a unix socket or under --insecure,
  // may do all, as for functions (docs/security.md).
  absl::Status Check(absl::string_view caller, absl::string_view role,
                     absl::string_view table, Right right) const;

  // Whether the caller may open a table. Either right lets it open a table that
  // exists; a caller that may not change a table may not create it either.
  absl::Status CheckOpen(absl::string_view caller, absl::string_view role,
                         absl::string_view table, bool is_there) const;

 private:
  struct Allowed {
    std::string role;
    bool read = false;
    bool write = false;
  };
  struct Rule {
    std::string text;  // as it was given
    std::string name;  // without the *
    bool is_prefix = false;
    std::vector<Allowed> roles;
  };
  static absl::StatusOr<Rule> ParseRule(absl::string_view text);
  const Rule* RuleOf(absl::string_view table) const;

  std::vector<Rule> rules_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_TABLE_ACCESS_H_
