// What distributed_data_parallel.h says of gradients that are kept, of ranks
// without data, and of rows, at the edges.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/operation.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/reducer.h"
#include "weft/nn/layers.h"
#include "weft/nn/module.h"
#include "weft/tensor/random.h"
#include "weft/tests/outside/groups/worlds.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::collectives::ProcessGroup;
using ::weft::ddp::DistributedDataParallel;
using ::weft::ddp::Divisor;
using ::weft::ddp::ReducerOptions;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

using Ddp = DistributedDataParallel;

// Two parameters whose gradients a pass chooses, and a table of 8 rows.
class Net : public nn::Module {
 public:
  Net() : random_(3), table_(8, 2, random_, {TableGradient::kSparse}) {
    a = AddParameter("a", Tensor::Zeros({2}));
    b = AddParameter("b", Tensor::Zeros({3}));
    AddModule("table", table_);
  }
  // Adds `g` to the gradient of each element of `parameter`.
  static void PassOf(const Variable& parameter, double g) {
    Sum(parameter * Variable(Tensor::Full(parameter.shape(), g))).Backward();
  }
  // Adds 1 to both elements of each row.
  void PassOfRows(const std::vector<int64_t>& rows) {
    Sum(table_.Forward(Tensor::FromVector<int64_t>(rows))).Backward();
  }
  const Variable& table() const { return table_.weight(); }

  Variable a, b;

 private:
  Generator random_;
  nn::Embedding table_;
};

std::vector<float> GradientOf(const Variable& parameter) {
  const Gradient gradient = parameter.gradient();
  return gradient.defined() ? gradient.ToDense().ToVector<float>()
                            : std::vector<float>();
}
std::vector<float> All(size_t n, double value) {
  return std::vector<float>(n, static_cast<float>(value));
}

// Means are right to a rounding or two.
auto About(size_t n, double value) {
  return ::testing::Pointwise(::testing::FloatNear(1e-5f), All(n, value));
}

ReducerOptions ByWeight() {
  ReducerOptions options;
  options.divisor = Divisor::kTotalWeight;
  return options;
}

using Body = std::function<absl::Status(Net&, Ddp&, ProcessGroup&)>;

std::vector<absl::Status> Train(int size, const ReducerOptions& options,
                                const Body& body,
                                const Kind& kind = AllKinds()[0]) {
  return RunGroups(kind, size, [&](ProcessGroup& group) -> absl::Status {
    Net net;
    WEFT_ASSIGN_OR_RETURN(auto ddp, Ddp::Create(net, group, options));
    WEFT_RETURN_IF_ERROR(body(net, *ddp, group));
    return ddp->CheckInSync();
  });
}

// --- Gradients that are kept. ------------------------------------------------

class Kept : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(All, Kept, ::testing::ValuesIn(AllKinds()),
                         [](const auto& info) { return info.param.name; });

// "Then this rank has the weight that the last such pass had." Rank 0 keeps a
// gradient that no other has, with weights 2 and then 3.
TEST_P(Kept, CountWithTheWeightOfTheLastPassUnderTheScope) {
  EXPECT_THAT(Train(
                  3, ByWeight(),
                  [](Net& net, Ddp& ddp, ProcessGroup& group) -> absl::Status {
                    if (group.rank() == 0) {
                      const Ddp::NoSyncScope scope(ddp);
                      WEFT_RETURN_IF_ERROR(ddp.SetWeight(2));
                      Net::PassOf(net.a, 1);
                      WEFT_RETURN_IF_ERROR(ddp.SetWeight(3));
                      Net::PassOf(net.a, 5);
                    }
                    if (group.rank() == 0) {
                      WEFT_RETURN_IF_ERROR(ddp.ContributeNothing());
                    } else {
                      WEFT_RETURN_IF_ERROR(ddp.SetWeight(1));
                      Net::PassOf(net.b, 10);
                    }
                    EXPECT_EQ(ddp.total_weight(), 5);
                    EXPECT_THAT(GradientOf(net.a), About(2, 3.0 * 6 / 5));
                    EXPECT_THAT(GradientOf(net.b), About(3, 2.0 * 10 / 5));
                    EXPECT_EQ(GradientOf(net.table()), All(0, 0));
                    // Nothing is kept any more.
                    net.ClearGradients();
                    if (group.rank() == 0) {
                      WEFT_RETURN_IF_ERROR(ddp.ContributeNothing());
                    } else {
                      Net::PassOf(net.b, 4);
                    }
                    EXPECT_EQ(ddp.total_weight(), 2);
                    EXPECT_THAT(GradientOf(net.a), About(0, 0));
                    EXPECT_THAT(GradientOf(net.b), About(3, 4));
                    return absl::OkStatus();
                  },
                  GetParam()),
              Each(IsOk()));
}

// The reducing pass is one with a weight of 0.
TEST_P(Kept, CountInAPassOfWeight0) {
  EXPECT_THAT(
      Train(
          2, ByWeight(),
          [](Net& net, Ddp& ddp, ProcessGroup& group) -> absl::Status {
            if (group.rank() == 1) {
              WEFT_RETURN_IF_ERROR(ddp.SetWeight(4));
              {
                const Ddp::NoSyncScope scope(ddp);
                Net::PassOf(net.b, 2);
                net.PassOfRows({1, 1, 5});
              }
              WEFT_RETURN_IF_ERROR(ddp.SetWeight(0));
              Net::PassOf(net.a, 100);  // adds nothing
            } else {
              Net::PassOf(net.a, 6);
            }
            EXPECT_EQ(ddp.total_weight(), 5);
            EXPECT_THAT(GradientOf(net.b), About(3, 4.0 * 2 / 5));
            EXPECT_THAT(GradientOf(net.a), About(2, 6.0 / 5));
            const Gradient rows = net.table().gradient();
            EXPECT_TRUE(rows.is_sparse());
            const std::vector<float> dense = GradientOf(net.table());
            for (int r = 0; r < 8; ++r) {
              const double wanted = r == 1 ? 8.0 / 5 : r == 5 ? 4.0 / 5 : 0;
              EXPECT_NEAR(dense[2 * r], wanted, 1e-5) << r;
            }
            return absl::OkStatus();
          },
          GetParam()),
      Each(IsOk()));
}

// No rank has data, and one has kept gradients.
TEST_P(Kept, OfOneRankAreReducedByAJoinOfAll) {
  for (const Divisor divisor : {Divisor::kTotalWeight, Divisor::kWorldSize}) {
    ReducerOptions options;
    options.divisor = divisor;
    const bool by_weight = divisor == Divisor::kTotalWeight;
    EXPECT_THAT(
        Train(
            3, options,
            [&](Net& net, Ddp& ddp, ProcessGroup& group) -> absl::Status {
              if (by_weight) WEFT_RETURN_IF_ERROR(ddp.SetWeight(7));
              if (group.rank() == 2) {
                const Ddp::NoSyncScope scope(ddp);
                Net::PassOf(net.a, 3);
              }
              int passes = 0;
              WEFT_RETURN_IF_ERROR(ddp.Join([&] {
                ++passes;
                EXPECT_THAT(GradientOf(net.a), About(2, by_weight ? 3 : 1));
                EXPECT_THAT(GradientOf(net.b), About(0, 0));
                net.ClearGradients();
                return absl::OkStatus();
              }));
              EXPECT_EQ(passes, 1);
              EXPECT_EQ(ddp.total_weight(), 0);
              return absl::OkStatus();
            },
            GetParam()),
        Each(IsOk()));
  }
}

TEST_P(Kept, ScopesMayBeNested) {
  EXPECT_THAT(Train(
                  2, {},
                  [](Net& net, Ddp& ddp, ProcessGroup&) -> absl::Status {
                    {
                      const Ddp::NoSyncScope outer(ddp);
                      { const Ddp::NoSyncScope inner(ddp); }
                      Net::PassOf(net.a, 1);  // still under a scope
                      EXPECT_THAT(GradientOf(net.a), About(2, 1));
                    }
                    Net::PassOf(net.a, 1);
                    EXPECT_THAT(GradientOf(net.a), About(2, 2));
                    return absl::OkStatus();
                  },
                  GetParam()),
              Each(IsOk()));
}

// Cleared before the pass that would reduce it: then the ranks agree all the
// same.
TEST(Ddp, KeptGradientThatIsClearedLeavesTheRanksInStep) {
  EXPECT_THAT(
      Train(2, ByWeight(),
            [](Net& net, Ddp& ddp, ProcessGroup& group) -> absl::Status {
              if (group.rank() == 0) {
                const Ddp::NoSyncScope scope(ddp);
                Net::PassOf(net.a, 9);
                net.PassOfRows({3});
              }
              net.ClearGradients();
              if (group.rank() == 0) {
                WEFT_RETURN_IF_ERROR(ddp.ContributeNothing());
              } else {
                Net::PassOf(net.b, 4);
                EXPECT_TRUE(net.b.has_grad());
              }
              for (const Variable& p : {net.a, net.table()}) {
                for (const float g : GradientOf(p)) EXPECT_EQ(g, 0);
              }
              WEFT_ASSIGN_OR_RETURN(
                  auto bytes,
                  group.AllGatherBytes(absl::StrCat(GradientOf(net.b).at(0))));
              EXPECT_EQ(bytes[0], bytes[1]);
              return absl::OkStatus();
            }),
      Each(IsOk()));
}

// --- Ranks without data. -----------------------------------------------------

TEST_P(Kept, JoinWithoutAnyDataEndsAtOnceOnAllRanks) {
  EXPECT_THAT(Train(
                  3, ByWeight(),
                  [](Net&, Ddp& ddp, ProcessGroup&) -> absl::Status {
                    for (int i = 0; i < 3; ++i) {
                      WEFT_RETURN_IF_ERROR(ddp.Join([]() -> absl::Status {
                        return absl::InternalError("called");
                      }));
                    }
                    EXPECT_EQ(ddp.total_weight(), 0);
                    return absl::OkStatus();
                  },
                  GetParam()),
              Each(IsOk()));
}

TEST(Ddp, ErrorOfAfterPassIsWhatJoinReturns) {
  Train(2, {}, [](Net& net, Ddp& ddp, ProcessGroup& group) -> absl::Status {
    if (group.rank() == 1) {
      Net::PassOf(net.a, 1);
      return absl::OkStatus();
    }
    EXPECT_THAT(ddp.Join([] { return absl::DataLossError("disk"); }),
                StatusIs(absl::StatusCode::kDataLoss, "disk"));
    return absl::OkStatus();
  });
}

TEST(Ddp, WeightThatIsNoneIsRefusedAndTheOldOneStays) {
  EXPECT_THAT(
      Train(2, ByWeight(),
            [](Net& net, Ddp& ddp, ProcessGroup& group) -> absl::Status {
              WEFT_RETURN_IF_ERROR(ddp.SetWeight(group.rank() + 1));
              for (const double weight :
                   {-1.0, std::numeric_limits<double>::quiet_NaN(),
                    std::numeric_limits<double>::infinity()}) {
                EXPECT_EQ(ddp.SetWeight(weight).code(),
                          absl::StatusCode::kInvalidArgument);
              }
              Net::PassOf(net.a, group.rank() == 0 ? 3 : 6);
              EXPECT_EQ(ddp.total_weight(), 3);
              EXPECT_THAT(GradientOf(net.a), About(2, 5));
              return absl::OkStatus();
            }),
      Each(IsOk()));
  EXPECT_THAT(Train(2, {},
                    [](Net& net, Ddp& ddp, ProcessGroup& group) {
                      EXPECT_EQ(ddp.SetWeight(2).code(),
                                absl::StatusCode::kInvalidArgument);
                      Net::PassOf(net.a, 4.0 * group.rank());
                      EXPECT_EQ(ddp.total_weight(), 2);
                      EXPECT_THAT(GradientOf(net.a), About(2, 2));
                      return absl::OkStatus();
                    }),
              Each(IsOk()));
}

// --- Rows. -------------------------------------------------------------------

// The program ends and goes on over and over: each first pass has the rows that
// were used, whichever rank used them.
TEST_P(Kept, FirstPassOfEachNewOneHasOnlyUsedRows) {
  EXPECT_THAT(
      RunGroups(GetParam(), 3,
                [&](ProcessGroup& group) -> absl::Status {
                  Net net;
                  for (int life = 0; life < 4; ++life) {
                    WEFT_ASSIGN_OR_RETURN(auto ddp, Ddp::Create(net, group));
                    // Rank `life` % 3 alone uses the table.
                    if (group.rank() == life % 3) {
                      net.PassOfRows({life, life + 3});
                    } else {
                      Net::PassOf(net.a, 1);
                    }
                    const Gradient gradient = net.table().gradient();
                    EXPECT_TRUE(gradient.is_sparse()) << life;
                    if (gradient.is_sparse()) {
                      EXPECT_THAT(gradient.sparse().indices.ToVector<int64_t>(),
                                  ElementsAre(life, life + 3));
                    }
                    EXPECT_THAT(ddp->GetLog().sparse,
                                ElementsAre("table.weight"));
                    WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
                    net.ClearGradients();
                  }
                  return absl::OkStatus();
                }),
      Each(IsOk()));
}

// A gradient that was there before Create is one that a pass adds to.
TEST_P(Kept, RowsFromBeforeStayRowsAndGrow) {
  EXPECT_THAT(
      RunGroups(GetParam(), 2,
                [&](ProcessGroup& group) -> absl::Status {
                  Net net;
                  {
                    WEFT_ASSIGN_OR_RETURN(auto first, Ddp::Create(net, group));
                    net.PassOfRows({0});
                  }
                  WEFT_ASSIGN_OR_RETURN(auto ddp, Ddp::Create(net, group));
                  net.PassOfRows({6});
                  const Gradient gradient = net.table().gradient();
                  EXPECT_TRUE(gradient.is_sparse());
                  std::vector<float> wanted = All(16, 0);
                  wanted[0] = wanted[1] = wanted[12] = wanted[13] = 1;
                  EXPECT_EQ(GradientOf(net.table()), wanted);
                  return ddp->CheckInSync();
                }),
      Each(IsOk()));
}

TEST_P(Kept, RowsOfTwoPassesAddUp) {
  EXPECT_THAT(Train(
                  2, {},
                  [](Net& net, Ddp&, ProcessGroup& group) -> absl::Status {
                    for (int pass = 0; pass < 3; ++pass) {
                      net.PassOfRows({group.rank(), 2});
                    }
                    std::vector<float> wanted = All(16, 0);
                    for (const int i : {0, 1, 2, 3}) wanted[i] = 1.5;
                    for (const int i : {4, 5}) wanted[i] = 3;
                    EXPECT_TRUE(net.table().gradient().is_sparse());
                    EXPECT_EQ(GradientOf(net.table()), wanted);
                    return absl::OkStatus();
                  },
                  GetParam()),
              Each(IsOk()));
}

TEST(Ddp, PassWithoutAnyRowIsNoError) {
  EXPECT_THAT(Train(2, {},
                    [](Net& net, Ddp&, ProcessGroup& group) -> absl::Status {
                      net.PassOfRows({});
                      net.PassOfRows(group.rank() == 0
                                         ? std::vector<int64_t>{}
                                         : std::vector<int64_t>{7});
                      std::vector<float> wanted = All(16, 0);
                      wanted[14] = wanted[15] = 0.5;
                      EXPECT_EQ(GradientOf(net.table()), wanted);
                      return absl::OkStatus();
                    }),
              Each(IsOk()));
}

// --- Groups that are broken. -------------------------------------------------

TEST_P(Kept, BrokenGroupGivesItsReasonToEveryCall) {
  EXPECT_THAT(
      RunGroups(GetParam(), 2,
                [&](ProcessGroup& group) -> absl::Status {
                  Net net;
                  WEFT_ASSIGN_OR_RETURN(auto ddp, Ddp::Create(net, group));
                  Net::PassOf(net.a, 1);
                  // The other may have revoked it already.
                  group.Barrier().IgnoreError();
                  group.Revoke(absl::CancelledError("by the test"));
                  const std::vector<absl::Status> found = {
                      CatchToStatus([&] {
                        Net::PassOf(net.a, 1);
                        return absl::OkStatus();
                      }),
                      ddp->ContributeNothing(),
                      ddp->Join([] { return absl::OkStatus(); }),
                      ddp->BroadcastBuffers(),
                      ddp->CheckInSync(),
                      Ddp::Create(net, group).status()};
                  for (size_t i = 0; i < found.size(); ++i) {
                    // A net without buffers has none to give.
                    if (i == 3 && found[i].ok()) continue;
                    EXPECT_FALSE(found[i].ok()) << i;
                    EXPECT_THAT(std::string(found[i].message()),
                                ::testing::HasSubstr("by the test"))
                        << i;
                  }
                  ddp.reset();
                  WEFT_RETURN_IF_ERROR(group.Shrink({0, 1}));
                  net.ClearGradients();
                  WEFT_ASSIGN_OR_RETURN(auto again, Ddp::Create(net, group));
                  Net::PassOf(net.b, group.rank());
                  EXPECT_THAT(GradientOf(net.b), About(3, 0.5));
                  return again->CheckInSync();
                }),
      Each(IsOk()));
}

// One rank's options differ: all are told, and the group goes on.
TEST_P(Kept, OptionsThatDifferAreToldToAllAndTheGroupGoesOn) {
  EXPECT_THAT(
      RunGroups(GetParam(), 3,
                [&](ProcessGroup& group) -> absl::Status {
                  Net net;
                  ddp::DistributedDataParallelOptions options;
                  if (group.rank() == 1) options.ignored = {"a"};
                  EXPECT_THAT(Ddp::Create(net, group, options).status(),
                              StatusIs(absl::StatusCode::kInvalidArgument));
                  options.ignored = {"no such name"};
                  EXPECT_THAT(Ddp::Create(net, group, options).status(),
                              StatusIs(absl::StatusCode::kInvalidArgument,
                                       "no such name"));
                  return Ddp::Create(net, group).status();
                }),
      Each(IsOk()));
}

// --- A rank that says what cannot be. ----------------------------------------

// Changes what this rank sends by Run.
class LyingBackend final : public collectives::Backend {
 public:
  using Lie = std::function<void(const collectives::Operation&)>;
  LyingBackend(std::unique_ptr<collectives::Backend> backend, Lie lie)
      : backend_(std::move(backend)), lie_(std::move(lie)) {}

  absl::string_view name() const override { return backend_->name(); }
  int rank() const override { return backend_->rank(); }
  int size() const override { return backend_->size(); }
  Driver& driver() override { return backend_->driver(); }
  absl::Status Run(const collectives::Operation& operation) override {
    lie_(operation);
    return backend_->Run(operation);
  }
  void Refuse(const collectives::Operation& operation,
              const absl::Status& why) override {
    backend_->Refuse(operation, why);
  }
  void Abort(const absl::Status& why) override { backend_->Abort(why); }
  absl::Status health() const override { return backend_->health(); }
  absl::StatusOr<bool> Advance(collectives::Transfer& transfer) override {
    return backend_->Advance(transfer);
  }
  uint64_t transfer_events() const override {
    return backend_->transfer_events();
  }
  void AwaitTransfers(uint64_t seen, Instant until) override {
    backend_->AwaitTransfers(seen, until);
  }
  absl::StatusOr<Tensor> Allocate(const Shape& shape, DType dtype) override {
    return backend_->Allocate(shape, dtype);
  }
  absl::StatusOr<std::unique_ptr<collectives::Backend>> Subgroup(
      const collectives::SubgroupSpec& spec) override {
    return backend_->Subgroup(spec);
  }

 private:
  const std::unique_ptr<collectives::Backend> backend_;
  const Lie lie_;
};

// Rank 0 lies to rank 1, which takes part in two steps of a reducer with a
// dense parameter and a table. How they end on rank 1.
absl::Status StepWithALiar(const LyingBackend::Lie& lie) {
  collectives::LocalWorld world(2);
  const auto statuses =
      weft::testing::RunRanks(2, [&](int rank) -> absl::Status {
        std::unique_ptr<collectives::Backend> backend = world.Connect(rank);
        if (rank == 0) {
          backend = std::make_unique<LyingBackend>(std::move(backend), lie);
        }
        collectives::GroupOptions options;
        options.timeout = absl::Seconds(20);
        const auto group = ProcessGroup::Create(std::move(backend), options);
        WEFT_ASSIGN_OR_RETURN(
            auto reducer,
            ddp::Reducer::Create(*group, {{"w", {4}}, {"table", {8, 2}}}));
        for (int step = 0; step < 2; ++step) {
          WEFT_RETURN_IF_ERROR(reducer->Begin());
          reducer->gradient(0).Fill(1);
          WEFT_RETURN_IF_ERROR(reducer->MarkReady(0));
          SparseRows rows;
          rows.indices = Tensor::FromVector<int64_t>({rank, 5});
          rows.values = Tensor::Ones({2, 2});
          rows.rows = 8;
          WEFT_RETURN_IF_ERROR(reducer->MarkRows(1, rows));
          WEFT_RETURN_IF_ERROR(reducer->Finish());
        }
        return absl::OkStatus();
      });
  return statuses[1];
}

void Overwrite(const collectives::Block& block, int64_t value) {
  std::vector<int64_t> values(block.elements, value);
  memcpy(block.memory, values.data(), values.size() * sizeof(int64_t));
}

TEST(Liar, StepsEndWellWithoutALie) {
  WEFT_EXPECT_OK(StepWithALiar([](const collectives::Operation&) {}));
}

TEST(Liar, OrderOfBucketsThatIsNoneIsAnError) {
  for (const int64_t value :
       {int64_t{-1}, int64_t{0}, int64_t{2}, int64_t{1} << 32,
        std::numeric_limits<int64_t>::max()}) {
    const absl::Status found =
        StepWithALiar([&](const collectives::Operation& operation) {
          if (operation.verb == collectives::Verb::kBroadcast &&
              operation.dtype == DType::kI64) {
            Overwrite(operation.outputs[0], value);
          }
        });
    EXPECT_FALSE(found.ok()) << value;
    EXPECT_THAT(std::string(found.message()),
                ::testing::HasSubstr("order of buckets"));
  }
}

TEST(Liar, NumberOfRowsThatCannotBeIsAnError) {
  for (const int64_t value :
       {int64_t{-1}, std::numeric_limits<int64_t>::min(), int64_t{1} << 39,
        std::numeric_limits<int64_t>::max()}) {
    const absl::Status found =
        StepWithALiar([&](const collectives::Operation& operation) {
          if (operation.verb == collectives::Verb::kAllGather &&
              operation.dtype == DType::kI64 &&
              operation.inputs[0].elements == 1) {
            Overwrite(operation.inputs[0], value);
          }
        });
    EXPECT_FALSE(found.ok()) << value;
  }
}

TEST(Liar, RowOutsideOfTheTableIsAnError) {
  for (const int64_t value : {int64_t{-1}, int64_t{8}, int64_t{1} << 40}) {
    const absl::Status found =
        StepWithALiar([&](const collectives::Operation& operation) {
          if (operation.verb == collectives::Verb::kAllGather &&
              operation.dtype == DType::kI64 &&
              operation.inputs[0].elements == 2) {
            Overwrite(operation.inputs[0], value);
          }
        });
    EXPECT_FALSE(found.ok()) << value;
  }
}

// Weights, and who has a gradient of what, that are no numbers.
TEST(Liar, CensusOfNoNumbersEndsNoProcess) {
  for (const double value : {std::nan(""), -1.0, 1e300, -HUGE_VAL}) {
    StepWithALiar([&](const collectives::Operation& operation) {
      if (operation.verb == collectives::Verb::kAllReduce &&
          operation.dtype == DType::kF64) {
        const std::vector<double> values(operation.inputs[0].elements, value);
        memcpy(operation.inputs[0].memory, values.data(),
               values.size() * sizeof(double));
      }
    }).IgnoreError();
  }
}

}  // namespace
}  // namespace weft::outside
