#!/usr/bin/env python3
"""failover_hosts.py [--fault=cut|stop|coordinator] [--faults=10] [--every=8] [--lasts=4] [--data=DIR]: how long training
stands still where a host of a server can no longer be reached, or where the coordinator is killed.

Four hosts are network namespaces of this machine, joined by a bridge (it wants root and `ip`): `weft coordinator` and two
synchronous trainers on the first, one parameter server of three on each other one, --replicas=2. No `weft run` reports an exit.

  cut          the link of a random server's host is down for --lasts seconds: nobody hears that server, and no connection ends
  stop         a random server is stopped (SIGSTOP) for so long
  coordinator  the coordinator is killed (SIGKILL) and started again at once from its records, as `weft run` does

For each fault: the longest time between two steps of trainer 0 that began before the fault was over, and the longest in the
second before it; of the coordinator also the time from the kill until it answers `weft status --no-training`. Between two
faults it waits until each partition has two copies again. Of all faults the median and the longest. The last line is JSON.
Needs bin/ (tools/build.sh).
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
parser.add_argument("--fault", choices=["cut", "stop", "coordinator"], default="cut")
parser.add_argument("--faults", type=int, default=10)
parser.add_argument("--every", type=float, default=5.0, help="seconds between two faults, and before the first")
parser.add_argument("--lasts", type=float, default=4.0, help="seconds, of cut and stop")
parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--bin", default=os.path.join(os.path.dirname(__file__), "..", "bin"))
options = parser.parse_args()
bin_dir = os.path.abspath(options.bin)
random.seed(options.seed)
tag = f"w{os.getpid() % 100000}"
hosts, servers, trainers = 4, 3, 2
work = tempfile.mkdtemp(prefix="failover_hosts")
processes, steps, lines = {}, [], []


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def address(host):
    return f"10.213.0.{host + 1}"


def make_hosts():
    ip("link", "add", f"{tag}b", "type", "bridge")
    ip("link", "set", f"{tag}b", "up")
    for host in range(hosts):
        name = f"{tag}h{host}"
        ip("netns", "add", name)
        ip("link", "add", f"{tag}v{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", f"{tag}v{host}", "master", f"{tag}b", "up")
        ip("-n", name, "addr", "add", f"{address(host)}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "eth0", "up")


def remove_hosts():
    for process in processes.values():
        process.kill()
        process.wait()
    for host in range(hosts):
        subprocess.run(["ip", "netns", "del", f"{tag}h{host}"], check=False)
    subprocess.run(["ip", "link", "del", f"{tag}b"], check=False)


def on_host(host, program, *words):
    return ["ip", "netns", "exec", f"{tag}h{host}", f"{bin_dir}/{program}", *words]


def meeting():
    return ["--job=hosts", f"--coordinator={address(0)}:7000", "--insecure"]


def read(process):
    for line in process.stdout:
        lines.append(line)
        if line.startswith("{\"step\"") and process is processes["trainer0"]:
            steps.append(time.monotonic())


def start(name, host, program, *words):
    directory = os.path.join(work, f"host{host}")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    environment = dict(os.environ, XDG_RUNTIME_DIR=directory, WEFT_HOST_ID=f"host{host}", OMP_NUM_THREADS="1")
    # `ip netns exec` becomes the program.
    processes[name] = subprocess.Popen(on_host(host, program, *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       env=environment)
    threading.Thread(target=read, args=(processes[name],), daemon=True).start()


def start_coordinator():
    start("coordinator", 0, "weft", "coordinator", *meeting(), f"--coordinator-log={work}/records")


def start_all():
    start_coordinator()
    members = meeting() + [f"--servers={servers}", f"--trainers={trainers}", "--replicas=2", "--coordinator-host=coordinator0"]
    for rank in range(servers):
        start(f"ps{rank}", 1 + rank, "parameter_server", *members, f"--rank={rank}", f"--listen={address(1 + rank)}:7001")
    for rank in range(trainers):
        start(f"trainer{rank}", 0, "trainer", *members, f"--rank={rank}", f"--listen={address(0)}:{7001 + rank}",
              f"--data={options.data}", "--epochs=1000", "--batch-size=16", "--json", "--loss-every=1")


def fail(why):
    sys.exit("".join(line for line in lines[-200:] if not line.startswith("{\"step\"")) + why)


def wait_until(condition, seconds, why):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            fail(why)
        time.sleep(0.01)


def ask(*words):
    """The answer of `weft`, asked on the trainers' host; None: there is none."""
    asked = subprocess.run(on_host(0, "weft", *words, *meeting(), "--name=coordinator0", "--timeout=2s"), capture_output=True,
                           text=True)
    return asked.stdout if asked.returncode == 0 else None


def has_two_copies():
    answer = ask("servers", "list", "--json")
    if answer is None:
        return False
    said = json.loads(answer)
    return said["lost"] == 0 and said["single"] == 0 and all(s["state"] == "live" for s in said["servers"])


def longest(begin, end):
    """The longest time between two steps of which one is in [begin, end]."""
    times = list(steps)
    gaps = [b - a for a, b in zip(times, times[1:]) if b >= begin and a <= end]
    return max(gaps) if gaps else end - begin


def make_fault():
    """Makes a fault, and its end. Returns until when a step may still be late for it, and when the coordinator answered."""
    if options.fault == "coordinator":
        processes["coordinator"].kill()
        processes["coordinator"].wait()
        start_coordinator()
        wait_until(lambda: ask("status", "--no-training") is not None, 60, "the coordinator does not answer within 60 s")
        answered = time.monotonic()
        time.sleep(2)
        return time.monotonic(), answered
    victim = random.randrange(servers)
    if options.fault == "cut":
        ip("link", "set", f"{tag}v{1 + victim}", "down")
        time.sleep(options.lasts)
        ip("link", "set", f"{tag}v{1 + victim}", "up")
    else:
        processes[f"ps{victim}"].send_signal(signal.SIGSTOP)
        time.sleep(options.lasts)
        processes[f"ps{victim}"].send_signal(signal.SIGCONT)
    return time.monotonic(), None


def measure():
    stops, usual, answers = [], [], []
    for _ in range(options.faults):
        wait_until(has_two_copies, 120, "no two copies of all within 120 s")
        time.sleep(options.every)
        at = time.monotonic()
        usual.append(longest(at - 1, at))
        until, answered = make_fault()
        if answered is not None:
            answers.append(answered - at)
        wait_until(lambda: steps[-1] > until, 60, "no step within 60 s of a fault")
        stops.append(longest(at, until))
    return stops, usual, answers


def summary(values):
    values = sorted(values)
    return {"median": round(values[len(values) // 2], 3), "longest": round(values[-1], 3)}


make_hosts()
try:
    start_all()
    wait_until(lambda: len(steps) >= 50, 120, "no 50 steps within 120 s")
    stops, usual, answers = measure()
    result = {"fault": options.fault, "faults": len(stops), "stands_still_s": summary(stops), "usual_s": summary(usual),
              "each_s": [round(stop, 3) for stop in stops]}
    if answers:
        result["answers_again_s"] = summary(answers)
    print(json.dumps(result))
finally:
    remove_hosts()
