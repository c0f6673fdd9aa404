// How the ranks of a DataParallelTraining meet that may come and go.
//
// A step is taken by each rank for itself, after the last operation in which it
// needs the others. So when a rank is lost, those that are left differ by one
// step at most. They meet in a new group, tell each other where they are, and
// all begin again after the furthest step that one of them has taken: that rank
// gives the others its model and optimizer. With virtual shards nothing else
// depends on who is there, so a step that is repeated gives the same bits.

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/device/context.h"
#include "weft/tensor/device.h"
#include "weft/train/data_parallel_training.h"
#include "weft/train/job_outcome.h"
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

}  // namespace

absl::StatusOr<std::unique_ptr<DataParallelTraining>>
DataParallelTraining::CreateElastic(Elastic elastic,
                                    telemetry::Telemetry& telemetry,
                                    Parts parts, Options options) {
  WEFT_RETURN_IF_ERROR(CheckParts(parts));
  if (elastic.join == nullptr || parts.virtual_shards == 0) {
    return absl::InvalidArgumentError(
        "DataParallelTraining::CreateElastic: wanted Elastic::join and "
        "Parts::virtual_shards, without which other ranks would end with other "
        "bits");
  }
  WEFT_RETURN_IF_ERROR(
      ddp::CheckVirtualShards(parts.virtual_shards, /*ranks=*/1));
  std::unique_ptr<DataParallelTraining> training(
      new DataParallelTraining(nullptr, std::move(elastic), telemetry,
                               std::move(parts), std::move(options)));
  WEFT_RETURN_IF_ERROR(CatchToStatus([&] { return training->Meet(); }));
  return training;
}

bool DataParallelTraining::HasNewcomers() {
  if (!is_elastic() || elastic_.has_newcomers == nullptr || !is_first() ||
      group_->size() >= std::min(parts_.virtual_shards, elastic_.max_ranks)) {
    return false;
  }
  const Instant now = SteadyClock().Now();
  if (now < asked_at_ + elastic_.ask_interval) return false;
  asked_at_ = now;
  return elastic_.has_newcomers();
}

// In an elastic job a signal asks one rank to leave.
bool DataParallelTraining::IsAskedToStop() const {
  if (elastic_.asked_to_leave == nullptr) return options_.IsAskedToStop();
  return options_.asked_to_stop != nullptr && options_.asked_to_stop();
}

bool DataParallelTraining::IsAskedToLeave() {
  if (elastic_.asked_to_leave == nullptr || !elastic_.asked_to_leave()) {
    return false;
  }
  if (!asked_to_leave_at_.has_value()) {
    asked_to_leave_at_ = SteadyClock().Now();
  }
  return true;
}

absl::Status DataParallelTraining::PartFromLeavers() {
  // The others may be asked to end while they meet.
  saved_ = Save(/*is_last=*/false);
  if (leaves_) {
    WEFT_LOG(logger_, Info, "asked to stop; leaving, and the others go on")
        .With("step", steps_);
    was_stopped_ = true;
    return absl::OkStatus();
  }
  WEFT_LOG(logger_, Info, "a rank leaves; the others meet again")
      .With("step", steps_);
  return Meet();
}

absl::Status DataParallelTraining::GoOnAfter(const absl::Status& status,
                                             bool is_in_step) {
  if (status.ok() || !is_elastic() || !HasLost()) return status;
  WEFT_LOG(logger_, Warning, "a rank was lost; the others meet again")
      .With("step", steps_)
      .With("why", status.message());
  if (is_in_step) {
    passes_ = 0;
    loss_ = 0;
    WEFT_RETURN_IF_ERROR(CatchToStatus([this] {
      shards_->Abandon();
      return absl::OkStatus();
    }));
  }
  return Meet();
}

absl::Status DataParallelTraining::Meet() {
  for (;;) {
    ended_ = HealthOfDevices(*parts_.model);
    WEFT_RETURN_IF_ERROR(ended_);
    shards_ = nullptr;
    group_ = nullptr;
    own_group_ = nullptr;  // those who have not noticed yet are told
    auto group = CatchToStatus([this] { return elastic_.join(); });
    if (group.ok() && *group == nullptr) {
      group = absl::InvalidArgumentError("Elastic::join gave no group");
    }
    if (!group.ok()) {
      ended_ = group.status();
      if (worker::SignalOf(ended_).has_value()) SaveAlone();
      return ended_;
    }
    own_group_ = *std::move(group);
    group_ = own_group_.get();
    const absl::Status taken = CatchToStatus([this] { return TakePart(); });
    if (taken.ok() || (!leaves_out_ && !HasLost())) return taken;
    leaves_out_ = false;
    WEFT_LOG(logger_, Warning, "not all who met go on; meeting again")
        .With("why", taken.message());
  }
}

absl::Status DataParallelTraining::TakePart() {
  WEFT_RETURN_IF_ERROR(
      ddp::CheckVirtualShards(parts_.virtual_shards, group_->size()));
  at_ = 0;
  step_samples_ = 0;
  WEFT_ASSIGN_OR_RETURN(const std::vector<TrainingPlace> places, TellPlaces());
  const int root = FurthestOf(places);
  WEFT_RETURN_IF_ERROR(CheckNewcomers(places, root < 0 ? 0 : root));
  if (root < 0) {
    WEFT_ASSIGN_OR_RETURN(resumes_, DoesAnyResume());
    if (!resumes_) WEFT_RETURN_IF_ERROR(CheckNoFormerRun());
    if (is_first()) HasTrained(/*begins=*/true);
    WEFT_RETURN_IF_ERROR(Begin());
    // Any rank may have to save.
    WEFT_ASSIGN_OR_RETURN(const std::string run,
                          group_->BroadcastBytes(FormatRun(run_), /*root=*/0));
    run_ = ParseRun(run);
    is_known_ = true;
    return absl::OkStatus();
  }
  // Nothing of this rank's place changes before it has all that belongs to the
  // new one: the root may be lost meanwhile, and this rank be the furthest.
  WEFT_RETURN_IF_ERROR(TakeData(places[root].data, root));
  const bool is_behind =
      is_known_ && !IsSameStep(places[group_->rank()], places[root]);
  std::vector<std::pair<Tensor, Tensor>> before;  // and a copy of each
  absl::btree_map<std::string, Tensor> optimizer;
  if (is_behind) {
    for (const nn::NamedParameter& parameter :
         parts_.model->NamedParameters()) {
      const Tensor& value = parameter.variable.value();
      before.emplace_back(value, value.Clone());
    }
    for (const nn::NamedBuffer& buffer : parts_.model->NamedBuffers()) {
      before.emplace_back(buffer.tensor, buffer.tensor.Clone());
    }
    optimizer = parts_.optimizer->StateDict();
  }
  const absl::Status taken = TakeTensors(root);
  if (taken.ok()) {
    TakeOver(places[root], root);
    return absl::OkStatus();
  }
  for (const auto& [tensor, copy] : before) tensor.CopyFrom(copy);
  if (is_behind) {
    WEFT_RETURN_IF_ERROR(parts_.optimizer->LoadStateDict(optimizer));
  }
  return taken;
}

bool DataParallelTraining::HasTrained(bool begins) {
  if (elastic_.has_trained == nullptr) return false;
  const absl::StatusOr<bool> known = elastic_.has_trained(begins);
  if (known.ok()) return *known;
  WEFT_LOG(logger_, Warning,
           "it is not known whether this job has trained before; without "
           "--resume its own checkpoints would be refused")
      .With("why", known.status().message());
  return false;
}

// A process that takes the place of one that has died may be told to resume,
// and others not.
absl::StatusOr<bool> DataParallelTraining::DoesAnyResume() {
  // All who had trained may be dead, and these have been started by then.
  const bool resumes =
      options_.resume || (is_first() && HasTrained(/*begins=*/false));
  const Tensor resuming = Tensor::Scalar<int64_t>(resumes ? 1 : 0);
  WEFT_RETURN_IF_ERROR(group_->AllReduce(resuming));
  return resuming.item<int64_t>() > 0;
}

// Whether those who begin would push out what others have saved.
absl::Status DataParallelTraining::CheckNoFormerRun() {
  std::string why;
  if (is_first() && !options_.checkpoint_dir.empty()) {
    const absl::Status status = CatchToStatus([this]() -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const auto directory, OpenCheckpoints());
      WEFT_ASSIGN_OR_RETURN(const auto names, directory->List());
      if (names.empty()) return absl::OkStatus();
      return worker::WithExitCode(
          absl::FailedPreconditionError(absl::StrCat(
              options_.checkpoint_dir, ": nobody trains yet, and there are ",
              names.size(), " checkpoints of a former run, the newest ",
              names.back(),
              "; give --resume to go on from it, or another directory")),
          worker::ExitCode::kConfig);
    });
    if (!status.ok()) why = FormatFailure(status);
  }
  WEFT_ASSIGN_OR_RETURN(why, group_->BroadcastBytes(why, /*root=*/0));
  return why.empty() ? absl::OkStatus() : ParseFailure(why);
}

absl::StatusOr<std::vector<TrainingPlace>> DataParallelTraining::TellPlaces() {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> said,
                        group_->AllGatherBytes(FormatPlace(Place())));
  std::vector<TrainingPlace> places;
  for (const std::string& text : said) {
    WEFT_ASSIGN_OR_RETURN(TrainingPlace place, ParsePlace(text));
    places.push_back(std::move(place));
  }
  return places;
}

TrainingPlace DataParallelTraining::Place() const {
  const std::string description = Description();
  TrainingPlace place;
  place.is_known = is_known_;
  place.fingerprint = XXH3_64bits(description.data(), description.size());
  place.steps = steps_;
  place.epoch = epoch_;
  place.was_stopped = was_stopped_;
  place.mean_loss = mean_loss_;
  place.samples = samples_;
  if (random_.has_value()) {
    place.seed = random_->seed();
    place.stream = random_->stream();
  }
  place.data = place_;
  place.run = run_;
  place.checkpoint = checkpoint_;
  return place;
}

std::string DataParallelTraining::Description() const {
  std::string text;
  for (const auto& [name, value] : options_.settings.All()) {
    absl::StrAppend(&text, name, " is ", value, "\n");
  }
  for (const auto& [name, tensor] : parts_.model->StateDict()) {
    absl::StrAppend(&text, name, " of the model is ", tensor.Describe(), "\n");
  }
  for (const auto& [name, tensor] : parts_.optimizer->StateDict()) {
    absl::StrAppend(&text, name, " of the optimizer is ", tensor.Describe(),
                    "\n");
  }
  return text;
}

absl::Status DataParallelTraining::CheckNewcomers(
    const std::vector<TrainingPlace>& places, int root) {
  std::vector<int> different;
  for (size_t r = 0; r < places.size(); ++r) {
    if (places[r].fingerprint != places[root].fingerprint) {
      different.push_back(static_cast<int>(r));
    }
  }
  if (different.empty()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> descriptions,
                        group_->AllGatherBytes(Description()));
  // A pair of lines says enough.
  const auto difference = [&](int rank) {
    const std::vector<std::string> own =
        absl::StrSplit(descriptions[rank], '\n');
    const std::vector<std::string> others =
        absl::StrSplit(descriptions[root], '\n');
    size_t i = 0;
    while (i < own.size() && i < others.size() && own[i] == others[i]) ++i;
    const auto line = [i](const std::vector<std::string>& lines) {
      return i < lines.size() && !lines[i].empty()
                 ? lines[i]
                 : std::string("nothing more");
    };
    return absl::StrCat("rank ", root, ": ", line(others), "; rank ", rank,
                        ": ", line(own));
  };
  const int self = group_->rank();
  if (places[self].fingerprint != places[root].fingerprint) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this rank does not train what the others train: ", difference(self)));
  }
  leaves_out_ = true;
  return absl::UnavailableError(absl::StrCat(
      "a rank that has come does not train what this one trains, and is left "
      "out: ",
      difference(different[0])));
}

// A rank that has fewer batches, or more, would come to other operations than
// the others.
absl::Status DataParallelTraining::CheckBatches(int root) {
  const std::vector<int64_t> own = {epoch_batches_, loader().remaining()};
  const Tensor wanted = Tensor::FromVector<int64_t>(own);
  WEFT_RETURN_IF_ERROR(group_->Broadcast(wanted, root));
  const int64_t* const of_root = wanted.data<int64_t>();
  if (own[0] == of_root[0] && own[1] == of_root[1]) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "this rank does not train what the others train: of an epoch of ", own[0],
      " batches a shard make_loader leaves ", own[1], ", on rank ", root,
      " of ", of_root[0], " it leaves ", of_root[1]));
}

absl::Status DataParallelTraining::TakeTensors(int root) {
  WEFT_RETURN_IF_ERROR(MakeReplicas(root));
  return GiveOptimizerToAll(root);
}

absl::Status DataParallelTraining::TakeData(
    const input::ShardedSampler::State& data, int root) {
  WEFT_RETURN_IF_ERROR(MakeLoaders());
  for (input::DataLoader* loader : loaders_) {
    WEFT_RETURN_IF_ERROR(loader->LoadState(data));
  }
  return CheckBatches(root);
}

void DataParallelTraining::TakeOver(const TrainingPlace& place, int root) {
  steps_ = place.steps;
  epoch_ = place.epoch;
  was_stopped_ = place.was_stopped;
  mean_loss_ = place.mean_loss;
  samples_ = place.samples;
  run_ = place.run;
  checkpoint_ = place.checkpoint;
  place_ = place.data;
  if (parts_.generator != nullptr) random_.emplace(place.seed, place.stream);
  meets_again_ = false;
  ++groups_;
  const bool has_come = !std::exchange(is_known_, true);
  MakeProgress();
  if (has_come) epoch_begin_ = SteadyClock().Now();
  WEFT_LOG(logger_, Info, has_come ? "taking part" : "going on")
      .With("step", steps_)
      .With("rank", group_->rank())
      .With("ranks", group_->size())
      .With("from_rank", root);
}

absl::StatusOr<bool> DataParallelTraining::FindSaved() {
  WEFT_ASSIGN_OR_RETURN(const auto directory, OpenCheckpoints());
  WEFT_ASSIGN_OR_RETURN(const auto names, directory->List());
  if (names.empty()) return false;
  WEFT_ASSIGN_OR_RETURN(const auto manifest,
                        directory->ReadManifest(names.back()));
  if (manifest.step != steps_) return false;
  checkpoint_ = absl::StrCat(options_.checkpoint_dir, "/", names.back());
  return true;
}

// Several ranks that end so may save at once: they are at most one step apart,
// and one of the checkpoints is whole.
void DataParallelTraining::SaveAlone() {
  if (!is_known_ || options_.checkpoint_dir.empty() ||
      elastic_.others_go_on == nullptr || elastic_.others_go_on()) {
    return;
  }
  const absl::Status saved = CatchToStatus([this]() -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const bool is_saved, FindSaved());
    if (is_saved) return absl::OkStatus();
    return SaveOnce(/*score=*/std::nullopt, /*is_last=*/true);
  });
  if (saved.ok()) {
    WEFT_LOG(logger_, Info, "asked to stop, and too few are left to go on")
        .With("step", steps_)
        .With("checkpoint", checkpoint_);
  } else {
    WEFT_LOG(logger_, Error, "no checkpoint was saved")
        .With("why", saved.message());
  }
}

absl::Status DataParallelTraining::SaveUnlessSaved() {
  // One that could not be saved was tried long enough.
  bool is_saved = options_.checkpoint_dir.empty() || !saved_.ok();
  if (is_first() && !is_saved) {
    is_saved = CatchToStatus([this] { return FindSaved(); }).value_or(false);
  }
  // All save, or none: a score is of all ranks.
  WEFT_ASSIGN_OR_RETURN(const std::string said,
                        group_->BroadcastBytes(is_saved ? "saved" : "", 0));
  if (said.empty()) saved_ = Save(/*is_last=*/true);
  return absl::OkStatus();
}

}  // namespace weft::train
