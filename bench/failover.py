#!/usr/bin/env python3
"""failover.py [--elastic [--goodput] | --torchrun [--goodput] | --both --goodput --every=30 | --refill | --join] [--kills=20]
[--every=3] [--data=DIR]: what a kill costs a job in time, and what one that comes.

Runs `weft run --replicas=2` of 3 servers and 2 synchronous trainers, and kills a random server with SIGKILL every few
seconds; with --elastic, `weft run --elastic` of 4 data-parallel trainers, and kills a random trainer. For each kill: the
longest time between two steps within the 2 s after it, in which the process also comes back, and how much longer that is
than the longest in the second before it. A step that is repeated counts once. Of all kills the median, the 99th percentile
(the longest, of fewer than 100) and, with --all, each. The last line is JSON. Needs bin/ (tools/build.sh).

--torchrun: the same of a rival: torchrun of Debian's python3-torch, which starts all 4 ranks of peers/torch_elastic.py again
from the checkpoint that they save each 50 steps. --monitor-interval is torchrun's: how often it looks.

--goodput: in place of that, the steps that count in the time of --every from a kill to the next, as a share of those in
as long a time without a kill before it, over all kills. A step that is repeated counts once.

--both, with --goodput: a job of 3 servers with two replicas and 3 elastic trainers that push each step to a table
(tests/chaos/table_worker), of which a random process is killed: a server, a trainer or the coordinator.

--refill: in place of that, steps a second from the kill of a server until all partitions have two copies again, beside
those of as long a time before the kill, or since the refill before, of bench/refill_trainer with a table of 100 MB; medians
of the kills, but for those of a server that had no copy.

--join: 4 trainers with a state of 100 MB (bench/join_trainer), and a fifth that is started by hand, takes part and is killed,
--kills times. How long the others stop when it joins, between two steps; how long of that they go over to the group with it, and
give it the state, as the first of them tells, and what of that is what, as it and the newcomer tell (docs/elastic.md); and the
longest time between two steps after it was killed.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("--elastic", action="store_true")
parser.add_argument("--kills", type=int, default=20)
parser.add_argument("--every", type=float, default=3.0)
parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
parser.add_argument("--goodput", action="store_true")
parser.add_argument("--both", action="store_true")
parser.add_argument("--torchrun", action="store_true")
parser.add_argument("--monitor-interval", type=float, default=5, help="of --torchrun, in seconds; 5 is its default")
parser.add_argument("--all", action="store_true", help="also the time of each kill")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--table-worker", default="")
parser.add_argument("--refill", action="store_true")
parser.add_argument("--refill-trainer", default="")
parser.add_argument("--join", action="store_true")
parser.add_argument("--join-trainer", default="")
parser.add_argument("--rows", type=int, default=131072, help="of --join: 768 bytes of state each")
parser.add_argument("--bin", default=os.path.join(os.path.dirname(__file__), "..", "bin"))
options = parser.parse_args()
if options.both and not options.goodput:
    parser.error("--both: wanted --goodput, too")
bin_dir = os.path.abspath(options.bin)
random.seed(options.seed)

trainer = f"{bin_dir}/trainer --data={options.data} --epochs=1000 --batch-size=16 --json --loss-every=1"
trainers = f"trainer=2:{trainer}"
if options.refill:
    trainers = f"trainer=1:{options.refill_trainer or bin_dir + '/refill_trainer'}"
command = ["--replicas=2", "--role", f"ps=3:{bin_dir}/parameter_server", "--role", trainers]
if options.elastic:
    command = ["--elastic=2:4", "--role", f"trainer=4:{trainer} --strategy=ddp --virtual-shards=4"]
if options.both:
    worker = options.table_worker or f"{bin_dir}/../bazel-bin/tests/chaos/table_worker"
    command = ["--replicas=2", "--elastic=1:3", "--role", f"ps=3:{bin_dir}/parameter_server", "--role", f"trainer=3:{worker}"]
runtime = tempfile.mkdtemp(prefix="failover")
environment = dict(os.environ)
joiner = [options.join_trainer or f"{bin_dir}/join_trainer", f"--rows={options.rows}", "--epochs=1000"]
if options.join:
    environment["XDG_RUNTIME_DIR"] = runtime
    command = ["--job=join", "--elastic=2:8", "--nproc-per-node=4"] + joiner
argv = [f"{bin_dir}/weft", "run"] + command
if options.torchrun:
    rival = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "torch_elastic.py")
    argv = ["/usr/bin/python3", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=4", "--max_restarts=10000",
            f"--monitor_interval={options.monitor_interval}",
            # Of a rank that is not: with Python 3.11 torch 1.13 cannot read these flags' default.
            "--redirects=9:3", "--tee=9:3", rival, runtime, "50", "16"]
    environment["OMP_NUM_THREADS"] = "1"
run = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
steps, lines, copies = [], [], []
furthest = 0


def took(step):
    global furthest
    if options.join or options.refill or step > furthest:
        steps.append(time.monotonic())
        furthest = max(furthest, step)


def read():
    for line in run.stdout:
        lines.append(line)
        # Of the first of them, which with --elastic may be any.
        if "] {\"step\"" in line and (options.elastic or options.both or line.startswith("[trainer0]")):
            took(json.loads(line.split("] ", 1)[1])["step"])
        elif line.startswith("{\"step\"") and options.torchrun:
            took(json.loads(line)["step"])
        elif line.startswith("[ps") and " without a backup in sync" in line:
            copies.append((time.monotonic(), ", 0 without a backup in sync" in line))


threading.Thread(target=read, daemon=True).start()


def is_victim(words):
    if options.torchrun:
        return any(word.endswith("torch_elastic.py") for word in words)
    if options.both:
        return words[0].endswith(("table_worker", "parameter_server")) or words[1:2] == ["coordinator"]
    return words[0].endswith("trainer" if options.elastic else "parameter_server")


def victims():
    found = []
    for pid in open(f"/proc/{run.pid}/task/{run.pid}/children").read().split():
        try:
            if is_victim(open(f"/proc/{pid}/cmdline").read().split("\0")):
                found.append(int(pid))
        except OSError:
            pass
    return found


def longest(begin, end):
    """The longest time between two steps of which one is in [begin, end]."""
    times = [t for t in steps]
    gaps = [b - a for a, b in zip(times, times[1:]) if b >= begin and a <= end]
    return max(gaps) if gaps else end - begin


def measure_refill(since):
    """Of one kill: steps a second before it, though not before `since`, and until the refill's end; how long that took; when it was."""
    time.sleep(options.every)
    at = time.monotonic()
    os.kill(random.choice(victims()), signal.SIGKILL)
    until = at + 120
    first, end = None, None
    while end is None and time.monotonic() < until:
        if run.poll() is not None:
            sys.exit("".join([line for line in lines if "\"step\"" not in line][-30:]))
        time.sleep(0.01)
        first = next(((t, is_whole) for t, is_whole in copies if t > at), None)
        if first is not None and first[1]:
            return None  # it stood by, with no copy
        end = next((t for t, is_whole in copies if t > at and is_whole), None)
    if end is None:
        sys.exit("no refill within 120 s of the kill")
    took = end - at

    def rate(begin, finish):
        return sum(begin <= t < finish for t in steps) / (finish - begin)

    return rate(max(at - took, since), at), rate(at, end), took, end


def end_run():
    run.send_signal(signal.SIGINT)
    try:
        run.wait(timeout=60)
    except subprocess.TimeoutExpired:
        run.kill()
        sys.exit("the job does not end within 60 s of SIGINT")


deadline = time.monotonic() + 60
while len(steps) < 50 and time.monotonic() < deadline and run.poll() is None:
    time.sleep(0.1)
if len(steps) < 50:
    run.send_signal(signal.SIGINT)
    sys.exit("".join(lines[-30:]) + "no 50 steps within 60 s")
if options.refill:
    time.sleep(3)
    kills, since = [], steps[49]
    while len(kills) < options.kills:
        measured = measure_refill(since)
        if measured is not None:
            *kill, since = measured
            kills.append(kill)
    end_run()
    middle = len(kills) // 2
    print(json.dumps({"kills": len(kills), "steps_per_s_before": round(sorted(k[0] for k in kills)[middle], 1),
                      "steps_per_s_refilling": round(sorted(k[1] for k in kills)[middle], 1),
                      "ratio": round(sorted(k[1] / k[0] for k in kills)[middle], 3),
                      "refill_s": round(sorted(k[2] for k in kills)[middle], 2)}))
    sys.exit(0)



def await_steps(more):
    until, wanted = time.monotonic() + 60, len(steps) + more
    while len(steps) < wanted and time.monotonic() < until:
        time.sleep(0.01)


def measure_join():
    """Of one that comes and is killed: seconds between two steps when it comes, what it tells, and when it is killed."""
    time.sleep(options.every)
    at = time.monotonic()
    usual, before = longest(at - 1, at), len(lines)
    flags = ["--job=join", "--rank=7", "--workers=2:8", "--coordinator-host=coordinator0",
             f"--coordinator=unix:{runtime}/weft/join/coordinator.sock"]
    newcomer = subprocess.Popen(joiner + flags, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    said = []
    for line in newcomer.stdout:
        said.append(line)
        if "taking part" in line:
            break
    else:
        sys.exit("".join(said))
    threading.Thread(target=newcomer.stdout.read, daemon=True).start()
    await_steps(20)
    joined = longest(at, time.monotonic())
    # Of the first of those who stop; the group is made while they train.
    told = next((line for line in lines[before:] if "trainer0 going on" in line and "ranks=5" in line), "")
    own = next((line for line in said if "taking part" in line), "")
    phases = {}
    for whose, line, keys in (("", told, ("meeting_ms", "state_ms", "hashing_ms", "telling_ms")),
                              ("newcomer_", own, ("telling_ms", "moving_ms", "comparing_ms"))):
        for key in keys:
            phases[whose + key] = int(line.split(key + "=", 1)[1].split()[0]) if key + "=" in line else None
    at = time.monotonic()
    newcomer.kill()
    newcomer.wait()
    await_steps(20)
    return {"usual_s": usual, "join_s": joined, "kill_s": longest(at, time.monotonic()), **phases}


if options.join:
    joins = [measure_join() for _ in range(options.kills)]
    end_run()
    result = {"joins": len(joins)}
    for key in joins[0]:
        values = sorted(j[key] for j in joins if j[key] is not None)
        if values:
            result[key] = {"median": round(values[len(values) // 2], 3), "longest": round(values[-1], 3)}
    print(json.dumps(result))
    sys.exit(0)
if options.goodput:
    quiet, killed = 0, []
    for _ in range(options.kills):
        marks = [furthest]
        for has_kill in (False, True):
            if run.poll() is not None:
                sys.exit("".join([line for line in lines if "\"step\"" not in line][-30:]))
            if has_kill:
                os.kill(random.choice(victims()), signal.SIGKILL)
            time.sleep(options.every)
            marks.append(furthest)
        quiet += marks[1] - marks[0]
        killed.append(marks[2] - marks[1])
    end_run()
    time_of_each = options.kills * options.every
    print(json.dumps({"kills": options.kills, "every_s": options.every, "steps_per_s_quiet": round(quiet / time_of_each, 1),
                      "steps_per_s_with_kills": round(sum(killed) / time_of_each, 1),
                      "goodput": round(sum(killed) / max(quiet, 1), 3)}))
    sys.exit(0)
stops, usual = [], []
for _ in range(options.kills):
    time.sleep(options.every)
    if run.poll() is not None:
        sys.exit("".join([line for line in lines if "\"step\"" not in line][-30:]))
    victim = random.choice(victims())
    at = time.monotonic()
    usual.append(longest(at - 1, at))
    os.kill(victim, signal.SIGKILL)
    time.sleep(2)
    until = time.monotonic() + 120
    while steps[-1] < at + 1 and time.monotonic() < until:
        time.sleep(0.01)
    stops.append(longest(at, at + 2))
end_run()
usual.sort()
in_order = sorted(stops)
result = {"kills": len(stops), "median_s": round(in_order[len(stops) // 2], 3),
          "p99_s": round(in_order[min(len(stops) - 1, len(stops) * 99 // 100)], 3), "longest_s": round(in_order[-1], 3),
          "usual_longest_step_s": round(usual[len(usual) // 2], 3), "steps": len(steps)}
if options.all:
    result["each_s"] = [round(stop, 3) for stop in stops]
print(json.dumps(result))
