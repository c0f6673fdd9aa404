#include "weft/rpc/diagnostics/leaks.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::rpc {
namespace {

auto KindOf(const Leak& l) {
  return std::tie(l.is_stream, l.is_here, l.peer, l.what);
}

}  // namespace

std::string Leak::ToString() const {
  if (what.empty()) {
    return absl::StrCat(count, " more ", is_stream ? "streams" : "objects");
  }
  const auto more = count - static_cast<int64_t>(ids.size());
  return absl::StrCat(
      count, " ", what, is_here ? " of " : " at ", peer,
      count == 1 ? " (call " : " (calls ", absl::StrJoin(ids, ", "),
      more > 0 ? absl::StrCat(" and ", more, " more") : "", ")");
}

Leak& LeakList::Find(const Leak& kind) {
  const auto find = [this](const Leak& wanted) {
    return std::find_if(all_.begin(), all_.end(), [&](const Leak& l) {
      return KindOf(l) == KindOf(wanted);
    });
  };
  Leak sought = kind;
  auto it = find(sought);
  if (it == all_.end() && all_.size() >= kMaxKinds) {
    sought = Leak{kind.is_stream, false, "", ""};
    it = find(sought);
  }
  return it != all_.end() ? *it : all_.emplace_back(std::move(sought));
}

void LeakList::Add(const Leak& kind, uint64_t id) {
  Leak& found = Find(kind);
  ++found.count;
  if (!found.what.empty() && found.ids.size() < Leak::kMaxIds) {
    found.ids.push_back(id);
  }
}

void LeakList::Add(const LeakList& other) {
  for (const Leak& l : other.all_) {
    Leak kind = l;
    kind.ids.clear();
    kind.count = 0;
    Leak& found = Find(kind);
    found.count += l.count;
    for (const uint64_t id : l.ids) {
      if (!found.what.empty() && found.ids.size() < Leak::kMaxIds) {
        found.ids.push_back(id);
      }
    }
  }
}

std::vector<Leak> LeakList::Sorted() const {
  std::vector<Leak> sorted = all_;
  std::sort(sorted.begin(), sorted.end(), [](const Leak& a, const Leak& b) {
    return std::make_pair(a.what.empty(), KindOf(a)) <
           std::make_pair(b.what.empty(), KindOf(b));
  });
  return sorted;
}

void OpenHandles::Add(const Worker& keeper, uint64_t id,
                      absl::string_view function) {
  MutexLock lock(mu_);
  if (gone_.Has(keeper.key)) return;
  Kept& kept = kept_[keeper.key];
  kept.keeper = keeper.name;
  kept.functions[id] = function;
}

void OpenHandles::Remove(WorkerKey keeper, uint64_t id) {
  MutexLock lock(mu_);
  const auto it = kept_.find(keeper);
  if (it == kept_.end()) return;
  it->second.functions.erase(id);
  if (!it->second.functions.empty()) return;
  kept_.erase(it);
  left_.erase(keeper);
}

void OpenHandles::KeeperGone(WorkerKey keeper, bool left) {
  MutexLock lock(mu_);
  gone_.Add(keeper);
  // Earlier ones died: a worker that leaves is reported.
  for (auto it = kept_.lower_bound({keeper.id, 0});
       it != kept_.end() && it->first < keeper;) {
    it = left_.count(it->first) > 0 ? std::next(it) : kept_.erase(it);
  }
  const auto it = kept_.find(keeper);
  if (it == kept_.end()) return;
  size_t remembered = it->second.functions.size();
  for (const WorkerKey& key : left_) remembered += kept_[key].functions.size();
  if (left && remembered <= kMaxOfLeft) {
    left_.insert(keeper);
  } else {
    kept_.erase(it);
  }
}

void OpenHandles::AddTo(LeakList* list) const {
  MutexLock lock(mu_);
  for (const auto& [key, kept] : kept_) {
    for (const auto& [id, function] : kept.functions) {
      list->Add({false, false, kept.keeper, std::string(function)}, id);
    }
  }
}

}  // namespace weft::rpc
