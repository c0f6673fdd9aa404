#include "weft/ps/replicated/load_report.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace weft::ps {
namespace {

constexpr size_t kHottest = 5;

v1::Load ToProto(const Load& load) {
  v1::Load proto;
  proto.set_requests(load.requests);
  proto.set_rows(load.rows);
  proto.set_bytes(load.bytes);
  proto.set_busy(load.busy);
  proto.set_backup(load.backup);
  return proto;
}

}  // namespace

v1::TableLoad LoadReport(const std::string& table, const LoadMeter& meter) {
  std::vector<LoadMeter::OfPartition> loads = meter.Loads();
  v1::TableLoad report;
  report.set_table(table);
  Load total;
  for (const LoadMeter::OfPartition& one : loads) total += one.load;
  *report.mutable_load() = ToProto(total);
  *report.mutable_sum() = ToProto(meter.Sum());
  const auto is_hotter = [](const LoadMeter::OfPartition& a,
                            const LoadMeter::OfPartition& b) {
    return a.load.busy > b.load.busy;
  };
  const auto end = loads.begin() + std::min(kHottest, loads.size());
  std::partial_sort(loads.begin(), end, loads.end(), is_hotter);
  for (auto it = loads.begin(); it != end && it->load.busy > 0; ++it) {
    v1::PartitionLoad& hot = *report.add_hottest();
    hot.set_partition(static_cast<uint32_t>(it->partition));
    *hot.mutable_load() = ToProto(it->load);
  }
  return report;
}

void AddEntries(const std::vector<EntryLoad>& loads, v1::ServerLoads& to) {
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].primary <= 0 && loads[i].backup <= 0) continue;
    v1::ServerLoads::Entry& entry = *to.add_entries();
    entry.set_entry(static_cast<uint32_t>(i));
    entry.set_primary(loads[i].primary);
    entry.set_backup(loads[i].backup);
  }
}

}  // namespace weft::ps
