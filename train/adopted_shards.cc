// AdoptedShards: see the header.

#include "weft/train/adopted_shards.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::train {
namespace {

std::string TrainerName(int rank) { return absl::StrCat("trainer", rank); }

// Whether a trainer of that rank was there and is not any more.
bool HasDeparted(const rendezvous::View& view, int rank) {
  const std::string name = TrainerName(rank);
  return std::any_of(
      view.departed().begin(), view.departed().end(),
      [&](const rendezvous::Departed& gone) { return gone.name == name; });
}

}  // namespace

AdoptedShards::AdoptedShards(worker::Worker& worker, const RunningJob& running,
                             Load load)
    : worker_(worker), running_(running), load_(std::move(load)) {}

void AdoptedShards::BeginRound() {
  for (auto& [number, shard] : shards_) shard.has_given = false;
}

// A trainer that comes back waits for the newest round of its table: one that
// its predecessor gave to some servers only, and that others have to close.
absl::StatusOr<bool> AdoptedShards::IsMissing(const rendezvous::View& view,
                                              int rank) {
  if (!HasDeparted(view, rank)) return false;
  const rendezvous::Member* const trainer = view.Find(TrainerName(rank));
  if (trainer == nullptr) return true;
  if (back_.count(trainer->key) != 0) return false;
  WEFT_ASSIGN_OR_RETURN(const bool trains, running_.Trains(*trainer));
  if (trains) back_.insert(trainer->key);
  return !trains;
}

absl::StatusOr<std::vector<int>> AdoptedShards::FindMine() {
  const auto view = worker_.membership().view();
  std::vector<int> live, orphans;
  for (int rank = 0; rank < worker_.options().trainers; ++rank) {
    const bool is_self = rank == worker_.options().rank;
    WEFT_ASSIGN_OR_RETURN(const bool is_missing,
                          is_self ? false : IsMissing(*view, rank));
    if (is_missing) {
      orphans.push_back(rank);
    } else if (view->Find(TrainerName(rank)) != nullptr) {
      live.push_back(rank);
    }
  }
  std::vector<int> mine;
  for (int shard : orphans) {
    if (live.empty()) break;
    const int server = live[static_cast<size_t>(shard) % live.size()];
    if (server == worker_.options().rank) mine.push_back(shard);
  }
  return mine;
}

absl::Status AdoptedShards::Serve(
    const input::ShardedSampler::State& place,
    absl::FunctionRef<absl::Status(int shard, const input::Example& batch)>
        give) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<int> mine, FindMine());
  for (auto it = shards_.begin(); it != shards_.end();) {
    const bool is_mine =
        std::find(mine.begin(), mine.end(), it->first) != mine.end();
    it = is_mine ? std::next(it) : shards_.erase(it);
  }
  for (int number : mine) {
    Shard& shard = shards_[number];
    if (shard.has_given) continue;
    if (shard.loader == nullptr) {
      WEFT_ASSIGN_OR_RETURN(shard.loader, load_(number));
      WEFT_RETURN_IF_ERROR(shard.loader->LoadState(place));
    }
    WEFT_ASSIGN_OR_RETURN(const std::optional<input::Example> batch,
                          shard.loader->Next());
    if (!batch.has_value()) {
      return absl::InternalError(absl::StrCat(
          "shard ", number, " of the data ended before the others"));
    }
    WEFT_RETURN_IF_ERROR(give(number, *batch));
    shard.has_given = true;
  }
  return absl::OkStatus();
}

}  // namespace weft::train
