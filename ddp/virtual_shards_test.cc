// Ranks as threads of one process. What one rank with all shards gets is what
// any number of ranks must get, to the bit.

#include "weft/ddp/virtual_shards.h"

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/nn/layers.h"
#include "weft/nn/norm.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ddp {
namespace {

using ::testing::Each;
using ::testing::Not;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

constexpr int kShards = 8;
constexpr int64_t kBatch = 3;  // of a shard
constexpr int kSteps = 4;

// Parameters and buffers, their bytes.
using Bits = std::map<std::string, std::string>;

Bits BitsOf(const nn::Module& module) {
  Bits bits;
  for (const auto& [name, tensor] : module.StateDict()) {
    const Tensor flat = tensor.Contiguous();
    bits[name] = std::string(static_cast<const char*>(flat.raw()),
                             static_cast<size_t>(flat.bytes()));
  }
  return bits;
}

// Batch norm, dropout, and a table of which each batch uses some rows.
class Net : public nn::Module {
 public:
  Net(TableGradient table_gradient, Generator& random)
      : table_(50, 4, random, {table_gradient}),
        conv_(1, 4, 3, random),
        norm_(4),
        dropout_(0.3, random),
        hidden_(4 * 4 * 4 + 4, 9, random),
        unused_(2, 2, random),
        output_(9, 3, random) {
    AddModule("table", table_);
    AddModule("conv", conv_);
    AddModule("norm", norm_);
    AddModule("dropout", dropout_);
    AddModule("hidden", hidden_);
    AddModule("unused", unused_);
    AddModule("output", output_);
  }
  Variable Forward(const Tensor& images, const Tensor& words) {
    const int64_t n = images.size(0);
    const Variable image = Reshape(
        Relu(norm_.Forward(conv_.Forward(Variable(images)))), {n, 4 * 4 * 4});
    const Variable word = table_.Forward(words);
    return output_.Forward(
        dropout_.Forward(Tanh(hidden_.Forward(Concat({image, word}, 1)))));
  }

 private:
  nn::Embedding table_;
  nn::Conv2d conv_;
  nn::BatchNorm norm_;
  nn::Dropout dropout_;
  nn::Linear hidden_;
  nn::Linear unused_;
  nn::Linear output_;
};

struct Batch {
  Tensor images, words, labels;
};

Batch BatchOf(int step, int shard) {
  Generator random = Generator(7).Fork(step).Fork(shard);
  Batch batch;
  batch.images = Normal({kBatch, 1, 6, 6}, 0, 1, random);
  batch.words = Tensor::Empty({kBatch}, DType::kI64);
  batch.labels = Tensor::Empty({kBatch}, DType::kI64);
  for (int64_t i = 0; i < kBatch; ++i) {
    batch.words.data<int64_t>()[i] = static_cast<int64_t>(random.NextBelow(50));
    batch.labels.data<int64_t>()[i] = static_cast<int64_t>(random.NextBelow(3));
  }
  return batch;
}

// A step of gradient descent, which takes the gradients.
void Descend(const nn::Module& module) {
  constexpr double kRate = 0.1;
  for (const nn::NamedParameter& parameter : module.NamedParameters()) {
    const Gradient gradient = parameter.variable.gradient();
    if (gradient.is_sparse()) {
      AddRows_(parameter.variable.value(), -kRate, gradient.sparse());
    } else if (gradient.defined()) {
      Axpy_(parameter.variable.value(), -kRate, gradient.dense());
    }
    parameter.variable.ClearGradient();
  }
}

// One training over `ranks` ranks.
class Training {
 public:
  explicit Training(TableGradient table) : table_(table) {}

  // Which shards use the loss of which parts of the net; null: all.
  std::function<Variable(Net& net, int shard, const Batch& batch)> loss;

  std::vector<absl::Status> Run(int ranks, Bits* bits) {
    collectives::LocalWorld world(ranks);
    return RunRanks(ranks, [&](int rank) -> absl::Status {
      const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
      // Ranks begin with other values, until they have those of rank 0.
      Generator random(rank == 0 ? 1 : 100 + rank);
      Net net(table_, random);
      WEFT_ASSIGN_OR_RETURN(const auto shards,
                            VirtualShards::Create(net, *group, {kShards}));
      for (int step = 0; step < kSteps; ++step) {
        for (int s = shards->own().begin; s < shards->own().end; ++s) {
          WEFT_RETURN_IF_ERROR(shards->Begin(s));
          random = Generator(5).Fork(step).Fork(s);
          const Batch batch = BatchOf(step, s);
          const Variable out =
              loss != nullptr
                  ? loss(net, s, batch)
                  : CrossEntropy(net.Forward(batch.images, batch.words),
                                 batch.labels);
          if (out.defined()) out.Backward();
          WEFT_RETURN_IF_ERROR(shards->End());
        }
        WEFT_RETURN_IF_ERROR(shards->Finish());
        Descend(net);
      }
      WEFT_RETURN_IF_ERROR(shards->CheckInSync());
      const Bits found = BitsOf(net);
      // Buffers too, which CheckInSync does not compare.
      WEFT_ASSIGN_OR_RETURN(
          const auto others,
          group->AllGatherBytes(found.at("norm.running_mean") +
                                found.at("norm.num_batches_tracked")));
      EXPECT_THAT(others, Each(others[0]));
      if (rank == 0) *bits = found;
      return absl::OkStatus();
    });
  }

 private:
  const TableGradient table_;
};

void ExpectSameBits(const Bits& found, const Bits& wanted, int ranks) {
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, bytes] : wanted) {
    EXPECT_EQ(found.at(name) == bytes, true) << name << " with " << ranks;
  }
}

TEST(VirtualShards, AnyNumberOfRanksGetsTheSameBits) {
  for (const auto table : {TableGradient::kDense, TableGradient::kSparse}) {
    Training training(table);
    Bits one;
    ASSERT_THAT(training.Run(1, &one), Each(IsOk()));
    for (int ranks = 2; ranks <= kShards; ++ranks) {
      Bits bits;
      ASSERT_THAT(training.Run(ranks, &bits), Each(IsOk())) << ranks;
      ExpectSameBits(bits, one, ranks);
    }
  }
}

// The gradient of the mean over all shards' batches.
TEST(VirtualShards, GradientsAreMeansOverShards) {
  Generator random(1);
  nn::Linear net(2, 1, random);
  collectives::LocalWorld world(1);
  const auto group = collectives::ProcessGroup::Create(world.Connect(0));
  const auto shards = VirtualShards::Create(net, *group, {4});
  WEFT_ASSERT_OK(shards);
  for (int s = 0; s < 4; ++s) {
    WEFT_ASSERT_OK((*shards)->Begin(s));
    const Tensor x = Tensor::Full({1, 2}, s);
    Sum(net.Forward(Variable(x))).Backward();
    WEFT_ASSERT_OK((*shards)->End());
    EXPECT_FALSE(net.weight().has_grad());
  }
  WEFT_ASSERT_OK((*shards)->Finish());
  EXPECT_THAT(net.weight().grad().span<float>(), Each(1.5f));
}

TEST(VirtualShards, ShardsWithoutAGradientCountAsZeros) {
  Training training(TableGradient::kSparse);
  training.loss = [](Net& net, int shard, const Batch& batch) {
    if (shard % 3 == 0) return Variable();  // no pass at all
    return CrossEntropy(net.Forward(batch.images, batch.words), batch.labels);
  };
  Bits one;
  ASSERT_THAT(training.Run(1, &one), Each(IsOk()));
  for (const int ranks : {2, 3, 5, 8}) {
    Bits bits;
    ASSERT_THAT(training.Run(ranks, &bits), Each(IsOk())) << ranks;
    ExpectSameBits(bits, one, ranks);
  }
}

struct OneParameter : nn::Module {
  OneParameter() { AddParameter("w", w); }
  Variable w{Tensor::Ones({3}), /*requires_grad=*/true};
};

// The sum of -0 and of shards without a gradient is 0, whether one rank adds
// them up or several do.
TEST(VirtualShards, SignOfZeroDoesNotDependOnTheRanks) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    collectives::LocalWorld world(ranks);
    const auto statuses = RunRanks(ranks, [&](int rank) -> absl::Status {
      const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
      OneParameter net;
      WEFT_ASSIGN_OR_RETURN(const auto shards,
                            VirtualShards::Create(net, *group, {4}));
      for (int s = shards->own().begin; s < shards->own().end; ++s) {
        WEFT_RETURN_IF_ERROR(shards->Begin(s));
        if (s == 2) {
          Sum(Mul(net.w, -0.0)).Backward();
          EXPECT_TRUE(std::signbit(net.w.grad().span<float>()[0]));
        }
        WEFT_RETURN_IF_ERROR(shards->End());
      }
      WEFT_RETURN_IF_ERROR(shards->Finish());
      const Tensor gradient = net.w.grad();
      for (const float element : gradient.span<float>()) {
        EXPECT_EQ(element, 0);
        EXPECT_FALSE(std::signbit(element)) << ranks;
      }
      return absl::OkStatus();
    });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

TEST(VirtualShards, RowsBesideWholeGradientsAreNamedOnEveryRank) {
  for (const int ranks : {1, 2, 3}) {
    Training training(TableGradient::kSparse);
    training.loss = [](Net& net, int shard, const Batch& batch) {
      const Variable out =
          CrossEntropy(net.Forward(batch.images, batch.words), batch.labels);
      if (shard != 5) return out;
      const auto parameters = net.NamedParameters();
      for (const auto& parameter : parameters) {
        if (parameter.name == "table.weight") {
          return Add(out, Sum(parameter.variable));
        }
      }
      return out;
    };
    Bits bits;
    EXPECT_THAT(training.Run(ranks, &bits),
                Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                              "7 shards gave rows of parameter table.weight")));
  }
}

// Rank 1's error comes to rank 0, which waits in Finish.
TEST(VirtualShards, RankThatFailsEndsTheOthers) {
  collectives::LocalWorld world(2);
  const auto statuses = RunRanks(2, [&](int rank) -> absl::Status {
    const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
    Generator random(1);
    nn::Linear net(2, 1, random);
    WEFT_ASSIGN_OR_RETURN(const auto shards,
                          VirtualShards::Create(net, *group, {2}));
    WEFT_RETURN_IF_ERROR(shards->Begin(rank));
    Sum(net.Forward(Variable(Tensor::Ones({1, 2})))).Backward();
    WEFT_RETURN_IF_ERROR(shards->End());
    if (rank == 1) return absl::DataLossError("this rank's data is bad");
    const absl::Status status = shards->Finish();
    EXPECT_FALSE(net.weight().has_grad());
    return status;
  });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnavailable, "rank 1"));
}

TEST(VirtualShards, DifferencesAreToldToAllRanks) {
  const auto create = [](std::function<int(int rank)> shards,
                         std::function<int(int rank)> width, int ranks) {
    collectives::LocalWorld world(ranks);
    return RunRanks(ranks, [&](int rank) -> absl::Status {
      const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
      Generator random(1);
      nn::Linear net(2, width(rank), random);
      return VirtualShards::Create(net, *group, {shards(rank)}).status();
    });
  };
  const auto always = [](int n) { return [n](int) { return n; }; };
  EXPECT_THAT(
      create([](int rank) { return 4 << rank; }, always(1), 2),
      Each(StatusIs(absl::StatusCode::kInvalidArgument, "8 virtual shards")));
  EXPECT_THAT(create(
                  always(4), [](int rank) { return 1 + rank; }, 2),
              Each(StatusIs(absl::StatusCode::kInvalidArgument, "weight")));
  EXPECT_THAT(create(always(2), always(1), 3),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            "for each of 3 ranks, found 2")));
  EXPECT_THAT(
      create(always(6), always(1), 2),
      Each(StatusIs(absl::StatusCode::kInvalidArgument, "power of two")));
}

TEST(VirtualShards, CallsOutOfOrderAreRefusedAndHarmNothing) {
  Generator random(1);
  nn::Linear net(2, 1, random);
  collectives::LocalWorld world(1);
  const auto group = collectives::ProcessGroup::Create(world.Connect(0));
  const auto shards = VirtualShards::Create(net, *group, {2});
  WEFT_ASSERT_OK(shards);
  constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT((*shards)->End(), StatusIs(kFailedPrecondition, "Begin"));
  EXPECT_THAT((*shards)->Finish(),
              StatusIs(kFailedPrecondition, "shard 0 has not run"));
  EXPECT_THAT((*shards)->Begin(1),
              StatusIs(kFailedPrecondition, "wanted shard 0"));
  EXPECT_THAT((*shards)->Begin(-1), Not(IsOk()));
  const auto pass = [&] {
    Sum(net.Forward(Variable(Tensor::Ones({1, 2})))).Backward();
  };
  pass();
  EXPECT_THAT((*shards)->Begin(0), StatusIs(kFailedPrecondition, "weight"));
  for (const auto& parameter : net.NamedParameters()) {
    parameter.variable.ClearGradient();
  }
  for (int s = 0; s < 2; ++s) {
    WEFT_ASSERT_OK((*shards)->Begin(s));
    EXPECT_THAT((*shards)->Begin(s),
                StatusIs(kFailedPrecondition, "has not ended"));
    pass();
    WEFT_ASSERT_OK((*shards)->End());
  }
  EXPECT_THAT((*shards)->Begin(2), StatusIs(kFailedPrecondition, "Finish"));
  WEFT_ASSERT_OK((*shards)->Finish());
  EXPECT_THAT(net.weight().grad().span<float>(), Each(1.f));
}

}  // namespace
}  // namespace weft::ddp
