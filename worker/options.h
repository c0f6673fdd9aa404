// Options: all settings of one rank: its name, the addresses of others,
// security and reports.

#ifndef WEFT_WORKER_OPTIONS_H_
#define WEFT_WORKER_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/cancel.h"
#include "weft/net/endpoint.h"
#include "weft/rendezvous/init_url.h"
#include "weft/rendezvous/world.h"
#include "weft/rpc/agent.h"
#include "weft/telemetry/logger.h"
#include "weft/worker/flags.h"
#include "weft/worker/limits.h"

namespace weft::worker {

// The label with the socket at which other processes of the host send memory to
// a worker: transport::Transport::memory_socket().
inline constexpr char kMemorySocketLabel[] = "memory_socket";

// The role of a process that hosts the job's coordinator and is none of its
// workers (coordinator_server.h), and the name of the one that `weft run`
// starts.
inline constexpr char kCoordinatorRole[] = "coordinator";
inline constexpr char kCoordinatorName[] = "coordinator0";

// kInvalidArgument, with exit code 2, if both are given.
absl::Status CheckTrust(const std::string& certs, bool insecure);

struct Options {
  // The identity of this rank. The name is <role><rank>: ps0, trainer1.
  std::string job = "weft";      // --job, WEFT_JOB
  std::string role = "trainer";  // --role, WEFT_ROLE: ps, trainer or admin
  int rank = 0;                  // --rank, WEFT_RANK, RANK: within its role
  // --labels=zone=a,disk=fast, WEFT_LABELS: by which View::Select finds it.
  std::map<std::string, std::string> labels;

  // How many there are of each role. With neither given nor in the environment
  // (WORLD_SIZE counts the own role), the job is this worker alone.
  int servers = 0;   // --servers, WEFT_SERVERS
  int trainers = 0;  // --trainers, WEFT_TRAINERS
  // How many servers have each partition of the tables, the same in all
  // workers: 1, or 2, with which the job outlives a server. Without servers it
  // has no effect. --replicas, WEFT_REPLICAS
  int replicas = 1;
  // Or the job is elastic: it begins with `min` workers of any role and rank,
  // and others come and go, up to `max`. --workers=MIN:MAX, WEFT_WORKERS. The
  // number of trainers that a launcher leaves in the environment then does not
  // count. With `servers` these are trainers, beside a fixed number of servers.
  int min_workers = 0;
  int max_workers = 0;  // 0: not elastic

  // How the workers find each other, in place of `coordinator`: env://,
  // tcp://HOST:PORT, file:///PATH, etcd://HOST:PORT[/PREFIX],
  // etcd+unix:///PATH. A file or etcd holds the address of the coordinator's
  // host; etcd also holds its journal. --init, WEFT_INIT.
  std::string init;
  rendezvous::InitUrl init_url;  // as Resolve() has read it

  // Where the job meets: "unix:PATH" or "HOST:PORT"; --coordinator,
  // WEFT_COORDINATOR, or MASTER_ADDR and MASTER_PORT. Server 0 hosts it
  // (trainer 0 where there are no servers). Empty: a socket in this user's
  // directory for the job, for ranks on one host.
  std::string coordinator;
  // The name of the process that hosts it: a worker of the job, or the
  // coordinator0 that `weft run` starts. Empty: ps0, or trainer0 where there
  // are no servers. In the environment it belongs to the address there, and
  // does not count where another address is given. --coordinator-host,
  // WEFT_COORDINATOR_HOST
  std::string coordinator_host;
  // The coordinator's journal on its host; empty: in memory.
  std::string coordinator_log;  // --coordinator-log
  // False: a decision is not waited for until the disk has it. The log then
  // survives the coordinator's process, but not its host.
  // --coordinator-log-survives-host
  bool coordinator_log_survives_host = true;
  // A coordinator of its own whose journal is in etcd: it waits until no other
  // hosts the job, and then goes on for it. Until `cancel` is.
  bool stands_by = false;
  // Where this rank listens; empty: the coordinator's address for its host,
  // else next to it (unix) or a free port (TCP).
  std::string listen;     // --listen
  std::string advertise;  // --advertise: where others reach it, if elsewhere
  bool listens_by_default = false;  // Resolve() has chosen `listen`
  // It is no worker, and listens nowhere: Resolve() makes no directory.
  bool only_asks = false;

  std::string certs;      // --certs: a directory of `weft certs init`
  bool insecure = false;  // --insecure: TCP without certificates

  uint64_t seed = 1;     // --seed
  int metrics_port = 0;  // --metrics-port: --metrics-listen=127.0.0.1:N; 0: off
  // Where Prometheus reads this worker's metrics, host:port; with TLS where
  // others can reach it (metrics_server.h). Empty: nowhere. --metrics-listen
  std::string metrics_listen;
  telemetry::LogFormat log_format = telemetry::LogFormat::kText;  // --log
  telemetry::Level log_level = telemetry::Level::kInfo;           // --log-level
  // Where the flight recorder is written when the worker fails or gets SIGUSR2.
  // Empty: this user's directory for the job. --dump-dir
  std::string dump_dir;
  // Keeps spans of calls, and writes them when the worker ends, or with the
  // flight recorder: a file of Chrome's trace format, in whose path "{name}" is
  // this worker's. Empty: none are kept. --trace
  std::string trace;
  bool json = false;           // --json: results as one JSON object a line
  std::string device = "cpu";  // --device: see weft/device/open.h
  int local_rank = 0;          // of this host's workers; --local-rank

  // Timeout until all workers have joined; --join-timeout.
  absl::Duration join_timeout = absl::Minutes(5);
  // Ends Worker::Start, with its reason, within a second: where nothing of the
  // worker is left, as of its sockets.
  CancelToken cancel;
  // Timeout of a remote call that has none of its own; --rpc-timeout.
  absl::Duration rpc_timeout = absl::Seconds(60);

  // Limits on what other workers may request and on their silence.
  // --limits=max_connections=200,dead_after=20s, WEFT_LIMITS
  Limits limits;
  // The roles that may call functions, in place of those that they were
  // registered with: see rpc::AgentOptions::access.
  std::vector<rpc::AccessRule> access;

  // How many functions run at once for remote calls. One that waits for a
  // Future, or in a BlockingScope (base/driver.h), does not count: another
  // thread takes its place. 0: one for each core that this worker has for
  // itself, and at least 16. --handler-threads
  int handler_threads = 0;
  // How many threads there may be, those that wait included. If all wait and
  // none makes progress, calls that get no thread end with kResourceExhausted.
  // At least handler_threads. --max-handler-threads
  int max_handler_threads = 4096;
  int ranks_on_host = 1;  // LOCAL_WORLD_SIZE
  // What `weft run` made servers and trainers from: rendezvous::World::origin.
  // WEFT_WORLD_ORIGIN
  std::string world_origin;
  // This worker takes the place of one that has died, in a job that has begun:
  // Start waits for nobody who has been in the job and is gone. `weft run` sets
  // it for a server that it starts again. --rejoin, WEFT_REJOIN
  bool rejoins = false;
  // The number of the start of all ranks, from 1, if launchers on several hosts
  // restart them: the worker joins no other start. 0: any. WEFT_START
  uint32_t start = 0;
  // The id of this worker's host, for process groups: ranks with different ids
  // share no memory and communicate over streams, as on different machines.
  // Empty: ranks that can share memory do. --host-id, WEFT_HOST_ID
  std::string host_id;
  // The most connections within this host that share memory: 516 KiB each, and
  // 8 MiB once there was a large tensor; 0: none. --shared-memories
  int shared_memories = 64;
  // How much shared memory the workers of the job on this host may have
  // together: that of connections and of process groups; 0: half of the host's
  // memory. --shared-memory-budget
  int64_t shared_memory_budget = 0;
  // Writes the flight recorder and ends the program with exit code 10 when this
  // worker is out of its job, or does not answer at its own address and a new
  // listener does not help. For use with a supervisor that restarts it.
  // --exit-if-unreachable
  bool exit_if_unreachable = false;
  absl::Duration probe_every = absl::Seconds(5);  // how often it asks itself

  // Runs in Start before the endpoint serves: registers services of the
  // program's own at this worker's port. They serve from then on until the
  // Worker ends, and must outlive it. Other workers find them by
  // Member::address. A method that is registered already ends the program.
  std::function<void(net::Endpoint& endpoint)> register_services = nullptr;

  // Runs once, on a thread of the handlers, when this worker is out of its job
  // without having left it: declared gone, or the coordinator is lost; `why`
  // says so. By then health checks answer NOT_SERVING, and calls are refused in
  // both directions. This incarnation cannot rejoin: the program should end,
  // and may do so here, but not by destroying the Worker. If Start still waits
  // for the others, it fails too.
  std::function<void(const absl::Status& why)> on_out_of_job = nullptr;

  std::string name() const;
  bool is_elastic() const { return max_workers > 0; }
  bool hosts_coordinator() const;
  // As `coordinator_host` says, or by default.
  std::string host_of_coordinator() const;
  rendezvous::World world() const;

  // Adds flags that set these options. Programs may add their own.
  void AddTo(Flags& flags);
  // Sets the options that follow from others (MASTER_ADDR, WORLD_SIZE, the
  // addresses) and checks that all are consistent. After Flags::Parse.
  // kInvalidArgument says what to change: with exit code 2 if a value is
  // invalid, with 3 if values are inconsistent.
  absl::Status Resolve();

  // For a program that has no flags of its own: ends it if the command line
  // cannot be read, or names another flag.
  static Options FromFlags(int argc, char** argv);
  // For a program that reads its own flags: removes the flags that it knows
  // from the command line, and leaves the others.
  static Options FromFlags(int* argc, char** argv);

 private:
  static Options Read(const char* program,
                      absl::FunctionRef<absl::Status(Flags&)> parse);
  absl::Status ReadEnvironment();
  absl::Status ResolveSize();
  absl::Status ResolveMetrics();
  absl::Status ResolveInit();
  absl::Status ResolveCoordinator();
  absl::Status ResolveListen();
};

}  // namespace weft::worker

#endif  // WEFT_WORKER_OPTIONS_H_
