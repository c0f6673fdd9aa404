#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/ps/replicated/frame.h"
#include "weft/ps/replicated/table_client.h"
#include "weft/ps/replicated/table_client_calls.h"

// Pulls: asked of whoever has a partition, and again until they are answered.

namespace weft::ps {

using replicated_calls::IsForGood;
using replicated_calls::kPushes;
using replicated_calls::SetKey;
using replicated_calls::StatusOf;

namespace {

// A server that is stopped does not answer: the map may name another one.
constexpr absl::Duration kPullTimeout = absl::Seconds(5);
constexpr absl::Duration kAskAgainAfter = absl::Milliseconds(20);

}  // namespace

Future<std::vector<Bytes>> ReplicatedTableClient::Pull(
    int64_t version, std::vector<Piece> pieces, std::optional<int64_t> clock) {
  PullOperation pull;
  Future<std::vector<Bytes>> future = pull.promise.future();
  pull.version = version;
  pull.clock = clock;
  pull.left = pieces.size();
  pull.deadline = SteadyClock().Now() + options_.timeout;
  for (Piece& piece : pieces) {
    pull.items.emplace_back();
    pull.items.back().piece = std::move(piece);
  }
  Work work;
  {
    MutexLock lock(mu_);
    if (!failure_.ok()) return MakeReady<std::vector<Bytes>>(failure_);
    const uint64_t id = ++last_id_;
    PullOperation& kept = pulls_[id] = std::move(pull);
    if (kept.left == 0) {
      EndPull(id, absl::OkStatus(), work);
    } else {
      Ask(id, kept, work);
    }
  }
  Finish(std::move(work));
  return future;
}

void ReplicatedTableClient::Ask(uint64_t id, PullOperation& pull, Work& work) {
  std::map<WorkerKey, size_t> call_to;
  for (size_t i = 0; i < pull.items.size(); ++i) {
    PullOperation::Item& item = pull.items[i];
    const PartitionMap::Entry& entry =
        map_.entry(map_.EntryOf(item.piece.partition));
    if (item.is_done || item.asked == entry.epoch) continue;
    if (IsLostAt(LevelOf(options_.spec), entry)) {
      return EndPull(id, Lost(item.piece.partition), work);
    }
    work.learns_map |= IsNone(entry.primary);  // until somebody is back
    if (IsNone(entry.primary)) continue;
    item.asked = entry.epoch;
    const auto [it, is_new] =
        call_to.try_emplace(entry.primary, work.pulls.size());
    if (is_new) {
      Work::PullCall& call = work.pulls.emplace_back();
      call.to = entry.primary;
      call.pull = id;
      call.timeout = std::clamp(pull.deadline - SteadyClock().Now(),
                                absl::Milliseconds(1), kPullTimeout);
      call.request.set_table(options_.spec.name());
      call.request.set_generation(options_.generation);
      call.request.set_opening(options_.opening);
      call.request.set_opened_at(options_.opened_at);
      SetKey(call.to, call.request.mutable_to());
      call.request.set_rank(options_.rank);
      if (pull.clock.has_value()) call.request.set_clock(*pull.clock);
    }
    Work::PullCall& call = work.pulls[it->second];
    v1::PullSpan* span = call.request.add_spans();
    span->set_partition(static_cast<uint32_t>(item.piece.partition));
    span->set_epoch(entry.epoch);
    if (is_sync()) {
      span->set_through(static_cast<uint64_t>(pull.version));
    } else {
      const auto pushes = windows_.find(kPushes);
      span->set_client(client_);
      span->set_through(
          pushes == windows_.end()
              ? 0
              : pushes->second.window.Read(item.piece.partition).through);
    }
    call.payloads.push_back(item.piece.payload);
    call.items.push_back(i);
  }
}

void ReplicatedTableClient::EndPull(uint64_t id, const absl::Status& status,
                                    Work& work) {
  const auto it = pulls_.find(id);
  if (it == pulls_.end()) return;
  auto pull = std::make_shared<PullOperation>(std::move(it->second));
  pulls_.erase(it);
  work.done.push_back([pull, status] {
    if (!status.ok()) {
      pull->promise.Set(status);
      return;
    }
    std::vector<Bytes> values;
    for (PullOperation::Item& item : pull->items) {
      values.push_back(std::move(item.values));
    }
    pull->promise.Set(std::move(values));
  });
}

void ReplicatedTableClient::OnPulled(
    const Work::PullCall& call, const absl::StatusOr<PullSpansReply>& reply) {
  Work work;
  {
    MutexLock lock(mu_);
    const auto it = pulls_.find(call.pull);
    if (it == pulls_.end()) return;
    PullOperation& pull = it->second;
    NoteEnd(call.to, reply.status());
    if (reply.ok()) heard_at_ = SteadyClock().Now();
    const v1::PullReply* const answered =
        reply.ok() ? &std::get<0>(*reply) : nullptr;
    const std::vector<Bytes> values =
        reply.ok() ? AlignedAll(std::get<1>(*reply)) : std::vector<Bytes>();
    absl::Status failed = reply.status();
    if (reply.ok() && answered->spans_size() != call.request.spans_size()) {
      failed = absl::InternalError("a server answered other spans than asked");
      EndPull(call.pull, failed, work);
    } else if (!failed.ok() && IsForGood(failed)) {
      EndPull(call.pull, failed, work);
    } else {
      if (absl::IsNotFound(failed)) work.opens.push_back(call.to);
      size_t next_value = 0;
      bool asks_again = !failed.ok();
      absl::Status for_good;
      for (size_t i = 0; i < call.items.size(); ++i) {
        PullOperation::Item& item = pull.items[call.items[i]];
        const uint64_t epoch = call.request.spans(static_cast<int>(i)).epoch();
        Bytes value;
        absl::Status refused = failed;
        bool is_read = false;
        if (answered != nullptr) {
          const v1::SpanAnswer& span = answered->spans(static_cast<int>(i));
          refused = StatusOf(span);
          is_read = refused.ok() && span.code() == static_cast<int>(Code::kOk);
          if (is_read && next_value < values.size()) {
            value = values[next_value++];
          }
        }
        // An answer of an epoch that this client has left may be old.
        if (item.is_done || item.asked != epoch) continue;
        if (is_read) {
          item.is_done = true;
          item.values = std::move(value);
          --pull.left;
          continue;
        }
        if (!refused.ok()) {
          if (answered != nullptr || pull.last.ok()) pull.last = refused;
          if (IsForGood(refused)) {
            for_good = refused;
            break;
          }
        }
        item.asked = 0;
        asks_again = true;
      }
      if (!for_good.ok()) {
        EndPull(call.pull, for_good, work);
      } else if (pull.left == 0) {
        EndPull(call.pull, absl::OkStatus(), work);
      } else if (asks_again) {
        pull.ask_at = SteadyClock().Now() + kAskAgainAfter;
        work.learns_map = true;
      }
    }
    if (answered != nullptr && answered->map_epoch() > map_.epoch()) {
      work.learns_map = true;
    }
  }
  Finish(std::move(work));
}

}  // namespace weft::ps
