#include "weft/ps/core/changed_rows.h"

#include <algorithm>
#include <utility>

#include "weft/base/check.h"

namespace weft::ps {

void ChangedRows::Span::Add(const Span& other) {
  rows.AddAll(other.rows);
  removed.insert(other.removed.begin(), other.removed.end());
}

void ChangedRows::Span::MoveLast(int64_t number, int64_t last) {
  const bool was_changed = rows.Remove(last);
  if (number == last) return;
  if (was_changed) {
    rows.Add(number);
  } else {
    rows.Remove(number);
  }
}

ChangedRows::Since ChangedRows::Span::Copy() const {
  return {rows, {removed.begin(), removed.end()}};
}

std::optional<ChangedRows::Since> ChangedRows::Freeze(const SavedAs& as) {
  WEFT_CHECK(!as.id.empty());
  const bool is_known_base =
      !as.base.empty() && base_.has_value() && base_->id == as.base;
  if (as.id == newest_.id) {
    // Once more for one attempt, as where a server has died meanwhile. Which of
    // the two it has in the end is not known here: what has changed since the
    // first is enough for both.
    if (!is_known_base) return std::nullopt;
    Since since = base_->Copy();
    const Since newest = newest_.Copy();
    since.rows.AddAll(newest.rows);
    since.removed.insert(since.removed.end(), newest.removed.begin(),
                         newest.removed.end());
    return since;
  }
  Span next;
  next.id = as.id;
  Span before = std::exchange(newest_, std::move(next));
  if (!as.base.empty() && before.id == as.base) {
    base_ = std::move(before);
  } else if (is_known_base) {
    base_->Add(before);
  } else {
    base_.reset();
    return std::nullopt;
  }
  return base_->Copy();
}

bool ChangedRows::Remove(int64_t number, int64_t last, uint64_t key) {
  newest_.MoveLast(number, last);
  newest_.removed.insert(key);
  auto removed = static_cast<int64_t>(newest_.removed.size());
  if (base_.has_value()) {
    base_->MoveLast(number, last);
    removed += static_cast<int64_t>(base_->removed.size());
  }
  return removed <= std::max(kLeastRemoved, last / 2);
}

int64_t ChangedRows::memory_bytes() const {
  const auto of = [](const Span& span) {
    return span.rows.memory_bytes() +
           static_cast<int64_t>(span.removed.capacity() *
                                (sizeof(uint64_t) + 1));
  };
  return static_cast<int64_t>(sizeof(*this)) + of(newest_) +
         (base_.has_value() ? of(*base_) : 0);
}

}  // namespace weft::ps
