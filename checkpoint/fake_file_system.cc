#include "weft/checkpoint/fake_file_system.h"

#include <algorithm>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::checkpoint {
namespace {

std::string ParentOf(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

bool IsInside(const std::string& path, const std::string& directory) {
  return absl::StartsWith(path, directory + "/");
}

absl::Status NoDirectory(const std::string& path) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": Not a directory"));
}

}  // namespace

class FakeFile final : public WritableFile {
 public:
  FakeFile(FakeFileSystem* files, std::string path,
           std::shared_ptr<FakeFileSystem::Node> node)
      : files_(files), path_(std::move(path)), node_(std::move(node)) {}

  absl::Status Append(absl::string_view bytes) override {
    for (const char byte : bytes) {
      WEFT_RETURN_IF_ERROR(files_->Spend(path_));
      node_->bytes.push_back(byte);
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    WEFT_RETURN_IF_ERROR(files_->Spend(path_));
    node_->synced = node_->bytes.size();
    return absl::OkStatus();
  }

 private:
  FakeFileSystem* const files_;
  const std::string path_;
  const std::shared_ptr<FakeFileSystem::Node> node_;
};

absl::Status FakeFileSystem::Spend(const std::string& path) {
  ++spent_;
  if (budget_ > 0) {
    if (budget_ != kUnlimited) --budget_;
    return absl::OkStatus();
  }
  has_failed_ = true;
  if (failure_ == Failure::kFull) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot write ", path, ": No space left on device"));
  }
  return absl::DataLossError(
      absl::StrCat("cannot write ", path, ": Input/output error"));
}

void FakeFileSystem::Change(const std::string& path,
                            std::shared_ptr<Node> node) {
  unsynced_.emplace_back(path, node);
  if (node == nullptr) {
    now_.erase(path);
  } else {
    now_[path] = std::move(node);
  }
}

void FakeFileSystem::Restart(uint64_t seed) {
  std::mt19937_64 random(seed);
  if (failure_ == Failure::kPowerCut) {
    // Names reach the disk in any order; one that was lost takes back none of
    // the others. A renamed directory moves with all it holds.
    for (const auto& [path, node] : unsynced_) {
      if (random() % 2 == 0) continue;
      if (node == nullptr) {
        durable_.erase(path);
      } else {
        durable_[path] = node;
      }
    }
    now_ = durable_;
    for (auto it = now_.begin(); it != now_.end();) {
      const std::string parent = ParentOf(it->first);
      const bool orphan = !parent.empty() && now_.count(parent) == 0;
      it = orphan ? now_.erase(it) : std::next(it);
    }
    for (auto& [path, node] : now_) {
      const size_t size = node->bytes.size();
      node->bytes.resize(node->synced + random() % (size - node->synced + 1));
    }
  }
  unsynced_.clear();
  durable_ = now_;
  for (auto& [path, node] : now_) node->synced = node->bytes.size();
  budget_ = kUnlimited;
  has_failed_ = false;
}

absl::StatusOr<std::unique_ptr<WritableFile>> FakeFileSystem::Create(
    const std::string& path) {
  WEFT_RETURN_IF_ERROR(Spend(path));
  if (now_.count(ParentOf(path)) == 0) {
    return absl::NotFoundError(absl::StrCat("no directory for ", path));
  }
  if (now_.count(path) > 0) return absl::AlreadyExistsError(path);
  auto node = std::make_shared<Node>();
  Change(path, node);
  return std::make_unique<FakeFile>(this, path, node);
}

absl::StatusOr<std::string> FakeFileSystem::Read(const std::string& path,
                                                 int64_t max_bytes) {
  WEFT_ASSIGN_OR_RETURN(const int64_t size, Size(path));
  if (size > max_bytes) return absl::ResourceExhaustedError(path);
  largest_read_ = std::max(largest_read_, size);
  return now_.at(path)->bytes;
}

absl::StatusOr<std::string> FakeFileSystem::ReadAt(const std::string& path,
                                                   int64_t offset,
                                                   int64_t most) {
  if (on_read_at_) on_read_at_(most);
  WEFT_ASSIGN_OR_RETURN(const int64_t size, Size(path));
  std::string piece = now_.at(path)->bytes.substr(std::min(offset, size), most);
  largest_read_ = std::max(largest_read_, static_cast<int64_t>(piece.size()));
  return piece;
}

absl::StatusOr<int64_t> FakeFileSystem::Size(const std::string& path) {
  const auto found = now_.find(path);
  if (found == now_.end() || found->second->is_directory) {
    return absl::NotFoundError(absl::StrCat("no file ", path));
  }
  return static_cast<int64_t>(found->second->bytes.size());
}

absl::StatusOr<std::vector<std::string>> FakeFileSystem::List(
    const std::string& directory) {
  const auto found = now_.find(directory);
  if (found == now_.end()) {
    return absl::NotFoundError(absl::StrCat("no directory ", directory));
  }
  if (!found->second->is_directory) return NoDirectory(directory);
  std::vector<std::string> names;
  for (const auto& [path, node] : now_) {
    if (IsInside(path, directory) && ParentOf(path) == directory) {
      names.push_back(path.substr(directory.size() + 1));
    }
  }
  return names;
}

absl::Status FakeFileSystem::MakeDirectories(const std::string& path) {
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    const auto found = now_.find(part);
    if (found != now_.end()) {
      if (!found->second->is_directory) return NoDirectory(part);
      continue;
    }
    WEFT_RETURN_IF_ERROR(Spend(part));
    auto node = std::make_shared<Node>();
    node->is_directory = true;
    durable_[part] = node;
    now_[part] = std::move(node);
  }
  return absl::OkStatus();
}

absl::Status FakeFileSystem::Rename(const std::string& from,
                                    const std::string& to) {
  WEFT_RETURN_IF_ERROR(Spend(from));
  const auto found = now_.find(from);
  if (found == now_.end()) return absl::NotFoundError(from);
  const std::shared_ptr<Node> node = found->second;
  if (node->is_directory) {
    if (now_.count(to) > 0) return absl::AlreadyExistsError(to);
    // What is inside is where its directory is: it moves in both worlds, and
    // the name of the directory alone says whether it is found.
    for (Names* names : {&now_, &durable_}) {
      Names moved;
      for (const auto& [path, inner] : *names) {
        if (IsInside(path, from)) moved[to + path.substr(from.size())] = inner;
      }
      names->insert(moved.begin(), moved.end());
    }
    for (auto& change : unsynced_) {
      if (IsInside(change.first, from)) {
        change.first = to + change.first.substr(from.size());
      }
    }
    for (auto it = now_.begin(); it != now_.end();) {
      it = IsInside(it->first, from) ? now_.erase(it) : std::next(it);
    }
  }
  Change(to, node);
  Change(from, nullptr);
  return absl::OkStatus();
}

absl::Status FakeFileSystem::Remove(const std::string& path) {
  // Takes no space, so that a full disk can be relieved.
  if (has_failed_ && failure_ != Failure::kFull) return Spend(path);
  if (failure_ != Failure::kFull) WEFT_RETURN_IF_ERROR(Spend(path));
  if (now_.count(path) == 0) return absl::OkStatus();
  const bool has_files = std::any_of(
      now_.begin(), now_.end(),
      [&](const auto& entry) { return IsInside(entry.first, path); });
  if (has_files) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot remove ", path, ": Directory not empty"));
  }
  Change(path, nullptr);
  return absl::OkStatus();
}

absl::Status FakeFileSystem::SyncDirectory(const std::string& directory) {
  WEFT_RETURN_IF_ERROR(Spend(directory));
  const auto here = [&](const auto& change) {
    return ParentOf(change.first) == directory;
  };
  for (const auto& [path, node] : unsynced_) {
    if (ParentOf(path) != directory) continue;
    if (node == nullptr) {
      durable_.erase(path);
    } else {
      durable_[path] = node;
    }
  }
  unsynced_.erase(std::remove_if(unsynced_.begin(), unsynced_.end(), here),
                  unsynced_.end());
  return absl::OkStatus();
}

}  // namespace weft::checkpoint
