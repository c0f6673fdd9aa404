// SimulatedJob: a coordinator and its members, by their cores, as nodes of a
// simulated network; and what they send each other, counted.
//
//   sim::SimNetwork network(simulator, faults);
//   SimulatedJob job(simulator, network, options);
//   job.member(0).Begin();
//   simulator.RunUntil(simulator.Now() + absl::Seconds(1));

#ifndef WEFT_RENDEZVOUS_TESTING_SIMULATED_JOB_H_
#define WEFT_RENDEZVOUS_TESTING_SIMULATED_JOB_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/core/coordinator_core.h"
#include "weft/rendezvous/core/member_core.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/sim/sim_network.h"
#include "weft/sim/simulator.h"

namespace weft::rendezvous {

// Requests or answers, without what carries them.
struct Traffic {
  int64_t messages = 0;
  int64_t bytes = 0;
  void Add(int64_t more) {
    ++messages;
    bytes += more;
  }
  friend Traffic operator+(Traffic a, Traffic b) {
    return {a.messages + b.messages, a.bytes + b.bytes};
  }
};

// Since the last SimulatedJob::TakeCounts.
struct JobCounts {
  static constexpr size_t kMethods =
      std::variant_size_v<CoordinatorCore::Request>;
  // The coordinator's traffic, by the index of the request in
  // CoordinatorCore's.
  std::array<Traffic, kMethods> requests;
  std::array<Traffic, kMethods> answers;
  // Requests and answers of each member without heartbeats, by rank.
  std::vector<Traffic> members;
  Traffic log;  // records
  // Processor time of the coordinator's core: informative, not simulated.
  absl::Duration coordinator_time;
  int64_t coordinator_events = 0;
};

// What a test wants to see. The default sees nothing.
class JobObserver {
 public:
  virtual ~JobObserver() = default;
  virtual void OnJoined(const std::string& /*name*/, WorkerKey /*key*/) {}
  virtual void OnView(const std::string& /*name*/, const v1::View& /*view*/) {}
  virtual void OnBegin(const std::string& /*name*/) {}
  virtual void OnEnd(const std::string& /*name*/, const absl::Status&) {}
  virtual void OnRecord(const v1::LogRecord& /*record*/) {}
  virtual void OnRefusal(const absl::Status& /*why*/) {}
  virtual void OnCoordinatorStart(uint32_t /*term*/) {}
};

class SimulatedJob {
 public:
  struct Options {
    int members = 3;  // trainer0, trainer1, ...: a fixed world
    // One copy of each view for all members, and no bytes made of what many are
    // sent: for many members. Bytes are counted all the same.
    bool shares_views = false;
    // A member that ends is started again.
    bool has_supervisor = true;
    // Processes die, not hosts: who talks to one that has ended is refused at
    // once. Needs SimNetwork::Options::crash_resets = 1.
    bool refuses = false;
    CoordinatorCore::Options coordinator;
    // Completes what a member says of itself when it joins.
    std::function<void(int rank, v1::Member&)> describe;
  };
  class Coordinator;
  class Member;

  // All must outlive it. Members begin when they are told.
  SimulatedJob(sim::Simulator& simulator, sim::SimNetwork& network,
               Options options, JobObserver* observer = nullptr);
  ~SimulatedJob();
  SimulatedJob(const SimulatedJob&) = delete;
  SimulatedJob& operator=(const SimulatedJob&) = delete;

  static const std::string& CoordinatorName();
  static std::string NameOf(int rank);

  Coordinator& coordinator() { return *coordinator_; }
  Member& member(int rank) { return *members_.at(rank); }
  int size() const { return options_.members; }

  // The coordinator's process does not run from now until Restart; its log
  // stays.
  void CrashCoordinator() { network_.Crash(CoordinatorName()); }
  void RestartCoordinator() { network_.Restart(CoordinatorName()); }

  // Whether all members that run are in, with the coordinator's view.
  bool Agrees() const;
  JobCounts TakeCounts();

 private:
  struct Envelope;

  void Send(const std::string& from, const std::string& to, Envelope envelope);
  static const Envelope& Open(const Bytes& message);

  sim::Simulator& simulator_;
  sim::SimNetwork& network_;
  const Options options_;
  JobObserver silent_;
  JobObserver& observer_;
  SharedViews views_;
  uint64_t last_incarnation_ = 0;
  JobCounts counts_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<std::unique_ptr<Member>> members_;
};

class SimulatedJob::Coordinator final : public sim::SimNode {
 public:
  explicit Coordinator(SimulatedJob& job) : job_(job) { Begin(); }

  const v1::View& view() const { return core_->view(); }
  Epoch version() const { return core_->version(); }  // of view()
  int members() const { return core_->members(); }    // in it
  bool is_up() const { return core_ != nullptr; }
  // Reports the end of the process, as somebody who has seen it does.
  void ReportExit(const std::string& name, uint64_t incarnation);

  void OnStart(int64_t incarnation) override;
  void OnCrash() override;
  void OnMessage(const std::string& from, int64_t from_incarnation,
                 const Bytes& message) override;

 private:
  struct Caller {
    std::string name;
    int rank;
    size_t method;
    uint64_t call;
  };

  void Begin();
  void Arm();
  void Do(CoordinatorCore::Event event);
  void Reply(const Caller& caller, const CoordinatorCore::Answer& answer);

  SimulatedJob& job_;
  // The state on disk.
  std::vector<v1::LogRecord> log_;
  uint32_t term_ = 0;
  // The state in memory.
  int64_t life_ = 0;
  std::unique_ptr<CoordinatorCore> core_;
  uint64_t last_ticket_ = 0;
  std::map<uint64_t, Caller> callers_;
  Instant tick_at_ = Instant::Infinite();
  sim::Simulator::EventId tick_ = 0;
};

class SimulatedJob::Member final : public sim::SimNode {
 public:
  Member(SimulatedJob& job, int rank);

  // Its process starts, and joins. Ends the one before.
  void Begin();
  void Leave();
  // Waits at the barrier `tag` of everyone, until it opens or fails.
  void Arrive(const std::string& tag);

  bool is_up() const { return core_ != nullptr; }
  bool is_in() const {
    return core_ != nullptr && core_->state() == MemberCore::State::kIn;
  }
  bool is_waiting() const { return !barrier_.tag().empty(); }
  // How the last barrier ended.
  const absl::Status& met() const { return met_; }
  const v1::View& view() const { return core_->view(); }
  WorkerKey key() const { return core_->key(); }
  uint64_t incarnation() const { return incarnation_; }
  const std::string& name() const { return name_; }

  void OnStart(int64_t incarnation) override;
  void OnCrash() override;
  void OnMessage(const std::string& from, int64_t from_incarnation,
                 const Bytes& message) override;
  void OnReset(const std::string& peer) override;

 private:
  void Do(const MemberCore::Event& event);
  void Send(const MemberCore::Send& send);
  void SendBarrier();
  void BarrierAnswered(const absl::Status& status,
                       const v1::BarrierReply& reply);
  void Call(uint64_t call, size_t method, std::string body,
            absl::Duration timeout);
  void Fail(uint64_t call, const absl::Status& why);
  // Runs it unless this life has ended by then.
  sim::Simulator::EventId After(absl::Duration delay,
                                std::function<void()> event, const char* label);

  SimulatedJob& job_;
  const int rank_;
  const std::string name_;
  int64_t life_ = 0;
  std::unique_ptr<MemberCore> core_;
  uint64_t incarnation_ = 0;
  std::map<uint64_t, sim::Simulator::EventId> calls_;  // and their time-outs
  v1::BarrierRequest barrier_;  // without a tag: it waits at none
  uint64_t last_barrier_ = 0;   // also counts its calls
  absl::Status met_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_TESTING_SIMULATED_JOB_H_
