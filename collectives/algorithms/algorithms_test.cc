// Each algorithm against what one loop over all ranks' elements gives: groups
// of 1 to 7 ranks, counts that divide into nothing, every dtype; and that it
// costs what its header says.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/collectives/algorithms/blocks.h"
#include "weft/collectives/algorithms/fake_link.h"
#include "weft/collectives/algorithms/run_over_link.h"
#include "weft/collectives/operation.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

constexpr int kMostRanks = 7;
constexpr int64_t kCounts[] = {0, 1, 5, 63, 1000};

Block BlockOf(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.raw()), tensor.numel()};
}

// Element i of rank r: small enough that no dtype rounds or wraps a result.
int64_t Element(int rank, int64_t i) { return (rank * 3 + i * 7) % 5 - 1; }
int64_t Factor(int rank, int64_t i) { return (rank + i) % 3 == 0 ? 2 : 1; }

Tensor ElementsOf(int rank, int64_t count, DType dtype, bool multiplies) {
  const Tensor result = Tensor::Empty({count}, DType::kI64);
  for (int64_t i = 0; i < count; ++i) {
    int64_t value = multiplies ? Factor(rank, i) : Element(rank, i);
    if (dtype == DType::kU8) value += 1;
    result.data<int64_t>()[i] = dtype == DType::kBool ? value == 1 : value;
  }
  return result.To(dtype);
}

// From the definition in reduction.h, without accumulate.h.
double Reduced(ReduceOp op, DType dtype, const std::vector<double>& values) {
  if (dtype == DType::kBool) {
    if (op == ReduceOp::kSum) op = ReduceOp::kMax;
    if (op == ReduceOp::kProduct) op = ReduceOp::kMin;
  }
  double result = values[0];
  for (size_t r = 1; r < values.size(); ++r) {
    const double value = values[r];
    const auto a = static_cast<int64_t>(result);
    const auto b = static_cast<int64_t>(value);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage:
        result += value;
        break;
      case ReduceOp::kProduct:
        result *= value;
        break;
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
      case ReduceOp::kAnd:
        result = static_cast<double>(a & b);
        break;
      case ReduceOp::kOr:
        result = static_cast<double>(a | b);
        break;
      case ReduceOp::kXor:
        result = static_cast<double>(a ^ b);
        break;
    }
  }
  if (op != ReduceOp::kAverage) return result;
  const auto n = static_cast<double>(values.size());
  return IsFloating(dtype) ? result / n
                           : static_cast<double>(static_cast<int64_t>(result) /
                                                 static_cast<int64_t>(n));
}

Tensor ReducedOf(ReduceOp op, DType dtype, const std::vector<Tensor>& inputs) {
  const int64_t count = inputs[0].numel();
  std::vector<std::vector<double>> values;
  for (const Tensor& input : inputs) {
    values.push_back(input.To(DType::kF64).ToVector<double>());
  }
  const Tensor result = Tensor::Empty({count}, DType::kF64);
  for (int64_t i = 0; i < count; ++i) {
    std::vector<double> of_ranks;
    for (const auto& one : values) of_ranks.push_back(one[i]);
    result.data<double>()[i] = Reduced(op, dtype, of_ranks);
  }
  // Rounded to f32 first, as accumulators of f16 and bf16 are.
  const bool is_narrow = dtype == DType::kF16 || dtype == DType::kBF16;
  return (is_narrow ? result.To(DType::kF32) : result).To(dtype);
}

absl::Status Same(const Tensor& found, const Tensor& wanted) {
  const auto a = found.To(DType::kF64).ToVector<double>();
  const auto b = wanted.To(DType::kF64).ToVector<double>();
  for (size_t i = 0; i < b.size(); ++i) {
    if (a[i] != b[i]) {
      return absl::DataLossError(
          absl::StrCat("element ", i, ": found ", a[i], ", wanted ", b[i]));
    }
  }
  return absl::OkStatus();
}

// Runs `body` on each rank, and then nothing is left under way.
void RunAll(int size, const std::function<absl::Status(Link&)>& body) {
  FakeLinks links(size);
  EXPECT_THAT(RunRanks(size, [&](int rank) { return body(*links.Get(rank)); }),
              Each(IsOk()));
  EXPECT_EQ(links.CountLeft(), 0);
}

struct Case {
  int size;
  int64_t count;
  DType dtype;
  ReduceOp op = ReduceOp::kSum;
  std::string text() const {
    return absl::StrCat(size, " ranks, ", count, " of ", Name(dtype), ", ",
                        Name(op));
  }
};

// Every dtype and count with kSum, and every operation with one dtype of each
// kind.
std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (int size = 1; size <= kMostRanks; ++size) {
    for (const int64_t count : kCounts) {
      for (const DType dtype : kAllDTypes) {
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin,
              ReduceOp::kMax, ReduceOp::kAverage, ReduceOp::kAnd, ReduceOp::kOr,
              ReduceOp::kXor}) {
          const bool is_of_all_ops = dtype == DType::kF32 ||
                                     dtype == DType::kI32 ||
                                     dtype == DType::kBool;
          const bool is_here =
              op == ReduceOp::kSum || op == ReduceOp::kAverage || is_of_all_ops;
          if (is_here && CheckReduction(op, dtype).ok()) {
            cases.push_back({size, count, dtype, op});
          }
        }
      }
    }
  }
  return cases;
}

std::vector<Tensor> InputsOf(const Case& one) {
  std::vector<Tensor> inputs;
  for (int r = 0; r < one.size; ++r) {
    inputs.push_back(
        ElementsOf(r, one.count, one.dtype, one.op == ReduceOp::kProduct));
  }
  return inputs;
}

Operation OperationOf(Verb verb, const Case& one) {
  Operation operation;
  operation.verb = verb;
  operation.dtype = one.dtype;
  operation.reduction = one.op;
  return operation;
}

class AllReduces : public ::testing::TestWithParam<AllReduceScheme> {};

std::string NameOfScheme(
    const ::testing::TestParamInfo<AllReduceScheme>& info) {
  switch (info.param) {
    case AllReduceScheme::kRing:
      return "ring";
    case AllReduceScheme::kDoubling:
      return "doubling";
    case AllReduceScheme::kHalving:
      return "halving";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Schemes, AllReduces,
                         ::testing::Values(AllReduceScheme::kRing,
                                           AllReduceScheme::kDoubling,
                                           AllReduceScheme::kHalving),
                         NameOfScheme);

// Also in segments of few elements, and where input and output are one.
TEST_P(AllReduces, GivesEveryRankTheReductionOfAll) {
  for (const Case& one : AllCases()) {
    SCOPED_TRACE(one.text());
    const std::vector<Tensor> inputs = InputsOf(one);
    const Tensor wanted = ReducedOf(one.op, one.dtype, inputs);
    for (const bool in_place : {false, true}) {
      LinkCost cost;
      cost.all_reduce = GetParam();
      if (in_place) cost.segment_bytes = 256;
      RunAll(one.size, [&](Link& link) -> absl::Status {
        const Tensor own = inputs[link.rank()];
        const Tensor output = in_place ? own.Clone() : Tensor::EmptyLike(own);
        Operation operation = OperationOf(Verb::kAllReduce, one);
        operation.inputs = {BlockOf(in_place ? output : own)};
        operation.outputs = {BlockOf(output)};
        const absl::Status status = RunOverLink(link, operation, cost);
        return status.ok() ? Same(output, wanted) : status;
      });
    }
    if (HasFailure()) return;
  }
}

// A factor of one's own, f16: rounded once, after all are added in f32.
TEST_P(AllReduces, MultipliesByEachRanksFactorInF32) {
  for (int size = 1; size <= kMostRanks; ++size) {
    LinkCost cost;
    cost.all_reduce = GetParam();
    RunAll(size, [&](Link& link) -> absl::Status {
      const Tensor tensor = Tensor::Full({100}, 1024, DType::kF16);
      Operation operation;
      operation.verb = Verb::kAllReduce;
      operation.dtype = DType::kF16;
      // 1024.75 of each: 1025 if it were rounded to f16 before.
      operation.reduction = {ReduceOp::kSum, 1 + 0.75 * 0x1p-10};
      operation.inputs = operation.outputs = {BlockOf(tensor)};
      const absl::Status status = RunOverLink(link, operation, cost);
      const Tensor wanted = Tensor::Full({100}, 1024.75 * size).To(DType::kF16);
      return status.ok() ? Same(tensor, wanted) : status;
    });
  }
}

// The counts that the header of each scheme gives, which SecondsOf goes by.
TEST_P(AllReduces, SendsAsManyMessagesAndBytesAsItsHeaderSays) {
  constexpr int64_t kCount = 64 * 60;  // whole lines for 2 to 6 ranks
  constexpr int64_t kBytes = kCount * 4;
  for (int size = 2; size <= kMostRanks; ++size) {
    SCOPED_TRACE(size);
    int power = 1, log = 0;
    for (; power * 2 <= size; power *= 2) ++log;
    FakeLinks links(size);
    LinkCost cost;
    cost.all_reduce = GetParam();
    const auto statuses = RunRanks(size, [&](int rank) {
      const Tensor tensor = Tensor::Ones({kCount});
      Operation operation;
      operation.verb = Verb::kAllReduce;
      operation.dtype = DType::kF32;
      operation.inputs = operation.outputs = {BlockOf(tensor)};
      return RunOverLink(*links.Get(rank), operation, cost);
    });
    EXPECT_THAT(statuses, Each(IsOk()));
    int64_t messages = 0, bytes = 0;
    for (int rank = 0; rank < size; ++rank) {
      messages = std::max(messages, links.SentBy(rank).messages);
      bytes = std::max(bytes, links.SentBy(rank).bytes);
    }
    const int64_t folded = power < size ? 1 : 0;  // the result for a rank more
    switch (GetParam()) {
      case AllReduceScheme::kRing:
        EXPECT_EQ(messages, 2 * (size - 1));
        EXPECT_NEAR(bytes, 2 * (size - 1) * kBytes / size, 64 * size);
        break;
      case AllReduceScheme::kDoubling:
        EXPECT_EQ(messages, log + folded);
        EXPECT_EQ(bytes, (log + folded) * kBytes);
        break;
      case AllReduceScheme::kHalving:
        EXPECT_EQ(messages, 2 * log + folded);
        EXPECT_NEAR(bytes, 2 * (power - 1) * kBytes / power + folded * kBytes,
                    64 * size);
        break;
    }
  }
}

// Wherever it ends: nobody waits for ever, and nobody takes it for done before
// it has all of it.
TEST_P(AllReduces, EndsOnEveryRankThatMissesOneThatHasEnded) {
  for (const int size : {2, 3, 5}) {
    for (int broken = 0; broken < size; ++broken) {
      for (int64_t after = 0; after < 4; ++after) {
        SCOPED_TRACE(absl::StrCat("rank ", broken, " of ", size, " after ",
                                  after, " messages"));
        FakeLinks links(size);
        links.BreakAfter(broken, after);
        LinkCost cost;
        cost.all_reduce = GetParam();
        const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
          const Tensor tensor = Tensor::Full({100}, rank + 1);
          Operation operation;
          operation.verb = Verb::kAllReduce;
          operation.dtype = DType::kF32;
          operation.inputs = operation.outputs = {BlockOf(tensor)};
          const absl::Status status =
              RunOverLink(*links.Get(rank), operation, cost);
          if (!status.ok()) return status;
          return Same(tensor, Tensor::Full({100}, size * (size + 1) / 2));
        });
        for (const absl::Status& status : statuses) {
          EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
        }
      }
    }
  }
}

TEST(TreeReduce, GivesTheRootTheReductionOfAllAndLeavesTheInputs) {
  for (const Case& one : AllCases()) {
    SCOPED_TRACE(one.text());
    const std::vector<Tensor> inputs = InputsOf(one);
    const Tensor wanted = ReducedOf(one.op, one.dtype, inputs);
    for (int root = 0; root < one.size; root += 2) {
      RunAll(one.size, [&](Link& link) -> absl::Status {
        const Tensor& own = inputs[link.rank()];
        const Tensor before = own.Clone();
        const Tensor output = Tensor::EmptyLike(own);
        Operation operation = OperationOf(Verb::kReduce, one);
        operation.root = root;
        operation.inputs = {BlockOf(own)};
        const bool is_root = link.rank() == root;
        if (is_root) operation.outputs = {BlockOf(output)};
        const absl::Status status = RunOverLink(link, operation);
        if (!status.ok()) return status;
        const absl::Status kept = Same(own, before);
        return kept.ok() && is_root ? Same(output, wanted) : kept;
      });
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(TreeBroadcast, GivesAllWhatTheRootHas) {
  for (int size = 1; size <= kMostRanks; ++size) {
    for (int root = 0; root < size; ++root) {
      for (const int64_t count : kCounts) {
        for (const DType dtype : {DType::kU8, DType::kF64}) {
          RunAll(size, [&](Link& link) -> absl::Status {
            const Tensor tensor = ElementsOf(link.rank(), count, dtype, false);
            Operation operation;
            operation.verb = Verb::kBroadcast;
            operation.dtype = dtype;
            operation.root = root;
            operation.outputs = {BlockOf(tensor)};
            const absl::Status status = RunOverLink(link, operation);
            return status.ok()
                       ? Same(tensor, ElementsOf(root, count, dtype, false))
                       : status;
          });
        }
      }
    }
  }
}

// How many elements rank r has of those that are not of one count.
int64_t CountOf(int rank) { return rank % 3 == 1 ? 0 : 3 + 20 * rank; }

// Blocks of one dtype for each rank, of CountOf.
struct Uneven {
  std::vector<Tensor> tensors;
  Blocks blocks;

  // The elements that rank `from` has for each rank; `from` below 0: zeros, to
  // be overwritten.
  Uneven(int size, DType dtype, int from) {
    for (int r = 0; r < size; ++r) {
      tensors.push_back(from < 0 ? Tensor::Zeros({CountOf(r)}, dtype)
                                 : ElementsOf(from * 10 + r, CountOf(r), dtype,
                                              /*multiplies=*/false));
      blocks.push_back(BlockOf(tensors.back()));
    }
  }
};

TEST(RingReduceScatter, GivesEachRankItsBlockOfTheReduction) {
  for (int size = 1; size <= kMostRanks; ++size) {
    for (const DType dtype : kAllDTypes) {
      SCOPED_TRACE(absl::StrCat(size, " ranks, ", Name(dtype)));
      RunAll(size, [&](Link& link) -> absl::Status {
        const int rank = link.rank();
        const Uneven inputs(size, dtype, rank);
        std::vector<Tensor> of_own_block;
        for (int r = 0; r < size; ++r) {
          of_own_block.push_back(Uneven(size, dtype, r).tensors[rank]);
        }
        const Tensor output = Tensor::Zeros({CountOf(rank)}, dtype);
        Operation operation;
        operation.verb = Verb::kReduceScatter;
        operation.dtype = dtype;
        operation.inputs = inputs.blocks;
        operation.outputs = {BlockOf(output)};
        const absl::Status status = RunOverLink(link, operation);
        if (!status.ok()) return status;
        for (int r = 0; r < size; ++r) {
          const absl::Status kept =
              Same(inputs.tensors[r], Uneven(size, dtype, rank).tensors[r]);
          if (!kept.ok()) return kept;
        }
        return Same(output, ReducedOf(ReduceOp::kSum, dtype, of_own_block));
      });
    }
  }
}

TEST(RingAllGather, GivesAllTheBlocksOfAllRanksOfAnyCounts) {
  for (int size = 1; size <= kMostRanks; ++size) {
    for (const DType dtype : kAllDTypes) {
      RunAll(size, [&](Link& link) -> absl::Status {
        const Uneven all(size, dtype, 4);
        const Uneven outputs(size, dtype, -1);
        Operation operation;
        operation.verb = Verb::kAllGather;
        operation.dtype = dtype;
        operation.inputs = {all.blocks[link.rank()]};
        operation.outputs = outputs.blocks;
        absl::Status status = RunOverLink(link, operation);
        for (int r = 0; r < size && status.ok(); ++r) {
          status = Same(outputs.tensors[r], all.tensors[r]);
        }
        return status;
      });
    }
  }
}

TEST(DirectGather, AndScatterAreEachOthersInverse) {
  for (int size = 1; size <= kMostRanks; ++size) {
    for (int root = 0; root < size; ++root) {
      RunAll(size, [&](Link& link) -> absl::Status {
        const bool is_root = link.rank() == root;
        const Uneven all(size, DType::kI32, 2);
        const Tensor own = Tensor::Zeros({CountOf(link.rank())}, DType::kI32);
        Operation scatter;
        scatter.verb = Verb::kScatter;
        scatter.dtype = DType::kI32;
        scatter.root = root;
        if (is_root) scatter.inputs = all.blocks;
        scatter.outputs = {BlockOf(own)};
        absl::Status status = RunOverLink(link, scatter);
        if (status.ok()) status = Same(own, all.tensors[link.rank()]);
        if (!status.ok()) return status;
        const Uneven gathered(size, DType::kI32, -1);
        Operation gather = scatter;
        gather.verb = Verb::kGather;
        gather.inputs = {BlockOf(own)};
        gather.outputs = is_root ? gathered.blocks : Blocks();
        status = RunOverLink(link, gather);
        for (int r = 0; is_root && r < size && status.ok(); ++r) {
          status = Same(gathered.tensors[r], all.tensors[r]);
        }
        return status;
      });
    }
  }
}

// What rank a has for rank b has `a + 2 * b` elements, 10 * a + b each.
TEST(PairwiseAllToAll, BringsEachBlockFromItsRankToItsRank) {
  for (int size = 1; size <= kMostRanks; ++size) {
    RunAll(size, [&](Link& link) -> absl::Status {
      const int rank = link.rank();
      std::vector<Tensor> in, out;
      Operation operation;
      operation.verb = Verb::kAllToAll;
      operation.dtype = DType::kI64;
      for (int r = 0; r < size; ++r) {
        in.push_back(Tensor::Full({rank + 2 * r}, 10 * rank + r, DType::kI64));
        out.push_back(Tensor::Zeros({r + 2 * rank}, DType::kI64));
        operation.inputs.push_back(BlockOf(in.back()));
        operation.outputs.push_back(BlockOf(out.back()));
      }
      absl::Status status = RunOverLink(link, operation);
      for (int r = 0; r < size && status.ok(); ++r) {
        status = Same(out[r],
                      Tensor::Full({r + 2 * rank}, 10 * r + rank, DType::kI64));
      }
      return status;
    });
  }
}

// A rank that has not come keeps all others there.
TEST(DisseminationBarrier, IsPassedByNobodyBeforeAllHaveCome) {
  Operation barrier;
  barrier.verb = Verb::kBarrier;
  for (int size = 2; size <= kMostRanks; ++size) {
    for (int late = 0; late < size; ++late) {
      FakeLinks links(size);
      links.BreakAfter(late, 0);
      EXPECT_THAT(RunRanks(size,
                           [&](int rank) {
                             return RunOverLink(*links.Get(rank), barrier);
                           }),
                  Each(StatusIs(absl::StatusCode::kUnavailable)))
          << "rank " << late << " of " << size;
    }
    RunAll(size, [&](Link& link) { return RunOverLink(link, barrier); });
  }
}

TEST(RunOverLink, RefusesWhatIsNoCollectiveOperation) {
  FakeLinks links(1);
  Operation send;
  send.verb = Verb::kSend;
  EXPECT_THAT(
      RunOverLink(*links.Get(0), send),
      StatusIs(absl::StatusCode::kInternal, "Send is no collective operation"));
}

// Every element is in one part, and no two ranks write to one cache line.
TEST(Blocks, PartsAreWholeCacheLinesInOrder) {
  for (const DType dtype : kAllDTypes) {
    const int64_t line = 64 / ItemSize(dtype);
    for (int parts = 1; parts <= 9; ++parts) {
      for (const int64_t elements : {0, 1, 7, 64, 65, 1000, 4096, 5001}) {
        int64_t end = 0;
        for (int i = 0; i < parts; ++i) {
          const Range part = PartOf(elements, dtype, parts, i);
          EXPECT_EQ(part.begin, end);
          EXPECT_TRUE(part.begin % line == 0 || part.count == 0);
          EXPECT_GE(part.count, 0);
          end = part.begin + part.count;
        }
        EXPECT_EQ(end, elements);
      }
    }
  }
  EXPECT_EQ(Wrap(-1, 5), 4);
  EXPECT_EQ(Wrap(7, 5), 2);
}

}  // namespace
}  // namespace weft::collectives
