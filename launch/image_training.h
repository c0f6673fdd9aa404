// The training of the trainer program: an image classifier, with parameter
// servers or with the other trainers only (train/).

#ifndef WEFT_LAUNCH_IMAGE_TRAINING_H_
#define WEFT_LAUNCH_IMAGE_TRAINING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/collectives/process_group.h"
#include "weft/device/context.h"
#include "weft/input/idx.h"
#include "weft/launch/image_model.h"
#include "weft/optimizer/rules/rule_options.h"
#include "weft/proto/ps.pb.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tensor/device.h"
#include "weft/tensor/dtype.h"
#include "weft/train/options.h"
#include "weft/train/run.h"
#include "weft/train/settings.h"
#include "weft/worker/group_backend.h"
#include "weft/worker/worker.h"

namespace weft::launch {

struct ImageTrainingOptions : train::Options {
  // Holds IDX files, gzipped or not, by MNIST's names:
  // train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-...
  std::string data = "/usr/share/datasets/fashion-mnist";
  int64_t classes = 10;
  std::string strategy = "ps";  // or ddp
  bool is_sync = true;
  int64_t batch_size = 64;  // of each trainer, or each virtual shard
  int virtual_shards = 0;   // with ddp; 0: none
  optimizer::RuleOptions rule = optimizer::AdamOptions{2e-3};
  optimizer::ClipOptions clip;
  ps::v1::WireValues wire;  // with servers
  // As train::ServerTraining::Task has them; negative: no staleness.
  int64_t staleness = -1;
  int quorum = 0;
  bool folds_late = false;
  // The dtype in which the forward pass computes (AutocastScope), f16 or bf16;
  // nothing: f32. Parameters, gradients and the test are in f32. f16, which
  // skips steps (optimizer::GradScaler), is for ddp.
  std::optional<DType> precision;
  uint64_t seed = 1;  // of first parameters and of the data's order
  // Where the model is trained, with ddp; its context, which may be owned here,
  // outlives the training.
  Device device;
  std::shared_ptr<device::Context> devices;
  // What moves gradients, with ddp: its name and, of tests, the library. The
  // device is the one above.
  worker::GroupBackend backend;
};

struct ImageData {
  std::unique_ptr<input::IdxDataset> train;
  std::unique_ptr<input::IdxDataset> test;
};

// Reads both sets. The error names the file, what was wanted and what found.
absl::StatusOr<ImageData> LoadImageData(const ImageTrainingOptions& options);

// How many of images [begin, end) the model gives their class.
absl::StatusOr<int64_t> CountRight(ImageModel& model,
                                   const input::IdxDataset& images,
                                   int64_t begin, int64_t end);

// "f32", "f16", "bf16", "int8", as --push-dtype and --pull-dtype have them.
std::string DtypeName(ps::v1::WireValues::Dtype dtype);
// kInvalidArgument names the valid ones.
absl::StatusOr<ps::v1::WireValues::Dtype> DtypeNamed(absl::string_view name);

// "f32", "f16" or "bf16", as --precision has them: kInvalidArgument names the
// valid ones.
absl::StatusOr<std::optional<DType>> PrecisionNamed(absl::string_view name);

// The value for train::Options::settings. Those that are not fixed may change
// when a job goes on from a checkpoint: --lr, --clip-value, --clip-norm,
// --batch-size, --epochs, --push-dtype, --pull-dtype.
train::Settings SettingsOf(const ImageTrainingOptions& options,
                           const ImageData& data);

// Each trains to the end; the score is the share of test images whose class is
// right. The errors are those of train::ServerTraining and
// train::DataParallelTraining.
absl::StatusOr<train::Result> TrainWithServers(
    worker::Worker& worker, const ImageData& data,
    const ImageTrainingOptions& options);
// Trains with the other trainers; in an elastic job with those that are in it
// now.
absl::StatusOr<train::Result> TrainTogether(
    train::Job& job, const ImageData& data,
    const ImageTrainingOptions& options);
// The same in a group that exists already.
absl::StatusOr<train::Result> TrainTogether(
    collectives::ProcessGroup& group, telemetry::Telemetry& telemetry,
    const ImageData& data, const ImageTrainingOptions& options);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_IMAGE_TRAINING_H_
