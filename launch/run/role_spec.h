// RoleSpec: the ranks of one role, as `weft run --role` names them.

#ifndef WEFT_LAUNCH_RUN_ROLE_SPEC_H_
#define WEFT_LAUNCH_RUN_ROLE_SPEC_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::launch {

struct RoleSpec {
  std::string role;
  int count = 1;
  std::vector<std::string> argv;
};

// "ps=2:bin/server --x 'a b'": the words as a shell would split them, without
// its expansions. kInvalidArgument says what is wrong.
absl::StatusOr<RoleSpec> ParseRole(absl::string_view text);
absl::StatusOr<std::vector<std::string>> SplitWords(absl::string_view text);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_ROLE_SPEC_H_
