// Two ranks, of which one sends to the other: every order in which they call,
// give up, send headers and hear notices.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "weft/collectives/backends/device/transfer_handshake.h"

namespace weft::collectives {
namespace {

using Stage = TransferHandshake::Stage;

// A Send or a Receive as DeviceTransfers has it.
struct One {
  enum class Phase : uint8_t {
    kCalled,   // Send: nothing is offered yet; Receive: wants a header
    kOffered,  // Send: the header is not sent yet
    kAnswer,   // waits for the other rank, then for its turn
    kLeft,     // is given up, and the handshake is not told yet
    kOver,
  };
  uint64_t tag = 0;
  bool is_refused = false;  // a Receive that wants another tensor
  Phase phase = Phase::kCalled;
  uint64_t id = 0;

  bool lives() const { return phase < Phase::kLeft; }
};
using Phase = One::Phase;

struct Options {
  std::vector<One> sends, receives;
  // Notices may come between the decision to give a Send up and the handshake's
  // GiveUp.
  bool gives_up_late = false;
};

class World {
 public:
  explicit World(const Options& options) : options_(options) {}

  // Appends each world that may come next but by giving up.
  void AppendNext(std::vector<World>& next) const;
  void AppendGivenUp(std::vector<World>& next) const;
  // What is wrong; "" if nothing is. Some transfer may be given up alone...
  std::string Broken() const;
  // ...and nothing else can come.
  std::string BrokenAtRest() const;
  bool has_ended() const { return has_ended_; }
  size_t launched() const { return launched_[0].size(); }
  size_t withdrawn() const { return withdrawn_.size(); }
  std::string Describe() const;

 private:
  using Event = std::function<bool(World&)>;
  void Append(const Event& event, std::vector<World>& next) const {
    World copy = *this;
    if (event(copy)) next.push_back(std::move(copy));
  }
  std::vector<One>& all(bool is_send) {
    return is_send ? options_.sends : options_.receives;
  }
  TransferHandshake& side(bool is_send) { return sides_[is_send ? 0 : 1]; }
  bool IsOldest(bool is_send, size_t i);
  bool Move(bool is_send, size_t i);
  bool GiveUp(bool is_send, size_t i);
  bool Hear(bool is_send);
  void TakeOutboxes();

  Options options_;
  TransferHandshake sides_[2];             // of the sender, of the receiver
  std::deque<TransferNotice> notices_[2];  // to each
  std::map<uint64_t, std::deque<uint64_t>> headers_;  // by tag
  std::vector<uint64_t> launched_[2], withdrawn_;
  bool has_ended_ = false;  // the group
  std::string broken_;
};

// Of those with one tag only the oldest moves.
bool World::IsOldest(bool is_send, size_t i) {
  const std::vector<One>& ones = all(is_send);
  return std::none_of(ones.begin(), ones.begin() + i, [&](const One& one) {
    return one.lives() && one.tag == ones[i].tag;
  });
}

bool World::Move(bool is_send, size_t i) {
  One& one = all(is_send)[i];
  TransferHandshake& handshake = side(is_send);
  switch (one.phase) {
    case Phase::kCalled:
      if (!IsOldest(is_send, i)) return false;
      if (is_send) {
        one.id = handshake.Offer();
        one.phase = Phase::kOffered;
        return true;
      }
      if (headers_[one.tag].empty()) return false;
      one.id = headers_[one.tag].front();
      headers_[one.tag].pop_front();
      one.phase = one.is_refused ? Phase::kOver : Phase::kAnswer;
      one.is_refused ? handshake.Refuse(one.id) : handshake.Accept(one.id);
      return true;
    case Phase::kOffered:
      headers_[one.tag].push_back(one.id);
      one.phase = Phase::kAnswer;
      return true;
    case Phase::kAnswer:
      switch (handshake.StageOf(is_send, one.id)) {
        case Stage::kOffered:
        case Stage::kAccepted:
          return false;
        case Stage::kRefused:
          one.phase = Phase::kOver;
          break;
        case Stage::kWithdrawn:
          one.phase = Phase::kCalled;
          if (is_send) broken_ = "a Send that lives is withdrawn";
          break;
        case Stage::kAgreed:
          if (!handshake.IsNext(is_send, one.id)) return false;
          launched_[is_send ? 0 : 1].push_back(one.id);
          one.phase = Phase::kOver;
      }
      handshake.Forget(is_send, one.id);
      return true;
    case Phase::kLeft:
      one.phase = Phase::kOver;
      if (handshake.GiveUp(is_send, one.id)) {
        withdrawn_.push_back(one.id);
      } else {
        has_ended_ = true;
      }
      return true;
    case Phase::kOver:
      return false;
  }
  return false;
}

// The deadline has passed.
bool World::GiveUp(bool is_send, size_t i) {
  One& one = all(is_send)[i];
  if (!one.lives()) return false;
  const Phase before = std::exchange(one.phase, Phase::kOver);
  if (before == Phase::kOffered) side(true).Forget(true, one.id);
  if (before != Phase::kAnswer) return true;
  if (!side(is_send).MayGiveUp(is_send, one.id)) {
    has_ended_ = true;
  } else if (is_send && options_.gives_up_late) {
    one.phase = Phase::kLeft;
  } else if (!side(is_send).GiveUp(is_send, one.id)) {
    broken_ = "what may be given up is not";
  } else if (is_send) {
    withdrawn_.push_back(one.id);
  }
  return true;
}

bool World::Hear(bool is_send) {
  std::deque<TransferNotice>& notices = notices_[is_send ? 0 : 1];
  if (notices.empty()) return false;
  const absl::Status heard = side(is_send).OnNotice(notices.front());
  notices.pop_front();
  if (!heard.ok()) broken_ = heard.ToString();
  return true;
}

void World::TakeOutboxes() {
  for (const int from : {0, 1}) {
    std::deque<TransferNotice>& outbox = sides_[from].outbox();
    std::deque<TransferNotice>& to = notices_[1 - from];
    to.insert(to.end(), outbox.begin(), outbox.end());
    outbox.clear();
  }
}

void World::AppendNext(std::vector<World>& next) const {
  for (const bool is_send : {true, false}) {
    const size_t size = (is_send ? options_.sends : options_.receives).size();
    for (size_t i = 0; i < size; ++i) {
      Append([&](World& w) { return w.Move(is_send, i); }, next);
    }
    Append([&](World& w) { return w.Hear(is_send); }, next);
  }
  for (World& world : next) world.TakeOutboxes();
}

void World::AppendGivenUp(std::vector<World>& next) const {
  for (const bool is_send : {true, false}) {
    const size_t size = (is_send ? options_.sends : options_.receives).size();
    for (size_t i = 0; i < size; ++i) {
      Append([&](World& w) { return w.GiveUp(is_send, i); }, next);
    }
  }
  for (World& world : next) world.TakeOutboxes();
}

std::string World::Broken() const {
  if (!broken_.empty()) return broken_;
  for (const uint64_t id : withdrawn_) {
    for (const std::vector<uint64_t>& launched : launched_) {
      if (std::count(launched.begin(), launched.end(), id) > 0) {
        return absl::StrCat("H2: offer ", id, " was withdrawn and launched");
      }
    }
  }
  const size_t both = std::min(launched_[0].size(), launched_[1].size());
  const bool is_one_order = std::equal(
      launched_[0].begin(), launched_[0].begin() + both, launched_[1].begin());
  return is_one_order ? "" : "H1: they launch in different orders";
}

std::string World::BrokenAtRest() const {
  if (launched_[0] != launched_[1]) return "H1: one launches more";
  std::set<std::string> sent;
  std::string withdrawn;
  for (const One& one : options_.sends) {
    const auto waiting = headers_.find(one.tag);
    const bool is_unasked =
        waiting != headers_.end() &&
        std::count(waiting->second.begin(), waiting->second.end(), one.id) > 0;
    if (one.phase == Phase::kAnswer) {
      if (!is_unasked) return absl::StrCat("H4: Send ", one.id, " waits");
      sent.insert(absl::StrCat(" ", one.id, ":0"));
    }
  }
  for (const One& one : options_.receives) {
    if (one.phase == Phase::kAnswer) {
      return absl::StrCat("H4: Receive of offer ", one.id, " waits");
    }
  }
  // Only of what no Receive has asked for.
  std::vector<uint64_t> unasked = withdrawn_;
  std::sort(unasked.begin(), unasked.end());
  for (const uint64_t id : unasked) {
    for (const auto& [tag, ids] : headers_) {
      if (std::count(ids.begin(), ids.end(), id) == 0) continue;
      absl::StrAppend(&withdrawn, "; withdrawn ", id);
    }
  }
  const std::string wanted[] = {
      absl::StrCat("sent", absl::StrJoin(sent, ""), "; received"),
      absl::StrCat("sent; received", withdrawn)};
  for (const int side : {0, 1}) {
    if (sides_[side].Describe() == wanted[side]) continue;
    return absl::StrCat("H5: wanted ", wanted[side]);
  }
  return "";
}

std::string World::Describe() const {
  std::string text;
  for (const int side : {0, 1}) {
    absl::StrAppend(
        &text, side == 0 ? "sender: " : "receiver: ", sides_[side].Describe(),
        "; launched ", absl::StrJoin(launched_[side], " "), "; to hear");
    for (const TransferNotice& notice : notices_[side]) {
      absl::StrAppend(&text, " ", static_cast<int>(notice.kind), " of ",
                      notice.id);
    }
    absl::StrAppend(&text, "; calls");
    for (const One& one : side == 0 ? options_.sends : options_.receives) {
      absl::StrAppend(&text, " ", one.tag, ":", static_cast<int>(one.phase),
                      ":", one.id);
    }
    absl::StrAppend(&text, "\n");
  }
  for (const auto& [tag, ids] : headers_) {
    absl::StrAppend(&text, "headers of tag ", tag, ": ",
                    absl::StrJoin(ids, " "), "\n");
  }
  absl::StrAppend(&text, "withdrawn ", absl::StrJoin(withdrawn_, " "),
                  has_ended_ ? "; the group has ended" : "");
  return text;
}

struct Found {
  int64_t states = 0, rests = 0, ends = 0;
  size_t most_launched = 0, most_withdrawn = 0;
};

// Explores all orders; adds a failure for the first state that is wrong.
Found Explore(const Options& options) {
  Found found;
  absl::flat_hash_set<std::string> seen;
  std::vector<World> open = {World(options)};
  seen.insert(open.back().Describe());
  while (!open.empty()) {
    const World world = std::move(open.back());
    open.pop_back();
    ++found.states;
    std::string broken = world.Broken();
    std::vector<World> next;
    if (world.has_ended()) {
      ++found.ends;
    } else {
      world.AppendNext(next);
      if (next.empty()) {
        ++found.rests;
        if (broken.empty()) broken = world.BrokenAtRest();
      }
      std::vector<World> given_up;
      world.AppendGivenUp(given_up);
      for (World& one : given_up) next.push_back(std::move(one));
    }
    if (!broken.empty()) {
      ADD_FAILURE() << broken << "\n" << world.Describe();
      return found;
    }
    found.most_launched = std::max(found.most_launched, world.launched());
    found.most_withdrawn = std::max(found.most_withdrawn, world.withdrawn());
    for (World& one : next) {
      if (seen.insert(one.Describe()).second) open.push_back(std::move(one));
    }
  }
  return found;
}

// Of these tags. A Receive with tag - 10 wants another tensor than is sent.
Options Calls(const std::vector<int>& sends, const std::vector<int>& receives,
              bool gives_up_late) {
  Options options;
  options.gives_up_late = gives_up_late;
  for (const int tag : sends) {
    options.sends.emplace_back();
    options.sends.back().tag = tag;
  }
  for (const int tag : receives) {
    options.receives.emplace_back();
    options.receives.back().tag = tag < 0 ? tag + 10 : tag;
    options.receives.back().is_refused = tag < 0;
  }
  return options;
}

const std::vector<std::vector<int>> kSends = {{0}, {0, 0}, {0, 1}};
const std::vector<std::vector<int>> kReceives = {
    {0}, {-10}, {0, 0}, {0, 1}, {1, 0}, {-10, 0}, {-10, 1}};

TEST(TransferHandshakeExploration, NothingHangsAndNothingIsKept) {
  Found all;
  for (const auto& sends : kSends) {
    for (const auto& receives : kReceives) {
      const Found found = Explore(Calls(sends, receives, false));
      if (::testing::Test::HasFailure()) return;
      all.states += found.states;
      all.rests += found.rests;
      all.most_launched = std::max(all.most_launched, found.most_launched);
      all.most_withdrawn = std::max(all.most_withdrawn, found.most_withdrawn);
    }
  }
  RecordProperty("states", absl::StrCat(all.states));
  EXPECT_GT(all.states, 5'000);
  EXPECT_GT(all.rests, 100);
  EXPECT_EQ(all.most_launched, 2u);
  EXPECT_EQ(all.most_withdrawn, 2u);
}

// Between the decision and GiveUp the other rank may have accepted it: then the
// group ends, where it would hang else.
TEST(TransferHandshakeExploration, NorWhereWhatIsGivenUpIsToldLate) {
  int64_t ends = 0;
  for (const auto& sends : kSends) {
    for (const auto& receives : kReceives) {
      ends += Explore(Calls(sends, receives, true)).ends;
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(ends, 100);
}

TEST(TransferHandshakeExploration, ThreeOfOneTag) {
  const Found found = Explore(Calls({0, 0, 0}, {0, -10, 0}, true));
  RecordProperty("states", absl::StrCat(found.states));
  EXPECT_GT(found.states, 5'000);
  EXPECT_EQ(found.most_launched, 2u);
}

}  // namespace
}  // namespace weft::collectives
