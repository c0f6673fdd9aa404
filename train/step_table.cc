#include "weft/train/step_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/parker.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/shard_tree.h"
#include "weft/ps/lost_partition.h"
#include "weft/rendezvous/membership.h"
#include "weft/rendezvous/view.h"
#include "weft/tensor/shape.h"
#include "weft/train/await_table.h"
#include "weft/train/saving/servers_use.h"
#include "weft/train/stop_signal.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

// How long servers may take to learn that a trainer has come in the place of
// another of its name, whose parts they have.
constexpr absl::Duration kToLearn = absl::Seconds(15);
constexpr absl::Duration kRetryAfter = absl::Milliseconds(50);

ps::v1::TableSpec Synchronous(ps::v1::TableSpec spec) {
  spec.set_kind(ps::v1::TableSpec::SPARSE);
  spec.set_mode(ps::v1::TableSpec::SYNC);
  spec.set_orphans(ps::v1::TableSpec::WAIT);
  return spec;
}

// Before the keys and gradients of a part: how many rows, and their length.
struct PartHead {
  int64_t rows = 0;
  int64_t dim = 0;
};

// Keys and gradients of a part, which came from another rank; none of an empty
// one.
absl::StatusOr<std::pair<Tensor, Tensor>> ReadPart(absl::string_view part,
                                                   const std::string& table,
                                                   int64_t dim) {
  PartHead head{0, dim};
  const auto row = static_cast<int64_t>(sizeof(int64_t)) +
                   dim * static_cast<int64_t>(sizeof(float));
  const auto body =
      static_cast<int64_t>(part.size()) - static_cast<int64_t>(sizeof(head));
  if (body >= 0) std::memcpy(&head, part.data(), sizeof(head));
  const bool is_part =
      part.empty() || (body >= 0 && body % row == 0 && head.rows == body / row);
  if (head.dim != dim || !is_part) {
    return absl::InvalidArgumentError(absl::StrCat(
        "StepTable '", table,
        "': wanted a part of StepTable::PartOf with rows "
        "of dim ",
        dim, ", found ", part.size(), " bytes",
        is_part || body >= 0 ? absl::StrCat(" that begin with ", head.rows,
                                            " rows of dim ", head.dim)
                             : ""));
  }
  std::vector<int64_t> keys(static_cast<size_t>(head.rows));
  std::vector<float> gradients(static_cast<size_t>(head.rows * dim));
  if (head.rows > 0) {
    const char* const rows = part.data() + sizeof(head);
    const size_t key_bytes = keys.size() * sizeof(int64_t);
    std::memcpy(keys.data(), rows, key_bytes);
    std::memcpy(gradients.data(), rows + key_bytes,
                gradients.size() * sizeof(float));
  }
  return std::make_pair(
      Tensor::FromVector<int64_t>(keys),
      Tensor::FromVector<float>(gradients).Reshape({head.rows, dim}));
}

// "i64 [3]".
std::string TextOf(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return absl::StrCat(Name(tensor.dtype()), " ", ShapeText(tensor.shape()));
}

}  // namespace

StepTable::StepTable(worker::Worker& worker, ps::v1::TableSpec spec,
                     absl::Duration timeout)
    : name_(worker.self().name),
      spec_(std::move(spec)),
      timeout_(timeout),
      client_(TrainersClient(worker, timeout)) {}

absl::StatusOr<std::unique_ptr<StepTable>> StepTable::Open(
    worker::Worker& worker, ps::v1::TableSpec spec, absl::Duration timeout) {
  const worker::Options& options = worker.options();
  if (spec.kind() == ps::v1::TableSpec::DENSE) {
    return absl::InvalidArgumentError(
        absl::StrCat("StepTable '", spec.name(),
                     "': wanted a sparse table, found a dense "
                     "one; what all ranks have belongs to the model"));
  }
  if (const absl::Status fit =
          ddp::CheckVirtualShards(spec.shards(), /*ranks=*/1);
      !fit.ok()) {
    return worker::WithExitCode(
        absl::InvalidArgumentError(absl::StrCat(
            "StepTable '", spec.name(),
            "': wanted TableSpec::shards to be the number of virtual shards "
            "of the training; ",
            fit.message())),
        worker::ExitCode::kConfig);
  }
  if (options.servers < 2 || options.replicas < 2) {
    return worker::WithExitCode(
        absl::FailedPreconditionError(absl::StrCat(
            "StepTable '", spec.name(), "': wanted at least 2 servers and ",
            "--replicas=2, without which the death of a server loses the ",
            "table; found ", options.servers,
            " and --replicas=", options.replicas,
            " (weft run --replicas=2 --role ps=3:bin/parameter_server)")),
        worker::ExitCode::kConfig);
  }
  // An elastic job begins without all of them.
  const auto all_there = [&](const rendezvous::View& view) {
    for (int server = 0; server < options.servers; ++server) {
      const std::string name = absl::StrCat("ps", server);
      if (view.Find(name) != nullptr) continue;
      // One that has been there comes again, and others have its partitions.
      const bool was_there = std::any_of(
          view.departed().begin(), view.departed().end(),
          [&](const rendezvous::Departed& one) { return one.name == name; });
      if (!was_there) return false;
    }
    return true;
  };
  const auto there = worker.membership().WaitFor(all_there, timeout);
  if (!there.ok()) {
    return absl::Status(
        there.status().code(),
        absl::StrCat(
            "StepTable '", spec.name(), "': wanted ", options.servers,
            " parameter servers in the job: ", there.status().message()));
  }
  std::unique_ptr<StepTable> table(
      new StepTable(worker, Synchronous(std::move(spec)), timeout));
  const absl::Status opened = table->OpenTable();
  // A checkpoint may be restored once the ranks have met.
  if (!opened.ok() && !ps::IsLostPartition(opened)) {
    return EndOfWait(opened, worker.self().name, AskedToStop());
  }
  return table;
}

absl::Status StepTable::OpenTable() {
  absl::StatusOr<std::unique_ptr<ps::SparseTable>> table =
      client_.Sparse(spec_);
  lost_ = table.status();
  WEFT_RETURN_IF_ERROR(lost_);
  table_ = *std::move(table);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> StepTable::Pull(const Tensor& keys) {
  WEFT_RETURN_IF_ERROR(lost_);
  auto rows = AwaitTable(table_->Pull(keys), timeout_, client_, AskedToStop);
  if (rows.ok()) return rows;
  return EndOfWait(rows.status(), name_, AskedToStop());
}

absl::StatusOr<std::string> StepTable::PartOf(const Tensor& keys,
                                              const Tensor& gradients) const {
  if (!gradients.defined()) return std::string();
  const int64_t dim = spec_.dim();
  if (!keys.defined() || keys.dtype() != DType::kI64 || keys.dim() != 1 ||
      gradients.dtype() != DType::kF32 ||
      gradients.shape() != Shape{keys.numel(), dim}) {
    return absl::InvalidArgumentError(absl::StrCat(
        "StepTable '", spec_.name(),
        "': PartOf: wanted keys i64 [n] and gradients f32 [n, ", dim,
        "], found keys ", TextOf(keys), " and gradients ", TextOf(gradients)));
  }
  const Tensor flat_keys = keys.To(Device::Cpu()).Contiguous();
  const Tensor flat = gradients.To(Device::Cpu()).Contiguous();
  const PartHead head{keys.numel(), dim};
  std::string part(reinterpret_cast<const char*>(&head), sizeof(head));
  part.append(reinterpret_cast<const char*>(flat_keys.data<int64_t>()),
              static_cast<size_t>(flat_keys.numel()) * sizeof(int64_t));
  part.append(reinterpret_cast<const char*>(flat.data<float>()),
              static_cast<size_t>(flat.numel()) * sizeof(float));
  return part;
}

DataParallelTraining::Tables StepTable::MakeTables() {
  DataParallelTraining::Tables tables;
  tables.begin_round = [this](int64_t round) { return BeginRound(round); };
  tables.push = [this](int64_t round, int shard, const std::string& part) {
    return Push(round, shard, part);
  };
  tables.await_stable = [this](absl::Duration wait) {
    return AwaitStable(wait);
  };
  tables.timeout = timeout_;
  tables.shards = spec_.shards();
  tables.checkpoints.check = [this](const std::string& path) {
    return CheckServersUse(path, client_);
  };
  tables.checkpoints.save = [this](const std::string& path,
                                   const std::string& attempt, int64_t rounds) {
    return client_.Save(path, attempt, rounds);
  };
  tables.checkpoints.restore = [this](const std::string& path,
                                      const std::string& name) {
    return client_.Restore(path, name);
  };
  tables.checkpoints.reopen = [this] { return Reopen(); };
  return tables;
}

absl::Status StepTable::Reopen() {
  pushed_.clear();
  table_.reset();
  return OpenTable();
}

absl::Status StepTable::BeginRound(int64_t round) {
  if (!lost_.ok()) {
    if (round > 0) return lost_;
    return worker::WithoutRestart(Reworded(
        lost_, absl::StrCat("no checkpoint was saved, and ", lost_.message())));
  }
  while (table_->round() < round) table_->EndRound();
  if (table_->round() == round) return absl::OkStatus();
  return worker::WithoutRestart(worker::WithExitCode(
      absl::DataLossError(absl::StrCat(
          "table '", spec_.name(), "' has ", table_->round(),
          " rounds, and the training begins its step ", round,
          ": all trainers that had gone on to there have died, and the model "
          "with them, and no checkpoint was saved; start the job again")),
      worker::ExitCode::kPeerLost));
}

absl::Status StepTable::Push(int64_t round, int shard, absl::string_view part) {
  WEFT_RETURN_IF_ERROR(lost_);
  WEFT_ASSIGN_OR_RETURN(auto rows, ReadPart(part, spec_.name(), spec_.dim()));
  pushed_.erase(
      std::remove_if(pushed_.begin(), pushed_.end(),
                     [&](const Pushed& one) { return one.part.round < round; }),
      pushed_.end());
  const ps::RoundPart of = {shard, round, /*take_over=*/true};
  Future<void> answered = table_->PushShard(of, rows.first, rows.second);
  pushed_.push_back({of, std::move(rows.first), std::move(rows.second),
                     std::move(answered), SteadyClock().Now()});
  return absl::OkStatus();
}

// The table fails once a push was not answered in its own time: then it is not
// "not yet", and to wait longer helps nobody.
absl::Status StepTable::AwaitStable(absl::Duration wait) {
  WEFT_RETURN_IF_ERROR(lost_);
  if (AskedToStop()) client_.GiveUpOnGoneServers();
  absl::Status pushed = AwaitPushed(wait);
  if (!absl::IsDeadlineExceeded(pushed) || table_->status().ok()) {
    return pushed;
  }
  pushed = AwaitPushed(absl::ZeroDuration());  // all have ended by now
  if (!absl::IsDeadlineExceeded(pushed)) return pushed;
  return absl::UnavailableError(absl::StrCat("a push was not answered within ",
                                             absl::FormatDuration(timeout_),
                                             ": ", pushed.message()));
}

absl::Status StepTable::AwaitPushed(absl::Duration wait) {
  const Instant until = SteadyClock().Now() + wait;
  const auto left = [&] {
    return std::max(until - SteadyClock().Now(), absl::ZeroDuration());
  };
  for (Pushed& one : pushed_) {
    const absl::Status answered = one.answered.Wait(left());
    if (answered.ok()) continue;
    if (absl::IsCancelled(answered)) {
      return EndOfWait(answered, name_, AskedToStop());
    }
    // A server may not know yet that this worker has taken the place of one of
    // its name, of which it has this part, or which it knows for dead.
    const bool may_pass = absl::IsFailedPrecondition(answered) &&
                          SteadyClock().Now() - one.first_at < kToLearn;
    if (!may_pass) return answered;
    Parker().ParkUntil(SteadyClock().Now() + std::min(left(), kRetryAfter));
    one.answered = table_->PushShard(one.part, one.keys, one.gradients);
    return absl::DeadlineExceededError(answered.message());
  }
  return EndOfWait(table_->AwaitStable(left()), name_, AskedToStop());
}

}  // namespace weft::train
