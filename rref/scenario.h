// Scenario: three workers, and what they do with references.

#ifndef WEFT_RREF_SCENARIO_H_
#define WEFT_RREF_SCENARIO_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rref {

// An argument that cannot be written, or not read.
struct Unfit {
  bool at_sender = false;
};

}  // namespace weft::rref

namespace weft::rpc {

template <>
struct Codec<rref::Unfit> {
  static std::string TypeName() { return "test.Unfit"; }
  static void Encode(const rref::Unfit& unfit, Encoder& e) {
    if (unfit.at_sender) e.Fail(absl::InvalidArgumentError("is unfit"));
    e.Write(true);
  }
  static absl::Status Decode(Decoder&, rref::Unfit&) {
    return Decoder::Malformed("cannot be read");
  }
};

}  // namespace weft::rpc

namespace weft::rref {

inline constexpr absl::Duration kLong = absl::Seconds(60);
inline constexpr int kO = 0, kA = 1, kB = 2, kC = 3;

inline std::atomic<int> live{0};
inline std::atomic<int> waiting{0};
inline std::atomic<bool> may_go_on{false};

// Waits until the test says so.
inline void WaitHere() {
  ++waiting;
  EXPECT_TRUE(::weft::testing::Becomes([] { return may_go_on.load(); }));
  --waiting;
}

class Cell {
 public:
  explicit Cell(int64_t value) : value_(value) { ++live; }
  ~Cell() { --live; }
  int64_t Add(int64_t n) { return value_ += n; }
  int64_t AddLate(int64_t n) {
    WaitHere();
    return value_ += n;
  }
  // The cell's value is a reference, too.
  void Put(const RRef<Cell>& inner) { inner_ = inner; }
  int64_t AddToInner(int64_t n) { return Call(inner_, &Cell::Add, n).value(); }

 private:
  std::atomic<int64_t> value_;
  RRef<Cell> inner_;
};
WEFT_RPC_CLASS(Cell, int64_t);
WEFT_RPC_METHOD(Cell, Add);
WEFT_RPC_METHOD(Cell, AddLate);
WEFT_RPC_METHOD(Cell, Put);
WEFT_RPC_METHOD(Cell, AddToInner);

inline int64_t Double(int64_t x) { return 2 * x; }
WEFT_RPC(Double);
inline int64_t SlowDouble(int64_t x) {
  WaitHere();
  return 2 * x;
}
WEFT_RPC(SlowDouble);
inline int64_t DoubleOnceGivenUp(rpc::CallContext& call, int64_t x) {
  EXPECT_TRUE(::weft::testing::Becomes(
      [&call] { return call.cancel().IsCancelled(); }));
  return 2 * x;
}
WEFT_RPC(DoubleOnceGivenUp);
inline int64_t FetchIt(const RRef<int64_t>& number) {
  return Fetch(number).value();
}
WEFT_RPC(FetchIt);
inline int64_t Use(const RRef<Cell>& cell) {
  return Call(cell, &Cell::Add, 1).value();
}
WEFT_RPC(Use);
inline int64_t UseLate(const RRef<Cell>& cell) {
  WaitHere();
  return Call(cell, &Cell::Add, 1).value();
}
WEFT_RPC(UseLate);
inline bool IsMine(const RRef<Cell>& cell) {
  return cell.is_owner() && cell.Local().ok();
}
WEFT_RPC(IsMine);
inline RRef<Cell> GiveBack(const RRef<Cell>& cell) { return cell; }
WEFT_RPC(GiveBack);
inline RRef<Cell> MakeHere(rpc::CallContext& context, int64_t value) {
  return MakeLocal(context.agent(), std::make_shared<Cell>(value)).value();
}
WEFT_RPC(MakeHere);
// Uses the reference at the end of a chain of workers.
inline int64_t PassOn(rpc::CallContext& context, const RRef<Cell>& cell,
                      const std::vector<std::string>& names) {
  if (names.empty()) return Use(cell);
  const std::vector<std::string> rest(names.begin() + 1, names.end());
  return rpc::Call(context.To(names[0]), PassOn, cell, rest).value();
}
WEFT_RPC(PassOn);
inline int64_t UseAll(
    const std::map<std::string, std::vector<RRef<Cell>>>& all) {
  int64_t sum = 0;
  for (const auto& [name, cells] : all) {
    for (const RRef<Cell>& cell : cells) sum += Use(cell);
  }
  return sum;
}
WEFT_RPC(UseAll);
inline int64_t UseWithUnfit(const RRef<Cell>& a, const RRef<Cell>& b,
                            const Unfit&) {
  return Use(a) + Use(b);
}
WEFT_RPC(UseWithUnfit);

class Scenario : public ::testing::Test {
 protected:
  Scenario() {
    may_go_on = false;
    for (int i = 0; i < 4; ++i) {
      references_.push_back(References::Open(ranks_[i]).value());
    }
  }
  ~Scenario() override {
    may_go_on = true;
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(::weft::testing::Becomes([&] { return IsEmpty(i); }))
          << "w" << i << " still has: "
          << ::testing::PrintToString(references_[i]->ExplainLeaks());
    }
    EXPECT_TRUE(::weft::testing::Becomes([] { return live == 0; })) << live;
    for (const auto& references : references_)
      EXPECT_THAT(references->Close(kLong), ::weft::testing::IsOk());
  }
  bool IsEmpty(int rank) const {
    const References::Counts c = references_[rank]->counts();
    return c.held == 0 && c.open_children == 0 && c.owned == 0 &&
           c.waiting == 0 && c.creating == 0 &&
           ranks_.size_of_objects(rank) == 0;
  }
  rpc::Target From(int from, int to, absl::Duration timeout = kLong) {
    return ranks_[from].To(absl::StrCat("w", to), timeout);
  }
  RRef<Cell> MakeAt(int owner, int creator) {
    return rref::Make<Cell>(From(creator, owner), 10).value();
  }
  // The counts of the owner once nobody moves.
  int64_t Holders(int owner) const {
    return static_cast<int64_t>(references_[owner]->Holdings().size());
  }

  class CountedRanks : public rpc::Ranks {
   public:
    using rpc::Ranks::Ranks;
    int64_t size_of_objects(int rank) const {
      return const_cast<CountedRanks&>(*this)[rank].objects().size();
    }
  };
  CountedRanks ranks_{4};
  std::vector<std::shared_ptr<References>> references_;
};

}  // namespace weft::rref

#endif  // WEFT_RREF_SCENARIO_H_
