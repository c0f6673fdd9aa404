#include "weft/ps/embedding/end_step.h"

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace weft::ps {

Future<void> EndStep(SparseTable& table) {
  if (!table.spec().has_staleness()) return MakeReady<void>(absl::OkStatus());
  if (!table.status().ok()) return MakeReady<void>(table.status());
  Future<void> ticked = table.Tick();
  // Refused at once though the table is open: the client's rank is negative, or
  // it has left its clock.
  if (ticked.IsReady() &&
      absl::IsFailedPrecondition(ticked.Wait(absl::ZeroDuration())) &&
      table.status().ok()) {
    return MakeReady<void>(absl::OkStatus());
  }
  return ticked;
}

}  // namespace weft::ps
