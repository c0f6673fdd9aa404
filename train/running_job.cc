// RunningJob: see the header.

#include "weft/train/running_job.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/store.h"
#include "weft/rendezvous/view.h"

namespace weft::train {
namespace {

constexpr char kStart[] = "trainers/start";
constexpr absl::Duration kStoreTimeout = absl::Minutes(2);

std::string TrainingKey(absl::string_view trainer) {
  return absl::StrCat("trainers/training/", trainer);
}

// Counts batches from here to the epoch's end.
int64_t Batches(const input::ShardedSampler& sampler, int64_t batch_size) {
  return (sampler.remaining() + batch_size - 1) / batch_size;
}

}  // namespace

absl::StatusOr<std::string> RunningJob::FindTrainer() const {
  const auto view = membership_.view();
  for (int rank = 0; rank < trainers_; ++rank) {
    if (rank == rank_) continue;
    const rendezvous::Member* const member =
        view->Find(absl::StrCat("trainer", rank));
    if (member == nullptr) continue;
    WEFT_ASSIGN_OR_RETURN(const bool trains, Trains(*member));
    if (trains) return member->name;
  }
  return "";
}

absl::StatusOr<bool> RunningJob::Trains(
    const rendezvous::Member& trainer) const {
  const auto entry =
      membership_.store().Get(TrainingKey(trainer.name), kStoreTimeout);
  if (absl::IsNotFound(entry.status())) return false;
  WEFT_RETURN_IF_ERROR(entry.status());
  // An earlier incarnation may have left its own.
  return entry->value == absl::StrCat(trainer.incarnation);
}

std::string RunningJob::FormatStart(const Start& start) {
  return absl::StrCat(start.round, ":", start.place.ToString());
}

absl::StatusOr<RunningJob::Start> RunningJob::ParseStart(
    absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  Start start;
  if (!absl::SimpleAtoi(parts.first, &start.round)) {
    return absl::InternalError(
        absl::StrCat("no round in the place to start at: ", text));
  }
  WEFT_ASSIGN_OR_RETURN(start.place,
                        input::ShardedSampler::State::Parse(parts.second));
  return start;
}

absl::Status RunningJob::SetStart(const Start& start) {
  return membership_.store()
      .Set(kStart, FormatStart(start), kStoreTimeout)
      .status();
}

absl::StatusOr<RunningJob::Start> RunningJob::GetStart() const {
  WEFT_ASSIGN_OR_RETURN(const rendezvous::StoreEntry entry,
                        membership_.store().Get(kStart, kStoreTimeout));
  return ParseStart(entry.value);
}

absl::Status RunningJob::BeginTraining() {
  const rendezvous::Member& self = membership_.self();
  return membership_.store()
      .Set(TrainingKey(self.name), absl::StrCat(self.incarnation),
           kStoreTimeout)
      .status();
}

absl::StatusOr<input::ShardedSampler::State> PlaceAfter(
    input::ShardedSampler sampler, const input::ShardedSampler::State& start,
    int64_t rounds, int64_t batch_size) {
  WEFT_RETURN_IF_ERROR(sampler.LoadState(start));
  int64_t batches = Batches(sampler, batch_size);
  if (rounds >= batches) {
    rounds -= batches;
    sampler.SetEpoch(start.epoch + 1);
    batches = Batches(sampler, batch_size);
    sampler.SetEpoch(start.epoch + 1 + rounds / batches);
    rounds %= batches;
  }
  return sampler.StateAfter(rounds * batch_size);
}

}  // namespace weft::train
