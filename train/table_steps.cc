// What the steps of an elastic DataParallelTraining give to tables: every rank
// gets the parts of all shards with the gradients, and once all have taken the
// step each pushes those of its own shards (core/step_commit.h, C8). Between
// two steps, when all is pushed and stable, model and tables are saved
// together.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/shard_tree.h"
#include "weft/train/data_parallel_training.h"
#include "weft/train/saving/checkpoint_metadata.h"

namespace weft::train {
namespace {

// Between two looks at whether a rank of the group is lost.
constexpr absl::Duration kLookEvery = absl::Milliseconds(100);

void AddPart(absl::string_view part, std::string* text) {
  const uint64_t size = part.size();
  text->append(reinterpret_cast<const char*>(&size), sizeof(size));
  text->append(part.data(), part.size());
}

// `count` parts, which another rank has sent.
absl::StatusOr<std::vector<std::string>> ReadParts(absl::string_view text,
                                                   int count, int rank) {
  std::vector<std::string> parts;
  while (static_cast<int>(parts.size()) < count) {
    uint64_t size = 0;
    if (text.size() < sizeof(size)) break;
    std::memcpy(&size, text.data(), sizeof(size));
    text.remove_prefix(sizeof(size));
    if (text.size() < size) break;
    parts.emplace_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  if (static_cast<int>(parts.size()) == count && text.empty()) return parts;
  return absl::InternalError(absl::StrCat(
      "rank ", rank, " has sent parts of a step for tables: wanted ", count,
      ", found ", parts.size(), " and ", text.size(),
      " bytes more; do all ranks run the same program?"));
}

}  // namespace

absl::Status DataParallelTraining::GivePart(std::string part) {
  const auto refuse = [](const auto&... why) {
    return absl::FailedPreconditionError(
        absl::StrCat("DataParallelTraining::GivePart: ", why...));
  };
  if (!has_tables()) {
    return refuse(
        "wanted a training with Tables, found one without; give CreateElastic "
        "StepTable::MakeTables()");
  }
  if (!has_batch_ || at_ >= own_parts_.size()) {
    return refuse(
        "wanted a batch whose part this is, found none since the last Step; "
        "call it after the Next that gave the batch and before its Step");
  }
  const int shard = shards_->own().begin + static_cast<int>(at_);
  if (own_parts_[at_].has_value()) {
    return refuse("wanted one part of virtual shard ", shard, " in step ",
                  steps() + 1,
                  ", found another; where several batches make the pass of a "
                  "shard, give one part of the keys and gradients of all");
  }
  own_parts_[at_] = std::move(part);
  return absl::OkStatus();
}

absl::Status DataParallelTraining::GatherParts() {
  std::string own;
  for (const auto& part : own_parts_) AddPart(part.value_or(""), &own);
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> told,
                        group_->AllGatherBytes(own));
  std::vector<std::string> all;
  for (int rank = 0; rank < group_->size(); ++rank) {
    const int count =
        ddp::OwnShards(rank, group_->size(), parts_.virtual_shards).size();
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> parts,
                          ReadParts(told[rank], count, rank));
    std::move(parts.begin(), parts.end(), std::back_inserter(all));
  }
  all_parts_ = std::move(all);
  return absl::OkStatus();
}

absl::Status DataParallelTraining::ShareParts(int source) {
  const RankPlace& wanted = places_[source].rank;
  std::string text;
  if (group_->rank() == source && last_parts_.has_value()) {
    for (const std::string& part : last_parts_->of_shard) AddPart(part, &text);
  }
  AwaitsOthers();
  WEFT_ASSIGN_OR_RETURN(text, group_->BroadcastBytes(text, source));
  Works("reading the parts of the last step");
  const RankPlace& own = places_[group_->rank()].rank;
  if (own.is_known && own.position.steps == wanted.position.steps) {
    return absl::OkStatus();
  }
  // Nothing may fail after this: with a rank's own state goes its own parts.
  if (text.empty()) {  // of a training that has just begun
    last_parts_.reset();
    return absl::OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> parts,
                        ReadParts(text, parts_.virtual_shards, source));
  last_parts_ = StepParts{wanted.position.steps - 1, std::move(parts)};
  return absl::OkStatus();
}

DataParallelTraining::Done DataParallelTraining::Do(const StepCommit::Settle&) {
  // This reduction is the barrier after which no rank of the group is at an
  // earlier step.
  const Tensor after = Tensor::Scalar<int64_t>(steps());
  WEFT_RETURN_IF_ERROR(group_->AllReduce(after));
  if (after.item<int64_t>() == steps() * group_->size()) {
    return StepCommit::Settled{};
  }
  return absl::InternalError(absl::StrCat(
      "the ranks are not after the same step: wanted ", steps(), " of each of ",
      group_->size(), " ranks, found ", after.item<int64_t>(), " together"));
}

DataParallelTraining::Done DataParallelTraining::Do(const StepCommit::Push&) {
  if (!last_parts_.has_value()) return StepCommit::Pushed{};
  push_deadline_.Begin(last_parts_->round, SteadyClock().Now());
  const ddp::ShardRange own =
      ddp::OwnShards(group_->rank(), group_->size(), parts_.virtual_shards);
  for (int shard = own.begin; shard < own.end; ++shard) {
    WEFT_RETURN_IF_ERROR(
        tables_.push(last_parts_->round, shard, last_parts_->of_shard[shard]));
  }
  WEFT_RETURN_IF_ERROR(AwaitStable());
  return StepCommit::Pushed{};
}

// The round needs the parts of all, so of one that is lost by now, or ends
// since it cannot push (Fail), too: then those that are left meet, and push its
// parts.
absl::Status DataParallelTraining::AwaitStable() {
  for (;;) {
    const absl::Status stable = tables_.await_stable(kLookEvery);
    if (!absl::IsDeadlineExceeded(stable)) return stable;
    WEFT_RETURN_IF_ERROR(group_->CheckRanks());
    const Instant now = SteadyClock().Now();
    if (now < push_deadline_.until()) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("step ", steps(), " is not in the tables, after ",
                     absl::FormatDuration(absl::Trunc(
                         push_deadline_.Lasted(now), absl::Milliseconds(1))),
                     ": ", stable.message()));
  }
}

// No round closes meanwhile: the next one needs the parts of this rank's
// shards, or of whoever has them once it is dead, and then nobody commits this
// attempt.
absl::StatusOr<std::string> DataParallelTraining::SaveWithTables(
    checkpoint::CheckpointDirectory& directory,
    const checkpoint::NamedTensors& model,
    const checkpoint::Metadata& metadata) {
  WEFT_ASSIGN_OR_RETURN(const std::string attempt, directory.Begin(steps()));
  const auto save = [&]() -> absl::StatusOr<std::string> {
    WEFT_ASSIGN_OR_RETURN(
        std::vector<checkpoint::FileRecord> files,
        tables_.checkpoints.save(options_.checkpoint_dir, attempt, steps()));
    WEFT_ASSIGN_OR_RETURN(
        files.emplace_back(),
        directory.AddShard(attempt, kModelShard, /*writer=*/"",
                           {model, {{"format", kModelFormat}}}));
    return directory.Commit(attempt, std::move(files), metadata);
  };
  absl::StatusOr<std::string> name = CatchToStatus(save);
  if (!name.ok()) directory.Abandon(attempt);
  return name;
}

absl::StatusOr<checkpoint::CheckpointDirectory::Loaded>
DataParallelTraining::LoadNewest(
    checkpoint::CheckpointDirectory& directory) const {
  const auto load = [&](Device device) {
    return has_tables() ? LoadLatestModel(directory, device)
                        : directory.LoadLatest(device);
  };
  auto loaded = load(device_);
  if (device_.is_cpu() || !absl::IsResourceExhausted(loaded.status())) {
    return loaded;
  }
  // The state that it is copied to is there, too.
  WEFT_LOG(logger_, Warning,
           "no memory to load the checkpoint to the device; loading it to the "
           "CPU first")
      .With("why", loaded.status().message());
  return load(Device::Cpu());
}

absl::StatusOr<checkpoint::CheckpointDirectory::Loaded>
DataParallelTraining::LoadLatestModel(
    checkpoint::CheckpointDirectory& directory, Device device) const {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, directory.List());
  if (names.empty()) {
    return absl::NotFoundError(
        absl::StrCat(options_.checkpoint_dir, " has no checkpoint"));
  }
  checkpoint::CheckpointDirectory::Loaded loaded;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const absl::Status verified = directory.Verify(*name);
    if (!verified.ok()) {
      loaded.skipped.push_back(verified);
      continue;
    }
    loaded.name = *name;
    WEFT_ASSIGN_OR_RETURN(loaded.manifest, directory.ReadManifest(*name));
    const std::vector<checkpoint::FileRecord>& files = loaded.manifest.files;
    const std::string wanted = checkpoint::ShardName(kModelShard);
    const auto file = std::find_if(
        files.begin(), files.end(),
        [&](const checkpoint::FileRecord& one) { return one.name == wanted; });
    if (file == files.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "checkpoint ", options_.checkpoint_dir, "/", *name,
          " has no model beside tables: wanted a file ", wanted,
          "; was it saved by a training without tables? Name another "
          "--checkpoint-dir"));
    }
    WEFT_ASSIGN_OR_RETURN(checkpoint::Safetensors model,
                          directory.LoadShard(*name, *file, device));
    loaded.tensors = std::move(model.tensors);
    return loaded;
  }
  return absl::DataLossError(absl::StrCat(
      "every checkpoint in ", options_.checkpoint_dir,
      " is damaged; the newest: ", loaded.skipped.front().message()));
}

}  // namespace weft::train
