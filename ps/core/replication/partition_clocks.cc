#include "weft/ps/core/replication/partition_clocks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft::ps {

PartitionClocks::Answer PartitionClocks::CheckTick(int rank, ClientId client,
                                                   int64_t clock) const {
  const ClockGate::Clock* const mine = gate_.Find(rank);
  if (mine == nullptr || mine->holder.client != client) {
    return Answer::kNotHolder;
  }
  if (clock > ClockGate::kMostClock) return Answer::kTooFar;
  return clock < mine->at ? Answer::kBack : Answer::kOk;
}

void PartitionClocks::Join(int rank, Holder holder, int64_t at) {
  const ClockGate::Clock* const had = gate_.Find(rank);
  if (had != nullptr) waiting_.erase(had->holder.client);
  gate_.Set(rank, std::move(holder), at);
}

void PartitionClocks::Add(ClientId client, Waiting waiting) {
  const ClockGate::Clock* const mine = gate_.Find(waiting.rank);
  // Of a client that has no clock any more, or was closed at this copy.
  if (mine == nullptr || mine->holder.client != client) return;
  waiting_[client][waiting.n] = waiting;
}

void PartitionClocks::Tick(int rank, ClientId client, int64_t clock,
                           uint64_t n) {
  Add(client, {n, rank, clock, false});
}

void PartitionClocks::Leave(int rank, ClientId client, uint64_t n) {
  Add(client, {n, rank, 0, true});
}

void PartitionClocks::Applied(ClientId client, uint64_t through) {
  const auto it = waiting_.find(client);
  if (it == waiting_.end()) return;
  std::map<uint64_t, Waiting>& waiting = it->second;
  while (!waiting.empty() && waiting.begin()->first <= through) {
    const Waiting next = waiting.begin()->second;
    waiting.erase(waiting.begin());
    if (next.leaves) {
      gate_.Leave(next.rank, client);
    } else {
      // One that goes back, which its primary would have refused, is nothing.
      (void)gate_.Tick(next.rank, client, next.clock);
    }
  }
  if (waiting.empty()) waiting_.erase(it);
}

PartitionClocks::State PartitionClocks::Save() const {
  State state;
  state.floor = gate_.floor();
  for (const auto& [rank, clock] : gate_.clocks()) {
    State::OfRank& to = state.ranks.emplace_back();
    to.rank = rank;
    to.clock = clock;
    const auto its = waiting_.find(clock.holder.client);
    if (its == waiting_.end()) continue;
    for (const auto& [n, waiting] : its->second) {
      if (waiting.rank == rank) to.waiting.push_back(waiting);
    }
  }
  return state;
}

void PartitionClocks::Load(const State& state) {
  gate_ = ClockGate(gate_.staleness());
  waiting_.clear();
  for (const State::OfRank& from : state.ranks) {
    gate_.Set(from.rank, from.clock.holder, from.clock.at);
    for (Waiting waiting : from.waiting) {
      waiting.rank = from.rank;
      Add(from.clock.holder.client, waiting);
    }
  }
  gate_.RaiseFloor(state.floor);
}

std::string PartitionClocks::FaultOf(const State& state) {
  const auto is_clock = [](int64_t clock) {
    return clock >= 0 && clock <= ClockGate::kMostClock;
  };
  if (!is_clock(state.floor)) {
    return absl::StrCat("the lowest clock is ", state.floor, ", wanted 0 to ",
                        ClockGate::kMostClock);
  }
  if (state.ranks.size() > ClockGate::kMostClocks) {
    return absl::StrCat(state.ranks.size(), " clocks, at most ",
                        ClockGate::kMostClocks, " may be");
  }
  int last = -1;
  for (const State::OfRank& of_rank : state.ranks) {
    if (of_rank.rank <= last) {
      return absl::StrCat("clock of rank ", of_rank.rank, " after that of ",
                          last, ": wanted ascending ranks of at least 0");
    }
    last = of_rank.rank;
    const bool fits =
        is_clock(of_rank.clock.at) &&
        of_rank.clock.holder.name.size() <= kMostName &&
        of_rank.waiting.size() <= SequenceWindow::kWidth &&
        std::all_of(of_rank.waiting.begin(), of_rank.waiting.end(),
                    [&](const Waiting& w) { return is_clock(w.clock); });
    if (!fits) {
      return absl::StrCat("clock ", of_rank.clock.at, " of rank ", last,
                          " with ", of_rank.waiting.size(),
                          " ticks: beyond a limit");
    }
  }
  return "";
}

std::string PartitionClocks::Snapshot() const {
  std::string out = absl::StrCat(gate_.least(), "<", gate_.floor());
  for (const State::OfRank& of_rank : Save().ranks) {
    absl::StrAppend(&out, ";", of_rank.rank, ":", of_rank.clock.holder.client,
                    "@", of_rank.clock.at);
    for (const Waiting& waiting : of_rank.waiting) {
      absl::StrAppend(&out, ",", waiting.n, waiting.leaves ? "leaves" : "=",
                      waiting.clock);
    }
  }
  return out;
}

}  // namespace weft::ps
