// Reducer: averages gradients over the ranks of a group while they are made.
//
//   auto reducer = Reducer::Create(group, {{"w", {784, 10}}, {"b", {10}}});
//   for (...) {
//     WEFT_RETURN_IF_ERROR((*reducer)->Begin());
//     FillGradient((*reducer)->gradient(1));         // the last layer's first
//     WEFT_RETURN_IF_ERROR((*reducer)->MarkReady(1));
//     FillGradient((*reducer)->gradient(0));
//     WEFT_RETURN_IF_ERROR((*reducer)->MarkReady(0));
//     WEFT_RETURN_IF_ERROR((*reducer)->Finish());    // now they are means
//   }
//
// It knows no autograd and no model: any loop that makes gradients can use it.
// Gradients are views into buckets (bucket_plan.h), which lie in the group's
// own memory, or on the device of their parameters. For gradients on a device
// all is ordered as work on the current stream of the thread that marks them. A
// bucket is reduced as soon as all its parameters are marked and all buckets
// before it are under way: that order is the same on all ranks, so no rank has
// to ask another. Parameters are bucketed from the last to the first; after the
// first step in which some rank has gradients the buckets are planned again, in
// the order in which those of the lowest such rank became ready, on all ranks
// alike. From then on gradient() is another tensor, with the same content.
//
// A parameter of two dimensions is reduced as rows, or whole: as rows if all
// ranks that had a gradient in the first step in which any had one gave rows
// (MarkRows). The ranks agree on that before they reduce it, so nothing is
// reduced before Finish in the first step, and a parameter that no rank has
// used yet is in no bucket. It is settled once for each parameter. For a
// parameter that is reduced as rows each rank sends the rows it has, in Finish.
//
// A step that fails on one rank fails on all: with the reason, where that rank
// gave one (Abandon); else it is named at the deadline or when it ends. That
// breaks the group (process_group.h), and every rank gets the code with which
// it broke; what gradients hold is undefined then.
//
// Source: PyTorch's reducer; Li et al., PyTorch Distributed, VLDB 2020, 3.2.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_DDP_REDUCER_H_
#define WEFT_DDP_REDUCER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "weft/base/future.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/bucket_plan.h"
#include "weft/ddp/census.h"
#include "weft/ddp/hooks/communication_hook.h"
#include "weft/ddp/reducer_options.h"
#include "weft/ddp/reducer_timing.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/tensor.h"

namespace weft::ddp {

class Reducer {
 public:
  // Called by all ranks; checks that they agree. `group` must outlive it.
  // kInvalidArgument, on every rank: a parameter's name, shape or dtype, their
  // number, or the options differ (both sides are named), or are not allowed.
  // Other errors as ProcessGroup.
  static absl::StatusOr<std::unique_ptr<Reducer>> Create(
      collectives::ProcessGroup& group,
      std::vector<ReducerParameter> parameters, ReducerOptions options = {});
  // Abandons a step that is open.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  int size() const { return static_cast<int>(parameters_.size()); }
  const std::vector<ReducerParameter>& parameters() const {
    return parameters_;
  }
  const std::vector<Bucket>& buckets() const { return plan_; }

  // Has the parameter's shape, is contiguous and aligned to 64 bytes; zeros at
  // first. Not to be read or written between its mark and the end of Finish.
  // Undefined for a parameter that is reduced as rows.
  const Tensor& gradient(int parameter) const { return views_[parameter]; }

  // Opens a step, in which each parameter is marked once. `weight` must be
  // finite and at least 0; with Divisor::kWorldSize it is 1, or 0. A rank of
  // weight 0 contributes zeros, whatever its gradients hold.
  // kFailedPrecondition if a step is open; if the group is broken, the reason.
  absl::Status Begin(double weight = 1);

  // gradient(parameter) is this rank's. kFailedPrecondition if it is marked
  // already or no step is open; kInvalidArgument for no such parameter.
  absl::Status MarkReady(int parameter) {
    return SetMark(parameter, Mark::kReady, absl::nullopt);
  }
  // This rank's gradient is `rows`, all others 0. Where the parameter is
  // reduced whole, they are written to gradient(parameter). kInvalidArgument
  // for rows that do not fit the parameter. Rows are reduced on the CPU: waits
  // for those on a device to come there.
  absl::Status MarkRows(int parameter, const SparseRows& rows);
  // This rank has no gradient: it contributes zeros, which are written to
  // gradient(parameter).
  absl::Status MarkUnused(int parameter) {
    return SetMark(parameter, Mark::kUnused, absl::nullopt);
  }
  // This rank has no new gradient, but gradient(parameter) holds an older one
  // to which the others may have added: that is contributed. If no rank has a
  // new one, it is as before after Finish. `rows`, if given, are the older
  // gradient instead: where the parameter is reduced as rows, or that is not
  // settled.
  absl::Status MarkUnchanged(
      int parameter, const absl::optional<SparseRows>& rows = absl::nullopt) {
    return SetMark(parameter, Mark::kUnchanged, rows);
  }

  // Waits until all gradients are reduced, and closes the step.
  // kFailedPrecondition, naming them, if parameters are not marked: the step
  // is abandoned then. kDeadlineExceeded names a hook that does not end. Else
  // as ProcessGroup.
  absl::Status Finish();

  // Closes a step that this rank cannot complete: the other ranks fail with
  // `why`. Does nothing if no step is open. REQUIRES: !why.ok().
  void Abandon(const absl::Status& why);

  bool is_open() const { return is_open_; }
  // Steps begun.
  uint64_t step() const { return step_; }

  // --- After Finish, the same on all ranks. ----------------------------------

  // Whether some rank with a weight above 0 marked it ready. If not,
  // gradient(parameter) holds what MarkUnused or MarkUnchanged left there.
  bool is_used(int parameter) const { return census_.is_used[parameter]; }
  // The sum of all ranks' weights. 0: no rank has data left. With
  // ReducerOptions::is_static_graph that of the first step.
  double total_weight() const { return census_.total_weight; }
  // The lowest rank with a weight above 0; 0 if there is none.
  int first_rank_with_data() const { return census_.first_rank_with_data; }
  // Whether the parameter is reduced as rows: rows(parameter) is the result,
  // coalesced, on the CPU.
  // False as long as no rank has used it.
  bool is_sparse(int parameter) const { return is_sparse_[parameter]; }
  const SparseRows& rows(int parameter) const { return rows_[parameter]; }

  // Whether it is settled how the parameter is reduced: before that, rows and
  // whole gradients are both taken as they are.
  bool has_form(int parameter) const { return has_form_[parameter]; }
  // Whether the buckets are final, but for those of parameters that no rank has
  // used yet.
  bool is_settled() const { return is_settled_ && order_.empty(); }
  // Parameters for which no rank had a gradient in any step: names.
  std::vector<std::string> NeverUsed() const;
  const ReducerTiming& timing() const { return timing_; }
  const ReducerOptions& options() const { return options_; }

 private:
  enum class Mark : uint8_t { kNone, kReady, kUnused, kUnchanged };
  struct BucketState {
    GradientBucket bucket;  // its buffer: views and the gaps between them
    int unmarked = 0;
    Future<void> reduced = MakeReady();
  };

  Reducer(collectives::ProcessGroup& group,
          std::vector<ReducerParameter> parameters, ReducerOptions options);

  absl::Status Agree() const;
  // Plans buckets of all that is not reduced as rows, in `order`.
  absl::Status AllocateBuckets(const std::vector<int>& order);
  absl::Status AllocateBucket(const Bucket& parameters);
  absl::Status RebuildBuckets();
  absl::Status AppendBuckets(const std::vector<int>& late);
  absl::Status CheckBegin(double weight) const;
  absl::Status CheckMark(int parameter, Mark mark) const;
  absl::Status SetMark(int parameter, Mark mark,
                       const absl::optional<SparseRows>& rows);
  void TakeContribution(int parameter, Mark mark,
                        const absl::optional<SparseRows>& rows);
  void LaunchReadyBuckets();
  void LaunchCensus();
  bool has_census() const;
  bool has_open_forms() const;
  absl::Status CheckAllMarked() const;
  absl::Status Complete();
  absl::Status AwaitBuckets(size_t first);
  absl::Status AwaitOne(const Future<void>& reduced, absl::string_view what,
                        size_t number, absl::Time deadline) const;
  absl::Status AwaitCensus();
  void TakeCensus();
  absl::Status ReduceUndecided();
  std::vector<int> DecideForms();
  absl::Status ReduceAsRows();
  absl::Status Settle();
  void DivideByWeight();
  void RestoreUnused();
  collectives::CallOptions CallOptionsOf(size_t bucket) const;

  collectives::ProcessGroup& group_;
  const std::vector<ReducerParameter> parameters_;
  const ReducerOptions options_;
  std::shared_ptr<CommunicationHook> hook_;
  std::vector<Bucket> plan_;
  std::vector<int> bucket_of_;  // by parameter; -1: in none
  std::vector<Tensor> views_;   // by parameter
  std::vector<BucketState> buckets_;
  std::vector<bool> has_form_;    // by parameter
  std::vector<bool> is_sparse_;   // by parameter: only if it has a form
  std::vector<SparseRows> rows_;  // by parameter: of this rank, then of all

  // Once the order of buckets is agreed; then that order, by which the next
  // Begin plans them again, if it is not empty.
  bool is_settled_ = false;
  std::vector<int> order_;

  // The step that is open, or was last.
  bool is_open_ = false;
  uint64_t step_ = 0;
  double weight_ = 1;
  size_t launched_ = 0;  // buckets
  int unmarked_ = 0;     // parameters
  std::vector<Mark> marks_;
  std::vector<Mark> first_marks_;     // of the first whole step
  std::vector<int> marked_in_order_;  // parameters that were ready
  std::vector<bool> came_as_rows_;    // by parameter without a form
  // What MarkUnchanged found, by parameter; undefined for the others.
  std::vector<Tensor> kept_;
  std::vector<absl::optional<SparseRows>> kept_rows_;
  Tensor census_sum_;
  Future<void> census_reduced_ = MakeReady();
  Census census_;  // the last one
  std::vector<bool> ever_used_;
  ReducerTiming timing_;
};

}  // namespace weft::ddp

#endif  // WEFT_DDP_REDUCER_H_
