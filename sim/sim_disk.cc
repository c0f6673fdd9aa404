#include "weft/sim/sim_disk.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace weft::sim {
namespace {

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

bool IsBelow(const std::string& path, const std::string& folder) {
  return folder.empty() || absl::StartsWith(path, absl::StrCat(folder, "/"));
}

}  // namespace

absl::StatusOr<SimDisk::FilePtr> SimDisk::Find(const std::string& path) const {
  const auto found = live_.find(path);
  if (found != live_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat("disk: no file ", path));
}

void SimDisk::Apply(const Change& change, Names* names) const {
  for (const NameChange& step : change) {
    if (step.file != nullptr) {
      (*names)[step.name] = step.file;
    } else {
      names->erase(step.name);
    }
  }
}

void SimDisk::Commit(Change change) {
  Apply(change, &live_);
  unsynced_.push_back(std::move(change));
}

absl::Status SimDisk::Create(const std::string& path) {
  Commit({{path, std::make_shared<File>()}});
  return absl::OkStatus();
}

absl::Status SimDisk::Append(const std::string& path, absl::string_view bytes) {
  absl::StatusOr<FilePtr> file = Find(path);
  if (!file.ok()) return file.status();
  const int64_t size = static_cast<int64_t>(bytes.size());
  int64_t fits = size;
  if (capacity_ >= 0) {
    fits = std::clamp<int64_t>(capacity_ - used_bytes(), 0, size);
  }
  if (size > 0 && faults_.Strikes(Fault::kDiskFull)) {
    fits = std::min(fits, random_.Below(size));
  }
  (*file)->bytes.append(bytes.data(), static_cast<size_t>(fits));
  if (fits == size) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("disk: no space left for ",
                                                   path, ": wrote ", fits,
                                                   " of ", size, " bytes"));
}

absl::StatusOr<std::string> SimDisk::Read(const std::string& path) const {
  absl::StatusOr<FilePtr> file = Find(path);
  if (!file.ok()) return file.status();
  return (*file)->bytes;
}

absl::Status SimDisk::SyncFile(const std::string& path) {
  absl::StatusOr<FilePtr> file = Find(path);
  if (!file.ok()) return file.status();
  (*file)->synced = (*file)->bytes.size();
  return absl::OkStatus();
}

absl::Status SimDisk::SyncDirectory(const std::string& folder) {
  const auto last = std::find_if(
      unsynced_.rbegin(), unsynced_.rend(), [&](const Change& change) {
        return std::any_of(change.begin(), change.end(),
                           [&](const NameChange& step) {
                             return FolderOf(step.name) == folder ||
                                    IsBelow(step.name, folder);
                           });
      });
  for (auto left = unsynced_.rend() - last; left > 0; --left) {
    Apply(unsynced_.front(), &lasting_);
    unsynced_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status SimDisk::Rename(const std::string& from, const std::string& to) {
  const absl::StatusOr<FilePtr> file = Find(from);
  if (file.ok()) {
    Commit({{from, nullptr}, {to, *file}});
    return absl::OkStatus();
  }
  const std::vector<std::string> held = List(from);
  if (held.empty()) return file.status();
  if (live_.count(to) > 0 || !List(to).empty()) {
    return absl::AlreadyExistsError(
        absl::StrCat("disk: cannot move folder ", from, ": ", to, " exists"));
  }
  Change change;
  for (const std::string& path : held) {
    change.push_back({path, nullptr});
    change.push_back({absl::StrCat(to, path.substr(from.size())), live_[path]});
  }
  Commit(std::move(change));
  return absl::OkStatus();
}

absl::Status SimDisk::Remove(const std::string& path) {
  const absl::StatusOr<FilePtr> file = Find(path);
  if (!file.ok()) return file.status();
  Commit({{path, nullptr}});
  return absl::OkStatus();
}

std::vector<std::string> SimDisk::List(const std::string& folder) const {
  std::vector<std::string> paths;
  for (const auto& [path, file] : live_) {
    if (IsBelow(path, folder)) paths.push_back(path);
  }
  return paths;
}

int64_t SimDisk::used_bytes() const {
  int64_t used = 0;
  for (const auto& [path, file] : live_) {
    used += static_cast<int64_t>(file->bytes.size());
  }
  return used;
}

void SimDisk::Crash() {
  const bool is_torn = faults_.Strikes(Fault::kTornWrite);
  bool is_loss = !unsynced_.empty();
  if (is_torn) {
    const int64_t changes = static_cast<int64_t>(unsynced_.size());
    for (int64_t left = random_.Below(changes + 1); left > 0; --left) {
      Apply(unsynced_.front(), &lasting_);
      unsynced_.pop_front();
    }
  }
  unsynced_.clear();
  for (const auto& [path, file] : lasting_) {
    const size_t unsynced = file->bytes.size() - file->synced;
    is_loss |= unsynced > 0;
    if (is_torn) file->synced += random_.Below(unsynced + 1);
    file->bytes.resize(file->synced);
  }
  if (is_loss) faults_.Count(Fault::kUnsyncedLoss);
  live_ = lasting_;
}

}  // namespace weft::sim
