// Checkpoint below a DistributedDataParallel: the same bits, the same failures.

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/reducer.h"
#include "weft/ddp/sync_batch_norm.h"
#include "weft/nn/layers.h"
#include "weft/nn/module.h"
#include "weft/nn/norm.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/random.h"
#include "weft/tests/outside/checkpoint/bits.h"
#include "weft/tests/outside/groups/worlds.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::weft::collectives::ProcessGroup;
using ::weft::ddp::ReducerOptions;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

using Ddp = ddp::DistributedDataParallel;

constexpr int kRanks = 2;

// Blocks with a normalisation over all ranks or this one, and a layer that not
// every pass uses.
class Net final : public nn::Module {
 public:
  Net(ProcessGroup* own, uint64_t noise_of_rank)
      : random_(1), noise_(Generator(2).Fork(noise_of_rank)) {
    for (int i = 0; i < 3; ++i) {
      auto block = std::make_unique<nn::Sequential>();
      block->Add<nn::Linear>(6, 6, random_);
      if (own != nullptr) {
        block->Add<ddp::SyncBatchNorm>(6, *own);
      } else {
        block->Add<nn::BatchNorm>(6);
      }
      block->Add<nn::Tanh>();
      block->Add<nn::Dropout>(0.2, noise_);
      AddModule(absl::StrCat("block", i), *block);
      blocks_.push_back(std::move(block));
    }
    extra_ = std::make_unique<nn::Linear>(6, 6, random_);
    AddModule("extra", *extra_);
  }

  Variable Forward(const Variable& x, bool on, bool uses_extra) {
    Variable y = x;
    for (const auto& block : blocks_) {
      y = Maybe(on, [&b = *block](In in) { return b.Forward(in[0]); }, {y});
    }
    if (uses_extra) {
      y = Maybe(on,
                [this](In in) { return Exp(extra_->Forward(in[0])) + in[0]; },
                {y});
    }
    return y;
  }
  Variable Loss(const Variable& x, bool on, bool uses_extra) {
    const Variable y = Forward(x, on, uses_extra);
    return Mean(y * y);
  }

  Generator& noise() { return noise_; }
  nn::Layer& block(int i) { return *blocks_[i]; }

 private:
  Generator random_, noise_;
  std::vector<std::unique_ptr<nn::Sequential>> blocks_;
  std::unique_ptr<nn::Linear> extra_;
};

using Bits = std::vector<std::string>;

void Append(const nn::Module& module, Bits& bits) {
  for (const auto& [name, tensor] : module.StateDict()) {
    bits.push_back(name + BitsOf(tensor));
  }
  for (const nn::NamedParameter& p : module.NamedParameters()) {
    bits.push_back(p.name + BitsOf(p.variable.grad()));
  }
}

struct Plan {
  const char* name;
  bool synchronises = false;  // SyncBatchNorm
  bool is_static = false;
  bool accumulates = false;  // NoSyncScope around every second pass
  int uses_extra = 0;        // 0 never, 1 always, 2 on rank 0 only
  // Whether `rank` uses Checkpoint in the run that is compared.
  bool (*on)(int rank) = [](int) { return true; };
};

class Training : public ::testing::TestWithParam<Plan> {};

std::vector<Bits> Train(const Plan& plan, bool checkpointed) {
  std::vector<Bits> found(kRanks);
  EXPECT_THAT(
      RunGroups(
          AllKinds()[0], kRanks,
          [&](ProcessGroup& group) -> absl::Status {
            const int rank = group.rank();
            const bool on = checkpointed && plan.on(rank);
            WEFT_ASSIGN_OR_RETURN(auto own, group.Split(0));
            Net net(plan.synchronises ? own.get() : nullptr, rank);
            ReducerOptions options;
            options.is_static_graph = plan.is_static;
            options.first_bucket_bytes = 64;
            options.bucket_bytes = 200;
            WEFT_ASSIGN_OR_RETURN(auto ddp, Ddp::Create(net, group, options));
            WEFT_ASSIGN_OR_RETURN(
                auto optimizer,
                optimizer::Optimizer::Create({{optimizer::SgdOptions{0.05, 0.9},
                                               net.NamedParameters()}}));
            Generator data = Generator(9).Fork(rank);
            Bits& bits = found[rank];
            const bool extra =
                plan.uses_extra == 1 || (plan.uses_extra == 2 && rank == 0);
            for (int step = 0; step < 4; ++step) {
              optimizer->ZeroGrad();
              if (plan.accumulates) {
                const Ddp::NoSyncScope scope(*ddp);
                const Variable x(Uniform({5, 6}, -1, 1, data));
                net.Loss(x, on, extra).Backward();
              }
              const Variable x(Uniform({5, 6}, -1, 1, data));
              const Variable loss = net.Loss(x, on, extra);
              bits.push_back(BitsOf(loss.value()));
              loss.Backward();
              Append(net, bits);
              WEFT_RETURN_IF_ERROR(optimizer->Step());
            }
            bits.push_back(absl::StrCat(net.noise().position()));
            Append(net, bits);
            return ddp->CheckInSync();
          }),
      Each(IsOk()));
  return found;
}

TEST_P(Training, EndsWithTheSameBitsAsWithoutCheckpoint) {
  const std::vector<Bits> without = Train(GetParam(), false);
  const std::vector<Bits> with = Train(GetParam(), true);
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(with[rank].size(), without[rank].size());
    for (size_t i = 0; i < with[rank].size(); ++i) {
      EXPECT_TRUE(with[rank][i] == without[rank][i])
          << "rank " << rank << " place " << i << ": "
          << without[rank][i].substr(0, 30);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, Training,
    ::testing::Values(
        Plan{"BatchNorm"}, Plan{"SyncBatchNorm", true},
        Plan{"StaticGraph", false, true, false, 1},
        Plan{"StaticGraphWithSyncBatchNorm", true, true, false, 1},
        Plan{"NoSync", false, false, true},
        Plan{"NoSyncWithSyncBatchNorm", true, false, true, 1},
        Plan{"UnusedParameters", false, false, false, 0},
        Plan{"ParametersUsedOnOneRank", false, false, false, 2},
        Plan{"ParametersUsedOnOneRankWithNoSync", true, false, true, 2},
        Plan{"CheckpointOnOneRankOnly", true, false, false, 1,
             [](int rank) { return rank == 1; }}),
    [](const auto& info) { return std::string(info.param.name); });

// "A pass that fails on one rank fails on all ranks, with the reason."
TEST(CheckpointedDdp, FunctionThatThrowsAgainOnOneRankFailsAll) {
  EXPECT_THAT(
      RunGroups(AllKinds()[0], kRanks,
                [&](ProcessGroup& group) -> absl::Status {
                  Net net(nullptr, 0);
                  WEFT_ASSIGN_OR_RETURN(auto ddp, Ddp::Create(net, group));
                  const Variable x(Numbers({5, 6}, group.rank()));
                  const Variable y = Checkpoint(
                      [&](In in) {
                        const Variable z = net.block(0).Forward(in[0]);
                        if (IsRecomputing() && group.rank() == 1) {
                          throw std::runtime_error("no second time");
                        }
                        return net.block(1).Forward(z);
                      },
                      {x});
                  return CatchToStatus([&] { Mean(y).Backward(); });
                }),
      // The others hear that the group was revoked, and why.
      Each(AnyOf(StatusIs(absl::StatusCode::kInternal, "no second time"),
                 StatusIs(absl::StatusCode::kCancelled, "no second time"))));
}

TEST(CheckpointedDdp, WeightWrittenToOnOneRankSinceFailsAll) {
  EXPECT_THAT(
      RunGroups(AllKinds()[0], kRanks,
                [&](ProcessGroup& group) -> absl::Status {
                  Net net(nullptr, 0);
                  WEFT_ASSIGN_OR_RETURN(auto ddp, Ddp::Create(net, group));
                  const Variable x(Numbers({5, 6}, group.rank()));
                  const Variable loss = net.Loss(x, true, true);
                  if (group.rank() == 0) {
                    net.NamedParameters()[0].variable.value().Fill(0.5);
                  }
                  return CatchToStatus([&] { loss.Backward(); });
                }),
      Each(AnyOf(
          StatusIs(absl::StatusCode::kFailedPrecondition, "was written to"),
          StatusIs(absl::StatusCode::kCancelled, "was written to"))));
}

// A graph from before Create, which gives all ranks rank 0's parameters.
TEST(CheckpointedDdp, GraphFromBeforeCreateIsRefusedOrRight) {
  RunGroups(AllKinds()[0], kRanks, [&](ProcessGroup& group) -> absl::Status {
    Net net(nullptr, 0);
    if (group.rank() == 1) {
      for (const Variable& p : net.Parameters()) p.value().Fill(0.1);
    }
    const Variable x(Numbers({5, 6}, group.rank()));
    const Variable loss = net.Loss(x, true, true);
    WEFT_ASSIGN_OR_RETURN(auto ddp, Ddp::Create(net, group));
    const absl::Status status = CatchToStatus([&] { loss.Backward(); });
    EXPECT_THAT(
        status,
        AnyOf(StatusIs(absl::StatusCode::kFailedPrecondition, "was written to"),
              StatusIs(absl::StatusCode::kCancelled, "was written to")));
    return status;
  });
}

// Two losses that are forward before either goes backward.
TEST(CheckpointedDdp, TwoForwardThenTwoBackwardHasTheSameBits) {
  const auto run = [](bool on) {
    std::vector<Bits> found(kRanks);
    EXPECT_THAT(
        RunGroups(AllKinds()[0], kRanks,
                  [&](ProcessGroup& group) -> absl::Status {
                    Net net(nullptr, group.rank());
                    WEFT_ASSIGN_OR_RETURN(auto ddp, Ddp::Create(net, group));
                    const Variable a = net.Loss(
                        Variable(Numbers({5, 6}, group.rank())), on, true);
                    const Variable b = net.Loss(
                        Variable(Numbers({5, 6}, group.rank() + 7)), on, false);
                    a.Backward();
                    b.Backward();
                    Append(net, found[group.rank()]);
                    return ddp->CheckInSync();
                  }),
        Each(IsOk()));
    return found;
  };
  EXPECT_TRUE(run(true) == run(false));
}

TEST(CheckpointedDdp, HooksOfModulesRunAgainAndGradientsStayInStep) {
  std::vector<int> runs(kRanks, 0);
  EXPECT_THAT(
      RunGroups(AllKinds()[0], kRanks,
                [&](ProcessGroup& group) -> absl::Status {
                  Net net(nullptr, group.rank());
                  WEFT_ASSIGN_OR_RETURN(auto ddp, Ddp::Create(net, group));
                  net.block(1).AddForwardHook([&](nn::Module&,
                                                  absl::Span<const Variable>,
                                                  absl::Span<Variable> out) {
                    ++runs[group.rank()];
                    out[0] = Exp(out[0]);
                  });
                  net.Loss(Variable(Numbers({5, 6}, group.rank())), true, true)
                      .Backward();
                  EXPECT_EQ(runs[group.rank()], 2);
                  Bits bits;
                  for (const Variable& p : net.Parameters()) {
                    bits.push_back(BitsOf(p.grad()));
                  }
                  std::string all;
                  for (const std::string& one : bits) all += one;
                  WEFT_ASSIGN_OR_RETURN(auto others, group.AllGatherBytes(all));
                  EXPECT_TRUE(others[0] == others[1]);
                  return ddp->CheckInSync();
                }),
      Each(IsOk()));
}

// An empty batch on one rank, through SyncBatchNorm, checkpointed.
TEST(CheckpointedDdp, EmptyBatchOnOneRankHasTheSameBits) {
  const auto run = [](bool on) {
    std::vector<Bits> found(kRanks);
    EXPECT_THAT(
        RunGroups(AllKinds()[0], kRanks,
                  [&](ProcessGroup& group) -> absl::Status {
                    WEFT_ASSIGN_OR_RETURN(auto own, group.Split(0));
                    Net net(own.get(), group.rank());
                    WEFT_ASSIGN_OR_RETURN(auto ddp, Ddp::Create(net, group));
                    const int64_t n = group.rank() == 0 ? 5 : 0;
                    const Variable y = net.Forward(
                        Variable(Numbers({n, 6}, group.rank())), on, true);
                    Sum(y * y).Backward();
                    Append(net, found[group.rank()]);
                    return ddp->CheckInSync();
                  }),
        Each(IsOk()));
    return found;
  };
  EXPECT_TRUE(run(true) == run(false));
}

}  // namespace
}  // namespace weft::outside
