// Journal: see the header.

#include "weft/rendezvous/journal/journal.h"

#include <utility>

#include "weft/base/io/record_frames.h"
#include "weft/base/status_macros.h"

namespace weft::rendezvous {
namespace {

constexpr uint32_t kMaxRecordBytes = 64 << 20;

}  // namespace

std::string FrameRecords(const std::vector<v1::LogRecord>& records) {
  std::string frames;
  for (const v1::LogRecord& record : records) {
    AppendFrame(record.SerializeAsString(), &frames);
  }
  return frames;
}

absl::Status TakeRecords(absl::string_view* bytes,
                         std::vector<v1::LogRecord>* records) {
  v1::LogRecord record;
  absl::string_view body;
  for (;;) {
    absl::string_view rest = *bytes;
    WEFT_ASSIGN_OR_RETURN(const bool taken,
                          TakeFrame(&rest, kMaxRecordBytes, &body));
    if (!taken) return absl::OkStatus();
    if (!record.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
      return absl::DataLossError("no record");
    }
    records->push_back(std::move(record));
    *bytes = rest;
  }
}

}  // namespace weft::rendezvous
