// LoadReport: a LoadMeter's rates as they travel.

#ifndef WEFT_PS_REPLICATED_LOAD_REPORT_H_
#define WEFT_PS_REPLICATED_LOAD_REPORT_H_

#include <string>
#include <vector>

#include "weft/proto/ps_load.pb.h"
#include "weft/ps/core/replication/load_meter.h"

namespace weft::ps {

// The load of a table's partitions on this server, with the hottest five by
// busy time.
v1::TableLoad LoadReport(const std::string& table, const LoadMeter& meter);

// Adds the entries that are not idle.
void AddEntries(const std::vector<EntryLoad>& loads, v1::ServerLoads& to);

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_LOAD_REPORT_H_
