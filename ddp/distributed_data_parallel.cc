#include "weft/ddp/distributed_data_parallel.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/error.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/sparse_reduction.h"

namespace weft::ddp {
namespace {

using collectives::ProcessGroup;

Leaf& LeafOf(const nn::NamedParameter& parameter) {
  return *parameter.variable.leaf();
}

std::vector<ReducerParameter> Describe(
    const std::vector<nn::NamedParameter>& parameters) {
  std::vector<ReducerParameter> described;
  for (const nn::NamedParameter& parameter : parameters) {
    described.push_back({parameter.name, parameter.variable.shape(),
                         parameter.variable.dtype(),
                         parameter.variable.value().device()});
  }
  return described;
}

}  // namespace

// One pass at a time: that of the thread that uses the ddp.
class DistributedDataParallel::Sink final : public GradientSink {
 public:
  explicit Sink(DistributedDataParallel& ddp)
      : ddp_(ddp), has_unreduced_(ddp.parameters_.size()) {
    for (size_t i = 0; i < ddp.parameters_.size(); ++i) {
      index_of_[&LeafOf(ddp.parameters_[i])] = static_cast<int>(i);
    }
  }

  void Begin(const BackwardPass& pass,
             absl::Span<Leaf* const> leaves) override {
    if (pass_ != 0) {
      ThrowFailedPrecondition(
          "DistributedDataParallel: another backward pass of this model has "
          "not ended");
    }
    syncs_ = ddp_.syncs_;
    is_weightless_ = ddp_.weight_ == 0;
    if (syncs_) {
      ThrowIfError(ddp_.reducer_->Begin(WeightOf(ddp_.weight_, pass.store)));
    } else if (pass.store == nullptr && !is_weightless_) {
      unreduced_weight_ = ddp_.weight_;
    }
    if (!syncs_) CheckKnown(leaves);
    // Only now: End is not called after a Begin that fails.
    pass_ = pass.id;
    if (!syncs_) return;
    const absl::Status marked = CatchToStatus([&] {
      CheckKnown(leaves);
      if (pass.store != nullptr) MoveGradientsOut();
      MarkAllBut(leaves, pass.store);
    });
    if (marked.ok()) return;
    GiveUp(marked);
    ThrowIfError(marked);
  }

  GradientDestination Destination(const BackwardPass& pass,
                                  Leaf& leaf) override {
    const int i = index_of_.at(&leaf);
    if (ddp_.reducer_->is_sparse(i)) return {};
    if (pass.store != nullptr) {
      if (!syncs_ || is_weightless_) return {};
      return {ViewOf(leaf), /*add=*/false};
    }
    if (is_weightless_) return {};
    // Rows stay rows until it is agreed how they are reduced.
    if (leaf.gradient().is_sparse() && !ddp_.reducer_->has_form(i)) return {};
    return PrepareDestination(leaf, ViewOf(leaf));
  }

  void Accept(const BackwardPass& pass, Leaf& leaf,
              Gradient gradient) override {
    const int i = index_of_.at(&leaf);
    if (is_weightless_) {
      if (syncs_) return MarkNone(i, pass.store);
      if (pass.store == nullptr) return;
    }
    if (pass.store != nullptr && !syncs_) {
      return pass.store->Accept(pass, leaf, std::move(gradient));
    }
    if (AreRows(i, leaf, gradient, pass.store)) {
      AcceptRows(pass, leaf, std::move(gradient));
    } else {
      AcceptWhole(pass, leaf, gradient);
    }
    if (!syncs_) has_unreduced_[i] = true;
  }

  void NoGradient(const BackwardPass& pass, Leaf& leaf) override {
    if (syncs_) MarkNone(index_of_.at(&leaf), pass.store);
  }

  absl::Status End(const BackwardPass& pass,
                   const absl::Status& outcome) override {
    if (pass.id != pass_) return absl::OkStatus();
    pass_ = 0;
    if (!syncs_) return absl::OkStatus();
    if (!outcome.ok()) {
      GiveUp(outcome);
      return absl::OkStatus();  // the pass has its error
    }
    return Finish(pass);
  }

  // A pass that reaches nothing.
  absl::Status ReduceNothing() {
    if (pass_ != 0) {
      return absl::FailedPreconditionError(
          "DistributedDataParallel::ContributeNothing: a backward pass of this "
          "model has not ended");
    }
    WEFT_RETURN_IF_ERROR(ddp_.reducer_->Begin(WeightOf(0, nullptr)));
    const absl::Status marked = CatchToStatus([&] { MarkAllBut({}, nullptr); });
    if (!marked.ok()) {
      GiveUp(marked);
      return marked;
    }
    return Finish({});
  }

 private:
  const Tensor& ViewOf(Leaf& leaf) const {
    return ddp_.reducer_->gradient(index_of_.at(&leaf));
  }

  static SparseRows RowsIn(const Gradient& gradient) {
    return gradient.is_sparse() ? gradient.sparse() : RowsOf(gradient.dense());
  }

  // What was frozen when this was made is not reduced: ranks would train it
  // apart.
  void CheckKnown(absl::Span<Leaf* const> leaves) const {
    for (Leaf* const leaf : leaves) {
      if (index_of_.contains(leaf)) continue;
      std::string name;
      for (const nn::NamedParameter& parameter : ddp_.frozen_) {
        if (&LeafOf(parameter) == leaf) name = parameter.name;
      }
      ThrowFailedPrecondition(
          "DistributedDataParallel: parameter ", name,
          " was frozen when this was made, and requires a gradient now; make a "
          "new DistributedDataParallel after Unfreeze, on all ranks");
    }
  }

  // The weight of this rank in a pass whose own data weighs `weight`. Gradients
  // of passes under NoSyncScope count also where it is 0, or they would be lost
  // here, while the ranks that have them step by them.
  double WeightOf(double weight, const GradientSink* store) const {
    if (weight > 0 || store != nullptr) return weight;
    for (size_t i = 0; i < has_unreduced_.size(); ++i) {
      if (has_unreduced_[i] && LeafOf(ddp_.parameters_[i]).gradient().defined())
        return unreduced_weight_;
    }
    return 0;
  }

  // Whether `gradient` joins what is reduced as rows, or may yet be.
  bool AreRows(int i, const Leaf& leaf, const Gradient& gradient,
               const GradientSink* store) const {
    if (ddp_.reducer_->has_form(i)) return ddp_.reducer_->is_sparse(i);
    if (!gradient.is_sparse()) return false;
    const Gradient present = leaf.gradient();
    return store != nullptr || !present.defined() || present.is_sparse();
  }

  void AcceptRows(const BackwardPass& pass, Leaf& leaf, Gradient gradient) {
    const int i = index_of_.at(&leaf);
    if (pass.store != nullptr) {
      return ThrowIfError(ddp_.reducer_->MarkRows(i, RowsIn(gradient)));
    }
    leaf.Accept(pass, leaf, std::move(gradient));
    if (!syncs_) return;
    ThrowIfError(ddp_.reducer_->MarkRows(i, RowsIn(leaf.gradient())));
  }

  void AcceptWhole(const BackwardPass& pass, Leaf& leaf,
                   const Gradient& gradient) {
    if (pass.store == nullptr) {
      AcceptInto(leaf, ViewOf(leaf), gradient);
    } else {
      WriteInto(ViewOf(leaf), gradient);
    }
    if (syncs_) ThrowIfError(ddp_.reducer_->MarkReady(index_of_.at(&leaf)));
  }

  // Those that the pass does not reach are marked at once, so that they hold up
  // no bucket.
  void MarkAllBut(absl::Span<Leaf* const> leaves, const GradientSink* store) {
    std::vector<bool> is_reached(ddp_.parameters_.size());
    for (Leaf* leaf : leaves) is_reached[index_of_.at(leaf)] = true;
    for (size_t i = 0; i < is_reached.size(); ++i) {
      if (!is_reached[i]) MarkNone(static_cast<int>(i), store);
    }
  }

  void MarkNone(int i, const GradientSink* store) {
    Reducer& reducer = *ddp_.reducer_;
    Leaf& leaf = LeafOf(ddp_.parameters_[i]);
    if (store != nullptr || !leaf.gradient().defined()) {
      return ThrowIfError(reducer.MarkUnused(i));
    }
    if (reducer.is_sparse(i) ||
        (!reducer.has_form(i) && leaf.gradient().is_sparse())) {
      const SparseRows rows = RowsIn(leaf.gradient());
      return ThrowIfError(has_unreduced_[i] ? reducer.MarkRows(i, rows)
                                            : reducer.MarkUnchanged(i, rows));
    }
    // A gradient that is there already, from passes without reduction or not
    // cleared.
    (void)PrepareDestination(leaf, reducer.gradient(i));
    ThrowIfError(has_unreduced_[i] ? reducer.MarkReady(i)
                                   : reducer.MarkUnchanged(i));
  }

  // The pass uses the views for what goes to its store.
  void MoveGradientsOut() {
    for (const nn::NamedParameter& parameter : ddp_.parameters_) {
      Leaf& leaf = LeafOf(parameter);
      if (!leaf.gradient().dense().defined()) continue;
      leaf.SetGradient(leaf.gradient().dense().Clone());
    }
  }

  static void WriteInto(const Tensor& view, const Gradient& gradient) {
    if (gradient.dense().defined() &&
        gradient.dense().address() == view.address()) {
      return;  // made there
    }
    view.CopyFrom(gradient.ToDense());
  }

  absl::Status Finish(const BackwardPass& pass) {
    const absl::Status finished = ddp_.reducer_->Finish();
    if (!finished.ok()) {
      ClearGradients();
      return Reworded(finished, absl::StrCat("DistributedDataParallel: ",
                                             finished.message()));
    }
    // A pass with a store reduces none of the leaves' own gradients.
    if (pass.store == nullptr) {
      has_unreduced_.assign(has_unreduced_.size(), false);
    }
    for (size_t i = 0; i < ddp_.parameters_.size(); ++i) {
      if (!ddp_.reducer_->is_used(static_cast<int>(i))) continue;
      Leaf& leaf = LeafOf(ddp_.parameters_[i]);
      if (ddp_.reducer_->is_sparse(static_cast<int>(i))) {
        Gradient rows = RowsOn(leaf.value().device(),
                               ddp_.reducer_->rows(static_cast<int>(i)));
        if (pass.store == nullptr) {
          leaf.SetGradient(std::move(rows));
        } else {
          pass.store->Accept(pass, leaf, std::move(rows));
        }
        continue;
      }
      const Tensor& view = ddp_.reducer_->gradient(static_cast<int>(i));
      if (pass.store == nullptr) {
        leaf.SetGradient(view);
      } else {
        // The next pass overwrites the view.
        pass.store->Accept(pass, leaf, view.Clone());
      }
    }
    if (!ddp_.options_.broadcasts_buffers) return absl::OkStatus();
    return ddp_.replicas_.BroadcastBuffersFrom(
        ddp_.reducer_->first_rank_with_data());
  }

  void GiveUp(const absl::Status& why) {
    pass_ = 0;
    ddp_.reducer_->Abandon(why);
    ClearGradients();
  }

  void ClearGradients() {
    for (const nn::NamedParameter& parameter : ddp_.parameters_) {
      parameter.variable.ClearGradient();
    }
  }

  DistributedDataParallel& ddp_;
  absl::flat_hash_map<const Leaf*, int> index_of_;
  // Whether the leaf's gradient has parts that were not reduced.
  std::vector<bool> has_unreduced_;
  double unreduced_weight_ = 1;  // of the last pass that made some
  uint64_t pass_ = 0;            // 0: none
  bool syncs_ = true;            // in this pass
  bool is_weightless_ = false;
};

DistributedDataParallel::DistributedDataParallel(
    nn::Module& module, ProcessGroup& group,
    DistributedDataParallelOptions options)
    : group_(group),
      options_(std::move(options)),
      replicas_(module, group, options_.ignored, options_.reducer.timeout),
      parameters_(replicas_.TrainedParameters()),
      frozen_(replicas_.FrozenLeaves()) {}

DistributedDataParallel::~DistributedDataParallel() {
  if (sink_ == nullptr) return;
  for (const auto* parameters : {&parameters_, &frozen_}) {
    for (const nn::NamedParameter& parameter : *parameters) {
      Leaf& leaf = LeafOf(parameter);
      if (leaf.sink() == sink_.get()) leaf.SetSink(nullptr);
    }
  }
}

absl::StatusOr<std::unique_ptr<DistributedDataParallel>>
DistributedDataParallel::Create(nn::Module& module, ProcessGroup& group,
                                DistributedDataParallelOptions options) {
  auto ddp = std::unique_ptr<DistributedDataParallel>(
      new DistributedDataParallel(module, group, std::move(options)));
  // A name that this rank's model has not fails all ranks, in the first
  // exchange.
  WEFT_RETURN_IF_ERROR(ddp->replicas_.CheckOthersAgree(
      {absl::StrCat("buffers", ddp->options_.broadcasts_buffers
                                   ? " that are broadcast after each pass"
                                   : "")}));
  WEFT_ASSIGN_OR_RETURN(ddp->reducer_,
                        Reducer::Create(group, Describe(ddp->parameters_),
                                        ddp->options_.reducer));
  WEFT_RETURN_IF_ERROR(ddp->replicas_.BroadcastFrom(/*root=*/0));
  ddp->sink_ = std::make_unique<Sink>(*ddp);
  for (const auto* parameters : {&ddp->parameters_, &ddp->frozen_}) {
    for (const nn::NamedParameter& parameter : *parameters) {
      LeafOf(parameter).SetSink(ddp->sink_.get());
    }
  }
  return ddp;
}

absl::Status DistributedDataParallel::BroadcastBuffers() {
  return replicas_.BroadcastBuffersFrom(/*root=*/0);
}

absl::Status DistributedDataParallel::SetWeight(double weight) {
  if (options_.reducer.divisor != Divisor::kTotalWeight) {
    return absl::InvalidArgumentError(
        "DistributedDataParallel::SetWeight needs Divisor::kTotalWeight");
  }
  if (!std::isfinite(weight) || weight < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("DistributedDataParallel::SetWeight: wanted a finite "
                     "number of at least 0, found ",
                     weight));
  }
  weight_ = weight;
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::ContributeNothing() {
  return sink_->ReduceNothing();
}

absl::Status DistributedDataParallel::Join(
    absl::FunctionRef<absl::Status()> after_pass) {
  if (options_.reducer.is_static_graph) {
    return absl::FailedPreconditionError(
        "DistributedDataParallel::Join: with ReducerOptions::is_static_graph "
        "the ranks do not learn when all are out of data; switch it off");
  }
  for (;;) {
    WEFT_RETURN_IF_ERROR(ContributeNothing());
    if (total_weight() == 0) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(after_pass());
  }
}

absl::Status DistributedDataParallel::CheckAllUsed() const {
  const std::vector<std::string> names = reducer_->NeverUsed();
  if (names.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "DistributedDataParallel: no rank has had a gradient of ",
      absl::StrJoin(names, ", "), " in ", reducer_->timing().steps(),
      " passes: the loss does not depend on what is computed with it. Use it "
      "in "
      "the forward pass, or keep it out by "
      "DistributedDataParallelOptions::ignored or a parameter that does not "
      "require a gradient"));
}

DistributedDataParallel::Log DistributedDataParallel::GetLog() const {
  const Reducer& reducer = *reducer_;
  const auto name_of = [&](int i) { return reducer.parameters()[i].name; };
  Log log;
  log.world_size = group_.size();
  log.hook = options_.reducer.hook == nullptr ? "all-reduce"
                                              : options_.reducer.hook->name();
  log.steps = reducer.timing().steps();
  log.is_rebuilt = reducer.is_settled() && options_.reducer.rebuilds_buckets;
  for (const Bucket& bucket : reducer.buckets()) {
    BucketLog entry;
    for (const int i : bucket) {
      const ReducerParameter& parameter = reducer.parameters()[i];
      entry.bytes += NumElements(parameter.shape, parameter.name) *
                     ItemSize(parameter.dtype);
      entry.parameters.push_back(name_of(i));
    }
    log.buckets.push_back(std::move(entry));
  }
  for (int i = 0; i < reducer.size(); ++i) {
    if (reducer.is_sparse(i)) log.sparse.push_back(name_of(i));
  }
  log.never_used = reducer.NeverUsed();
  log.last = reducer.timing().last();
  log.total = reducer.timing().total();
  return log;
}

absl::Status DistributedDataParallel::CheckInSync() {
  return replicas_.CheckInSync();
}

}  // namespace weft::ddp
