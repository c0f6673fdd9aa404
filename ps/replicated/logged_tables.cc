#include "weft/ps/replicated/logged_tables.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/ps/core/sequence_window.h"
#include "weft/ps/replicated/frame.h"

namespace weft::ps {
namespace {

// As a replica has it: counting on from it cannot overflow.
constexpr uint64_t kGreatestNumber = uint64_t{1} << 62;

absl::Status Unfit(absl::string_view why) {
  return absl::DataLossError(
      absl::StrCat("a record that does not fit those before it: ", why));
}

}  // namespace

bool LoggedTable::IsVoid(int partition) const {
  const auto it = partitions.find(partition);
  return it == partitions.end() ? begins_void : it->second.is_void;
}

v1::TableLogRecord OwnerRecord(WorkerKey server, uint64_t birth) {
  v1::TableLogRecord record;
  record.mutable_owner()->mutable_server()->set_id(server.id);
  record.mutable_owner()->mutable_server()->set_epoch(server.epoch);
  record.mutable_owner()->set_birth(birth);
  return record;
}

absl::Status LoggedTables::Add(const v1::TableLogRecord& record) {
  switch (record.kind_case()) {
    case v1::TableLogRecord::kOwner: {
      const WorkerKey server = {record.owner().server().id(),
                                record.owner().server().epoch()};
      if (IsNone(server) || record.owner().birth() == 0 ||
          (birth_ != 0 && (birth_ != record.owner().birth() ||
                           owners_.begin()->id != server.id))) {
        return Unfit("it is of another server or job");
      }
      birth_ = record.owner().birth();
      owners_.insert(server);
      return absl::OkStatus();
    }
    case v1::TableLogRecord::kTable:
      return AddTable(record.table());
    case v1::TableLogRecord::kEntry:
      return AddEntry(record.entry());
    case v1::TableLogRecord::kCopy:
      return AddCopy(record.copy());
    case v1::TableLogRecord::kDrop: {
      const uint32_t table = record.drop().table();
      if (!record.drop().has_partition()) {
        tables_.erase(table);
        dropped_.insert(table);
        return absl::OkStatus();
      }
      if (dropped_.count(table) != 0) return absl::OkStatus();
      LoggedPartition* const found = Find(table, record.drop().partition());
      if (found == nullptr) return Unfit("there is no such partition");
      *found = LoggedPartition();
      found->is_void = true;
      return absl::OkStatus();
    }
    case v1::TableLogRecord::KIND_NOT_SET:
      break;
  }
  return Unfit("it is of no known kind");
}

absl::Status LoggedTables::AddTable(const v1::TableLogRecord::Table& table) {
  // A record that was written again.
  if (tables_.count(table.number()) != 0 ||
      dropped_.count(table.number()) != 0) {
    return absl::OkStatus();
  }
  last_table_ = std::max(last_table_, table.number());
  LoggedTable& made = tables_[table.number()];
  made.number = table.number();
  made.spec = table.spec();
  made.generation = table.generation();
  made.is_logged = table.is_logged();
  made.begins_void = table.begins_void();
  return absl::OkStatus();
}

LoggedPartition* LoggedTables::Find(uint32_t table, uint32_t partition) {
  const auto it = tables_.find(table);
  if (it == tables_.end() || !it->second.is_logged ||
      partition >= static_cast<uint32_t>(it->second.spec.partitions())) {
    return nullptr;
  }
  const auto [found, is_new] =
      it->second.partitions.try_emplace(static_cast<int>(partition));
  if (is_new) found->second.is_void = it->second.begins_void;
  return &found->second;
}

absl::Status LoggedTables::AddEntry(const v1::TableLogRecord::Entry& entry) {
  if (dropped_.count(entry.table()) != 0) return absl::OkStatus();
  LoggedPartition* const found = Find(entry.table(), entry.partition());
  if (found == nullptr || entry.n() == 0 || entry.n() > kGreatestNumber) {
    return Unfit("an entry of no partition, or without a number");
  }
  // Of one that is being filled anew, or it was written again.
  const uint64_t end =
      found->entries.empty() ? found->n : found->entries.back().lsn.n;
  if (found->is_void || entry.n() <= end) return absl::OkStatus();
  if (entry.n() != end + 1) {
    // Of a batch that was written again, of which the rest comes; if not, the
    // partition has lost entries.
    *found = LoggedPartition();
    found->is_void = true;
    return absl::OkStatus();
  }
  LogEntry& made = found->entries.emplace_back();
  made.lsn = {entry.epoch(), entry.n()};
  made.mark = {entry.client(), entry.sequence(), entry.first()};
  made.payload = Aligned(Bytes::Copy(entry.payload()));
  return absl::OkStatus();
}

absl::Status LoggedTables::AddCopy(const v1::TableLogRecord::Copy& copy) {
  if (copy.piece() == 0) pieces_.clear();
  if (copy.piece() >= copy.pieces() || copy.piece() != pieces_.size() ||
      copy.n() > kGreatestNumber) {
    return Unfit("a piece of a copy that is none, or not the next one");
  }
  pieces_.push_back(Aligned(Bytes::Copy(copy.rows())));
  if (copy.piece() + 1 < copy.pieces()) return absl::OkStatus();
  if (dropped_.count(copy.table()) != 0) return absl::OkStatus();
  LoggedPartition* const found = Find(copy.table(), copy.partition());
  if (found == nullptr) return Unfit("a copy of no partition");
  *found = LoggedPartition();
  found->pieces = std::exchange(pieces_, {});
  found->n = copy.n();
  for (const v1::ClientMark& mark : copy.marks()) {
    found->marks[mark.client()] = SequenceWindow::Of(mark.high(), mark.mask());
  }
  for (const auto& opening : copy.openings()) {
    found->openings.push_back(
        {{opening.worker().id(), opening.worker().epoch()},
         opening.client(),
         opening.opened_at()});
  }
  return absl::OkStatus();
}

}  // namespace weft::ps
