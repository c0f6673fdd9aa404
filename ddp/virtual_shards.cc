#include "weft/ddp/virtual_shards.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/future.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/longest_wait.h"
#include "weft/ddp/sparse_reduction.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/ops/index.h"

namespace weft::ddp {
namespace {

using collectives::ProcessGroup;

// Values begin at multiples of so many elements: of a cache line.
constexpr int64_t kAlignment = 16;

int64_t Aligned(int64_t elements) {
  return (elements + kAlignment - 1) / kAlignment * kAlignment;
}

SparseRows AddRows(const SparseRows& left, const SparseRows& right) {
  SparseRows both;
  both.rows = left.rows;
  both.indices = Concat({left.indices, right.indices}, 0);
  both.values = Concat({left.values, right.values}, 0);
  return Coalesce(both);
}

// The sum of two subtrees. One without a gradient counts as zeros, also where
// the other is -0, as it does where both are tensors of different ranks.
void AddGradient(Gradient& left, Gradient& right) {
  if (!left.defined()) std::swap(left, right);
  if (!left.defined()) return;
  if (left.is_sparse()) {
    if (!right.defined()) return;
    left = AddRows(left.sparse(), right.sparse());
    return;
  }
  if (right.defined()) {
    Add_(left.dense(), right.dense());
  } else {
    Add_(left.dense(), 0.0);
  }
}

// The subtrees that each rank has, in order.
std::vector<std::vector<ShardRange>> SubtreesByRank(int ranks, int shards) {
  std::vector<std::vector<ShardRange>> by_rank;
  for (int r = 0; r < ranks; ++r) {
    by_rank.push_back(SubtreesOf(OwnShards(r, ranks, shards)));
  }
  return by_rank;
}

// What each subtree of each rank has of a table, in the order of the shards.
// `own` has the rows of this rank's subtrees one after the other, lengths[i]
// of the i-th.
absl::StatusOr<std::vector<SparseRows>> GatherRows(
    ProcessGroup& group, const SparseRows& own,
    const std::vector<int64_t>& lengths,
    const std::vector<std::vector<ShardRange>>& by_rank,
    const collectives::CallOptions& call) {
  size_t most = 0;
  for (const auto& subtrees : by_rank) most = std::max(most, subtrees.size());
  std::vector<int64_t> padded = lengths;
  padded.resize(most);
  const Tensor all =
      Tensor::Zeros({static_cast<int64_t>(most * by_rank.size())}, DType::kI64);
  WEFT_RETURN_IF_ERROR(
      group.AllGather(Tensor::FromVector<int64_t>(padded), all, call));
  std::vector<SparseRows> gathered;
  SparseRows of_rank;
  std::vector<Tensor> indices;
  std::vector<Tensor> values;
  for (size_t r = 0; r < by_rank.size(); ++r) {
    const int64_t* const length = all.data<int64_t>() + r * most;
    int64_t total = 0;
    for (size_t i = 0; i < by_rank[r].size(); ++i) {
      if (length[i] < 0 || length[i] > own.rows) {
        return absl::InternalError(
            absl::StrCat("rank ", r, " says that it has ", length[i],
                         " rows of a table of ", own.rows));
      }
      total += length[i];
    }
    indices.push_back(Tensor::Empty({total}, DType::kI64));
    values.push_back(
        Tensor::Empty({total, own.values.size(1)}, own.values.dtype()));
    int64_t begin = 0;
    for (size_t i = 0; i < by_rank[r].size(); ++i) {
      const int64_t end = begin + length[i];
      gathered.push_back({indices[r].Slice(0, begin, end),
                          values[r].Slice(0, begin, end), own.rows});
      begin = end;
    }
  }
  WEFT_RETURN_IF_ERROR(group.AllGatherList(own.indices, indices, call));
  WEFT_RETURN_IF_ERROR(group.AllGatherList(own.values, values, call));
  return gathered;
}

}  // namespace

VirtualShards::VirtualShards(nn::Module& module, ProcessGroup& group,
                             Options options)
    : group_(group),
      options_(options),
      replicas_(module, group, {}, options.timeout),
      parameters_(replicas_.TrainedParameters()) {
  for (const nn::NamedBuffer& buffer : replicas_.Buffers()) {
    const DType dtype = buffer.tensor.dtype();
    const bool is_floating = dtype == DType::kF32 || dtype == DType::kF64;
    (is_floating ? floating_ : others_).push_back(buffer.tensor);
  }
}

absl::StatusOr<std::unique_ptr<VirtualShards>> VirtualShards::Create(
    nn::Module& module, ProcessGroup& group, Options options) {
  std::unique_ptr<VirtualShards> shards(
      new VirtualShards(module, group, options));
  if (options.root != kNoRoot) WEFT_RETURN_IF_ERROR(shards->CheckAllAgree());
  // The same on all ranks from here on.
  WEFT_RETURN_IF_ERROR(CheckVirtualShards(options.shards, group.size()));
  WEFT_RETURN_IF_ERROR(shards->CheckDTypes());
  shards->own_ = OwnShards(group.rank(), group.size(), options.shards);
  shards->next_ = shards->own_.begin;
  if (options.root != kNoRoot) {
    WEFT_RETURN_IF_ERROR(shards->replicas_.BroadcastFrom(options.root));
  }
  return shards;
}

absl::Status VirtualShards::CheckAllAgree() const {
  std::vector<std::string> lines = {
      absl::StrCat(options_.shards, " virtual shards")};
  for (const nn::NamedParameter& parameter : parameters_) {
    lines.push_back(absl::StrCat("parameter ", parameter.name, " ",
                                 parameter.variable.value().Describe()));
  }
  return replicas_.CheckOthersAgree(std::move(lines));
}

absl::Status VirtualShards::CheckDTypes() const {
  if (parameters_.empty()) {
    return absl::InvalidArgumentError(
        "VirtualShards: the model has no parameter that is trained");
  }
  for (const nn::NamedParameter& parameter : parameters_) {
    const DType dtype = parameter.variable.dtype();
    if (dtype == DType::kF32 || dtype == DType::kF64) continue;
    return absl::UnimplementedError(
        absl::StrCat("VirtualShards: parameter ", parameter.name, " is of ",
                     Name(dtype), "; wanted f32 or f64"));
  }
  return absl::OkStatus();
}

collectives::CallOptions VirtualShards::CallOptionsOf() const {
  collectives::CallOptions call;
  call.timeout = options_.timeout;
  return call;
}

// --- The passes of a step. ---------------------------------------------------

void VirtualShards::SaveBuffers() {
  begin_.clear();
  for (const auto* buffers : {&floating_, &others_}) {
    for (const Tensor& buffer : *buffers) begin_.push_back(buffer.Clone());
  }
}

void VirtualShards::RestoreBuffers() {
  size_t i = 0;
  for (const auto* buffers : {&floating_, &others_}) {
    for (const Tensor& buffer : *buffers) buffer.CopyFrom(begin_[i++]);
  }
}

absl::Status VirtualShards::Begin(int shard) {
  if (is_open_ || shard != next_ || next_ == own_.end) {
    return absl::FailedPreconditionError(absl::StrCat(
        "VirtualShards::Begin(", shard, ") on rank ", group_.rank(), ": ",
        is_open_ ? absl::StrCat("shard ", next_, " has not ended")
        : next_ == own_.end
            ? std::string("all own shards have run; wanted Finish")
            : absl::StrCat("wanted shard ", next_)));
  }
  for (const nn::NamedParameter& parameter : parameters_) {
    if (!parameter.variable.has_grad()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("VirtualShards::Begin(", shard, "): parameter ",
                     parameter.name, " has a gradient; clear it first"));
  }
  return CatchToStatus([&] {
    if (shard == own_.begin) {
      SaveBuffers();
    } else {
      RestoreBuffers();
    }
    is_open_ = true;
    return absl::OkStatus();
  });
}

absl::Status VirtualShards::End() {
  if (!is_open_) {
    return absl::FailedPreconditionError(
        "VirtualShards::End: wanted a Begin before");
  }
  return CatchToStatus([this] { return EndPass(); });
}

absl::Status VirtualShards::EndPass() {
  Values values;
  values.reserve(parameters_.size() + floating_.size());
  for (const nn::NamedParameter& parameter : parameters_) {
    Gradient gradient = parameter.variable.gradient();
    parameter.variable.ClearGradient();
    // On the CPU, which adds them up in the order of the shards.
    if (gradient.is_sparse()) {
      gradient = Gradient(Coalesce(RowsOn(Device::Cpu(), gradient.sparse())));
    } else if (gradient.defined() && !gradient.dense().device().is_cpu()) {
      gradient = Gradient(gradient.dense().To(Device::Cpu()));
    } else if (gradient.defined()) {
      gradient = std::move(gradient).Owned();
    }
    values.push_back(std::move(gradient));
  }
  for (const Tensor& buffer : floating_) {
    const Tensor here = buffer.To(Device::Cpu());
    values.push_back(Gradient(here.IsSameAs(buffer) ? here.Clone() : here));
  }
  if (next_ == 0) {
    others_of_0_.clear();
    for (const Tensor& buffer : others_) {
      others_of_0_.push_back(buffer.Clone());
    }
  }
  whole_.resize(parameters_.size());
  rows_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    whole_[i] += values[i].dense().defined();
    rows_[i] += values[i].is_sparse();
    // Finish reports this to all ranks.
    if (whole_[i] > 0 && rows_[i] > 0) values[i] = Gradient();
  }
  tree_.Add({next_, next_ + 1}, std::move(values),
            [](Values& left, Values& right) {
              for (size_t i = 0; i < left.size(); ++i) {
                AddGradient(left[i], right[i]);
              }
            });
  ++next_;
  is_open_ = false;
  return absl::OkStatus();
}

// --- The sum over all shards. ------------------------------------------------

absl::Status VirtualShards::Finish() {
  if (is_open_ || next_ != own_.end) {
    return absl::FailedPreconditionError(
        absl::StrCat("VirtualShards::Finish on rank ", group_.rank(),
                     ": shard ", next_, " has not run"));
  }
  const absl::Status status = CatchToStatus([this] { return FinishAll(); });
  EndStep();
  if (status.ok()) return status;
  Abandon();
  return Reworded(status, absl::StrCat("VirtualShards: ", status.message()));
}

void VirtualShards::EndStep() {
  next_ = own_.begin;
  is_open_ = false;
  tree_.Clear();
  whole_.clear();
  rows_.clear();
}

void VirtualShards::Abandon() {
  EndStep();
  if (!begin_.empty()) RestoreBuffers();
  for (const nn::NamedParameter& parameter : parameters_) {
    parameter.variable.ClearGradient();
  }
}

absl::Status VirtualShards::FinishAll() {
  WEFT_RETURN_IF_ERROR(Count());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (whole_[i] == 0 || rows_[i] == 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(rows_[i], " shards gave rows of parameter ",
                     parameters_[i].name, " as its gradient, and ", whole_[i],
                     " a whole one; wanted the same of all"));
  }
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    WEFT_RETURN_IF_ERROR(ReduceWhole(dtype));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (rows_[i] > 0) WEFT_RETURN_IF_ERROR(ReduceRows(i));
  }
  return GiveIntegerBuffers();
}

absl::Status VirtualShards::Count() {
  if (group_.size() == 1) return absl::OkStatus();
  std::vector<int64_t> counts = whole_;
  counts.insert(counts.end(), rows_.begin(), rows_.end());
  const Tensor all = Tensor::FromVector<int64_t>(counts);
  WEFT_RETURN_IF_ERROR(group_.AllReduce(all, {}, CallOptionsOf()));
  const int64_t* const sums = all.data<int64_t>();
  const size_t n = parameters_.size();
  whole_.assign(sums, sums + n);
  rows_.assign(sums + n, sums + 2 * n);
  return absl::OkStatus();
}

std::vector<VirtualShards::Place> VirtualShards::PlacesOf(DType dtype) const {
  std::vector<Place> places;
  int64_t begin = 0;
  const auto add = [&](size_t value, const Tensor& like) {
    if (like.dtype() != dtype) return;
    places.push_back(
        {static_cast<int>(value), like.shape(), begin, like.numel()});
    begin += Aligned(like.numel());
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (whole_[i] > 0) add(i, parameters_[i].variable.value());
  }
  for (size_t i = 0; i < floating_.size(); ++i) {
    add(parameters_.size() + i, floating_[i]);
  }
  return places;
}

// Its memory is the group's own, which needs no copy on the way, if that has
// room.
Tensor VirtualShards::Allocate(int64_t size, DType dtype) {
  auto tensor = group_.Allocate({size}, dtype);
  return tensor.ok() ? *std::move(tensor) : Tensor::Empty({size}, dtype);
}

absl::Status VirtualShards::ReduceWhole(DType dtype) {
  const std::vector<Place> places = PlacesOf(dtype);
  if (places.empty()) return absl::OkStatus();
  Tensor flat;
  if (group_.size() > 1) {
    const int64_t size = places.back().begin + Aligned(places.back().size);
    WEFT_ASSIGN_OR_RETURN(flat, ReduceFlat(places, size, dtype));
  }
  for (const Place& place : places) {
    Tensor sum =
        flat.defined()
            ? flat.Slice(0, place.begin, place.begin + place.size)
                  .Reshape(place.shape)
            : std::as_const(tree_).parts()[0].value[place.value].dense();
    if (!flat.defined()) Mul_(sum, 1.0 / options_.shards);
    const size_t i = static_cast<size_t>(place.value);
    if (i < parameters_.size()) {
      const Variable& variable = parameters_[i].variable;
      variable.SetGradient(sum.To(variable.value().device()));
    } else {
      floating_[i - parameters_.size()].CopyFrom(sum);
    }
  }
  return absl::OkStatus();
}

// Each rank adds up one slice of all, from the subtrees of all ranks, and gives
// it to the others.
absl::StatusOr<Tensor> VirtualShards::ReduceFlat(
    const std::vector<Place>& places, int64_t size, DType dtype) {
  const int ranks = group_.size();
  const int64_t item = ItemSize(dtype);
  const auto begin_of = [&](int r) {
    return size / kAlignment * r / ranks * kAlignment;
  };
  const auto length_of = [&](int r) { return begin_of(r + 1) - begin_of(r); };
  // `sent` has a part for each receiver, with a row for each subtree.
  const auto& own = tree_.parts();
  const auto subtrees = static_cast<int64_t>(own.size());
  const Tensor sent = Allocate(subtrees * size, dtype);
  auto* const to = static_cast<std::byte*>(sent.raw());
  std::memset(to, 0, static_cast<size_t>(sent.bytes()));
  for (int64_t row = 0; row < subtrees; ++row) {
    for (const Place& place : places) {
      const Gradient& value = own[row].value[place.value];
      if (!value.defined()) continue;
      const Tensor whole = value.dense().Contiguous();
      const auto* const bytes = static_cast<const std::byte*>(whole.raw());
      const int64_t end = place.begin + place.size;
      for (int r = 0; r < ranks; ++r) {
        const int64_t from = std::max(place.begin, begin_of(r));
        const int64_t until = std::min(end, begin_of(r + 1));
        if (from >= until) continue;
        const int64_t at =
            subtrees * begin_of(r) + row * length_of(r) + from - begin_of(r);
        std::memcpy(to + at * item, bytes + (from - place.begin) * item,
                    static_cast<size_t>((until - from) * item));
      }
    }
  }
  const auto by_rank = SubtreesByRank(ranks, options_.shards);
  int64_t rows = 0;
  for (const auto& of_rank : by_rank) {
    rows += static_cast<int64_t>(of_rank.size());
  }
  const int64_t length = length_of(group_.rank());
  const Tensor received = Allocate(rows * length, dtype);
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  int64_t row = 0;
  for (int r = 0; r < ranks; ++r) {
    inputs.push_back(
        sent.Slice(0, subtrees * begin_of(r), subtrees * begin_of(r + 1)));
    const int64_t after = row + static_cast<int64_t>(by_rank[r].size());
    outputs.push_back(received.Slice(0, row * length, after * length));
    row = after;
  }
  const collectives::CallOptions call = CallOptionsOf();
  WEFT_RETURN_IF_ERROR(group_.AllToAllList(inputs, outputs, call));
  ShardTree<Tensor> tree;
  row = 0;
  for (const std::vector<ShardRange>& ranges : by_rank) {
    for (const ShardRange& range : ranges) {
      tree.Add(range, received.Slice(0, row * length, (row + 1) * length),
               [](Tensor& left, Tensor& right) { Add_(left, right); });
      ++row;
    }
  }
  const Tensor slice = tree.parts()[0].value;
  Mul_(slice, 1.0 / options_.shards);
  const Tensor flat = Allocate(size, dtype);
  std::vector<Tensor> slices;
  for (int r = 0; r < ranks; ++r) {
    slices.push_back(flat.Slice(0, begin_of(r), begin_of(r + 1)));
  }
  WEFT_RETURN_IF_ERROR(group_.AllGatherList(slice, slices, call));
  return flat;
}

absl::Status VirtualShards::ReduceRows(size_t parameter) {
  const Variable& variable = parameters_[parameter].variable;
  const auto by_rank = SubtreesByRank(group_.size(), options_.shards);
  SparseRows own = {Tensor::Empty({0}, DType::kI64),
                    Tensor::Empty({0, variable.size(1)}, variable.dtype()),
                    variable.size(0)};
  std::vector<int64_t> lengths;
  for (const auto& part : tree_.parts()) {
    const Gradient& gradient = part.value[parameter];
    lengths.push_back(0);
    if (!gradient.defined()) continue;
    const SparseRows& rows = gradient.sparse();
    lengths.back() = rows.indices.numel();
    own.indices = Concat({own.indices, rows.indices}, 0);
    own.values = Concat({own.values, rows.values}, 0);
  }
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<SparseRows> gathered,
      GatherRows(group_, own, lengths, by_rank, CallOptionsOf()));
  ShardTree<Gradient> tree;
  size_t next = 0;
  for (const std::vector<ShardRange>& subtrees : by_rank) {
    for (const ShardRange& subtree : subtrees) {
      tree.Add(subtree, Gradient(gathered[next++]), AddGradient);
    }
  }
  SparseRows sum = tree.parts()[0].value.sparse();
  sum.values = Mul(sum.values, 1.0 / options_.shards);
  variable.SetGradient(
      Gradient(RowsOn(variable.value().device(), std::move(sum))));
  return absl::OkStatus();
}

absl::Status VirtualShards::GiveIntegerBuffers() {
  if (others_.empty()) return absl::OkStatus();
  if (own_.begin == 0) {
    for (size_t i = 0; i < others_.size(); ++i) {
      others_[i].CopyFrom(others_of_0_[i]);
    }
  }
  if (group_.size() == 1) return absl::OkStatus();
  std::vector<Future<void>> broadcasts;
  for (const Tensor& buffer : others_) {
    broadcasts.push_back(
        group_.BroadcastAsync(buffer, /*root=*/0, CallOptionsOf()));
  }
  return WaitAll(std::move(broadcasts), LongestWait(group_, options_.timeout));
}

}  // namespace weft::ddp
