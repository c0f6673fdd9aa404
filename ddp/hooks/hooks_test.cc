// Communication hooks: the same bits on all ranks, and training that converges.

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/hooks/all_reduce.h"
#include "weft/ddp/hooks/bf16_compression.h"
#include "weft/ddp/hooks/f16_compression.h"
#include "weft/ddp/reducer.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ddp {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

using Body = std::function<absl::Status(int rank, collectives::ProcessGroup&)>;

std::vector<absl::Status> RunGroups(int size, const Body& body) {
  collectives::LocalWorld world(size);
  return RunRanks(size, [&](int rank) {
    const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
    return body(rank, *group);
  });
}

struct Kind {
  std::string name;
  std::function<std::shared_ptr<CommunicationHook>()> make;
  // The dtype's precision, relative to the size of a gradient.
  double precision;
};

class CommunicationHooks : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(
    Kinds, CommunicationHooks,
    ::testing::Values(
        Kind{"AllReduce", [] { return std::make_shared<AllReduceHook>(); },
             1e-6},
        Kind{"F16", [] { return std::make_shared<F16CompressionHook>(); },
             1.0 / 1024},
        Kind{"Bf16", [] { return std::make_shared<Bf16CompressionHook>(); },
             1.0 / 128}),
    [](const auto& info) { return info.param.name; });

ReducerOptions OptionsOf(const Kind& kind) {
  ReducerOptions options;
  options.hook = kind.make();
  options.first_bucket_bytes = options.bucket_bytes = 64;
  return options;
}

TEST_P(CommunicationHooks, ResultIsTheMeanWithinThePrecisionOfTheDtype) {
  const auto statuses = RunGroups(
      3, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, {{"a", {40}}, {"b", {7}}},
                                              OptionsOf(GetParam())));
        for (int step = 0; step < 3; ++step) {
          WEFT_RETURN_IF_ERROR(reducer->Begin());
          for (const int p : {1, 0}) {
            const Tensor gradient = reducer->gradient(p);
            for (int64_t i = 0; i < gradient.numel(); ++i) {
              gradient.data<float>()[i] =
                  std::sin(static_cast<float>(i + 100 * rank + step));
            }
            WEFT_RETURN_IF_ERROR(reducer->MarkReady(p));
          }
          WEFT_RETURN_IF_ERROR(reducer->Finish());
          for (const int p : {1, 0}) {
            const auto found = reducer->gradient(p).ToVector<float>();
            for (size_t i = 0; i < found.size(); ++i) {
              double mean = 0;
              for (int r = 0; r < 3; ++r) {
                mean += std::sin(static_cast<float>(i + 100.0 * r + step)) / 3;
              }
              EXPECT_NEAR(found[i], mean, 2 * GetParam().precision);
            }
            // The same bits on all ranks.
            WEFT_ASSIGN_OR_RETURN(const auto bits,
                                  group.AllGatherBytes(absl::string_view(
                                      reinterpret_cast<const char*>(
                                          reducer->gradient(p).data<float>()),
                                      found.size() * sizeof(float))));
            EXPECT_THAT(bits, Each(bits[0]));
          }
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Least squares by gradient descent: with exact gradients the weights come to
// the true ones; with rounded ones as near, since the error of a gradient
// shrinks with it.
TEST_P(CommunicationHooks, TrainingConvergesToTheTrueWeights) {
  constexpr int kWeights = 12, kRanks = 2, kSamples = 48;
  const auto true_weight = [](int i) { return std::cos(3.0 * i); };
  const auto statuses = RunGroups(
      kRanks, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(
            auto reducer,
            Reducer::Create(group, {{"w", {kWeights}}}, OptionsOf(GetParam())));
        std::vector<double> w(kWeights);
        for (int step = 0; step < 400; ++step) {
          std::vector<double> gradient(kWeights);
          for (int n = rank; n < kSamples; n += kRanks) {
            double error = 0;
            const auto x = [n](int i) { return std::sin(1.7 * n * (i + 1)); };
            for (int i = 0; i < kWeights; ++i) {
              error += (w[i] - true_weight(i)) * x(i);
            }
            for (int i = 0; i < kWeights; ++i) {
              gradient[i] += 2 * error * x(i) * kRanks / kSamples;
            }
          }
          WEFT_RETURN_IF_ERROR(reducer->Begin());
          for (int i = 0; i < kWeights; ++i) {
            reducer->gradient(0).data<float>()[i] =
                static_cast<float>(gradient[i]);
          }
          WEFT_RETURN_IF_ERROR(reducer->MarkReady(0));
          WEFT_RETURN_IF_ERROR(reducer->Finish());
          for (int i = 0; i < kWeights; ++i) {
            w[i] -= 0.2 * reducer->gradient(0).data<float>()[i];
          }
        }
        for (int i = 0; i < kWeights; ++i) {
          EXPECT_NEAR(w[i], true_weight(i), 1e-3);
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(CommunicationHookAgreement, HooksThatDifferAreNamedOnEveryRank) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        ReducerOptions options;
        if (rank == 1) options.hook = std::make_shared<F16CompressionHook>();
        return Reducer::Create(group, {{"w", {2}}}, options).status();
      });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kInvalidArgument, "hook f16")));
}

// A user's own: what it sees, and that its error fails the step on all ranks.
class ScalingHook final : public CommunicationHook {
 public:
  explicit ScalingHook(bool fails) : fails_(fails) {}
  std::string name() const override { return "scaling"; }
  Future<void> Reduce(collectives::ProcessGroup& group,
                      const GradientBucket& bucket) override {
    EXPECT_EQ(bucket.parameters.size(), bucket.gradients.size());
    EXPECT_TRUE(bucket.is_last);
    return group.AllReduceAsync(bucket.buffer, bucket.reduction, bucket.call)
        .Then([this, buffer = bucket.buffer]() -> absl::Status {
          if (fails_) return absl::DataLossError("this hook always fails");
          Mul_(buffer, 10);
          return absl::OkStatus();
        });
  }

 private:
  const bool fails_;
};

absl::Status StepOf(Reducer& reducer, double value) {
  WEFT_RETURN_IF_ERROR(reducer.Begin());
  reducer.gradient(0).Fill(value);
  WEFT_RETURN_IF_ERROR(reducer.MarkReady(0));
  return reducer.Finish();
}

TEST(CommunicationHookOfAUser, ReplacesTheReduction) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        ReducerOptions options;
        options.hook = std::make_shared<ScalingHook>(false);
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, {{"w", {2}}}, options));
        WEFT_RETURN_IF_ERROR(StepOf(*reducer, 2 * rank));
        EXPECT_THAT(reducer->gradient(0).ToVector<float>(), Each(10));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(CommunicationHookOfAUser, ErrorOnOneRankFailsAllWithTheReason) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        ReducerOptions options;
        options.hook = std::make_shared<ScalingHook>(/*fails=*/rank == 0);
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, {{"w", {2}}}, options));
        // Rank 1 may have ended the step before; then the next one fails.
        WEFT_RETURN_IF_ERROR(StepOf(*reducer, 1));
        return StepOf(*reducer, 1);
      });
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kDataLoss, "this hook always fails"));
  EXPECT_THAT(statuses[1],
              StatusIs(absl::StatusCode::kCancelled, "this hook always fails"));
}

}  // namespace
}  // namespace weft::ddp
