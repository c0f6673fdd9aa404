#include "weft/rpc/object_table.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr WorkerKey kOwner{0, 5};
const Worker kA{"a", {1, 7}, ""};
const Worker kB{"b", {2, 7}, ""};

ObjectId IdOf(const Worker& creator, uint64_t call) {
  return {kOwner, creator.key, call};
}

ObjectTable::Object Watched(std::weak_ptr<int>* watch) {
  auto value = std::make_shared<int>(1);
  *watch = value;
  ObjectTable::Object object;
  object.value = std::move(value);
  object.function = "Make";
  return object;
}

TEST(ObjectTable, AnObjectEndsWithItsLastHolder) {
  ObjectTable table(kOwner, 10);
  std::weak_ptr<int> watch;
  ASSERT_THAT(table.Add(IdOf(kA, 3), kA, Watched(&watch)), IsOk());
  ASSERT_THAT(table.Hold(IdOf(kA, 3), kB), IsOk());
  ASSERT_THAT(table.Hold(IdOf(kA, 3), kB), IsOk());
  EXPECT_THAT(table.Release(IdOf(kA, 3), kA.key), IsOk());
  EXPECT_THAT(table.Find(IdOf(kA, 3), kA.key, nullptr).status(),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(table.Find(IdOf(kA, 3), kB.key, nullptr).status(), IsOk());
  EXPECT_THAT(table.Release(IdOf(kA, 3), kB.key), IsOk());
  EXPECT_FALSE(watch.expired());
  EXPECT_THAT(table.Release(IdOf(kA, 3), kB.key), IsOk());
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(table.size(), 0);
  EXPECT_THAT(table.Release(IdOf(kA, 3), kB.key),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(table.Hold(IdOf(kA, 3), kB),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(ObjectTable, CallsOfDifferentCreatorsAreDifferentObjects) {
  ObjectTable table(kOwner, 10);
  std::weak_ptr<int> a;
  std::weak_ptr<int> b;
  ASSERT_THAT(table.Add(IdOf(kA, 3), kA, Watched(&a)), IsOk());
  ASSERT_THAT(table.Add(IdOf(kB, 3), kB, Watched(&b)), IsOk());
  EXPECT_THAT(table.Add(IdOf(kB, 3), kB, Watched(&a)),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(table.size(), 2);
}

TEST(ObjectTable, ObjectsOfAnIncarnationEndWithIt) {
  ObjectTable table(kOwner, 10);
  const Worker earlier{"a", {1, 6}, ""};
  const Worker later{"a", {1, 8}, ""};
  std::weak_ptr<int> of_earlier;
  std::weak_ptr<int> of_a;
  std::weak_ptr<int> of_later;
  std::weak_ptr<int> shared;
  ASSERT_THAT(table.Add(IdOf(earlier, 1), earlier, Watched(&of_earlier)),
              IsOk());
  ASSERT_THAT(table.Add(IdOf(kA, 1), kA, Watched(&of_a)), IsOk());
  ASSERT_THAT(table.Add(IdOf(later, 1), later, Watched(&of_later)), IsOk());
  ASSERT_THAT(table.Add(IdOf(kA, 2), kA, Watched(&shared)), IsOk());
  ASSERT_THAT(table.Hold(IdOf(kA, 2), kB), IsOk());
  table.HolderGone(kA.key);
  EXPECT_TRUE(of_earlier.expired());
  EXPECT_TRUE(of_a.expired());
  EXPECT_FALSE(of_later.expired());
  EXPECT_FALSE(shared.expired());
  // A function of it may still run.
  EXPECT_THAT(table.Add(IdOf(kA, 3), kA, Watched(&of_a)),
              StatusIs(absl::StatusCode::kUnavailable, "is gone"));
  EXPECT_THAT(table.Hold(IdOf(kA, 2), earlier),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(table.Add(IdOf(later, 3), later, Watched(&of_a)), IsOk());
}

TEST(ObjectTable, ObjectOfAClientEndsWithItsSessionOnly) {
  ObjectTable table(kOwner, 10);
  const Worker client{"client-1", {kClientId, 700}, ""};
  const Worker other{"client-2", {kClientId, 600}, ""};
  std::weak_ptr<int> a;
  std::weak_ptr<int> b;
  ASSERT_THAT(table.Add(IdOf(client, 1), client, Watched(&a)), IsOk());
  ASSERT_THAT(table.Add(IdOf(other, 1), other, Watched(&b)), IsOk());
  table.SessionEnded(client.key);
  EXPECT_TRUE(a.expired());
  EXPECT_FALSE(b.expired());
  // Its next session is as good as the first; their keys are drawn at random,
  // so that none is a later incarnation of another.
  EXPECT_THAT(table.Add(IdOf(client, 2), client, Watched(&a)), IsOk());
  table.HolderGone(client.key);
  EXPECT_FALSE(b.expired());
}

TEST(ObjectTable, TheQuotaIsOfEachHolderAndItsErrorNamesIt) {
  ObjectTable table(kOwner, 2);
  std::weak_ptr<int> watch;
  ASSERT_THAT(table.Add(IdOf(kA, 1), kA, Watched(&watch)), IsOk());
  ASSERT_THAT(table.Add(IdOf(kA, 2), kA, Watched(&watch)), IsOk());
  EXPECT_THAT(table.Add(IdOf(kA, 3), kA, Watched(&watch)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "a (1@0.7) holds 2 objects here"));
  EXPECT_TRUE(watch.expired());  // the one that was refused
  ASSERT_THAT(table.Add(IdOf(kB, 1), kB, Watched(&watch)), IsOk());
  ASSERT_THAT(table.Hold(IdOf(kA, 1), kB), IsOk());
  ASSERT_THAT(table.Hold(IdOf(kA, 1), kB), IsOk());  // no further object
  EXPECT_THAT(table.Hold(IdOf(kA, 2), kB),
              StatusIs(absl::StatusCode::kResourceExhausted, "b (2@0.7)"));
  EXPECT_EQ(table.size(), 3);
}

TEST(ObjectTable, LookUpByANonHolderFails) {
  ObjectTable table(kOwner, 2);
  std::weak_ptr<int> watch;
  ASSERT_THAT(table.Add(IdOf(kA, 1), kA, Watched(&watch)), IsOk());
  EXPECT_THAT(table.Find(IdOf(kA, 1), kB.key, nullptr).status(),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(table.Release(IdOf(kA, 1), kB.key),
              StatusIs(absl::StatusCode::kNotFound));
  ObjectId elsewhere = IdOf(kA, 1);
  elsewhere.owner.epoch = 4;
  EXPECT_THAT(table.Find(elsewhere, kA.key, nullptr).status(),
              StatusIs(absl::StatusCode::kNotFound, "this is"));
}

}  // namespace
}  // namespace weft::rpc
