// CallSite: where in the user's source an operation was called.

#ifndef WEFT_COLLECTIVES_CALL_SITE_H_
#define WEFT_COLLECTIVES_CALL_SITE_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace weft::collectives {

// As the default argument of a function, Here() is the place of the call.
struct CallSite {
  static constexpr CallSite Here(const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
    return {file, line};
  }

  // "train.cc:12", without folders.
  std::string ToString() const {
    const absl::string_view path(file);
    const size_t slash = path.rfind('/');
    return absl::StrCat(
        slash == absl::string_view::npos ? path : path.substr(slash + 1), ":",
        line);
  }

  const char* file = "unknown";  // A literal.
  int line = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_CALL_SITE_H_
