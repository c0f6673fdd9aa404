#include "weft/collectives/backends/host/host_backend.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/host/arena_allocator.h"
#include "weft/collectives/backends/host/hierarchical_backend.h"
#include "weft/collectives/backends/host/host_segment.h"
#include "weft/collectives/backends/host/host_transfers.h"
#include "weft/collectives/backends/host/meeting.h"
#include "weft/collectives/backends/host/phases.h"
#include "weft/collectives/backends/host/shared_run.h"
#include "weft/collectives/backends/stream/stream_backend.h"
#include "weft/collectives/subgroup_name.h"

namespace weft::collectives {
namespace {

// How often a rank that waits looks whether those it waits for have ended.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(50);

// How often it asks the ranks of other hosts what they do.
constexpr absl::Duration kAskInterval = absl::Seconds(1);

// About 10 us of looking, which pays only if all ranks can run at once.
int SpinRounds(int ranks) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return ranks <= cores ? 2000 : 0;
}

// This rank's part of the segment, which tensors in it keep alive. It has pages
// up to the end of what was once in use; they stay until the group ends.
class Arena {
 public:
  explicit Arena(std::shared_ptr<HostSegment> segment)
      : segment_(std::move(segment)), allocator_(segment_->arena_bytes()) {}

  absl::StatusOr<int64_t> Allocate(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void Free(int64_t offset, int64_t bytes) { allocator_.Free(offset, bytes); }
  std::byte* At(int64_t offset) const { return segment_->own_arena() + offset; }

 private:
  // Bytes of pages that the system is asked for at once: asking costs some 0.1
  // ms.
  static constexpr int64_t kStep = int64_t{1} << 20;

  absl::Status GrowTo(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<HostSegment> segment_;
  ArenaAllocator allocator_;
  Mutex mu_;
  int64_t grown_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

absl::StatusOr<int64_t> Arena::Allocate(int64_t bytes) {
  const int64_t offset = allocator_.Allocate(bytes);
  if (offset < 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "Allocate: wants ", bytes, " bytes of shared memory, ",
        allocator_.free_bytes(), " of ", allocator_.bytes(),
        " are free (not all in one piece); raise HostOptions::arena_bytes"));
  }
  const absl::Status grown = GrowTo(offset + bytes);
  if (grown.ok()) return offset;
  allocator_.Free(offset, bytes);
  return absl::Status(grown.code(), absl::StrCat("Allocate of ", bytes,
                                                 " bytes: ", grown.message()));
}

absl::Status Arena::GrowTo(int64_t bytes) {
  MutexLock lock(mu_);
  if (bytes <= grown_bytes_) return absl::OkStatus();
  const int64_t wanted =
      std::min((bytes + kStep - 1) / kStep * kStep, segment_->arena_bytes());
  WEFT_RETURN_IF_ERROR(
      segment_->AllocateArena(grown_bytes_, wanted - grown_bytes_));
  grown_bytes_ = wanted;
  return absl::OkStatus();
}

class HostBackend final : public Backend {
 public:
  // The backend of the ranks that `meeting` found on this host, of which this
  // one is the `rank`th.
  HostBackend(HostOptions options, int rank, Meeting meeting,
              SegmentLayout layout)
      : options_(std::move(options)),
        watches_(std::move(meeting.watches)),
        counted_(std::move(meeting.counted)),
        segment_(std::make_shared<HostSegment>(
            *std::move(meeting.segment), layout, rank, std::move(meeting.ranks),
            options_.memory_budget)),
        arena_(std::make_shared<Arena>(segment_)),
        peers_(std::move(meeting.peers)),
        names_(NamesOf(meeting.streams)),
        phases_(segment_->Controls(), rank, SpinRounds(segment_->size())),
        transfers_(*segment_, peers_, options_.least_read_bytes / 8,
                   options_.max_unasked_bytes) {}

  ~HostBackend() override {
    segment_->ControlOf(rank()).has_left.store(1, std::memory_order_seq_cst);
    WakeAll();
  }

  // `elsewhere` names the ranks of other hosts that a step waits for; "" if
  // none.
  void SetElsewhere(
      std::function<std::string(const Operation& step)> elsewhere) {
    elsewhere_ = std::move(elsewhere);
  }

  absl::string_view name() const override { return "host"; }
  int rank() const override { return segment_->rank(); }
  int size() const override { return segment_->size(); }

  absl::Status Run(const Operation& operation) override;
  void Refuse(const Operation& operation, const absl::Status& why) override;
  void Abort(const absl::Status& why) override {
    segment_->SetAbort(why);
    WakeAll();
  }
  absl::Status health() const override { return segment_->abort_status(); }
  absl::Status CheckRanks() override;
  void EndShrink(uint64_t key, const absl::Status& why) override {
    segment_->EndShrink(key, why);
  }
  absl::Status CheckShrink(uint64_t key) const override {
    return segment_->CheckShrink(key);
  }

  absl::StatusOr<bool> Advance(Transfer& transfer) override;
  void WithdrawSends() override { transfers_.WithdrawSends(); }
  uint64_t transfer_events() const override { return transfers_.events(); }
  void AwaitTransfers(uint64_t seen, Instant until) override {
    transfers_.AwaitEvent(seen, until);
  }

  const DiagnosisOptions* diagnosis() const override {
    return &options_.diagnosis;
  }
  std::string DescribePeer(int peer, absl::string_view lacks,
                           Instant /*since*/) const override {
    return absl::StrCat(TextOf(peer), " ", lacks, " and ",
                        CurrentOperationOf(peer));
  }

  absl::StatusOr<Tensor> Allocate(const Shape& shape, DType dtype) override;
  absl::StatusOr<std::unique_ptr<Backend>> Subgroup(
      const SubgroupSpec& spec) override;

 private:
  // The state of an operation that has to wait.
  struct Wait {
    const Operation& operation;
    Instant watch_at;
    Instant ask_at;
    WaitReports reports = {};
    uint64_t phase = 0;  // of `reports`: each phase is a wait of its own
  };

  static std::vector<std::string> NamesOf(
      const std::vector<transport::Destination>& ranks) {
    std::vector<std::string> names;
    for (const transport::Destination& rank : ranks) names.push_back(rank.name);
    return names;
  }
  std::string TextOf(int rank) const {  // by its place on this host
    const int number = segment_->NumberOf(rank);
    const auto place = static_cast<size_t>(number);
    return RankText(number, place < names_.size() ? names_[place] : "");
  }

  void WakeAll() {
    phases_.WakeAll();
    transfers_.WakeAll();
  }
  absl::Status CheckWait(Wait& wait, const std::vector<int>& missing);
  void ReportWait(Wait& wait, const std::vector<int>& missing, Instant now);
  // The wait is over. If it was reported, its end is reported too.
  void EndWait(Wait& wait, const absl::Status& status);
  // Why a rank will do nothing more, or OK.
  absl::Status CheckGone(int rank, bool also_process) const;
  std::string CurrentOperationOf(int rank) const;
  std::string DescribeWait(const Operation& operation,
                           const std::vector<int>& missing) const;
  uint64_t LastSequenceOf(int rank) const;

  const HostOptions options_;
  const std::vector<std::optional<rendezvous::ProcessWatch>> watches_;
  const transport::MemoryBudget::Reservation counted_;
  const std::shared_ptr<HostSegment> segment_;
  const std::shared_ptr<Arena> arena_;
  const PeerMemory peers_;
  const std::vector<std::string> names_;  // by rank of the group; may be empty
  Phases phases_;
  HostTransfers transfers_;
  std::function<std::string(const Operation& step)> elsewhere_;
};

// The newer of a rank's two records.
std::string HostBackend::CurrentOperationOf(int rank) const {
  const uint64_t arrived =
      segment_->ControlOf(rank).arrived.load(std::memory_order_acquire);
  if (arrived == 0) return "has called nothing yet";
  const OperationRecord& a = segment_->SlotOf(rank, 0).record;
  const OperationRecord& b = segment_->SlotOf(rank, 1).record;
  const bool is_b = arrived == 1 || b.sequence() > a.sequence();
  return absl::StrCat("last called ", (is_b ? b : a).ToString());
}

uint64_t HostBackend::LastSequenceOf(int rank) const {
  return std::max(segment_->SlotOf(rank, 0).record.sequence(),
                  segment_->SlotOf(rank, 1).record.sequence());
}

std::string HostBackend::DescribeWait(const Operation& operation,
                                      const std::vector<int>& missing) const {
  std::string text;
  for (const int r : missing) {
    const bool has_called =
        segment_->ControlOf(r).arrived.load(std::memory_order_acquire) > 0 &&
        LastSequenceOf(r) >= operation.sequence;
    absl::StrAppend(&text, text.empty() ? "" : "; ", TextOf(r),
                    has_called ? " has not finished it"
                               : absl::StrCat(" has not called it and ",
                                              CurrentOperationOf(r)));
  }
  if (elsewhere_ == nullptr) return text;
  const std::string others = elsewhere_(operation);
  return others.empty() ? text : absl::StrCat(text, "; ", others);
}

absl::Status HostBackend::CheckGone(int rank, bool also_process) const {
  if (segment_->ControlOf(rank).has_left.load(std::memory_order_acquire)) {
    return absl::UnavailableError(
        absl::StrCat("rank ", segment_->NumberOf(rank),
                     " has left the group; it ", CurrentOperationOf(rank)));
  }
  if (also_process && watches_[rank].has_value() &&
      watches_[rank]->HasEnded()) {
    return absl::UnavailableError(
        absl::StrCat("the process of rank ", segment_->NumberOf(rank),
                     " has ended; it ", CurrentOperationOf(rank)));
  }
  if (also_process && options_.check_member != nullptr) {
    const int number = segment_->NumberOf(rank);
    const absl::Status member = options_.check_member(number);
    if (!member.ok()) {
      return absl::UnavailableError(absl::StrCat("rank ", number, " is gone (",
                                                 member.message(), "); it ",
                                                 CurrentOperationOf(rank)));
    }
  }
  return absl::OkStatus();
}

absl::Status HostBackend::CheckRanks() {
  WEFT_RETURN_IF_ERROR(health());
  for (int r = 0; r < size(); ++r) {
    const bool has_left =
        segment_->ControlOf(r).has_left.load(std::memory_order_acquire);
    if (r == rank() || has_left) continue;
    WEFT_RETURN_IF_ERROR(CheckGone(r, /*also_process=*/true));
  }
  return absl::OkStatus();
}

absl::Status HostBackend::CheckWait(Wait& wait,
                                    const std::vector<int>& missing) {
  WEFT_RETURN_IF_ERROR(health());
  const Instant now = SteadyClock().Now();
  const bool is_watching = now >= wait.watch_at;
  if (is_watching) wait.watch_at = now + kWatchInterval;
  for (const int r : missing) {
    WEFT_RETURN_IF_ERROR(CheckGone(r, is_watching));
  }
  if (elsewhere_ != nullptr && now >= wait.ask_at) {
    wait.ask_at = now + kAskInterval;
    elsewhere_(wait.operation);
  }
  if (now >= wait.operation.deadline) {
    return absl::DeadlineExceededError(absl::StrCat(
        "rank ", options_.rank,
        " waited for others: ", DescribeWait(wait.operation, missing)));
  }
  ReportWait(wait, missing, now);
  return absl::OkStatus();
}

void HostBackend::ReportWait(Wait& wait, const std::vector<int>& missing,
                             Instant now) {
  if (wait.phase != phases_.next()) {
    EndWait(wait, absl::OkStatus());
    wait.phase = phases_.next();
    wait.reports.Begin(options_.diagnosis, now);
  }
  if (!wait.reports.IsDue(now)) return;
  Report(options_.diagnosis, WaitText(wait.operation, options_.rank,
                                      options_.name, now - wait.reports.since(),
                                      DescribeWait(wait.operation, missing)));
}

void HostBackend::EndWait(Wait& wait, const absl::Status& status) {
  if (!wait.reports.has_reported()) return;
  Report(options_.diagnosis,
         EndOfWaitText(wait.operation, options_.rank, options_.name,
                       SteadyClock().Now() - wait.reports.since(), status));
  wait.reports = {};
}

absl::Status HostBackend::Run(const Operation& operation) {
  WEFT_RETURN_IF_ERROR(health());
  std::optional<Wait> wait;
  // The clock is read only where somebody must be waited for.
  const auto check = [&](const std::vector<int>& missing) {
    if (!wait.has_value()) {
      const Instant now = SteadyClock().Now();
      wait.emplace(Wait{operation, now, now + kWatchInterval});
    }
    return CheckWait(*wait, missing);
  };
  absl::Status status =
      SharedRun(*segment_, {peers_, options_.least_read_bytes}, phases_,
                operation, check)
          .Run();
  if (wait.has_value()) EndWait(*wait, status);
  if (!status.ok() && !absl::IsAborted(status)) Abort(status);
  return status;
}

void HostBackend::Refuse(const Operation& operation, const absl::Status& why) {
  Wait wait = {operation, SteadyClock().Now(), Instant::Infinite()};
  const absl::Status shown =
      SharedRun(*segment_, {peers_, options_.least_read_bytes}, phases_,
                operation,
                [&](const std::vector<int>& missing) {
                  return CheckWait(wait, missing);
                })
          .Refuse(why);
  EndWait(wait, shown);
  if (!shown.ok()) Abort(shown);
}

absl::StatusOr<bool> HostBackend::Advance(Transfer& transfer) {
  WEFT_RETURN_IF_ERROR(health());
  const auto advance = [&] { return transfers_.Advance(transfer); };
  // Looked up before the attempt: what a rank sent before its end is still
  // received.
  const bool is_any = transfer.peer < 0;
  absl::Status gone;
  int gone_ranks = 0;
  for (int r = 0; r < size(); ++r) {
    if (r == rank() || (!is_any && r != transfer.peer)) continue;
    const absl::Status found = CheckGone(r, /*also_process=*/true);
    if (found.ok()) continue;
    gone = found;
    ++gone_ranks;
  }
  const int awaited = is_any ? size() - 1 : 1;
  const absl::StatusOr<bool> advanced = CatchToStatus(advance);
  if (absl::IsUnavailable(advanced.status())) {  // half a message is lost
    const absl::Status why = gone.ok() ? advanced.status() : gone;
    Abort(why);
    return why;
  }
  WEFT_RETURN_IF_ERROR(advanced.status());
  if (*advanced || gone_ranks < awaited) return *advanced;
  return gone;
}

absl::StatusOr<Tensor> HostBackend::Allocate(const Shape& shape, DType dtype) {
  const int64_t bytes = NumElements(shape, "Allocate") * ItemSize(dtype);
  if (bytes == 0) return Tensor::Empty(shape, dtype);  // needs no arena
  WEFT_ASSIGN_OR_RETURN(const int64_t offset, arena_->Allocate(bytes));
  std::byte* const memory = arena_->At(offset);
  std::shared_ptr<const void> owner(
      memory, [arena = arena_, offset, bytes](const void*) {
        arena->Free(offset, bytes);
      });
  return Tensor::FromBlob(memory, shape, dtype, std::move(owner));
}

absl::StatusOr<std::unique_ptr<Backend>> ConnectSubgroup(
    HostOptions options, const SubgroupSpec& spec) {
  options.name = SubgroupName(options.name, spec.name);
  options.rank = spec.PlaceOf(options.rank);
  options.size = static_cast<int>(spec.members.size());
  options.arena_bytes = spec.arena_bytes.value_or(options.arena_bytes);
  options.connect_timeout = spec.deadline - SteadyClock().Now();
  options.check_wait = spec.check_wait;
  if (options.check_member != nullptr) {
    options.check_member = [check = std::move(options.check_member),
                            ranks = spec.members](int rank) {
      return check(ranks[rank]);
    };
  }
  return ConnectHost(std::move(options));
}

absl::StatusOr<std::unique_ptr<Backend>> HostBackend::Subgroup(
    const SubgroupSpec& spec) {
  return ConnectSubgroup(options_, spec);
}

absl::Status CheckOptions(const HostOptions& options) {
  WEFT_RETURN_IF_ERROR(CheckEndpoint(options, "ConnectHost"));
  constexpr int64_t kMost = int64_t{1} << 46;
  if (options.arena_bytes < 0 || options.arena_bytes > kMost / options.size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ConnectHost: arena_bytes cannot be ", options.arena_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> ConnectHost(HostOptions options) {
  WEFT_RETURN_IF_ERROR(CheckOptions(options));
  MeetingOptions meeting_options;
  meeting_options.store = options.store;
  meeting_options.name = absl::StrCat("collectives/", options.name);
  meeting_options.rank = options.rank;
  meeting_options.size = options.size;
  meeting_options.directory = options.directory;
  meeting_options.host = options.host;
  meeting_options.memory_budget = options.memory_budget;
  meeting_options.stream = options.own_stream;
  meeting_options.layout_for = [&](int ranks) {
    return SegmentLayout(ranks, options.arena_bytes);
  };
  const Instant deadline = SteadyClock().Now() + options.connect_timeout;
  meeting_options.deadline = deadline;
  meeting_options.check_wait = options.check_wait;
  WEFT_ASSIGN_OR_RETURN(Meeting meeting, Meet(meeting_options));
  const int here = static_cast<int>(meeting.ranks.size());
  const bool is_one_host = here == options.size;
  const std::string not_mapped =
      meeting.not_mapped.empty()
          ? ""
          : absl::StrCat("; they do not share its memory: ",
                         meeting.not_mapped);
  if (!is_one_host && options.streams == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        "backend host lacks ranks on several hosts without "
        "HostOptions::streams: group ",
        options.name, " has ", options.size, " ranks, and only ",
        RankList(meeting.ranks), " share memory on this host and in directory ",
        options.directory, not_mapped));
  }
  if (!not_mapped.empty() && options.rank == 0) {
    Report(options.diagnosis,
           absl::StrCat("group ", options.name,
                        ": ranks of a host count as hosts of their own",
                        not_mapped));
  }
  const int place = static_cast<int>(
      std::find(meeting.ranks.begin(), meeting.ranks.end(), options.rank) -
      meeting.ranks.begin());
  const std::vector<std::vector<int>> hosts = meeting.hosts;
  StreamOptions streams;
  streams.ranks = meeting.streams;
  auto host =
      std::make_unique<HostBackend>(options, place, std::move(meeting),
                                    SegmentLayout(here, options.arena_bytes));
  if (is_one_host) return host;
  streams.streams = options.streams;
  static_cast<GroupTerms&>(streams) = options;
  streams.rank = options.rank;
  streams.connect_timeout = deadline - SteadyClock().Now();
  streams.cost = options.stream_cost;
  streams.measures_cost = options.measures_cost;
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<StreamBackend> between,
                        StreamBackend::Connect(std::move(streams)));
  // `between` lives as long as the operations that ask.
  host->SetElsewhere([asked = between.get()](const Operation& step) {
    return asked->AskWhoHasNotCalled(step);
  });
  return MakeHierarchical(std::move(host), std::move(between), hosts,
                          [options](const SubgroupSpec& spec) {
                            return ConnectSubgroup(options, spec);
                          });
}

}  // namespace weft::collectives
