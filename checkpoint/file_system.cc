#include "weft/checkpoint/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "weft/base/io/write_all.h"
#include "weft/base/status_macros.h"

namespace weft::checkpoint {
namespace {

absl::Status FromErrno(int error, absl::string_view what,
                       absl::string_view path) {
  const std::string message =
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case EIO:
      return absl::DataLossError(message);
    default:
      return absl::Status(absl::ErrnoToStatusCode(error), message);
  }
}

absl::StatusOr<int> Open(const std::string& path, int flags,
                         absl::string_view what) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return FromErrno(errno, what, path);
  return fd;
}

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::StatusOr<std::string> ReadFrom(int fd, const std::string& path,
                                     int64_t offset, int64_t size) {
  std::string bytes(size, '\0');
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = pread(fd, &bytes[have], bytes.size() - have,
                              offset + static_cast<int64_t>(have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FromErrno(errno, "read", path);
    if (got == 0) break;
    have += got;
  }
  bytes.resize(have);
  return bytes;
}

class LocalFile final : public WritableFile {
 public:
  LocalFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~LocalFile() override { close(fd_); }

  absl::Status Append(absl::string_view bytes) override {
    const int error = WriteAll(fd_, bytes);
    return error == 0 ? absl::OkStatus() : FromErrno(error, "write", path_);
  }

  absl::Status Sync() override {
    if (fsync(fd_) != 0) return FromErrno(errno, "sync", path_);
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const int fd_;
};

class LocalFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override {
    WEFT_ASSIGN_OR_RETURN(const int fd,
                          Open(path, O_WRONLY | O_CREAT | O_EXCL, "create"));
    return std::make_unique<LocalFile>(path, fd);
  }

  absl::StatusOr<std::string> Read(const std::string& path,
                                   int64_t max_bytes) override {
    // A pipe would keep a reader until somebody opens its other end.
    WEFT_ASSIGN_OR_RETURN(const int fd,
                          Open(path, O_RDONLY | O_NONBLOCK, "open"));
    const absl::Cleanup close_it = [fd] { close(fd); };
    struct stat stat = {};
    if (fstat(fd, &stat) != 0) return FromErrno(errno, "read", path);
    if (!S_ISREG(stat.st_mode)) return FromErrno(EISDIR, "read", path);
    if (stat.st_size > max_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          path, " has ", stat.st_size, " bytes, wanted at most ", max_bytes));
    }
    return ReadFrom(fd, path, 0, stat.st_size);
  }

  absl::StatusOr<std::string> ReadAt(const std::string& path, int64_t offset,
                                     int64_t most) override {
    WEFT_ASSIGN_OR_RETURN(const int fd,
                          Open(path, O_RDONLY | O_NONBLOCK, "open"));
    const absl::Cleanup close_it = [fd] { close(fd); };
    struct stat stat = {};
    if (fstat(fd, &stat) != 0) return FromErrno(errno, "read", path);
    if (!S_ISREG(stat.st_mode)) return FromErrno(EISDIR, "read", path);
    const int64_t left = std::max<int64_t>(stat.st_size - offset, 0);
    return ReadFrom(fd, path, offset, std::min(most, left));
  }

  absl::StatusOr<int64_t> Size(const std::string& path) override {
    struct stat stat = {};
    if (lstat(path.c_str(), &stat) != 0) return FromErrno(errno, "find", path);
    return int64_t{stat.st_size};
  }

  absl::StatusOr<std::vector<std::string>> List(
      const std::string& directory) override {
    DIR* const open_directory = opendir(directory.c_str());
    if (open_directory == nullptr) return FromErrno(errno, "list", directory);
    const absl::Cleanup close_it = [=] { closedir(open_directory); };
    std::vector<std::string> names;
    while (const dirent* entry = readdir(open_directory)) {
      const absl::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status MakeDirectories(const std::string& path) override {
    for (size_t end = 0; end != std::string::npos;) {
      end = path.find('/', end + 1);
      const std::string part = path.substr(0, end);
      if (mkdir(part.c_str(), 0700) == 0) {
        WEFT_RETURN_IF_ERROR(SyncDirectory(ParentOf(part)));
      } else if (errno != EEXIST) {
        return FromErrno(errno, "make directory", part);
      }
    }
    struct stat found;
    if (stat(path.c_str(), &found) == 0 && !S_ISDIR(found.st_mode)) {
      return FromErrno(ENOTDIR, "make directory", path);
    }
    return absl::OkStatus();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) {
      return FromErrno(errno, absl::StrCat("rename ", from, " to"), to);
    }
    return absl::OkStatus();
  }

  absl::Status Remove(const std::string& path) override {
    if (std::remove(path.c_str()) != 0 && errno != ENOENT) {
      return FromErrno(errno, "remove", path);
    }
    return absl::OkStatus();
  }

  absl::Status SyncDirectory(const std::string& directory) override {
    WEFT_ASSIGN_OR_RETURN(const int fd,
                          Open(directory, O_RDONLY | O_DIRECTORY, "open"));
    const absl::Cleanup close_it = [fd] { close(fd); };
    if (fsync(fd) != 0) return FromErrno(errno, "sync", directory);
    return absl::OkStatus();
  }
};

}  // namespace

FileSystem& LocalFiles() {
  static auto* files = new LocalFileSystem();
  return *files;
}

}  // namespace weft::checkpoint
