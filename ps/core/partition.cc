#include "weft/ps/core/partition.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/numeric/bits.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/ps/core/copy_row.h"

namespace weft::ps {
namespace {

// Short rows are updated several at a time, copied together.
constexpr int64_t kTogetherDim = 16;
constexpr size_t kTogether = 64;
constexpr int kTogetherSlots = 3;

int PlacedBits(const TableLayout& layout) {
  if (layout.is_dense()) return 0;
  return absl::countr_zero(static_cast<uint32_t>(layout.spec().partitions()));
}

// A function of its own: clang does not see in a lambda which lock is held.
std::vector<RowStore::Row> SortedByKey(const RowStore& rows) {
  std::vector<RowStore::Row> order;
  for (int64_t i = 0; i < rows.size(); ++i) order.push_back(rows.At(i));
  std::sort(order.begin(), order.end(), [](RowStore::Row a, RowStore::Row b) {
    return RowStore::key(a) < RowStore::key(b);
  });
  return order;
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
  for (int64_t step : image.steps) {
    fits = fits && step >= 0 && step <= int64_t{RowStore::kLastStep};
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
      is_dense_(layout->is_dense()),
      dim_(layout->dim()),
      rows_(layout->dim() * (1 + layout->slots()), PlacedBits(*layout)) {}

absl::StatusOr<bool> Partition::ApplyOnce(const PushSpan& span,
                                          double lr_scale) {
  MutexLock lock(mu_);
  SequenceWindow& window = windows_[span.client];
  switch (window.Ask(span.sequence)) {
    case SequenceWindow::Answer::kNew:
      Update(span.keys, span.values, lr_scale);
      window.Mark(span.sequence);
      return true;
    case SequenceWindow::Answer::kDuplicate:
      return false;
    case SequenceWindow::Answer::kTooFar:
      break;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "push ", span.sequence, " of client ", span.client, " came while ",
      window.high(), " is the highest applied; wanted one at most ",
      SequenceWindow::kWidth, " ahead and none before it missing"));
}

void Partition::ApplySum(absl::Span<const PushSpan> spans, float scale,
                         double lr_scale) {
  MutexLock lock(mu_);
  if (spans.size() == 1 && scale == 1.0f) {
    return Update(spans[0].keys, spans[0].values, lr_scale);
  }
  // Sums in the order of the spans, so that the same spans give the same bits
  // whatever the order in which they came over the network.
  std::vector<float> sums;
  std::vector<uint64_t> touched;  // keys, in the order of their sums
  absl::flat_hash_map<uint64_t, size_t> sum_of;
  for (const PushSpan& span : spans) {
    const float* gradient = span.values;
    for (uint64_t key : span.keys) {
      const int64_t length = layout_.RowLength(key);
      const auto [it, is_new] = sum_of.try_emplace(key, sums.size());
      if (is_new) {
        touched.push_back(key);
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
  Update(touched, sums.data(), lr_scale);
}

void Partition::Update(absl::Span<const uint64_t> keys, const float* gradients,
                       double lr_scale) {
  const bool together =
      !is_dense_ && dim_ <= kTogetherDim && layout_.slots() <= kTogetherSlots;
  while (!keys.empty()) {
    const size_t n = std::min(keys.size(), RowStore::kMostKeys);
    const absl::Span<const Row> rows = rows_.FindOrAddAll(
        keys.first(n),
        [this](uint64_t key, Row row)
            ABSL_NO_THREAD_SAFETY_ANALYSIS { Initialize(key, row); });
    if (together) {
      UpdateTogether(rows, gradients, lr_scale);
      gradients += static_cast<int64_t>(n) * dim_;
    } else {
      for (size_t i = 0; i < n; ++i) {
        UpdateOne(rows[i], gradients, lr_scale);
        gradients += layout_.RowLength(keys[i]);
      }
    }
    keys.remove_prefix(n);
  }
}

void Partition::UpdateOne(Row row, const float* gradient, double lr_scale) {
  layout_.Apply({rows_.NextStep(row), lr_scale}, rows_.floats(row), gradient,
                layout_.RowLength(rows_.key(row)));
}

namespace {

// Array number a of `n` rows of one float each: floats[i][a], for i in [0, n).
template <int kArrays>
void Gather(float* const* floats, size_t n, float* arrays) {
  for (size_t i = 0; i < n; ++i) {
    for (int a = 0; a < kArrays; ++a) arrays[a * n + i] = floats[i][a];
  }
}
template <int kArrays>
void Scatter(const float* arrays, size_t n, float* const* floats) {
  for (size_t i = 0; i < n; ++i) {
    for (int a = 0; a < kArrays; ++a) floats[i][a] = arrays[a * n + i];
  }
}

// The same for rows of any length; the arrays of one row follow each other.
void GatherRows(float* const* floats, size_t n, int64_t dim, int count,
                float* arrays) {
  if (dim == 1 && count == 1) return Gather<1>(floats, n, arrays);
  if (dim == 1 && count == 2) return Gather<2>(floats, n, arrays);
  if (dim == 1 && count == 3) return Gather<3>(floats, n, arrays);
  for (int a = 0; a < count; ++a) {
    for (size_t i = 0; i < n; ++i) {
      arrays = CopyRow(floats[i] + a * dim, dim, arrays);
    }
  }
}
void ScatterRows(const float* arrays, size_t n, int64_t dim, int count,
                 float* const* floats) {
  if (dim == 1 && count == 1) return Scatter<1>(arrays, n, floats);
  if (dim == 1 && count == 2) return Scatter<2>(arrays, n, floats);
  if (dim == 1 && count == 3) return Scatter<3>(arrays, n, floats);
  for (int a = 0; a < count; ++a) {
    for (size_t i = 0; i < n; ++i, arrays += dim) {
      CopyRow(arrays, dim, floats[i] + a * dim);
    }
  }
}

}  // namespace

// A rule works element by element, so rows of one step may be one row for it.
void Partition::UpdateTogether(absl::Span<const Row> rows,
                               const float* gradients, double lr_scale) {
  const int arrays = 1 + layout_.slots();
  const bool uses_step = layout_.uses_step();
  std::array<float, (1 + kTogetherSlots) * kTogether * kTogetherDim> copies;
  std::array<float*, kTogether> floats;
  while (!rows.empty()) {
    const int64_t step = RowStore::NextStep(rows[0]);
    const size_t most = std::min(rows.size(), kTogether);
    floats[0] = rows_.floats(rows[0]);
    size_t n = 1;
    for (; n < most; ++n) {
      if (uses_step && RowStore::step(rows[n]) + int64_t{1} != step) break;
      RowStore::NextStep(rows[n]);
      floats[n] = rows_.floats(rows[n]);
    }
    const int64_t elements = static_cast<int64_t>(n) * dim_;
    GatherRows(floats.data(), n, dim_, arrays, copies.data());
    layout_.ApplyTo({step, lr_scale}, copies.data(), elements, gradients,
                    elements);
    ScatterRows(copies.data(), n, dim_, arrays, floats.data());
    gradients += elements;
    rows.remove_prefix(n);
  }
}

bool Partition::Applied(uint64_t client, uint64_t sequence) const {
  MutexLock lock(mu_);
  const auto it = windows_.find(client);
  return it != windows_.end() &&
         it->second.Ask(sequence) == SequenceWindow::Answer::kDuplicate;
}

void Partition::Forget(absl::Span<const uint64_t> clients) {
  MutexLock lock(mu_);
  for (uint64_t client : clients) windows_.erase(client);
}

float* Partition::Read(absl::Span<const uint64_t> keys, float* out) const {
  MutexLock lock(mu_);
  while (!keys.empty()) {
    const size_t n = std::min(keys.size(), RowStore::kMostKeys);
    const absl::Span<const Row> rows = rows_.FindAll(keys.first(n));
    for (size_t i = 0; i < n; ++i) {
      const int64_t length = is_dense_ ? layout_.RowLength(keys[i]) : dim_;
      if (!rows[i].exists()) {
        layout_.InitialWeights(keys[i], absl::MakeSpan(out, length));
      } else {
        CopyRow(rows_.floats(rows[i]), length, out);
      }
      out += length;
    }
    keys.remove_prefix(n);
  }
  return out;
}

void Partition::Put(uint64_t key, absl::Span<const float> weights) {
  MutexLock lock(mu_);
  if (rows_.Find(key).exists()) return;
  WEFT_CHECK_EQ(static_cast<int64_t>(weights.size()), layout_.RowLength(key));
  std::copy(weights.begin(), weights.end(), rows_.floats(Make(key)));
}

Partition::Row Partition::Make(uint64_t key) {
  const Row row = rows_.Add(key);
  Initialize(key, row);
  return row;
}

void Partition::Initialize(uint64_t key, Row row) {
  const int64_t length = layout_.RowLength(key);
  layout_.InitialWeights(key, absl::MakeSpan(rows_.floats(row), length));
  layout_.InitialSlots(rows_.floats(row), length);
}

std::vector<Partition::Row> Partition::InKeyOrder() const {
  return SortedByKey(rows_);
}

PartitionImage Partition::Image() const {
  MutexLock lock(mu_);
  PartitionImage image;
  image.slots.resize(layout_.slots());
  for (Row row : InKeyOrder()) {
    const uint64_t key = rows_.key(row);
    const int64_t length = layout_.RowLength(key);
    const float* weights = rows_.floats(row);
    image.keys.push_back(key);
    image.steps.push_back(rows_.step(row));
    image.weights.insert(image.weights.end(), weights, weights + length);
    for (int s = 0; s < layout_.slots(); ++s) {
      const float* slot = weights + (s + 1) * layout_.dim();
      image.slots[s].insert(image.slots[s].end(), slot, slot + length);
    }
  }
  return image;
}

void Partition::Load(const PartitionImage& image) {
  MutexLock lock(mu_);
  rows_.Clear();
  windows_.clear();
  int64_t at = 0;
  for (size_t i = 0; i < image.keys.size(); ++i) {
    const Row row = Make(image.keys[i]);
    const int64_t length = layout_.RowLength(image.keys[i]);
    rows_.set_step(row, static_cast<uint32_t>(image.steps[i]));
    float* weights = rows_.floats(row);
    std::copy_n(image.weights.begin() + at, length, weights);
    for (int s = 0; s < layout_.slots(); ++s) {
      std::copy_n(image.slots[s].begin() + at, length,
                  weights + (s + 1) * layout_.dim());
    }
    at += length;
  }
}

int64_t Partition::rows() const {
  MutexLock lock(mu_);
  return rows_.size();
}

int64_t Partition::windows() const {
  MutexLock lock(mu_);
  return static_cast<int64_t>(windows_.size());
}

int64_t Partition::memory_bytes() const {
  MutexLock lock(mu_);
  return static_cast<int64_t>(sizeof(*this)) + rows_.memory_bytes() +
         static_cast<int64_t>(windows_.capacity() *
                              (sizeof(uint64_t) + sizeof(SequenceWindow) + 1));
}

}  // namespace weft::ps
