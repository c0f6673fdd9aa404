// SnapshotCost: what a snapshot of a table costs the worker that pushes to it
// and pulls from it meanwhile.

#ifndef WEFT_BENCH_SNAPSHOT_COST_H_
#define WEFT_BENCH_SNAPSHOT_COST_H_

#include <cstdint>
#include <map>
#include <string>

#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"

namespace weft::bench {

struct SnapshotCase {
  std::string directory;  // that the servers see; checkpoints are made in it
  int64_t rows = 0;       // of the table
  int64_t keys = 0;       // of each push and pull, random ones of these
  double seconds = 0;     // of one window
  int windows = 6;        // of each kind
};

// Fills a table like `spec`, then pushes and pulls one after the other in
// windows of time: one without a snapshot and one that begins with one, by
// turns; the latter lasts until its snapshot is written. Beside the figures of
// each kind of window ("_without", "_with": steps_per_s, the percentiles
// push_p50_us, push_p999_us, push_most_us, and of pulls):
//   snapshot_s   from the call to the files
//   mb           of one snapshot
//   lost_ms      how much longer the steps of a window took because of one
//   minute_rate  the rate with a snapshot each minute, as a part of that
//                without: 1 - lost / 60 s
std::map<std::string, double> MeasureSnapshots(ps::Client& client,
                                               ps::v1::TableSpec spec,
                                               const SnapshotCase& of);

}  // namespace weft::bench

#endif  // WEFT_BENCH_SNAPSHOT_COST_H_
