// SaidBy: names whose message it is, once.

#ifndef WEFT_BASE_SAID_BY_H_
#define WEFT_BASE_SAID_BY_H_

#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// "ps0: no room"; what begins with the word `who` already stays: "ps0 ends".
std::string SaidBy(absl::string_view who, absl::string_view message);

}  // namespace weft

#endif  // WEFT_BASE_SAID_BY_H_
