// replica: no bytes harm who reads a change of a partition, the keys of a pull,
// a copy of the rows or a message between replicas; what is taken fits the
// table.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/ps/core/placement.h"
#include "weft/ps/core/replication/partition_clocks.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/replicated/batch.h"
#include "weft/ps/replicated/frame.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using ps::Frame;

constexpr int kPartition = 0;

std::unique_ptr<ps::TableLayout> Layout(
    ps::WireDtype push = ps::v1::WireValues::F32) {
  ps::v1::TableSpec spec;
  spec.mutable_wire()->set_push(push);
  spec.set_name("t");
  spec.set_kind(ps::v1::TableSpec::DENSE);
  spec.set_elements(3000);
  spec.set_mode(ps::v1::TableSpec::ASYNC);
  spec.set_partitions(1);
  spec.set_staleness(1);
  spec.mutable_rule()->mutable_adagrad()->set_lr(1);
  return *ps::TableLayout::Create(spec);
}

ps::PartitionImage Image() {
  ps::PartitionImage image;
  image.keys = {2};
  image.steps = {7};
  image.weights.assign(Layout()->RowLength(2), 0.5f);
  image.slots.assign(1, image.weights);
  return image;
}

ps::PartitionClocks::State Clocks() {
  ps::PartitionClocks clocks(1);
  clocks.Join(0, {{1, 2}, 3, "trainer0"}, 4);
  clocks.Join(7, {{5, 6}, 8, "trainer7"}, 9);
  clocks.Tick(0, 3, 5, /*n=*/6);
  clocks.Leave(7, 8, /*n=*/2);
  return clocks.Save();
}

// Each beyond a limit.
std::vector<ps::PartitionClocks::State> WrongClocks() {
  std::vector<ps::PartitionClocks::State> wrong(3, Clocks());
  wrong[0].floor = -1;
  std::swap(wrong[1].ranks[0], wrong[1].ranks[1]);
  wrong[2].ranks[1].clock.at = ps::ClockGate::kMostClock + 1;
  return wrong;
}

std::string Message() {
  ps::Envelope envelope;
  envelope.table = std::make_shared<const ps::TableIdentity>();
  envelope.message.kind = ps::ReplicaMessage::Kind::kFill;
  envelope.message.pieces = 1;
  envelope.message.entries = {
      {{1, 2}, {3, 4, 1}, Bytes::Copy(absl::string_view("x"))}};
  envelope.message.marks[3].SkipTo(2);
  return ps::EncodeBatch({envelope}).batch.SerializeAsString();
}

// The first byte says what follows.
std::vector<std::string> Seeds() {
  const std::vector<float> row(Layout()->RowLength(2), 1.0f);
  const auto with = [](char kind, const Bytes& bytes) {
    return kind + std::string(bytes.view());
  };
  ps::RateChanges rates;
  rates.Set(4, 0.5, 0).IgnoreError();
  const auto encoded = Layout(ps::v1::WireValues::INT8);
  std::string values(ps::WireBytes(*encoded, ps::v1::WireValues::INT8, {2}),
                     '\0');
  ps::WriteWire(*encoded, ps::v1::WireValues::INT8, {2}, row.data(),
                values.data());
  const Bytes gradient =
      ps::EncodeGradient(ps::v1::WireValues::INT8, {2}, values);
  std::vector<std::string> seeds = {
      with('c', gradient),
      with('g', gradient),
      with('c', ps::EncodeRows(Frame::Kind::kGradient, {2}, row)),
      with('c', ps::EncodeRows(Frame::Kind::kPut, {}, {})),
      with('c', ps::EncodeRate(3, 0.5)),
      with('k', ps::EncodeKeys({0, 1, 2})),
      with('c', ps::EncodeTick(3, 4)),
      with('c', ps::EncodeLeave(3)),
      with('c', ps::EncodeJoin(3, 4, {5, 6}, 7, "trainer3")),
      with('i', ps::EncodeCopy(Image(), rates, Clocks())),
      'm' + Message()};
  for (const ps::PartitionClocks::State& wrong : WrongClocks()) {
    seeds.push_back(with('i', ps::EncodeCopy(Image(), rates, wrong)));
  }
  return seeds;
}

std::vector<std::string> Words() { return {std::string(8, '\0')}; }

void RunFrame(const Bytes& bytes, const ps::TableLayout& layout,
              const ps::Placement& placement) {
  const auto frame = ps::DecodeFrame(bytes, layout, placement, kPartition);
  if (!frame.ok()) return;
  if (frame->is_of_clock()) {
    Hold(frame->rank >= 0 && frame->clock >= 0 &&
         frame->clock <= ps::ClockGate::kMostClock);
    Hold(frame->name.size() <= ps::PartitionClocks::kMostName);
    return;
  }
  int64_t floats = 0;
  for (uint64_t key : frame->keys) {
    Hold(key < 3);
    floats += layout.RowLength(key);
  }
  std::vector<float> memory;
  const float* const values = ps::FloatsOf(*frame, layout, memory);
  for (int64_t i = 0; i < floats; ++i) {
    const bool is_number = values[i] == values[i];
    Hold(is_number || frame->dtype == ps::v1::WireValues::F32);
  }
}

void Run(absl::string_view input) {
  static const auto* const layout = Layout().release();
  static const auto* const encoded = Layout(ps::v1::WireValues::INT8).release();
  static const ps::Placement placement("t", 1, 1);
  if (input.empty()) return;
  const Bytes bytes = ps::Aligned(Bytes::Copy(input.substr(1)));
  switch (input[0]) {
    case 'c':
      return RunFrame(bytes, *layout, placement);
    case 'g':
      return RunFrame(bytes, *encoded, placement);
    case 'k': {
      const auto keys = ps::DecodeKeys(bytes, *layout, placement, kPartition);
      if (keys.ok()) Hold(keys->size() <= 3);
      break;
    }
    case 'i': {
      const auto copy = ps::DecodeCopy(bytes, *layout, placement, kPartition);
      if (!copy.ok()) return;
      const Bytes again =
          ps::EncodeCopy(copy->image, copy->rates, copy->clocks);
      Hold(ps::DecodeCopy(again, *layout, placement, kPartition).ok());
      ps::PartitionClocks clocks(1);
      clocks.Load(copy->clocks);
      Hold(ps::PartitionClocks::FaultOf(clocks.Save()).empty());
      break;
    }
    case 'm': {
      ps::v1::ReplicaBatch batch;
      if (!batch.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
        return;
      }
      int payloads = 0;
      for (const auto& run : batch.runs()) {
        payloads += run.clients_size() + run.copies_size();
      }
      const auto runs = ps::DecodeBatch(batch, std::vector<Bytes>(payloads));
      if (!runs.ok()) return;
      for (const ps::ReceivedRun& run : *runs) {
        for (const ps::Received& received : run.messages) {
          Hold(received.partition >= 0);
          Hold((received.said != nullptr) ==
               (received.message.kind == ps::ReplicaMessage::Kind::kFill));
        }
      }
      break;
    }
    default:
      break;
  }
}

WEFT_FUZZ_TARGET(replica, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
