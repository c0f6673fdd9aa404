// Journal: see the header.

#include "weft/rendezvous/journal/journal.h"

#include <xxhash.h>

#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "weft/base/status_macros.h"

namespace weft::rendezvous {
namespace {

constexpr size_t kHeaderBytes = sizeof(uint32_t) + sizeof(uint64_t);
constexpr uint32_t kMaxRecordBytes = 64 << 20;

std::string Frame(const v1::LogRecord& record) {
  const std::string body = record.SerializeAsString();
  const uint32_t size = body.size();
  const uint64_t hash = XXH64(body.data(), body.size(), 0);
  std::string frame(kHeaderBytes, '\0');
  std::memcpy(&frame[0], &size, sizeof(size));
  std::memcpy(&frame[sizeof(size)], &hash, sizeof(hash));
  return frame + body;
}

// A power loss may leave zeros of a write if its size reached the disk.
bool IsAllZeros(absl::string_view bytes) {
  return bytes.find_first_not_of('\0') == absl::string_view::npos;
}

// Takes the next record off `bytes`. False if they hold no whole one.
absl::StatusOr<bool> TakeRecord(absl::string_view* bytes,
                                v1::LogRecord* record) {
  if (bytes->size() < kHeaderBytes) return false;
  uint32_t size;
  uint64_t hash;
  std::memcpy(&size, bytes->data(), sizeof(size));
  std::memcpy(&hash, bytes->data() + sizeof(size), sizeof(hash));
  const absl::string_view rest = bytes->substr(kHeaderBytes);
  if (size > rest.size()) {
    // A write that was cut leaves less than it announced, but not a size that
    // was never written.
    if (size > kMaxRecordBytes) return absl::DataLossError("a false length");
    return false;
  }
  const absl::string_view body = rest.substr(0, size);
  const bool is_whole = XXH64(body.data(), body.size(), 0) == hash &&
                        record->ParseFromArray(body.data(), body.size());
  if (!is_whole) {
    if (IsAllZeros(rest.substr(size))) return false;  // the last, torn
    return absl::DataLossError("a false checksum");
  }
  *bytes = rest.substr(size);
  return true;
}

}  // namespace

std::string FrameRecords(const std::vector<v1::LogRecord>& records) {
  std::string frames;
  for (const v1::LogRecord& record : records) frames += Frame(record);
  return frames;
}

absl::Status TakeRecords(absl::string_view* bytes,
                         std::vector<v1::LogRecord>* records) {
  v1::LogRecord record;
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const bool taken, TakeRecord(bytes, &record));
    if (!taken) return absl::OkStatus();
    records->push_back(std::move(record));
  }
}

}  // namespace weft::rendezvous
