// ElasticTrainingTest: trainings whose ranks die and come, as threads of one
// process.

#ifndef WEFT_TRAIN_ELASTIC_TRAINING_WORLD_H_
#define WEFT_TRAIN_ELASTIC_TRAINING_WORLD_H_

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/autograd/ops/loss.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/input/sharded_sampler.h"
#include "weft/nn/layers.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/train/background_task.h"
#include "weft/train/data_parallel_training.h"

namespace weft::train {

inline constexpr int kShards = 8;

// Stands in for an elastic job: the living ranks meet once all of them have
// come, at most as many as there are shards.
class Crowd {
 public:
  void Add(int id) {
    MutexLock lock(mu_);
    living_.insert(id);
  }
  void Remove(int id) {
    MutexLock lock(mu_);
    living_.erase(id);
    here_.erase(id);
    CloseIfAllAreHere();
    changed_.NotifyAll();  // `id` itself may wait, on another thread
  }
  bool HasWaiting() {
    MutexLock lock(mu_);
    return !here_.empty();
  }
  // `id` trains in the group that it has joined last. kCancelled: it was to die
  // in one before.
  absl::Status Enter(int id) {
    MutexLock lock(mu_);
    const Joined& joined = joined_[id];
    group_of_[id] = joined.group;
    const auto doom = dooms_.find(id);
    const int group = groups_[id]++;
    if (doom == dooms_.end() || group < doom->second.first) {
      return absl::OkStatus();
    }
    if (group > doom->second.first) return absl::CancelledError("died");
    joined.world->KillAfter(joined.rank, doom->second.second);
    return absl::OkStatus();
  }
  // Whether `id` has died in its group, which it may not have noticed.
  bool HasDied(int id) {
    MutexLock lock(mu_);
    const Joined& joined = joined_[id];
    return joined.world != nullptr && joined.world->IsKilled(joined.rank);
  }
  // The group in which `id` is; groups are counted from 0.
  int GroupOf(int id) {
    MutexLock lock(mu_);
    return group_of_[id];
  }
  // Makes `id` die in its group number `group`, counted from 0, instead of
  // sending its message number `message`.
  void Doom(int id, int group, int64_t message) {
    MutexLock lock(mu_);
    dooms_[id] = {group, message};
  }
  absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> Join(int id) {
    std::shared_ptr<collectives::LocalWorld> world;
    int rank = 0;
    {
      MutexLock lock(mu_);
      here_.insert(id);
      ranks_.erase(id);
      CloseIfAllAreHere();
      const auto deadline =
          std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (ranks_.find(id) == ranks_.end()) {
        if (living_.count(id) == 0) return absl::CancelledError("removed");
        if (!changed_.WaitUntil(mu_, deadline)) {
          return absl::DeadlineExceededError("others have not come");
        }
      }
      world = worlds_.back();
      rank = ranks_[id];
      joined_[id] = {static_cast<int>(worlds_.size()) - 1, rank, world};
    }
    collectives::GroupOptions options;
    options.timeout = absl::Seconds(60);
    return collectives::ProcessGroup::Create(world->Connect(rank), options);
  }

 private:
  struct Joined {
    int group = 0;
    int rank = 0;
    std::shared_ptr<collectives::LocalWorld> world;
  };

  void CloseIfAllAreHere() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (here_.empty() || here_ != living_) return;
    ranks_.clear();
    while (!here_.empty() && ranks_.size() < kShards) {
      ranks_.emplace(*here_.begin(), static_cast<int>(ranks_.size()));
      here_.erase(here_.begin());
    }
    worlds_.push_back(std::make_shared<collectives::LocalWorld>(
        static_cast<int>(ranks_.size())));
    changed_.NotifyAll();
  }

  Mutex mu_;
  CondVar changed_;
  std::set<int> living_ ABSL_GUARDED_BY(mu_);
  std::set<int> here_ ABSL_GUARDED_BY(mu_);
  std::map<int, int> ranks_ ABSL_GUARDED_BY(mu_);
  std::map<int, int> groups_ ABSL_GUARDED_BY(mu_);  // how many each has had
  std::map<int, Joined> joined_ ABSL_GUARDED_BY(mu_);
  std::map<int, int> group_of_ ABSL_GUARDED_BY(mu_);
  std::map<int, std::pair<int, int64_t>> dooms_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<collectives::LocalWorld>> worlds_
      ABSL_GUARDED_BY(mu_);
};

class Points : public input::Dataset {
 public:
  explicit Points(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  absl::StatusOr<input::Example> Get(int64_t index) const override {
    const double angle = 2.4 * static_cast<double>(index);
    const double radius = std::sqrt(static_cast<double>(index % 50) / 25);
    return input::Example{Tensor::FromVector<float>(
                              {static_cast<float>(radius * std::cos(angle)),
                               static_cast<float>(radius * std::sin(angle))}),
                          Tensor::Scalar<int64_t>(radius < 1 ? 1 : 0),
                          Tensor::Scalar<int64_t>(index)};
  }

 private:
  const int64_t size_;
};

// Which samples count for which step, by the group that trained with them.
class Ledger {
 public:
  // The samples of one step of one group.
  struct Entry {
    std::multiset<int64_t> samples;
    bool is_taken = false;  // by one of its ranks at least
  };

  void Draw(int group, int64_t step, const Tensor& samples) {
    MutexLock lock(mu_);
    for (const int64_t sample : samples.ToVector<int64_t>()) {
      entries_[{step, group}].samples.insert(sample);
    }
  }
  void Take(int group, int64_t step) {
    MutexLock lock(mu_);
    entries_[{step, group}].is_taken = true;
  }
  // The entries of all steps that have ended, by step and group.
  std::map<std::pair<int64_t, int>, Entry> entries() const {
    MutexLock lock(mu_);
    return entries_;
  }

 private:
  mutable Mutex mu_;
  std::map<std::pair<int64_t, int>, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

class Net : public nn::Module {
 public:
  // `ties`: its two buffers are one, which nothing but their bits can tell.
  // `still`: elements of another, which no step changes.
  Net(int64_t width, Generator& random, bool ties = false, int64_t still = 0)
      : hidden_(2, width, random),
        dropout_(0.3, random),
        output_(width, 2, random) {
    AddModule("hidden", hidden_);
    AddModule("dropout", dropout_);
    AddModule("output", output_);
    const Tensor left = Tensor::Zeros({2}, DType::kF32);
    AddBuffer("left", left);
    AddBuffer("right", ties ? left : Tensor::Ones({2}, DType::kF32));
    if (still > 0) AddBuffer("still", Tensor::Ones({still}, DType::kF32));
  }
  Variable Forward(const Variable& x) {
    return output_.Forward(dropout_.Forward(Tanh(hidden_.Forward(x))));
  }

 private:
  nn::Linear hidden_;
  nn::Dropout dropout_;
  nn::Linear output_;
};

// Stands in for parameter servers: a table of one row, whose rounds close as
// ps/core/round_gate.h says. A part that is sent again with other bits, or a
// read in the wrong round, is a violation.
class PretendTable {
 public:
  using Row = std::vector<float>;

  // Called once for each rank, before it trains; Reopen is called after the
  // table was restored.
  void Open(int id) {
    MutexLock lock(mu_);
    opened_.emplace(id, generation_);
  }
  void Reopen(int id) {
    MutexLock lock(mu_);
    opened_[id] = generation_;
  }

  void Push(int id, int64_t round, int shard, const std::string& part) {
    MutexLock lock(mu_);
    if (opened_[id] != generation_) return;  // servers refuse it
    const auto [known, is_first] = told_.emplace(std::pair(round, shard), part);
    if (!is_first && known->second != part) Violated("other bits", round);
    if (round > open_) Violated("a round that is not open", round);
    if (round != open_) return;
    given_[shard] = {id, part};
    if (static_cast<int>(given_.size()) < kShards) return;
    for (const auto& [of, one] : given_) {
      for (size_t i = 0; i < row_.size(); ++i) {
        float gradient = 0;
        std::memcpy(&gradient, one.second.data() + i * sizeof(gradient),
                    sizeof(gradient));
        row_[i] -= 0.1f * gradient / kShards;
      }
    }
    given_.clear();
    ++open_;
    changed_.NotifyAll();
  }
  absl::Status AwaitRounds(int64_t rounds, absl::Duration wait) {
    const auto until =
        std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(wait);
    MutexLock lock(mu_);
    while (open_ < rounds) {
      if (!changed_.WaitUntil(mu_, until)) {
        return absl::DeadlineExceededError("the round is open");
      }
    }
    return absl::OkStatus();
  }
  Row Pull(int id, int64_t round) {
    MutexLock lock(mu_);
    if (opened_[id] != generation_) Violated("was restored since", round);
    if (open_ != round || !given_.empty()) Violated("read too late", round);
    return row_;
  }
  // A server dies with `id`: the parts of the open round that only they had are
  // lost.
  void Lose(int id) {
    MutexLock lock(mu_);
    for (auto at = given_.begin(); at != given_.end();) {
      const bool is_lost = at->second.first == id;
      lost_ += is_lost;
      at = is_lost ? given_.erase(at) : std::next(at);
    }
  }
  // The table after `rounds` rounds, as a server's file has it.
  absl::StatusOr<checkpoint::Safetensors> Save(int64_t rounds) {
    MutexLock lock(mu_);
    if (refusals_ > 0) {
      --refusals_;
      return absl::ResourceExhaustedError("the disk is full");
    }
    if (open_ != rounds || !given_.empty()) Violated("saved too late", rounds);
    checkpoint::Safetensors saved;
    saved.tensors["row"] = Tensor::FromVector<float>(row_);
    saved.tensors["rounds"] = Tensor::Scalar<int64_t>(open_);
    return saved;
  }
  void Restore(const checkpoint::Safetensors& saved) {
    MutexLock lock(mu_);
    row_ = saved.tensors.at("row").ToVector<float>();
    open_ = saved.tensors.at("rounds").item<int64_t>();
    given_.clear();
    ++generation_;
  }
  // Makes the next `times` calls of Save fail.
  void RefuseToSave(int times) {
    MutexLock lock(mu_);
    refusals_ = times;
  }
  Row row() const {
    MutexLock lock(mu_);
    return row_;
  }
  int64_t rounds() const {
    MutexLock lock(mu_);
    return open_;
  }
  int lost() const {
    MutexLock lock(mu_);
    return lost_;
  }
  std::string violation() const {
    MutexLock lock(mu_);
    return violation_;
  }

 private:
  void Violated(const char* what, int64_t round)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (violation_.empty()) {
      violation_ = absl::StrCat(what, ": round ", round, ", open is ", open_);
    }
  }

  mutable Mutex mu_;
  CondVar changed_;
  int64_t open_ ABSL_GUARDED_BY(mu_) = 0;
  Row row_ ABSL_GUARDED_BY(mu_) = {0.5f, -0.5f};
  // The parts of the open round: for each shard, who gave its part, and the
  // part.
  std::map<int, std::pair<int, std::string>> given_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<int64_t, int>, std::string> told_ ABSL_GUARDED_BY(mu_);
  int generation_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int, int> opened_ ABSL_GUARDED_BY(mu_);  // by rank
  int refusals_ ABSL_GUARDED_BY(mu_) = 0;
  int lost_ ABSL_GUARDED_BY(mu_) = 0;
  std::string violation_ ABSL_GUARDED_BY(mu_);
};

// What befalls a rank: called before each pass and after each Step, with the
// number of steps taken; true: it dies there.
using Dies = std::function<bool(int64_t steps, bool is_in_step)>;

struct Outcome {
  absl::Status status;
  std::string bits;  // of the model and the optimizer
  int64_t steps = 0;
  int groups = 0;
  int64_t given_bytes = 0;
  bool was_stopped = false;
  std::string checkpoint;
};

class ElasticTrainingTest : public ::testing::Test {
 protected:
  explicit ElasticTrainingTest(int64_t samples = 61) : points_(samples) {}

  struct Person {
    Dies dies = [](int64_t, bool) { return false; };
    // The number of steps after which it is asked to leave; 0: never.
    int64_t leaves_after = 0;
    absl::Duration leave_after = absl::ZeroDuration();
    int64_t width = 16;
    std::string build = BuildText();
    bool freezes = false;  // all of it
    bool ties = false;     // Net, as the next
    int64_t still = 0;
    bool has_first_copies = true;  // the same for all
    int epochs = 3;
    // The seed of its own first weights; 0: its id.
    uint64_t seed = 0;
    std::string checkpoint_dir;
    int64_t checkpoint_every = 0;
    bool resume = true;
    std::function<absl::StatusOr<bool>(bool begins)> has_trained;
    // Where its model is; null: on the CPU.
    device::testing::SimulatedDevices* devices = nullptr;
    // Called with the number of groups that it has been in before it joins
    // another. Null: nothing is.
    std::function<void(int groups)> before_join;
    Ledger* ledger = nullptr;
    PretendTable* table = nullptr;
    int table_shards = kShards;
    // Called before each Next, and after each GivePart and each Step.
    std::function<void(DataParallelTraining& training)> gives_too_much;
    bool joins_ahead = true;  // the same for all
    // Its steps wait for the next group once that is being made: without it a
    // short training may end before.
    bool awaits_next_group = false;
  };

  Outcome Train(Crowd& crowd, int id, const Person& person) {
    Outcome outcome;
    outcome.status =
        CatchToStatus([&] { return TrainRank(crowd, id, person, &outcome); });
    if (!outcome.status.ok() && person.table != nullptr) person.table->Lose(id);
    crowd.Remove(id);
    return outcome;
  }

  using Group = std::unique_ptr<collectives::ProcessGroup>;

  absl::StatusOr<std::unique_ptr<input::DataLoader>> MakeLoader(int shard,
                                                                int shards) {
    input::ShardedSampler::Options order;
    order.size = points_.size();
    order.shard = shard;
    order.shards = shards;
    WEFT_ASSIGN_OR_RETURN(const auto sampler,
                          input::ShardedSampler::Create(order));
    input::DataLoader::Options loading;
    loading.batch_size = 2;
    loading.threads = 0;
    return input::DataLoader::Create(points_, sampler, loading);
  }

  static Options OptionsOf(const Person& person) {
    Options options;
    options.epochs = person.epochs;
    options.progress = telemetry::Progress::Style::kQuiet;
    options.checkpoint_dir = person.checkpoint_dir;
    options.checkpoint_every_steps = person.checkpoint_every;
    options.resume = person.resume && !person.checkpoint_dir.empty();
    options.asked_to_stop = [] { return false; };
    return options;
  }

  static Device DeviceOf(const Person& person) {
    return person.devices == nullptr ? Device::Cpu()
                                     : Device(person.devices->context(), 0);
  }

  // Trains until its epochs are over, or until it dies.
  static absl::Status TrainSteps(Crowd& crowd, int id, const Person& person,
                                 Net& net, const BackgroundTask<Group>& next,
                                 DataParallelTraining& training) {
    const auto give_too_much = [&] {
      if (person.gives_too_much != nullptr) person.gives_too_much(training);
    };
    for (;;) {
      give_too_much();
      WEFT_ASSIGN_OR_RETURN(const auto batch, training.Next());
      if (!batch.has_value()) return absl::OkStatus();
      if (person.dies(training.steps(), true)) {
        return absl::CancelledError("died");
      }
      const int group = crowd.GroupOf(id);
      const int64_t step = training.steps();
      if (person.ledger != nullptr) {
        person.ledger->Draw(group, step, (*batch)[2]);
      }
      Variable inputs((*batch)[0].To(DeviceOf(person)));
      Variable row;
      if (person.table != nullptr) {
        row = Variable(Tensor::FromVector<float>(person.table->Pull(id, step)),
                       /*requires_grad=*/true);
        inputs = Add(inputs, row);
      }
      WEFT_RETURN_IF_ERROR(training.Backward(
          CrossEntropy(net.Forward(inputs), (*batch)[1].To(DeviceOf(person)))));
      if (person.table != nullptr) {
        WEFT_RETURN_IF_ERROR(
            training.GivePart(std::string(testing::BytesOf(row.grad()))));
        give_too_much();
      }
      WEFT_RETURN_IF_ERROR(training.Step());
      give_too_much();
      while (person.awaits_next_group && next.has_begun() && !next.is_done()) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      if (person.ledger != nullptr && training.steps() == step + 1) {
        person.ledger->Take(group, step);
      }
      if (person.dies(training.steps(), false)) {
        return absl::CancelledError("died");
      }
    }
  }

  static DataParallelTraining::Tables TablesOf(Crowd& crowd, int id,
                                               const Person& person) {
    DataParallelTraining::Tables tables;
    PretendTable* const table = person.table;
    if (table == nullptr) return tables;
    table->Open(id);
    tables.shards = person.table_shards;
    auto rounds = std::make_shared<int64_t>(0);
    tables.begin_round = [](int64_t) { return absl::OkStatus(); };
    tables.push = [=](int64_t round, int shard, const std::string& part) {
      *rounds = round + 1;
      table->Push(id, round, shard, part);
      return absl::OkStatus();
    };
    // Whoever is dead waits for nobody.
    tables.await_stable = [=, &crowd](absl::Duration wait) -> absl::Status {
      if (crowd.HasDied(id)) return absl::CancelledError("died");
      return table->AwaitRounds(*rounds, std::min(wait, absl::Milliseconds(1)));
    };
    tables.checkpoints.check = [](const std::string&) {
      return absl::OkStatus();
    };
    tables.checkpoints.save = [=](const std::string& path,
                                  const std::string& attempt, int64_t after)
        -> absl::StatusOr<std::vector<checkpoint::FileRecord>> {
      WEFT_ASSIGN_OR_RETURN(const auto saved, table->Save(after));
      WEFT_ASSIGN_OR_RETURN(const auto directory,
                            checkpoint::CheckpointDirectory::Open({path}));
      WEFT_ASSIGN_OR_RETURN(
          auto file, directory->AddShard(attempt, /*shard=*/0, "ps0", saved));
      return std::vector<checkpoint::FileRecord>{std::move(file)};
    };
    tables.checkpoints.restore = [=](const std::string& path,
                                     const std::string& name) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const auto directory,
                            checkpoint::CheckpointDirectory::Open({path}));
      WEFT_ASSIGN_OR_RETURN(const auto manifest, directory->ReadManifest(name));
      WEFT_ASSIGN_OR_RETURN(const auto saved,
                            directory->LoadShard(name, manifest.files[0]));
      table->Restore(saved);
      return absl::OkStatus();
    };
    tables.checkpoints.reopen = [=] {
      table->Reopen(id);
      return absl::OkStatus();
    };
    return tables;
  }

  absl::Status TrainRank(Crowd& crowd, int id, const Person& person,
                         Outcome* outcome) {
    Generator generator(person.seed != 0 ? person.seed
                                         : static_cast<uint64_t>(id) + 1);
    Net net(person.width, generator, person.ties, person.still);
    if (person.freezes) net.Freeze();
    net.To(DeviceOf(person));
    generator = Generator(5);
    optimizer::AdamOptions adam;
    adam.lr = 0.01;
    WEFT_ASSIGN_OR_RETURN(
        const auto optimizer,
        optimizer::Optimizer::Create({{adam, net.NamedParameters()}}));
    DataParallelTraining::Parts parts;
    parts.model = &net;
    parts.optimizer = optimizer.get();
    parts.generator = &generator;
    parts.virtual_shards = kShards;
    parts.make_loader = [this](int shard, int shards) {
      return MakeLoader(shard, shards);
    };
    DataParallelTraining::Elastic elastic;
    int groups = 0;
    using Prepare = DataParallelTraining::Elastic::Prepare;
    const auto join = [&](const Prepare& prepare) {
      if (person.before_join != nullptr) person.before_join(groups);
      ++groups;
      auto group = crowd.Join(id);
      if (group.ok() && person.has_first_copies) prepare(**group);
      return group;
    };
    BackgroundTask<Group> next;
    const auto leave = absl::MakeCleanup([&] { crowd.Remove(id); });
    elastic.join = [&](const Prepare& prepare) -> absl::StatusOr<Group> {
      auto group = next.has_begun() ? *next.Take() : join(prepare);
      if (group.ok()) WEFT_RETURN_IF_ERROR(crowd.Enter(id));
      return group;
    };
    if (person.joins_ahead) {
      elastic.join_ahead = [&](Prepare prepare) {
        next.Begin(
                "the next group",
                [&join, prepare = std::move(prepare)] { return join(prepare); })
            .IgnoreError();
      };
      elastic.has_joined_ahead = [&] { return next.is_done(); };
    }
    elastic.has_newcomers = [&crowd] { return crowd.HasWaiting(); };
    elastic.ask_interval = absl::ZeroDuration();
    int64_t steps = 0;  // the next one that it takes
    elastic.asked_to_leave = [&] {
      return person.leaves_after != 0 && ++steps >= person.leaves_after;
    };
    elastic.leave_after = person.leave_after;
    elastic.build = person.build;
    elastic.stretch_bytes = 1;
    elastic.has_trained = person.has_trained;
    WEFT_ASSIGN_OR_RETURN(
        const auto training,
        DataParallelTraining::CreateElastic(
            std::move(elastic), telemetry::Silent(), std::move(parts),
            TablesOf(crowd, id, person), OptionsOf(person)));
    WEFT_RETURN_IF_ERROR(TrainSteps(crowd, id, person, net, next, *training));
    WEFT_ASSIGN_OR_RETURN(const Result result, training->Finish());
    outcome->checkpoint = result.checkpoint;
    outcome->steps = training->steps();
    outcome->groups = training->groups();
    outcome->given_bytes = training->given_bytes();
    outcome->was_stopped = result.was_stopped;
    const auto add = [&](const auto& state) {
      for (const auto& [name, tensor] : state) {
        absl::StrAppend(&outcome->bits, name, " ", testing::BytesOf(tensor));
      }
    };
    add(net.StateDict());
    add(optimizer->StateDict());
    return result.saved;
  }

  // All begin together.
  std::vector<Outcome> TrainAll(const std::vector<Person>& people) {
    Crowd crowd;
    return TrainAll(people, crowd);
  }
  std::vector<Outcome> TrainAll(const std::vector<Person>& people,
                                Crowd& crowd) {
    for (size_t i = 0; i < people.size(); ++i) crowd.Add(static_cast<int>(i));
    std::vector<Outcome> outcomes(people.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < people.size(); ++i) {
      threads.emplace_back([&, i] {
        outcomes[i] = Train(crowd, static_cast<int>(i), people[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  // The status of a newcomer that comes after four steps to two others, which
  // go on without it.
  absl::Status StatusOfNewcomer(const Person& other) {
    Crowd crowd;
    crowd.Add(0);
    crowd.Add(1);
    Outcome outcomes[3];
    std::thread newcomer;
    Person first, second_one;
    first.awaits_next_group = second_one.awaits_next_group = true;
    first.dies = [&](int64_t steps, bool is_in_step) {
      if (steps == 4 && !is_in_step && !newcomer.joinable()) {
        crowd.Add(2);
        newcomer = std::thread([&] { outcomes[2] = Train(crowd, 2, other); });
        while (!crowd.HasWaiting()) absl::SleepFor(absl::Milliseconds(1));
      }
      return false;
    };
    std::thread second([&] { outcomes[1] = Train(crowd, 1, second_one); });
    outcomes[0] = Train(crowd, 0, first);
    second.join();
    newcomer.join();
    ExpectUndisturbed(outcomes[0]);
    ExpectUndisturbed(outcomes[1]);
    return outcomes[2].status;
  }

  const Outcome& Undisturbed() {
    if (undisturbed_.steps == 0) undisturbed_ = TrainAll({Person()})[0];
    return undisturbed_;
  }
  void ExpectUndisturbed(const Outcome& outcome) {
    WEFT_ASSERT_OK(outcome.status);
    WEFT_ASSERT_OK(Undisturbed().status);
    EXPECT_EQ(outcome.steps, Undisturbed().steps);
    EXPECT_EQ(outcome.bits == Undisturbed().bits, true);
  }

  const Points points_;
  testing::TempDir dir_;
  Outcome undisturbed_;
};

inline Dies DiesAt(int64_t step, bool in_step) {
  return [=](int64_t steps, bool is_in_step) {
    return is_in_step == in_step && steps >= step;
  };
}
inline Dies InStep(int64_t step) { return DiesAt(step, true); }
inline Dies AfterStep(int64_t step) { return DiesAt(step, false); }

}  // namespace weft::train

#endif  // WEFT_TRAIN_ELASTIC_TRAINING_WORLD_H_
