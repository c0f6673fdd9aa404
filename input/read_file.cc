#include "weft/input/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::input {
namespace {

absl::Status TooLarge(absl::string_view where, int64_t max_bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat(where, ": more than the allowed ", max_bytes,
                   " bytes; raise ReadFileOptions::max_bytes if they are "
                   "meant"));
}

absl::StatusOr<std::string> ReadRaw(const std::string& path,
                                    int64_t max_bytes) {
  // Without the wait for somebody who writes, of a FIFO.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  }
  const absl::Cleanup close_it = [fd] { close(fd); };
  struct stat stat = {};
  if (fstat(fd, &stat) != 0 || !S_ISREG(stat.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": wanted a regular file"));
  }
  if (stat.st_size > max_bytes) return TooLarge(path, max_bytes);
  std::string bytes(stat.st_size, '\0');
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = read(fd, &bytes[have], bytes.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    }
    if (got == 0) break;  // cut while we read it: its parser will say so
    have += got;
  }
  bytes.resize(have);
  return bytes;
}

// Unpacks gzip until `enough` bytes are there or the content ends.
absl::StatusOr<std::string> Inflate(absl::string_view packed, size_t enough,
                                    absl::string_view where) {
  z_stream stream = {};
  // 15 window bits, and 16 for a gzip header.
  if (inflateInit2(&stream, 15 + 16) != Z_OK) {
    return absl::ResourceExhaustedError(
        absl::StrCat(where, ": no memory to unpack gzip"));
  }
  const absl::Cleanup end_it = [&stream] { inflateEnd(&stream); };
  std::string bytes;
  int result = Z_OK;
  size_t taken = 0;
  while ((taken < packed.size() || result != Z_STREAM_END) &&
         bytes.size() < enough) {
    const size_t have = bytes.size();
    const size_t room =
        std::min(std::clamp<size_t>(have, 64 << 10, 64 << 20), enough - have);
    const size_t offered = std::min<size_t>(packed.size() - taken,
                                            std::numeric_limits<uInt>::max());
    bytes.resize(have + room);
    stream.next_in =
        reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + taken));
    stream.avail_in = static_cast<uInt>(offered);
    stream.next_out = reinterpret_cast<Bytef*>(&bytes[have]);
    stream.avail_out = static_cast<uInt>(room);
    result = inflate(&stream, Z_NO_FLUSH);
    bytes.resize(have + room - stream.avail_out);
    taken += offered - stream.avail_in;
    if (result == Z_STREAM_END && taken < packed.size()) {
      inflateReset(&stream);  // another member follows
      result = Z_OK;
    } else if (result == Z_BUF_ERROR ||
               (result == Z_OK && offered == 0 && stream.avail_out > 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": the gzip stream ends after ", packed.size(), " bytes (",
          bytes.size(), " unpacked), before its end mark; the file is cut"));
    } else if (result != Z_OK && result != Z_STREAM_END) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": damaged gzip stream near byte ", taken, ": ",
                       stream.msg != nullptr ? stream.msg : "unknown error"));
    }
  }
  return bytes;
}

}  // namespace

bool IsGzip(absl::string_view bytes) {
  return bytes.size() >= 2 && bytes[0] == '\x1f' && bytes[1] == '\x8b';
}

absl::StatusOr<std::string> Gunzip(absl::string_view packed, int64_t max_bytes,
                                   absl::string_view where) {
  const auto most = static_cast<size_t>(max_bytes);
  WEFT_ASSIGN_OR_RETURN(std::string bytes, Inflate(packed, most + 1, where));
  if (bytes.size() > most) return TooLarge(where, max_bytes);
  return bytes;
}

absl::StatusOr<std::string> GunzipHead(absl::string_view packed,
                                       int64_t head_bytes,
                                       absl::string_view where) {
  return Inflate(packed, static_cast<size_t>(head_bytes), where);
}

absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     const ReadFileOptions& options) {
  WEFT_ASSIGN_OR_RETURN(std::string bytes, ReadRaw(path, options.max_bytes));
  if (!options.gunzip || !IsGzip(bytes)) return bytes;
  return Gunzip(bytes, options.max_bytes, path);
}

}  // namespace weft::input
