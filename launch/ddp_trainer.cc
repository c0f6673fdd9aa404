#include "weft/launch/ddp_trainer.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/autograd/ops/loss.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/input/sharded_sampler.h"

namespace weft::launch {
namespace {

constexpr char kPlaceInData[] = "place_in_data";

telemetry::Progress::Options ProgressOptions(const ImageTrainerOptions& options,
                                             bool is_first) {
  telemetry::Progress::Options progress;
  progress.style =
      is_first ? options.progress : telemetry::Progress::Style::kQuiet;
  return progress;
}

}  // namespace

DdpTrainer::DdpTrainer(collectives::ProcessGroup& group, const ImageData& data,
                       ImageTrainerOptions options,
                       std::function<bool()> asked_to_stop)
    : group_(group),
      data_(data),
      options_(std::move(options)),
      asked_to_stop_(std::move(asked_to_stop)),
      generator_(options_.seed),
      model_(data.train->height(), data.train->width(), options_.classes,
             generator_),
      progress_(ProgressOptions(options_, group.rank() == 0)) {}

DdpTrainer::~DdpTrainer() = default;

absl::Status DdpTrainer::Begin() {
  input::ShardedSampler::Options order;
  order.size = data_.train->size();
  order.shard = group_.rank();
  order.shards = group_.size();
  order.seed = options_.seed;
  WEFT_ASSIGN_OR_RETURN(const input::ShardedSampler sampler,
                        input::ShardedSampler::Create(order));
  input::DataLoader::Options loading;
  loading.batch_size = options_.batch_size;
  WEFT_ASSIGN_OR_RETURN(
      loader_, input::DataLoader::Create(*data_.train, sampler, loading));

  optimizer::AdamOptions adam;
  adam.lr = options_.learning_rate;
  optimizer::ParameterGroup trained{adam, {}};
  for (const nn::NamedParameter& parameter : model_.NamedParameters()) {
    trained.parameters.push_back({parameter.name, parameter.variable});
  }
  WEFT_ASSIGN_OR_RETURN(optimizer_, optimizer::Optimizer::Create({trained}));
  WEFT_ASSIGN_OR_RETURN(ddp_,
                        ddp::DistributedDataParallel::Create(model_, group_));
  return absl::OkStatus();
}

absl::StatusOr<DdpTrainer::Verdict> DdpTrainer::Step(
    const input::Example& batch) {
  optimizer_->ZeroGrad();
  const Variable loss =
      CrossEntropy(model_.Forward(Variable(batch[0])), batch[1]);
  loss.Backward();
  WEFT_RETURN_IF_ERROR(optimizer_->Step());
  // A signal reaches the ranks at different times; they must end after the same
  // step.
  const Tensor said = Tensor::FromVector<double>(
      {loss.value().item<float>(), asked_to_stop_() ? 1.0 : 0.0});
  WEFT_RETURN_IF_ERROR(group_.AllReduce(said));
  const double* sums = said.data<double>();
  return Verdict{sums[0] / group_.size(), sums[1] > 0};
}

absl::Status DdpTrainer::TrainEpoch(int epoch) {
  const int64_t of_epoch = data_.train->size();
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const std::optional<input::Example> batch,
                          loader_->Next());
    if (!batch.has_value()) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(const Verdict verdict, Step(*batch));
    ++steps_;
    // The sampler deals every rank as many.
    samples_ += (*batch)[0].size(0) * group_.size();
    const int64_t used = std::min(loader_->state().used, of_epoch);
    progress_.Update(epoch * of_epoch + used, options_.epochs * of_epoch,
                     verdict.mean_loss);
    if (verdict.stops) {
      was_stopped_ = true;
      return absl::OkStatus();
    }
  }
}

absl::Status DdpTrainer::Save() {
  if (options_.checkpoint_dir.empty() || !is_first()) return absl::OkStatus();
  checkpoint::CheckpointDirectory::Options options;
  options.path = options_.checkpoint_dir;
  WEFT_ASSIGN_OR_RETURN(const auto directory,
                        checkpoint::CheckpointDirectory::Open(options));
  checkpoint::NamedTensors tensors;
  for (const auto& [name, tensor] : model_.StateDict()) tensors[name] = tensor;
  for (const auto& [name, tensor] : optimizer_->StateDict()) {
    tensors[absl::StrCat("optimizer/", name)] = tensor;
  }
  WEFT_ASSIGN_OR_RETURN(
      const std::string name,
      directory->Save(steps_, tensors,
                      {{kPlaceInData, loader_->state().ToString()}}));
  checkpoint_ = absl::StrCat(options_.checkpoint_dir, "/", name);
  return absl::OkStatus();
}

// Each rank tests its part, so that none waits for another.
absl::StatusOr<double> DdpTrainer::Test() {
  const int64_t size = data_.test->size();
  WEFT_ASSIGN_OR_RETURN(
      const int64_t right,
      CountRight(model_, *data_.test, size * group_.rank() / group_.size(),
                 size * (group_.rank() + 1) / group_.size()));
  const Tensor sum = Tensor::Scalar<int64_t>(right);
  WEFT_RETURN_IF_ERROR(group_.AllReduce(sum));
  return static_cast<double>(sum.item<int64_t>()) / static_cast<double>(size);
}

absl::StatusOr<TrainingResult> DdpTrainer::Train() {
  WEFT_RETURN_IF_ERROR(Begin());
  absl::Duration training;
  TrainingResult result;
  for (int epoch = 0; epoch < options_.epochs && !was_stopped_; ++epoch) {
    const Instant epoch_begin = SteadyClock().Now();
    if (epoch != 0) loader_->SetEpoch(epoch);
    WEFT_RETURN_IF_ERROR(TrainEpoch(epoch));
    training += SteadyClock().Now() - epoch_begin;
    // Training goes on without a checkpoint; the last one's error is reported.
    result.saved = Save();
  }
  progress_.Finish();
  WEFT_RETURN_IF_ERROR(ddp_->CheckInSync());
  result.was_stopped = was_stopped_;
  result.checkpoint = checkpoint_;
  const double seconds = absl::ToDoubleSeconds(training);
  if (seconds > 0) {
    result.samples_per_s = static_cast<double>(samples_) / seconds;
  }
  WEFT_ASSIGN_OR_RETURN(const double accuracy, Test());
  if (is_first()) result.test_accuracy = accuracy;
  return result;
}

absl::StatusOr<TrainingResult> DdpTrainer::Run() {
  return CatchToStatus([this] { return Train(); });
}

}  // namespace weft::launch
