#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status_macros.h"
#include "weft/ps/shard/shard_tensors.h"
#include "weft/ps/shard/table_shard.h"

// SYNC: parts, the rounds that they close, and pulls that wait for one.

namespace weft::ps {
namespace {

using internal::BytesOf;

}  // namespace

Future<ShardReply> TableShard::HandleInRound(const v1::Request& request,
                                             Part part, const Tensor& pull_keys,
                                             Instant deadline) {
  int64_t wanted = request.round();
  v1::Reply reply;
  Closed closed;
  std::optional<Future<ShardReply>> parked;
  {
    MutexLock lock(mu_);
    const absl::Status serving = CheckServing();
    if (!serving.ok()) return MakeReady<ShardReply>(serving);
    if (request.push()) {
      const absl::Status given = GivePart(request, std::move(part), reply);
      if (!given.ok()) return MakeReady<ShardReply>(given);
      closed = CloseRounds(request.pull());
      ++wanted;
    }
    if (request.pull() && gate_.open() < wanted) {
      absl::StatusOr<Future<ShardReply>> waits =
          ParkForRound(wanted, deadline, pull_keys);
      parked = waits.ok() ? *std::move(waits)
                          : MakeReady<ShardReply>(waits.status());
    }
  }
  std::optional<ShardReply> own = Answer(std::move(closed));
  if (parked.has_value()) return *std::move(parked);
  if (own.has_value() && request.pull()) {
    return MakeReady<ShardReply>(Pulled(pull_keys, *std::move(own)));
  }
  return AnswerNow(request, pull_keys, std::move(reply));
}

absl::StatusOr<Future<ShardReply>> TableShard::ParkForRound(
    int64_t wanted, Instant deadline, const Tensor& keys) {
  // Whoever has pushed to as many rounds as are kept waits for the last of
  // them.
  constexpr int64_t kFarthest = RoundGate<Part>::kLookahead + 1;
  if (wanted - gate_.open() > kFarthest) {
    return absl::FailedPreconditionError(
        absl::StrCat("pull from table '", spec().name(), "' on server ",
                     server_, ": version ", wanted, " is too far ahead: round ",
                     gate_.open(), " is open, and at most ", kFarthest,
                     " rounds are waited for; open the table again"));
  }
  Parked waiting;
  waiting.version = wanted;
  waiting.deadline = deadline;
  waiting.keys = keys;
  return Park(std::move(waiting));
}

absl::StatusOr<Future<ShardReply>> TableShard::Park(Parked waiting) {
  if (parked_.size() >= kMostParked) {
    return absl::ResourceExhaustedError(
        absl::StrCat("pull from table '", spec().name(), "' on server ",
                     server_, ": ", parked_.size(), " pulls wait already; ",
                     WaitsFor(), "; pull again later"));
  }
  WEFT_ASSIGN_OR_RETURN(
      waiting.hold,
      Hold(BytesOf(waiting.keys), budget_ == nullptr ? 0 : budget_->most(),
           "the keys of a pull"));
  auto [promise, future] = MakePromise<ShardReply>();
  waiting.promise = std::move(promise);
  waiting.since = SteadyClock().Now();
  parked_.push_back(std::move(waiting));
  return std::move(future);
}

absl::Status TableShard::GivePart(const v1::Request& request, Part part,
                                  v1::Reply& reply) {
  using Answer = RoundGate<Part>::Answer;
  const auto refuse = [&](const auto&... why) {
    return absl::FailedPreconditionError(absl::StrCat(
        "table '", spec().name(), "': part of shard ", request.shard(),
        " by rank ", request.rank(), " in round ", request.round(), why...));
  };
  // The open round's part is always one that it waits for.
  const bool is_ahead = request.round() > gate_.open();
  const int64_t most = budget_ == nullptr ? 0 : budget_->most();
  WEFT_ASSIGN_OR_RETURN(part.hold,
                        Hold(BytesOf(part.keys) + BytesOf(part.values),
                             is_ahead ? most / 2 : most,
                             is_ahead ? "a part of a round that is ahead"
                                      : "a part of the open round"));
  // Before it is taken: its round waits for it, and no server applies the round
  // of its partitions without it. One that was taken is sent again in vain.
  const bool is_new =
      request.round() >= gate_.open()
          ? gate_.Find(request.shard(), request.round()) == nullptr
          : gate_.WouldFold(request.shard(), request.round());
  if (is_new) {
    WEFT_ASSIGN_OR_RETURN(part.rows, HoldRows(part));
  }
  const auto partitions = static_cast<int64_t>(part.spans.size());
  switch (gate_.Give(request.shard(), request.rank(), request.round(),
                     std::move(part), request.take_over())) {
    case Answer::kKept:
      return absl::OkStatus();
    case Answer::kInherited:
    case Answer::kApplied:
      metrics_.Repeated(partitions);
      return absl::OkStatus();
    case Answer::kFolded:
      ++late_folded_;
      reply.set_late(v1::Reply::FOLDED);
      return absl::OkStatus();
    case Answer::kDropped:
      ++late_dropped_;
      reply.set_late(v1::Reply::DROPPED);
      return absl::OkStatus();
    case Answer::kDuplicate:
      if (gate_.Find(request.shard(), request.round())->client ==
          request.client()) {
        metrics_.Repeated(partitions);
        return absl::OkStatus();
      }
      return refuse(
          " was given by another client; each worker needs a rank of its own, "
          "and a table that is opened again goes on with the next round");
    case Answer::kMissed:
      return refuse(
          " came after the round had closed without it: the rank had "
          "been declared dead; pull and go on with round ",
          gate_.open());
    case Answer::kTooFar:
      return refuse(" is too far ahead: round ", gate_.open(),
                    " is open, and waits for ", MissingParts());
    case Answer::kNotOwner:
      return refuse(": rank ", gate_.OwnerOf(request.shard()),
                    " serves this shard; leave it to that one, or take it over "
                    "if that one died");
    case Answer::kUnknown:
      return refuse(
          ": no such shard, or its rank was declared dead; the table "
          "was made for ",
          gate_.shards(), " shards, ", gate_.counted(), " of them count");
  }
  return absl::InternalError("unreachable");
}

TableShard::Closed TableShard::CloseRounds(bool is_pulled) {
  Closed closed;
  const bool is_read = layout_->is_dense() && (is_pulled || !parked_.empty());
  for (;;) {
    const int64_t round = gate_.open();
    const std::vector<Part> parts = gate_.Close();
    if (parts.empty()) break;
    if (is_read && !closed.values.defined()) {
      closed.values = Tensor::Empty({dense_.elements});
    }
    ApplyRound(parts, rates_.At(round),
               is_read ? closed.values.data<float>() : nullptr);
    rates_.Trim(gate_.open());
  }
  closed.version = gate_.open();
  const auto still_parked = std::partition(
      parked_.begin(), parked_.end(),
      [this](const Parked& p)
          ABSL_NO_THREAD_SAFETY_ANALYSIS { return p.version > gate_.open(); });
  std::move(still_parked, parked_.end(), std::back_inserter(closed.released));
  parked_.erase(still_parked, parked_.end());
  return closed;
}

void TableShard::ApplyRound(const std::vector<Part>& parts, double lr_scale,
                            float* values) {
  const float scale = spec().reduction() == v1::TableSpec::MEAN
                          ? 1.0f / static_cast<float>(parts.size())
                          : 1.0f;
  std::vector<std::vector<PushSpan>> spans;  // of each part
  for (const Part& part : parts) spans.push_back(SpansOf(part));
  std::vector<size_t> next(parts.size(), 0);
  std::vector<PushSpan> together;  // of one partition
  Instant began = SteadyClock().Now();
  // The spans of a part are in the order in which the partitions come here.
  const auto apply = [&](size_t p) {
    together.clear();
    for (size_t i = 0; i < parts.size(); ++i) {
      if (next[i] == spans[i].size()) continue;
      if (parts[i].spans[next[i]].partition != p) continue;
      together.push_back(spans[i][next[i]++]);
    }
    Partition& partition = *partitions_[p];
    if (values != nullptr) {
      values = together.empty() ? partition.Read(DenseGroup(p)->slices, values)
                                : partition.ApplySumAndRead(together, scale,
                                                            lr_scale, values);
    } else if (!together.empty() || layout_->limits().any()) {
      // For the partitions of a bounded table without keys this round counts
      // too.
      partition.ApplySum(together, scale, lr_scale);
    }
    if (together.empty() && values == nullptr) return;
    const Instant ended = SteadyClock().Now();
    load_.Busy(static_cast<int>(p), ended - began);
    began = ended;
  };
  if (layout_->is_dense()) {
    for (const DensePart::Group& group : dense_.groups) apply(group.partition);
    return;
  }
  for (size_t p = 0; p < partitions_.size(); ++p) {
    if (partitions_[p] != nullptr) apply(p);
  }
}

std::optional<ShardReply> TableShard::Answer(Closed closed) {
  std::optional<ShardReply> of_all;
  if (closed.values.defined()) {
    of_all = ReplyOf(Tensor(), std::move(closed.values), closed.version);
  }
  for (Parked& parked : closed.released) {
    ShardReply reply =
        of_all.has_value() ? *of_all : Read(parked.keys, closed.version);
    parked.promise.Set(Pulled(parked.keys, std::move(reply)));
  }
  return of_all;
}

std::string TableShard::MissingParts() const {
  constexpr size_t kShown = 16;
  std::vector<int> missing = gate_.Missing();
  const size_t more = missing.size() - std::min(missing.size(), kShown);
  missing.resize(missing.size() - more);
  std::string text;
  if (spec().has_quorum()) {
    absl::StrAppend(&text, gate_.Needed(), " more of ");
  }
  text += absl::StrJoin(
      missing, ", ",
      [this](std::string* out, int shard) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        const int owner = gate_.OwnerOf(shard);
        absl::StrAppend(out, "shard ", shard,
                        owner < 0 ? ", which nobody serves"
                                  : absl::StrCat(" of rank ", owner));
      });
  if (more > 0) absl::StrAppend(&text, " and ", more, " more");
  return text;
}

std::string TableShard::WaitsFor() const {
  if (!is_sync()) return SlowestClock();
  return absl::StrCat("round ", gate_.open(), " waits for ", MissingParts());
}

void TableShard::DeclareDead(int rank) {
  Closed closed;
  {
    MutexLock lock(mu_);
    gate_.DeclareDead(rank);
    closed = CloseRounds(/*is_pulled=*/false);
  }
  (void)Answer(std::move(closed));
}

void TableShard::Admit(int rank) {
  MutexLock lock(mu_);
  gate_.Admit(rank);
}

}  // namespace weft::ps
