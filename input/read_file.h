// ReadFile: a whole file in memory, gunzipped if it is gzip.
//
// Thread-safety: functions without state.

#ifndef WEFT_INPUT_READ_FILE_H_
#define WEFT_INPUT_READ_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::input {

struct ReadFileOptions {
  // Refuses more than this, also once unpacked: a small file can unpack to a
  // thousand times its size.
  int64_t max_bytes = int64_t{4} << 30;
  bool gunzip = true;  // else the bytes are those of the file
};

// kNotFound or kPermissionDenied naming the path; kInvalidArgument for a
// directory or a damaged or cut gzip stream; kResourceExhausted over max_bytes.
absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     const ReadFileOptions& options = {});

// The content of a gzip stream (of several members, as gzip allows). `where`
// begins the messages. kInvalidArgument for a damaged or cut stream;
// kResourceExhausted once `max_bytes` are exceeded: no more than one byte
// beyond them is unpacked.
absl::StatusOr<std::string> Gunzip(absl::string_view packed, int64_t max_bytes,
                                   absl::string_view where);

// The first `head_bytes` bytes of that content, or all of it where that is
// less; what follows them is neither unpacked nor checked. Errors as Gunzip's.
absl::StatusOr<std::string> GunzipHead(absl::string_view packed,
                                       int64_t head_bytes,
                                       absl::string_view where);

bool IsGzip(absl::string_view bytes);

}  // namespace weft::input

#endif  // WEFT_INPUT_READ_FILE_H_
