#include "weft/collectives/operation.h"

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/collectives/call_site.h"

namespace weft::collectives {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr Verb kVerbs[] = {
    Verb::kAllReduce, Verb::kBroadcast, Verb::kReduce,        Verb::kAllGather,
    Verb::kGather,    Verb::kScatter,   Verb::kReduceScatter, Verb::kAllToAll,
    Verb::kBarrier,   Verb::kSend,      Verb::kReceive,       Verb::kSplit,
    Verb::kSubgroup};

Blocks Counts(const std::vector<int64_t>& counts) {
  Blocks blocks;
  for (const int64_t count : counts) blocks.push_back({nullptr, count});
  return blocks;
}

Operation AllReduceOf(int64_t elements) {
  Operation operation;
  operation.verb = Verb::kAllReduce;
  operation.dtype = DType::kF32;
  operation.inputs = operation.outputs = Counts({elements});
  operation.sequence = 12;
  operation.site = {"/src/model/train.cc", 40};
  return operation;
}

TEST(Verb, EachHasANameOfItsOwn) {
  std::set<absl::string_view> names;
  for (const Verb verb : kVerbs) names.insert(Name(verb));
  EXPECT_EQ(names.size(), std::size(kVerbs));
  EXPECT_EQ(names.count("unknown"), 0u);
  EXPECT_EQ(Name(static_cast<Verb>(200)), "unknown");
}

TEST(CallSite, IsThePlaceOfTheCallWithoutFolders) {
  const CallSite here = CallSite::Here();
  EXPECT_EQ(here.ToString(), absl::StrCat("operation_test.cc:", here.line));
  EXPECT_EQ((CallSite{"train.cc", 3}).ToString(), "train.cc:3");
  EXPECT_EQ((CallSite{"a/", 3}).ToString(), ":3");
  EXPECT_EQ(CallSite().ToString(), "unknown:0");
}

TEST(Describe, SaysWhatWasCalledOfWhatAndWhere) {
  Operation operation = AllReduceOf(1024);
  EXPECT_EQ(Describe(operation),
            "AllReduce #12 (sum of f32[1024]) at train.cc:40");
  operation.verb = Verb::kReduce;
  operation.reduction = ReduceOp::kMax;
  operation.root = 3;
  EXPECT_EQ(Describe(operation),
            "Reduce #12 (max of f32[1024], root 3) at train.cc:40");
  operation.label = 7;
  operation.detail = "[0, 2]";
  EXPECT_EQ(Describe(operation),
            "Reduce #12 (max of f32[1024], root 3) ([0, 2]) labelled 7 at "
            "train.cc:40");
}

TEST(Describe, OperationWithoutBlocksHasNoCounts) {
  Operation operation;
  operation.site = {"x.cc", 1};
  EXPECT_EQ(Describe(operation), "Barrier #0 at x.cc:1");
}

TEST(Describe, OutputsAreNamedWhereThereAreNoInputs) {
  Operation operation;
  operation.verb = Verb::kBroadcast;
  operation.dtype = DType::kI64;
  operation.outputs = Counts({0});
  operation.site = {"x.cc", 1};
  EXPECT_EQ(Describe(operation), "Broadcast #0 (i64[0], root 0) at x.cc:1");
}

TEST(Describe, OfManyBlocksFourCountsAreNamed) {
  Operation operation;
  operation.verb = Verb::kAllToAll;
  operation.dtype = DType::kU8;
  operation.inputs = Counts({3, 0, 4, 1});
  EXPECT_THAT(Describe(operation), HasSubstr("(u8[3, 0, 4, 1])"));
  operation.inputs = Counts({3, 0, 4, 1, 5});
  EXPECT_THAT(Describe(operation), HasSubstr("(u8[3, 0, 4, 1, ...])"));
}

// They are counted by no sequence number.
TEST(Describe, TransfersHaveNoNumber) {
  for (const Verb verb : {Verb::kSend, Verb::kReceive}) {
    Operation operation = AllReduceOf(2);
    operation.verb = verb;
    EXPECT_THAT(Describe(operation),
                StartsWith(absl::StrCat(Name(verb), " (f32[2])")));
  }
}

TEST(Describe, StepIsDescribedAsTheWhole) {
  Operation whole = AllReduceOf(2);
  whole.verb = Verb::kSplit;
  whole.detail = "color 3";
  Operation step;
  step.whole = &whole;
  Operation part;
  part.whole = &step;
  EXPECT_EQ(&WholeOf(part), &whole);
  EXPECT_EQ(&WholeOf(whole), &whole);
  EXPECT_EQ(Describe(part), Describe(whole));
}

TEST(DescribeList, ShortOnesAreWholeAndLongOnesHaveAFingerprint) {
  EXPECT_EQ(DescribeList({}), "[]");
  EXPECT_EQ(DescribeList({5}), "[5]");
  EXPECT_EQ(DescribeList({2, 0, 1}), "[2, 0, 1]");
  std::vector<int> list;
  std::set<std::string> texts;
  for (int i = 0; i < 200; ++i) {
    list.push_back(1000000 + i);
    const std::string text = DescribeList(list);
    EXPECT_LE(text.size(), Operation::kMostDetailBytes) << text;
    texts.insert(text);
  }
  EXPECT_EQ(texts.size(), 200u);
  const std::string forwards = DescribeList(list);
  EXPECT_THAT(forwards, StartsWith("[1000000, 1000001, ... of 200, #"));
  EXPECT_THAT(forwards, EndsWith("]"));
  std::swap(list[150], list[151]);
  EXPECT_NE(DescribeList(list), forwards);
}

// No number is cut in half.
TEST(DescribeList, LongestNumbersFit) {
  const std::vector<int> list(100, -2147483647 - 1);
  const std::string text = DescribeList(list);
  EXPECT_LE(text.size(), Operation::kMostDetailBytes);
  EXPECT_THAT(text, StartsWith("[-2147483648, ... of 100, #"));
}

TEST(CopyBlock, CopiesWhatIsElsewhere) {
  Operation operation;
  operation.dtype = DType::kI32;
  int32_t from[] = {1, 2, 3}, to[] = {0, 0, 0};
  const Block input = {reinterpret_cast<std::byte*>(from), 2};
  const Block output = {reinterpret_cast<std::byte*>(to), 2};
  CopyBlock(operation, input, output);
  EXPECT_THAT(to, ::testing::ElementsAre(1, 2, 0));
  CopyBlock(operation, input, input);
  CopyBlock(operation, {nullptr, 0}, output);
  CopyBlock(operation, {nullptr, 0}, {nullptr, 0});
  EXPECT_THAT(to, ::testing::ElementsAre(1, 2, 0));
  EXPECT_EQ(operation.BytesOf(input), 8);
}

// --- What must be equal on all ranks. --------------------------------------

using Change = std::pair<const char*, std::function<void(Operation&)>>;

TEST(Fingerprint, ChangesWithAllThatMustBeEqual) {
  const std::vector<Change> changes = {
      {"verb", [](Operation& o) { o.verb = Verb::kReduceScatter; }},
      {"dtype", [](Operation& o) { o.dtype = DType::kI32; }},
      {"operation", [](Operation& o) { o.reduction.op = ReduceOp::kMin; }},
      {"label", [](Operation& o) { o.label = 1; }},
      {"detail", [](Operation& o) { o.detail = "x"; }},
      {"count", [](Operation& o) { o.inputs[0].elements = 5; }},
      {"blocks",
       [](Operation& o) {
         o.inputs.push_back({nullptr, 0});
       }},
  };
  std::set<uint64_t> found = {Fingerprint(AllReduceOf(4))};
  for (const auto& [what, change] : changes) {
    Operation operation = AllReduceOf(4);
    change(operation);
    EXPECT_TRUE(found.insert(Fingerprint(operation)).second) << what;
  }
}

TEST(Fingerprint, IsTheSameWhateverEachRankHasOfItsOwn) {
  const std::vector<Change> changes = {
      {"site",
       [](Operation& o) {
         o.site = {"other.cc", 1};
       }},
      {"memory",
       [](Operation& o) {
         static std::byte memory;
         o.inputs[0].memory = &memory;
       }},
      {"factor", [](Operation& o) { o.reduction.factor = 0.5; }},
      {"deadline",
       [](Operation& o) { o.deadline = o.deadline + absl::Seconds(1); }},
      {"root, of which it has none", [](Operation& o) { o.root = 2; }},
  };
  for (const auto& [what, change] : changes) {
    Operation operation = AllReduceOf(4);
    change(operation);
    EXPECT_EQ(Fingerprint(operation), Fingerprint(AllReduceOf(4))) << what;
  }
}

TEST(Fingerprint, RootCountsWhereThereIsOne) {
  for (const Verb verb : kVerbs) {
    Operation a = AllReduceOf(4), b = AllReduceOf(4);
    a.verb = b.verb = verb;
    b.root = 1;
    const bool has_root = verb == Verb::kBroadcast || verb == Verb::kReduce ||
                          verb == Verb::kGather || verb == Verb::kScatter;
    EXPECT_EQ(Fingerprint(a) != Fingerprint(b), has_root) << Name(verb);
  }
}

// With these verbs a rank knows only its own count, so counts may differ.
TEST(Fingerprint, CountsOfOneRankAloneAreLeftOut) {
  for (const Verb verb : {Verb::kGather, Verb::kScatter, Verb::kAllToAll,
                          Verb::kSend, Verb::kReceive}) {
    Operation a = AllReduceOf(4), b = AllReduceOf(5);
    a.verb = b.verb = verb;
    EXPECT_EQ(Fingerprint(a), Fingerprint(b)) << Name(verb);
  }
  for (const Verb verb : {Verb::kAllReduce, Verb::kReduce, Verb::kBroadcast,
                          Verb::kAllGather, Verb::kReduceScatter}) {
    Operation a = AllReduceOf(4), b = AllReduceOf(5);
    a.verb = b.verb = verb;
    EXPECT_NE(Fingerprint(a), Fingerprint(b)) << Name(verb);
  }
}

TEST(Fingerprint, OfAStepDependsOnTheWholeOperation) {
  Operation whole = AllReduceOf(4), other = AllReduceOf(4);
  other.label = 1;
  Operation step = AllReduceOf(4);
  const uint64_t alone = Fingerprint(step);
  step.whole = &whole;
  const uint64_t of_whole = Fingerprint(step);
  step.whole = &other;
  EXPECT_NE(of_whole, alone);
  EXPECT_NE(Fingerprint(step), of_whole);
}

}  // namespace
}  // namespace weft::collectives
