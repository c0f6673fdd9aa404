#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/driver.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/replicated/replicated_server.h"
#include "weft/ps/server.h"
#include "weft/ps/shard/snapshot.h"

// Saving: all tables as they are at one moment, written while they change.

namespace weft::ps {
namespace {

using checkpoint::CheckpointDirectory;

// After this many files of one size, the next files become twice as large.
constexpr int kFilesOfASize = 100;

// More than any name of an attempt has.
constexpr size_t kMostAttemptBytes = 128;

// Frozen::map_epoch of tables that were let go before their Save came.
constexpr uint64_t kLetGo = ~uint64_t{0};
// So many attempts of these are remembered.
constexpr size_t kMostLetGo = 64;

// Whoever waits for a partition's lock gets it in this time.
constexpr absl::Duration kPause = absl::Microseconds(50);

int64_t BytesOf(const PartitionImage& image) {
  size_t values = image.weights.size();
  for (const std::vector<float>& slot : image.slots) values += slot.size();
  return static_cast<int64_t>(values * sizeof(float) +
                              image.keys.size() * 2 * sizeof(uint64_t) +
                              image.removed.size() * sizeof(uint64_t));
}

// Writes the files of one server.
class Files {
 public:
  // `tables`: so many are to be written.
  Files(CheckpointDirectory& directory, const v1::SaveRequest& request,
        int server, int64_t file_bytes, int tables)
      : directory_(directory),
        request_(request),
        server_(server),
        file_bytes_(file_bytes),
        next_(request.first_shard()),
        spare_(std::max(0, kMostFilesOfServer - tables)) {}

  absl::Status Write(TableSnapshot& rows) {
    TableShard::Image image;
    image.version = rows.moment().version;
    image.rates = rows.moment().rates;
    image.base = rows.as().base;
    int64_t bytes = 0;
    while (!rows.is_done()) {
      WEFT_ASSIGN_OR_RETURN(image.partitions.emplace_back(), rows.Next());
      bytes += BytesOf(image.partitions.back().second);
      if (!rows.is_done()) {
        if (spare_ == 0 || bytes < file_bytes_) continue;
        --spare_;
        if (++more_ % kFilesOfASize == 0) file_bytes_ *= 2;
      }
      WEFT_RETURN_IF_ERROR(WriteOne(rows.spec(), image));
      image.partitions.clear();
      bytes = 0;
    }
    return absl::OkStatus();
  }

  const v1::SaveReply& saved() const { return saved_; }

 private:
  absl::Status WriteOne(const v1::TableSpec& spec,
                        const TableShard::Image& image) {
    WEFT_ASSIGN_OR_RETURN(const checkpoint::Safetensors content,
                          ToShard(server_, spec, image));
    absl::StatusOr<checkpoint::FileRecord> record;
    do {
      // What is there already was written before a server died: it is not
      // listed in the checkpoint.
      record = directory_.AddShard(request_.attempt(), next_++,
                                   absl::StrCat("ps", server_), content);
    } while (request_.map_epoch() != 0 &&
             absl::IsAlreadyExists(record.status()));
    WEFT_RETURN_IF_ERROR(record.status());
    v1::SavedFile* file = saved_.add_files();
    file->set_name(record->name);
    file->set_writer(record->writer);
    file->set_bytes(record->digest.bytes);
    file->set_sha256(record->digest.sha256);
    file->set_xxh3(record->digest.xxh3);
    file->set_is_delta(!BaseOf(content.metadata).empty());
    return absl::OkStatus();
  }

  CheckpointDirectory& directory_;
  const v1::SaveRequest& request_;
  const int server_;
  int64_t file_bytes_;
  int next_;
  int spare_;  // files that are left beyond one a table
  int more_ = 0;
  v1::SaveReply saved_;
};

}  // namespace

absl::StatusOr<Server::Frozen> Server::FreezeTables(
    const v1::SaveRequest& request) const {
  SavedAs as;
  if (request.may_be_base()) as = {request.attempt(), request.base()};
  // Each partition keeps them.
  if (as.id.size() > kMostAttemptBytes || as.base.size() > kMostAttemptBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attempts of ", as.id.size(), " and ", as.base.size(),
        " bytes: wanted names that CheckpointDirectory::Begin returns, of at "
        "most ",
        kMostAttemptBytes));
  }
  std::map<std::string, FrozenTable> all;
  for (const auto& [name, shard] : Snapshot()) {
    all[name] = {nullptr, shard, shard->Freeze(copies_, as)};
  }
  const auto tables = replicated();
  if (tables == nullptr && request.map_epoch() != 0) {
    // It has ended, or has not begun: nothing saved is not all saved.
    return absl::UnavailableError(absl::StrCat(
        "server ", options_.server, " serves no tables with two replicas now"));
  }
  if (tables != nullptr) {
    WEFT_RETURN_IF_ERROR(tables->CheckMap(request.map_epoch()));
    WEFT_RETURN_IF_ERROR(tables->CheckRestored());
    for (const auto& [name, table] : tables->tables()) {
      WEFT_ASSIGN_OR_RETURN(auto rows, table->Freeze(copies_, as));
      all[name] = {tables, table, std::move(rows)};
    }
  }
  Frozen frozen;
  frozen.map_epoch = request.map_epoch();
  for (auto& [name, table] : all) {
    if (table.rows->size() == 0) continue;  // all slices are elsewhere
    // With a quorum a server closes rounds without the one that saves.
    const bool is_sync = table.rows->spec().mode() == v1::TableSpec::SYNC &&
                         !table.rows->spec().has_quorum();
    const int64_t version = table.rows->moment().version;
    if (is_sync && request.version() >= 0 && version != request.version()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "table '", name, "' is at version ", version, ", wanted ",
          request.version(),
          ": save between two rounds, before pushing to the next"));
    }
    table.rows->set_pause(kPause);
    frozen.tables.push_back(std::move(table));
  }
  return frozen;
}

absl::Status Server::Freeze(const v1::SaveRequest& request) {
  WEFT_RETURN_IF_ERROR(checkpoint_root_.Resolve(request.directory()).status());
  WEFT_ASSIGN_OR_RETURN(Frozen frozen, FreezeTables(request));
  frozen.until = SteadyClock().Now() + kFrozenFor;
  Frozen replaced;  // ends without the lock
  MutexLock lock(mu_);
  if (!shut_down_.ok()) return shut_down_;
  size_t waiting = 0;  // others that do
  for (const auto& [attempt, one] : frozen_) {
    const bool waits = one.map_epoch != kLetGo && attempt != request.attempt();
    waiting += waits ? 1 : 0;
  }
  if (waiting >= kMostFrozen) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "server ", options_.server, ": ", waiting,
        " checkpoints have been begun and wait to be written; begin one once "
        "another is written, or after ",
        absl::FormatDuration(kFrozenFor)));
  }
  replaced = std::exchange(frozen_[request.attempt()], std::move(frozen));
  return absl::OkStatus();
}

void Server::DropFrozen(Instant now) {
  std::vector<Frozen> dropped;  // end without the lock
  MutexLock lock(mu_);
  size_t let_go = 0;
  for (auto it = frozen_.begin(); it != frozen_.end(); ++it) {
    if (now >= it->second.until && it->second.map_epoch != kLetGo) {
      Frozen gone;
      gone.map_epoch = kLetGo;
      dropped.push_back(std::exchange(it->second, std::move(gone)));
    }
    let_go += it->second.map_epoch == kLetGo ? 1 : 0;
  }
  // Later attempts have greater names.
  for (auto it = frozen_.begin(); let_go > kMostLetGo;) {
    const bool is_let_go = it->second.map_epoch == kLetGo;
    it = is_let_go ? frozen_.erase(it) : std::next(it);
    let_go -= is_let_go ? 1 : 0;
  }
}

absl::StatusOr<v1::SaveReply> Server::Save(const v1::SaveRequest& request) {
  WEFT_ASSIGN_OR_RETURN(const std::string path,
                        checkpoint_root_.Resolve(request.directory()));
  // A link in place of the attempt's own directory may lead elsewhere.
  WEFT_RETURN_IF_ERROR(
      checkpoint_root_.Resolve(absl::StrCat(path, "/", request.attempt()))
          .status());
  WEFT_ASSIGN_OR_RETURN(const auto directory,
                        CheckpointDirectory::Open({path}));
  constexpr int kLastShard = 99999;
  if (request.first_shard() < 0 || request.first_shard() > kLastShard) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_shard is ", request.first_shard(),
                     ", allowed is [0, ", kLastShard, "]"));
  }
  std::optional<Frozen> frozen;
  {
    MutexLock lock(mu_);
    const auto it = frozen_.find(request.attempt());
    if (it != frozen_.end()) {
      frozen = std::move(it->second);
      frozen_.erase(it);
    }
  }
  if (frozen.has_value() && frozen->map_epoch == kLetGo) {
    return absl::FailedPreconditionError(absl::StrCat(
        "server ", options_.server, ": the tables as they were frozen for ",
        request.attempt(), " are there no longer: wanted a Save within ",
        absl::FormatDuration(kFrozenFor), "; begin another checkpoint"));
  }
  // With another map this server has other partitions.
  if (!frozen.has_value() || frozen->map_epoch != request.map_epoch()) {
    WEFT_ASSIGN_OR_RETURN(frozen, FreezeTables(request));
  }
  // Handlers of pushes and pulls are not to wait for the disk.
  const BlockingScope blocking;
  Files files(*directory, request, options_.server,
              options_.checkpoint_file_bytes,
              static_cast<int>(frozen->tables.size()));
  for (FrozenTable& table : frozen->tables) {
    WEFT_RETURN_IF_ERROR(files.Write(*table.rows));
    table.rows = nullptr;
  }
  return files.saved();
}

}  // namespace weft::ps
