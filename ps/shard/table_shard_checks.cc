#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/ps/shard/shard_tensors.h"
#include "weft/ps/shard/table_shard.h"

// What a push or a pull must be before anything of it is used.

namespace weft::ps {
namespace {

using internal::Found;
using internal::IsFlat;
using internal::KeysOf;

// The largest result of one pull of a sparse table.
constexpr int64_t kMaxPullBytes = int64_t{1} << 30;

}  // namespace

absl::Status TableShard::CheckSpan(uint32_t partition,
                                   absl::Span<const uint64_t> keys) const {
  uint64_t last = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t mixed = Mix64(keys[i]);
    if (placement_.PartitionOfMixed(mixed) != static_cast<int>(partition)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "key ", keys[i], " came in partition ", partition, " but belongs to ",
          placement_.PartitionOfKey(keys[i]),
          "; client and server must be built from the same sources"));
    }
    if (i > 0 && mixed <= last) {
      return absl::InvalidArgumentError(
          absl::StrCat("keys of partition ", partition,
                       " do not strictly ascend, mixed, at ", keys[i]));
    }
    last = mixed;
  }
  return absl::OkStatus();
}

absl::Status TableShard::CheckPush(const v1::Request& request,
                                   const Tensor& keys,
                                   const Tensor& values) const {
  const auto refuse = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("push to table '", spec().name(), "' on server ", server_,
                     ": ", what...));
  };
  if (layout_->is_dense() && keys.defined()) {
    return refuse("wanted no keys, found ", Found(keys));
  }
  if (!layout_->is_dense() && !IsFlat(keys, DType::kI64, 1)) {
    return refuse("wanted keys i64[n], found ", Found(keys));
  }
  const int spans = request.partitions_size();
  if (request.rows_size() != spans ||
      request.sequences_size() != (is_sync() ? 0 : spans)) {
    return refuse("wanted rows for each of ", spans,
                  " spans, and sequences in ", "ASYNC only, found ",
                  request.rows_size(), " and ", request.sequences_size());
  }
  if (is_sync() && request.rank() < 0) {
    return refuse("wanted a rank of at least 0, found ", request.rank());
  }
  const absl::Span<const uint64_t> all = KeysOf(keys);
  size_t at = 0;
  int64_t previous = -1;
  for (int i = 0; i < spans; ++i) {
    const uint32_t partition = request.partitions(i);
    const size_t rows = request.rows(i);
    const bool is_here = Owns(partition);
    const int64_t place =
        is_here && layout_->is_dense() ? dense_group_[partition] : partition;
    if (!is_here || place <= previous) {
      return refuse("partition ", partition,
                    " is not held here, or is out of order");
    }
    previous = place;
    if (!is_sync() && request.sequences(i) == PushSpan::kUnnumbered) {
      return refuse("partition ", partition, " has no sequence number");
    }
    if (layout_->is_dense()) {
      const DensePart::Group* group = DenseGroup(partition);
      if (rows != group->slices.size()) {
        return refuse("partition ", partition, " has ", group->slices.size(),
                      " slices, ", rows, " were sent");
      }
      continue;
    }
    if (rows > all.size() - at) {
      return refuse("spans name more rows than the ", all.size(), " keys sent");
    }
    const absl::Status checked = CheckSpan(partition, all.subspan(at, rows));
    if (!checked.ok()) return refuse(checked.message());
    at += rows;
  }
  if (at != all.size()) {
    return refuse(all.size(), " keys were sent, spans name ", at);
  }
  const std::vector<uint64_t> slices = PushedSlices(request);
  const absl::Status fit =
      CheckValues(layout_->is_dense() ? slices : all, values);
  return fit.ok() ? fit : refuse(fit.message());
}

absl::Status TableShard::CheckValues(absl::Span<const uint64_t> keys,
                                     const Tensor& values) const {
  const auto refuse = [&](const std::string& wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted values ", wanted, ", found ", Found(values)));
  };
  const WireDtype dtype = spec().wire().push();
  const int64_t bytes = WireBytes(*layout_, dtype, keys);
  if (dtype != v1::WireValues::F32) {
    if (!IsFlat(values, DType::kU8, 1) || values.numel() != bytes) {
      return refuse(absl::StrCat("u8[", bytes, "] of ", WireName(dtype),
                                 ", as wire.push says"));
    }
    const std::string fault =
        FaultOfPushed(*layout_, dtype, keys,
                      reinterpret_cast<const char*>(values.data<uint8_t>()));
    return fault.empty() ? absl::OkStatus() : absl::InvalidArgumentError(fault);
  }
  const int64_t elements = bytes / static_cast<int64_t>(sizeof(float));
  const int dims = layout_->is_dense() ? 1 : 2;
  if (IsFlat(values, DType::kF32, dims) && values.numel() == elements &&
      (dims == 1 || values.size(1) == layout_->dim())) {
    return absl::OkStatus();
  }
  return refuse(
      dims == 1 ? absl::StrCat("f32[", elements, "]")
                : absl::StrCat("f32[", keys.size(), ", ", layout_->dim(), "]"));
}

std::vector<uint64_t> TableShard::PushedSlices(
    const v1::Request& request) const {
  std::vector<uint64_t> slices;
  for (const uint32_t partition : request.partitions()) {
    const DensePart::Group* group = DenseGroup(partition);
    if (group == nullptr) continue;  // the table is sparse
    slices.insert(slices.end(), group->slices.begin(), group->slices.end());
  }
  return slices;
}

Tensor TableShard::FloatsOf(const v1::Request& request, const Tensor& keys,
                            Tensor values) const {
  const WireDtype dtype = spec().wire().push();
  if (dtype == v1::WireValues::F32) return values;
  const std::vector<uint64_t> slices = PushedSlices(request);
  const absl::Span<const uint64_t> rows =
      layout_->is_dense() ? slices : KeysOf(keys);
  Tensor floats =
      Tensor::Empty({WireBytes(*layout_, v1::WireValues::F32, rows) /
                     static_cast<int64_t>(sizeof(float))});
  ReadWire(*layout_, dtype, rows,
           reinterpret_cast<const char*>(values.data<uint8_t>()),
           floats.data<float>());
  return floats;
}

int64_t TableShard::PulledBytes(const Tensor& pull_keys) const {
  const WireDtype dtype = spec().wire().pull();
  if (layout_->is_dense()) {
    return WireBytes(*layout_, dtype, SlicesOf(dense_.groups));
  }
  // What they are is not checked yet.
  return pull_keys.defined()
             ? pull_keys.numel() * WireBytes(dtype, layout_->dim())
             : 0;
}

absl::Status TableShard::NotHere(uint64_t key) const {
  return absl::InvalidArgumentError(
      absl::StrCat("pull from table '", spec().name(), "' on server ", server_,
                   ": key ", key, " belongs to server ",
                   placement_.ServerOf(placement_.PartitionOfKey(key)),
                   "; client and server must agree on the number of servers"));
}

absl::Status TableShard::CheckPull(const Tensor& keys) const {
  if (layout_->is_dense()) return absl::OkStatus();
  const std::string where = absl::StrCat("pull from table '", spec().name(),
                                         "' on server ", server_, ": ");
  if (!IsFlat(keys, DType::kI64, 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "wanted keys i64[n], found ", Found(keys)));
  }
  // A key is 8 bytes, its row up to 256 KiB.
  if (keys.numel() > kMaxPullBytes / (4 * layout_->dim())) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, keys.numel(), " rows of ", layout_->dim(),
                     " floats were asked for at once; ", kMaxPullBytes,
                     " bytes are the most, ask in several pulls"));
  }
  if (placement_.servers() == 1) return absl::OkStatus();  // all keys are here
  for (uint64_t key : KeysOf(keys)) {
    if (!Owns(placement_.PartitionOfKey(key))) return NotHere(key);
  }
  return absl::OkStatus();
}

}  // namespace weft::ps
