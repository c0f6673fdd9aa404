#include "weft/base/bytes.h"

#include <algorithm>

#include "weft/base/check.h"

namespace weft {

Bytes Bytes::Copy(absl::string_view bytes) { return Own(std::string(bytes)); }

Bytes Bytes::Copy(absl::Span<const uint8_t> bytes) {
  return Own(std::vector<uint8_t>(bytes.begin(), bytes.end()));
}

Bytes Bytes::Own(std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  const void* begin = owner->data();
  const size_t size = owner->size();
  return Wrap(begin, size, std::move(owner));
}

Bytes Bytes::subspan(size_t offset, size_t size) const {
  WEFT_CHECK_LE(offset, size_);
  return Bytes(data_ + offset, std::min(size, size_ - offset), owner_);
}

Bytes Flatten(const Slices& slices) {
  if (slices.empty()) return Bytes();
  if (slices.size() == 1) return slices.front();
  std::string all;
  all.reserve(TotalSize(slices));
  for (const Bytes& slice : slices) {
    all.append(slice.view().data(), slice.size());
  }
  return Bytes::Own(std::move(all));
}

}  // namespace weft
