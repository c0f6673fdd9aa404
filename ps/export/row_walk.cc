#include "weft/ps/export/row_walk.h"

#include "weft/ps/core/table_layout.h"

namespace weft::ps {

RowWalk::RowWalk(const SavedTable::Place* place) {
  if (place == nullptr) return;
  Add(place->file, &place->part);
  for (const SavedTable::Link& link : place->older) Add(link.file, &link.part);
  Settle();
}

void RowWalk::Add(const TableFile* file, const TableFile::Part* part) {
  links_.push_back({file, part, part->row, part->element, part->removed});
}

bool RowWalk::Link::HasRemoved(uint64_t key) {
  const int64_t end = part->removed + part->removed_rows;
  while (removed < end && file->removed_key(removed) < key) ++removed;
  return removed < end && file->removed_key(removed) == key;
}

void RowWalk::Link::Next() {
  element += file->layout().RowLength(key());
  ++row;
}

void RowWalk::Settle() {
  for (;;) {
    current_ = links_.size();
    for (size_t i = 0; i < links_.size(); ++i) {
      if (links_[i].AtEnd()) continue;
      const uint64_t key = links_[i].key();
      if (current_ < links_.size() && key >= key_) continue;
      current_ = i;
      key_ = key;
    }
    if (AtEnd()) return;
    bool is_gone = false;  // in a newer one than that has it
    for (size_t i = 0; i < current_ && !is_gone; ++i) {
      is_gone = links_[i].HasRemoved(key_);
    }
    if (!is_gone) break;
    Skip(key_);
  }
  length_ = links_[current_].file->layout().RowLength(key_);
}

void RowWalk::Skip(uint64_t key) {
  for (Link& link : links_) {
    if (!link.AtEnd() && link.key() == key) link.Next();
  }
}

void RowWalk::Next() {
  if (links_.size() == 1) {
    links_[0].element += length_;
    ++links_[0].row;
  } else {
    Skip(key_);
  }
  Settle();
}

absl::string_view RowWalk::Of(const TableFile::Column& like) const {
  const Link& link = links_[current_];
  const TableFile::Column* const column = link.file->FindColumn(like.name);
  if (column == nullptr) return {};
  return column->of == TableFile::Of::kElement
             ? column->bytes.substr(link.element * column->item_bytes,
                                    length_ * column->item_bytes)
             : column->bytes.substr(link.row * column->item_bytes,
                                    column->item_bytes);
}

}  // namespace weft::ps
