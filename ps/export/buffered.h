// Buffered: gives bytes on to a file in larger parts.

#ifndef WEFT_PS_EXPORT_BUFFERED_H_
#define WEFT_PS_EXPORT_BUFFERED_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/file_system.h"

namespace weft::ps {

// Thread-safety: one thread at a time.
class Buffered {
 public:
  explicit Buffered(checkpoint::WritableFile& file) : file_(file) {
    bytes_.reserve(kBytes);
  }
  absl::Status Append(absl::string_view bytes) {
    if (bytes_.size() + bytes.size() > kBytes) WEFT_RETURN_IF_ERROR(Flush());
    if (bytes.size() > kBytes) return file_.Append(bytes);
    bytes_.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  absl::Status Flush() {
    const absl::Status written = file_.Append(bytes_);
    bytes_.clear();
    return written;
  }

 private:
  static constexpr size_t kBytes = size_t{256} << 10;

  checkpoint::WritableFile& file_;
  std::string bytes_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_BUFFERED_H_
