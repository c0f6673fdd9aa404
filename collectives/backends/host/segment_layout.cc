#include "weft/collectives/backends/host/segment_layout.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace weft::collectives {
namespace {

constexpr size_t kCounted = 4;
constexpr size_t kFileBytes = 40;

const Blocks& DescribedBlocks(const Operation& operation) {
  return operation.inputs.empty() ? operation.outputs : operation.inputs;
}

}  // namespace

void OperationRecord::WriteCommon(const Operation& step) {
  const Operation& operation = step.whole != nullptr ? *step.whole : step;
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
  const size_t length = strlen(operation.site.file);
  char file[kFileBytes] = {};
  memcpy(file,
         operation.site.file + (length - std::min(length, kFileBytes - 1)),
         std::min(length, kFileBytes - 1));
  for (size_t i = 0; i < kFileBytes / 8; ++i) {
    uint64_t word;
    memcpy(&word, file + 8 * i, 8);
    Set(kFile + static_cast<int>(i), word);
  }
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
  char file[kFileBytes];
  for (size_t i = 0; i < kFileBytes / 8; ++i) {
    const uint64_t word = Word(kFile + static_cast<int>(i));
    memcpy(file + 8 * i, &word, 8);
  }
  file[kFileBytes - 1] = 0;
  operation.site = {file, static_cast<int>(Word(kRoot) >> 32)};
  return Describe(operation);
}

}  // namespace weft::collectives
