// TablesReport: what the parameter servers of a job say of their tables: how
// many rows, how much memory, at which version, and which server is behind.

#ifndef WEFT_LAUNCH_COMMANDS_TABLES_REPORT_H_
#define WEFT_LAUNCH_COMMANDS_TABLES_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "weft/proto/ps.pb.h"
#include "weft/proto/ps_load.pb.h"

namespace weft::launch {

// Nothing in it is trusted: it is what others have sent.
struct TablesReport {
  std::vector<std::pair<std::string, ps::v1::ServerStats>> servers;  // by name
  // The loads of the servers that report them, by name.
  std::vector<std::pair<std::string, ps::v1::ServerLoads>> loads;
  // The servers that have not answered, and why.
  std::vector<std::pair<std::string, absl::Status>> silent;
};

// {"tables": {NAME: {...}}, "groups": N, "lost": N, "no_answer": [NAME],
// "reasons": {NAME: why}}. A table has "kind", "mode", "partitions",
// "push_dtype", "pull_dtype", "rows" and "bytes" of all servers, "version" (the
// newest of any), counts of rows that went and of pushes that were refused, and
// "servers": {NAME: {"rows", "bytes", "version", "versions_behind"}}. With two
// replicas rows are those of primaries. "load": what servers had to do lately:
// "servers": {NAME: seconds of work in a second}, "most_of_mean" (the most that
// one has, by the mean), "tables": {NAME: {"requests", "rows", "bytes", "busy",
// "backup"}} a second, and "hottest": the five partitions with the most work,
// as [{"table", "partition", "server", "share", ...}]. SYNC: versions are
// rounds; else "versions_behind" is null, for each server counts its own
// pushes, as it is of a server that is the primary of nothing of the table.
nlohmann::json ToJson(const TablesReport& report);

// The same in lines, for a terminal.
std::string ToText(const TablesReport& report);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_COMMANDS_TABLES_REPORT_H_
