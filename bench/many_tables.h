// ManyTables: what a worker with a table for each field of its data waits for:
// a call to each table, all under way together, against one message to each
// server (ps/many.h).

#ifndef WEFT_BENCH_MANY_TABLES_H_
#define WEFT_BENCH_MANY_TABLES_H_

#include <cstdint>
#include <map>
#include <string>

#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"

namespace weft::bench {

// Pulls `keys` random keys of each of `tables` tables like `spec`, and pushes
// to them, other keys each time, for `seconds`: one way and the other by turns.
// The medians, in microseconds: "pull_calls_us", "pull_many_us",
// "push_calls_us", "push_many_us".
std::map<std::string, double> MeasureManyTables(ps::Client& client,
                                                const ps::v1::TableSpec& spec,
                                                int tables, int64_t keys,
                                                double seconds);

}  // namespace weft::bench

#endif  // WEFT_BENCH_MANY_TABLES_H_
