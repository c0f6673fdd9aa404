// Bounded tables that go on with other bounds or another rule, servers without
// memory for rows, and the state of a partition's clock from a hostile file.
// What is promised is quoted from docs/parameter_server.md ("the page"), or the
// header that is named.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/core/row_life.h"
#include "weft/ps/many.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::weft::testing::GetStatus;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

constexpr auto kSync = v1::TableSpec::SYNC;
constexpr auto kAsync = v1::TableSpec::ASYNC;

Tensor Keys(std::vector<int64_t> keys) {
  return Tensor::FromVector(std::move(keys));
}
Tensor Range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys;
  for (int64_t key = begin; key < end; ++key) keys.push_back(key);
  return Tensor::FromVector(std::move(keys));
}
Tensor Ones(const Tensor& keys) { return Tensor::Full({keys.numel(), 2}, -1); }
absl::Status Push(SparseTable& table, const Tensor& keys) {
  return GetStatus(table.Push(keys, Ones(keys)).Wait(kTimeout));
}
std::vector<float> Pull(SparseTable& table, const Tensor& keys) {
  const auto rows = table.Pull(keys).Wait(kTimeout);
  EXPECT_THAT(rows.status(), IsOk());
  return rows.ok() ? rows->ToVector<float>() : std::vector<float>();
}
v1::TableStats StatsOf(Client& client) {
  v1::TableStats all;
  const auto described = client.Describe();
  EXPECT_THAT(described.status(), IsOk());
  if (!described.ok()) return all;
  for (const v1::ServerStats& server : *described) {
    for (const v1::TableStats& table : server.tables()) {
      if (table.spec().kind() != v1::TableSpec::SPARSE) continue;
      all.set_rows(all.rows() + table.rows());
      all.set_memory_bytes(all.memory_bytes() + table.memory_bytes());
      all.set_evicted_full(all.evicted_full() + table.evicted_full());
      all.set_evicted_idle(all.evicted_idle() + table.evicted_idle());
      all.set_refused_pushes(all.refused_pushes() + table.refused_pushes());
    }
  }
  return all;
}

// --- Restores ----------------------------------------------------------------

// A job of a table `before` that was pushed to and saved, and then one where it
// was restored.
class Restored : public ::testing::TestWithParam<int> {  // replicas
 protected:
  void Save(const v1::TableSpec& before,
            absl::FunctionRef<void(SparseTable&)> train) {
    TestJob job(2, 1, nullptr, temp_.path());
    const auto client = job.MakeClient(0);
    const auto table = client->Sparse(before);
    ASSERT_THAT(table.status(), IsOk());
    train(**table);
    checkpoint::CheckpointDirectory::Options options;
    options.path = temp_.Path("ckpt");
    const auto directory = checkpoint::CheckpointDirectory::Open(options);
    ASSERT_THAT(directory.status(), IsOk());
    const auto attempt = (*directory)->Begin(1);
    const auto files = client->Save(options.path, *attempt, -1);
    ASSERT_THAT(files.status(), IsOk());
    const auto name = (*directory)->Commit(*attempt, *files, {});
    ASSERT_THAT(name.status(), IsOk());
    name_ = *name;
  }
  absl::StatusOr<std::unique_ptr<SparseTable>> OpenAgain(
      const v1::TableSpec& after) {
    job_ = std::make_unique<TestJob>(3, 1, nullptr, temp_.path(), GetParam());
    client_ = job_->MakeClient(0);
    const absl::Status restored = client_->Restore(temp_.Path("ckpt"), name_);
    if (!restored.ok()) return restored;
    return client_->Sparse(after);
  }
  v1::TableStats stats() { return StatsOf(*client_); }

  TempDir temp_;
  std::string name_;
  std::unique_ptr<TestJob> job_;
  std::unique_ptr<Client> client_;
};
INSTANTIATE_TEST_SUITE_P(Replicas, Restored, ::testing::Values(1, 2));

// The page: "A restored table may have another `life`"; "rows of a table that
// had none count as just touched"; G12: "never has more rows than its bound
// after a push".
TEST_P(Restored, TableWithoutBoundsIsWithinThemAfterARoundAndNotBefore) {
  v1::TableSpec spec = SparseSpec(kSync, 1);
  Save(spec, [](SparseTable& table) {
    for (int round = 0; round < 10; ++round) {
      ASSERT_THAT(Push(table, Range(0, 1000)), IsOk());
    }
  });
  spec.mutable_life()->set_max_rows(64);
  const auto table = OpenAgain(spec);
  ASSERT_THAT(table.status(), IsOk());
  EXPECT_THAT(Pull(**table, Range(0, 1000)), Each(10));
  ASSERT_THAT(Push(**table, Keys({})), IsOk());
  EXPECT_LE(stats().rows(), 64);
  EXPECT_GT(stats().rows(), 0);
}

// A dense table that had a rule by elements does not get one by rows.
TEST_P(Restored, DenseTableRefusesALimitOfTheNorm) {
  Save(SparseSpec(kSync, 1), [](SparseTable&) {});
  const auto sparse = OpenAgain(SparseSpec(kSync, 1));
  ASSERT_THAT(sparse.status(), IsOk());
  v1::TableSpec spec = DenseSpec(kSync, 1, 3000);
  spec.set_name("d");
  ASSERT_THAT(client_->Dense(spec).status(), IsOk());
  spec.mutable_rule()->set_clip_norm(1);
  EXPECT_THAT(client_->Dense(spec).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "row"));
}

TEST_P(Restored, RowsOfATableWithoutBoundsCountAsJustTouched) {
  v1::TableSpec spec = SparseSpec(kSync, 1);
  Save(spec, [](SparseTable& table) {
    ASSERT_THAT(Push(table, Range(0, 100)), IsOk());
    for (int round = 0; round < 10; ++round) {
      ASSERT_THAT(Push(table, Keys({})), IsOk());
    }
  });
  spec.mutable_life()->set_idle_versions(2);
  const auto table = OpenAgain(spec);
  ASSERT_THAT(table.status(), IsOk());
  const int64_t copies = stats().rows() / 100;  // with two replicas it may be 2
  for (int round = 0; round < 2; ++round) {
    ASSERT_THAT(Push(**table, Keys({})), IsOk());
    EXPECT_EQ(stats().rows(), 100 * copies) << round;
  }
  ASSERT_THAT(Push(**table, Keys({})), IsOk());
  ASSERT_THAT(Push(**table, Keys({})), IsOk());
  EXPECT_EQ(stats().rows(), 0);
}

TEST_P(Restored, BoundedTableWithoutItsBoundsKeepsWhatItHas) {
  v1::TableSpec spec = SparseSpec(kAsync, 1);
  spec.mutable_life()->set_max_rows(64);
  spec.mutable_life()->set_idle_versions(3);
  spec.mutable_life()->set_drop_versions(100);
  std::vector<float> wanted;
  Save(spec, [&](SparseTable& table) {
    ASSERT_THAT(Push(table, Range(0, 200)), IsOk());
    wanted = Pull(table, Range(0, 200));
  });
  spec.clear_life();
  const auto table = OpenAgain(spec);
  ASSERT_THAT(table.status(), IsOk());
  EXPECT_EQ(Pull(**table, Range(0, 200)), wanted);
  // Nothing goes, and nothing is dropped, from then on.
  ASSERT_THAT(Push(**table, Range(0, 1000)), IsOk());
  for (int push = 0; push < 10; ++push) {
    ASSERT_THAT(Push(**table, Range(5000, 5100)), IsOk());
  }
  for (float& weight : wanted) weight += 1;
  EXPECT_EQ(Pull(**table, Range(0, 200)), wanted);
}

// The page: "the sketch and the keys that went then begin anew".
TEST_P(Restored, AdmissionThatChangesBeginsAnew) {
  v1::TableSpec spec = SparseSpec(kSync, 1);
  spec.mutable_life()->set_admit_after(3);
  Save(spec, [](SparseTable& table) {
    ASSERT_THAT(Push(table, Keys({1})), IsOk());
    ASSERT_THAT(Push(table, Keys({1})), IsOk());
  });
  {
    const auto same = OpenAgain(spec);
    ASSERT_THAT(same.status(), IsOk());
    ASSERT_THAT(Push(**same, Keys({1})), IsOk());
    EXPECT_THAT(Pull(**same, Keys({1})), Each(1));
  }
  spec.mutable_life()->set_admit_after(2);
  spec.mutable_life()->set_admit_counters(16);
  const auto table = OpenAgain(spec);
  ASSERT_THAT(table.status(), IsOk());
  ASSERT_THAT(Push(**table, Keys({1})), IsOk());
  EXPECT_THAT(Pull(**table, Keys({1})), Each(0));
  ASSERT_THAT(Push(**table, Keys({1})), IsOk());
  EXPECT_THAT(Pull(**table, Keys({1})), Each(1));
}

// The page: "A restored table may change its rule's numbers, but not those that
// decide which slots there are (momentum or none, centered, amsgrad)."
TEST_P(Restored, RuleMayChangeItsNumbersAndNotItsSlots) {
  using Change = void (*)(optimizer::v1::RuleSpec&);
  struct Case {
    std::string what;
    Change before, after;
    bool is_fine;
  };
  const std::vector<Case> cases = {
      {"momentum", [](auto& rule) { rule.mutable_sgd()->set_momentum(0); },
       [](auto& rule) { rule.mutable_sgd()->set_momentum(0.9); }, false},
      {"no momentum", [](auto& rule) { rule.mutable_sgd()->set_momentum(0.5); },
       [](auto& rule) { rule.mutable_sgd()->set_momentum(0); }, false},
      {"other momentum",
       [](auto& rule) { rule.mutable_sgd()->set_momentum(0.5); },
       [](auto& rule) { rule.mutable_sgd()->set_momentum(0.9); }, true},
      {"amsgrad", [](auto& rule) { rule.mutable_adam()->set_lr(1); },
       [](auto& rule) { rule.mutable_adam()->set_amsgrad(true); }, false},
      {"no amsgrad",
       [](auto& rule) { rule.mutable_adamw()->set_amsgrad(true); },
       [](auto& rule) { rule.mutable_adamw()->set_amsgrad(false); }, false},
      {"centered", [](auto& rule) { rule.mutable_rmsprop()->set_lr(1); },
       [](auto& rule) { rule.mutable_rmsprop()->set_centered(true); }, false},
      {"rmsprop's momentum",
       [](auto& rule) { rule.mutable_rmsprop()->set_momentum(0.1); },
       [](auto& rule) { rule.mutable_rmsprop()->set_momentum(0); }, false},
      {"another rule", [](auto& rule) { rule.mutable_adagrad()->set_lr(1); },
       [](auto& rule) { rule.mutable_rowwise_adagrad()->set_lr(1); }, false},
      {"adam for adamw", [](auto& rule) { rule.mutable_adam()->set_lr(1); },
       [](auto& rule) { rule.mutable_adamw()->set_lr(1); }, false},
      {"clipping", [](auto& rule) { rule.mutable_lion()->set_lr(1); },
       [](auto& rule) {
         rule.mutable_lion()->set_lr(0.5);
         rule.set_clip_norm(1);
         rule.set_clip_value(2);
       },
       true},
      {"rho", [](auto& rule) { rule.mutable_adadelta()->set_rho(0.9); },
       [](auto& rule) { rule.mutable_adadelta()->set_rho(0); }, true},
      {"a number that cannot be",
       [](auto& rule) { rule.mutable_adadelta()->set_rho(0.9); },
       [](auto& rule) { rule.mutable_adadelta()->set_rho(1); }, false},
  };
  for (const Case& each : cases) {
    v1::TableSpec spec = SparseSpec(kSync, 1);
    spec.mutable_rule()->Clear();
    each.before(*spec.mutable_rule());
    Save(spec, [](SparseTable& table) {
      ASSERT_THAT(Push(table, Range(0, 50)), IsOk());
    });
    spec.mutable_rule()->Clear();
    each.after(*spec.mutable_rule());
    const auto table = OpenAgain(spec);
    EXPECT_EQ(table.ok(), each.is_fine) << each.what << table.status();
    if (!table.ok()) continue;
    EXPECT_THAT(Push(**table, Range(0, 60)), IsOk()) << each.what;
  }
}

// --- Memory ------------------------------------------------------------------

// The page: "Pulls, pushes to rows that are there and pushes to partitions at
// their own bound go on"; "Dense tables count, and are never refused."
class Memory : public ::testing::TestWithParam<int> {};  // replicas
INSTANTIATE_TEST_SUITE_P(Replicas, Memory, ::testing::Values(1, 2));

TEST_P(Memory, OfOneByteMakesNoSparseRowAndRefusesNothingElse) {
  TestJob job(2, 1, nullptr, "", GetParam(), /*table_memory=*/1);
  const auto client = job.MakeClient(0);
  const auto dense = client->Dense(DenseSpec(kSync, 1, 300000));
  ASSERT_THAT(dense.status(), IsOk());
  ASSERT_THAT(
      GetStatus((*dense)->Initialize(Tensor::Zeros({300000})).Wait(kTimeout)),
      IsOk());
  EXPECT_THAT(
      (*dense)->PushPull(Tensor::Ones({300000})).Wait(kTimeout).status(),
      IsOk());
  v1::TableSpec spec = SparseSpec(kAsync, 1);
  spec.set_name("s");
  const auto table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  EXPECT_THAT(Pull(**table, Range(0, 10)), Each(0));
  EXPECT_THAT(Push(**table, Keys({})), IsOk());
  EXPECT_THAT(Push(**table, Keys({1})),
              StatusIs(absl::StatusCode::kResourceExhausted, "'s'"));
  EXPECT_EQ(StatsOf(*client).rows(), 0);
  EXPECT_GE(StatsOf(*client).refused_pushes(), 1);
  // client.h: "the table refuses further pushes (kFailedPrecondition with the
  // first error); open it again to go on."
  EXPECT_THAT(Push(**table, Keys({})),
              StatusIs(absl::StatusCode::kFailedPrecondition, "table-memory"));
}

// The page: "Pulls [...] go on"; "closed for pushes of that client, with two
// replicas for its pulls too".
TEST_P(Memory, PullsGoOnAfterAPushThatWasRefused) {
  TestJob job(2, 1, nullptr, "", GetParam(), /*table_memory=*/1);
  const auto client = job.MakeClient(0);
  auto table = client->Sparse(SparseSpec(kAsync, 1));
  ASSERT_THAT(table.status(), IsOk());
  EXPECT_FALSE(Push(**table, Keys({1})).ok());
  if (GetParam() == 2) table = client->Sparse(SparseSpec(kAsync, 1));
  ASSERT_THAT(table.status(), IsOk());
  EXPECT_THAT(Pull(**table, Range(0, 10)), Each(0));
}

// "A push counts each of its keys that has no row, also those that
// `admit_after` would not let in."
TEST_P(Memory, KeysThatWouldNotBeLetInCount) {
  TestJob job(2, 1, nullptr, "", GetParam(), /*table_memory=*/50000);
  const auto client = job.MakeClient(0);
  v1::TableSpec spec = SparseSpec(kAsync, 1);
  spec.mutable_life()->set_admit_after(200);
  spec.mutable_life()->set_admit_counters(16);
  const auto table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  EXPECT_THAT(Push(**table, Range(0, 50000)),
              AllOf(StatusIs(absl::StatusCode::kResourceExhausted, "'t'"),
                    StatusIs(absl::StatusCode::kResourceExhausted, "partition"),
                    StatusIs(absl::StatusCode::kResourceExhausted, "50000")));
  EXPECT_EQ(StatsOf(*client).rows(), 0);
}

// many.h: "a refused push closes its table, and no other."
TEST_P(Memory, TableThatIsRefusedTakesNoOtherOfItsMessageAlong) {
  TestJob job(2, 1, nullptr, "", GetParam(), /*table_memory=*/100000);
  const auto client = job.MakeClient(0);
  v1::TableSpec spec = SparseSpec(kAsync, 1);
  const auto small = client->Sparse(spec);
  spec.set_name("large");
  const auto large = client->Sparse(spec);
  ASSERT_THAT(small.status(), IsOk());
  ASSERT_THAT(large.status(), IsOk());
  const Tensor many = Range(0, 50000);
  const Tensor few = Range(0, 4);
  // Its rows are there before the other fills the memory: with two replicas
  // each partition refuses or applies by itself.
  ASSERT_THAT(Push(**small, few), IsOk());
  const auto ended = ExchangeEach({PushOf{large->get(), many, Ones(many)},
                                   PushOf{small->get(), few, Ones(few)}});
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_THAT(GetStatus(ended[0].Wait(kTimeout)),
              StatusIs(absl::StatusCode::kResourceExhausted, "large"));
  EXPECT_THAT(GetStatus(ended[1].Wait(kTimeout)), IsOk());
  EXPECT_THAT(Push(**small, few), IsOk());
  EXPECT_THAT(Pull(**small, few), Each(3));
}

// --- A clock from elsewhere --------------------------------------------------

// row_life.h: "kInvalidArgument, and nothing has changed, if it is none."
TEST(RowLifeState, ThatIsDamagedChangesNothing) {
  RowLimits limits;
  limits.most_rows = 10;
  limits.drop_versions = 1000;
  limits.admit_after = 3;
  limits.counters = 16;
  RowLife from(limits);
  for (uint64_t key = 0; key < 50; ++key) {
    from.Advance();
    from.Enter(key);
    from.NoteEvicted(key * 3);
  }
  const std::string good = from.Format();
  EXPECT_LE(static_cast<int64_t>(good.size()), RowLife::MostBytes(limits));
  RowLife life(limits);
  life.Advance();
  life.NoteEvicted(77);
  const std::string before = life.Format();
  std::vector<std::string> bad = {"x", good + "x", good + good,
                                  std::string(1000, '\xff')};
  for (size_t n = 1; n < good.size(); ++n) bad.push_back(good.substr(0, n));
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int bit : {0, 7}) {
      bad.push_back(good);
      bad.back()[at] ^= 1 << bit;
    }
  }
  for (const std::string& each : bad) {
    RowLife copy(limits);
    ASSERT_THAT(copy.Load(before), IsOk());
    ASSERT_EQ(copy.Format(), before);
    const absl::Status loaded = copy.Load(each);
    if (!loaded.ok()) {
      ASSERT_EQ(loaded.code(), absl::StatusCode::kInvalidArgument);
      ASSERT_EQ(copy.Format(), before);
    }
    // Whatever it has taken, it goes on.
    for (uint64_t key = 0; key < 20; ++key) {
      copy.Advance();
      copy.Enter(key);
      copy.NoteEvicted(key);
    }
    ASSERT_GT(copy.clock(), 0);
    ASSERT_LE(static_cast<int64_t>(copy.Format().size()),
              RowLife::MostBytes(limits));
  }
}

}  // namespace
}  // namespace weft::ps
