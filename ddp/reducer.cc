#include "weft/ddp/reducer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/agreement.h"
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

absl::Status CheckArguments(const std::vector<ReducerParameter>& parameters,
                            const ReducerOptions& options) {
  if (parameters.empty()) {
    return absl::InvalidArgumentError(
        "there is no parameter that requires a gradient");
  }
  if (options.first_bucket_bytes < 1 || options.bucket_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted buckets of at least 1 byte, found ", options.first_bucket_bytes,
        " for the first and ", options.bucket_bytes, " for the others"));
  }
  for (const ReducerParameter& parameter : parameters) {
    if (!IsFloating(parameter.dtype)) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", parameter.name, " is ",
                       Name(parameter.dtype), "; wanted a floating dtype"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> Describe(
    const std::vector<ReducerParameter>& parameters,
    const ReducerOptions& options) {
  std::vector<std::string> lines = {absl::StrCat(
      "options: division by ",
      options.divisor == Divisor::kWorldSize ? "the number of ranks"
                                             : "the total weight",
      ", buckets of ", options.first_bucket_bytes, " and ",
      options.bucket_bytes, " bytes")};
  for (const ReducerParameter& parameter : parameters) {
    lines.push_back(absl::StrCat("parameter ", parameter.name, " ",
                                 Name(parameter.dtype),
                                 ShapeText(parameter.shape)));
  }
  return lines;
}

}  // namespace

Reducer::Reducer(ProcessGroup& group, std::vector<ReducerParameter> parameters,
                 ReducerOptions options)
    : group_(group),
      parameters_(std::move(parameters)),
      options_(options),
      bucket_of_(parameters_.size()),
      views_(parameters_.size()),
      marks_(parameters_.size()),
      kept_(parameters_.size()),
      used_(parameters_.size()) {}

Reducer::~Reducer() {
  Abandon(absl::CancelledError("the reducer was destroyed during a step"));
}

absl::StatusOr<std::unique_ptr<Reducer>> Reducer::Create(
    ProcessGroup& group, std::vector<ReducerParameter> parameters,
    ReducerOptions options) {
  auto reducer = std::unique_ptr<Reducer>(
      new Reducer(group, std::move(parameters), options));
  WEFT_RETURN_IF_ERROR(reducer->Agree());
  WEFT_RETURN_IF_ERROR(
      CatchToStatus([&] { return reducer->AllocateBuckets(); }));
  return reducer;
}

absl::Status Reducer::Agree() const {
  return CheckAgreement(group_, CheckArguments(parameters_, options_),
                        Describe(parameters_, options_), options_.timeout);
}

absl::Status Reducer::AllocateBuckets() {
  std::vector<BucketItem> items;
  for (const ReducerParameter& parameter : parameters_) {
    items.push_back(
        {ElementsOf(parameter) * ItemSize(parameter.dtype), parameter.dtype});
  }
  std::vector<int> last_first(items.size());
  std::iota(last_first.rbegin(), last_first.rend(), 0);
  plan_ = PlanBuckets(
      items, {options_.first_bucket_bytes, options_.bucket_bytes}, last_first);
  for (size_t b = 0; b < plan_.size(); ++b) {
    int64_t elements = 0;
    for (const int i : plan_[b]) elements += PaddedElements(parameters_[i]);
    const DType dtype = parameters_[plan_[b].front()].dtype;
    auto buffer = group_.Allocate({elements}, dtype);
    // Memory of its own does as well: operations copy it then.
    if (absl::IsResourceExhausted(buffer.status())) {
      buffer = Tensor::Empty({elements}, dtype);
    }
    WEFT_RETURN_IF_ERROR(buffer.status());
    buffer->Fill(0);
    int64_t begin = 0;
    for (const int i : plan_[b]) {
      const ReducerParameter& parameter = parameters_[i];
      bucket_of_[i] = static_cast<int>(b);
      views_[i] = buffer->Slice(0, begin, begin + ElementsOf(parameter))
                      .View(parameter.shape);
      begin += PaddedElements(parameter);
    }
    buckets_.emplace_back();
    buckets_.back().buffer = *std::move(buffer);
  }
  return absl::OkStatus();
}

absl::Status Reducer::Begin(double weight) {
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
  if (options_.divisor == Divisor::kWorldSize && weight != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Reducer::Begin: weight ", weight,
        " needs Divisor::kTotalWeight; the sum is divided by the number of "
        "ranks here"));
  }
  if (const absl::Status health = group_.health(); !health.ok()) {
    return absl::Status(health.code(),
                        absl::StrCat("Reducer::Begin: group ", group_.name(),
                                     " is broken: ", health.message()));
  }
  is_open_ = true;
  ++step_;
  weight_ = weight;
  launched_ = 0;
  std::fill(marks_.begin(), marks_.end(), Mark::kNone);
  std::fill(kept_.begin(), kept_.end(), Tensor());
  for (size_t b = 0; b < plan_.size(); ++b) {
    buckets_[b].unmarked = static_cast<int>(plan_[b].size());
  }
  return absl::OkStatus();
}

absl::Status Reducer::MarkReady(int parameter) {
  return SetMark(parameter, Mark::kReady);
}

absl::Status Reducer::MarkUnused(int parameter) {
  return SetMark(parameter, Mark::kUnused);
}

absl::Status Reducer::MarkUnchanged(int parameter) {
  return SetMark(parameter, Mark::kUnchanged);
}

absl::Status Reducer::SetMark(int parameter, Mark mark) {
  if (parameter < 0 || parameter >= size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Reducer: wanted a parameter below ", size(), ", found ", parameter));
  }
  if (!is_open_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Reducer: parameter ", parameters_[parameter].name,
        " was marked outside of a step; call Begin before and Finish after"));
  }
  if (marks_[parameter] != Mark::kNone) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Reducer: parameter ", parameters_[parameter].name,
        " was marked twice in step ", step_, " of rank ", group_.rank()));
  }
  // What a rank without samples has counts for nothing, NaN included.
  const bool is_weightless = weight_ == 0;
  if (mark == Mark::kReady && is_weightless) mark = Mark::kUnused;
  if (mark == Mark::kUnchanged) kept_[parameter] = views_[parameter].Clone();
  if (mark == Mark::kUnused || is_weightless) views_[parameter].Fill(0);
  marks_[parameter] = mark;
  --buckets_[bucket_of_[parameter]].unmarked;
  LaunchReadyBuckets();
  return absl::OkStatus();
}

collectives::CallOptions Reducer::CallOptionsOf(size_t bucket) const {
  collectives::CallOptions call;
  call.timeout = options_.timeout;
  // Not 0, which is what operations of others say.
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
    BucketState& bucket = buckets_[launched_];
    bucket.reduced = group_.AllReduceAsync(bucket.buffer, reduction,
                                           CallOptionsOf(launched_));
    ++launched_;
    if (launched_ == buckets_.size()) LaunchCensus();
  }
}

void Reducer::LaunchCensus() {
  census_ = Tensor::Zeros({1 + size()}, DType::kF64);
  double* counts = census_.data<double>();
  counts[0] = weight_;
  for (int i = 0; i < size(); ++i) counts[1 + i] = marks_[i] == Mark::kReady;
  census_reduced_ = group_.AllReduceAsync(census_, ReduceOp::kSum,
                                          CallOptionsOf(buckets_.size()));
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
  WEFT_RETURN_IF_ERROR(AwaitAll());
  TakeCensus();
  if (options_.divisor == Divisor::kTotalWeight && total_weight_ > 0) {
    for (const BucketState& bucket : buckets_) {
      Mul_(bucket.buffer, 1 / total_weight_);
    }
  }
  RestoreUnused();
  return absl::OkStatus();
}

absl::Status Reducer::AwaitAll() {
  // Each operation has its own deadline, so these waits end.
  const auto await = [this](const Future<void>& reduced, absl::string_view what,
                            size_t number) {
    const absl::Status status = reduced.Wait(absl::InfiniteDuration());
    if (status.ok()) return status;
    // An operation that comes after the group broke only says that it did; the
    // code of the reason says what to do, and is the same on all ranks.
    const absl::Status health = group_.health();
    return absl::Status(health.ok() ? status.code() : health.code(),
                        absl::StrCat("step ", step_, " of rank ", group_.rank(),
                                     ", ", what, " ", number, " of ",
                                     buckets_.size(), ": ", status.message()));
  };
  absl::Status first;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    first.Update(await(buckets_[b].reduced, "gradient bucket", b));
  }
  first.Update(await(census_reduced_, "use of parameters after bucket",
                     buckets_.size() - 1));
  return first;
}

void Reducer::TakeCensus() {
  const double* counts = census_.data<double>();
  total_weight_ = counts[0];
  for (int i = 0; i < size(); ++i) used_[i] = counts[1 + i] > 0;
}

void Reducer::RestoreUnused() {
  for (int i = 0; i < size(); ++i) {
    if (!used_[i] && kept_[i].defined()) views_[i].CopyFrom(kept_[i]);
    kept_[i] = Tensor();
  }
}

void Reducer::Abandon(const absl::Status& why) {
  WEFT_CHECK(!why.ok());
  if (!is_open_) return;
  is_open_ = false;
  group_.Revoke(why);
}

}  // namespace weft::ddp
