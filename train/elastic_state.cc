// How the ranks of a DataParallelTraining that have met give the state to those
// that lack it (core/state_handover.h, state_parts.h).

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/failpoint.h"
#include "weft/base/status_macros.h"
#include "weft/train/core/state_handover.h"
#include "weft/train/data_parallel_training.h"
#include "weft/train/state/first_copy.h"
#include "weft/train/state_parts.h"

namespace weft::train {
namespace {

// The first tag of the messages of the hand-over.
constexpr uint64_t kStateTag = 0x57656674'53746174;

}  // namespace

// One hand-over: what the ranks of a group do together, after Do(ShareState).
class DataParallelTraining::Handover {
 public:
  Handover(DataParallelTraining& training, std::vector<bool> holds, int source)
      : training_(training),
        group_(*training.group_),
        holds_(std::move(holds)),
        source_(source),
        update_(training.UpdateStateInPlace()),
        parts_(training.StateTensors(update_)),
        core_(holds_, source, parts_.bytes()) {}

  absl::Status Run() {
    training_.given_bytes_ = 0;
    if (!is_holder()) {
      WEFT_RETURN_IF_ERROR(WEFT_FAILPOINT("train/take_state"));
    }
    WEFT_ASSIGN_OR_RETURN(std::vector<int> lacks, LackedAtFirst());
    for (;;) {
      WEFT_ASSIGN_OR_RETURN(const auto told, Tell(lacks));
      const auto transfers = core_.NextRound(told);
      const auto wrong = core_.Unobtainable(group_.rank());
      if (wrong.has_value()) return NothingRight(*wrong);
      if (transfers.empty()) break;
      WEFT_RETURN_IF_ERROR(Move(transfers));
      if (is_holder()) continue;
      lacks = parts_.Differing(wanted_);
      NameWrong(transfers, lacks);
    }
    if (is_holder()) return absl::OkStatus();
    parts_.WriteBack();
    return training_.LoadUpdateState(update_);
  }

 private:
  bool is_holder() const { return holds_[group_.rank()]; }

  // All, but for what has come before: of this state before a rank was lost, or
  // of a first copy, of which the hashes of the source show what has changed
  // since. Where any rank has that all are told the hashes first.
  absl::StatusOr<std::vector<int>> LackedAtFirst() {
    std::optional<ReceivedState>& received = training_.received_;
    const int64_t steps = training_.places_[source_].rank.position.steps;
    if (received.has_value() && received->steps != steps) received.reset();
    const bool has_some = !is_holder() && training_.has_parts_of_others_;
    const bool asks = has_some && !received.has_value();
    const Tensor asking = Tensor::Scalar<int64_t>(asks ? 1 : 0);
    WEFT_RETURN_IF_ERROR(group_.AllReduce(asking));
    std::vector<uint64_t> own;
    if (asks) own = parts_.Hashes();  // while the source computes its own
    if (asking.item<int64_t>() > 0) WEFT_RETURN_IF_ERROR(TellHashes());
    if (is_holder()) return std::vector<int>();
    if (asks) return parts_.DifferingOf(own, wanted_);
    return received.has_value() && has_some ? parts_.Differing(received->hashes)
                                            : parts_.All();
  }

  // Tells the others what this rank lacks. Returns what each rank lacks.
  absl::StatusOr<std::vector<std::vector<int>>> Tell(
      const std::vector<int>& lacks) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> said,
                          group_.AllGatherBytes(FormatParts(lacks)));
    std::vector<std::vector<int>> told;
    for (const std::string& text : said) {
      WEFT_ASSIGN_OR_RETURN(std::vector<int> parts,
                            ParseParts(text, parts_.size()));
      told.push_back(std::move(parts));
    }
    return told;
  }

  // The source computes its hashes while the parts are on their way.
  absl::Status Move(const std::vector<StateHandover::Transfer>& transfers) {
    std::vector<collectives::PointToPoint> moves;
    std::vector<std::pair<int, Tensor>> incoming;
    for (const StateHandover::Transfer& one : transfers) {
      const uint64_t tag = kStateTag + static_cast<uint64_t>(one.part);
      if (one.from == group_.rank()) {
        moves.push_back({collectives::PointToPoint::kSend,
                         parts_.Outgoing(one.part), one.to, tag});
      } else if (one.to == group_.rank()) {
        incoming.emplace_back(one.part, parts_.Incoming(one.part));
        training_.given_bytes_ += incoming.back().second.bytes();
        moves.push_back({collectives::PointToPoint::kReceive,
                         incoming.back().second, one.from, tag});
      }
    }
    if (!incoming.empty()) training_.has_parts_of_others_ = true;
    std::optional<Future<void>> moved;
    if (!moves.empty()) moved = group_.ExchangeAsync(moves);
    const absl::Status told = wanted_.empty() ? TellHashes() : absl::OkStatus();
    // Whatever has come of that: nothing is written any more after this. It has
    // a deadline of its own.
    if (moved.has_value()) {
      WEFT_RETURN_IF_ERROR(moved->Wait(absl::InfiniteDuration()));
    }
    WEFT_RETURN_IF_ERROR(told);
    for (const auto& [part, tensor] : incoming) parts_.Place(part, tensor);
    return absl::OkStatus();
  }

  absl::Status TellHashes() {
    std::string own;
    if (group_.rank() == source_) own = FormatHashes(parts_.Hashes());
    WEFT_ASSIGN_OR_RETURN(const std::string said,
                          group_.BroadcastBytes(own, source_));
    WEFT_ASSIGN_OR_RETURN(wanted_, ParseHashes(said, parts_.pieces()));
    if (!is_holder()) {
      training_.received_ = ReceivedState{
          training_.places_[source_].rank.position.steps, wanted_};
    }
    return absl::OkStatus();
  }

  void NameWrong(const std::vector<StateHandover::Transfer>& transfers,
                 const std::vector<int>& lacks) {
    for (const StateHandover::Transfer& one : transfers) {
      const bool is_wrong =
          one.to == group_.rank() &&
          std::binary_search(lacks.begin(), lacks.end(), one.part);
      if (!is_wrong) continue;
      WEFT_LOG(training_.logger_, Warning,
               "a rank has sent a part of the state that is wrong; another is "
               "asked")
          .With("from_rank", one.from)
          .With("wanted", parts_.Difference(one.part, wanted_));
    }
  }

  absl::Status NothingRight(int part) const {
    return absl::DataLossError(absl::StrCat(
        "this rank has other bits than rank ", source_,
        ", whose state it was given: wanted ", parts_.Difference(part, wanted_),
        ", of each of ranks ",
        absl::StrJoin(core_.SentWrong(group_.rank(), part), ", "),
        "; do parts of the model share memory on this rank alone?"));
  }

  DataParallelTraining& training_;
  collectives::ProcessGroup& group_;
  const std::vector<bool> holds_;
  const int source_;
  absl::btree_map<std::string, Tensor> update_;
  StateParts parts_;
  StateHandover core_;
  std::vector<uint64_t> wanted_;  // the source's hashes, once they are known
};

std::vector<StateParts::NamedTensor> DataParallelTraining::StateTensors(
    const absl::btree_map<std::string, Tensor>& update) const {
  std::vector<StateParts::NamedTensor> tensors;
  for (const nn::NamedParameter& parameter : parts_.model->NamedParameters()) {
    tensors.push_back({absl::StrCat("parameter ", parameter.name),
                       parameter.variable.value()});
  }
  for (const nn::NamedBuffer& buffer : parts_.model->NamedBuffers()) {
    tensors.push_back({absl::StrCat("buffer ", buffer.name), buffer.tensor});
  }
  for (const auto& [name, tensor] : update) {
    tensors.push_back({absl::StrCat("optimizer state ", name), tensor});
  }
  return tensors;
}

// All ranks of the group do this after the same step, with the same bits.
DataParallelTraining::Elastic::Prepare DataParallelTraining::PrepareToGive() {
  const auto update = UpdateStateInPlace();
  const auto tensors = StateTensors(update);
  const bool is_here =
      std::all_of(tensors.begin(), tensors.end(),
                  [](const auto& one) { return one.tensor.device().is_cpu(); });
  auto copy = std::make_shared<FirstCopy>();
  if (is_here) {  // that of a device would be copied as a whole
    *copy =
        FirstCopy::OfGiver(StateParts(tensors), group_->rank(), group_->size(),
                           steps(), Place().rank.fingerprint);
  }
  return [copy](collectives::ProcessGroup& group) { copy->Run(group); };
}

// Called by Elastic::join, on this thread. One that has a place needs no first
// copy: it is behind by a step.
DataParallelTraining::Elastic::Prepare DataParallelTraining::PrepareToTake() {
  return [this](collectives::ProcessGroup& group) {
    if (commit_.is_known()) {
      FirstCopy().Run(group);
      return;
    }
    const auto update = UpdateStateInPlace();
    const StateParts parts(StateTensors(update));
    // Its own is kept until it takes part: the others may all end before.
    const auto keep = [this] {
      if (!kept_.has_value()) KeepState();
      has_parts_of_others_ = true;
    };
    FirstCopy copy = FirstCopy::OfTaker(parts, Place().rank.fingerprint);
    if (!copy.Run(group, keep)) return;
    parts.WriteBack();
    // What cannot be loaded is sent again.
    LoadUpdateState(update).IgnoreError();
  };
}

absl::Status DataParallelTraining::CheckOwnState() const {
  if (!has_parts_of_others_) return absl::OkStatus();
  return absl::UnavailableError(
      "the ranks that trained died while they gave this one their state; "
      "nobody trains any more, there is no checkpoint, and it cannot begin "
      "with a part of that: wanted a new process in its place (weft run starts "
      "one)");
}

// Those who have taken as many steps as the source have its bits (StepCommit's
// C1): where all have, nothing is sent or hashed.
absl::Status DataParallelTraining::ShareState(int source) {
  WEFT_RETURN_IF_ERROR(MakeReplicas(ddp::VirtualShards::kNoRoot));
  const RankPlace& wanted = places_[source].rank;
  std::vector<bool> holds;
  for (const TrainingPlace& place : places_) {
    holds.push_back(place.rank.is_known &&
                    place.rank.position.steps == wanted.position.steps);
  }
  if (std::all_of(holds.begin(), holds.end(), [](bool one) { return one; })) {
    return absl::OkStatus();
  }
  WEFT_RETURN_IF_ERROR(Handover(*this, std::move(holds), source).Run());
  return has_tables() ? ShareParts(source) : absl::OkStatus();
}

}  // namespace weft::train
