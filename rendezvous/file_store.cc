#include "weft/rendezvous/file_store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/net/edge/descriptor.h"
#include "weft/rendezvous/core/versioned_map.h"
#include "weft/rendezvous/store_requests.h"

namespace weft::rendezvous {
namespace {

constexpr absl::string_view kMagic = "weft store 1\n";
constexpr uint32_t kMostRecordBytes = 2 << 20;

absl::Status FileError(const std::string& path, absl::string_view what) {
  return absl::UnavailableError(
      absl::StrCat("store file ", path, ": ", what, ": ", strerror(errno)));
}

VersionedMap::Limits LimitsOfOne() {
  VersionedMap::Limits limits;
  limits.max_owner_bytes = limits.max_total_bytes;
  return limits;
}

class FileStore final : public Store {
 public:
  FileStore(FileStoreOptions options, net::Descriptor file)
      : options_(std::move(options)), file_(std::move(file)) {}

  // Writes the head of a new file, or checks that of an old one.
  absl::Status Begin() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    WEFT_RETURN_IF_ERROR(Lock(SteadyClock().Now() + absl::Seconds(30)));
    const absl::Status status = ReadNew();
    Unlock();
    return status;
  }

  absl::StatusOr<uint64_t> Set(absl::string_view key, absl::string_view value,
                               absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    return SetBy(Changing(timeout), key, value);
  }
  absl::StatusOr<StoreEntry> Get(absl::string_view key,
                                 absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    WEFT_ASSIGN_OR_RETURN(v1::StoreReply reply, Look(key, timeout));
    if (!reply.found()) return NoSuchKey(key);
    return EntryOf(std::move(reply));
  }
  absl::StatusOr<StoreEntry> Wait(absl::string_view key, uint64_t after,
                                  absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    const Instant deadline = SteadyClock().Now() + timeout;
    absl::Duration pause = absl::Milliseconds(1);
    while (true) {
      const absl::Duration left =
          std::max(deadline - SteadyClock().Now(), absl::ZeroDuration());
      WEFT_ASSIGN_OR_RETURN(v1::StoreReply reply, Look(key, left));
      if (reply.version() > after) return EntryOf(std::move(reply));
      if (left == absl::ZeroDuration()) {
        return DidNotChange(key, after, timeout);
      }
      absl::SleepFor(std::min(pause, left));
      pause = std::min(2 * pause, absl::Milliseconds(50));
    }
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta,
                              absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    return AddBy(Changing(timeout), key, delta);
  }
  absl::StatusOr<Swap> CompareSet(absl::string_view key,
                                  uint64_t expected_version,
                                  absl::string_view value,
                                  absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    return CompareSetBy(Changing(timeout), key, expected_version, value);
  }
  absl::StatusOr<bool> Delete(absl::string_view key,
                              absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    return DeleteBy(Changing(timeout), key);
  }
  absl::StatusOr<int64_t> CountKeys(absl::string_view prefix,
                                    absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    WEFT_RETURN_IF_ERROR(CheckTimeout(prefix, timeout));
    MutexLock lock(mu_);
    WEFT_RETURN_IF_ERROR(Lock(SteadyClock().Now() + timeout));
    const absl::Status status = ReadNew();
    Unlock();
    WEFT_RETURN_IF_ERROR(status);
    return map_.CountKeys(std::string(prefix));
  }

 private:
  std::function<absl::StatusOr<v1::StoreReply>(const v1::StoreRequest&)>
  Changing(absl::Duration timeout) {
    const Instant deadline = SteadyClock().Now() + timeout;
    return [this, deadline](const v1::StoreRequest& request) {
      return Change(request, deadline);
    };
  }

  absl::StatusOr<v1::StoreReply> Look(absl::string_view key,
                                      absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    WEFT_RETURN_IF_ERROR(Lock(SteadyClock().Now() + timeout));
    const absl::Status status = ReadNew();
    Unlock();
    WEFT_RETURN_IF_ERROR(status);
    return map_.Look(std::string(key));
  }
  absl::StatusOr<v1::StoreReply> Change(const v1::StoreRequest& request,
                                        Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    WEFT_RETURN_IF_ERROR(Lock(deadline));
    absl::StatusOr<v1::StoreReply> reply = ChangeLocked(request);
    Unlock();
    return reply;
  }
  absl::StatusOr<v1::StoreReply> ChangeLocked(const v1::StoreRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    WEFT_RETURN_IF_ERROR(ReadNew());
    WEFT_ASSIGN_OR_RETURN(VersionedMap::Plan plan, map_.Prepare(request, ""));
    if (!plan.change.key().empty()) {
      WEFT_RETURN_IF_ERROR(AppendRecord(plan.change.SerializeAsString()));
      map_.Apply(plan.change);
    }
    return std::move(plan.reply);
  }

  // Takes the file's lock. At least one attempt is made.
  absl::Status Lock(Instant deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        return FileError(options_.path, "flock");
      }
      if (SteadyClock().Now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat(
            "store file ", options_.path, ": another process holds its lock"));
      }
      absl::SleepFor(absl::Microseconds(200));
    }
    return absl::OkStatus();
  }
  void Unlock() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    flock(file_.get(), LOCK_UN);
  }

  std::string Head() const {
    return absl::StrCat(kMagic, options_.session, "\n");
  }
  absl::Status WriteAt(int64_t at, absl::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = pwrite(file_.get(), bytes.data(), bytes.size(), at);
      if (n < 0) return FileError(options_.path, "write");
      at += n;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> ReadAt(int64_t at, int64_t bytes) const {
    std::string text(static_cast<size_t>(bytes), 0);
    const ssize_t n = pread(file_.get(), text.data(), text.size(), at);
    if (n < 0) return FileError(options_.path, "read");
    text.resize(static_cast<size_t>(n));
    return text;
  }

  absl::Status CheckHead(int64_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const std::string head = Head();
    if (size == 0) WEFT_RETURN_IF_ERROR(WriteAt(0, head));
    WEFT_ASSIGN_OR_RETURN(const std::string found,
                          ReadAt(0, static_cast<int64_t>(head.size())));
    if (found != head) {
      return absl::FailedPreconditionError(absl::StrCat(
          "store file ", options_.path, ": wants a store of session ",
          options_.session, ", found \"",
          found.substr(0, found.find('\n', kMagic.size())),
          "\": remove it, or use another path"));
    }
    end_ = static_cast<int64_t>(head.size());
    return absl::OkStatus();
  }

  // Applies what others have appended; cuts off a record that is not whole.
  absl::Status ReadNew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    struct stat found;
    if (fstat(file_.get(), &found) != 0)
      return FileError(options_.path, "stat");
    if (end_ == 0) {
      WEFT_RETURN_IF_ERROR(CheckHead(found.st_size));
      if (found.st_size == 0) return absl::OkStatus();
    }
    if (found.st_size < end_) {
      return absl::DataLossError(
          absl::StrCat("store file ", options_.path, ": has ", found.st_size,
                       " bytes, and had ", end_, ": somebody has cut it"));
    }
    WEFT_ASSIGN_OR_RETURN(const std::string text,
                          ReadAt(end_, found.st_size - end_));
    size_t at = 0;
    while (true) {
      uint32_t bytes = 0;
      if (text.size() - at < sizeof bytes) break;
      memcpy(&bytes, text.data() + at, sizeof bytes);
      if (bytes > kMostRecordBytes) return Damaged();
      if (text.size() - at - sizeof bytes < bytes) break;
      v1::LogRecord::StoreChange change;
      if (!change.ParseFromString(text.substr(at + sizeof bytes, bytes))) {
        return Damaged();
      }
      map_.Apply(change);
      at += sizeof bytes + bytes;
    }
    end_ += static_cast<int64_t>(at);
    if (at == text.size()) return absl::OkStatus();
    return ftruncate(file_.get(), end_) == 0
               ? absl::OkStatus()
               : FileError(options_.path, "truncate");
  }
  absl::Status Damaged() const {
    return absl::DataLossError(
        absl::StrCat("store file ", options_.path, ": a record is damaged"));
  }
  absl::Status AppendRecord(const std::string& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const uint32_t bytes = static_cast<uint32_t>(record.size());
    std::string text(reinterpret_cast<const char*>(&bytes), sizeof bytes);
    text += record;
    WEFT_RETURN_IF_ERROR(WriteAt(end_, text));
    end_ += static_cast<int64_t>(text.size());
    return absl::OkStatus();
  }

  const FileStoreOptions options_;
  const net::Descriptor file_;
  Mutex mu_;
  VersionedMap map_ ABSL_GUARDED_BY(mu_){LimitsOfOne()};
  int64_t end_ ABSL_GUARDED_BY(mu_) = 0;  // of what was applied; 0: not begun
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenFileStore(FileStoreOptions options) {
  const bool has_newline = options.session.find('\n') != std::string::npos;
  if (options.path.empty() || options.session.empty() || has_newline) {
    return absl::InvalidArgumentError(
        "OpenFileStore: wants a path and a session, a word");
  }
  net::Descriptor file(
      open(options.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (file.get() < 0) {
    const bool is_denied = errno == EACCES || errno == EPERM;
    const absl::Status status = FileError(options.path, "open");
    return is_denied ? absl::PermissionDeniedError(status.message()) : status;
  }
  auto store = std::make_unique<FileStore>(std::move(options), std::move(file));
  WEFT_RETURN_IF_ERROR(store->Begin());
  return store;
}

}  // namespace weft::rendezvous
