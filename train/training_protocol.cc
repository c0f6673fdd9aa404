// How a DataParallelTraining does what its StepCommit says.

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/device/context.h"
#include "weft/ps/lost_partition.h"
#include "weft/tensor/device.h"
#include "weft/train/data_parallel_training.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

// OK, or why the device of a parameter fails: for the others its rank would be
// lost again and again.
absl::Status HealthOfDevices(const nn::Module& model) {
  for (const Variable& parameter : model.Parameters()) {
    const Device device = parameter.value().device();
    if (device.is_cpu()) continue;
    const absl::Status health = device.context()->runtime().Health(device.id());
    if (!health.ok()) {
      return worker::WithExitCode(health, worker::ExitCode::kResource);
    }
  }
  return absl::OkStatus();
}

// By this the others know why a group was revoked: of a reason all ranks get
// code and text alone, and a rank whose own group has ended has that code, too.
constexpr absl::string_view kEndsInPush =
    "it could not push to the tables, and ends: ";

// What others have sent need not be a number.
int CountOf(double sum, int most) {
  if (!(sum >= 1)) return 0;
  return sum >= most ? most : static_cast<int>(sum);
}

}  // namespace

absl::Status DataParallelTraining::Drive(StepCommit::Event event) {
  std::vector<StepCommit::Action> actions;
  std::optional<StepCommit::Event> next = std::move(event);
  while (next.has_value()) {
    actions.clear();
    commit_.OnEvent(*std::exchange(next, std::nullopt), &actions);
    for (const StepCommit::Action& action : actions) {
      Done done = CatchToStatus([&] {
        return std::visit([this](const auto& one) { return Do(one); }, action);
      });
      next = done.ok() ? *std::move(done) : Fail(done.status());
      if (next.has_value()) break;
    }
  }
  return ended_;
}

StepCommit::Failed DataParallelTraining::Fail(absl::Status why) {
  failure_ = std::move(why);
  const bool is_lost = HasLost();
  // That nothing is stable in time, or that tables are lost, all find out by
  // themselves. Of other errors they would not know: they wait until the parts
  // of this rank are stable, in no operation of the group.
  const bool do_all_know =
      absl::IsDeadlineExceeded(failure_) || ps::IsLostPartition(failure_);
  if (!is_lost && !do_all_know &&
      commit_.phase() == StepCommit::Phase::kPushing) {
    group_->Revoke(
        absl::CancelledError(absl::StrCat(kEndsInPush, failure_.message())));
  }
  return {is_lost};
}

bool DataParallelTraining::HasLost() const {
  if (group_ == nullptr) return false;
  const absl::Status checked = group_->CheckRanks();
  return absl::IsUnavailable(checked) ||
         (absl::IsCancelled(checked) &&
          absl::StrContains(checked.message(), kEndsInPush));
}

void DataParallelTraining::LogMeeting(StepCommit::Reason reason) {
  switch (reason) {
    case StepCommit::Reason::kStart:
      return;
    case StepCommit::Reason::kLost:
      WEFT_LOG(logger_, Warning, "a rank was lost; the others meet again")
          .With("step", steps())
          .With("why", failure_.message());
      return;
    case StepCommit::Reason::kLostWhileMeeting:
    case StepCommit::Reason::kDifferent:
      WEFT_LOG(logger_, Warning, "not all who met go on; meeting again")
          .With("why", failure_.message());
      return;
    case StepCommit::Reason::kNewcomers:
      WEFT_LOG(logger_, Info,
               elastic_.join_ahead != nullptr
                   ? "going over to the group of those who wait as well"
                   : "others wait to take part; meeting again")
          .With("step", steps());
      return;
    case StepCommit::Reason::kLeavers:
      WEFT_LOG(logger_, Info, "a rank leaves; the others meet again")
          .With("step", steps());
      return;
  }
}

// --- A new group. ------------------------------------------------------------

DataParallelTraining::Done DataParallelTraining::Do(
    const StepCommit::MeetAhead&) {
  WEFT_LOG(logger_, Info,
           "others wait to take part; the group with them is made meanwhile")
      .With("step", steps());
  elastic_.join_ahead(PrepareToGive());
  return std::nullopt;
}

DataParallelTraining::Done DataParallelTraining::Do(
    const StepCommit::Meet& action) {
  EndGiving();  // the next group waits for it
  EndWatch();
  LogMeeting(action.reason);
  stopped_at_ = SteadyClock().Now();
  failure_ = HealthOfDevices(*parts_.model);
  if (!failure_.ok()) return StepCommit::MeetingFailed{};
  has_batch_ = false;
  shards_ = nullptr;
  group_ = nullptr;
  own_group_ = nullptr;  // those who have not noticed yet are told
  auto group = CatchToStatus([this] { return elastic_.join(PrepareToTake()); });
  if (group.ok() && *group == nullptr) {
    group = absl::InvalidArgumentError("Elastic::join gave no group");
  }
  if (!group.ok()) {
    failure_ = group.status();
    StepCommit::MeetingFailed failed;
    failed.by_signal = worker::SignalOf(failure_).has_value();
    return failed;
  }
  own_group_ = *std::move(group);
  group_ = own_group_.get();
  met_at_ = SteadyClock().Now();
  return StepCommit::Met{group_->rank(), group_->size()};
}

DataParallelTraining::Done DataParallelTraining::Do(
    const StepCommit::TellPlaces&) {
  WEFT_RETURN_IF_ERROR(
      ddp::CheckVirtualShards(parts_.virtual_shards, group_->size()));
  at_ = 0;
  step_samples_ = 0;
  Works("telling what it trains");
  const std::string own = FormatPlace(Place());
  AwaitsOthers();
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> said,
                        group_->AllGatherBytes(own));
  Works("reading what the others train");
  places_.clear();
  StepCommit::PlacesTold told;
  for (const std::string& text : said) {
    WEFT_ASSIGN_OR_RETURN(TrainingPlace place, ParsePlace(text));
    told.places.push_back(place.rank);
    places_.push_back(std::move(place));
  }
  return told;
}

DataParallelTraining::Done DataParallelTraining::Do(
    const StepCommit::TellDifferences& action) {
  AwaitsOthers();
  WEFT_ASSIGN_OR_RETURN(const std::string difference,
                        DifferenceFrom(action.source));
  const bool is_own = places_[group_->rank()].rank.fingerprint !=
                      places_[action.source].rank.fingerprint;
  failure_ =
      is_own
          ? absl::InvalidArgumentError(absl::StrCat(
                "this rank does not train what the others train: ", difference))
          : absl::UnavailableError(absl::StrCat(
                "a rank that has come does not train what this one trains, "
                "and is left out: ",
                difference));
  return StepCommit::DifferencesTold{};
}

DataParallelTraining::Done DataParallelTraining::Do(const StepCommit::Begin&) {
  EndWatch();
  // A newcomer that was given a state, whose owners have all ended since.
  if (has_parts_of_others_) WEFT_RETURN_IF_ERROR(RestoreState());
  StepCommit::Begun begun;
  WEFT_ASSIGN_OR_RETURN(begun.position,
                        is_elastic() ? BeginElastic() : Begin());
  has_parts_of_others_ = false;
  return begun;
}

DataParallelTraining::Done DataParallelTraining::Do(
    const StepCommit::KeepState&) {
  KeepState();
  return std::nullopt;
}

void DataParallelTraining::KeepState() {
  ModelState state;
  for (const nn::NamedParameter& parameter : parts_.model->NamedParameters()) {
    const Tensor& value = parameter.variable.value();
    state.model.emplace_back(value, value.Clone());
  }
  for (const nn::NamedBuffer& buffer : parts_.model->NamedBuffers()) {
    state.model.emplace_back(buffer.tensor, buffer.tensor.Clone());
  }
  state.optimizer = UpdateState();
  kept_ = std::move(state);
}

DataParallelTraining::Done DataParallelTraining::Do(
    const StepCommit::ShareState& action) {
  Works("making the loaders of its data");
  WEFT_RETURN_IF_ERROR(TakeData(places_[action.source].data));
  WEFT_RETURN_IF_ERROR(ShareState(action.source));
  return StepCommit::StateShared{};
}

DataParallelTraining::Done DataParallelTraining::Do(
    const StepCommit::RestoreState&) {
  WEFT_RETURN_IF_ERROR(RestoreState());
  return std::nullopt;
}

absl::Status DataParallelTraining::RestoreState() {
  if (!kept_.has_value()) return absl::OkStatus();  // its device is lost
  for (const auto& [tensor, copy] : kept_->model) tensor.CopyFrom(copy);
  WEFT_RETURN_IF_ERROR(LoadUpdateState(kept_->optimizer));
  has_parts_of_others_ = false;
  kept_.reset();
  own_hashes_.reset();
  return absl::OkStatus();
}

DataParallelTraining::Done DataParallelTraining::Do(
    const StepCommit::TakePlace& action) {
  EndWatch();
  has_parts_of_others_ = false;
  kept_.reset();
  own_hashes_.reset();
  // It opened the tables before it met the others, who may have restored them
  // since.
  if (action.has_come && tables_.checkpoints.reopen != nullptr) {
    WEFT_RETURN_IF_ERROR(tables_.checkpoints.reopen());
  }
  const TrainingPlace& place = places_[action.source];
  mean_loss_ = place.mean_loss;
  samples_ = place.samples;
  run_ = place.run;
  checkpoint_ = place.checkpoint;
  place_ = place.data;
  if (parts_.generator != nullptr) random_.emplace(place.seed, place.stream);
  ++groups_;
  MakeProgress();
  if (action.has_come) epoch_begin_ = SteadyClock().Now();
  WEFT_LOG(logger_, Info, action.has_come ? "taking part" : "going on")
      .With("step", steps())
      .With("rank", group_->rank())
      .With("ranks", group_->size())
      .With("from_rank", action.source)
      .With("meeting_ms", absl::ToInt64Milliseconds(met_at_ - stopped_at_))
      .With("state_ms",
            absl::ToInt64Milliseconds(SteadyClock().Now() - met_at_))
      .With("hashing_ms", absl::ToInt64Milliseconds(times_.hashing))
      .With("telling_ms", absl::ToInt64Milliseconds(times_.telling))
      .With("moving_ms", absl::ToInt64Milliseconds(times_.moving))
      .With("comparing_ms", absl::ToInt64Milliseconds(times_.comparing))
      .With("given_bytes", given_bytes_);
  return std::nullopt;
}

// --- A step. -----------------------------------------------------------------

// The loop of the caller does.
DataParallelTraining::Done DataParallelTraining::Do(const StepCommit::Train&) {
  GoOnGiving();
  if (!has_tables()) return std::nullopt;
  own_parts_.assign(loaders_.size(), std::nullopt);
  WEFT_RETURN_IF_ERROR(tables_.begin_round(steps()));
  return std::nullopt;
}

DataParallelTraining::Done DataParallelTraining::Do(
    const StepCommit::Reduce& action) {
  const auto phase = metrics_.Begin(StepPhase::kAllReduce);
  if (shards_ != nullptr) WEFT_RETURN_IF_ERROR(shards_->Finish());
  if (has_tables()) WEFT_RETURN_IF_ERROR(GatherParts());
  StepCommit::Reduced reduced;
  WEFT_ASSIGN_OR_RETURN(reduced.votes, ReduceVotes(action.vote));
  reduced.is_last = is_last_step();
  return reduced;
}

// With the mean of the losses, which all are told.
absl::StatusOr<StepVote> DataParallelTraining::ReduceVotes(
    const StepVote& vote) {
  const size_t shares = shards_ == nullptr ? 1 : losses_.size();
  std::vector<double> own =
      shards_ == nullptr ? std::vector<double>{loss_ / passes_} : losses_;
  for (const int said : {vote.stops, vote.newcomers_wait, vote.asked_to_leave,
                         vote.leaves, vote.next_group_is_made}) {
    own.push_back(said);
  }
  const Tensor said = Tensor::FromVector<double>(own);
  WEFT_RETURN_IF_ERROR(group_->AllReduce(said));
  const double* const sums = said.data<double>();
  // Each virtual shard's loss is one rank's, the others' 0: no sum of it
  // depends on an order.
  double total = 0;
  for (size_t i = 0; i < shares; ++i) total += sums[i];
  mean_loss_ =
      total / (shards_ == nullptr ? group_->size() : shards_->shards());
  const auto count = [&](size_t i) {
    return CountOf(sums[shares + i], group_->size());
  };
  return StepVote{count(0), count(1), count(2), count(3), count(4)};
}

DataParallelTraining::Done DataParallelTraining::Do(
    const StepCommit::AbandonStep&) {
  passes_ = 0;
  loss_ = 0;
  all_parts_.clear();
  if (shards_ != nullptr) shards_->Abandon();
  return std::nullopt;
}

DataParallelTraining::Done DataParallelTraining::Do(
    const StepCommit::TakeStep&) {
  WEFT_RETURN_IF_ERROR(TakeStep());
  if (has_tables()) {
    last_parts_ = StepParts{steps(), std::exchange(all_parts_, {})};
  }
  return StepCommit::StepTaken{};
}

// --- The end. ----------------------------------------------------------------

DataParallelTraining::Done DataParallelTraining::Do(const StepCommit::Save&) {
  saved_ = Save(/*is_last=*/false);
  return std::nullopt;
}

DataParallelTraining::Done DataParallelTraining::Do(
    const StepCommit::SaveAlone&) {
  SaveAlone();
  return std::nullopt;
}

DataParallelTraining::Done DataParallelTraining::Do(const StepCommit::Stop&) {
  WEFT_RETURN_IF_ERROR(EndEpoch());
  return std::nullopt;
}

DataParallelTraining::Done DataParallelTraining::Do(const StepCommit::Leave&) {
  WEFT_LOG(logger_, Info, "asked to stop; leaving, and the others go on")
      .With("step", steps());
  return std::nullopt;
}

DataParallelTraining::Done DataParallelTraining::Do(const StepCommit::End&) {
  EndWatch();
  ended_ = failure_;
  return std::nullopt;
}

}  // namespace weft::train
