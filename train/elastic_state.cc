// How the ranks of a DataParallelTraining that have met give the state to those
// that lack it (core/state_handover.h, state_parts.h).

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/clock.h"
#include "weft/base/failpoint.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/train/core/state_handover.h"
#include "weft/train/data_parallel_training.h"
#include "weft/train/state/first_copy.h"
#include "weft/train/state/given_share.h"
#include "weft/train/state/receive_parts.h"
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
        core_(holds_, source, parts_.bytes(), training.elastic_.stretch_bytes),
        compares_(!is_holder() && training.has_parts_of_others_),
        own_(training.own_hashes_.value_or(std::vector<uint64_t>())) {
    if (own_.size() != parts_.pieces()) own_.clear();
  }

  absl::Status Run() {
    training_.given_bytes_ = 0;
    lap_ = SteadyClock().Now();
    training_.Works("beginning to take the state");
    if (!is_holder()) {
      WEFT_RETURN_IF_ERROR(WEFT_FAILPOINT("train/take_state"));
    }
    WEFT_RETURN_IF_ERROR(RunRounds());
    if (is_holder()) return absl::OkStatus();
    training_.Works("loading the state");
    parts_.WriteBack();
    return training_.LoadUpdateState(update_);
  }

 private:
  static constexpr int64_t kBatchWords = std::tuple_size_v<Batches>;

  bool is_holder() const { return holds_[group_.rank()]; }
  bool is_source() const { return group_.rank() == source_; }

  // What has passed since the last call was of this phase.
  void Lap(absl::Duration HandoverTimes::*phase) {
    const Instant now = SteadyClock().Now();
    training_.times_.*phase += now - std::exchange(lap_, now);
  }

  // Who lacks parts compares them as they come, and the source hashes the next
  // stretch meanwhile.
  absl::Status RunRounds() {
    std::vector<int> lacks;
    std::vector<uint64_t> hashes = NextHashes();
    for (;;) {
      const StateHandover::Stretch stretch = core_.stretch();
      WEFT_ASSIGN_OR_RETURN(const auto told, Tell(hashes, lacks));
      const auto transfers = core_.NextRound(told);
      const auto wrong = core_.Unobtainable(group_.rank());
      if (wrong.has_value()) return NothingRight(*wrong);
      if (core_.is_over()) return absl::OkStatus();
      if (is_holder()) {
        WEFT_ASSIGN_OR_RETURN(hashes, Give(transfers));
        continue;
      }
      lacks = LackedOf(stretch);
      WEFT_RETURN_IF_ERROR(Take(transfers, &lacks));
      hashes = NextHashes();
      // What came later may have been written over what was right.
      if (stretch.begin == stretch.end && parts_.share_memory()) {
        lacks = parts_.Differing(parts_.All(), wanted_);
      }
      std::sort(lacks.begin(), lacks.end());
    }
  }

  // Of the stretch that is told next. Of who compares its own parts unless they
  // are known: that takes no longer, since the source does the same.
  std::vector<uint64_t> NextHashes() {
    training_.Works("hashing its state");
    const auto [begin, end] = core_.stretch();
    const bool is_known = own_.size() == parts_.pieces();
    std::vector<uint64_t> hashes;
    if (is_source() || (compares_ && !is_known)) {
      hashes = parts_.HashesOf(begin, end);
    }
    if (compares_ && !is_known) {
      own_.insert(own_.end(), hashes.begin(), hashes.end());
    }
    Lap(&HandoverTimes::hashing);
    return hashes;
  }

  // All, but for what has come before: of this state before a rank was lost, or
  // of a first copy.
  std::vector<int> LackedOf(const StateHandover::Stretch& stretch) const {
    if (compares_) {
      return parts_.DifferingOf(stretch.begin, stretch.end, own_, wanted_);
    }
    std::vector<int> all(stretch.end - stretch.begin);
    std::iota(all.begin(), all.end(), stretch.begin);
    return all;
  }

  // Each rank tells as many words, all at once: with the first round the place
  // in the data, which must be the source's; the source tells `hashes`, those
  // of the next stretch, and the others a bit for each part that they lack.
  // Returns what each rank lacks. What others tell may be anything.
  absl::StatusOr<std::vector<std::vector<int>>> Tell(
      const std::vector<uint64_t>& hashes, const std::vector<int>& lacks) {
    const auto [begin, end] = core_.stretch();
    const auto pieces = static_cast<int64_t>(parts_.pieces_of(begin, end));
    const int64_t words =
        kBatchWords + std::max<int64_t>(pieces, parts_.size() / 64 + 1);
    const Tensor own = Tensor::Zeros({words}, DType::kI64);
    const Tensor all = Tensor::Empty({words * group_.size()}, DType::kI64);
    auto* const said = own.data<int64_t>();
    const Batches batches = training_.OwnBatches();
    std::copy(batches.begin(), batches.end(), said);
    if (is_source()) {
      std::copy(hashes.begin(), hashes.end(), said + kBatchWords);
    }
    for (const int part : lacks) {
      said[kBatchWords + part / 64] |=
          static_cast<int64_t>(uint64_t{1} << part % 64);
    }
    training_.AwaitsOthers();
    WEFT_RETURN_IF_ERROR(group_.AllGather(own, all));
    training_.Works("reading what is lacked");
    Lap(&HandoverTimes::telling);
    const auto said_by = [&](int rank) {
      return all.data<int64_t>() + rank * words;
    };
    Batches of_source;
    std::copy_n(said_by(source_), kBatchWords, of_source.begin());
    WEFT_RETURN_IF_ERROR(training_.CheckBatches(of_source, source_));
    const int64_t* const told_hashes = said_by(source_) + kBatchWords;
    wanted_.insert(wanted_.end(), told_hashes, told_hashes + pieces);
    std::vector<std::vector<int>> told(holds_.size());
    for (int rank = 0; rank < group_.size(); ++rank) {
      const int64_t* const bits = said_by(rank) + kBatchWords;
      for (int part = 0; !holds_[rank] && part < parts_.size(); ++part) {
        if ((static_cast<uint64_t>(bits[part / 64]) >> part % 64 & 1) != 0) {
          told[rank].push_back(part);
        }
      }
    }
    return told;
  }

  static uint64_t TagOf(const StateHandover::Transfer& one) {
    return kStateTag + static_cast<uint64_t>(one.part);
  }

  // Sends what it is to send of `transfers`; returns the hashes of the next
  // stretch.
  absl::StatusOr<std::vector<uint64_t>> Give(
      const std::vector<StateHandover::Transfer>& transfers) {
    std::vector<collectives::PointToPoint> sends;
    for (const StateHandover::Transfer& one : transfers) {
      if (one.from != group_.rank()) continue;
      sends.push_back({collectives::PointToPoint::kSend,
                       parts_.Outgoing(one.part), one.to, TagOf(one)});
    }
    if (sends.empty()) return NextHashes();
    const Future<void> sent = group_.ExchangeAsync(sends);
    Lap(&HandoverTimes::moving);
    std::vector<uint64_t> hashes = NextHashes();
    // It has a deadline of its own. Until then others may read this state.
    WEFT_RETURN_IF_ERROR(sent.Wait(absl::InfiniteDuration()));
    Lap(&HandoverTimes::moving);
    return hashes;
  }

  // Receives what it is to receive of `transfers`; adds what is wrong of that
  // to `lacks`.
  absl::Status Take(const std::vector<StateHandover::Transfer>& transfers,
                    std::vector<int>* lacks) {
    std::vector<IncomingPart> incoming;
    for (const StateHandover::Transfer& one : transfers) {
      if (one.to != group_.rank()) continue;
      incoming.push_back(
          {one.part, one.from, TagOf(one), parts_.Incoming(one.part)});
      training_.given_bytes_ += incoming.back().tensor.bytes();
    }
    if (incoming.empty()) return absl::OkStatus();
    training_.has_parts_of_others_ = true;
    training_.own_hashes_.reset();
    const auto compare = [&](const std::vector<IncomingPart>& some) {
      training_.Works("comparing parts of the state");
      Lap(&HandoverTimes::moving);
      for (const IncomingPart& one : some) {
        parts_.Place(one.part, one.tensor);
        if (parts_.Differing({one.part}, wanted_).empty()) continue;
        lacks->push_back(one.part);
        NameWrong(one);
      }
      Lap(&HandoverTimes::comparing);
      training_.AwaitsOthers();
    };
    training_.AwaitsOthers();
    return ReceiveParts(group_, incoming, compare);
  }

  void NameWrong(const IncomingPart& one) {
    WEFT_LOG(training_.logger_, Warning,
             "a rank has sent a part of the state that is wrong; another is "
             "asked")
        .With("from_rank", one.from)
        .With("wanted", parts_.Difference(one.part, wanted_));
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
  Instant lap_;
  const bool compares_;           // what it has with what it is to have
  std::vector<uint64_t> own_;     // hashes, as it began, as far as known
  std::vector<uint64_t> wanted_;  // the source's, as far as told
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
  const auto tensors = StateTensors(UpdateStateInPlace());
  const bool is_here =
      std::all_of(tensors.begin(), tensors.end(),
                  [](const auto& one) { return one.tensor.device().is_cpu(); });
  if (!is_here) {  // it would be copied as a whole
    return [](collectives::ProcessGroup& group) { FirstCopy().Run(group); };
  }
  giving_ = std::make_shared<GivenShare>(StateParts(tensors), group_->rank(),
                                         group_->size());
  return [giving = giving_, steps = steps(),
          fingerprint =
              Place().rank.fingerprint](collectives::ProcessGroup& group) {
    FirstCopy::OfGiver(giving, steps, fingerprint).Run(group);
  };
}

void DataParallelTraining::GoOnGiving() {
  if (giving_ != nullptr) giving_->CopySome(SteadyClock().Now());
}

void DataParallelTraining::EndGiving() {
  if (giving_ != nullptr) giving_->Stop();
  giving_ = nullptr;
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
      Works("keeping its own state");
      if (!kept_.has_value()) KeepState();
      has_parts_of_others_ = true;
      own_hashes_.reset();
      AwaitsOthers();
    };
    // Hashed while the others train. What cannot be loaded is sent again.
    const auto place = [&] {
      Works("hashing its first copy of the state");
      parts.WriteBack();
      if (LoadUpdateState(update).ok()) own_hashes_ = parts.Hashes();
      AwaitsOthers();
    };
    FirstCopy::OfTaker(parts, Place().rank.fingerprint).Run(group, keep, place);
  };
}

// One that has a place may have what others need: it ends by the timeout of an
// operation of theirs.
void DataParallelTraining::Works(const std::string& what) {
  if (elastic_.on_hang == nullptr || commit_.is_known()) return;
  if (watch_ == nullptr) {
    auto watch = HandoverWatch::Start(elastic_.hangs_after, elastic_.on_hang);
    if (!watch.ok()) return;  // without it the others wait for longer
    watch_ = *std::move(watch);
  }
  watch_->Works(what);
}

void DataParallelTraining::AwaitsOthers() {
  if (watch_ != nullptr) watch_->AwaitsOthers();
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
  times_ = HandoverTimes();
  WEFT_RETURN_IF_ERROR(MakeReplicas(ddp::VirtualShards::kNoRoot));
  const RankPlace& wanted = places_[source].rank;
  std::vector<bool> holds;
  for (const TrainingPlace& place : places_) {
    holds.push_back(place.rank.is_known &&
                    place.rank.position.steps == wanted.position.steps);
  }
  if (std::all_of(holds.begin(), holds.end(), [](bool one) { return one; })) {
    return TellBatches(source);
  }
  WEFT_RETURN_IF_ERROR(Handover(*this, std::move(holds), source).Run());
  return has_tables() ? ShareParts(source) : absl::OkStatus();
}

}  // namespace weft::train
