#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/ps/replicated/cell.h"
#include "weft/ps/replicated/replicated_table.h"
#include "weft/ps/wire/wire_values.h"

// The rows of a partition: what is read of them, what is applied to them, and
// the rounds that are.

namespace weft::ps {

void ReplicatedTable::Read(Cell& cell,
                           uint64_t token) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Cell::Reading& reading = cell.reads.at(token);
  const absl::Span<const uint64_t> keys(
      reinterpret_cast<const uint64_t*>(reading.keys.data()),
      reading.keys.size() / sizeof(uint64_t));
  int64_t floats = 0;
  for (uint64_t key : keys) floats += layout_->RowLength(key);
  std::vector<float> values(floats);
  cell.rows.Read(keys, values.data());
  if (!is_sync() && reading.call->BeginRead()) {
    metrics_.PulledAt(reading.request.client, pushes_.load());
  }
  const WireDtype pull = spec().wire().pull();
  if (pull == v1::WireValues::F32) {
    reading.values = Bytes::Own(std::move(values));
    return;
  }
  std::string encoded(WireBytes(*layout_, pull, keys), '\0');
  WriteWire(*layout_, pull, keys, values.data(), encoded.data());
  reading.values = Bytes::Own(std::move(encoded));
}

void ReplicatedTable::AnswerPush(Cell& cell, const Answer& answer,
                                 Work& work) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const auto it = cell.pushes.find(answer.token);
  if (it == cell.pushes.end()) return;
  const Cell::Pushing pushing = std::move(it->second);
  cell.pushes.erase(it);
  absl::Status refused;
  if (pushing.joins.has_value() && answer.code == Code::kOk) {
    const ClockGate::Clock* const its = cell.clocks.gate().Find(*pushing.joins);
    if (its != nullptr && its->holder.client == pushing.client) {
      pushing.call->SetClock(pushing.span, its->at);
    } else {  // another opening of the worker has joined since
      refused =
          WhyNotClock(cell, ClockGate::Answer::kNotHolder, *pushing.joins, 0);
    }
  }
  if (pushing.call->Answer(pushing.span, answer, refused)) {
    work.End(pushing.call);
  }
}

void ReplicatedTable::AnswerRead(Cell& cell, const Answer& answer,
                                 Work& work) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const auto it = cell.reads.find(answer.token);
  if (it == cell.reads.end()) return;
  Cell::Reading& reading = it->second;
  // A round that is still open, or clocks that are behind: until it closes,
  // they come, or the deadline.
  if ((is_sync() || reading.clock.has_value()) &&
      answer.code == Code::kBehind) {
    reading.is_parked = true;
    return;
  }
  if (reading.call->Answer(reading.span, answer, absl::OkStatus(),
                           std::move(reading.values))) {
    work.End(reading.call);
  }
  cell.reads.erase(it);
}

void ReplicatedTable::Apply(Cell& cell, const LogEntry& entry)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const Frame frame = DecodeCheckedFrame(entry.payload);
  const bool is_round = is_sync() && entry.mark.client == kRounds;
  const int64_t round = static_cast<int64_t>(entry.mark.sequence) - 1;
  switch (frame.kind) {
    case Frame::Kind::kGradient: {
      std::vector<float> memory;
      ps::PushSpan span;
      span.keys = frame.keys;
      span.values = FloatsOf(frame, *layout_, memory);
      cell.rows.ApplySum({span}, 1.0f, cell.rates.At(is_round ? round : 0));
      break;
    }
    case Frame::Kind::kPut: {
      std::vector<float> memory;
      const float* values = FloatsOf(frame, *layout_, memory);
      for (uint64_t key : frame.keys) {
        const int64_t length = layout_->RowLength(key);
        cell.rows.Put(key, absl::MakeConstSpan(values, length));
        values += length;
      }
      break;
    }
    case Frame::Kind::kRate:
      // Its primary has seen that it fits.
      (void)(is_sync() ? cell.rates.Set(frame.round, frame.scale, cell.rounds)
                       : cell.rates.SetAlways(frame.scale));
      break;
    case Frame::Kind::kTick:
    case Frame::Kind::kJoin:
    case Frame::Kind::kLeave:
      ApplyClock(cell, entry, frame);
      break;
  }
  if (has_clocks()) {
    cell.clocks.Applied(entry.mark.client,
                        cell.replica.AppliedThrough(entry.mark.client));
  }
  if (!is_round) return;
  cell.rounds = round + 1;
  cell.rates.Trim(cell.rounds);
}

void ReplicatedTable::CloseRounds(Cell& cell, const Now& now)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  while (cell.replica.is_primary() && cell.replica.HasRoom()) {
    const std::vector<RoundPayload> parts = cell.gate.Close();
    if (parts.empty()) return;
    std::vector<ps::PushSpan> spans(parts.size());
    std::vector<std::vector<float>> memory(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      const Frame frame = DecodeCheckedFrame(parts[i].payload);
      spans[i].keys = frame.keys;
      spans[i].values = FloatsOf(frame, *layout_, memory[i]);
    }
    const float scale = spec().reduction() == v1::TableSpec::MEAN
                            ? 1.0f / static_cast<float>(parts.size())
                            : 1.0f;
    const Bytes sum =
        parts.size() == 1 && scale == 1.0f
            ? parts[0].payload
            : EncodeSum(*layout_, SumSpans(*layout_, spans, scale));
    cell.replica.AppendRound(
        sum, static_cast<int>(parts.size()) == cell.gate.shards(), now);
  }
}

void ReplicatedTable::AskParked(Cell& cell,
                                const Now& now) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::vector<ReadRequest> due;
  for (auto& [token, reading] : cell.reads) {
    if (!reading.is_parked) continue;
    const bool is_seen =
        cell.replica.AppliedThrough(reading.request.client) >=
            reading.request.through &&
        (!reading.clock.has_value() || cell.clocks.MayRead(*reading.clock));
    if (!is_seen && cell.replica.is_primary()) continue;
    reading.is_parked = false;
    due.push_back(reading.request);
  }
  for (const ReadRequest& request : due) cell.replica.OnRead(request, now);
}

absl::StatusOr<std::unique_ptr<TableSnapshot>> ReplicatedTable::Freeze(
    std::shared_ptr<ByteBudget> copies, SavedAs as) {
  TableSnapshot::Moment moment;
  std::vector<int> primaries;
  for (const auto& cell : cells_) {
    if (cell == nullptr) continue;
    MutexLock lock(cell->mu);
    if (!cell->replica.is_primary()) continue;
    if (primaries.empty()) moment.rates = cell->rates;
    primaries.push_back(cell->partition);
    moment.version = std::max(moment.version, cell->version(is_sync()));
  }
  const int64_t version = moment.version;
  const auto freeze = [this, version](int p,
                                      absl::FunctionRef<void(Partition&)> fn) {
    Cell& cell = *cells_[p];
    MutexLock lock(cell.mu);
    WEFT_RETURN_IF_ERROR(CheckServes(cell.partition, cell.replica));
    if (is_sync() && cell.rounds != version) {
      return absl::UnavailableError(absl::StrCat(
          "table '", spec().name(), "': partition ", cell.partition,
          " is at version ", cell.rounds, ", others at ", version,
          ": a round closes just now; save between two rounds"));
    }
    fn(cell.rows);
    return absl::OkStatus();
  };
  const auto copy = [this](int p, absl::FunctionRef<void(Partition&)> fn) {
    Cell& cell = *cells_[p];
    MutexLock lock(cell.mu);
    fn(cell.rows);
    return absl::OkStatus();
  };
  auto snapshot = std::make_unique<TableSnapshot>(
      *layout_, std::move(moment), std::move(primaries),
      TableSnapshot::Access{freeze, copy}, std::move(copies), std::move(as));
  if (is_sync()) WEFT_RETURN_IF_ERROR(snapshot->FreezeAll());
  return snapshot;
}

TableShard::Image ReplicatedTable::ImageOfAll() const {
  TableShard::Image image;
  for (const auto& cell : cells_) {
    if (cell == nullptr) continue;
    MutexLock lock(cell->mu);
    image.version = std::max(image.version, cell->version(is_sync()));
    if (cell->rows.rows() > 0) image.rates = cell->rates;
    image.partitions.emplace_back(cell->partition, cell->rows.Image());
  }
  return image;
}

}  // namespace weft::ps
