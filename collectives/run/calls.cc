// Calls: see the header.

#include "weft/collectives/run/calls.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::collectives {
namespace {

absl::Status CheckEmpty(const std::vector<Tensor>& tensors, int root) {
  if (tensors.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("wants the list of tensors at the root, rank ", root,
                   ", only; found ", tensors.size(), " tensors here"));
}

absl::Status CheckPeer(const Backend& backend, int peer) {
  if (peer < 0 || peer >= backend.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wants a rank from 0 to ", backend.size() - 1, ", found ", peer));
  }
  if (peer == backend.rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", peer, " is this rank: copy the tensor"));
  }
  return absl::OkStatus();
}

// Like Prepare for an all-gather; the ranks see and compare it as a `verb`.
template <typename Fill>
Call PrepareGathered(Generation& group, Verb verb, std::string detail,
                     CallSite site, Fill fill) {
  Call call = Prepare(group, Verb::kAllGather, site, fill);
  call.whole = std::make_unique<Operation>();
  call.whole->verb = verb;
  call.whole->detail = std::move(detail);
  call.whole->site = site;
  call.operation().whole = call.whole.get();
  return call;
}

// A rank's part of a Split: `wishes` gets those of all ranks.
absl::Status AddWishes(Preparation& p, int color, int key,
                       const SubgroupOptions& options, const Tensor& wishes) {
  const int64_t arena_bytes = options.arena_bytes.value_or(-1);
  if (options.arena_bytes.has_value() && arena_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("wants arena_bytes of 0 or more, found ", arena_bytes));
  }
  WEFT_RETURN_IF_ERROR(
      p.AddInput(Tensor::FromVector<int64_t>({color, key, arena_bytes})));
  return p.AddOutputParts(wishes);
}

}  // namespace

Call AllReduceCall(Generation& group, const Tensor& tensor,
                   const Reduction& reduction, CallSite site) {
  return Prepare(group, Verb::kAllReduce, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(p.AddInPlace(tensor));
    return p.SetReduction(reduction);
  });
}

Call AllReduceIntoCall(Generation& group, const Tensor& input,
                       const Tensor& output, const Reduction& reduction,
                       CallSite site) {
  return Prepare(group, Verb::kAllReduce, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(p.AddInput(input));
    WEFT_RETURN_IF_ERROR(p.AddOutput(output));
    WEFT_RETURN_IF_ERROR(p.CheckSameCount(0, 0));
    return p.SetReduction(reduction);
  });
}

Call AllReduceCoalescedCall(Generation& group,
                            const std::vector<Tensor>& tensors,
                            const Reduction& reduction, CallSite site) {
  return Prepare(group, Verb::kAllReduce, site, [&](Preparation& p) {
    // Looks at each as at any argument.
    Preparation each(Verb::kAllReduce, group.backend().size(), site);
    int64_t total = 0;
    for (const Tensor& tensor : tensors) {
      WEFT_RETURN_IF_ERROR(each.AddInPlace(tensor));
      total += tensor.numel();
    }
    const Tensor joined =
        tensors.empty()
            ? Tensor::Empty({0})
            : Tensor::Empty({total}, tensors[0].dtype(), tensors[0].device());
    int64_t at = 0;
    for (const Tensor& tensor : tensors) {
      const Tensor part =
          joined.Slice(0, at, at + tensor.numel()).View(tensor.shape());
      part.CopyFrom(tensor);
      p.WriteBack(part, tensor);
      at += tensor.numel();
    }
    WEFT_RETURN_IF_ERROR(p.AddInPlace(joined));
    return p.SetReduction(reduction);
  });
}

Call BroadcastCall(Generation& group, const Tensor& tensor, int root,
                   CallSite site) {
  return Prepare(group, Verb::kBroadcast, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(p.SetRoot(root));
    return group.backend().rank() == root
               ? p.AddInPlace(tensor, /*as_input=*/false)
               : p.AddOutput(tensor);
  });
}

Call ReduceCall(Generation& group, const Tensor& tensor, int root,
                const Reduction& reduction, CallSite site) {
  return Prepare(group, Verb::kReduce, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(p.SetRoot(root));
    WEFT_RETURN_IF_ERROR(group.backend().rank() == root ? p.AddInPlace(tensor)
                                                        : p.AddInput(tensor));
    return p.SetReduction(reduction);
  });
}

Call AllGatherCall(Generation& group, const Tensor& input, const Tensor& output,
                   CallSite site) {
  return Prepare(group, Verb::kAllGather, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(p.AddInput(input));
    WEFT_RETURN_IF_ERROR(p.AddOutputParts(output));
    return p.CheckSameCount(0, group.backend().rank());
  });
}

Call AllGatherListCall(Generation& group, const Tensor& input,
                       const std::vector<Tensor>& outputs, CallSite site) {
  return Prepare(group, Verb::kAllGather, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(p.AddInput(input));
    WEFT_RETURN_IF_ERROR(p.AddOutputs(outputs));
    return p.CheckSameCount(0, group.backend().rank());
  });
}

Call GatherCall(Generation& group, const Tensor& input,
                const std::vector<Tensor>& outputs, int root, CallSite site) {
  return Prepare(group, Verb::kGather, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(p.SetRoot(root));
    WEFT_RETURN_IF_ERROR(p.AddInput(input));
    if (group.backend().rank() != root) return CheckEmpty(outputs, root);
    WEFT_RETURN_IF_ERROR(p.AddOutputs(outputs));
    return p.CheckSameCount(0, root);
  });
}

Call ScatterCall(Generation& group, const std::vector<Tensor>& inputs,
                 const Tensor& output, int root, CallSite site) {
  return Prepare(group, Verb::kScatter, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(p.SetRoot(root));
    WEFT_RETURN_IF_ERROR(p.AddOutput(output));
    if (group.backend().rank() != root) return CheckEmpty(inputs, root);
    WEFT_RETURN_IF_ERROR(p.AddInputs(inputs));
    return p.CheckSameCount(root, 0);
  });
}

Call ReduceScatterCall(Generation& group, const Tensor& input,
                       const Tensor& output, const Reduction& reduction,
                       CallSite site) {
  return Prepare(group, Verb::kReduceScatter, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(p.AddInputParts(input));
    WEFT_RETURN_IF_ERROR(p.AddOutput(output));
    WEFT_RETURN_IF_ERROR(p.CheckSameCount(group.backend().rank(), 0));
    return p.SetReduction(reduction);
  });
}

Call ReduceScatterListCall(Generation& group, const std::vector<Tensor>& inputs,
                           const Tensor& output, const Reduction& reduction,
                           CallSite site) {
  return Prepare(group, Verb::kReduceScatter, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(p.AddInputs(inputs));
    WEFT_RETURN_IF_ERROR(p.AddOutput(output));
    WEFT_RETURN_IF_ERROR(p.CheckSameCount(group.backend().rank(), 0));
    return p.SetReduction(reduction);
  });
}

Call AllToAllCall(Generation& group, const Tensor& input, const Tensor& output,
                  CallSite site) {
  return Prepare(group, Verb::kAllToAll, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(p.AddInputParts(input));
    WEFT_RETURN_IF_ERROR(p.AddOutputParts(output));
    return p.CheckSameCount(0, 0);
  });
}

Call AllToAllListCall(Generation& group, const std::vector<Tensor>& inputs,
                      const std::vector<Tensor>& outputs, CallSite site) {
  return Prepare(group, Verb::kAllToAll, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(p.AddInputs(inputs));
    WEFT_RETURN_IF_ERROR(p.AddOutputs(outputs));
    return p.CheckSameCount(group.backend().rank(), group.backend().rank());
  });
}

absl::Status CheckRanks(std::vector<int> ranks, int size) {
  const std::string list = absl::StrJoin(ranks, ", ");
  std::sort(ranks.begin(), ranks.end());
  if (!ranks.empty() && ranks.front() >= 0 && ranks.back() < size &&
      std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "wants different ranks from 0 to ", size - 1, ", found [", list, "]"));
}

int PlaceOf(int rank, const std::vector<int>& ranks) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) -
                          ranks.begin());
}

Tensor NoWishes(const Generation& group) {
  return Tensor::Zeros({group.backend().size(), kNumWishes}, DType::kI64);
}

const int64_t* WishOf(const Tensor& wishes, int rank) {
  return wishes.span<int64_t>().data() + rank * kNumWishes;
}

Call SplitCall(Generation& group, int color, int key,
               const SubgroupOptions& options, const Tensor& wishes,
               CallSite site) {
  return PrepareGathered(group, Verb::kSplit, "", site, [&](Preparation& p) {
    return AddWishes(p, color, key, options, wishes);
  });
}

Call SubgroupCall(Generation& group, const std::vector<int>& ranks,
                  const SubgroupOptions& options, const Tensor& wishes,
                  CallSite site) {
  const Backend& backend = group.backend();
  const auto fill = [&](Preparation& p) -> absl::Status {
    WEFT_RETURN_IF_ERROR(CheckRanks(ranks, backend.size()));
    const int place = PlaceOf(backend.rank(), ranks);
    const bool is_member = place < static_cast<int>(ranks.size());
    return AddWishes(p, is_member ? 0 : -1, place, options, wishes);
  };
  return PrepareGathered(group, Verb::kSubgroup, DescribeList(ranks), site,
                         fill);
}

Call BarrierCall(Generation& group, CallSite site) {
  return Prepare(group, Verb::kBarrier, site,
                 [](Preparation&) { return absl::OkStatus(); });
}

Generation::Movement SendOf(Generation& group, const Tensor& tensor, int to,
                            uint64_t tag, CallSite site) {
  const auto fill = [&](Preparation& p) -> absl::Status {
    WEFT_RETURN_IF_ERROR(p.AddInput(tensor));
    return CheckPeer(group.backend(), to);
  };
  return {Prepare(group, Verb::kSend, site, fill), to, tag};
}

Generation::Movement ReceiveOf(Generation& group, const Tensor& tensor,
                               int from, uint64_t tag, CallSite site) {
  const auto fill = [&](Preparation& p) -> absl::Status {
    WEFT_RETURN_IF_ERROR(p.AddOutput(tensor));
    return CheckPeer(group.backend(), from);
  };
  // Below 0 it is refused, but -1 would be any.
  return {Prepare(group, Verb::kReceive, site, fill),
          from < 0 ? group.backend().size() : from, tag};
}

Generation::Movement ReceiveAnyOf(Generation& group, const Tensor& tensor,
                                  uint64_t tag, CallSite site) {
  const auto fill = [&](Preparation& p) { return p.AddOutput(tensor); };
  return {Prepare(group, Verb::kReceive, site, fill), -1, tag};
}

}  // namespace weft::collectives
