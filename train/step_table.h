// StepTable: a sparse table of parameter servers that the steps of an elastic
// data-parallel training change, beside the model that every rank holds.
//
//   WEFT_ASSIGN_OR_RETURN(auto rows, train::StepTable::Open(worker, spec));
//   WEFT_ASSIGN_OR_RETURN(auto training,
//                         train::DataParallelTraining::CreateElastic(
//                             job.MakeElastic(kShards), telemetry, parts,
//                             rows->MakeTables(), options));
//   for (;;) {
//     WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
//     if (!batch.has_value()) break;
//     WEFT_ASSIGN_OR_RETURN(const Tensor pulled, rows->Pull(keys));
//     const Variable looked_up(pulled, /*requires_grad=*/true);
//     WEFT_RETURN_IF_ERROR(training->Backward(loss of looked_up));
//     WEFT_ASSIGN_OR_RETURN(std::string part,
//                           rows->PartOf(keys, looked_up.grad()));
//     WEFT_RETURN_IF_ERROR(training->GivePart(std::move(part)));
//     WEFT_RETURN_IF_ERROR(training->Step());
//   }
//
// Model and table end with the bits of a training that nobody touched, also if
// trainers and servers die (docs/elastic.md, "Tables"). Needs a job with two
// replicas. With Options::checkpoint_dir, which servers were given too, both
// are saved together, and a training whose processes have all died goes on from
// there; there is one StepTable in a job then.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_TRAIN_STEP_TABLE_H_
#define WEFT_TRAIN_STEP_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/tensor/tensor.h"
#include "weft/train/data_parallel_training.h"
#include "weft/worker/worker.h"

namespace weft::train {

class StepTable {
 public:
  // `spec`: SPARSE, with `shards` the virtual shards of the training; SYNC and
  // Orphans WAIT are set here. Waits until the servers of the job have joined.
  // Where all copies of a part of the tables are lost it is opened once a
  // checkpoint was restored (DataParallelTraining does); without one the first
  // step ends with kDataLoss, and the program with ExitCode kPeerLost.
  //   kInvalidArgument     as ps::Client::Sparse; the table is dense; `shards`
  //                        are no number of virtual shards
  //   kFailedPrecondition  the job has one replica, or no servers
  //   kDeadlineExceeded    servers are not there
  // `worker` must outlive it.
  static absl::StatusOr<std::unique_ptr<StepTable>> Open(
      worker::Worker& worker, ps::v1::TableSpec spec,
      absl::Duration timeout = absl::Minutes(1));

  // The rows of `keys` i64 [n] as of the step under way: f32 [n, dim].
  absl::StatusOr<Tensor> Pull(const Tensor& keys);

  // What DataParallelTraining::GivePart takes: gradients f32 [n, dim] of the
  // rows `keys` i64 [n], or undefined ones where the loss does not depend on
  // the rows. kInvalidArgument, which names what was wanted and found: another
  // dtype or shape.
  absl::StatusOr<std::string> PartOf(const Tensor& keys,
                                     const Tensor& gradients) const;

  // For CreateElastic, which refuses a training of other shards. This must
  // outlive the training.
  DataParallelTraining::Tables MakeTables();

 private:
  struct Pushed {
    ps::RoundPart part;
    Tensor keys;
    Tensor gradients;
    Future<void> answered;
    Instant first_at;
  };

  StepTable(worker::Worker& worker, ps::v1::TableSpec spec,
            absl::Duration timeout);

  absl::Status OpenTable();
  absl::Status BeginRound(int64_t round);
  absl::Status Push(int64_t round, int shard, absl::string_view part);
  absl::Status AwaitStable(absl::Duration wait);
  absl::Status AwaitPushed(absl::Duration wait);
  absl::Status Reopen();

  const std::string name_;  // of the worker
  const ps::v1::TableSpec spec_;
  const absl::Duration timeout_;
  ps::Client client_;
  std::unique_ptr<ps::SparseTable> table_;  // null where it is
  absl::Status lost_;  // all copies of a part of it, when it was opened
  std::vector<Pushed> pushed_;  // of the last step
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_STEP_TABLE_H_
