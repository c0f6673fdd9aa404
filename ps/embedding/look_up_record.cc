#include "weft/ps/embedding/look_up_record.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops/reduce.h"
#include "weft/base/error.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/ps/embedding/ahead.h"
#include "weft/tensor/ops/index.h"

namespace weft::ps {
namespace {

absl::Status Unfit(const LookUp& look_up, absl::string_view wanted,
                   absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat("look-up in table '", look_up.table->spec().name(),
                   "': wanted ", wanted, ", found ", found));
}

}  // namespace

absl::Status CheckLookUp(const LookUp& look_up) {
  if (look_up.table == nullptr) {
    return absl::InvalidArgumentError(
        "look-up: wanted a table, found a null pointer");
  }
  const Tensor& ids = look_up.ids;
  if (!ids.defined() || ids.dtype() != DType::kI64 || !ids.device().is_cpu()) {
    return Unfit(look_up, "ids i64 of any shape, on the CPU",
                 ids.defined() ? ids.Describe() : "no tensor");
  }
  const Tensor keys = KeysOf(look_up);
  for (int64_t i = 0; i < keys.numel(); ++i) {
    const int64_t id = keys.data<int64_t>()[i];
    if (id >= 0) continue;
    return Unfit(look_up, "ids that are not negative",
                 absl::StrCat(id, " at place ", i,
                              "; clear the highest bit of hashed ids"));
  }
  if (!look_up.bag.has_value()) return absl::OkStatus();
  if (ids.dim() == 0) {
    return Unfit(look_up, "bags of ids, i64[..., n]", ids.Describe());
  }
  if (*look_up.bag == BagMode::kMean && ids.size(-1) == 0) {
    return Unfit(look_up, "a row at least in each bag of which to take a mean",
                 ids.Describe());
  }
  return absl::OkStatus();
}

Tensor KeysOf(const LookUp& look_up) {
  return look_up.ids.Contiguous().View({look_up.ids.numel()});
}

// Gets the gradients of the leaves of one record. Hands them on to the store of
// a pass that has one.
//
// Thread-safety: thread-safe.
class LookUpRecord::Sink final : public GradientSink {
 public:
  void Begin(const BackwardPass&, absl::Span<Leaf* const>) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    ThrowIfError(ended_);
  }

  void Accept(const BackwardPass& pass, Leaf& leaf, Gradient gradient) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (pass.store != nullptr) {
      pass.store->Accept(pass, leaf, std::move(gradient));
      return;
    }
    MutexLock lock(mu_);
    open_[pass.id][&leaf].Add(std::move(gradient));
  }

  void NoGradient(const BackwardPass& pass, Leaf& leaf) override {
    if (pass.store != nullptr) pass.store->NoGradient(pass, leaf);
  }

  absl::Status End(const BackwardPass& pass,
                   const absl::Status& outcome) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    Gradients made;  // what is dropped goes without the lock
    MutexLock lock(mu_);
    const auto it = open_.find(pass.id);
    if (it != open_.end()) {
      made = std::move(it->second);
      open_.erase(it);
    }
    if (!outcome.ok()) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(ended_);
    for (auto& [leaf, gradient] : made) {
      gradients_[leaf].Add(std::move(gradient));
    }
    return absl::OkStatus();
  }

  Gradient GradientOf(const Leaf& leaf) const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    const auto it = gradients_.find(&leaf);
    return it == gradients_.end() ? Gradient() : it->second;
  }

  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_) {
    Gradients dropped;
    MutexLock lock(mu_);
    dropped.swap(gradients_);
    if (ended_.ok()) ended_ = why;  // the first reason stands
  }

 private:
  using Gradients = absl::flat_hash_map<const Leaf*, Gradient>;

  mutable Mutex mu_;
  absl::Status ended_ ABSL_GUARDED_BY(mu_);
  Gradients gradients_ ABSL_GUARDED_BY(mu_);
  // Gradients of passes that have not ended, by the id of the pass.
  absl::flat_hash_map<uint64_t, Gradients> open_ ABSL_GUARDED_BY(mu_);
};

LookUpRecord::LookUpRecord() : sink_(std::make_shared<Sink>()) {}

LookUpRecord::~LookUpRecord() {
  End(absl::FailedPreconditionError(
      "the Lookups that recorded it has ended; nothing would be pushed"));
}

Variable LookUpRecord::Add(const LookUp& look_up, Tensor rows) {
  Shape shape = look_up.ids.shape();
  shape.push_back(look_up.table->dim());
  const bool records = !NoGradScope::IsOpen();
  const Variable leaf(rows.View(shape), records);
  if (records) {
    leaf.SetGradientSink(sink_.get());
    // The sink lives as long as the leaf, which keeps its hooks.
    leaf.AddHook([sink = sink_](Gradient gradient) { return gradient; });
    entries_.push_back({look_up.table, KeysOf(look_up), leaf});
  }
  if (!look_up.bag.has_value()) return leaf;
  const int64_t rows_of_bag = look_up.ids.dim() - 1;
  return *look_up.bag == BagMode::kSum ? Sum(leaf, {rows_of_bag})
                                       : Mean(leaf, {rows_of_bag});
}

Gradient LookUpRecord::GradientOf(const Leaf& leaf) const {
  return sink_->GradientOf(leaf);
}

namespace {

absl::Status CheckFinite(const SparseTable& table, const Tensor& keys,
                         const Tensor& gradients) {
  const int64_t dim = table.dim();
  const float* const values = gradients.data<float>();
  for (int64_t i = 0; i < gradients.numel(); ++i) {
    if (std::isfinite(values[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", table.spec().name(), "': the gradient of row ",
        keys.data<int64_t>()[i / dim], " is ", values[i], " in column ",
        i % dim, "; wanted finite numbers. Nothing was pushed: Abort() drops ",
        "the pass"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LookUpRecord::Found> LookUpRecord::Pushes(
    absl::Span<SparseTable* const> tables,
    absl::FunctionRef<Gradient(const Leaf&)> gradient_of) const {
  struct Parts {
    std::vector<Tensor> keys, gradients;
  };
  std::vector<SparseTable*> order(tables.begin(), tables.end());
  absl::flat_hash_map<const SparseTable*, Parts> by_table;
  for (SparseTable* const table : tables) by_table[table];
  Found found;
  for (const Entry& entry : entries_) {
    const auto [parts, is_new] = by_table.try_emplace(entry.table);
    if (is_new) order.push_back(entry.table);
    if (entry.keys.numel() == 0) continue;
    ++found.with_rows;
    const Tensor gradient = gradient_of(*entry.leaf.leaf()).ToDense();
    if (!gradient.defined()) continue;
    ++found.with_gradient;
    const Tensor flat =
        gradient.Contiguous().View({entry.keys.numel(), entry.table->dim()});
    WEFT_RETURN_IF_ERROR(CheckFinite(*entry.table, entry.keys, flat));
    parts->second.keys.push_back(entry.keys);
    parts->second.gradients.push_back(flat);
  }
  for (SparseTable* const table : order) {
    Parts& parts = by_table[table];
    Tensor gradients = parts.gradients.empty()
                           ? Tensor::Empty({0, table->dim()})
                           : Concat(parts.gradients, 0);
    found.pushes.push_back({table, JoinKeys(parts.keys), std::move(gradients)});
  }
  return found;
}

void LookUpRecord::End(const absl::Status& why) {
  sink_->Close(why);
  entries_.clear();
}

}  // namespace weft::ps
