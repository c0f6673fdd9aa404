// CompareWithCpu: each operation of a group on tensors of a device, beside what
// the CPU gives.

#ifndef WEFT_TESTS_GPU_COMPARE_CALLS_H_
#define WEFT_TESTS_GPU_COMPARE_CALLS_H_

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_calls.h"
#include "weft/collectives/process_group.h"
#include "weft/device/context.h"
#include "weft/device/current.h"

namespace weft::testing {

// Calls each operation twice, waiting for each and all at once, and sends
// around the ring, on a stream of this rank's own. kInternal, or an error of
// the group: what differs. Rank 0 prints what was compared, with `title`.
inline absl::Status CompareWithCpu(absl::string_view title,
                                   collectives::ProcessGroup& group,
                                   device::Context& context, int index) {
  const int size = group.size(), rank = group.rank();
  const Device place(context, index);
  WEFT_ASSIGN_OR_RETURN(const device::Stream stream,
                        context.runtime().CreateStream(context.device(index)));
  const device::StreamScope scope(stream);
  const auto wanted = collectives::WantedOf(size);
  const auto to_device = [&](const Tensor& x) { return x.To(place); };
  for (const bool is_async : {false, true}) {
    WEFT_ASSIGN_OR_RETURN(const auto found,
                          collectives::CallAll(group, to_device, is_async));
    WANT_EQ(found == wanted[rank], true);
  }
  // Of 100,000 elements, which is more than goes over the host.
  constexpr int64_t kCount = 100'000;
  const Tensor in = to_device(Tensor::Zeros({kCount}));
  const int left = (rank + size - 1) % size, right = (rank + 1) % size;
  using collectives::Numbers;
  using collectives::PointToPoint;
  if (size > 1) {
    WEFT_RETURN_IF_ERROR(group.Exchange(
        {{PointToPoint::kReceive, in, left, 5},
         {PointToPoint::kSend, to_device(Numbers(rank, kCount)), right, 5}}));
    WANT_EQ(collectives::BytesOf(in.To(Device::Cpu())) ==
                collectives::BytesOf(Numbers(left, kCount)),
            true);
  }
  if (rank == 0) {
    std::printf(
        "compared: %s: %d rank(s), %zu results of operations%s: equal "
        "to the CPU's\n",
        std::string(title).c_str(), size, 2 * wanted[rank].size(),
        size > 1 ? " and an exchange" : "");
    std::fflush(stdout);
  }
  return group.Barrier();
}

}  // namespace weft::testing

#endif  // WEFT_TESTS_GPU_COMPARE_CALLS_H_
