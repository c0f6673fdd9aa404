#include "weft/autograd/checkpoint.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/autograd/autocast.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/leaf.h"
#include "weft/autograd/node.h"
#include "weft/autograd/saved_tensor.h"
#include "weft/base/error.h"
#include "weft/base/mutex.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/random.h"
#include "weft/tensor/shape.h"

namespace weft {
namespace internal {

using CheckpointedFunction =
    std::function<std::vector<Variable>(absl::Span<const Variable> inputs)>;

// Where an input comes from when the function runs again: no pass goes there.
class InputNode final : public Node {
 public:
  absl::string_view name() const override { return "Checkpoint"; }
  void Apply(BackwardCall&) override {}
  void ReleaseSaved() override {}
};

[[noreturn]] void ThrowOther(absl::string_view first, absl::string_view again) {
  ThrowFailedPrecondition(
      "Checkpoint: the function used ", first, " at first and ", again,
      " in its place when it ran again; it must be a function of its inputs");
}

// Where a generator is: which number it gives next.
struct GeneratorPlace {
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t position = 0;

  explicit GeneratorPlace(const Generator& generator)
      : seed(generator.seed()),
        stream(generator.stream()),
        position(generator.position()) {}
  bool operator==(const GeneratorPlace& other) const {
    return seed == other.seed && stream == other.stream &&
           position == other.position;
  }
};

// What the runs of one checkpointed function share. Held by its slots, so it
// ends with the graph.
//
// Thread-safety: thread-safe once the first run is over.
class CheckpointFrame : public std::enable_shared_from_this<CheckpointFrame> {
 public:
  CheckpointFrame(CheckpointedFunction f, absl::Span<const Variable> inputs)
      : f_(std::move(f)), autocast_(AutocastScope::Current()) {
    inputs_.reserve(inputs.size());
    for (const Variable& input : inputs) {
      const bool is_leaf = input.leaf() != nullptr;
      inputs_.push_back(
          {SavedTensor(is_leaf ? Tensor() : input.value()),
           is_leaf ? KeptTensor(input.leaf()->shared_value()) : KeptTensor(),
           is_leaf ? input : Variable(), input.requires_grad()});
    }
  }

  // The first run.
  std::vector<Variable> Run(absl::Span<const Variable> inputs);

  Tensor Get(size_t index) ABSL_LOCKS_EXCLUDED(mu_, recompute_mu_);
  void Drop(size_t index) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class CheckpointRun;

  struct Input {
    SavedTensor value;
    KeptTensor leaf_value;
    Variable leaf;  // undefined: `value`
    bool requires_grad;
  };
  // A tensor that was saved in the first run.
  struct Entry {
    Shape shape;
    DType dtype;
    uint64_t version;
    KeptTensor
        leaf;  // the value of a leaf, which is not computed; or undefined
    bool is_wanted = true;
    std::optional<KeptTensor> value;
  };

  // The next tensor of the first run.
  IntrusivePtr<CheckpointSlot> Keep(const Tensor& tensor)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Takes it when `f` runs again.
  void Fill(size_t index, const Tensor& tensor) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for a leaf that is used.
  void Note(const KeptTensor& leaf) ABSL_LOCKS_EXCLUDED(mu_);
  void Compare(size_t index, const KeptTensor& leaf) ABSL_LOCKS_EXCLUDED(mu_);
  // Throws Error unless a leaf is as it was.
  static void CheckSame(const KeptTensor& first, const KeptTensor& again);
  // The entry of the first run. Throws Error if there is none.
  Entry& EntryAt(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static Variable Again(const Input& input);
  void Recompute() ABSL_LOCKS_EXCLUDED(mu_, recompute_mu_);
  void CheckAllFilled(size_t filled) ABSL_LOCKS_EXCLUDED(mu_);
  void DropAll() ABSL_LOCKS_EXCLUDED(mu_);

  const CheckpointedFunction f_;
  const std::optional<DType> autocast_;  // under which it runs
  std::vector<Input> inputs_;
  // Constant after the first run: the generators that it drew from, in this
  // order, as they were, and where each was at the end; and what
  // OnceInCheckpoint returned.
  std::vector<Generator> generators_;
  std::vector<GeneratorPlace> ends_;
  std::vector<Tensor> once_;

  Mutex recompute_mu_;  // held while the function runs again
  std::atomic<std::thread::id> recomputing_{};  // who holds it
  Mutex mu_;
  bool is_recorded_ ABSL_GUARDED_BY(mu_) = false;  // the first run is over
  bool is_filled_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);
};

// While it lives, in place of the runs around it: which generators were drawn
// from and have not ended, which those have that `make` made for itself.
class DrawsOfOnce final : public GeneratorObserver {
 public:
  DrawsOfOnce() : suspended_(GeneratorObserver::Set(this)) {}
  ~DrawsOfOnce() override { GeneratorObserver::Set(suspended_); }
  DrawsOfOnce(const DrawsOfOnce&) = delete;
  DrawsOfOnce& operator=(const DrawsOfOnce&) = delete;

  bool empty() const { return drawn_.empty(); }

  void OnDraw(Generator& generator) override { drawn_.insert(&generator); }
  void OnEnd(const Generator& generator) override {
    drawn_.erase(&generator);
    if (suspended_ != nullptr) suspended_->OnEnd(generator);
  }

 private:
  GeneratorObserver* const suspended_;
  std::set<const Generator*> drawn_;
};

// One run of the function: what is saved and drawn on this thread goes here.
class CheckpointRun final : public GeneratorObserver {
 public:
  CheckpointRun(CheckpointFrame& frame, bool is_again)
      : frame_(frame),
        is_again_(is_again),
        // A function runs again on its own account, whatever runs around it.
        parent_(is_again ? nullptr : current_checkpoint_run),
        suspended_(std::exchange(current_checkpoint_run, this)),
        suspended_observer_(GeneratorObserver::Set(this)) {}
  ~CheckpointRun() override {
    current_checkpoint_run = suspended_;
    // Without an observer: what is restored is not drawn.
    GeneratorObserver::Set(nullptr);
    for (const Drawn& drawn : generators_) {
      if (drawn.generator != nullptr && drawn.before.has_value()) {
        *drawn.generator = *drawn.before;
      }
    }
    GeneratorObserver::Set(suspended_observer_);
  }
  CheckpointRun(const CheckpointRun&) = delete;
  CheckpointRun& operator=(const CheckpointRun&) = delete;

  // Null when the function runs again: its second graph is not used.
  IntrusivePtr<CheckpointSlot> Save(const Tensor& tensor) {
    if (!is_again_) return frame_.Keep(tensor);
    frame_.Fill(saved_++, tensor);
    return {};
  }
  void Use(const KeptTensor& leaf) {
    if (is_again_) {
      frame_.Compare(saved_++, leaf);
    } else {
      frame_.Note(leaf);
    }
  }

  Tensor Once(absl::FunctionRef<Tensor()> make) {
    if (is_again_) {
      if (once_ == frame_.once_.size()) {
        ThrowFailedPrecondition(
            "Checkpoint: the function wants more than ", once_,
            " results of what is done once, which it wanted at first");
      }
      return frame_.once_[once_++];
    }
    const Tensor result =
        parent_ == nullptr ? MakeOnce(make) : parent_->Once(make);
    frame_.once_.push_back(result);
    return result;
  }

  // The run is over: of the first one it is kept where its generators are; one
  // that runs again must have drawn as many numbers. Throws Error.
  void EndGenerators() {
    std::vector<GeneratorPlace> ends;
    for (const Drawn& drawn : generators_) {
      ends.push_back(drawn.end.has_value() ? *drawn.end
                                           : GeneratorPlace(*drawn.generator));
    }
    if (!is_again_) {
      frame_.ends_ = std::move(ends);
    } else if (!(ends == frame_.ends_)) {
      ThrowFailedPrecondition(
          "Checkpoint: the function drew other numbers when it ran again than "
          "at first; it must be a function of its inputs");
    }
  }

  bool is_again() const {
    return is_again_ || (parent_ != nullptr && parent_->is_again());
  }
  size_t saved() const { return saved_; }

  // The parent first: it may bring back the generator's state of its first run.
  void OnDraw(Generator& generator) override {
    if (parent_ != nullptr) parent_->OnDraw(generator);
    for (const Drawn& drawn : generators_) {
      if (drawn.generator == &generator) return;
    }
    const size_t index = generators_.size();
    generators_.push_back({&generator, std::nullopt, std::nullopt});
    if (!is_again_) {
      frame_.generators_.push_back(generator);
    } else if (index < frame_.generators_.size()) {
      generators_.back().before = generator;
      generator = frame_.generators_[index];
    }
  }
  void OnEnd(const Generator& generator) override {
    if (parent_ != nullptr) parent_->OnEnd(generator);
    for (Drawn& drawn : generators_) {
      if (drawn.generator != &generator) continue;
      drawn.end.emplace(generator);
      drawn.generator = nullptr;
    }
  }

 private:
  struct Drawn {
    Generator* generator;               // null: it has ended
    std::optional<Generator> before;    // what it goes on with after this run
    std::optional<GeneratorPlace> end;  // where it was when it ended
  };

  // Operations of it would be saved now, and not when the function runs again.
  Tensor MakeOnce(absl::FunctionRef<Tensor()> make) {
    const NoGradScope no_grad;
    const DrawsOfOnce draws;
    CheckpointRun* const run = std::exchange(current_checkpoint_run, nullptr);
    const absl::Cleanup restore = [run] { current_checkpoint_run = run; };
    const Tensor result = make();
    if (!draws.empty()) {
      ThrowFailedPrecondition(
          "OnceInCheckpoint: what is made once may not draw random numbers, "
          "which would not be drawn when the function runs again; draw before");
    }
    return result;
  }

  CheckpointFrame& frame_;
  const bool is_again_;
  CheckpointRun* const parent_;
  CheckpointRun* const suspended_;
  GeneratorObserver* const suspended_observer_;
  size_t saved_ = 0;
  size_t once_ = 0;
  std::deque<Drawn> generators_;  // which does not move them
};

std::vector<Variable> CheckpointFrame::Run(absl::Span<const Variable> inputs) {
  std::vector<Variable> results;
  {
    CheckpointRun run(*this, /*is_again=*/false);
    results = f_(inputs);
    run.EndGenerators();
  }
  MutexLock lock(mu_);
  is_recorded_ = true;
  return results;
}

IntrusivePtr<CheckpointSlot> CheckpointFrame::Keep(const Tensor& tensor) {
  KeptTensor kept(tensor);
  MutexLock lock(mu_);
  const size_t index = entries_.size();
  Entry& entry = entries_.emplace_back();
  entry.shape = tensor.shape();
  entry.dtype = tensor.dtype();
  entry.version = kept.version();
  return IntrusivePtr<CheckpointSlot>(
      new CheckpointSlot(shared_from_this(), index));
}

void CheckpointFrame::Note(const KeptTensor& leaf) {
  MutexLock lock(mu_);
  Entry& entry = entries_.emplace_back();
  entry.leaf = leaf;
  entry.is_wanted = false;
}

CheckpointFrame::Entry& CheckpointFrame::EntryAt(size_t index) {
  if (index < entries_.size()) return entries_[index];
  ThrowFailedPrecondition(
      "Checkpoint: the function saved ", entries_.size(),
      " tensors at first and more when it ran again; it must be a function of "
      "its inputs");
}

void CheckpointFrame::Compare(size_t index, const KeptTensor& leaf) {
  MutexLock lock(mu_);
  CheckSame(EntryAt(index).leaf, leaf);
}

void CheckpointFrame::CheckSame(const KeptTensor& first,
                                const KeptTensor& again) {
  if (first.leaf() == nullptr) ThrowOther("a tensor", "a leaf");
  const bool is_other = first.leaf() != again.leaf();
  if (!is_other && first.is_same()) return;
  ThrowFailedPrecondition(
      "Checkpoint: ", again.leaf()->tensor.Describe(),
      ", a leaf that the function uses, was ",
      is_other ? "replaced" : "written to",
      " between the forward and the backward pass, so that other values would "
      "be computed; write to it after the backward pass");
}

void CheckpointFrame::Fill(size_t index, const Tensor& tensor) {
  KeptTensor kept(tensor);
  MutexLock lock(mu_);
  Entry& entry = EntryAt(index);
  if (entry.leaf.leaf() != nullptr) ThrowOther("a leaf", tensor.Describe());
  if (entry.shape != tensor.shape() || entry.dtype != tensor.dtype()) {
    ThrowOther(absl::StrCat(Name(entry.dtype), ShapeText(entry.shape)),
               tensor.Describe());
  }
  if (entry.version != kept.version()) {
    ThrowFailedPrecondition(
        "Checkpoint: ", tensor.Describe(),
        ", which the function uses, was written to between the forward and the "
        "backward pass, so that other values would be computed; write to it "
        "after the backward pass");
  }
  if (entry.is_wanted) entry.value = std::move(kept);
}

void CheckpointFrame::CheckAllFilled(size_t filled) {
  MutexLock lock(mu_);
  if (filled != entries_.size()) {
    ThrowFailedPrecondition(
        "Checkpoint: the function saved ", entries_.size(),
        " tensors at first and ", filled,
        " when it ran again; it must be a function of its inputs");
  }
  is_filled_ = true;
}

void CheckpointFrame::DropAll() {
  std::vector<KeptTensor> dropped;  // ends outside of the lock
  MutexLock lock(mu_);
  for (Entry& entry : entries_) {
    if (!entry.value.has_value()) continue;
    dropped.push_back(*std::move(entry.value));
    entry.value.reset();
  }
}

void CheckpointFrame::Drop(size_t index) {
  std::optional<KeptTensor> value;  // ends outside of the lock
  MutexLock lock(mu_);
  entries_[index].is_wanted = false;
  std::swap(value, entries_[index].value);
}

Tensor CheckpointFrame::Get(size_t index) {
  for (bool is_computed = false;; is_computed = true) {
    {
      MutexLock lock(mu_);
      const Entry& entry = entries_[index];
      if (entry.value.has_value()) return entry.value->Get();
      if (!is_recorded_ || is_computed) {
        ThrowFailedPrecondition(
            "Checkpoint: a tensor is wanted while the function that saved it "
            "runs; it must not run a backward pass through what it computes");
      }
    }
    Recompute();
  }
}

// As it was at first, a leaf or none.
Variable CheckpointFrame::Again(const Input& input) {
  if (const Leaf* leaf = input.leaf.leaf()) {
    CheckSame(input.leaf_value, KeptTensor(leaf->shared_value()));
    return input.leaf;
  }
  if (!input.requires_grad) return Variable(input.value.Get());
  return Variable(input.value.Get(), NodePtr(new InputNode));
}

void CheckpointFrame::Recompute() {
  if (recomputing_ == std::this_thread::get_id()) {
    ThrowFailedPrecondition(
        "Checkpoint: the function, run again, wants a tensor that it is to "
        "compute");
  }
  MutexLock recompute_lock(recompute_mu_);
  {
    MutexLock lock(mu_);
    if (is_filled_) return;
  }
  recomputing_ = std::this_thread::get_id();
  try {
    std::vector<Variable> inputs;
    inputs.reserve(inputs_.size());
    for (const Input& input : inputs_) inputs.push_back(Again(input));
    const EnableGradScope enable;
    const AutocastScope autocast(autocast_);
    CheckpointRun run(*this, /*is_again=*/true);
    f_(inputs);
    run.EndGenerators();
    CheckAllFilled(run.saved());
  } catch (...) {
    recomputing_ = std::thread::id();
    DropAll();
    throw;
  }
  recomputing_ = std::thread::id();
}

void UseInCheckpoint(absl::Span<const Variable* const> inputs) {
  for (const Variable* input : inputs) {
    if (input->leaf() == nullptr) continue;
    current_checkpoint_run->Use(KeptTensor(input->leaf()->shared_value()));
  }
}

CheckpointSlot::~CheckpointSlot() { frame_->Drop(index_); }

Tensor CheckpointSlot::Get() const { return frame_->Get(index_); }

}  // namespace internal

void SavedTensor::SaveInCheckpoint(const Tensor& tensor) {
  slot_ = internal::current_checkpoint_run->Save(tensor);
}

std::vector<Variable> Checkpoint(
    std::function<std::vector<Variable>(absl::Span<const Variable> inputs)> f,
    absl::Span<const Variable> inputs) {
  if (NoGradScope::IsOpen()) return f(inputs);
  return std::make_shared<internal::CheckpointFrame>(std::move(f), inputs)
      ->Run(inputs);
}

Variable Checkpoint(
    const std::function<Variable(absl::Span<const Variable> inputs)>& f,
    absl::Span<const Variable> inputs) {
  const auto as_list = [f](absl::Span<const Variable> in) {
    return std::vector<Variable>{f(in)};
  };
  return Checkpoint(as_list, inputs)[0];
}

bool IsCheckpointing() { return internal::current_checkpoint_run != nullptr; }

bool IsRecomputing() {
  return IsCheckpointing() && internal::current_checkpoint_run->is_again();
}

Tensor OnceInCheckpoint(absl::FunctionRef<Tensor()> make) {
  return IsCheckpointing() ? internal::current_checkpoint_run->Once(make)
                           : make();
}
}  // namespace weft
