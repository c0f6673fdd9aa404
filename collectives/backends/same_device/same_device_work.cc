#include "weft/collectives/backends/same_device/same_device_work.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/backends/same_device/reduce_on_device.h"

namespace weft::collectives {
namespace {

class Work {
 public:
  Work(device::Stream stream, absl::Span<const Operation* const> ranks)
      : stream_(stream), ranks_(ranks), size_(static_cast<int>(ranks.size())) {}

  absl::Status Put() const;

 private:
  const Operation& first() const { return *ranks_[0]; }
  int root() const { return first().root; }

  absl::Status Copy(const Block& from, const Block& to) const {
    if (from.memory == to.memory || from.elements == 0) return absl::OkStatus();
    return stream_.runtime().CopyAsync(to.memory, from.memory,
                                       first().BytesOf(from), stream_);
  }
  // Input `index` of each rank, into `outputs`.
  absl::Status Reduce(int index, std::vector<std::byte*> outputs) const;
  absl::Status AllReduce() const;
  absl::Status ReduceScatter() const;
  absl::Status Broadcast() const;
  absl::Status AllGather() const;
  absl::Status Gather() const;
  absl::Status Scatter() const;
  absl::Status AllToAll() const;
  absl::Status SendToReceive() const;

  const device::Stream stream_;
  const absl::Span<const Operation* const> ranks_;
  const int size_;
};

absl::Status Work::Reduce(int index, std::vector<std::byte*> outputs) const {
  const int64_t count = first().inputs[index].elements;
  if (count == 0) return absl::OkStatus();
  std::vector<Contribution> contributions;
  for (const Operation* const rank : ranks_) {
    contributions.push_back(
        {rank->inputs[index].memory, rank->reduction.factor});
  }
  return ReduceOnDevice(stream_, first().dtype, first().reduction.op,
                        std::move(contributions), std::move(outputs), count);
}

absl::Status Work::AllReduce() const {
  std::vector<std::byte*> outputs;
  for (const Operation* const rank : ranks_) {
    outputs.push_back(rank->outputs[0].memory);
  }
  return Reduce(0, std::move(outputs));
}

// One rank after the other: what is written in place is an input that no later
// one reads.
absl::Status Work::ReduceScatter() const {
  for (int r = 0; r < size_; ++r) {
    WEFT_RETURN_IF_ERROR(Reduce(r, {ranks_[r]->outputs[0].memory}));
  }
  return absl::OkStatus();
}

absl::Status Work::Broadcast() const {
  for (const Operation* const rank : ranks_) {
    WEFT_RETURN_IF_ERROR(Copy(ranks_[root()]->outputs[0], rank->outputs[0]));
  }
  return absl::OkStatus();
}

absl::Status Work::AllGather() const {
  for (const Operation* const rank : ranks_) {
    for (int from = 0; from < size_; ++from) {
      WEFT_RETURN_IF_ERROR(Copy(ranks_[from]->inputs[0], rank->outputs[from]));
    }
  }
  return absl::OkStatus();
}

absl::Status Work::Gather() const {
  for (int from = 0; from < size_; ++from) {
    WEFT_RETURN_IF_ERROR(
        Copy(ranks_[from]->inputs[0], ranks_[root()]->outputs[from]));
  }
  return absl::OkStatus();
}

absl::Status Work::Scatter() const {
  for (int to = 0; to < size_; ++to) {
    WEFT_RETURN_IF_ERROR(
        Copy(ranks_[root()]->inputs[to], ranks_[to]->outputs[0]));
  }
  return absl::OkStatus();
}

absl::Status Work::AllToAll() const {
  for (int to = 0; to < size_; ++to) {
    for (int from = 0; from < size_; ++from) {
      WEFT_RETURN_IF_ERROR(
          Copy(ranks_[from]->inputs[to], ranks_[to]->outputs[from]));
    }
  }
  return absl::OkStatus();
}

absl::Status Work::SendToReceive() const {
  const int from = first().verb == Verb::kSend ? 0 : 1;
  return Copy(ranks_[from]->inputs[0], ranks_[1 - from]->outputs[0]);
}

absl::Status Work::Put() const {
  switch (first().verb) {
    case Verb::kAllReduce:
      return AllReduce();
    case Verb::kReduce:
      return Reduce(0, {ranks_[root()]->outputs[0].memory});
    case Verb::kReduceScatter:
      return ReduceScatter();
    case Verb::kBroadcast:
      return Broadcast();
    case Verb::kAllGather:
      return AllGather();
    case Verb::kGather:
      return Gather();
    case Verb::kScatter:
      return Scatter();
    case Verb::kAllToAll:
      return AllToAll();
    case Verb::kSend:
    case Verb::kReceive:
      return SendToReceive();
    default:
      return absl::InternalError(
          absl::StrCat(Name(first().verb), " is no work of a shared device"));
  }
}

}  // namespace

bool IsOfSameDevice(Verb verb) {
  switch (verb) {
    case Verb::kAllReduce:
    case Verb::kReduce:
    case Verb::kReduceScatter:
    case Verb::kBroadcast:
    case Verb::kAllGather:
    case Verb::kGather:
    case Verb::kScatter:
    case Verb::kAllToAll:
      return true;
    default:
      return false;
  }
}

absl::Status PutWorkOfAll(device::Stream stream,
                          absl::Span<const Operation* const> ranks) {
  return Work(stream, ranks).Put();
}

}  // namespace weft::collectives
