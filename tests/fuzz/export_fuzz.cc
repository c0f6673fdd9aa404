// export_fuzz: no bytes harm those who read tables where they lie: a shard of a
// checkpoint, and an exported table.

#include <algorithm>

#include "absl/strings/escaping.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/ps/export/export_table.h"
#include "weft/ps/export/exported_table.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/ps/export/table_file.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using checkpoint::SafetensorsHeader;

struct Text final : checkpoint::WritableFile {
  absl::Status Append(absl::string_view part) override {
    bytes.append(part.data(), part.size());
    return absl::OkStatus();
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  std::string bytes;
};

std::string Written(const checkpoint::Safetensors& content) {
  Text file;
  Hold(checkpoint::WriteSafetensors(content, file).ok());
  return file.bytes;
}

std::string Export(const ps::v1::TableSpec& spec, const Tensor& keys,
                   const Tensor& weight, int64_t rows) {
  checkpoint::Safetensors content;
  if (keys.defined()) content.tensors[ps::kExportKeys] = keys;
  content.tensors[ps::kExportWeight] = weight;
  content.metadata = {{"format", std::string(ps::kExportFormat)},
                      {"version", "3"},
                      {"rows", std::to_string(rows)},
                      {"table", absl::Base64Escape(spec.SerializeAsString())}};
  return Written(content);
}

// Shards of a bounded table, each damaged in one column: the share of lines
// that run.sh asks for must not depend on what the fuzzer happens to find.
std::vector<std::string> DamagedShards() {
  const ps::TableContent words = ps::BoundedWords(6);
  const auto whole = *ps::ToShard(0, words.spec, ps::ImageOf(words, 0, 1));
  std::vector<std::string> shards = {Written(whole)};
  const auto add = [&](const std::string& name, const Tensor& column) {
    checkpoint::Safetensors bent = whole;
    bent.tensors[name] = column;
    shards.push_back(Written(bent));
  };
  const auto all = [](int64_t value, int64_t n) {
    return Tensor::FromVector(std::vector<int64_t>(n, value));
  };
  add("step", all(-1, 6));
  add("key", all(1, 6));
  add("touched", all(-1, 6));
  add("touched", all(1 << 20, 6));
  add("touched", all(0, 5));
  add("life_bytes", all(-1, 8));
  add("life_bytes", all(1, 8));
  add("life_bytes", all(0, 8));
  add("weight", Tensor::Ones({6, 3}));
  add("weight", Tensor::Ones({5, 2}));
  add("partition", Tensor::FromVector<int64_t>({0, 6}).Reshape({1, 2}));
  add("partition", Tensor::FromVector<int64_t>({9, 6}).Reshape({1, 2}));
  add("partition", Tensor::FromVector<int64_t>({0, 7}).Reshape({1, 2}));
  add("partition", Tensor::FromVector<int64_t>({0, 5}).Reshape({1, 2}));
  add("partition", Tensor::FromVector<int64_t>({0, 1, 6}).Reshape({1, 3}));
  add("more", all(0, 3));
  const int64_t life_bytes = whole.tensors.at("life").numel();
  add("life", Tensor::FromVector(std::vector<uint8_t>(life_bytes, 0xff)));
  return shards;
}

// The same of what has changed since another checkpoint, with a row that went.
std::vector<std::string> DamagedDeltas() {
  ps::TableContent words = ps::Words(6);
  ps::TableShard::Image image = ps::ImageOf(words, 0, 1);
  image.base = "tmp-000001-1-0123456789abcdef";
  for (auto& [partition, rows] : image.partitions) {
    rows.is_delta = true;
    if (rows.keys.empty()) continue;
    // One of the partition's own keys, as if it had gone.
    rows.removed = {rows.keys.back()};
    const size_t dim = rows.weights.size() / rows.keys.size();
    rows.keys.pop_back();
    rows.steps.pop_back();
    rows.weights.resize(rows.weights.size() - dim);
    for (std::vector<float>& slot : rows.slots) {
      slot.resize(slot.size() / (rows.keys.size() + 1) * rows.keys.size());
    }
  }
  const auto whole = *ps::ToShard(0, words.spec, image);
  std::vector<std::string> shards = {Written(whole)};
  const auto add = [&](const std::string& name, const Tensor& column) {
    checkpoint::Safetensors bent = whole;
    bent.tensors[name] = column;
    shards.push_back(Written(bent));
  };
  const int64_t parts = whole.tensors.at("delta").numel();
  const int64_t gone = whole.tensors.at("removed").numel();
  const auto all = [](int64_t value, int64_t n) {
    return Tensor::FromVector(std::vector<int64_t>(n, value));
  };
  add("delta", Tensor::FromVector(std::vector<uint8_t>(parts, 2)));
  add("delta", Tensor::FromVector(std::vector<uint8_t>(parts, 0)));
  add("removed_rows", all(-1, parts));
  add("removed_rows", all(0, parts));
  add("removed_rows", all(gone + 1, parts));
  add("removed", all(1, gone));
  add("removed", all(-1, gone));
  add("removed", all(0, gone + 1));
  return shards;
}

std::vector<std::string> Seeds() {
  const ps::TableContent words = ps::Words(3);
  const ps::TableContent vector = ps::Vector(5);
  std::vector<std::string> seeds = DamagedShards();
  for (std::string& seed : DamagedDeltas()) seeds.push_back(std::move(seed));
  for (std::string& seed : std::vector<std::string>{
           Written(*ps::ToShard(0, words.spec, ps::ImageOf(words, 0, 2))),
           Written(*ps::ToShard(0, vector.spec, ps::ImageOf(vector, 0, 1))),
           Export(words.spec, Tensor::FromVector<int64_t>({1, 7}),
                  Tensor::Ones({2, 2}), 2),
           Export(vector.spec, Tensor(), Tensor::Ones({5}), 5),
           Export(words.spec, Tensor::FromVector<int64_t>({7, 1}),
                  Tensor::Ones({2, 2}), 2),
           Export(words.spec, Tensor::FromVector<int64_t>({1, 7}),
                  Tensor::Ones({2, 3}), 2),
           Export(words.spec, Tensor(), Tensor::Ones({2, 2}), 2),
           Export(vector.spec, Tensor(), Tensor::Ones({5}), 4),
           Export({}, Tensor(), Tensor::Ones({5}), 5),
           Export(vector.spec, Tensor(), Tensor::Ones({5}), -1)}) {
    seeds.push_back(std::move(seed));
  }
  return seeds;
}

std::vector<std::string> Words() {
  return {"\"key\":",       "\"keys\":",
          "\"weight\":",    "\"slot.sum\":",
          "\"step\":",      "\"I64\"",
          "\"F32\"",        "\"partition\":",
          "\"shape\":",     "[0]",
          "[0,2]",          "[1,2]",
          "\"rows\":\"0\"", "9223372036854775807"};
}

void ReadShard(absl::string_view file, const SafetensorsHeader& header) {
  const auto table = ps::TableFile::Create(file, header, "fuzz");
  if (!table.ok()) return;
  int64_t rows = 0;
  for (const auto& part : (*table)->parts()) {
    rows += part.rows;
    (void)(*table)->CheckRows(part);
    for (const auto& column : (*table)->columns()) {
      const absl::string_view bytes = ps::TableFile::BytesOf(column, part);
      Hold(std::count(bytes.begin(), bytes.end(), '\0') <=
           static_cast<int64_t>(file.size()));
    }
  }
  Hold(rows == (*table)->rows());
}

// With a checksum that fits, so that what follows is reached.
void ReadExport(absl::string_view file, SafetensorsHeader header) {
  header.metadata["checksum"] = ps::ExportChecksum(header.metadata);
  const auto front =
      checkpoint::SafetensorsFront(header.entries, header.metadata);
  if (!front.ok()) return;
  const std::string repaired = *front + std::string(file.substr(header.bytes));
  ps::ExportedTable::Options options;
  options.check_content = false;
  const auto table = ps::ExportedTable::Parse(repaired, "fuzz", options);
  if (!table.ok() || (*table)->dim() > 4096) return;
  const std::vector<uint64_t> keys = {0, 1, 7, ~uint64_t{0}};
  std::vector<float> values(keys.size() * (*table)->dim());
  std::vector<uint8_t> found(keys.size());
  const auto count =
      (*table)->LookUp(keys, absl::MakeSpan(values), absl::MakeSpan(found));
  Hold(count.ok() && *count <= (*table)->rows());
}

void Run(absl::string_view file) {
  (void)ps::ExportedTable::Parse(file, "fuzz", {});
  const auto header = checkpoint::ParseSafetensorsHeader(file, "fuzz");
  if (!header.ok()) return;
  ReadShard(file, *header);
  ReadExport(file, *header);
}

WEFT_FUZZ_TARGET(export, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
