#include "weft/collectives/process_group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/mutex.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/run/calls.h"
#include "weft/collectives/run/generation.h"
#include "weft/collectives/run/transfer_wait.h"

namespace weft::collectives {

// The state that survives a change of the members.
class ProcessGroup::Core {
 public:
  Core(std::unique_ptr<Backend> backend, GroupOptions options,
       std::vector<int> parent_ranks)
      : options_(std::move(options)),
        now_(Make(std::move(backend), std::move(parent_ranks))) {}

  const GroupOptions& options() const { return options_; }

  std::shared_ptr<Generation> now() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return now_;
  }
  void Replace(std::unique_ptr<Backend> backend, std::vector<int> parent_ranks)
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::shared_ptr<Generation> next =
        Make(std::move(backend), std::move(parent_ranks));
    MutexLock lock(mu_);
    now_.swap(next);
  }

 private:
  std::shared_ptr<Generation> Make(std::unique_ptr<Backend> backend,
                                   std::vector<int> parent_ranks) const {
    return std::make_shared<Generation>(std::move(backend), options_,
                                        std::move(parent_ranks), staging_);
  }

  const GroupOptions options_;
  const std::shared_ptr<DeviceStaging> staging_ =
      std::make_shared<DeviceStaging>();
  mutable Mutex mu_;
  std::shared_ptr<Generation> now_ ABSL_GUARDED_BY(mu_);
};

namespace {

// How messages show the arena_bytes of a group.
std::string WordsOf(int64_t arena_bytes) {
  return arena_bytes < 0 ? "none" : absl::StrCat(arena_bytes);
}

// Begins one.
Future<int> MoveOne(Generation& group, Generation::Movement movement,
                    const CallOptions& options) {
  std::vector<Generation::Movement> one;
  one.push_back(std::move(movement));
  return std::move(group.Move(std::move(one), options)[0]);
}

// 0, 1, ...
std::vector<int> RanksOf(const Backend& backend) {
  std::vector<int> ranks(backend.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
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

// The same, and waits for it.
absl::StatusOr<int> AwaitOne(Generation& group, Generation::Movement movement,
                             const GroupOptions& made,
                             const CallOptions& options, CallSite site) {
  TransferWait::Part part;
  part.is_send = movement.call.preparation.operation().verb == Verb::kSend;
  part.peer = movement.peer;
  part.tag = movement.tag;
  const Future<int> moved = MoveOne(group, std::move(movement), options);
  part.is_done = [&moved] { return moved.IsReady(); };
  return AwaitMoved(group.backend(), made.name, site, {std::move(part)}, moved,
                    WaitOf(made, options));
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

}  // namespace

std::unique_ptr<ProcessGroup> ProcessGroup::Create(
    std::unique_ptr<Backend> backend, GroupOptions options) {
  std::vector<int> own = RanksOf(*backend);
  return std::unique_ptr<ProcessGroup>(new ProcessGroup(std::make_shared<Core>(
      std::move(backend), std::move(options), std::move(own))));
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

absl::Status ProcessGroup::CheckRanks() const {
  return core_->now()->backend().CheckRanks();
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
  const std::shared_ptr<Generation> group = core_->now();
  return AwaitOne(*group, SendOf(*group, tensor, to, tag, site),
                  core_->options(), options, site)
      .status();
}
Future<void> ProcessGroup::SendAsync(const Tensor& tensor, int to, uint64_t tag,
                                     const CallOptions& options,
                                     CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  return WithoutRank(
      MoveOne(*group, SendOf(*group, tensor, to, tag, site), options));
}
absl::Status ProcessGroup::Receive(const Tensor& tensor, int from, uint64_t tag,
                                   const CallOptions& options, CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  return AwaitOne(*group, ReceiveOf(*group, tensor, from, tag, site),
                  core_->options(), options, site)
      .status();
}
Future<void> ProcessGroup::ReceiveAsync(const Tensor& tensor, int from,
                                        uint64_t tag,
                                        const CallOptions& options,
                                        CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  return WithoutRank(
      MoveOne(*group, ReceiveOf(*group, tensor, from, tag, site), options));
}
absl::StatusOr<int> ProcessGroup::ReceiveAny(const Tensor& tensor, uint64_t tag,
                                             const CallOptions& options,
                                             CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  return AwaitOne(*group, ReceiveAnyOf(*group, tensor, tag, site),
                  core_->options(), options, site);
}
Future<int> ProcessGroup::ReceiveAnyAsync(const Tensor& tensor, uint64_t tag,
                                          const CallOptions& options,
                                          CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  return MoveOne(*group, ReceiveAnyOf(*group, tensor, tag, site), options);
}

namespace {

absl::Status CheckOneDevice(const std::vector<PointToPoint>& parts) {
  const Tensor* first = nullptr;
  for (const PointToPoint& part : parts) {
    if (!part.tensor.defined()) continue;  // its own error says so
    if (first == nullptr) first = &part.tensor;
    if (part.tensor.device() == first->device()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("Exchange: wanted tensors of one device, found parts on ",
                     Name(first->device()), " and ", Name(part.tensor.device()),
                     "; call it once for each device"));
  }
  return absl::OkStatus();
}

// Returns a Future for each part; or one that is an error, and has begun
// nothing.
std::vector<Future<void>> BeginExchange(Generation& group,
                                        const std::vector<PointToPoint>& parts,
                                        const CallOptions& options,
                                        CallSite site) {
  if (const absl::Status one = CheckOneDevice(parts); !one.ok()) {
    return {MakeReady<void>(one)};
  }
  std::vector<Generation::Movement> movements;
  for (const PointToPoint& part : parts) {
    movements.push_back(
        part.kind == PointToPoint::kSend
            ? SendOf(group, part.tensor, part.peer, part.tag, site)
            : ReceiveOf(group, part.tensor, part.peer, part.tag, site));
  }
  std::vector<Future<void>> moves;
  for (Future<int>& move : group.Move(std::move(movements), options)) {
    moves.push_back(WithoutRank(std::move(move)));
  }
  return moves;
}

}  // namespace

absl::Status ProcessGroup::Exchange(const std::vector<PointToPoint>& parts,
                                    const CallOptions& options, CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  const std::vector<Future<void>> moves =
      BeginExchange(*group, parts, options, site);
  std::vector<TransferWait::Part> waits;
  for (size_t i = 0; i < moves.size() && moves.size() == parts.size(); ++i) {
    waits.push_back({parts[i].kind == PointToPoint::kSend, parts[i].peer,
                     parts[i].tag, [&moves, i] { return moves[i].IsReady(); }});
  }
  return AwaitMoved(group->backend(), core_->options().name, site,
                    std::move(waits), WhenAllOk(moves),
                    WaitOf(core_->options(), options));
}
Future<void> ProcessGroup::ExchangeAsync(const std::vector<PointToPoint>& parts,
                                         const CallOptions& options,
                                         CallSite site) {
  return WhenAllOk(BeginExchange(*core_->now(), parts, options, site));
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
  return group->RunAsync(
      AllReduceCoalescedCall(*group, tensors, reduction, site), options);
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

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::MakePart(
    Core& core, Generation& group, const Tensor& wishes, uint64_t number,
    absl::Duration timeout) {
  Backend& backend = group.backend();
  const int64_t* const mine = WishOf(wishes, backend.rank());
  if (mine[kColor] < 0) return nullptr;
  SubgroupSpec spec;
  for (int r = 0; r < backend.size(); ++r) {
    const int64_t* const one = WishOf(wishes, r);
    if (one[kColor] != mine[kColor]) continue;
    spec.members.push_back(r);
    if (one[kArena] == mine[kArena]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("wants one arena_bytes of all members, found ",
                     WordsOf(mine[kArena]), " on rank ", backend.rank(),
                     " and ", WordsOf(one[kArena]), " on rank ", r));
  }
  std::stable_sort(spec.members.begin(), spec.members.end(), [&](int a, int b) {
    return WishOf(wishes, a)[kKey] < WishOf(wishes, b)[kKey];
  });
  GroupOptions options = core.options();
  // The name does not depend on how many groups this rank has made: another
  // rank may have failed where this one has not, and they go on together by
  // Shrink.
  absl::StrAppend(&options.name, "/", number, ":", mine[kColor]);
  spec.name = options.name;
  spec.deadline = backend.driver().clock().Now() + timeout;
  // What ends the operations of `group` ends this one.
  spec.check_wait = [&backend] { return backend.health(); };
  if (mine[kArena] >= 0) spec.arena_bytes = mine[kArena];
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> made, backend.Subgroup(spec));
  return std::unique_ptr<ProcessGroup>(new ProcessGroup(std::make_shared<Core>(
      std::move(made), std::move(options), std::move(spec.members))));
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::RunSplit(
    Generation& group, Call call, const Tensor& wishes,
    const SubgroupOptions& options) {
  std::unique_ptr<ProcessGroup> made;
  WEFT_RETURN_IF_ERROR(
      group.Run(std::move(call), options, [&](uint64_t number) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(
            made, MakePart(*core_, group, wishes, number,
                           options.timeout.value_or(core_->options().timeout)));
        return absl::OkStatus();
      }));
  return made;
}

Future<std::unique_ptr<ProcessGroup>> ProcessGroup::RunSplitAsync(
    Generation& group, Call call, const Tensor& wishes,
    const SubgroupOptions& options) {
  const auto made = std::make_shared<std::unique_ptr<ProcessGroup>>();
  // Both outlive the operations of `group`, whose end waits for them.
  Core* const core = core_.get();
  Generation* const running = &group;
  return group
      .RunAsync(
          std::move(call), options,
          [=, timeout = options.timeout.value_or(core->options().timeout)](
              uint64_t number) -> absl::Status {
            WEFT_ASSIGN_OR_RETURN(
                *made, MakePart(*core, *running, wishes, number, timeout));
            return absl::OkStatus();
          })
      .Then([made] { return std::move(*made); });
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::Split(
    int color, int key, const SubgroupOptions& options, CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  const Tensor wishes = NoWishes(*group);
  return RunSplit(*group, SplitCall(*group, color, key, options, wishes, site),
                  wishes, options);
}

Future<std::unique_ptr<ProcessGroup>> ProcessGroup::SplitAsync(
    int color, int key, const SubgroupOptions& options, CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  const Tensor wishes = NoWishes(*group);
  return RunSplitAsync(*group,
                       SplitCall(*group, color, key, options, wishes, site),
                       wishes, options);
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::Subgroup(
    const std::vector<int>& ranks, const SubgroupOptions& options,
    CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  const Tensor wishes = NoWishes(*group);
  return RunSplit(*group, SubgroupCall(*group, ranks, options, wishes, site),
                  wishes, options);
}

Future<std::unique_ptr<ProcessGroup>> ProcessGroup::SubgroupAsync(
    const std::vector<int>& ranks, const SubgroupOptions& options,
    CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  const Tensor wishes = NoWishes(*group);
  return RunSplitAsync(*group,
                       SubgroupCall(*group, ranks, options, wishes, site),
                       wishes, options);
}

std::vector<int> ProcessGroup::parent_ranks() const {
  return core_->now()->parent_ranks();
}

absl::optional<int> ProcessGroup::RankOfParent(int parent_rank) const {
  const std::shared_ptr<Generation> group = core_->now();
  const std::vector<int>& ranks = group->parent_ranks();
  const auto found = std::find(ranks.begin(), ranks.end(), parent_rank);
  if (found == ranks.end()) return absl::nullopt;
  return static_cast<int>(found - ranks.begin());
}

void ProcessGroup::Revoke(const absl::Status& reason) {
  const std::shared_ptr<Generation> group = core_->now();
  const absl::Status given =
      reason.ok() ? absl::CancelledError("no reason is given") : reason;
  const absl::Status why =
      Reworded(given, absl::StatusCode::kCancelled,
               absl::StrCat("group ", name(), " was revoked by rank ",
                            group->backend().rank(), ": ", given.message()));
  group->backend().Abort(why);
  group->EndShrinks(why);
}

absl::Status ProcessGroup::Shrink(const std::vector<int>& members,
                                  const CallOptions& options, CallSite site) {
  const std::shared_ptr<Generation> group = core_->now();
  Backend& backend = group->backend();
  const auto failed = [&](const absl::Status& why) {
    return Reworded(
        why, absl::StrCat("Shrink to [", absl::StrJoin(members, ", "), "] at ",
                          site.ToString(), ", rank ", backend.rank(),
                          " of group ", name(), ": ", why.message()));
  };
  const absl::Status checked = collectives::CheckRanks(members, backend.size());
  if (!checked.ok()) return failed(checked);
  if (PlaceOf(backend.rank(), members) == static_cast<int>(members.size())) {
    return failed(
        absl::InvalidArgumentError("this rank is not among the members"));
  }
  // A rank that has not yet heard why the group is broken hears it from this
  // one, not that it shrinks.
  const absl::Status broken = health();
  backend.Abort(broken.ok() ? absl::CancelledError(
                                  absl::StrCat("group ", name(), " shrinks to ",
                                               members.size(), " ranks"))
                            : broken);
  const Generation::Shrink shrink = group->BeginShrink(members);
  SubgroupSpec spec;
  spec.members = members;
  spec.name = absl::StrCat(name(), "/shrunk to ", absl::StrJoin(members, ","),
                           " #", shrink.number);
  spec.deadline = backend.driver().clock().Now() +
                  options.timeout.value_or(core_->options().timeout);
  // The group is broken already: what counts is what comes from here on.
  spec.check_wait = [&] { return group->CheckShrink(shrink.key); };
  absl::StatusOr<std::unique_ptr<Backend>> next = backend.Subgroup(spec);
  const absl::Status ended = group->CheckShrink(shrink.key);
  if (!ended.ok() && next.ok()) (*next)->Abort(ended);
  const absl::Status status = ended.ok() ? next.status() : ended;
  if (!status.ok()) return failed(status);
  std::vector<int> parent_ranks;
  for (const int member : members) {
    parent_ranks.push_back(group->parent_ranks()[member]);
  }
  core_->Replace(*std::move(next), std::move(parent_ranks));
  return absl::OkStatus();
}

absl::Status ProcessGroup::Reconfigure(std::unique_ptr<Backend> backend) {
  if (backend == nullptr) {
    return absl::InvalidArgumentError("Reconfigure: the backend is null");
  }
  core_->now()->backend().Abort(
      absl::CancelledError(absl::StrCat("group ", name(), " is reconfigured")));
  std::vector<int> own = RanksOf(*backend);
  core_->Replace(std::move(backend), std::move(own));
  return absl::OkStatus();
}

}  // namespace weft::collectives
