#include "weft/ps/partition.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/check.h"

namespace weft::ps {
namespace {

// Small rows share allocations of about this size.
constexpr int64_t kChunkBytes = 65536;
constexpr uint32_t kNoRow = std::numeric_limits<uint32_t>::max();

uint32_t ChunkRows(int64_t stride) {
  return static_cast<uint32_t>(
      std::max<int64_t>(1, kChunkBytes / (stride * sizeof(float))));
}

}  // namespace

absl::Status CheckImage(const TableLayout& layout, const Placement& placement,
                        int partition, const PartitionImage& image) {
  const std::string where =
      absl::StrCat("table '", layout.spec().name(), "' partition ", partition);
  size_t elements = 0;
  for (size_t i = 0; i < image.keys.size(); ++i) {
    const uint64_t key = image.keys[i];
    const bool exists =
        !layout.is_dense() || key < static_cast<uint64_t>(layout.slices());
    const int home = layout.is_dense()
                         ? placement.PartitionOfSlice(static_cast<int64_t>(key))
                         : placement.PartitionOfKey(key);
    if (!exists || home != partition || (i > 0 && key <= image.keys[i - 1])) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": row ", key, " is not one of its rows"));
    }
    elements += static_cast<size_t>(layout.RowLength(key));
  }
  bool fits = image.steps.size() == image.keys.size() &&
              image.weights.size() == elements &&
              image.slots.size() == static_cast<size_t>(layout.slots());
  for (const std::vector<float>& slot : image.slots) {
    fits = fits && slot.size() == elements;
  }
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": wanted ", elements, " weights and ", layout.slots(),
        " slots as long, found ", image.weights.size(), " weights and ",
        image.slots.size(), " slots"));
  }
  return absl::OkStatus();
}

Partition::Partition(const TableLayout* layout)
    : layout_(*layout),
      stride_(layout->dim() * (1 + layout->slots())),
      chunk_rows_(ChunkRows(stride_)) {}

absl::StatusOr<int> Partition::Apply(absl::Span<const PushSpan> spans,
                                     float scale) {
  MutexLock lock(mu_);
  std::vector<const PushSpan*> fresh;
  for (const PushSpan& span : spans) {
    if (span.sequence == PushSpan::kUnnumbered) {
      fresh.push_back(&span);
      continue;
    }
    switch (windows_[span.client].Ask(span.sequence)) {
      case SequenceWindow::Answer::kNew:
        fresh.push_back(&span);
        break;
      case SequenceWindow::Answer::kDuplicate:
        break;
      case SequenceWindow::Answer::kTooFar:
        return absl::FailedPreconditionError(absl::StrCat(
            "push ", span.sequence, " of client ", span.client, " came while ",
            windows_[span.client].high(),
            " is the highest applied; wanted one at most ",
            SequenceWindow::kWidth, " ahead and none before it missing"));
    }
  }
  if (!fresh.empty()) {
    ApplySum(fresh, scale);
    for (const PushSpan* span : fresh) {
      if (span->sequence == PushSpan::kUnnumbered) continue;
      windows_[span->client].Mark(span->sequence);
    }
  }
  return static_cast<int>(spans.size() - fresh.size());
}

void Partition::ApplySum(absl::Span<const PushSpan* const> spans, float scale) {
  if (spans.size() == 1 && scale == 1.0f) {
    const float* gradient = spans[0]->values;
    for (uint64_t key : spans[0]->keys) {
      Update(FindOrMake(key), gradient);
      gradient += layout_.RowLength(key);
    }
    return;
  }
  // Sums in the order of the spans, so that the same spans give the same bits
  // whatever the order in which they came over the network.
  std::vector<float> sums;
  std::vector<std::pair<Row, size_t>> touched;  // a row and where its sum is
  absl::flat_hash_map<uint64_t, size_t> sum_of;
  for (const PushSpan* span : spans) {
    const float* gradient = span->values;
    for (uint64_t key : span->keys) {
      const int64_t length = layout_.RowLength(key);
      const auto [it, is_new] = sum_of.try_emplace(key, sums.size());
      if (is_new) {
        touched.emplace_back(FindOrMake(key), sums.size());
        sums.insert(sums.end(), gradient, gradient + length);
      } else {
        float* sum = sums.data() + it->second;
        for (int64_t i = 0; i < length; ++i) sum[i] += gradient[i];
      }
      gradient += length;
    }
  }
  if (scale != 1.0f) {
    for (float& x : sums) x *= scale;
  }
  for (const auto& [row, at] : touched) Update(row, sums.data() + at);
}

void Partition::Update(Row row, const float* gradient) {
  const int64_t length = layout_.RowLength(keys_[row]);
  layout_.Apply(++steps_[row], WeightsOf(row), gradient, length);
}

bool Partition::Applied(uint64_t client, uint64_t sequence) const {
  MutexLock lock(mu_);
  const auto it = windows_.find(client);
  return it != windows_.end() &&
         it->second.Ask(sequence) == SequenceWindow::Answer::kDuplicate;
}

float* Partition::Read(absl::Span<const uint64_t> keys, float* out) const {
  MutexLock lock(mu_);
  for (uint64_t key : keys) {
    const int64_t length = layout_.RowLength(key);
    const auto it = row_of_.find(key);
    if (it == row_of_.end()) {
      layout_.InitialWeights(key, absl::MakeSpan(out, length));
    } else {
      std::copy_n(WeightsOf(it->second), length, out);
    }
    out += length;
  }
  return out;
}

void Partition::Put(uint64_t key, absl::Span<const float> weights) {
  MutexLock lock(mu_);
  if (row_of_.contains(key)) return;
  WEFT_CHECK_EQ(static_cast<int64_t>(weights.size()), layout_.RowLength(key));
  std::copy(weights.begin(), weights.end(), WeightsOf(Make(key)));
}

float* Partition::WeightsOf(Row row) const {
  return chunks_[row / chunk_rows_].get() + (row % chunk_rows_) * stride_;
}

Partition::Row Partition::Make(uint64_t key) {
  const Row row = static_cast<Row>(keys_.size());
  WEFT_CHECK(row != kNoRow);
  if (row % chunk_rows_ == 0) {
    chunks_.push_back(std::make_unique<float[]>(chunk_rows_ * stride_));
  }
  keys_.push_back(key);
  steps_.push_back(0);
  row_of_[key] = row;
  const int64_t length = layout_.RowLength(key);
  layout_.InitialWeights(key, absl::MakeSpan(WeightsOf(row), length));
  layout_.InitialSlots(WeightsOf(row), length);
  return row;
}

Partition::Row Partition::FindOrMake(uint64_t key) {
  const auto it = row_of_.find(key);
  return it != row_of_.end() ? it->second : Make(key);
}

std::vector<Partition::Row> Partition::InKeyOrder() const {
  std::vector<Row> order(keys_.size());
  std::iota(order.begin(), order.end(), Row{0});
  std::sort(order.begin(), order.end(),
            [this](Row a, Row b)
                ABSL_NO_THREAD_SAFETY_ANALYSIS { return keys_[a] < keys_[b]; });
  return order;
}

PartitionImage Partition::Image() const {
  MutexLock lock(mu_);
  PartitionImage image;
  image.slots.resize(layout_.slots());
  for (Row row : InKeyOrder()) {
    const int64_t length = layout_.RowLength(keys_[row]);
    const float* weights = WeightsOf(row);
    image.keys.push_back(keys_[row]);
    image.steps.push_back(steps_[row]);
    image.weights.insert(image.weights.end(), weights, weights + length);
    for (int s = 0; s < layout_.slots(); ++s) {
      const float* slot = weights + (s + 1) * layout_.dim();
      image.slots[s].insert(image.slots[s].end(), slot, slot + length);
    }
  }
  for (const auto& [client, window] : windows_) {
    image.windows.push_back({client, window.high(), window.mask()});
  }
  std::sort(image.windows.begin(), image.windows.end(),
            [](const auto& a, const auto& b) { return a.client < b.client; });
  return image;
}

void Partition::Load(const PartitionImage& image) {
  MutexLock lock(mu_);
  row_of_.clear();
  keys_.clear();
  steps_.clear();
  chunks_.clear();
  windows_.clear();
  int64_t at = 0;
  for (size_t i = 0; i < image.keys.size(); ++i) {
    const Row row = Make(image.keys[i]);
    const int64_t length = layout_.RowLength(image.keys[i]);
    steps_[row] = image.steps[i];
    float* weights = WeightsOf(row);
    std::copy_n(image.weights.begin() + at, length, weights);
    for (int s = 0; s < layout_.slots(); ++s) {
      std::copy_n(image.slots[s].begin() + at, length,
                  weights + (s + 1) * layout_.dim());
    }
    at += length;
  }
  for (const PartitionImage::Window& window : image.windows) {
    windows_[window.client] = SequenceWindow(window.high, window.mask);
  }
}

int64_t Partition::rows() const {
  MutexLock lock(mu_);
  return static_cast<int64_t>(keys_.size());
}

int64_t Partition::memory_bytes() const {
  MutexLock lock(mu_);
  const int64_t chunk_bytes = chunk_rows_ * stride_ * sizeof(float);
  return static_cast<int64_t>(chunks_.size()) * chunk_bytes +
         static_cast<int64_t>(row_of_.capacity() *
                                  (sizeof(uint64_t) + sizeof(Row) + 1) +
                              keys_.capacity() * 2 * sizeof(uint64_t));
}

}  // namespace weft::ps
