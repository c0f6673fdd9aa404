#include "weft/ddp/reducer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/agreement.h"
#include "weft/ddp/census.h"
#include "weft/ddp/hooks/all_reduce.h"
#include "weft/ddp/longest_wait.h"
#include "weft/ddp/sparse_reduction.h"
#include "weft/tensor/ops/elementwise.h"

namespace weft::ddp {
namespace {

using collectives::ProcessGroup;
using collectives::ReduceOp;
using collectives::Reduction;

// So that kernels that write a view meet a line of the cache at its beginning.
constexpr int64_t kAlignment = 64;

int64_t ElementsOf(const ReducerParameter& parameter) {
  return NumElements(parameter.shape, parameter.name);
}

int64_t PaddedElements(const ReducerParameter& parameter) {
  const int64_t unit = kAlignment / ItemSize(parameter.dtype);
  return (ElementsOf(parameter) + unit - 1) / unit * unit;
}

SparseRows OnHost(const SparseRows& rows) {
  return RowsOn(Device::Cpu(), rows);
}

// `rows`, which are on the CPU, and 0 elsewhere.
void WriteRows(const Tensor& view, const SparseRows& rows) {
  const bool is_here = view.device().is_cpu();
  const Tensor whole =
      is_here ? view : Tensor::Empty(view.shape(), view.dtype());
  whole.Fill(0);
  AddRows_(whole, 1, rows);
  if (!is_here) view.CopyFrom(whole);
}

}  // namespace

Reducer::Reducer(ProcessGroup& group, std::vector<ReducerParameter> parameters,
                 ReducerOptions options)
    : group_(group),
      parameters_(std::move(parameters)),
      options_(std::move(options)),
      hook_(options_.hook != nullptr ? options_.hook
                                     : std::make_shared<AllReduceHook>()),
      bucket_of_(parameters_.size()),
      views_(parameters_.size()),
      has_form_(parameters_.size()),
      is_sparse_(parameters_.size()),
      rows_(parameters_.size()),
      marks_(parameters_.size()),
      came_as_rows_(parameters_.size()),
      kept_(parameters_.size()),
      kept_rows_(parameters_.size()),
      ever_used_(parameters_.size()) {
  census_.is_used.resize(parameters_.size());
  // Rows are those of a table.
  for (int i = 0; i < size(); ++i) {
    has_form_[i] = parameters_[i].shape.size() != 2;
  }
}

Reducer::~Reducer() {
  Abandon(absl::CancelledError("the reducer was destroyed during a step"));
}

absl::StatusOr<std::unique_ptr<Reducer>> Reducer::Create(
    ProcessGroup& group, std::vector<ReducerParameter> parameters,
    ReducerOptions options) {
  auto reducer = std::unique_ptr<Reducer>(
      new Reducer(group, std::move(parameters), std::move(options)));
  WEFT_RETURN_IF_ERROR(reducer->Agree());
  std::vector<int> last_first(reducer->size());
  std::iota(last_first.rbegin(), last_first.rend(), 0);
  WEFT_RETURN_IF_ERROR(
      CatchToStatus([&] { return reducer->AllocateBuckets(last_first); }));
  return reducer;
}

absl::Status Reducer::Agree() const {
  return CheckAgreement(group_, CheckArguments(parameters_, options_),
                        Describe(parameters_, options_), options_.timeout);
}

absl::Status Reducer::AllocateBuckets(const std::vector<int>& order) {
  // The plan is one of these parameters: numbers among those.
  std::vector<BucketItem> items;
  for (const int i : order) {
    const ReducerParameter& parameter = parameters_[i];
    items.push_back({ElementsOf(parameter) * ItemSize(parameter.dtype),
                     parameter.dtype, parameter.device});
  }
  std::vector<int> as_given(items.size());
  std::iota(as_given.begin(), as_given.end(), 0);
  std::vector<Bucket> added;
  if (!items.empty()) {
    added = PlanBuckets(
        items, {options_.first_bucket_bytes, options_.bucket_bytes}, as_given);
  }
  if (!buckets_.empty()) buckets_.back().bucket.is_last = false;
  for (Bucket& bucket : added) {
    for (int& i : bucket) i = order[i];
    WEFT_RETURN_IF_ERROR(AllocateBucket(bucket));
    plan_.push_back(std::move(bucket));
  }
  if (!buckets_.empty()) buckets_.back().bucket.is_last = true;
  return absl::OkStatus();
}

absl::Status Reducer::AllocateBucket(const Bucket& parameters) {
  int64_t elements = 0;
  for (const int i : parameters) elements += PaddedElements(parameters_[i]);
  const DType dtype = parameters_[parameters.front()].dtype;
  const Device device = parameters_[parameters.front()].device;
  absl::StatusOr<Tensor> buffer =
      device.is_cpu() ? group_.Allocate({elements}, dtype)
                      : Tensor::Empty({elements}, dtype, device);
  // Memory of its own does as well: operations copy it then.
  if (absl::IsResourceExhausted(buffer.status())) {
    buffer = Tensor::Empty({elements}, dtype);
  }
  WEFT_RETURN_IF_ERROR(buffer.status());
  buffer->Fill(0);
  GradientBucket bucket;
  bucket.index = static_cast<int>(buckets_.size());
  bucket.parameters = parameters;
  int64_t begin = 0;
  for (const int i : parameters) {
    const ReducerParameter& parameter = parameters_[i];
    bucket_of_[i] = bucket.index;
    views_[i] = buffer->Slice(0, begin, begin + ElementsOf(parameter))
                    .View(parameter.shape);
    bucket.gradients.push_back(views_[i]);
    begin += PaddedElements(parameter);
  }
  bucket.buffer = *std::move(buffer);
  buckets_.emplace_back();
  buckets_.back().bucket = std::move(bucket);
  return absl::OkStatus();
}

absl::Status Reducer::RebuildBuckets() {
  std::vector<int> order = std::move(order_);
  order_.clear();
  order.erase(
      std::remove_if(order.begin(), order.end(),
                     [&](int i) { return !has_form_[i] || is_sparse_[i]; }),
      order.end());
  // The group's memory may not hold old and new buckets at once. What no rank
  // has used yet stays in this memory.
  std::vector<Tensor> contents(parameters_.size());
  for (int i = 0; i < size(); ++i) {
    if (!is_sparse_[i]) contents[i] = views_[i].Clone();
  }
  views_ = contents;
  buckets_.clear();
  plan_.clear();
  std::fill(bucket_of_.begin(), bucket_of_.end(), -1);
  WEFT_RETURN_IF_ERROR(AllocateBuckets(order));
  for (const int i : order) views_[i].CopyFrom(contents[i]);
  return absl::OkStatus();
}

// Buckets of what some rank uses for the first time after buckets were planned.
absl::Status Reducer::AppendBuckets(const std::vector<int>& late) {
  const std::vector<Tensor> contents = views_;
  WEFT_RETURN_IF_ERROR(AllocateBuckets(late));
  for (const int i : late) views_[i].CopyFrom(contents[i]);
  return absl::OkStatus();
}

absl::Status Reducer::CheckBegin(double weight) const {
  if (is_open_) {
    return absl::FailedPreconditionError(
        absl::StrCat("Reducer::Begin: step ", step_, " of rank ", group_.rank(),
                     " is open; end it with Finish"));
  }
  if (!std::isfinite(weight) || weight < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Reducer::Begin: wanted a finite weight of at least 0, found ",
        weight));
  }
  if (options_.divisor == Divisor::kWorldSize && weight != 1 && weight != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Reducer::Begin: weight ", weight,
        " needs Divisor::kTotalWeight; the sum is divided by the number of "
        "ranks here: wanted 1, or 0 for a rank without data"));
  }
  const absl::Status health = group_.health();
  if (health.ok()) return health;
  return Reworded(health, absl::StrCat("Reducer::Begin: group ", group_.name(),
                                       " is broken: ", health.message()));
}

absl::Status Reducer::Begin(double weight) {
  WEFT_RETURN_IF_ERROR(CheckBegin(weight));
  if (!order_.empty()) {
    WEFT_RETURN_IF_ERROR(CatchToStatus([this] { return RebuildBuckets(); }));
  }
  is_open_ = true;
  ++step_;
  weight_ = weight;
  launched_ = 0;
  unmarked_ = size();
  std::fill(marks_.begin(), marks_.end(), Mark::kNone);
  std::fill(came_as_rows_.begin(), came_as_rows_.end(), false);
  std::fill(kept_.begin(), kept_.end(), Tensor());
  std::fill(kept_rows_.begin(), kept_rows_.end(), absl::nullopt);
  marked_in_order_.clear();
  for (BucketState& bucket : buckets_) {
    bucket.unmarked = static_cast<int>(bucket.bucket.parameters.size());
  }
  timing_.Begin();
  return absl::OkStatus();
}

absl::Status Reducer::MarkRows(int parameter, const SparseRows& given) {
  WEFT_RETURN_IF_ERROR(CheckMark(parameter, Mark::kReady));
  WEFT_ASSIGN_OR_RETURN(const SparseRows rows,
                        CatchToStatus([&] { return OnHost(given); }));
  WEFT_RETURN_IF_ERROR(CheckRows(parameters_[parameter], rows));
  if (has_form_[parameter] && !is_sparse_[parameter]) {
    WEFT_RETURN_IF_ERROR(
        CatchToStatus([&] { WriteRows(views_[parameter], rows); }));
  }
  return SetMark(parameter, Mark::kReady, rows);
}

absl::Status Reducer::CheckMark(int parameter, Mark mark) const {
  if (parameter < 0 || parameter >= size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Reducer: wanted a parameter below ", size(), ", found ", parameter));
  }
  const std::string& name = parameters_[parameter].name;
  if (!is_open_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Reducer: parameter ", name,
        " was marked outside of a step; call Begin before and Finish after"));
  }
  if (marks_[parameter] != Mark::kNone) {
    return absl::FailedPreconditionError(
        absl::StrCat("Reducer: parameter ", name, " was marked twice in step ",
                     step_, " of rank ", group_.rank()));
  }
  const bool has_gradient = mark == Mark::kReady;
  if (options_.is_static_graph && !first_marks_.empty() &&
      has_gradient != (first_marks_[parameter] == Mark::kReady)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Reducer: parameter ", name, has_gradient ? " has a" : " has no",
        " gradient in step ", step_, " of rank ", group_.rank(),
        has_gradient ? ", and had none" : ", and had one",
        " in the first step; wanted the same parameters in each step with "
        "ReducerOptions::is_static_graph: switch it off"));
  }
  return absl::OkStatus();
}

absl::Status Reducer::SetMark(int parameter, Mark mark,
                              const absl::optional<SparseRows>& rows) {
  WEFT_RETURN_IF_ERROR(CheckMark(parameter, mark));
  if (is_sparse_[parameter] && mark != Mark::kUnused && !rows.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Reducer: parameter ", parameters_[parameter].name,
        " is reduced as rows, since its gradients were rows in the first "
        "step; wanted MarkRows, found a whole gradient"));
  }
  WEFT_RETURN_IF_ERROR(
      CatchToStatus([&] { TakeContribution(parameter, mark, rows); }));
  --unmarked_;
  timing_.Mark();
  // In the first step it is not agreed yet what is reduced as rows.
  if (is_settled_) {
    // A hook may throw.
    WEFT_RETURN_IF_ERROR(CatchToStatus([this] { LaunchReadyBuckets(); }));
  }
  if (unmarked_ == 0 && has_census()) LaunchCensus();
  return absl::OkStatus();
}

void Reducer::TakeContribution(int parameter, Mark mark,
                               const absl::optional<SparseRows>& rows) {
  const ReducerParameter& own = parameters_[parameter];
  // Gradients of a rank without samples are ignored, NaN included.
  const bool is_weightless = weight_ == 0;
  const bool is_empty = mark == Mark::kUnused || is_weightless;
  if (mark == Mark::kReady && is_weightless) mark = Mark::kUnused;
  if (is_sparse_[parameter] || (!has_form_[parameter] && rows.has_value())) {
    if (mark == Mark::kUnchanged) kept_rows_[parameter] = OnHost(*rows);
    rows_[parameter] = is_empty ? NoRows(own.shape, own.dtype) : OnHost(*rows);
    came_as_rows_[parameter] = true;
  } else {
    if (mark == Mark::kUnchanged) kept_[parameter] = views_[parameter].Clone();
    if (is_empty) views_[parameter].Fill(0);
  }
  const int bucket = bucket_of_[parameter];
  if (bucket >= 0) --buckets_[bucket].unmarked;
  marks_[parameter] = mark;
  if (mark == Mark::kReady) marked_in_order_.push_back(parameter);
}

collectives::CallOptions Reducer::CallOptionsOf(size_t bucket) const {
  collectives::CallOptions call;
  call.timeout = options_.timeout;
  // Never 0, which is the label of operations that are not this reducer's.
  call.label = (step_ << 20) + bucket + 1;
  return call;
}

void Reducer::LaunchReadyBuckets() {
  const Reduction reduction = options_.divisor == Divisor::kWorldSize
                                  ? Reduction(ReduceOp::kAverage)
                                  : Reduction(ReduceOp::kSum, weight_);
  // In the order of indices only: a rank whose gradients come in another order
  // launches the same reductions in the same order.
  while (launched_ < buckets_.size() && buckets_[launched_].unmarked == 0) {
    BucketState& state = buckets_[launched_];
    state.bucket.reduction = reduction;
    state.bucket.call = CallOptionsOf(launched_);
    state.reduced = hook_->Reduce(group_, state.bucket);
    timing_.Launched(state.reduced);
    ++launched_;
  }
}

bool Reducer::has_census() const {
  return !options_.is_static_graph || !is_settled_;
}

bool Reducer::has_open_forms() const {
  return std::find(has_form_.begin(), has_form_.end(), false) !=
         has_form_.end();
}

void Reducer::LaunchCensus() {
  CensusEntry own;
  own.weight = weight_;
  own.has_gradients = !marked_in_order_.empty();
  const bool asks = has_open_forms();
  for (int i = 0; i < size(); ++i) {
    own.is_ready.push_back(marks_[i] == Mark::kReady);
    const bool contributes = marks_[i] != Mark::kUnused && weight_ > 0;
    if (asks) own.is_whole.push_back(contributes && !came_as_rows_[i]);
  }
  census_sum_ = WriteCensus(own, group_.rank(), group_.size());
  census_reduced_ = group_.AllReduceAsync(census_sum_, ReduceOp::kSum,
                                          CallOptionsOf(buckets_.size()));
  timing_.Launched(census_reduced_);
}

absl::Status Reducer::CheckAllMarked() const {
  std::vector<std::string> names;
  for (int i = 0; i < size(); ++i) {
    if (marks_[i] == Mark::kNone) names.push_back(parameters_[i].name);
  }
  if (names.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Reducer::Finish: step ", step_, " of rank ", group_.rank(),
                   " has no mark for ", absl::StrJoin(names, ", "),
                   "; mark each parameter ready or unused"));
}

absl::Status Reducer::Finish() {
  if (!is_open_) {
    return absl::FailedPreconditionError(
        "Reducer::Finish: no step is open; call Begin first");
  }
  if (const absl::Status marked = CheckAllMarked(); !marked.ok()) {
    Abandon(marked);
    return marked;
  }
  is_open_ = false;
  const absl::Status status = Complete();
  // After a failure of a hook on this rank only, the others must not go on.
  if (!status.ok() && group_.health().ok()) group_.Revoke(status);
  return status;
}

absl::Status Reducer::Complete() {
  const bool is_first = !is_settled_;
  if (!is_first) WEFT_RETURN_IF_ERROR(AwaitBuckets(/*first=*/0));
  if (has_census()) {
    WEFT_RETURN_IF_ERROR(AwaitCensus());
    TakeCensus();
    WEFT_RETURN_IF_ERROR(CatchToStatus([this] { return ReduceUndecided(); }));
  }
  WEFT_RETURN_IF_ERROR(ReduceAsRows());
  DivideByWeight();
  RestoreUnused();
  timing_.Finish();
  if (!is_first || census_.first_rank_with_gradients < 0)
    return absl::OkStatus();
  return Settle();
}

absl::Status Reducer::AwaitOne(const Future<void>& reduced,
                               absl::string_view what, size_t number,
                               absl::Time deadline) const {
  absl::Status status = reduced.Wait(deadline - absl::Now());
  if (status.ok()) return status;
  if (!reduced.IsReady()) {
    status = absl::DeadlineExceededError(absl::StrCat(
        "hook ", hook_->name(),
        " has not ended at twice the timeout; wanted a Future that ends with "
        "its operations"));
  }
  // An operation that comes after the group broke only says that it did; the
  // code of the reason says what to do, and is the same on all ranks.
  const absl::Status health = group_.health();
  return Reworded(
      status, health.ok() ? status.code() : health.code(),
      absl::StrCat("step ", step_, " of rank ", group_.rank(), ", ", what, " ",
                   number, " of ", buckets_.size(), ": ", status.message()));
}

absl::Status Reducer::AwaitBuckets(size_t first) {
  // Each operation has its own deadline; a hook may not.
  const absl::Time deadline =
      absl::Now() + LongestWait(group_, options_.timeout);
  absl::Status status;
  for (size_t b = first; b < buckets_.size(); ++b) {
    status.Update(
        AwaitOne(buckets_[b].reduced, "gradient bucket", b, deadline));
  }
  return status;
}

absl::Status Reducer::AwaitCensus() {
  return AwaitOne(census_reduced_, "use of parameters after bucket",
                  buckets_.size(),
                  absl::Now() + LongestWait(group_, options_.timeout));
}

void Reducer::TakeCensus() {
  census_ = ReadCensus(census_sum_, group_.size(), size());
  for (int i = 0; i < size(); ++i) {
    if (census_.is_used[i]) ever_used_[i] = true;
  }
}

// What could not be reduced before the census, which is the same on all ranks.
absl::Status Reducer::ReduceUndecided() {
  const std::vector<int> whole = DecideForms();
  const size_t first = launched_;
  // A first step in which no rank has gradients reduces nothing.
  if (!is_settled_ && census_.first_rank_with_gradients < 0)
    return absl::OkStatus();
  if (is_settled_) WEFT_RETURN_IF_ERROR(AppendBuckets(whole));
  LaunchReadyBuckets();
  return AwaitBuckets(first);
}

// Settles how those are reduced that some rank uses for the first time; returns
// those that are reduced whole.
std::vector<int> Reducer::DecideForms() {
  std::vector<int> whole;
  for (int i = 0; i < size(); ++i) {
    if (has_form_[i] || !census_.is_used[i]) continue;
    has_form_[i] = true;
    is_sparse_[i] = !census_.is_whole[i];
    if (is_sparse_[i]) {
      const ReducerParameter& own = parameters_[i];
      if (!came_as_rows_[i]) rows_[i] = NoRows(own.shape, own.dtype);
      views_[i] = Tensor();
      continue;
    }
    whole.push_back(i);
    if (!came_as_rows_[i]) continue;
    WriteRows(views_[i], rows_[i]);
    rows_[i] = SparseRows();
  }
  return whole;
}

absl::Status Reducer::ReduceAsRows() {
  std::vector<int> parameters;
  std::vector<SparseRows> tables;
  for (int i = 0; i < size(); ++i) {
    if (!is_sparse_[i]) continue;
    parameters.push_back(i);
    tables.push_back(rows_[i]);
  }
  if (tables.empty()) return absl::OkStatus();
  const bool is_mean = options_.divisor == Divisor::kWorldSize;
  auto reduced =
      ReduceRows(group_, tables, is_mean ? 1.0 / group_.size() : weight_,
                 CallOptionsOf(buckets_.size() + 1));
  if (!reduced.ok()) {
    const absl::Status health = group_.health();
    return Reworded(
        reduced.status(), health.ok() ? reduced.status().code() : health.code(),
        absl::StrCat(
            "step ", step_, " of rank ", group_.rank(),
            ", gradients reduced as rows: ", reduced.status().message()));
  }
  for (size_t t = 0; t < parameters.size(); ++t) {
    rows_[parameters[t]] = std::move((*reduced)[t]);
  }
  return absl::OkStatus();
}

// Called by all ranks after the same step: the last census says so.
absl::Status Reducer::Settle() {
  is_settled_ = true;
  first_marks_ = marks_;
  const bool all_stay =
      !has_open_forms() &&
      std::find(is_sparse_.begin(), is_sparse_.end(), true) == is_sparse_.end();
  if (!options_.rebuilds_buckets && all_stay) return absl::OkStatus();
  const Tensor order = Tensor::Zeros({size()}, DType::kI64);
  // Parameters without a gradient on the root come last: they may have one
  // elsewhere.
  std::vector<int> own = marked_in_order_;
  for (int i = size() - 1; i >= 0; --i) {
    if (marks_[i] != Mark::kReady) own.push_back(i);
  }
  if (!options_.rebuilds_buckets) std::iota(own.rbegin(), own.rend(), 0);
  for (int i = 0; i < size(); ++i) order.data<int64_t>()[i] = own[i];
  const collectives::CallOptions call = CallOptionsOf(buckets_.size() + 2);
  const absl::Status given =
      group_.Broadcast(order, census_.first_rank_with_gradients, call);
  if (!given.ok()) {
    const absl::Status health = group_.health();
    return Reworded(given, health.ok() ? given.code() : health.code(),
                    absl::StrCat("order of buckets: ", given.message()));
  }
  // Another rank says so: each parameter must be there once.
  std::vector<bool> is_there(size());
  for (const int64_t i : order.span<int64_t>()) {
    if (i < 0 || i >= size() || is_there[i]) {
      order_.clear();
      return absl::InternalError(absl::StrCat(
          "order of buckets: rank ", census_.first_rank_with_gradients,
          " has sent none of ", size(), " parameters"));
    }
    is_there[i] = true;
    order_.push_back(static_cast<int>(i));
  }
  return absl::OkStatus();
}

void Reducer::DivideByWeight() {
  if (options_.divisor != Divisor::kTotalWeight || census_.total_weight <= 0)
    return;
  for (const BucketState& state : buckets_) {
    Mul_(state.bucket.buffer, 1 / census_.total_weight);
  }
  for (int i = 0; i < size(); ++i) {
    if (is_sparse_[i]) Mul_(rows_[i].values, 1 / census_.total_weight);
  }
}

void Reducer::RestoreUnused() {
  for (int i = 0; i < size(); ++i) {
    if (!census_.is_used[i] && kept_[i].defined()) views_[i].CopyFrom(kept_[i]);
    if (!census_.is_used[i] && kept_rows_[i].has_value())
      rows_[i] = *kept_rows_[i];
    if (!has_form_[i]) rows_[i] = SparseRows();
    kept_[i] = Tensor();
    kept_rows_[i].reset();
  }
}

std::vector<std::string> Reducer::NeverUsed() const {
  std::vector<std::string> names;
  for (int i = 0; i < size(); ++i) {
    if (!ever_used_[i]) names.push_back(parameters_[i].name);
  }
  return names;
}

void Reducer::Abandon(const absl::Status& why) {
  WEFT_CHECK(!why.ok());
  if (!is_open_) return;
  is_open_ = false;
  group_.Revoke(why);
}

}  // namespace weft::ddp
