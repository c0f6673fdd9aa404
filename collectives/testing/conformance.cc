#include "weft/collectives/testing/conformance.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ProcessGroupConformance);

std::vector<absl::Status> ProcessGroupConformance::Run(int size,
                                                       const Body& body) {
  std::unique_ptr<TestWorld> world = GetParam().make_world(size, diagnosis_);
  return GetParam().run_ranks(size, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          world->Connect(rank));
    const auto group = ProcessGroup::Create(std::move(backend), options_);
    return body(*group);
  });
}

void ProcessGroupConformance::RunSizes(const Body& body) {
  for (const int size : GetParam().sizes) {
    for (const absl::Status& status : Run(size, body)) WEFT_EXPECT_OK(status);
  }
}

namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::StatusIs;

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax, ReduceOp::kAverage, ReduceOp::kAnd,
                             ReduceOp::kOr,  ReduceOp::kXor};
// None, one, fewer than ranks, no multiple of anything, several pieces, and
// beyond every buffer of a backend.
constexpr int64_t kCounts[] = {0, 1, 3, 1001, 300'001};

TEST_P(ProcessGroupConformance, AllReduceOfEachDTypeAndOperation) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kOps) {
        if (!CheckReduction(op, dtype).ok()) continue;
        const Tensor tensor = Numbers(group.rank(), 37, dtype);
        WEFT_RETURN_IF_ERROR(group.AllReduce(tensor, op));
        const Tensor wanted =
            Expected(op, NumbersOfAll(group.size(), 37, dtype));
        if (op == ReduceOp::kAverage && IsFloating(dtype) &&
            !GetParam().averages_exactly) {
          WANT_EQ(AreNear(tensor, wanted), true);
          continue;
        }
        WANT_EQ(BytesOf(tensor), BytesOf(wanted));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupConformance, AllReduceOfEachCountInAndOutOfPlace) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    for (const int64_t count : kCounts) {
      const Tensor wanted =
          Expected(ReduceOp::kSum, NumbersOfAll(group.size(), count));
      const Tensor input = Numbers(group.rank(), count);
      const Tensor output = Tensor::Zeros({count});
      WEFT_RETURN_IF_ERROR(group.AllReduceInto(input, output));
      WANT_EQ(BytesOf(output), BytesOf(wanted));
      WANT_EQ(BytesOf(input), BytesOf(Numbers(group.rank(), count)));
      WEFT_RETURN_IF_ERROR(group.AllReduce(input));
      WANT_EQ(BytesOf(input), BytesOf(wanted));
    }
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupConformance, AllReduceOfAllocatedTensors) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    std::vector<Tensor> kept;
    for (const int64_t count : kCounts) {
      const Tensor wanted =
          Expected(ReduceOp::kSum, NumbersOfAll(group.size(), count));
      WEFT_ASSIGN_OR_RETURN(const Tensor input,
                            group.Allocate({count}, DType::kF32));
      WEFT_ASSIGN_OR_RETURN(const Tensor output,
                            group.Allocate({count}, DType::kF32));
      kept.push_back(input);
      input.CopyFrom(Numbers(group.rank(), count));
      WEFT_RETURN_IF_ERROR(group.AllReduceInto(input, output));
      WANT_EQ(BytesOf(output), BytesOf(wanted));
      WANT_EQ(BytesOf(input), BytesOf(Numbers(group.rank(), count)));
      WEFT_RETURN_IF_ERROR(group.AllReduce(input));
      WANT_EQ(BytesOf(input), BytesOf(wanted));
      // One rank's in shared memory, the others' not.
      const Tensor own = Numbers(group.rank(), count);
      input.CopyFrom(own);
      WEFT_RETURN_IF_ERROR(group.AllReduce(group.rank() == 0 ? input : own));
      WANT_EQ(BytesOf(group.rank() == 0 ? input : own), BytesOf(wanted));
    }
    return absl::OkStatus();
  });
}

// Sums of these depend on the order of addition.
Tensor Fractions(int rank, int64_t count) {
  std::mt19937 random(rank + 1);
  std::normal_distribution<float> normal;
  const Tensor result = Tensor::Empty({count});
  for (float& x : result.span<float>()) x = normal(random);
  return result;
}

TEST_P(ProcessGroupConformance, ResultHasTheSameBitsOnAllRanksAndRuns) {
  for (const int64_t count : {100, 300'001}) {
    Mutex mu;
    std::string first;
    for (int run = 0; run < 2; ++run) {
      const int size = GetParam().sizes.back();
      const auto statuses = Run(size, [&](ProcessGroup& group) -> absl::Status {
        const Tensor tensor = Fractions(group.rank(), count);
        WEFT_RETURN_IF_ERROR(group.AllReduce(tensor, ReduceOp::kAverage));
        WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                              group.AllGatherBytes(BytesOf(tensor)));
        MutexLock lock(mu);
        if (first.empty()) first = found[0];
        for (const std::string& one : found) WANT_EQ(one == first, true);
        return absl::OkStatus();
      });
      EXPECT_THAT(statuses, Each(testing::IsOk())) << "run " << run;
    }
  }
}

TEST_P(ProcessGroupConformance, FactorMultipliesOwnElements) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    const Tensor tensor = Tensor::Ones({5});
    WEFT_RETURN_IF_ERROR(
        group.AllReduce(tensor, Reduction(ReduceOp::kSum, group.rank() + 1)));
    const int n = group.size();
    WANT_EQ(tensor.ToVector<float>(),
            std::vector<float>(5, n * (n + 1) / 2.0f));
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupConformance, BroadcastFromEachRoot) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    for (int root = 0; root < group.size(); ++root) {
      for (const int64_t count : kCounts) {
        const Tensor tensor = Numbers(group.rank(), count);
        WEFT_RETURN_IF_ERROR(group.Broadcast(tensor, root));
        WANT_EQ(BytesOf(tensor), BytesOf(Numbers(root, count)));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupConformance, ReduceWritesAtTheRootOnly) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    for (int root = 0; root < group.size(); ++root) {
      for (const int64_t count : kCounts) {
        const Tensor tensor = Numbers(group.rank(), count);
        WEFT_RETURN_IF_ERROR(group.Reduce(tensor, root, ReduceOp::kMax));
        WANT_EQ(BytesOf(tensor),
                BytesOf(group.rank() == root
                            ? Expected(ReduceOp::kMax,
                                       NumbersOfAll(group.size(), count))
                            : Numbers(group.rank(), count)));
      }
    }
    return absl::OkStatus();
  });
}

// How many elements rank `r` has where counts differ; none for one of them.
int64_t Uneven(int r, int64_t count) { return r == 1 ? 0 : count + r; }

std::vector<Tensor> EmptyUneven(int size, int64_t count) {
  std::vector<Tensor> result;
  for (int r = 0; r < size; ++r) {
    result.push_back(Tensor::Zeros({Uneven(r, count)}));
  }
  return result;
}

TEST_P(ProcessGroupConformance, AllGatherEvenUnevenAndInPlace) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    const int n = group.size();
    for (const int64_t count : kCounts) {
      std::string wanted;
      for (int r = 0; r < n; ++r) wanted += BytesOf(Numbers(r, count));
      const Tensor all = Tensor::Zeros({n, count});
      WEFT_RETURN_IF_ERROR(group.AllGather(Numbers(group.rank(), count), all));
      WANT_EQ(BytesOf(all), wanted);
      all.Fill(0);
      const Tensor own = all.Select(0, group.rank());
      own.CopyFrom(Numbers(group.rank(), count));
      WEFT_RETURN_IF_ERROR(group.AllGather(own, all));
      WANT_EQ(BytesOf(all), wanted);
      const std::vector<Tensor> parts = EmptyUneven(n, count);
      WEFT_RETURN_IF_ERROR(group.AllGatherList(
          Numbers(group.rank(), Uneven(group.rank(), count)), parts));
      for (int r = 0; r < n; ++r) {
        WANT_EQ(BytesOf(parts[r]), BytesOf(Numbers(r, Uneven(r, count))));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupConformance, GatherAndScatterOfUnevenCounts) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    const int n = group.size();
    const int root = n - 1;
    for (const int64_t count : kCounts) {
      const bool is_root = group.rank() == root;
      const Tensor own = Numbers(group.rank(), Uneven(group.rank(), count));
      std::vector<Tensor> parts;
      if (is_root) parts = EmptyUneven(n, count);
      WEFT_RETURN_IF_ERROR(group.Gather(own, parts, root));
      for (int r = 0; is_root && r < n; ++r) {
        WANT_EQ(BytesOf(parts[r]), BytesOf(Numbers(r, Uneven(r, count))));
      }
      const Tensor back = Tensor::ZerosLike(own);
      WEFT_RETURN_IF_ERROR(group.Scatter(parts, back, root));
      WANT_EQ(BytesOf(back), BytesOf(own));
    }
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupConformance, ReduceScatterEvenUnevenAndInPlace) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    const int n = group.size();
    for (const int64_t count : kCounts) {
      const Tensor wanted =
          Expected(ReduceOp::kSum, NumbersOfAll(n, n * count))
              .Slice(0, group.rank() * count, (group.rank() + 1) * count);
      const Tensor input = Numbers(group.rank(), n * count);
      const Tensor output = Tensor::Zeros({count});
      WEFT_RETURN_IF_ERROR(group.ReduceScatter(input, output));
      WANT_EQ(BytesOf(output), BytesOf(wanted));
      const Tensor part =
          input.Slice(0, group.rank() * count, (group.rank() + 1) * count);
      WEFT_RETURN_IF_ERROR(group.ReduceScatter(input, part));
      WANT_EQ(BytesOf(part), BytesOf(wanted));

      std::vector<Tensor> inputs;
      for (int r = 0; r < n; ++r) {
        inputs.push_back(Numbers(group.rank(), Uneven(r, count)));
      }
      const int64_t own = Uneven(group.rank(), count);
      const Tensor uneven = Tensor::Zeros({own});
      WEFT_RETURN_IF_ERROR(group.ReduceScatterList(inputs, uneven));
      WANT_EQ(BytesOf(uneven),
              BytesOf(Expected(ReduceOp::kSum, NumbersOfAll(n, own))));
    }
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupConformance, AllToAllEvenAndUneven) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    const int n = group.size();
    for (const int64_t count : kCounts) {
      const Tensor input = Numbers(group.rank(), n * count);
      const Tensor output = Tensor::Zeros({n, count});
      WEFT_RETURN_IF_ERROR(group.AllToAll(input, output));
      for (int r = 0; r < n; ++r) {
        WANT_EQ(BytesOf(output.Select(0, r)),
                BytesOf(Numbers(r, n * count)
                            .Slice(0, group.rank() * count,
                                   (group.rank() + 1) * count)));
      }
      // Rank a sends Uneven(a, count) + b elements to rank b.
      std::vector<Tensor> inputs, outputs;
      for (int r = 0; r < n; ++r) {
        inputs.push_back(
            Numbers(group.rank() * n + r, Uneven(group.rank(), count) + r));
        outputs.push_back(Tensor::Zeros({Uneven(r, count) + group.rank()}));
      }
      WEFT_RETURN_IF_ERROR(group.AllToAllList(inputs, outputs));
      for (int r = 0; r < n; ++r) {
        WANT_EQ(BytesOf(outputs[r]),
                BytesOf(Numbers(r * n + group.rank(),
                                Uneven(r, count) + group.rank())));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupConformance, BarrierWaitsForAllRanks) {
  if (!GetParam().ranks_share_memory) GTEST_SKIP() << kOtherProcesses;
  for (const int size : GetParam().sizes) {
    std::atomic<int> arrived{0};
    const auto statuses = Run(size, [&](ProcessGroup& group) -> absl::Status {
      for (int round = 1; round <= 50; ++round) {
        ++arrived;
        WEFT_RETURN_IF_ERROR(group.Barrier());
        if (arrived < round * group.size()) {
          return absl::InternalError("left the barrier too early");
        }
        WEFT_RETURN_IF_ERROR(group.Barrier());
      }
      return absl::OkStatus();
    });
    EXPECT_THAT(statuses, Each(testing::IsOk()));
  }
}

TEST_P(ProcessGroupConformance, TensorsThatAreNotContiguous) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    const Tensor base = Numbers(group.rank(), 12).View({3, 4});
    const Tensor tensor = base.Transpose(0, 1);
    const Tensor wanted =
        Expected(ReduceOp::kSum, NumbersOfAll(group.size(), 12)).View({3, 4});
    WEFT_RETURN_IF_ERROR(group.AllReduce(tensor));
    WANT_EQ(BytesOf(base), BytesOf(wanted));
    const Tensor scalar = Tensor::Scalar<float>(group.rank() + 1);
    WEFT_RETURN_IF_ERROR(group.Broadcast(scalar, 0));
    WANT_EQ(scalar.item<float>(), 1.0f);
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupConformance, FuturesEndInTheOrderOfTheCalls) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    std::vector<Tensor> tensors;
    std::vector<Future<void>> futures;
    Mutex mu;
    std::vector<int> order;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(Numbers(group.rank(), 100 + i));
      futures.push_back(group.AllReduceAsync(tensors.back()));
      futures.back().OnReady([&mu, &order, i](const absl::Status&) {
        MutexLock lock(mu);
        order.push_back(i);
      });
    }
    // A synchronous operation comes after them.
    WEFT_RETURN_IF_ERROR(group.Barrier());
    WEFT_RETURN_IF_ERROR(WaitAll(futures, absl::Seconds(30)));
    for (int i = 0; i < 20; ++i) {
      WANT_EQ(BytesOf(tensors[i]),
              BytesOf(Expected(ReduceOp::kSum,
                               NumbersOfAll(group.size(), 100 + i))));
    }
    MutexLock lock(mu);
    WANT_EQ(std::is_sorted(order.begin(), order.end()), true);
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupConformance, CoalescedTensorsAreReducedAsEach) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    const std::vector<Tensor> tensors = {Numbers(group.rank(), 6).View({2, 3}),
                                         Numbers(group.rank(), 0),
                                         Numbers(group.rank(), 11)};
    WEFT_RETURN_IF_ERROR(group.AllReduceCoalesced(tensors));
    for (const Tensor& tensor : tensors) {
      WANT_EQ(BytesOf(tensor),
              BytesOf(Expected(ReduceOp::kSum,
                               NumbersOfAll(group.size(), tensor.numel()))));
    }
    return group.AllReduceCoalesced({});
  });
}

TEST_P(ProcessGroupConformance, BytesOfAnyLength) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    const std::string own(group.rank() * 3, 'a' + group.rank());
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          group.AllGatherBytes(own));
    for (int r = 0; r < group.size(); ++r) {
      WANT_EQ(all[r], std::string(r * 3, 'a' + r));
    }
    const int root = group.size() - 1;
    WEFT_ASSIGN_OR_RETURN(
        const std::string roots,
        group.BroadcastBytes(group.rank() == root ? "model" : "x", root));
    WANT_EQ(roots, std::string("model"));
    return absl::OkStatus();
  });
}

// --- Point to point. ---------------------------------------------------------

TEST_P(ProcessGroupConformance, MessagesAreMatchedByTagAndKeepTheirOrder) {
  const auto statuses = Run(2, [](ProcessGroup& group) -> absl::Status {
    if (group.rank() == 0) {
      for (const int i : {1, 2, 3}) {
        WEFT_RETURN_IF_ERROR(group.Send(Tensor::Full({4}, i), 1, i % 2));
      }
      WEFT_RETURN_IF_ERROR(group.Send(Numbers(0, 300'001), 1, 9));
      return group.Send(Tensor::Zeros({0}), 1);
    }
    const Tensor tensor = Tensor::Zeros({4});
    const auto receive = [&](uint64_t tag) -> absl::StatusOr<float> {
      WEFT_RETURN_IF_ERROR(group.Receive(tensor, 0, tag));
      return tensor.data<float>()[3];
    };
    WANT_EQ(receive(0).value(), 2.0f);
    WANT_EQ(receive(1).value(), 1.0f);
    WANT_EQ(receive(1).value(), 3.0f);
    const Tensor large = Tensor::Zeros({300'001});
    WEFT_RETURN_IF_ERROR(group.Receive(large, 0, 9));
    WANT_EQ(BytesOf(large), BytesOf(Numbers(0, 300'001)));
    return group.Receive(Tensor::Zeros({0}), 0);
  });
  EXPECT_THAT(statuses, Each(testing::IsOk()));
}

TEST_P(ProcessGroupConformance, ReceivesPostedBeforeSendsOnAllRanks) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    const int n = group.size();
    if (n == 1) return absl::OkStatus();
    const int right = (group.rank() + 1) % n;
    const int left = (group.rank() + n - 1) % n;
    const Tensor in = Tensor::Zeros({100'000});
    const Tensor out = Numbers(group.rank(), 100'000);
    Future<void> received = group.ReceiveAsync(in, left);
    Future<void> sent = group.SendAsync(out, right);
    // Collectives go on meanwhile.
    WEFT_RETURN_IF_ERROR(group.Barrier());
    WEFT_RETURN_IF_ERROR(sent.Wait(absl::Seconds(30)));
    WEFT_RETURN_IF_ERROR(received.Wait(absl::Seconds(30)));
    WANT_EQ(BytesOf(in), BytesOf(Numbers(left, 100'000)));
    return group.Exchange({{PointToPoint::kReceive, in, right, 5},
                           {PointToPoint::kSend, out, left, 5}});
  });
}

TEST_P(ProcessGroupConformance, ReceiveAnyReturnsTheSender) {
  RunSizes([](ProcessGroup& group) -> absl::Status {
    if (group.rank() != 0) return group.Send(Numbers(group.rank(), 8), 0, 4);
    std::map<int, std::string> found;
    for (int i = 1; i < group.size(); ++i) {
      const Tensor tensor = Tensor::Zeros({8});
      WEFT_ASSIGN_OR_RETURN(const int from, group.ReceiveAny(tensor, 4));
      found[from] = BytesOf(tensor);
    }
    WANT_EQ(found.size(), static_cast<size_t>(group.size() - 1));
    for (const auto& [from, bytes] : found) {
      WANT_EQ(bytes, BytesOf(Numbers(from, 8)));
    }
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupConformance, MessageOfAnotherKindIsAnErrorAndIsDropped) {
  const auto statuses = Run(2, [](ProcessGroup& group) -> absl::Status {
    if (group.rank() == 0) {
      WEFT_RETURN_IF_ERROR(group.Send(Tensor::Zeros({3}), 1));
      WEFT_RETURN_IF_ERROR(group.Send(Tensor::Ones({4}), 1));
      const absl::Status self = group.Send(Tensor::Zeros({3}), 0);
      WANT_EQ(self.code(), absl::StatusCode::kInvalidArgument);
      return absl::OkStatus();
    }
    const Tensor tensor = Tensor::Zeros({4});
    const absl::Status wrong = group.Receive(tensor, 0);
    WANT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
    WANT_EQ(absl::StrContains(wrong.message(), "f32[3]"), true);
    WEFT_RETURN_IF_ERROR(group.Receive(tensor, 0));
    WANT_EQ(tensor.data<float>()[0], 1.0f);
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(testing::IsOk()));
}

TEST_P(ProcessGroupConformance, UnrequestedMessagesAreBounded) {
  const auto statuses = Run(2, [](ProcessGroup& group) -> absl::Status {
    constexpr int kMessages = 12;  // of 1 MiB: three times what is kept
    std::vector<Future<void>> sent;
    if (group.rank() == 0) {
      const Tensor tensor = Tensor::Ones({1 << 18});
      for (int i = 0; i < kMessages; ++i) {
        sent.push_back(group.SendAsync(tensor, 1, 7));
      }
      WEFT_RETURN_IF_ERROR(WaitAll(std::move(sent), absl::Seconds(60)));
      return group.Send(tensor, 1, 8);
    }
    const Tensor tensor = Tensor::Zeros({1 << 18});
    const absl::Status found = group.Receive(tensor, 0, 8);
    WANT_EQ(found.code(), absl::StatusCode::kResourceExhausted);
    WANT_EQ(absl::StrContains(found.message(), "max_unasked_bytes"), true);
    for (int i = 0; i < kMessages; ++i) {
      WEFT_RETURN_IF_ERROR(group.Receive(tensor, 0, 7));
    }
    return group.Receive(tensor, 0, 8);
  });
  EXPECT_THAT(statuses, Each(testing::IsOk()));
}

// --- Groups of some.

TEST_P(ProcessGroupConformance, SplitMakesOneGroupForEachColor) {
  const auto statuses = Run(4, [](ProcessGroup& group) -> absl::Status {
    // Ranks 0 and 2 in reverse order; rank 1 alone; rank 3 in none.
    const int color = group.rank() == 3 ? -1 : group.rank() % 2;
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> part,
                          group.Split(color, -group.rank()));
    WANT_EQ(part == nullptr, color < 0);
    if (part != nullptr) {
      WANT_EQ(part->size(), color == 0 ? 2 : 1);
      if (color == 0) WANT_EQ(part->rank(), group.rank() == 2 ? 0 : 1);
      const Tensor tensor = Tensor::Scalar<float>(group.rank());
      WEFT_RETURN_IF_ERROR(part->AllReduce(tensor));
      WANT_EQ(tensor.item<float>(), color == 0 ? 2.0f : 1.0f);
    }
    const std::vector<int> wrong = {0, 0};
    WANT_EQ(group.Subgroup(wrong).status().code(),
            absl::StatusCode::kInvalidArgument);
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> last,
                          group.Subgroup({3, 0}));
    WANT_EQ(last != nullptr, group.rank() == 0 || group.rank() == 3);
    if (last != nullptr) WANT_EQ(last->rank(), group.rank() == 3 ? 0 : 1);
    return group.Barrier();
  });
  EXPECT_THAT(statuses, Each(testing::IsOk()));
}

TEST_P(ProcessGroupConformance, RevokeEndsAllAndShrinkGoesOn) {
  if (!GetParam().ranks_share_memory) GTEST_SKIP() << kOtherProcesses;
  std::atomic<int> ready{0};
  const auto statuses = Run(3, [&](ProcessGroup& group) -> absl::Status {
    WEFT_RETURN_IF_ERROR(group.Barrier());
    ++ready;
    if (group.rank() == 1) {
      WANT_EQ(bool(Becomes([&] { return ready == 3; })), true);
      group.Revoke(absl::CancelledError("a rank is slow"));
    } else {
      const absl::Status ended = group.AllReduce(Numbers(group.rank(), 10));
      WANT_EQ(ended.code(), absl::StatusCode::kCancelled);
      WANT_EQ(absl::StrContains(ended.message(), "a rank is slow"), true);
    }
    WANT_EQ(group.Barrier().ok(), false);
    if (group.rank() == 1) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(group.Shrink({0, 2}));
    WANT_EQ(group.size(), 2);
    const Tensor tensor = Tensor::Ones({4});
    WEFT_RETURN_IF_ERROR(group.AllReduce(tensor));
    WANT_EQ(tensor.ToVector<float>(), std::vector<float>(4, 2.0f));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(testing::IsOk()));
}

// All but one rank go on with another world, in which one rank is new: fewer,
// as many, and more ranks than before.
TEST_P(ProcessGroupConformance, ReconfigureGoesOnWithOtherMembers) {
  if (!GetParam().ranks_share_memory) GTEST_SKIP() << kOtherProcesses;
  for (const int size : {2, 3, 4}) {
    std::unique_ptr<TestWorld> next = GetParam().make_world(size, diagnosis_);
    std::atomic<int> old_members{0};
    const auto take_part = [&](ProcessGroup& group) -> absl::Status {
      WANT_EQ(group.size(), size);
      const Tensor tensor = Numbers(group.rank(), 1001);
      WEFT_RETURN_IF_ERROR(group.AllReduce(tensor));
      WANT_EQ(BytesOf(tensor),
              BytesOf(Expected(ReduceOp::kSum, NumbersOfAll(size, 1001))));
      return group.Barrier();
    };
    std::vector<absl::Status> joined(size);
    std::vector<std::thread> newcomers;
    // Ranks 0 and 1 of the old world keep their numbers where they fit.
    for (int rank = 2; rank < size; ++rank) {
      newcomers.emplace_back([&, rank] {
        joined[rank] = [&]() -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                                next->Connect(rank));
          const auto group = ProcessGroup::Create(std::move(backend), options_);
          return take_part(*group);
        }();
      });
    }
    const auto statuses = Run(3, [&](ProcessGroup& group) -> absl::Status {
      WEFT_RETURN_IF_ERROR(group.Barrier());
      ++old_members;
      if (group.rank() == 2) {
        // The others' operation waits for it until they reconfigure.
        WANT_EQ(bool(Becomes([&] { return !group.health().ok(); })), true);
        WANT_EQ(group.Barrier().code(), absl::StatusCode::kCancelled);
        return absl::OkStatus();
      }
      Future<void> in_flight = group.BarrierAsync();
      WANT_EQ(bool(Becomes([&] { return old_members == 3; })), true);
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                            next->Connect(group.rank()));
      WEFT_RETURN_IF_ERROR(group.Reconfigure(std::move(backend)));
      const absl::Status ended = in_flight.Wait(absl::Seconds(30));
      WANT_EQ(ended.code(), absl::StatusCode::kCancelled);
      return take_part(group);
    });
    for (std::thread& newcomer : newcomers) newcomer.join();
    EXPECT_THAT(statuses, Each(testing::IsOk())) << size;
    EXPECT_THAT(joined, Each(testing::IsOk())) << size;
  }
}

}  // namespace
}  // namespace weft::collectives
