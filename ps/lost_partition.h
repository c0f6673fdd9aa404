// LostPartition: the error of what needs a partition of the tables of which no
// server has a copy any more. A program that ends by it ends as one that has
// lost a peer (worker::ExitCode): started again, it may go on from a
// checkpoint.

#ifndef WEFT_PS_LOST_PARTITION_H_
#define WEFT_PS_LOST_PARTITION_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft::ps {

// kDataLoss.
absl::Status LostPartition(absl::string_view message);
// Whether it is such an error, reworded or not.
bool IsLostPartition(const absl::Status& status);

}  // namespace weft::ps

#endif  // WEFT_PS_LOST_PARTITION_H_
