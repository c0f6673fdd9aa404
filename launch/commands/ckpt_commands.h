// What the parts of weft ckpt share.

#ifndef WEFT_LAUNCH_COMMANDS_CKPT_COMMANDS_H_
#define WEFT_LAUNCH_COMMANDS_CKPT_COMMANDS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "weft/ps/export/difference.h"

namespace weft::launch {

// Serves exported tables until it is asked to end.
absl::StatusOr<int> CkptServeCommand(int argc, char** argv);

// {"a", "b", "tables": [..], "tensors": [..], "equal"}. A difference that is
// infinite is the text "inf", for JSON has no such number.
nlohmann::json DifferenceJson(const std::string& a, const std::string& b,
                              const ps::Difference& difference);
void PrintDifference(const nlohmann::json& difference);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_COMMANDS_CKPT_COMMANDS_H_
