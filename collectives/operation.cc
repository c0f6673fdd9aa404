#include "weft/collectives/operation.h"

#include <xxhash.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::collectives {
namespace {

bool IsReducing(Verb verb) {
  return verb == Verb::kAllReduce || verb == Verb::kReduce ||
         verb == Verb::kReduceScatter;
}

bool HasRoot(Verb verb) {
  return verb == Verb::kBroadcast || verb == Verb::kReduce ||
         verb == Verb::kGather || verb == Verb::kScatter;
}

// The blocks whose counts every rank knows.
const Blocks* CommonBlocks(const Operation& operation) {
  switch (operation.verb) {
    case Verb::kAllReduce:
    case Verb::kReduce:
    case Verb::kReduceScatter:
      return &operation.inputs;
    case Verb::kBroadcast:
    case Verb::kAllGather:
      return &operation.outputs;
    default:
      return nullptr;
  }
}

// "f32[12]" or "f32[3, 0, 4]".
std::string DescribeBlocks(DType dtype, const Blocks& blocks) {
  std::string text = absl::StrCat(Name(dtype), "[");
  constexpr size_t kMost = 4;
  for (size_t i = 0; i < blocks.size() && i < kMost; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", blocks[i].elements);
  }
  return absl::StrCat(text, blocks.size() > kMost ? ", ...]" : "]");
}

}  // namespace

absl::string_view Name(Verb verb) {
  switch (verb) {
    case Verb::kAllReduce:
      return "AllReduce";
    case Verb::kBroadcast:
      return "Broadcast";
    case Verb::kReduce:
      return "Reduce";
    case Verb::kAllGather:
      return "AllGather";
    case Verb::kGather:
      return "Gather";
    case Verb::kScatter:
      return "Scatter";
    case Verb::kReduceScatter:
      return "ReduceScatter";
    case Verb::kAllToAll:
      return "AllToAll";
    case Verb::kBarrier:
      return "Barrier";
    case Verb::kSend:
      return "Send";
    case Verb::kReceive:
      return "Receive";
    case Verb::kSplit:
      return "Split";
    case Verb::kSubgroup:
      return "Subgroup";
  }
  return "unknown";
}

const Operation& WholeOf(const Operation& operation) {
  return operation.whole == nullptr ? operation : WholeOf(*operation.whole);
}

std::string DescribeList(const std::vector<int>& list) {
  std::string text = absl::StrCat("[", absl::StrJoin(list, ", "), "]");
  constexpr size_t kMostBytes = 40;
  if (text.size() <= kMostBytes) return text;
  // Cuts between two numbers, not within one.
  text.resize(text.rfind(',', kMostBytes / 2) + 1);
  return absl::StrCat(
      text, " ... of ", list.size(), ", #",
      absl::Hex(XXH3_64bits(list.data(), list.size() * sizeof(int)),
                absl::kZeroPad16),
      "]");
}

void CopyBlock(const Operation& operation, const Block& from, const Block& to) {
  if (from.memory == to.memory || from.elements == 0) return;
  memcpy(to.memory, from.memory, operation.BytesOf(from));
}

std::string Describe(const Operation& operation) {
  if (operation.whole != nullptr) return Describe(*operation.whole);
  std::string text(Name(operation.verb));
  const bool is_counted =
      operation.verb != Verb::kSend && operation.verb != Verb::kReceive;
  if (is_counted) absl::StrAppend(&text, " #", operation.sequence);
  const Blocks& blocks =
      operation.inputs.empty() ? operation.outputs : operation.inputs;
  if (!blocks.empty()) {
    absl::StrAppend(
        &text, " (",
        IsReducing(operation.verb)
            ? absl::StrCat(Name(operation.reduction.op), " of ")
            : "",
        DescribeBlocks(operation.dtype, blocks),
        HasRoot(operation.verb) ? absl::StrCat(", root ", operation.root) : "",
        ")");
  }
  if (!operation.detail.empty()) {
    absl::StrAppend(&text, " (", operation.detail, ")");
  }
  if (operation.label != 0) {
    absl::StrAppend(&text, " labelled ", operation.label);
  }
  return absl::StrCat(text, " at ", operation.site.ToString());
}

uint64_t Fingerprint(const Operation& operation) {
  absl::InlinedVector<uint64_t, 16> words;
  if (operation.whole != nullptr) {
    words.push_back(Fingerprint(*operation.whole));
  }
  words.push_back(static_cast<uint64_t>(operation.verb));
  words.push_back(static_cast<uint64_t>(operation.dtype));
  words.push_back(operation.label);
  if (IsReducing(operation.verb)) {
    words.push_back(static_cast<uint64_t>(operation.reduction.op));
  }
  if (HasRoot(operation.verb)) words.push_back(operation.root);
  if (const Blocks* blocks = CommonBlocks(operation); blocks != nullptr) {
    for (const Block& block : *blocks) words.push_back(block.elements);
  }
  if (!operation.detail.empty()) {
    words.push_back(
        XXH3_64bits(operation.detail.data(), operation.detail.size()));
  }
  // Equal on all machines, which a hash of Abseil's is not.
  return XXH3_64bits(words.data(), words.size() * sizeof(uint64_t));
}

}  // namespace weft::collectives
