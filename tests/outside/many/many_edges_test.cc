// Several tables in one message, in clumsy hands: none, one twice, of another
// client, closed, without keys, with tensors that do not fit, destroyed too
// soon. What is promised is quoted from ps/many.h ("the header").

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/many.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::GetStatus;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr auto kSync = v1::TableSpec::SYNC;
constexpr auto kAsync = v1::TableSpec::ASYNC;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Keys(const std::vector<int64_t>& keys) {
  return Tensor::FromVector(keys);
}
Tensor Minus(int64_t rows, float by = 1) {
  return Tensor::Full({rows, 2}, -by);
}
std::vector<float> FloatsOf(const Tensor& tensor) {
  return tensor.ToVector<float>();
}

// A job and a client with four tables.
class Many : public ::testing::TestWithParam<int> {  // replicas
 protected:
  Many() : job_(2, 2, nullptr, temp_.path(), GetParam()) {
    client_ = job_.MakeClient(0);
    async_ = Open(*client_, "async", kAsync);
    sync_ = Open(*client_, "sync", kSync);
    third_ = Open(*client_, "third", kAsync);
    v1::TableSpec spec = DenseSpec(kSync, 1, 3000);
    spec.set_name("dense");
    auto dense = client_->Dense(spec);
    EXPECT_THAT(dense.status(), IsOk());
    if (!dense.ok()) return;
    dense_ = *std::move(dense);
    EXPECT_THAT(
        GetStatus(dense_->Initialize(Tensor::Zeros({3000})).Wait(kTimeout)),
        IsOk());
  }
  static std::unique_ptr<SparseTable> Open(Client& client,
                                           const std::string& name,
                                           v1::TableSpec::Mode mode) {
    v1::TableSpec spec = SparseSpec(mode, 1);
    spec.set_name(name);
    auto table = client.Sparse(spec);
    EXPECT_THAT(table.status(), IsOk());
    return table.ok() ? *std::move(table) : nullptr;
  }
  static std::vector<float> Rows(SparseTable& table,
                                 const std::vector<int64_t>& keys) {
    const auto rows = table.Pull(Keys(keys)).Wait(kTimeout);
    EXPECT_THAT(rows.status(), IsOk());
    return rows.ok() ? FloatsOf(*rows) : std::vector<float>();
  }

  const testing::TempDir temp_;
  TestJob job_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<SparseTable> async_, sync_, third_;
  std::unique_ptr<DenseTable> dense_;
};
INSTANTIATE_TEST_SUITE_P(Replicas, Many, ::testing::Values(1, 2));

// "kInvalidArgument  a table twice, [...] no table": no pointer to one.
TEST_P(Many, NoTableIsRefused) {
  SparseTable* const none = nullptr;
  DenseTable* const no_dense = nullptr;
  const Tensor one = Keys({1});
  EXPECT_THAT(PullMany({{none, one}}).Wait(kTimeout).status(),
              StatusIs(kInvalid));
  EXPECT_THAT(
      PullMany({{async_.get(), one}, {no_dense}}).Wait(kTimeout).status(),
      StatusIs(kInvalid));
  EXPECT_THAT(GetStatus(PushMany({{no_dense, {}, Tensor::Ones({1})},
                                  {async_.get(), one, Minus(1)}})
                            .Wait(kTimeout)),
              StatusIs(kInvalid));
  EXPECT_THAT(Rows(*async_, {1}), ElementsAre(0, 0));
}

// An empty list is nothing to do: a caller that makes it in a loop need not
// ask.
TEST_P(Many, EmptyListIsReadyAtOnce) {
  const auto pulled = PullMany({}).Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(*pulled, IsEmpty());
  EXPECT_THAT(GetStatus(PushMany({}).Wait(kTimeout)), IsOk());
  EXPECT_THAT(PushPullMany({}).Wait(kTimeout).status(), IsOk());
  EXPECT_THAT(ExchangeEach({}), IsEmpty());
}

// "What cannot be sent is refused as a whole, before anything is": of what is
// refused no part counts, and each table goes on.
TEST_P(Many, WhatIsRefusedIsNotSentAndClosesNothing) {
  const auto other = job_.MakeClient(1);
  const auto of_other = Open(*other, "async", kAsync);
  const Tensor one = Keys({1});
  const PushOf good = {async_.get(), one, Minus(1)};
  const PushOf rounds = {sync_.get(), one, Minus(1)};
  const PushOf vector = {dense_.get(), {}, Tensor::Ones({3000})};
  const std::vector<std::pair<std::string, std::vector<PushOf>>> cases = {
      {"twice", {good, rounds, good}},
      {"twice at the end", {good, vector, vector}},
      {"another client's", {good, {of_other.get(), one, Minus(1)}}},
      {"keys undefined", {good, {third_.get(), {}, Minus(1)}}},
      {"gradients undefined", {good, {third_.get(), one, {}}}},
      {"nothing defined", {good, {third_.get(), {}, {}}}},
      {"rows that are not as many", {good, {third_.get(), one, Minus(2)}}},
      {"another dim", {good, {third_.get(), one, Tensor::Ones({1, 3})}}},
      {"no dim", {good, {third_.get(), one, Tensor::Ones({2})}}},
      {"i32 keys",
       {rounds, {third_.get(), Tensor::Zeros({1}, DType::kI32), Minus(1)}}},
      {"f64 gradients",
       {rounds, {third_.get(), one, Tensor::Ones({1, 2}, DType::kF64)}}},
      {"keys of a dense table",
       {good, {dense_.get(), one, Tensor::Ones({3000})}}},
      {"a dense table of another size",
       {good, rounds, {dense_.get(), {}, Tensor::Ones({2999})}}},
      {"a dense table without a gradient", {rounds, {dense_.get(), {}, {}}}},
  };
  for (const auto& [what, pushes] : cases) {
    EXPECT_THAT(GetStatus(PushMany(pushes).Wait(kTimeout)), StatusIs(kInvalid))
        << what;
    std::vector<TableOperation> each(pushes.begin(), pushes.end());
    const auto ended = ExchangeEach(each);
    ASSERT_THAT(ended, SizeIs(pushes.size())) << what;
    for (const Future<Tensor>& result : ended) {
      EXPECT_THAT(GetStatus(result.Wait(kTimeout)), StatusIs(kInvalid)) << what;
    }
    EXPECT_EQ(sync_->round(), 0) << what;
    EXPECT_EQ(dense_->round(), 0) << what;
  }
  EXPECT_THAT(PullMany({{async_.get(), one}, {third_.get(), {}}})
                  .Wait(kTimeout)
                  .status(),
              StatusIs(kInvalid));
  EXPECT_THAT(PullMany({{async_.get(), Tensor::Zeros({1, 1}, DType::kI64)}})
                  .Wait(kTimeout)
                  .status(),
              StatusIs(kInvalid));
  ASSERT_THAT(
      GetStatus(PushMany({good, rounds, vector, {third_.get(), one, Minus(1)}})
                    .Wait(kTimeout)),
      IsOk());
  for (SparseTable* table : {async_.get(), sync_.get(), third_.get()}) {
    EXPECT_THAT(Rows(*table, {1, 2}), ElementsAre(1, 1, 0, 0));
  }
  EXPECT_EQ(sync_->round(), 1);
}

// "tables [...] of one that has restored a checkpoint between their openings".
TEST_P(Many, TablesFromBeforeAndAfterARestoreAreRefused) {
  checkpoint::CheckpointDirectory::Options options;
  options.path = temp_.Path("ckpt");
  const auto directory = checkpoint::CheckpointDirectory::Open(options);
  ASSERT_THAT(directory.status(), IsOk());
  const auto attempt = (*directory)->Begin(1);
  const auto files = client_->Save(options.path, *attempt, -1);
  ASSERT_THAT(files.status(), IsOk());
  const auto name = (*directory)->Commit(*attempt, *files, {});
  ASSERT_THAT(name.status(), IsOk());
  ASSERT_THAT(client_->Restore(options.path, *name), IsOk());
  const auto after = Open(*client_, "third", kAsync);
  const Tensor one = Keys({1});
  if (GetParam() == 1) {
    EXPECT_THAT(GetStatus(PushMany({{async_.get(), one, Minus(1)},
                                    {after.get(), one, Minus(1)}})
                              .Wait(kTimeout)),
                StatusIs(kInvalid));
  }
  async_ = Open(*client_, "async", kAsync);
  EXPECT_THAT(GetStatus(PushMany({{async_.get(), one, Minus(1)},
                                  {after.get(), one, Minus(1)}})
                            .Wait(kTimeout)),
              IsOk());
}

// "SYNC: each shard of the data has a part of each round, also if it has no
// keys" (client.h): the same here.
TEST_P(Many, WithoutKeysRoundsEndAndNothingElseHappens) {
  const Tensor none = Keys({});
  const Tensor zero = Tensor::Zeros({0, 2});
  for (int round = 1; round <= 3; ++round) {
    const auto rows = PushPullMany({{async_.get(), none, zero, none},
                                    {sync_.get(), none, zero, none}})
                          .Wait(kTimeout);
    ASSERT_THAT(rows.status(), IsOk());
    ASSERT_THAT(*rows, SizeIs(2));
    for (const Tensor& each : *rows) EXPECT_EQ(each.shape(), (Shape{0, 2}));
    EXPECT_EQ(sync_->round(), round);
  }
  const auto mixed =
      PullMany({{dense_.get()}, {sync_.get(), none}}).Wait(kTimeout);
  ASSERT_THAT(mixed.status(), IsOk());
  EXPECT_EQ((*mixed)[0].shape(), Shape{3000});
}

// "a table that an earlier push has closed" is refused as a whole; "a refused
// push closes its table, and no other".
TEST_P(Many, TableThatIsClosedIsRefusedAndTheOthersGoOnWithoutIt) {
  // A client of the same worker that opens the table 64 times closes this one.
  std::vector<std::unique_ptr<SparseTable>> openings;
  for (int i = 0; i < 65; ++i) {
    openings.push_back(Open(*client_, "third", kAsync));
  }
  const Tensor one = Keys({1});
  const std::vector<TableOperation> all = {
      PushOf{async_.get(), one, Minus(1)}, PushOf{third_.get(), one, Minus(1)},
      PushPullOf{sync_.get(), one, Minus(1), one}};
  auto ended = ExchangeEach(all);
  EXPECT_THAT(GetStatus(ended[0].Wait(kTimeout)), IsOk());
  const absl::Status refused = GetStatus(ended[1].Wait(kTimeout));
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(refused, StatusIs(refused.code(), "third"));
  EXPECT_THAT(GetStatus(ended[2].Wait(kTimeout)), IsOk());
  // Now its own client knows.
  EXPECT_THAT(GetStatus(PushMany({{async_.get(), one, Minus(1)},
                                  {third_.get(), one, Minus(1)}})
                            .Wait(kTimeout)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "third"));
  EXPECT_THAT(Rows(*async_, {1}), ElementsAre(1, 1));
  EXPECT_THAT(GetStatus(PushMany({{async_.get(), one, Minus(1)},
                                  {openings.back().get(), one, Minus(1)}})
                            .Wait(kTimeout)),
              IsOk());
  EXPECT_THAT(Rows(*async_, {1}), ElementsAre(2, 2));
  EXPECT_THAT(Rows(*sync_, {1}), ElementsAre(1, 1));
}

// "Borrowed until the call returns": then tables, tensors and vectors may go.
TEST_P(Many, TablesMayGoOnceTheCallHasReturned) {
  std::vector<Future<Tensor>> ended;
  Future<std::vector<Tensor>> pulled = [&] {
    Tensor keys = Keys({1, 2, 3});
    Tensor gradients = Minus(3);
    ended = ExchangeEach({PushOf{async_.get(), keys, gradients},
                          PushPullOf{third_.get(), keys, gradients, keys}});
    for (int64_t i = 0; i < 3; ++i) {
      keys.data<int64_t>()[i] = 77;
      gradients.data<float>()[i] = 1000;
    }
    return PullMany({{sync_.get(), Keys({1})}, {dense_.get()}});
  }();
  async_.reset();
  third_.reset();
  sync_.reset();
  dense_.reset();
  EXPECT_THAT(GetStatus(ended[0].Wait(kTimeout)), IsOk());
  const auto rows = ended[1].Wait(kTimeout);
  ASSERT_THAT(rows.status(), IsOk());
  EXPECT_THAT(FloatsOf(*rows), Each(1));
  EXPECT_THAT(pulled.Wait(kTimeout).status(), IsOk());
  EXPECT_THAT(Rows(*Open(*client_, "async", kAsync), {1, 77}),
              ElementsAre(1, 1, 0, 0));
}

// "Each operation is what the table's own method is: its rounds, sequence
// numbers, 64 pushes under way": 200 without a wait count once each, also with
// the tables' own pushes between them.
TEST_P(Many, HundredsUnderWayCountOnceEach) {
  const Tensor keys = Keys({1, 2, 3, 4, 5, 6, 7, 8});
  std::vector<Future<void>> pushes;
  for (int i = 0; i < 200; ++i) {
    pushes.push_back(PushMany(
        {{async_.get(), keys, Minus(8)}, {third_.get(), keys, Minus(8)}}));
    if (i % 3 == 0) pushes.push_back(async_->Push(keys, Minus(8)));
  }
  for (const Future<void>& push : pushes) {
    ASSERT_THAT(GetStatus(push.Wait(kTimeout)), IsOk());
  }
  EXPECT_THAT(Rows(*async_, {1, 8}), Each(267));
  EXPECT_THAT(Rows(*third_, {1, 8}), Each(200));
}

// "Each operation is what the table's own method is": any mix of them gives
// what each alone does, keys that repeat and orders of tables included.
TEST_P(Many, AnyMixIsWhatEachAloneIs) {
  std::mt19937 random(7);
  std::vector<std::unique_ptr<SparseTable>> together, alone;
  for (int i = 0; i < 5; ++i) {
    const auto mode = i % 2 == 0 ? kSync : kAsync;
    together.push_back(Open(*client_, absl::StrCat("m", i), mode));
    alone.push_back(Open(*client_, absl::StrCat("a", i), mode));
  }
  const auto any_keys = [&] {
    std::vector<int64_t> keys(random() % 30);
    for (int64_t& key : keys) {
      key = static_cast<int64_t>(random() % 20) - 10;
      if (random() % 8 == 0) key = INT64_MIN;
    }
    return Keys(keys);
  };
  for (int step = 0; step < 40; ++step) {
    std::vector<int> order = {0, 1, 2, 3, 4};
    std::shuffle(order.begin(), order.end(), random);
    order.resize(1 + random() % 5);
    std::vector<TableOperation> operations;
    std::vector<Future<Tensor>> wanted;
    for (const int i : order) {
      const Tensor push = any_keys(), pull = any_keys();
      const Tensor gradients =
          Tensor::Full({push.numel(), 2}, -1.0 * (random() % 5));
      switch (random() % 3) {
        case 0:
          operations.push_back(PullOf{together[i].get(), pull});
          wanted.push_back(alone[i]->Pull(pull));
          break;
        case 1:
          operations.push_back(PushOf{together[i].get(), push, gradients});
          wanted.push_back(
              alone[i]->Push(push, gradients).Then([] { return Tensor(); }));
          break;
        default:
          operations.push_back(
              PushPullOf{together[i].get(), push, gradients, pull});
          wanted.push_back(alone[i]->PushPull(push, gradients, pull));
      }
    }
    const auto found = ExchangeEach(operations);
    ASSERT_THAT(found, SizeIs(wanted.size()));
    for (size_t k = 0; k < found.size(); ++k) {
      const auto a = found[k].Wait(kTimeout);
      const auto b = wanted[k].Wait(kTimeout);
      ASSERT_THAT(a.status(), IsOk());
      ASSERT_THAT(b.status(), IsOk());
      ASSERT_EQ(a->defined(), b->defined());
      if (!a->defined()) continue;
      EXPECT_EQ(a->shape(), b->shape());
      EXPECT_EQ(FloatsOf(*a), FloatsOf(*b)) << "step " << step;
    }
  }
}

// "A server answers once all of a message is done. [...] until the round is
// closed, at most as long as ClientOptions::timeout. What was pushed is applied
// meanwhile." The other client of a round never comes.
TEST_P(Many, PullThatWaitsInVainEndsAndWhatWasPushedStays) {
  v1::TableSpec spec = SparseSpec(kSync, 2);
  spec.set_name("two");
  const auto brief = job_.MakeClient(0, absl::Seconds(5));
  const auto two = brief->Sparse(spec);
  ASSERT_THAT(two.status(), IsOk());
  const auto fast = Open(*brief, "async", kAsync);
  const Tensor keys = Keys({1, 2, 3, 4, 5, 6, 7, 8});
  const auto ended = ExchangeEach({PushPullOf{two->get(), keys, Minus(8), keys},
                                   PushOf{fast.get(), keys, Minus(8)}});
  EXPECT_FALSE(GetStatus(ended[0].Wait(kTimeout)).ok());
  (void)GetStatus(ended[1].Wait(kTimeout));
  EXPECT_THAT(Rows(*async_, {1, 8}), Each(1));
}

// "To cancel one of the Futures cancels the messages that it is in": all end.
TEST_P(Many, CancelledOneEndsAll) {
  v1::TableSpec spec = SparseSpec(kSync, 2);
  spec.set_name("two");
  const auto two = client_->Sparse(spec);
  ASSERT_THAT(two.status(), IsOk());
  const Tensor keys = Keys({1, 2, 3, 4, 5, 6, 7, 8});
  auto ended = ExchangeEach({PushPullOf{two->get(), keys, Minus(8), keys},
                             PullOf{async_.get(), keys}});
  ended[0].Cancel();
  EXPECT_FALSE(GetStatus(ended[0].Wait(kTimeout)).ok());
  (void)GetStatus(ended[1].Wait(kTimeout));
  EXPECT_THAT(Rows(*async_, {1}), ElementsAre(0, 0));
}

}  // namespace
}  // namespace weft::ps
