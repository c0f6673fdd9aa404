#include "weft/collectives/process_group.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/mutex.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/generation.h"
#include "weft/collectives/linked_backends.h"

namespace weft::collectives {

// The state that survives a change of the members.
class ProcessGroup::Core {
 public:
  Core(std::unique_ptr<Backend> backend, GroupOptions options)
      : options_(std::move(options)), now_(Make(std::move(backend))) {}

  const GroupOptions& options() const { return options_; }

  std::shared_ptr<Generation> now() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return now_;
  }
  void Replace(std::unique_ptr<Backend> backend) ABSL_LOCKS_EXCLUDED(mu_) {
    std::shared_ptr<Generation> next = Make(std::move(backend));
    MutexLock lock(mu_);
    now_.swap(next);
  }
  // Of the groups made from this one, each with a name of its own.
  int NextChild() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return children_++;
  }

 private:
  std::shared_ptr<Generation> Make(std::unique_ptr<Backend> backend) const {
    return std::make_shared<Generation>(std::move(backend), options_);
  }

  const GroupOptions options_;
  mutable Mutex mu_;
  std::shared_ptr<Generation> now_ ABSL_GUARDED_BY(mu_);
  int children_ ABSL_GUARDED_BY(mu_) = 0;
};

namespace {

// A Call of `verb`: what `fill` returns or throws is why it is refused.
template <typename Fill>
Call Prepare(Generation& group, Verb verb, CallSite site, Fill fill) {
  Call call = {Preparation(verb, group.backend().size(), site), {}};
  call.refusal = CatchToStatus([&]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(fill(call.preparation));
    return call.preparation.CheckOverlap();
  });
  return call;
}

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

Call BroadcastCall(Generation& group, const Tensor& tensor, int root,
                   CallSite site) {
  return Prepare(group, Verb::kBroadcast, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(p.SetRoot(root));
    return p.AddInPlace(tensor, /*as_input=*/false);
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

absl::Status CheckEmpty(const std::vector<Tensor>& tensors, int root) {
  if (tensors.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("wants the list of tensors at the root, rank ", root,
                   ", only; found ", tensors.size(), " tensors here"));
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

Call BarrierCall(Generation& group, CallSite site) {
  return Prepare(group, Verb::kBarrier, site,
                 [](Preparation&) { return absl::OkStatus(); });
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

Call PointToPointCall(Generation& group, Verb verb, const Tensor& tensor,
                      int peer, CallSite site) {
  return Prepare(group, verb, site, [&](Preparation& p) {
    WEFT_RETURN_IF_ERROR(verb == Verb::kSend ? p.AddInput(tensor)
                                             : p.AddOutput(tensor));
    if (verb == Verb::kReceive && peer < 0) return absl::OkStatus();
    return CheckPeer(group.backend(), peer);
  });
}

Future<void> WithoutRank(Future<int> future) {
  return std::move(future).Then([](int) {});
}

// How long to wait for a Future that ends by its own deadline anyway.
absl::Duration WaitOf(const GroupOptions& group, const CallOptions& options) {
  return std::max(options.timeout.value_or(group.timeout),
                  absl::ZeroDuration()) +
         absl::Seconds(30);
}

// For as many bytes as `rank` says that it sends, which may be any number.
absl::StatusOr<Tensor> RoomFor(int64_t bytes, int rank) {
  absl::StatusOr<Tensor> room =
      CatchToStatus([&] { return Tensor::Empty({bytes}, DType::kU8); });
  if (room.ok()) return room;
  return Reworded(room.status(),
                  absl::StrCat("rank ", rank, " says that it sends ", bytes,
                               " bytes: ", room.status().message()));
}

// OK if `ranks` are different ones of `size`.
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

}  // namespace

std::unique_ptr<ProcessGroup> ProcessGroup::Create(
    std::unique_ptr<Backend> backend, GroupOptions options) {
  return std::unique_ptr<ProcessGroup>(new ProcessGroup(
      std::make_shared<Core>(std::move(backend), std::move(options))));
}

ProcessGroup::ProcessGroup(std::shared_ptr<Core> core)
    : core_(std::move(core)) {}
ProcessGroup::~ProcessGroup() = default;

int ProcessGroup::rank() const { return core_->now()->backend().rank(); }
int ProcessGroup::size() const { return core_->now()->backend().size(); }
const std::string& ProcessGroup::name() const { return core_->options().name; }
std::string ProcessGroup::backend_name() const {
  return std::string(core_->now()->backend().name());
}
absl::Duration ProcessGroup::timeout() const {
  return core_->options().timeout;
}
absl::Status ProcessGroup::health() const {
  return core_->now()->backend().health();
}

absl::StatusOr<Tensor> ProcessGroup::Allocate(const Shape& shape, DType dtype) {
  return CatchToStatus(
      [&] { return core_->now()->backend().Allocate(shape, dtype); });
}

// The two forms of an operation whose Call is made by `maker`.
#define WEFT_COLLECTIVE(name, parameters, maker)                               \
  absl::Status ProcessGroup::name(WEFT_UNPAREN parameters,                     \
                                  const CallOptions& options, CallSite site) { \
    const std::shared_ptr<Generation> group = core_->now();                    \
    return group->Run(maker, options);                                         \
  }                                                                            \
  Future<void> ProcessGroup::name##Async(                                      \
      WEFT_UNPAREN parameters, const CallOptions& options, CallSite site) {    \
    const std::shared_ptr<Generation> group = core_->now();                    \
    return group->RunAsync(maker, options);                                    \
  }
#define WEFT_UNPAREN(...) __VA_ARGS__

WEFT_COLLECTIVE(AllReduce, (const Tensor& tensor, const Reduction& reduction),
                AllReduceCall(*group, tensor, reduction, site))
WEFT_COLLECTIVE(AllReduceInto,
                (const Tensor& input, const Tensor& output,
                 const Reduction& reduction),
                AllReduceIntoCall(*group, input, output, reduction, site))
WEFT_COLLECTIVE(Broadcast, (const Tensor& tensor, int root),
                BroadcastCall(*group, tensor, root, site))
WEFT_COLLECTIVE(Reduce,
                (const Tensor& tensor, int root, const Reduction& reduction),
                ReduceCall(*group, tensor, root, reduction, site))
WEFT_COLLECTIVE(AllGather, (const Tensor& input, const Tensor& output),
                AllGatherCall(*group, input, output, site))
WEFT_COLLECTIVE(AllGatherList,
                (const Tensor& input, const std::vector<Tensor>& outputs),
                AllGatherListCall(*group, input, outputs, site))
WEFT_COLLECTIVE(Gather,
                (const Tensor& input, const std::vector<Tensor>& outputs,
                 int root),
                GatherCall(*group, input, outputs, root, site))
WEFT_COLLECTIVE(Scatter,
                (const std::vector<Tensor>& inputs, const Tensor& output,
                 int root),
                ScatterCall(*group, inputs, output, root, site))
WEFT_COLLECTIVE(ReduceScatter,
                (const Tensor& input, const Tensor& output,
                 const Reduction& reduction),
                ReduceScatterCall(*group, input, output, reduction, site))
WEFT_COLLECTIVE(ReduceScatterList,
                (const std::vector<Tensor>& inputs, const Tensor& output,
                 const Reduction& reduction),
                ReduceScatterListCall(*group, inputs, output, reduction, site))
WEFT_COLLECTIVE(AllToAll, (const Tensor& input, const Tensor& output),
                AllToAllCall(*group, input, output, site))
WEFT_COLLECTIVE(AllToAllList,
                (const std::vector<Tensor>& inputs,
                 const std::vector<Tensor>& outputs),
                AllToAllListCall(*group, inputs, outputs, site))

absl::Status ProcessGroup::Barrier(const CallOptions& options, CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  return group->Run(BarrierCall(*group, site), options);
}
Future<void> ProcessGroup::BarrierAsync(const CallOptions& options,
                                        CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  return group->RunAsync(BarrierCall(*group, site), options);
}

absl::Status ProcessGroup::Send(const Tensor& tensor, int to, uint64_t tag,
                                const CallOptions& options, CallSite site) {
  return SendAsync(tensor, to, tag, options, site)
      .Wait(WaitOf(core_->options(), options));
}
Future<void> ProcessGroup::SendAsync(const Tensor& tensor, int to, uint64_t tag,
                                     const CallOptions& options,
                                     CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  return WithoutRank(
      group->Move(PointToPointCall(*group, Verb::kSend, tensor, to, site), to,
                  tag, options));
}
absl::Status ProcessGroup::Receive(const Tensor& tensor, int from, uint64_t tag,
                                   const CallOptions& options, CallSite site) {
  return ReceiveAsync(tensor, from, tag, options, site)
      .Wait(WaitOf(core_->options(), options));
}
Future<void> ProcessGroup::ReceiveAsync(const Tensor& tensor, int from,
                                        uint64_t tag,
                                        const CallOptions& options,
                                        CallSite site) {
  if (from < 0) from = size();  // No rank: -1 would be any.
  const std::shared_ptr<Generation> group = core_->now();
  return WithoutRank(
      group->Move(PointToPointCall(*group, Verb::kReceive, tensor, from, site),
                  from, tag, options));
}
absl::StatusOr<int> ProcessGroup::ReceiveAny(const Tensor& tensor, uint64_t tag,
                                             const CallOptions& options,
                                             CallSite site) {
  return ReceiveAnyAsync(tensor, tag, options, site)
      .Wait(WaitOf(core_->options(), options));
}
Future<int> ProcessGroup::ReceiveAnyAsync(const Tensor& tensor, uint64_t tag,
                                          const CallOptions& options,
                                          CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  return group->Move(PointToPointCall(*group, Verb::kReceive, tensor, -1, site),
                     -1, tag, options);
}

absl::Status ProcessGroup::Exchange(const std::vector<PointToPoint>& parts,
                                    const CallOptions& options, CallSite site) {
  std::vector<Future<void>> moves;
  for (const PointToPoint& part : parts) {
    moves.push_back(
        part.kind == PointToPoint::kSend
            ? SendAsync(part.tensor, part.peer, part.tag, options, site)
            : ReceiveAsync(part.tensor, part.peer, part.tag, options, site));
  }
  return WaitAll(std::move(moves), WaitOf(core_->options(), options));
}

absl::Status ProcessGroup::AllReduceCoalesced(
    const std::vector<Tensor>& tensors, const Reduction& reduction,
    const CallOptions& options, CallSite site) {
  return AllReduceCoalescedAsync(tensors, reduction, options, site)
      .Wait(WaitOf(core_->options(), options));
}

Future<void> ProcessGroup::AllReduceCoalescedAsync(
    const std::vector<Tensor>& tensors, const Reduction& reduction,
    const CallOptions& options, CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  int64_t total = 0;
  Tensor joined;
  Call call = Prepare(
      *group, Verb::kAllReduce, site, [&](Preparation& p) -> absl::Status {
        const DType dtype = tensors.empty() || !tensors[0].defined()
                                ? DType::kF32
                                : tensors[0].dtype();
        // Looks at each as at any argument.
        Preparation each(Verb::kAllReduce, group->backend().size(), site);
        for (const Tensor& tensor : tensors) {
          WEFT_RETURN_IF_ERROR(each.AddInPlace(tensor));
          total += tensor.numel();
        }
        joined = Tensor::Empty({total}, dtype);
        int64_t at = 0;
        for (const Tensor& tensor : tensors) {
          joined.Slice(0, at, at + tensor.numel())
              .View(tensor.shape())
              .CopyFrom(tensor);
          at += tensor.numel();
        }
        WEFT_RETURN_IF_ERROR(p.AddInPlace(joined));
        return p.SetReduction(reduction);
      });
  return group->RunAsync(std::move(call), options).Then([tensors, joined] {
    int64_t at = 0;
    for (const Tensor& tensor : tensors) {
      tensor.CopyFrom(
          joined.Slice(0, at, at + tensor.numel()).View(tensor.shape()));
      at += tensor.numel();
    }
  });
}

absl::StatusOr<std::vector<std::string>> ProcessGroup::AllGatherBytes(
    absl::string_view bytes, const CallOptions& options, CallSite site) {
  const Tensor mine = Tensor::Scalar<int64_t>(bytes.size());
  const Tensor sizes = Tensor::Zeros({size()}, DType::kI64);
  WEFT_RETURN_IF_ERROR(AllGather(mine, sizes, options, site));
  std::string copy(bytes);
  const Tensor input = Tensor::FromBlob(
      copy.data(), {static_cast<int64_t>(copy.size())}, DType::kU8, nullptr);
  std::vector<Tensor> outputs;
  for (const int64_t count : sizes.span<int64_t>()) {
    absl::StatusOr<Tensor> output =
        RoomFor(count, static_cast<int>(outputs.size()));
    if (!output.ok()) {
      // Refused: the others hear of it, and the group goes on.
      AllGatherList(input, {}, options, site).IgnoreError();
      return output.status();
    }
    outputs.push_back(*std::move(output));
  }
  WEFT_RETURN_IF_ERROR(AllGatherList(input, outputs, options, site));
  std::vector<std::string> result;
  for (const Tensor& output : outputs) {
    result.emplace_back(static_cast<const char*>(output.raw()), output.numel());
  }
  return result;
}

absl::StatusOr<std::string> ProcessGroup::BroadcastBytes(
    absl::string_view bytes, int root, const CallOptions& options,
    CallSite site) {
  const Tensor count = Tensor::Scalar<int64_t>(bytes.size());
  WEFT_RETURN_IF_ERROR(Broadcast(count, root, options, site));
  absl::StatusOr<Tensor> content = RoomFor(count.item<int64_t>(), root);
  if (!content.ok()) {
    Broadcast(Tensor(), root, options, site).IgnoreError();  // as above
    return content.status();
  }
  if (rank() == root && !bytes.empty()) {
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(content->raw()));
  }
  WEFT_RETURN_IF_ERROR(Broadcast(*content, root, options, site));
  return std::string(static_cast<const char*>(content->raw()),
                     content->numel());
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::Split(
    int color, int key, const CallOptions& options, CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  const Tensor mine = Tensor::FromVector<int64_t>({color, key});
  const Tensor all = Tensor::Zeros({size(), 2}, DType::kI64);
  WEFT_RETURN_IF_ERROR(AllGather(mine, all, options, site));
  const int child = core_->NextChild();
  if (color < 0) return nullptr;
  const absl::Span<const int64_t> pairs = all.span<int64_t>();
  std::vector<int> members;
  for (int r = 0; r < group->backend().size(); ++r) {
    if (pairs[2 * r] == color) members.push_back(r);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return pairs[2 * a + 1] < pairs[2 * b + 1];
  });
  GroupOptions child_options = core_->options();
  child_options.name =
      absl::StrCat(core_->options().name, "/", child, ":", color);
  WEFT_ASSIGN_OR_RETURN(
      std::unique_ptr<Backend> backend,
      group->backend().Subgroup(
          members, child_options.name,
          group->backend().driver().clock().Now() +
              options.timeout.value_or(core_->options().timeout)));
  return Create(std::move(backend), std::move(child_options));
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::Subgroup(
    const std::vector<int>& ranks, const CallOptions& options, CallSite site) {
  if (const absl::Status status = CheckRanks(ranks, size()); !status.ok()) {
    return Reworded(
        status, absl::StrCat("Subgroup at ", site.ToString(), ", rank ", rank(),
                             " of group ", name(), ": ", status.message()));
  }
  const auto place = std::find(ranks.begin(), ranks.end(), rank());
  const bool is_member = place != ranks.end();
  return Split(is_member ? 0 : -1, static_cast<int>(place - ranks.begin()),
               options, site);
}

void ProcessGroup::Revoke(const absl::Status& reason) {
  const std::shared_ptr<Generation> group = core_->now();
  group->backend().Abort(Reworded(
      reason.ok() ? absl::CancelledError("no reason is given") : reason,
      absl::StatusCode::kCancelled,
      absl::StrCat("group ", name(), " was revoked by rank ",
                   group->backend().rank(), ": ", reason.message())));
}

absl::Status ProcessGroup::Shrink(const std::vector<int>& members,
                                  const CallOptions& options, CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  Backend& backend = group->backend();
  if (const absl::Status status = CheckRanks(members, backend.size());
      !status.ok()) {
    return Reworded(
        status,
        absl::StrCat("Shrink at ", site.ToString(), ", rank ", backend.rank(),
                     " of group ", name(), ": ", status.message()));
  }
  if (std::find(members.begin(), members.end(), backend.rank()) ==
      members.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Shrink at ", site.ToString(), ": rank ", backend.rank(),
        " is not among the members [", absl::StrJoin(members, ", "), "]"));
  }
  // A rank that has not yet heard why the group is broken hears it from this
  // one, not that it shrinks.
  const absl::Status broken = health();
  backend.Abort(broken.ok() ? absl::CancelledError(
                                  absl::StrCat("group ", name(), " shrinks to ",
                                               members.size(), " ranks"))
                            : broken);
  WEFT_ASSIGN_OR_RETURN(
      std::unique_ptr<Backend> next,
      backend.Subgroup(
          members,
          absl::StrCat(name(), "/shrunk to ", absl::StrJoin(members, ","), " #",
                       core_->NextChild()),
          backend.driver().clock().Now() +
              options.timeout.value_or(core_->options().timeout)));
  core_->Replace(std::move(next));
  return absl::OkStatus();
}

absl::Status ProcessGroup::Reconfigure(std::unique_ptr<Backend> backend) {
  if (backend == nullptr) {
    return absl::InvalidArgumentError("Reconfigure: the backend is null");
  }
  core_->now()->backend().Abort(
      absl::CancelledError(absl::StrCat("group ", name(), " is reconfigured")));
  core_->Replace(std::move(backend));
  return absl::OkStatus();
}

absl::Status IsAvailable(absl::string_view backend) {
  if (backend == "local" || backend == "host" || backend == "stream") {
    return absl::OkStatus();
  }
  struct Optional {
    absl::string_view name;
    bool is_linked;
    absl::string_view wants;
  };
  const Optional optional[] = {
      {"gloo", WeftCollectivesHasGloo != nullptr,
       "link //:collectives_gloo (Debian's libgloo-dev)"},
      {"mpi", WeftCollectivesHasMpi != nullptr,
       "link //:collectives_mpi (Debian's libopenmpi-dev)"},
      {"nccl", WeftCollectivesHasNccl != nullptr,
       "Weft has no tensors on GPUs yet, which it needs"},
  };
  std::string found = "local, host, stream";
  absl::string_view wants = "no such backend is known";
  for (const Optional& one : optional) {
    if (one.is_linked && one.name == backend) return absl::OkStatus();
    if (one.is_linked) absl::StrAppend(&found, ", ", one.name);
    if (one.name == backend) wants = one.wants;
  }
  return absl::UnimplementedError(
      absl::StrCat("backend ", backend, " is not in this binary, which has ",
                   found, ": ", wants));
}

}  // namespace weft::collectives
