#include "weft/train/state_parts.h"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/tensor/device.h"
#include "weft/tensor/dtype.h"

namespace weft::train {
namespace {

// Parts are small enough that several ranks have as much to send each, and
// large enough that what a message costs besides does not count.
constexpr int64_t kMostOfAPart = int64_t{2} << 20;
// Tensors below this size are packed.
constexpr int64_t kSmall = int64_t{64} << 10;

}  // namespace

StateParts::StateParts(std::vector<NamedTensor> tensors)
    : tensors_(std::move(tensors)) {
  for (const NamedTensor& one : tensors_) {
    const Tensor here = one.tensor.device().is_cpu()
                            ? one.tensor.Contiguous()
                            : one.tensor.To(Device::Cpu());
    flat_.push_back(here.View({here.numel()}));
  }
  Cut();
}

void StateParts::Cut() {
  int64_t packed = 0;
  for (size_t i = 0; i < flat_.size(); ++i) {
    if (flat_[i].bytes() > kSmall || flat_[i].numel() == 0) continue;
    if (packed + flat_[i].bytes() > kMostOfAPart) {
      AddPart(std::exchange(packed, 0));
    }
    pieces_.push_back({i, 0, flat_[i].numel()});
    packed += flat_[i].bytes();
  }
  if (packed > 0) AddPart(packed);
  for (size_t i = 0; i < flat_.size(); ++i) {
    if (flat_[i].bytes() <= kSmall) continue;
    const int64_t item = ItemSize(flat_[i].dtype());
    const int64_t step = kMostOfAPart / item;
    for (int64_t begin = 0; begin < flat_[i].numel(); begin += step) {
      const int64_t end = std::min(begin + step, flat_[i].numel());
      pieces_.push_back({i, begin, end});
      AddPart((end - begin) * item);
    }
  }
}

// Makes a part of the pieces that are in none yet.
void StateParts::AddPart(int64_t bytes) {
  const size_t first = parts_.empty() ? 0 : parts_.back().last;
  parts_.push_back({first, pieces_.size(), bytes});
}

std::vector<int64_t> StateParts::bytes() const {
  std::vector<int64_t> bytes;
  for (const Part& part : parts_) bytes.push_back(part.bytes);
  return bytes;
}

std::vector<int> StateParts::All() const {
  std::vector<int> all(parts_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Tensor StateParts::Of(const Piece& piece) const {
  return flat_[piece.tensor].Slice(0, piece.begin, piece.end);
}

Tensor StateParts::Outgoing(int part) const {
  const Part& one = parts_[part];
  if (one.last - one.first == 1) return Of(pieces_[one.first]);
  const Tensor packed = Tensor::Empty({one.bytes}, DType::kU8);
  auto* to = packed.data<uint8_t>();
  for (size_t i = one.first; i < one.last; ++i) {
    const Tensor piece = Of(pieces_[i]);
    std::memcpy(to, piece.raw(), static_cast<size_t>(piece.bytes()));
    to += piece.bytes();
  }
  return packed;
}

Tensor StateParts::Incoming(int part) const {
  const Part& one = parts_[part];
  if (one.last - one.first == 1) return Of(pieces_[one.first]);
  return Tensor::Empty({one.bytes}, DType::kU8);
}

void StateParts::Place(int part, const Tensor& incoming) const {
  const Part& one = parts_[part];
  if (one.last - one.first == 1) return;  // it was received there
  const uint8_t* from = incoming.data<uint8_t>();
  for (size_t i = one.first; i < one.last; ++i) {
    const Tensor piece = Of(pieces_[i]);
    std::memcpy(piece.raw(), from, static_cast<size_t>(piece.bytes()));
    piece.BumpVersion();
    from += piece.bytes();
  }
}

uint64_t StateParts::HashOf(const Piece& piece) const {
  const Tensor slice = Of(piece);
  return XXH3_64bits(slice.raw(), static_cast<size_t>(slice.bytes()));
}

size_t StateParts::pieces_of(int begin, int end) const {
  return begin < end ? parts_[end - 1].last - parts_[begin].first : 0;
}

std::vector<uint64_t> StateParts::HashesOf(int begin, int end) const {
  std::vector<uint64_t> hashes;
  hashes.reserve(pieces_of(begin, end));
  for (int part = begin; part < end; ++part) {
    for (size_t i = parts_[part].first; i < parts_[part].last; ++i) {
      hashes.push_back(HashOf(pieces_[i]));
    }
  }
  return hashes;
}

std::vector<int> StateParts::Differing(
    const std::vector<int>& parts, const std::vector<uint64_t>& hashes) const {
  std::vector<int> differing;
  for (const int part : parts) {
    for (size_t i = parts_[part].first; i < parts_[part].last; ++i) {
      if (HashOf(pieces_[i]) == hashes[i]) continue;
      differing.push_back(part);
      break;
    }
  }
  return differing;
}

std::vector<int> StateParts::DifferingOf(
    int begin, int end, const std::vector<uint64_t>& own,
    const std::vector<uint64_t>& hashes) const {
  std::vector<int> differing;
  for (int part = begin; part < end; ++part) {
    const size_t first = parts_[part].first, last = parts_[part].last;
    if (!std::equal(own.begin() + first, own.begin() + last,
                    hashes.begin() + first)) {
      differing.push_back(part);
    }
  }
  return differing;
}

bool StateParts::share_memory() const {
  std::vector<std::pair<const std::byte*, const std::byte*>> ranges;
  for (const Tensor& tensor : flat_) {
    if (tensor.numel() == 0) continue;
    const auto* const begin = static_cast<const std::byte*>(tensor.raw());
    ranges.emplace_back(begin, begin + tensor.bytes());
  }
  std::sort(ranges.begin(), ranges.end());
  return std::adjacent_find(ranges.begin(), ranges.end(),
                            [](const auto& one, const auto& next) {
                              return next.first < one.second;
                            }) != ranges.end();
}

std::string StateParts::Difference(int part,
                                   const std::vector<uint64_t>& wanted) const {
  for (size_t i = parts_[part].first; i < parts_[part].last; ++i) {
    const uint64_t found = HashOf(pieces_[i]);
    if (found == wanted[i]) continue;
    return absl::StrCat(tensors_[pieces_[i].tensor].name, " with bits of hash ",
                        absl::Hex(wanted[i], absl::kZeroPad16), ", found ",
                        absl::Hex(found, absl::kZeroPad16));
  }
  return "nothing that differs";
}

void StateParts::WriteBack() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i].tensor;
    if (tensor.device().is_cpu() && tensor.is_contiguous()) continue;
    tensor.CopyFrom(flat_[i].View(tensor.shape()));
  }
}

}  // namespace weft::train
