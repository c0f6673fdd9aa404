#include "weft/base/io/record_frames.h"

#include <xxhash.h>

#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr size_t kHeaderBytes = 2 * sizeof(uint32_t) + sizeof(uint64_t);
static_assert(kHeaderBytes == kFrameHeaderBytes);
constexpr char kEnd = '\x5a';

uint32_t CheckOf(uint32_t size) {
  return static_cast<uint32_t>(XXH64(&size, sizeof(size), 1));
}

bool IsAllZeros(absl::string_view bytes) {
  return bytes.find_first_not_of('\0') == absl::string_view::npos;
}

}  // namespace

void AppendFrame(absl::string_view record, std::string* to) {
  const uint32_t size = static_cast<uint32_t>(record.size());
  const uint32_t check = CheckOf(size);
  const uint64_t hash = XXH64(record.data(), record.size(), 0);
  char header[kHeaderBytes];
  std::memcpy(header, &size, sizeof(size));
  std::memcpy(header + sizeof(size), &check, sizeof(check));
  std::memcpy(header + sizeof(size) + sizeof(check), &hash, sizeof(hash));
  to->append(header, sizeof(header));
  to->append(record.data(), record.size());
  to->push_back(kEnd);
}

std::optional<uint32_t> FrameLength(absl::string_view bytes) {
  uint32_t size;
  uint32_t check;
  std::memcpy(&size, bytes.data(), sizeof(size));
  std::memcpy(&check, bytes.data() + sizeof(size), sizeof(check));
  if (check != CheckOf(size)) return std::nullopt;
  return size;
}

absl::StatusOr<bool> TakeFrame(absl::string_view* bytes, uint32_t most_bytes,
                               absl::string_view* record) {
  if (bytes->size() < kHeaderBytes) return false;
  const std::optional<uint32_t> length = FrameLength(*bytes);
  uint64_t hash;
  std::memcpy(&hash, bytes->data() + kHeaderBytes - sizeof(hash), sizeof(hash));
  const absl::string_view rest = bytes->substr(kHeaderBytes);
  if (!length.has_value()) {
    if (IsAllZeros(rest)) return false;
    return absl::DataLossError("a false length");
  }
  const uint32_t size = *length;
  if (size > most_bytes) {
    return absl::DataLossError(absl::StrCat("a record of ", size, " bytes"));
  }
  if (size >= rest.size()) return false;  // it was cut
  const char end = rest[size];
  if (end != kEnd || XXH64(rest.data(), size, 0) != hash) {
    if (end == '\0' && IsAllZeros(rest.substr(size))) return false;
    return absl::DataLossError("a false checksum");
  }
  *record = rest.substr(0, size);
  *bytes = rest.substr(size + 1);
  return true;
}

}  // namespace weft
