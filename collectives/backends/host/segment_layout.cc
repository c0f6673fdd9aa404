#include "weft/collectives/backends/host/segment_layout.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace weft::collectives {
namespace {

constexpr size_t kCounted = 4;
constexpr size_t kFileBytes = 40;
constexpr size_t kDetailBytes = Operation::kMostDetailBytes + 1;

const Blocks& DescribedBlocks(const Operation& operation) {
  return operation.inputs.empty() ? operation.outputs : operation.inputs;
}

}  // namespace

bool WrittenStatus::Write(const absl::Status& status) {
  uint32_t expected = 0;
  if (!state.compare_exchange_strong(expected, 1)) return false;
  const absl::string_view message = status.message();
  code = static_cast<int32_t>(status.code());
  bytes = static_cast<uint32_t>(std::min(message.size(), sizeof text));
  // data() of an empty message may be null.
  if (bytes > 0) memcpy(text, message.data(), bytes);
  state.store(2, std::memory_order_release);
  return true;
}

absl::Status WrittenStatus::Read() const {
  if (state.load(std::memory_order_acquire) != 2) return absl::OkStatus();
  const int32_t number = code;
  const bool is_code = number > 0 && number <= 16;
  return absl::Status(
      is_code ? static_cast<absl::StatusCode>(number)
              : absl::StatusCode::kInternal,
      absl::string_view(text, std::min<uint32_t>(bytes, sizeof text)));
}

void OperationRecord::WriteCommon(const Operation& step) {
  const Operation& operation = WholeOf(step);
  const Blocks& blocks = DescribedBlocks(operation);
  Set(kSequence, operation.sequence);
  Set(kLabel, operation.label);
  Set(kKind, static_cast<uint64_t>(operation.verb) |
                 static_cast<uint64_t>(operation.dtype) << 8 |
                 static_cast<uint64_t>(operation.reduction.op) << 16 |
                 static_cast<uint64_t>(blocks.size()) << 32);
  Set(kRoot, static_cast<uint64_t>(static_cast<uint32_t>(operation.root)) |
                 static_cast<uint64_t>(operation.site.line) << 32);
  for (size_t i = 0; i < std::min(blocks.size(), kCounted); ++i) {
    Set(kCounts + static_cast<int>(i), blocks[i].elements);
  }
  // The end of the path says the most.
  const absl::string_view path = operation.site.file;
  SetText(kFile, kFileBytes,
          path.substr(path.size() - std::min(path.size(), kFileBytes - 1)));
  // Mostly none, and none before.
  if (!operation.detail.empty() || Word(kDetail) != 0) {
    SetText(kDetail, kDetailBytes, operation.detail);
  }
}

void OperationRecord::SetText(int index, size_t bytes, absl::string_view text) {
  char all[std::max(kFileBytes, kDetailBytes)] = {};
  memcpy(all, text.data(), std::min(text.size(), bytes - 1));
  for (size_t i = 0; i < bytes / 8; ++i) {
    uint64_t word;
    memcpy(&word, all + 8 * i, 8);
    Set(index + static_cast<int>(i), word);
  }
}

std::string OperationRecord::Text(int index, size_t bytes) const {
  char all[std::max(kFileBytes, kDetailBytes)];
  for (size_t i = 0; i < bytes / 8; ++i) {
    const uint64_t word = Word(index + static_cast<int>(i));
    memcpy(all + 8 * i, &word, 8);
  }
  all[bytes - 1] = 0;
  return all;
}

void OperationRecord::Write(const Operation& operation, uint64_t fingerprint,
                            const Places& places) {
  WriteCommon(operation);
  uint64_t factor;
  memcpy(&factor, &operation.reduction.factor, sizeof factor);
  Set(kFingerprint, fingerprint);
  Set(kFactor, factor);
  Set(kInput, places.input);
  Set(kOutput, places.output);
  Set(kInputAddress, places.input_address);
  Set(kOutputAddress, places.output_address);
  Set(kIsRefusal, 0);
}

void OperationRecord::WriteRefusal(const Operation& operation,
                                   absl::string_view) {
  WriteCommon(operation);
  Set(kFingerprint, 0);
  Set(kIsRefusal, 1);
}

double OperationRecord::factor() const {
  const uint64_t word = Word(kFactor);
  double factor;
  memcpy(&factor, &word, sizeof factor);
  return factor;
}

std::string OperationRecord::ToString() const {
  Operation operation;
  const uint64_t kind = Word(kKind);
  operation.verb = static_cast<Verb>(kind & 0xff);
  operation.dtype = static_cast<DType>((kind >> 8) & 0xff);
  operation.reduction.op = static_cast<ReduceOp>((kind >> 16) & 0xff);
  operation.sequence = sequence();
  operation.label = Word(kLabel);
  operation.root = static_cast<int>(Word(kRoot) & 0xffffffff);
  const uint64_t blocks = std::min<uint64_t>(kind >> 32, 1 << 16);
  for (uint64_t i = 0; i < blocks; ++i) {
    const int counted = static_cast<int>(std::min<uint64_t>(i, kCounted - 1));
    operation.inputs.push_back(
        {nullptr, static_cast<int64_t>(Word(kCounts + counted))});
  }
  const std::string file = Text(kFile, kFileBytes);
  operation.site = {file.c_str(), static_cast<int>(Word(kRoot) >> 32)};
  operation.detail = Text(kDetail, kDetailBytes);
  return Describe(operation);
}

}  // namespace weft::collectives
