// RaiseBy: the words of a refusal by one of the Limits that say what to do.

#ifndef WEFT_RPC_SESSION_RAISE_BY_H_
#define WEFT_RPC_SESSION_RAISE_BY_H_

#include <string>

#include "absl/strings/str_cat.h"

namespace weft::rpc {

// The end of a message that begins, at the caller, with the callee's name.
inline std::string RaiseBy(const char* limit) {
  return absl::StrCat("; or raise the limit there by --limits=", limit,
                      "=VALUE");
}

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_RAISE_BY_H_
