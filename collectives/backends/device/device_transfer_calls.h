// Send, Receive and Exchange between tensors of devices as one rank does them
// in a test: for the suites of all backends that move them there. Each returns
// OK, or what was wrong.

#ifndef WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_TRANSFER_CALLS_H_
#define WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_TRANSFER_CALLS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_calls.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tests/support/patience.h"

namespace weft::collectives {

inline std::string HostBytesOf(const Tensor& x) {
  return BytesOf(x.To(Device::Cpu()));
}

inline Tensor ZerosOf(const DeviceRank& rank, int64_t count,
                      DType dtype = DType::kF32) {
  return rank.Place(Tensor::Zeros({count}, dtype));
}

// Two ranks. Launches 4 transfers of one element or more.
inline absl::Status MatchByTagAndKeepTheOrder(const DeviceRank& rank) {
  ProcessGroup& group = rank.group;
  const Tensor large = Numbers(0, 30'001);
  if (group.rank() == 0) {
    std::vector<Future<void>> sent;
    for (const int i : {1, 2, 3}) {
      sent.push_back(
          group.SendAsync(rank.Place(Tensor::Full({4}, i)), 1, i % 2));
    }
    sent.push_back(group.SendAsync(rank.Place(large), 1, 9));
    sent.push_back(group.SendAsync(ZerosOf(rank, 0), 1));
    return WaitAll(std::move(sent), kDeviceCallPatience);
  }
  const Tensor tensor = ZerosOf(rank, 4);
  const auto receive = [&](uint64_t tag) -> absl::StatusOr<float> {
    WEFT_RETURN_IF_ERROR(group.Receive(tensor, 0, tag));
    return tensor.To(Device::Cpu()).data<float>()[3];
  };
  WANT_EQ(receive(0).value(), 2.0f);
  WANT_EQ(receive(1).value(), 1.0f);
  WANT_EQ(receive(1).value(), 3.0f);
  const Tensor found = ZerosOf(rank, 30'001);
  WEFT_RETURN_IF_ERROR(group.Receive(found, 0, 9));
  WANT_EQ(HostBytesOf(found), BytesOf(large));
  return group.Receive(ZerosOf(rank, 0), 0);
}

// Each rank sends to each other and receives from it, two of each, in an order
// of its own; collective operations go on meanwhile.
inline absl::Status SendBetweenAllPairsAtOnce(const DeviceRank& rank,
                                              uint64_t seed) {
  ProcessGroup& group = rank.group;
  const int n = group.size();
  std::mt19937_64 random(seed * 31 + group.rank());
  struct Part {
    bool is_send;
    int peer;
    uint64_t tag;
  };
  std::vector<Part> parts;
  for (int peer = 0; peer < n; ++peer) {
    for (uint64_t tag = 0; peer != group.rank() && tag < 2; ++tag) {
      parts.push_back({true, peer, tag});
      parts.push_back({false, peer, tag});
    }
  }
  std::shuffle(parts.begin(), parts.end(), random);
  const auto count = [&](int from, int to, uint64_t tag) {
    return int64_t{1 + from * 10 + to + static_cast<int>(tag) * 100};
  };
  std::vector<Future<void>> all;
  std::vector<std::pair<Part, Tensor>> received;
  for (const Part& part : parts) {
    const int64_t k = part.is_send ? count(group.rank(), part.peer, part.tag)
                                   : count(part.peer, group.rank(), part.tag);
    if (part.is_send) {
      all.push_back(group.SendAsync(rank.Place(Numbers(group.rank(), k)),
                                    part.peer, part.tag));
    } else {
      received.emplace_back(part, ZerosOf(rank, k));
      all.push_back(
          group.ReceiveAsync(received.back().second, part.peer, part.tag));
    }
    if (all.size() == parts.size() / 2) {
      const Tensor sum = rank.Place(Tensor::Ones({5}));
      WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
      WANT_EQ(sum.To(Device::Cpu()).ToVector<float>(),
              std::vector<float>(5, static_cast<float>(n)));
    }
  }
  WEFT_RETURN_IF_ERROR(WaitAll(std::move(all), kDeviceCallPatience));
  for (const auto& [part, tensor] : received) {
    WANT_EQ(HostBytesOf(tensor), BytesOf(Numbers(part.peer, tensor.numel())));
  }
  return group.Barrier();
}

// Around a ring, and of all others to rank 0.
inline absl::Status ExchangeAndReceiveFromAny(const DeviceRank& rank) {
  ProcessGroup& group = rank.group;
  const int n = group.size(), right = (group.rank() + 1) % n,
            left = (group.rank() + n - 1) % n;
  const Tensor out = rank.Place(Numbers(group.rank(), 1000));
  const Tensor in = ZerosOf(rank, 1000);
  WEFT_RETURN_IF_ERROR(group.Exchange({{PointToPoint::kReceive, in, left, 5},
                                       {PointToPoint::kSend, out, right, 5}}));
  WANT_EQ(HostBytesOf(in), BytesOf(Numbers(left, 1000)));
  if (group.rank() != 0) return group.Send(out, 0, 4);
  std::map<int, std::string> found;
  for (int i = 1; i < n; ++i) {
    WEFT_ASSIGN_OR_RETURN(const int from, group.ReceiveAny(in, 4));
    found[from] = HostBytesOf(in);
  }
  WANT_EQ(found.size(), static_cast<size_t>(n - 1));
  for (const auto& [from, bytes] : found) {
    WANT_EQ(bytes, BytesOf(Numbers(from, 1000)));
  }
  return absl::OkStatus();
}

// Two ranks; two of three messages are of another kind than is wanted.
inline absl::Status RefuseTensorsOfAnotherKind(const DeviceRank& rank) {
  ProcessGroup& group = rank.group;
  if (group.rank() == 0) {
    WEFT_RETURN_IF_ERROR(group.Send(ZerosOf(rank, 3), 1));
    WEFT_RETURN_IF_ERROR(group.Send(ZerosOf(rank, 4, DType::kI32), 1));
    return group.Send(rank.Place(Tensor::Ones({4})), 1);
  }
  const Tensor tensor = ZerosOf(rank, 4);
  for (const std::string sent : {"f32[3]", "i32[4]"}) {
    const absl::Status wrong = group.Receive(tensor, 0);
    WANT_EQ(wrong.code(), kInvalid);
    WANT_EQ(
        absl::StrContains(wrong.message(), "wants f32[4], rank 0 sent " + sent),
        true);
  }
  WEFT_RETURN_IF_ERROR(group.Receive(tensor, 0));
  WANT_EQ(HostBytesOf(tensor), BytesOf(Tensor::Ones({4})));
  return group.health();
}

// Two ranks; each tensor is on the CPU or one of two devices.
inline absl::Status SendBetweenTheCpuAndDevices(const DeviceRank& rank) {
  ProcessGroup& group = rank.group;
  const int other = 1 - group.rank();
  for (int64_t count : {1, 25, 26, 500}) {
    // 0: the CPU; else that device.
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        const auto place = [&](const Tensor& x, int where) {
          return where == 0 ? x.Clone() : rank.Place(x, where - 1);
        };
        const Tensor in = place(Tensor::Zeros({count}), to);
        Future<void> received = group.ReceiveAsync(in, other);
        const Tensor out = place(Numbers(group.rank(), count), from);
        WEFT_RETURN_IF_ERROR(group.Send(out, other));
        WEFT_RETURN_IF_ERROR(received.Wait(kDeviceCallPatience));
        WANT_EQ(HostBytesOf(in), BytesOf(Numbers(other, count)));
      }
    }
  }
  return absl::OkStatus();
}

// Two ranks; the caller drops what it sends at once.
inline absl::Status SendWhatIsNotComputedYet(const DeviceRank& rank) {
  ProcessGroup& group = rank.group;
  std::vector<Future<void>> all;
  std::vector<Tensor> received;
  for (int round = 0; round < 5; ++round) {
    if (group.rank() == 0) {
      const Tensor x = rank.Place(Numbers(0, 100));
      Mul_(x, 2);
      all.push_back(group.SendAsync(x, 1));
      // The caller drops it at once, and others take its place.
      const Tensor other = ZerosOf(rank, 100);
      Mul_(other, 3);
    } else {
      received.push_back(ZerosOf(rank, 100));
      Future<void> one = group.ReceiveAsync(received.back(), 0);
      WEFT_RETURN_IF_ERROR(one.Wait(kDeviceCallPatience));
      Mul_(received.back(), 3);
    }
  }
  WEFT_RETURN_IF_ERROR(WaitAll(std::move(all), kDeviceCallPatience));
  const Tensor wanted = Numbers(0, 100);
  Mul_(wanted, 6);
  for (const Tensor& x : received) WANT_EQ(HostBytesOf(x), BytesOf(wanted));
  return absl::OkStatus();
}

// Two ranks, which share `is_late`; what is given up is not received.
inline absl::Status GiveUpWhatIsNotReceived(const DeviceRank& rank,
                                            std::atomic<bool>& is_late) {
  ProcessGroup& group = rank.group;
  const Tensor x = ZerosOf(rank, 4);
  if (group.rank() == 0) {
    const absl::Status late = group.Send(rank.Place(Tensor::Full({4}, 7)), 1, 3,
                                         Within(absl::Milliseconds(50)));
    WANT_EQ(late.code(), kLate);
    WANT_EQ(absl::StrContains(late.message(), "to rank 1, tag 3"), true);
    is_late = true;
    WEFT_RETURN_IF_ERROR(group.health());
    // What was given up is not what the other receives.
    return group.Send(rank.Place(Tensor::Full({4}, 8)), 1, 3);
  }
  const absl::Status late =
      group.Receive(x, 0, 4, Within(absl::Milliseconds(50)));
  WANT_EQ(late.code(), kLate);
  WANT_EQ(absl::StrContains(late.message(), "from rank 0, tag 4"), true);
  WANT_EQ(bool(testing::Becomes([&] { return is_late.load(); })), true);
  WEFT_RETURN_IF_ERROR(group.Receive(x, 0, 3));
  WANT_EQ(HostBytesOf(x), BytesOf(Tensor::Full({4}, 8)));
  return group.health();
}

// Two ranks, which share `step`. The thread that gives a Send up is held behind
// its Future, while the other rank asks for what was given up, and the same
// rank sends again.
inline absl::Status SendAgainBesideOneThatIsGivenUp(const DeviceRank& rank,
                                                    std::atomic<int>& step) {
  enum : int { kGivenUp = 1, kAsked, kSentAgain };
  const auto reach = [&](int wanted) {
    return bool(testing::Becomes([&] { return step.load() >= wanted; }));
  };
  ProcessGroup& group = rank.group;
  const Tensor x = ZerosOf(rank, 4);
  if (group.rank() == 1) {
    WANT_EQ(reach(kGivenUp), true);
    Future<void> received = group.ReceiveAsync(x, 0, 3);
    step = kAsked;
    WEFT_RETURN_IF_ERROR(received.Wait(kDeviceCallPatience));
    WANT_EQ(HostBytesOf(x), BytesOf(Tensor::Full({4}, 8)));
    return group.health();
  }
  std::atomic<bool> was_held{false};
  const Tensor first = rank.Place(Tensor::Full({4}, 7));
  Future<void> late = MakeReady();
  // On a thread of its own: where the Send has been given up before that thread
  // is at OnReady, the callback holds that thread.
  std::thread gives_up([&] {
    late = group.SendAsync(first, 1, 3, Within(absl::Milliseconds(500)));
    late.OnReady([&](const absl::Status& status) {
      step = kGivenUp;
      was_held = !status.ok() && reach(kSentAgain);
    });
  });
  const absl::Status again = [&]() -> absl::Status {
    WANT_EQ(reach(kAsked), true);
    Future<void> sent = group.SendAsync(rank.Place(Tensor::Full({4}, 8)), 1, 3);
    step = kSentAgain;
    return sent.Wait(kDeviceCallPatience);
  }();
  gives_up.join();
  WEFT_RETURN_IF_ERROR(again);
  WANT_EQ(late.Wait(kDeviceCallPatience).code(), kLate);
  WANT_EQ(bool(testing::Becomes([&] { return was_held.load(); })), true);
  return group.health();
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_TRANSFER_CALLS_H_
