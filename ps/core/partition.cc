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
#include "weft/base/reworded.h"
#include "weft/ps/core/copy_row.h"
#include "weft/ps/core/timed_lock.h"

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

// Dense spans of one partition have one list of slices, if all are whole.
bool HaveSameKeys(absl::Span<const PushSpan> spans) {
  return !spans.empty() &&
         std::all_of(spans.begin(), spans.end(), [&](const PushSpan& span) {
           return span.keys == spans[0].keys;
         });
}

// Writes to `sum` the sum of the spans' floats [at, at + length), times
// `scale`, with the bits that SumSpans gives.
void SumRows(absl::Span<const PushSpan> spans, int64_t at, int64_t length,
             float scale, float* __restrict sum) {
  std::copy_n(spans[0].values + at, length, sum);
  for (const PushSpan& span : spans.subspan(1)) {
    const float* __restrict const row = span.values + at;
    for (int64_t i = 0; i < length; ++i) sum[i] += row[i];
  }
  if (scale == 1.0f) return;
  for (int64_t i = 0; i < length; ++i) sum[i] *= scale;
}

}  // namespace

void AddCounts(const RowCounts& counts, v1::TableStats& to) {
  to.set_evicted_idle(to.evicted_idle() + counts.evicted_idle);
  to.set_evicted_full(to.evicted_full() + counts.evicted_full);
  to.set_not_admitted(to.not_admitted() + counts.not_admitted);
  to.set_dropped_late(to.dropped_late() + counts.dropped_late);
}

absl::Status OutOfTableMemory(absl::string_view where, uint32_t partition,
                              int64_t bytes, const ByteBudget& memory) {
  return absl::ResourceExhaustedError(absl::StrCat(
      where, ": the push could make rows of ", bytes,
      " bytes, most of them in partition ", partition, ", beside ",
      memory.held(), " bytes of rows, and ", memory.most(),
      " are the most; nothing of it was applied there. Bound the table by "
      "life.max_rows or life.idle_versions, use more servers, or raise "
      "--table-memory there"));
}

Partition::Partition(const TableLayout* layout,
                     std::shared_ptr<ByteBudget> memory)
    : layout_(*layout),
      is_dense_(layout->is_dense()),
      dim_(layout->dim()),
      rows_(layout->row_floats(), PlacedBits(*layout), layout->limits().any()),
      memory_(std::move(memory)) {
  if (layout->limits().any()) life_.emplace(layout->limits());
}

Partition::~Partition() {
  if (memory_ != nullptr) memory_->Add(-accounted_);
}

void Partition::Account() {
  if (memory_ == nullptr) return;
  const int64_t bytes = rows_.memory_bytes();
  if (bytes == accounted_) return;
  memory_->Add(bytes - accounted_);
  accounted_ = bytes;
}

absl::StatusOr<bool> Partition::ApplyOnce(const PushSpan& span, double lr_scale,
                                          absl::Duration* lock_wait) {
  TimedLock lock(mu_, lock_wait);
  SequenceWindow& window = windows_[span.client];
  switch (window.Ask(span.sequence)) {
    case SequenceWindow::Answer::kNew:
      Learn(span.keys, span.values, lr_scale);
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

SpanSum SumSpans(const TableLayout& layout, absl::Span<const PushSpan> spans,
                 float scale) {
  SpanSum sum;
  absl::flat_hash_map<uint64_t, size_t> sum_of;
  for (const PushSpan& span : spans) {
    const float* gradient = span.values;
    for (uint64_t key : span.keys) {
      const int64_t length = layout.RowLength(key);
      const auto [it, is_new] = sum_of.try_emplace(key, sum.values.size());
      if (is_new) {
        sum.keys.push_back(key);
        sum.values.insert(sum.values.end(), gradient, gradient + length);
      } else {
        float* row = sum.values.data() + it->second;
        for (int64_t i = 0; i < length; ++i) row[i] += gradient[i];
      }
      gradient += length;
    }
  }
  if (scale != 1.0f) {
    for (float& x : sum.values) x *= scale;
  }
  return sum;
}

SpanSum InMessageOrder(const TableLayout& layout, SpanSum sum) {
  const auto place_of = [&](uint64_t key) {
    return layout.is_dense() ? key : Mix64(key);
  };
  const auto comes_before = [&](uint64_t a, uint64_t b) {
    return place_of(a) < place_of(b);
  };
  if (std::is_sorted(sum.keys.begin(), sum.keys.end(), comes_before)) {
    return sum;
  }
  std::vector<std::pair<uint64_t, const float*>> rows;  // by their places
  const float* row = sum.values.data();
  for (uint64_t key : sum.keys) {
    rows.emplace_back(key, row);
    row += layout.RowLength(key);
  }
  std::sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) {
    return comes_before(a.first, b.first);
  });
  SpanSum sorted;
  for (const auto& [key, values] : rows) {
    sorted.keys.push_back(key);
    sorted.values.insert(sorted.values.end(), values,
                         values + layout.RowLength(key));
  }
  return sorted;
}

void Partition::ApplySum(absl::Span<const PushSpan> spans, float scale,
                         double lr_scale) {
  MutexLock lock(mu_);
  if (spans.size() == 1 && scale == 1.0f) {
    return Learn(spans[0].keys, spans[0].values, lr_scale);
  }
  if (is_dense_ && HaveSameKeys(spans)) {
    (void)UpdateSlices(spans, scale, lr_scale, nullptr);
    return;
  }
  SpanSum sum = SumSpans(layout_, spans, scale);
  if (life_.has_value()) sum = InMessageOrder(layout_, std::move(sum));
  Learn(sum.keys, sum.values.data(), lr_scale);
}

float* Partition::ApplySumAndRead(absl::Span<const PushSpan> spans, float scale,
                                  double lr_scale, float* out) {
  WEFT_CHECK(is_dense_ && HaveSameKeys(spans));
  MutexLock lock(mu_);
  return UpdateSlices(spans, scale, lr_scale, out);
}

float* Partition::UpdateSlices(absl::Span<const PushSpan> spans, float scale,
                               double lr_scale, float* out) {
  const bool is_sum = spans.size() > 1 || scale != 1.0f;
  std::vector<float> sum(is_sum ? dim_ : 0);
  int64_t at = 0;  // in the values of each span
  for (absl::Span<const uint64_t> keys = spans[0].keys; !keys.empty();) {
    const size_t n = std::min(keys.size(), RowStore::kMostKeys);
    const absl::Span<const Row> rows = rows_.FindOrAddAll(
        keys.first(n),
        [this](uint64_t key, Row row)
            ABSL_NO_THREAD_SAFETY_ANALYSIS { Initialize(key, row); });
    if (!frozen_.empty()) BeforeChange(rows);
    if (changes_ != nullptr) NoteChanged(rows);
    for (size_t i = 0; i < n; ++i) {
      const int64_t length = layout_.RowLength(keys[i]);
      const float* gradient = spans[0].values + at;
      if (is_sum) {
        SumRows(spans, at, length, scale, sum.data());
        gradient = sum.data();
      }
      UpdateOne(rows[i], gradient, lr_scale);
      if (out != nullptr) out = CopyRow(rows_.floats(rows[i]), length, out);
      at += length;
    }
    keys.remove_prefix(n);
  }
  Account();
  return out;
}

void Partition::Learn(absl::Span<const uint64_t> keys, const float* gradients,
                      double lr_scale) {
  if (!life_.has_value()) {
    Update(keys, gradients, lr_scale);
    return Account();
  }
  if (!is_sorted_) rows_.SortByUse();
  is_sorted_ = true;
  life_->Advance();
  if (RowStore::BaseOf(life_->clock()) != rows_.base()) BeforeAllChange();
  std::vector<uint64_t> some;
  std::vector<float> of_some;
  while (!keys.empty()) {
    const size_t n = std::min(keys.size(), RowStore::kMostKeys);
    absl::Span<const uint64_t> entering = keys.first(n);
    const float* values = gradients;
    const std::vector<size_t> places = Entering(entering);
    if (places.size() < n) {
      some.clear();
      of_some.clear();
      for (size_t i : places) {
        const float* const row = gradients + static_cast<int64_t>(i) * dim_;
        some.push_back(keys[i]);
        of_some.insert(of_some.end(), row, row + dim_);
      }
      entering = some;
      values = of_some.data();
    }
    Update(entering, values, lr_scale);
    for (Row row : rows_.FindAll(entering)) rows_.Touch(row, life_->clock());
    gradients += static_cast<int64_t>(n) * dim_;
    keys.remove_prefix(n);
  }
  EvictRows();
  Account();
}

std::vector<size_t> Partition::Entering(absl::Span<const uint64_t> keys) {
  std::vector<size_t> places;
  places.reserve(keys.size());
  const absl::Span<const Row> rows = rows_.FindAll(keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    const RowLife::Entry entry =
        rows[i].exists() ? RowLife::Entry::kMade : life_->Enter(keys[i]);
    switch (entry) {
      case RowLife::Entry::kMade:
        places.push_back(i);
        break;
      case RowLife::Entry::kNotYet:
        ++counts_.not_admitted;
        break;
      case RowLife::Entry::kTooLate:
        ++counts_.dropped_late;
        break;
    }
  }
  return places;
}

void Partition::EvictRows() {
  while (rows_.size() > 0) {
    const Row oldest = rows_.Oldest();
    switch (life_->CheckOldest(rows_.size(), rows_.touched(oldest))) {
      case RowLife::Verdict::kStays:
        return;
      case RowLife::Verdict::kIdle:
        ++counts_.evicted_idle;
        break;
      case RowLife::Verdict::kFull:
        ++counts_.evicted_full;
        break;
    }
    const uint64_t key = RowStore::key(oldest);
    life_->NoteEvicted(key);
    // The last one takes its place.
    if (!frozen_.empty()) BeforeChange({oldest, rows_.At(rows_.size() - 1)});
    if (changes_ != nullptr) NoteRemoval(oldest);
    rows_.Remove(key);
  }
}

void Partition::Update(absl::Span<const uint64_t> keys, const float* gradients,
                       double lr_scale) {
  const bool together = !is_dense_ && layout_.may_join_rows() &&
                        dim_ <= kTogetherDim &&
                        layout_.slots() <= kTogetherSlots;
  while (!keys.empty()) {
    const size_t n = std::min(keys.size(), RowStore::kMostKeys);
    const absl::Span<const Row> rows = rows_.FindOrAddAll(
        keys.first(n),
        [this](uint64_t key, Row row)
            ABSL_NO_THREAD_SAFETY_ANALYSIS { Initialize(key, row); });
    if (!frozen_.empty()) BeforeChange(rows);
    if (changes_ != nullptr) NoteChanged(rows);
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

// REQUIRES: layout_.may_join_rows(): rows of one step are one row for the rule.
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
    layout_.ApplyJoined({step, lr_scale}, copies.data(), gradients, elements);
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

float* Partition::Read(absl::Span<const uint64_t> keys, float* out,
                       absl::Duration* lock_wait) const {
  TimedLock lock(mu_, lock_wait);
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
  const Row row = Make(key);
  if (changes_ != nullptr) NoteChanged({row});
  std::copy(weights.begin(), weights.end(), rows_.floats(row));
  Account();
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
    AppendRow(layout_, row, rows_.floats(row), image);
    if (life_.has_value()) image.touched.push_back(rows_.touched(row));
  }
  if (life_.has_value()) image.life = life_->Format();
  return image;
}

std::shared_ptr<FrozenRows> Partition::Freeze(
    std::shared_ptr<ByteBudget> copies, const SavedAs& as) {
  MutexLock lock(mu_);
  std::optional<ChangedRows::Since> since;
  if (!as.id.empty()) {
    if (changes_ == nullptr) changes_ = std::make_unique<ChangedRows>();
    since = changes_->Freeze(as);
    // Saving all rows would then take no more, and needs no other checkpoint.
    if (since.has_value() &&
        since->rows.size() + static_cast<int64_t>(since->removed.size()) >=
            rows_.size()) {
      since.reset();
    }
  }
  auto frozen = std::make_shared<FrozenRows>(
      rows_, life_.has_value() ? life_->Format() : "", std::move(copies),
      std::move(since));
  if (!frozen->is_done()) frozen_.push_back(frozen);
  return frozen;
}

bool Partition::CopyFrozen(FrozenRows& frozen, FrozenRows::Piece& to) {
  MutexLock lock(mu_);
  frozen.CopyTo(rows_, to);
  if (!frozen.is_done()) return false;
  // No push is to be the one that frees its copies.
  for (size_t i = 0; i < frozen_.size(); ++i) {
    if (frozen_[i].lock().get() != &frozen) continue;
    frozen_.erase(frozen_.begin() + static_cast<std::ptrdiff_t>(i));
    break;
  }
  return true;
}

void Partition::BeforeChange(absl::Span<const Row> rows) {
  for (size_t i = 0; i < frozen_.size();) {
    const std::shared_ptr<FrozenRows> frozen = frozen_[i].lock();
    if (frozen == nullptr || frozen->is_done()) {
      frozen_.erase(frozen_.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    for (Row row : rows) frozen->BeforeChange(rows_, row);
    ++i;
  }
}

void Partition::NoteChanged(absl::Span<const Row> rows) {
  for (Row row : rows) changes_->Change(rows_.NumberOf(row));
}

void Partition::NoteRemoval(Row row) {
  const bool is_of_use = changes_->Remove(rows_.NumberOf(row), rows_.size() - 1,
                                          RowStore::key(row));
  if (!is_of_use) changes_ = nullptr;
}

void Partition::BeforeAllChange() {
  changes_ = nullptr;
  for (const std::weak_ptr<FrozenRows>& one : frozen_) {
    if (const auto frozen = one.lock()) frozen->BeforeAllChange(rows_);
  }
  frozen_.clear();
}

void Partition::Load(const PartitionImage& image) {
  MutexLock lock(mu_);
  BeforeAllChange();
  rows_.Clear();
  windows_.clear();
  if (life_.has_value()) life_.emplace(layout_.limits());
  AddRows(image);
}

void Partition::Add(const PartitionImage& image) {
  MutexLock lock(mu_);
  AddRows(image);
}

void Partition::AddRows(const PartitionImage& image) {
  BeforeAllChange();
  const bool has_touched = !image.touched.empty();
  if (life_.has_value()) {
    if (!image.life.empty()) WEFT_CHECK(life_->Load(image.life).ok());
    is_sorted_ = false;
  }
  int64_t at = 0;
  for (size_t i = 0; i < image.keys.size(); ++i) {
    const Row known = rows_.Find(image.keys[i]);
    // Everything that matters of a new row is written below.
    const Row row = known.exists() ? known : rows_.Add(image.keys[i]);
    const int64_t length = layout_.RowLength(image.keys[i]);
    rows_.set_step(row, static_cast<uint32_t>(image.steps[i]));
    if (life_.has_value()) {  // of a table that had no bounds: just now
      const int64_t now = life_->clock();
      rows_.SetTouched(row, has_touched ? std::min(image.touched[i], now) : now,
                       now);
    }
    float* weights = rows_.floats(row);
    std::copy_n(image.weights.begin() + at, length, weights);
    for (int s = 0; s < layout_.slots(); ++s) {
      const int64_t from =
          layout_.slot_is_per_row(s) ? static_cast<int64_t>(i) : at;
      std::copy_n(image.slots[s].begin() + from, layout_.SlotLength(s, length),
                  weights + layout_.SlotOffset(s));
    }
    at += length;
  }
  Account();
}

RowCounts Partition::counts() const {
  MutexLock lock(mu_);
  return counts_;
}

int64_t Partition::GrowthOf(absl::Span<const uint64_t> keys) const {
  MutexLock lock(mu_);
  int64_t missing = 0;
  while (!keys.empty()) {
    const size_t n = std::min(keys.size(), RowStore::kMostKeys);
    for (Row row : rows_.FindAll(keys.first(n)))
      missing += row.exists() ? 0 : 1;
    keys.remove_prefix(n);
  }
  // Beyond the limit other rows are evicted for new ones.
  const int64_t limit = layout_.limits().most_rows;
  if (limit > 0) {
    missing = std::min(missing, std::max<int64_t>(0, limit - rows_.size()));
  }
  return missing == 0 ? 0 : rows_.GrowthOf(missing);
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
         (life_.has_value() ? life_->memory_bytes() : 0) +
         (changes_ != nullptr ? changes_->memory_bytes() : 0) +
         static_cast<int64_t>(windows_.capacity() *
                              (sizeof(uint64_t) + sizeof(SequenceWindow) + 1));
}

}  // namespace weft::ps
