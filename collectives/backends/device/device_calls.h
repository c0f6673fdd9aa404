// CallAll: each operation of a group on tensors that a test places, for suites
// that compare devices with the CPU.

#ifndef WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_CALLS_H_
#define WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_CALLS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {

inline constexpr absl::Duration kDeviceCallPatience = absl::Seconds(30);

// What the tests call the codes.
inline constexpr auto kCancelled = absl::StatusCode::kCancelled;
inline constexpr auto kDifferent = absl::StatusCode::kFailedPrecondition;
inline constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
inline constexpr auto kFailed = absl::StatusCode::kInternal;
inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr auto kLate = absl::StatusCode::kDeadlineExceeded;
inline constexpr auto kLost = absl::StatusCode::kUnavailable;

inline CallOptions Within(absl::Duration timeout) {
  CallOptions options;
  options.timeout = timeout;
  return options;
}

// One rank of a group.
struct DeviceRank {
  ProcessGroup& group;
  device::testing::SimulatedDevices& devices;

  // The first is the one whose tensors are moved.
  Device device(int index = 0) const { return {devices.context(), index}; }
  Tensor Place(const Tensor& x, int index = 0) const {
    return x.To(device(index)).Clone();
  }
};

using PlaceFn = std::function<Tensor(const Tensor&)>;

inline std::vector<Tensor> PlaceAll(const PlaceFn& place,
                                    const std::vector<Tensor>& all) {
  std::vector<Tensor> placed;
  for (const Tensor& x : all) placed.push_back(place(x));
  return placed;
}

// What is begun, and what it writes.
class Calls {
 public:
  explicit Calls(bool is_async) : is_async_(is_async) {}

  void Add(Future<void> future, const std::vector<Tensor>& written) {
    if (!is_async_) future.Wait(kDeviceCallPatience).IgnoreError();
    futures_.push_back(std::move(future));
    written_.insert(written_.end(), written.begin(), written.end());
  }
  absl::StatusOr<std::vector<std::string>> Results() const {
    for (const Future<void>& future : futures_) {
      WEFT_RETURN_IF_ERROR(future.Wait(kDeviceCallPatience));
    }
    std::vector<std::string> all;
    for (const Tensor& x : written_) {
      all.push_back(BytesOf(x.To(Device::Cpu())));
    }
    return all;
  }

 private:
  const bool is_async_;
  std::vector<Future<void>> futures_;
  std::vector<Tensor> written_;
};

// Calls each operation with the same count on each rank.
inline void CallEven(ProcessGroup& group, const PlaceFn& place, int64_t count,
                     Calls& calls) {
  const int n = group.size(), rank = group.rank(), root = n - 1;
  const auto input = [&](int64_t k) { return place(Numbers(rank, k)); };
  const auto output = [&](int64_t k) { return place(Tensor::Zeros({k})); };
  const Tensor x = input(count);
  calls.Add(group.AllReduceAsync(x), {x});
  const Tensor y = output(count);
  calls.Add(group.AllReduceIntoAsync(input(count), y,
                                     Reduction(ReduceOp::kSum, rank + 1)),
            {y});
  const Tensor b = rank == root ? input(count) : output(count);
  calls.Add(group.BroadcastAsync(b, root), {b});
  const Tensor r = input(count);
  calls.Add(group.ReduceAsync(r, root), {r});
  const Tensor all = output(count * n);
  calls.Add(group.AllGatherAsync(input(count), all), {all});
  const Tensor own = output(count * n);
  const Tensor mine = own.Slice(0, rank * count, (rank + 1) * count);
  mine.CopyFrom(input(count));
  calls.Add(group.AllGatherAsync(mine, own), {own});
  const Tensor part = output(count);
  calls.Add(group.ReduceScatterAsync(input(count * n), part), {part});
  const Tensor to = output(count * n);
  calls.Add(group.AllToAllAsync(input(count * n), to), {to});
  const Tensor whole = place(Numbers(rank, count, DType::kI64));
  calls.Add(group.AllReduceAsync(whole, ReduceOp::kMax), {whole});
  // Lists whose parts do not lie side by side.
  std::vector<Tensor> parts, sums;
  for (int k = 0; k < n; ++k) {
    parts.push_back(output(count));
    sums.push_back(input(count));
  }
  calls.Add(group.AllGatherListAsync(input(count), parts), parts);
  const Tensor sum = output(count);
  calls.Add(group.ReduceScatterListAsync(sums, sum), {sum});
}

// Calls each operation with counts that differ; some ranks have none.
inline void CallUneven(ProcessGroup& group, const PlaceFn& place,
                       Calls& calls) {
  const int n = group.size(), rank = group.rank(), root = n - 1;
  const auto count = [](int r) { return int64_t{(r + 1) % 3}; };
  const auto own = [&] { return place(Numbers(rank, count(rank))); };
  const auto outputs = [&] {
    std::vector<Tensor> parts;
    for (int r = 0; r < n; ++r) parts.push_back(Tensor::Zeros({count(r)}));
    return PlaceAll(place, parts);
  };
  const auto inputs = [&] {
    std::vector<Tensor> parts;
    for (int r = 0; r < n; ++r) {
      parts.push_back(Numbers(rank * n + r, count(r)));
    }
    return PlaceAll(place, parts);
  };
  const std::vector<Tensor> gathered = outputs();
  calls.Add(group.AllGatherListAsync(own(), gathered), gathered);
  const std::vector<Tensor> at_root =
      rank == root ? outputs() : std::vector<Tensor>();
  calls.Add(group.GatherAsync(own(), at_root, root), at_root);
  const Tensor scattered = place(Tensor::Zeros({count(rank)}));
  calls.Add(group.ScatterAsync(rank == root ? inputs() : std::vector<Tensor>(),
                               scattered, root),
            {scattered});
  const Tensor sum = place(Tensor::Zeros({count(rank)}));
  calls.Add(group.ReduceScatterListAsync(inputs(), sum), {sum});
  std::vector<Tensor> received;
  for (int r = 0; r < n; ++r) received.push_back(Tensor::Zeros({count(rank)}));
  received = PlaceAll(place, received);
  calls.Add(group.AllToAllListAsync(inputs(), received), received);
  // Elements that do not lie side by side, and several tensors at once.
  const Tensor matrix = place(Numbers(rank, 12).View({4, 3}));
  calls.Add(group.AllReduceAsync(matrix.Select(1, 1)), {matrix});
  const Tensor a = place(Numbers(rank, 5)), b = place(Numbers(rank, 7));
  calls.Add(group.AllReduceCoalescedAsync({a, b}), {a, b});
}

inline absl::StatusOr<std::vector<std::string>> CallAll(ProcessGroup& group,
                                                        const PlaceFn& place,
                                                        bool is_async) {
  Calls calls(is_async);
  for (const int64_t count : {0, 1, 64, 1001}) {
    CallEven(group, place, count, calls);
  }
  CallUneven(group, place, calls);
  return calls.Results();
}

// What CallAll returns on each rank, by the CPU.
inline std::vector<std::vector<std::string>> WantedOf(int size) {
  LocalWorld world(size);
  std::vector<std::vector<std::string>> wanted(size);
  for (const absl::Status& status :
       testing::RunRanks(size, [&](int rank) -> absl::Status {
         const auto group = ProcessGroup::Create(world.Connect(rank));
         WEFT_ASSIGN_OR_RETURN(wanted[rank],
                               CallAll(
                                   *group, [](const Tensor& x) { return x; },
                                   /*is_async=*/false));
         return absl::OkStatus();
       })) {
    WEFT_EXPECT_OK(status);
  }
  return wanted;
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_CALLS_H_
