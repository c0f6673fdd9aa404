#include "weft/collectives/backends/host/hierarchical_backend.h"

#include <algorithm>
#include <utility>

#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/algorithms/blocks.h"
#include "weft/collectives/algorithms/link.h"
#include "weft/collectives/algorithms/run_over_link.h"

namespace weft::collectives {
namespace {

// Up to here the latency of more steps costs more than one rank's stream.
constexpr int64_t kSmallBytes = 32 * 1024;

// The link among some of the ranks.
class SomeRanks final : public Link {
 public:
  // `ranks`: this one is among them.
  SomeRanks(Link& all, std::vector<int> ranks)
      : all_(all), ranks_(std::move(ranks)) {}

  int rank() const override {
    return static_cast<int>(
        std::find(ranks_.begin(), ranks_.end(), all_.rank()) - ranks_.begin());
  }
  int size() const override { return static_cast<int>(ranks_.size()); }
  absl::Status Send(int to, absl::Span<const std::byte> bytes) override {
    return all_.Send(ranks_[to], bytes);
  }
  absl::Status Receive(int from, absl::Span<std::byte> bytes) override {
    return all_.Receive(ranks_[from], bytes);
  }
  absl::Status SendReceive(int to, absl::Span<const std::byte> out, int from,
                           absl::Span<std::byte> in) override {
    return all_.SendReceive(ranks_[to], out, ranks_[from], in);
  }
  absl::Status SendReduce(int to, absl::Span<const std::byte> out, int from,
                          int64_t bytes, int64_t item,
                          TakePiece take) override {
    return all_.SendReduce(ranks_[to], out, ranks_[from], bytes, item, take);
  }

 private:
  Link& all_;
  const std::vector<int> ranks_;
};

// A step of `whole`, without blocks.
Operation StepOf(const Operation& whole, Verb verb) {
  Operation step;
  step.verb = verb;
  step.dtype = whole.dtype;
  step.sequence = whole.sequence;
  step.label = whole.label;
  step.deadline = whole.deadline;
  step.site = whole.site;
  step.whole = &whole;
  return step;
}

class HierarchicalBackend final : public Backend {
 public:
  HierarchicalBackend(std::unique_ptr<Backend> host,
                      std::unique_ptr<StreamBackend> between,
                      const std::vector<std::vector<int>>& hosts,
                      SubgroupMaker make_subgroup)
      : host_(std::move(host)),
        between_(std::move(between)),
        hosts_(hosts),
        make_subgroup_(std::move(make_subgroup)) {
    for (const std::vector<int>& ranks : hosts_) {
      is_even_ = is_even_ && ranks.size() == hosts_[0].size();
    }
    // The hook may outlive this by a moment.
    between_->OnAbort([host_backend = host_](const absl::Status& why) {
      host_backend->Abort(why);
    });
  }
  ~HierarchicalBackend() override { between_->OnAbort(nullptr); }

  absl::string_view name() const override { return "host"; }
  int rank() const override { return between_->rank(); }
  int size() const override { return between_->size(); }
  Driver& driver() override { return between_->driver(); }

  absl::Status Run(const Operation& operation) override {
    return between_->RunWith(
        operation, [&](Link& link) { return RunSteps(link, operation); });
  }
  void Refuse(const Operation& operation, const absl::Status& why) override {
    between_->Refuse(operation, why);
    host_->Refuse(operation, why);
  }
  void Abort(const absl::Status& why) override { between_->Abort(why); }
  absl::Status health() const override {
    WEFT_RETURN_IF_ERROR(between_->health());
    return host_->health();
  }
  absl::Status CheckRanks() override {
    WEFT_RETURN_IF_ERROR(between_->CheckRanks());
    return host_->CheckRanks();
  }
  void EndShrink(uint64_t key, const absl::Status& why) override {
    between_->EndShrink(key, why);
  }
  absl::Status CheckShrink(uint64_t key) const override {
    return between_->CheckShrink(key);
  }

  absl::StatusOr<bool> Advance(Transfer& transfer) override {
    return between_->Advance(transfer);
  }
  void WithdrawSends() override { between_->WithdrawSends(); }
  uint64_t transfer_events() const override {
    return between_->transfer_events();
  }
  void AwaitTransfers(uint64_t seen, Instant until) override {
    between_->AwaitTransfers(seen, until);
  }
  const DiagnosisOptions* diagnosis() const override {
    return between_->diagnosis();
  }
  void AskPeer(int peer) override { between_->AskPeer(peer); }
  std::string DescribePeer(int peer, absl::string_view lacks,
                           Instant since) const override {
    return between_->DescribePeer(peer, lacks, since);
  }
  absl::StatusOr<Tensor> Allocate(const Shape& shape, DType dtype) override {
    return host_->Allocate(shape, dtype);
  }
  absl::StatusOr<std::unique_ptr<Backend>> Subgroup(
      const SubgroupSpec& spec) override {
    return make_subgroup_(spec);
  }

 private:
  absl::Status RunSteps(Link& link, const Operation& operation) {
    switch (operation.verb) {
      case Verb::kAllReduce:
        return AllReduce(link, operation);
      case Verb::kBroadcast:
        return Broadcast(link, operation);
      default:
        WEFT_RETURN_IF_ERROR(Agree(operation));
        return RunOverLink(link, operation, between_->cost());
    }
  }

  // Whether all ranks of the host have called it.
  absl::Status Agree(const Operation& operation) {
    return host_->Run(StepOf(operation, Verb::kBarrier));
  }
  // The last step in the host, which `before` decides on one rank: if that has
  // failed, the others end too.
  absl::Status RunOrRefuse(const Operation& step, const absl::Status& before) {
    if (before.ok()) return host_->Run(step);
    if (absl::IsAborted(before)) host_->Refuse(step, before);
    return before;
  }

  absl::Status AllReduce(Link& link, const Operation& operation);
  absl::Status ReduceByFirsts(Link& link, const Operation& operation,
                              Operation sum, const Block& block);
  absl::Status ReduceBySlices(Link& link, const Operation& operation,
                              Operation sum, const Block& block);
  absl::Status Broadcast(Link& link, const Operation& operation);

  int HostOf(int rank) const {
    int host = 0;
    while (std::find(hosts_[host].begin(), hosts_[host].end(), rank) ==
           hosts_[host].end()) {
      ++host;
    }
    return host;
  }

  const std::shared_ptr<Backend> host_;
  const std::unique_ptr<StreamBackend> between_;
  const std::vector<std::vector<int>> hosts_;
  const SubgroupMaker make_subgroup_;
  bool is_even_ = true;  // as many ranks on each host
};

absl::Status HierarchicalBackend::AllReduce(Link& link,
                                            const Operation& operation) {
  const Block& in = operation.inputs[0];
  const Block& out = operation.outputs[0];
  // Accumulators take the place of the output where they fit there.
  Operation sum = StepOf(operation, Verb::kAllReduce);
  std::vector<std::byte> wider;
  Block block = out;
  if (AccumulatorBytes(operation.dtype) != ItemSize(operation.dtype)) {
    sum.dtype = DType::kF32;
    wider.resize(in.elements * AccumulatorBytes(operation.dtype));
    block.memory = wider.data();
  }
  if (operation.reduction.op != ReduceOp::kAverage) {
    sum.reduction.op = operation.reduction.op;
  }
  if (block.memory != in.memory || operation.reduction.factor != 1) {
    LoadElements(operation.dtype, operation.reduction, in.memory, block.memory,
                 in.elements);
  }
  const bool is_small = block.elements * ItemSize(sum.dtype) <= kSmallBytes;
  WEFT_RETURN_IF_ERROR(is_small || !is_even_
                           ? ReduceByFirsts(link, operation, sum, block)
                           : ReduceBySlices(link, operation, sum, block));
  StoreElements(operation.dtype, operation.reduction.op, size(), block.memory,
                out.memory, out.elements);
  return absl::OkStatus();
}

absl::Status HierarchicalBackend::ReduceByFirsts(Link& link,
                                                 const Operation& operation,
                                                 Operation sum,
                                                 const Block& block) {
  const bool is_first = host_->rank() == 0;
  Operation reduce = sum;
  reduce.verb = Verb::kReduce;
  reduce.inputs = {block};
  if (is_first) reduce.outputs = {block};
  WEFT_RETURN_IF_ERROR(host_->Run(reduce));
  absl::Status status;
  if (is_first) {
    std::vector<int> firsts;
    for (const std::vector<int>& ranks : hosts_) firsts.push_back(ranks[0]);
    SomeRanks among(link, std::move(firsts));
    sum.inputs = sum.outputs = {block};
    status = RunOverLink(among, sum, between_->cost());
  }
  Operation tell = StepOf(operation, Verb::kBroadcast);
  tell.dtype = sum.dtype;
  tell.outputs = {block};
  return RunOrRefuse(tell, status);
}

absl::Status HierarchicalBackend::ReduceBySlices(Link& link,
                                                 const Operation& operation,
                                                 Operation sum,
                                                 const Block& block) {
  const int own = host_->rank();
  const Blocks slices = PartsOf(block, sum.dtype, host_->size());
  Operation scatter = sum;
  scatter.verb = Verb::kReduceScatter;
  scatter.inputs = slices;
  scatter.outputs = {slices[own]};
  WEFT_RETURN_IF_ERROR(host_->Run(scatter));
  std::vector<int> same_slice;
  for (const std::vector<int>& ranks : hosts_) same_slice.push_back(ranks[own]);
  SomeRanks among(link, std::move(same_slice));
  sum.inputs = sum.outputs = {slices[own]};
  // If a rank of another host refuses, no slice can be reduced: each rank of
  // this host finds that here, and none goes on to the last step.
  WEFT_RETURN_IF_ERROR(RunOverLink(among, sum, between_->cost()));
  Operation gather = StepOf(operation, Verb::kAllGather);
  gather.dtype = sum.dtype;
  gather.inputs = {slices[own]};
  gather.outputs = slices;
  return host_->Run(gather);
}

absl::Status HierarchicalBackend::Broadcast(Link& link,
                                            const Operation& operation) {
  WEFT_RETURN_IF_ERROR(Agree(operation));
  const int root_host = HostOf(operation.root);
  const int own_host = HostOf(rank());
  std::vector<int> speakers;
  for (const std::vector<int>& ranks : hosts_) speakers.push_back(ranks[0]);
  speakers[root_host] = operation.root;
  absl::Status status;
  if (speakers[own_host] == rank()) {
    Operation between = StepOf(operation, Verb::kBroadcast);
    between.outputs = operation.outputs;
    between.root = root_host;
    SomeRanks among(link, speakers);
    status = RunOverLink(among, between, between_->cost());
  }
  Operation tell = StepOf(operation, Verb::kBroadcast);
  tell.outputs = operation.outputs;
  const std::vector<int>& here = hosts_[own_host];
  tell.root = static_cast<int>(
      std::find(here.begin(), here.end(), speakers[own_host]) - here.begin());
  return RunOrRefuse(tell, status);
}

}  // namespace

std::unique_ptr<Backend> MakeHierarchical(
    std::unique_ptr<Backend> host, std::unique_ptr<StreamBackend> between,
    const std::vector<std::vector<int>>& hosts, SubgroupMaker make_subgroup) {
  return std::make_unique<HierarchicalBackend>(
      std::move(host), std::move(between), hosts, std::move(make_subgroup));
}

}  // namespace weft::collectives
