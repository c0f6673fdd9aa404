#include "weft/ps/shard/shard_requests.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/ps/shard/shard_tensors.h"

namespace weft::ps {
namespace {

using Replies = std::vector<Result<ShardReply>>;

absl::Status CheckParts(const v1::RequestMany& request, size_t tensors) {
  const auto parts = static_cast<size_t>(request.parts_size());
  if (parts <= kMostParts && tensors == 3 * parts) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "wanted at most ", kMostParts,
      " parts, and three tensors for each, found ", parts, " and ", tensors));
}

// Copies the tensors of one part of a message of `bytes` if its table may keep
// them; not where they are most of it.
void Separate(int64_t bytes, ShardRequest& one) {
  if (one.shard->spec().mode() != v1::TableSpec::SYNC ||
      2 * one.bytes() >= bytes) {
    return;
  }
  for (Tensor* tensor : {&one.push_keys, &one.push_values, &one.pull_keys}) {
    if (tensor->defined()) *tensor = tensor->Clone();
  }
}

}  // namespace

int64_t ShardRequest::bytes() const {
  return internal::BytesOf(push_keys) + internal::BytesOf(push_values) +
         internal::BytesOf(pull_keys);
}

Future<Replies> HandleMany(v1::RequestMany request,
                           const std::vector<std::optional<Tensor>>& tensors,
                           FindShard find, ApplyRequest apply) {
  const absl::Status fit = CheckParts(request, tensors.size());
  if (!fit.ok()) return MakeReady<Replies>(fit);
  std::vector<ShardRequest> parts(request.parts_size());
  std::vector<absl::Status> found;
  int64_t sent = 0, pulled = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    ShardRequest& one = parts[i];
    one.request = std::move(*request.mutable_parts(static_cast<int>(i)));
    one.push_keys = tensors[3 * i].value_or(Tensor());
    one.push_values = tensors[3 * i + 1].value_or(Tensor());
    one.pull_keys = tensors[3 * i + 2].value_or(Tensor());
    found.push_back(find(one));
    sent += one.bytes();
    if (found.back().ok() && one.request.pull()) {
      pulled += one.shard->PulledBytes(one.pull_keys);
    }
  }
  if (pulled > kMostManyBytes - sent) {
    return MakeReady<Replies>(absl::InvalidArgumentError(absl::StrCat(
        parts.size(), " parts of ", sent, " bytes ask for ", pulled, " bytes; ",
        kMostManyBytes, " are the most of both, ask in several messages")));
  }
  std::vector<Future<ShardReply>> replies;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!found[i].ok()) {
      replies.push_back(MakeReady<ShardReply>(found[i]));
      continue;
    }
    Separate(sent, parts[i]);
    replies.push_back(apply(std::move(parts[i])));
  }
  return WhenAll(std::move(replies));
}

}  // namespace weft::ps
