// ps: no push or pull harms a table, synchronous or not, dense or sparse, nor
// do several in one message, nor values of another dtype than f32; nor does the
// description of a table harm who is to make it. The first byte chooses.

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/proto/ps.pb.h"
#include "weft/ps/core/rate_changes.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/shard/shard_requests.h"
#include "weft/ps/shard/table_shard.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using MaybeTensor = std::optional<Tensor>;
using ps::v1::Request;
using ps::v1::TableSpec;

TableSpec SpecOf(bool dense, bool sync) {
  TableSpec spec;
  spec.set_name("t");
  spec.set_kind(dense ? TableSpec::DENSE : TableSpec::SPARSE);
  if (dense) spec.set_elements(3);
  if (!dense) spec.set_dim(2);
  spec.mutable_rule()->mutable_sgd()->set_lr(0.1);
  spec.set_mode(sync ? TableSpec::SYNC : TableSpec::ASYNC);
  if (sync) spec.set_shards(1);
  spec.set_partitions(1);
  return spec;
}

// Its values travel as int8, or as bf16 and int8.
TableSpec EncodedSpecOf(bool dense) {
  TableSpec spec = SpecOf(dense, dense);
  spec.mutable_wire()->set_push(dense ? ps::v1::WireValues::BF16
                                      : ps::v1::WireValues::INT8);
  spec.mutable_wire()->set_pull(ps::v1::WireValues::INT8);
  return spec;
}

// The arguments of ps::Exchange as they travel, after their table's number.
std::string Exchange(char table, const Request& request,
                     const MaybeTensor& push_keys,
                     const MaybeTensor& push_values,
                     const MaybeTensor& pull_keys) {
  rpc::Encoder encoder;
  encoder.Write(request, push_keys, push_values, pull_keys);
  const Slices encoded = *std::move(encoder).Finish();
  return table + std::string(Flatten(encoded).view());
}

// Those of ps::ExchangeMany, of which each part is for one of four tables.
std::string ExchangeMany(const std::vector<Request>& requests,
                         const std::vector<MaybeTensor>& tensors) {
  ps::v1::RequestMany many;
  for (const Request& request : requests) *many.add_parts() = request;
  rpc::Encoder encoder;
  encoder.Write(many, tensors);
  const Slices encoded = *std::move(encoder).Finish();
  return '\6' + std::string(Flatten(encoded).view());
}

// A description that CheckedSpec refuses, for each of its reasons: the share of
// lines that run.sh asks for must not depend on what the fuzzer happens to
// find.
std::vector<std::string> RefusedSpecs() {
  std::vector<TableSpec> specs(8, SpecOf(true, true));
  specs[0].clear_name();
  specs[1].clear_kind();
  specs[2].clear_mode();
  specs[3].set_partitions(3);
  specs[4].mutable_initializer()->set_kind(
      static_cast<ps::v1::Initializer::Kind>(9));
  specs[5].mutable_initializer()->set_scale(-1);
  specs[6].set_elements(0);
  specs[7].set_shards(0);
  specs.push_back(SpecOf(true, true));
  specs.back().mutable_wire()->set_push(
      static_cast<ps::v1::WireValues::Dtype>(9));
  specs.push_back(SpecOf(true, true));
  specs.back().mutable_wire()->set_residual_bytes(3);
  specs.push_back(SpecOf(true, true));
  specs.back().mutable_life()->set_max_rows(3);
  const auto add = [&](const auto& change) {
    specs.push_back(SpecOf(false, true));
    change(*specs.back().mutable_life());
  };
  add([](auto& life) { life.set_max_rows(3); });
  add([](auto& life) { life.set_max_rows(-3); });
  add([](auto& life) {
    life.set_max_rows(3);
    life.set_max_bytes(5000);
  });
  add([](auto& life) { life.set_max_bytes(3); });
  add([](auto& life) { life.set_drop_versions(3); });
  add([](auto& life) { life.set_admit_counters(3); });
  add([](auto& life) { life.set_admit_probability(3); });
  add([](auto& life) {
    life.set_admit_probability(0.5);
    life.set_admit_after(2);
  });
  std::vector<std::string> seeds;
  for (const TableSpec& spec : specs) {
    seeds.push_back('\4' + spec.SerializeAsString());
  }
  return seeds;
}

// Two rows of two bytes, each with that scale.
MaybeTensor Int8Rows(float scale) {
  Tensor bytes = Tensor::Ones({12}, DType::kU8);
  for (const int at : {0, 6}) {
    std::memcpy(bytes.data<uint8_t>() + at, &scale, sizeof(scale));
  }
  return bytes;
}

std::vector<std::string> Seeds() {
  const MaybeTensor keys = Tensor::FromVector<int64_t>({7, 9});
  const MaybeTensor rows = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
  Request request;
  request.set_table("t");
  request.set_client(5);
  request.set_push(true);
  request.set_pull(true);
  request.add_partitions(0);
  Request sparse = request;
  sparse.add_rows(2);
  Request dense = request;
  dense.add_rows(1);
  Request numbered = sparse;
  numbered.add_sequences(1);
  Request numbered_dense = dense;
  numbered_dense.add_sequences(1);
  const MaybeTensor values = Tensor::FromVector<float>({1, 2, 3});
  std::vector<std::string> seeds = {
      Exchange('\0', numbered, keys, rows, keys),
      Exchange('\1', sparse, keys, rows, keys),
      Exchange('\2', numbered_dense, std::nullopt, values, std::nullopt),
      Exchange('\3', dense, std::nullopt, values, std::nullopt),
      Exchange('\7', numbered, keys, Int8Rows(1), keys),
      Exchange('\7', numbered, keys, Int8Rows(-1), keys),  // refused
      Exchange('\7', numbered, keys, rows, keys),          // refused
      Exchange('\x08', dense, std::nullopt, Tensor::Ones({6}, DType::kU8),
               std::nullopt),
      '\4' + SpecOf(true, true).SerializeAsString(),
      '\4' + SpecOf(false, false).SerializeAsString(),
      "\5"
      "0:0.5 7:1e-3 9:0.1"};
  for (std::string& refused : RefusedSpecs()) {
    seeds.push_back(std::move(refused));
  }
  std::vector<Request> parts = {numbered, sparse, numbered_dense, dense};
  std::vector<MaybeTensor> tensors = {
      keys,         rows,   keys,         keys,         rows,   keys,
      std::nullopt, values, std::nullopt, std::nullopt, values, std::nullopt};
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].set_table(std::to_string(i));
  }
  seeds.push_back(ExchangeMany(parts, tensors));
  tensors.pop_back();
  seeds.push_back(ExchangeMany(parts, tensors));
  return seeds;
}

std::vector<std::string> Words() {
  return {"\x08\x01",     "\x52\x01\x00", "\x5a\x01\x02",
          "\x62\x01\x01", "\x01\x02\x02", "\xff\xff\x7f"};
}

void RunSpec(absl::string_view bytes) {
  TableSpec spec;
  if (!spec.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return;
  }
  const auto checked = ps::CheckedSpec(spec);
  if (!checked.ok()) return;
  Hold(checked->partitions() >= 1 &&
       checked->partitions() <= ps::kMaxPartitions);
  Hold(ps::TableLayout::Create(*checked).ok());
}

// Parses the rate changes of a checkpoint.
void RunRates(absl::string_view text) {
  const auto rates = ps::RateChanges::Parse(text);
  if (!rates.ok()) return;
  const auto again = ps::RateChanges::Parse(rates->Format());
  Hold(again.ok() && again->Format() == rates->Format());
}

// Tables "0" to "3", as those of a single request.
void RunMany(absl::string_view bytes) {
  const rpc::Received received{{Bytes::Copy(bytes)}, false};
  rpc::Decoder decoder(received);
  ps::v1::RequestMany many;
  std::vector<MaybeTensor> tensors;
  if (!decoder.Read(many, tensors).ok()) return;
  std::vector<std::shared_ptr<ps::TableShard>> shards;
  for (int i = 0; i < 4; ++i) {
    shards.push_back(*ps::TableShard::Create(SpecOf(i >= 2, i % 2 == 1), 0, 1));
    (void)shards.back()->Initialize(Tensor::FromVector<float>({0, 0, 0}));
  }
  const int parts = many.parts_size();
  const auto replies = ps::HandleMany(
      many, tensors,
      [&](ps::ShardRequest& part) -> absl::Status {
        const std::string& table = part.request.table();
        if (table.size() != 1 || table[0] < '0' || table[0] > '3') {
          return absl::NotFoundError(table);
        }
        part.shard = shards[table[0] - '0'];
        return absl::OkStatus();
      },
      [](ps::ShardRequest part) {
        return part.shard->Handle(part.request, part.push_keys,
                                  part.push_values, part.pull_keys, Instant());
      });
  for (const auto& shard : shards) {
    shard->Shutdown(absl::CancelledError("the fuzzer has done"));
  }
  Hold(replies.IsReady());
  if (!replies.Peek()->ok()) return;
  Hold(static_cast<int>(replies.Peek()->value().size()) == parts);
}

void Run(absl::string_view input) {
  if (input.empty()) return;
  const int which = static_cast<uint8_t>(input[0]) % 9;
  if (which == 4) return RunSpec(input.substr(1));
  if (which == 5) return RunRates(input.substr(1));
  if (which == 6) return RunMany(input.substr(1));
  const rpc::Received received{{Bytes::Copy(input.substr(1))}, false};
  rpc::Decoder decoder(received);
  Request request;
  MaybeTensor push_keys, push_values, pull_keys;
  if (!decoder.Read(request, push_keys, push_values, pull_keys).ok()) return;
  const auto shard =
      ps::TableShard::Create(which >= 7 ? EncodedSpecOf(which == 8)
                                        : SpecOf(which >= 2, which % 2 == 1),
                             0, 1);
  Hold(shard.ok());
  (void)(*shard)->Initialize(Tensor::FromVector<float>({0, 0, 0}));
  const auto reply = (*shard)->Handle(request, push_keys.value_or(Tensor()),
                                      push_values.value_or(Tensor()),
                                      pull_keys.value_or(Tensor()), Instant());
  (*shard)->Shutdown(absl::CancelledError("the fuzzer has done"));
}

WEFT_FUZZ_TARGET(ps, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
