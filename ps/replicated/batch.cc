#include "weft/ps/replicated/batch.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/ps/replicated/frame.h"

namespace weft::ps {
namespace {

constexpr uint32_t kFill = static_cast<uint32_t>(ReplicaMessage::Kind::kFill);
constexpr uint32_t kLastKind =
    static_cast<uint32_t>(ReplicaMessage::Kind::kStale);

void Reserve(v1::ReplicaRun& run, int messages) {
  run.mutable_partitions()->Reserve(messages);
  run.mutable_kinds()->Reserve(messages);
  run.mutable_map_epochs()->Reserve(messages);
  run.mutable_epochs()->Reserve(messages);
  run.mutable_fills()->Reserve(messages);
  run.mutable_ns()->Reserve(messages);
  run.mutable_piece()->Reserve(messages);
  run.mutable_pieces()->Reserve(messages);
  run.mutable_entries()->Reserve(messages);
}

void AddCopy(const Envelope& envelope, v1::ReplicaRun& run) {
  v1::ReplicaCopy* const copy = run.add_copies();
  for (const auto& [client, window] : envelope.message.marks) {
    v1::ClientMark* const mark = copy->add_marks();
    mark->set_client(client);
    mark->set_high(window.high());
    mark->set_mask(window.mask());
  }
  *copy->mutable_spec() = envelope.table->spec;
  for (const OpenClients::Opening& opening : envelope.openings) {
    auto* const to = copy->add_openings();
    to->mutable_worker()->set_id(opening.worker.id);
    to->mutable_worker()->set_epoch(opening.worker.epoch);
    to->set_client(opening.client);
    to->set_opened_at(opening.opened_at);
  }
}

void Add(const Envelope& envelope, v1::ReplicaRun& run,
         std::vector<Bytes>& payloads) {
  const ReplicaMessage& message = envelope.message;
  run.add_partitions(static_cast<uint32_t>(envelope.partition));
  run.add_kinds(static_cast<uint32_t>(message.kind));
  run.add_map_epochs(message.map_epoch);
  run.add_epochs(message.epoch);
  run.add_fills(message.fill);
  run.add_ns(message.n);
  run.add_piece(message.piece);
  run.add_pieces(message.pieces);
  run.add_entries(static_cast<uint32_t>(message.entries.size()));
  for (const LogEntry& entry : message.entries) {
    run.add_entry_epochs(entry.lsn.epoch);
    run.add_entry_ns(entry.lsn.n);
    run.add_clients(entry.mark.client);
    run.add_sequences(entry.mark.sequence);
    run.add_firsts(entry.mark.first);
    payloads.push_back(entry.payload);
  }
  if (message.kind != ReplicaMessage::Kind::kFill) return;
  AddCopy(envelope, run);
  payloads.push_back(envelope.copy);
}

absl::Status Unfit(const v1::ReplicaRun& run, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "messages between replicas of table '", run.table().substr(0, 256),
      "': ", why, "; servers must be built from the same sources"));
}

// Whether its columns are of one length, and how many payloads are its.
absl::StatusOr<size_t> CheckColumns(const v1::ReplicaRun& run) {
  const int n = run.partitions_size();
  for (const int size :
       {run.kinds_size(), run.map_epochs_size(), run.epochs_size(),
        run.fills_size(), run.ns_size(), run.piece_size(), run.pieces_size(),
        run.entries_size()}) {
    if (size != n) {
      return Unfit(run, absl::StrCat("wanted ", n, " values, found ", size));
    }
  }
  size_t entries = 0;
  int copies = 0;
  for (int i = 0; i < n; ++i) {
    entries += run.entries(i);
    if (run.kinds(i) > kLastKind) {
      return Unfit(run, absl::StrCat("one is of unknown kind ", run.kinds(i)));
    }
    copies += run.kinds(i) == kFill ? 1 : 0;
    if (run.partitions(i) >
        static_cast<uint32_t>(std::numeric_limits<int>::max())) {
      return Unfit(run, absl::StrCat("no partition ", run.partitions(i)));
    }
  }
  for (const int size :
       {run.entry_epochs_size(), run.entry_ns_size(), run.clients_size(),
        run.sequences_size(), run.firsts_size()}) {
    if (static_cast<size_t>(size) != entries) {
      return Unfit(run,
                   absl::StrCat("wanted ", entries, " entries, found ", size));
    }
  }
  if (run.copies_size() != copies) {
    return Unfit(run, absl::StrCat("wanted ", copies, " copies, found ",
                                   run.copies_size()));
  }
  return entries + static_cast<size_t>(copies);
}

// REQUIRES: CheckColumns is OK. `next` is the first payload of the run.
ReceivedRun DecodeRun(const v1::ReplicaRun& run, std::vector<Bytes>& payloads,
                      size_t& next) {
  ReceivedRun out;
  out.table = run.table();
  out.generation = run.generation();
  out.messages.resize(run.partitions_size());
  int entry = 0;
  int copy = 0;
  for (int i = 0; i < run.partitions_size(); ++i) {
    Received& to = out.messages[i];
    to.partition = static_cast<int>(run.partitions(i));
    ReplicaMessage& message = to.message;
    message.kind = static_cast<ReplicaMessage::Kind>(run.kinds(i));
    message.map_epoch = run.map_epochs(i);
    message.epoch = run.epochs(i);
    message.fill = run.fills(i);
    message.n = run.ns(i);
    message.piece = run.piece(i);
    message.pieces = run.pieces(i);
    message.entries.resize(run.entries(i));
    for (LogEntry& its : message.entries) {
      its.lsn = {run.entry_epochs(entry), run.entry_ns(entry)};
      its.mark = {run.clients(entry), run.sequences(entry), run.firsts(entry)};
      its.payload = std::move(payloads[next++]);
      ++entry;
    }
    if (run.kinds(i) != kFill) continue;
    to.said = &run.copies(copy++);
    for (const v1::ClientMark& mark : to.said->marks()) {
      message.marks[mark.client()] =
          SequenceWindow::Of(mark.high(), mark.mask());
    }
    to.copy = std::move(payloads[next++]);
  }
  return out;
}

}  // namespace

int64_t Envelope::bytes() const {
  int64_t total = 64 + static_cast<int64_t>(copy.size());
  for (const LogEntry& entry : message.entries) {
    total += static_cast<int64_t>(entry.payload.size());
  }
  return total;
}

EncodedBatch EncodeBatch(const std::deque<Envelope>& envelopes) {
  EncodedBatch out;
  out.payloads.reserve(envelopes.size());
  const TableIdentity* last = nullptr;
  v1::ReplicaRun* run = nullptr;
  for (const Envelope& envelope : envelopes) {
    if (envelope.table.get() != last) {
      last = envelope.table.get();
      run = out.batch.add_runs();
      run->set_table(last->spec.name());
      run->set_generation(last->generation);
      Reserve(*run, static_cast<int>(envelopes.size()));
    }
    Add(envelope, *run, out.payloads);
  }
  return out;
}

absl::StatusOr<std::vector<ReceivedRun>> DecodeBatch(
    const v1::ReplicaBatch& batch, absl::Span<const Bytes> payloads) {
  size_t wanted = 0;
  for (const v1::ReplicaRun& run : batch.runs()) {
    WEFT_ASSIGN_OR_RETURN(const size_t its, CheckColumns(run));
    wanted += its;
  }
  if (wanted != payloads.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of messages between replicas wanted ", wanted,
                     " payloads, found ", payloads.size()));
  }
  std::vector<Bytes> aligned = AlignedAll(payloads);
  std::vector<ReceivedRun> runs;
  size_t next = 0;
  for (const v1::ReplicaRun& run : batch.runs()) {
    runs.push_back(DecodeRun(run, aligned, next));
  }
  return runs;
}

}  // namespace weft::ps
