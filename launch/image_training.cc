#include "weft/launch/image_training.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "weft/autograd/autocast.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops/loss.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/file_system.h"
#include "weft/input/data_loader.h"
#include "weft/input/device_batches.h"
#include "weft/input/sharded_sampler.h"
#include "weft/optimizer/grad_scaler.h"
#include "weft/optimizer/optimizer.h"
#include "weft/optimizer/rules/rule_spec.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/random.h"
#include "weft/train/data_parallel_training.h"
#include "weft/train/server_training.h"

namespace weft::launch {
namespace {

using train::DataParallelTraining;

constexpr int64_t kTestBatch = 500;

std::string Either(const std::string& directory, const std::string& name) {
  const std::string path = absl::StrCat(directory, "/", name);
  const bool is_plain = checkpoint::LocalFiles().Size(path).ok();
  return is_plain ? path : absl::StrCat(path, ".gz");
}

absl::StatusOr<std::unique_ptr<input::IdxDataset>> Open(
    const ImageTrainingOptions& options, const std::string& set) {
  input::IdxDataset::Options idx;
  idx.images = Either(options.data, absl::StrCat(set, "-images-idx3-ubyte"));
  idx.labels = Either(options.data, absl::StrCat(set, "-labels-idx1-ubyte"));
  idx.classes = options.classes;
  idx.mean = 0.5f;
  idx.deviation = 0.5f;
  absl::StatusOr<input::IdxDataset> opened = input::IdxDataset::Open(idx);
  if (!opened.ok()) {
    return absl::Status(
        opened.status().code(),
        absl::StrCat(opened.status().message(), "; wanted --data=DIR with ",
                     "whole IDX files of MNIST's names, .gz or not"));
  }
  input::IdxDataset dataset = *std::move(opened);
  if (dataset.size() == 0 || dataset.height() < 4 || dataset.width() < 4) {
    return absl::InvalidArgumentError(absl::StrCat(
        idx.images, ": wanted images of at least 4x4, found ", dataset.size(),
        " of ", dataset.height(), "x", dataset.width()));
  }
  return std::make_unique<input::IdxDataset>(std::move(dataset));
}

ImageModel MakeModel(const ImageData& data, const ImageTrainingOptions& options,
                     Generator& generator) {
  return ImageModel(data.train->height(), data.train->width(), options.classes,
                    generator);
}

Variable LossOf(ImageModel& model, const Tensor& images, const Tensor& labels,
                const ImageTrainingOptions& options) {
  const AutocastScope scope(options.precision);
  return CrossEntropy(model.Forward(Variable(images)), labels);
}

}  // namespace

absl::StatusOr<ImageData> LoadImageData(const ImageTrainingOptions& options) {
  ImageData data;
  WEFT_ASSIGN_OR_RETURN(data.train, Open(options, "train"));
  WEFT_ASSIGN_OR_RETURN(data.test, Open(options, "t10k"));
  if (data.train->height() != data.test->height() ||
      data.train->width() != data.test->width()) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.data, ": images to train on are ", data.train->height(), "x",
        data.train->width(), ", those to test on ", data.test->height(), "x",
        data.test->width()));
  }
  return data;
}

absl::StatusOr<int64_t> CountRight(ImageModel& model,
                                   const input::IdxDataset& images,
                                   int64_t begin, int64_t end) {
  const NoGradScope no_grad;
  const Device device = model.Parameters().front().value().device();
  int64_t right = 0;
  for (int64_t at = begin; at < end; at += kTestBatch) {
    std::vector<int64_t> indices;
    for (int64_t i = at; i < std::min(at + kTestBatch, end); ++i) {
      indices.push_back(i);
    }
    WEFT_ASSIGN_OR_RETURN(const input::Example batch, images.GetBatch(indices));
    const Tensor inputs = batch[0].To(device);
    const Tensor guesses =
        ArgMax(model.Forward(Variable(inputs)).value(), 1).To(Device::Cpu());
    const int64_t* guess = guesses.data<int64_t>();
    const int64_t* label = batch[1].data<int64_t>();
    for (size_t i = 0; i < indices.size(); ++i) right += guess[i] == label[i];
  }
  return right;
}

std::string DtypeName(ps::v1::WireValues::Dtype dtype) {
  return absl::AsciiStrToLower(ps::v1::WireValues::Dtype_Name(dtype));
}

absl::StatusOr<ps::v1::WireValues::Dtype> DtypeNamed(absl::string_view name) {
  for (const auto dtype :
       {ps::v1::WireValues::F32, ps::v1::WireValues::F16,
        ps::v1::WireValues::BF16, ps::v1::WireValues::INT8}) {
    if (name == DtypeName(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "'; allowed are f32, f16, bf16 and int8"));
}

absl::StatusOr<std::optional<DType>> PrecisionNamed(absl::string_view name) {
  if (name == Name(DType::kF32)) return std::optional<DType>();
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    if (name == Name(dtype)) return std::optional<DType>(dtype);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "'; allowed are f32, f16 and bf16"));
}

train::Settings SettingsOf(const ImageTrainingOptions& options,
                           const ImageData& data) {
  train::Settings settings;
  settings.fixed = {
      {"--strategy", options.strategy},
      {"--optimizer", std::string(optimizer::RuleName(options.rule))},
      {"--seed", absl::StrCat(options.seed)},
      {"--sync or --async", options.is_sync ? "--sync" : "--async"},
      {"images of --data",
       absl::StrCat(data.train->size(), " of ", data.train->height(), "x",
                    data.train->width())},
      {"checksum of --data",
       absl::StrCat(absl::Hex(data.train->Checksum(), absl::kZeroPad16))},
  };
  settings.common = {
      {"--allow-non-finite", options.allow_non_finite ? "on" : "off"},
      {"--keep-best", options.keep_best ? "on" : "off"},
      {"--batch-size", absl::StrCat(options.batch_size)},
      {"--epochs", absl::StrCat(options.epochs)},
      {"--lr", absl::StrCat(optimizer::LearningRate(options.rule))},
      {"--clip-value", absl::StrCat(options.clip.value)},
      {"--clip-norm", absl::StrCat(options.clip.norm)},
  };
  if (options.virtual_shards != 0) {
    settings.fixed["--virtual-shards"] = absl::StrCat(options.virtual_shards);
  }
  // Its state is in the checkpoint.
  settings.fixed["--precision"] =
      std::string(Name(options.precision.value_or(DType::kF32)));
  if (options.strategy == "ddp") return settings;  // rank 0 alone saves
  // Any trainer may get the duty to save.
  const auto or_none = [](const std::string& value) {
    return value.empty() ? std::string("none") : value;
  };
  settings.common["--staleness"] =
      options.staleness < 0 ? "none" : absl::StrCat(options.staleness);
  settings.common["--quorum"] = absl::StrCat(options.quorum);
  settings.common["--late"] = options.folds_late ? "fold" : "drop";
  settings.common["--push-dtype"] = DtypeName(options.wire.push());
  settings.common["--pull-dtype"] = DtypeName(options.wire.pull());
  settings.common["--checkpoint-dir"] = or_none(options.checkpoint_dir);
  settings.common["--keep"] = absl::StrCat(options.keep);
  settings.common["--keep-as"] = or_none(options.keep_as);
  return settings;
}

absl::StatusOr<train::Result> TrainWithServers(
    worker::Worker& worker, const ImageData& data,
    const ImageTrainingOptions& options) {
  Generator generator(options.seed);
  ImageModel model = MakeModel(data, options, generator);
  train::ServerTraining::Task task;
  task.model = &model;
  task.data = data.train.get();
  task.batch_size = options.batch_size;
  task.seed = options.seed;
  task.is_sync = options.is_sync;
  task.rule = optimizer::ToSpec(options.rule, options.clip);
  task.wire = options.wire;
  if (options.staleness >= 0) task.staleness = options.staleness;
  task.quorum = options.quorum;
  task.folds_late = options.folds_late;
  task.loss = [&](const input::Example& batch) {
    return LossOf(model, batch[0], batch[1], options);
  };
  task.score = [&]() -> absl::StatusOr<double> {
    const int64_t size = data.test->size();
    WEFT_ASSIGN_OR_RETURN(const int64_t right,
                          CountRight(model, *data.test, 0, size));
    return static_cast<double>(right) / static_cast<double>(size);
  };
  WEFT_ASSIGN_OR_RETURN(
      const auto training,
      train::ServerTraining::Create(worker, std::move(task), options));
  return training->Run();
}

namespace {

using MakeTraining =
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<DataParallelTraining>>(
        DataParallelTraining::Parts parts)>;

// `rank` of `ranks` is of no matter with virtual shards.
absl::StatusOr<train::Result> TrainTogether(int rank, int ranks,
                                            const ImageData& data,
                                            const ImageTrainingOptions& options,
                                            MakeTraining make_training) {
  Generator generator(options.seed);
  ImageModel model = MakeModel(data, options, generator);
  model.To(options.device);
  WEFT_ASSIGN_OR_RETURN(
      const auto optimizer,
      optimizer::Optimizer::Create({{options.rule, model.NamedParameters(),
                                     /*lazy=*/false, options.clip}}));
  std::shared_ptr<input::DeviceBatches> batches;
  if (!options.device.is_cpu()) {
    WEFT_ASSIGN_OR_RETURN(batches,
                          input::DeviceBatches::Create(options.device));
  }
  const auto load =
      [&](int shard,
          int shards) -> absl::StatusOr<std::unique_ptr<input::DataLoader>> {
    input::ShardedSampler::Options order;
    order.size = data.train->size();
    order.shard = shard;
    order.shards = shards;
    order.seed = options.seed;
    WEFT_ASSIGN_OR_RETURN(const input::ShardedSampler sampler,
                          input::ShardedSampler::Create(order));
    input::DataLoader::Options loading;
    loading.batch_size = options.batch_size;
    loading.device_batches = batches;
    return input::DataLoader::Create(*data.train, sampler, loading);
  };
  DataParallelTraining::Parts parts;
  parts.model = &model;
  parts.optimizer = optimizer.get();
  std::unique_ptr<optimizer::GradScaler> scaler;
  if (options.precision == DType::kF16) {
    WEFT_ASSIGN_OR_RETURN(scaler, optimizer::GradScaler::Create({}));
    parts.scaler = scaler.get();
  }
  std::unique_ptr<input::DataLoader> loader;
  if (options.virtual_shards != 0) {
    parts.virtual_shards = options.virtual_shards;
    parts.make_loader = load;
  } else {
    WEFT_ASSIGN_OR_RETURN(loader, load(rank, ranks));
    parts.loader = loader.get();
  }
  std::unique_ptr<DataParallelTraining> training;
  // Each rank tests its part, so that none waits for another.
  parts.score = [&]() -> absl::StatusOr<double> {
    collectives::ProcessGroup& group = training->group();
    const int64_t size = data.test->size();
    WEFT_ASSIGN_OR_RETURN(
        const int64_t right,
        CountRight(model, *data.test, size * group.rank() / group.size(),
                   size * (group.rank() + 1) / group.size()));
    const Tensor sum = Tensor::Scalar<int64_t>(right);
    WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
    return static_cast<double>(sum.item<int64_t>()) / static_cast<double>(size);
  };
  WEFT_ASSIGN_OR_RETURN(training, make_training(std::move(parts)));
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
    if (!batch.has_value()) break;
    WEFT_RETURN_IF_ERROR(
        training->Step(LossOf(model, (*batch)[0], (*batch)[1], options)));
  }
  return training->Finish();
}

}  // namespace

absl::StatusOr<train::Result> TrainTogether(
    collectives::ProcessGroup& group, telemetry::Telemetry& telemetry,
    const ImageData& data, const ImageTrainingOptions& options) {
  return TrainTogether(group.rank(), group.size(), data, options,
                       [&](DataParallelTraining::Parts parts) {
                         return DataParallelTraining::Create(
                             group, telemetry, std::move(parts), options);
                       });
}

absl::StatusOr<train::Result> TrainTogether(
    train::Job& job, const ImageData& data,
    const ImageTrainingOptions& options) {
  worker::JoinGroupOptions join;
  join.backend = options.backend;
  join.backend.device = options.device;
  join.backend.devices = options.devices;
  if (!job.worker().options().is_elastic()) {
    WEFT_ASSIGN_OR_RETURN(const auto group, job.JoinGroup(join));
    return TrainTogether(*group, job.telemetry(), data, options);
  }
  return TrainTogether(0, 1, data, options,
                       [&](DataParallelTraining::Parts parts) {
                         return DataParallelTraining::CreateElastic(
                             job.MakeElastic(options.virtual_shards, join),
                             job.telemetry(), std::move(parts), options);
                       });
}

}  // namespace weft::launch
