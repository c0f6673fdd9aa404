#!/usr/bin/env python3
"""elastic_cost.py [--rounds=5] [--seconds=6] [--ranks=2] [--batch=64] [--data=DIR] [--together]: what virtual shards and elastic mode cost a
job that nobody disturbs.

Trains the trainer's model on Fashion-MNIST by `weft run`, by turns: data-parallel as it is; with as many virtual shards as
there are ranks; with four times as many of a quarter of the batch, which is what an elastic job has that is to grow; and
each of these in an elastic job, the second with room for more ranks. All take as many samples a step. For each the steps a
second, the seconds of processor that the trainers use for a step (which other programs on the machine disturb less), how often
they wait for something in a step (voluntary context switches), and the most memory of a trainer, as
ratios to the one named; medians of the rounds. --together: the elastic jobs beside the same jobs without it, two at
the same time, which the machine's own changes of speed disturb alike. The last line is JSON. Needs bin/ (tools/build.sh).
"""

import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--seconds", type=float, default=6.0)
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--together", action="store_true")
parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
parser.add_argument("--bin", default=os.path.join(os.path.dirname(__file__), "..", "bin"))
options = parser.parse_args()
bin_dir = os.path.abspath(options.bin)
ranks = options.ranks
TICK = os.sysconf("SC_CLK_TCK")


def trainers(parent):
    found = []
    for pid in open(f"/proc/{parent}/task/{parent}/children").read().split():
        try:
            if open(f"/proc/{pid}/cmdline").read().split("\0")[0].endswith("trainer"):
                found.append(int(pid))
        except OSError:
            pass
    return found


def cpu_seconds(pids):
    return sum(sum(map(int, open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[11:13])) for pid in pids) / TICK


def waits(pids):
    lines = [line for pid in pids for tid in os.listdir(f"/proc/{pid}/task") for line in open(f"/proc/{pid}/task/{tid}/status")]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary"))


def most_memory(pids):
    lines = [line for pid in pids for line in open(f"/proc/{pid}/status") if line.startswith("VmHWM")]
    return max(int(line.split()[1]) for line in lines) / 1024


def measure(flags, trainer_flags):
    """Steps a second, processor seconds a step, MiB of the largest trainer, and waits a step."""
    command = [f"{bin_dir}/weft", "run", f"--nproc-per-node={ranks}"] + flags + [
        f"{bin_dir}/trainer", f"--data={options.data}", "--strategy=ddp", "--epochs=1000", "--json", "--loss-every=1"]
    run = subprocess.Popen(command + trainer_flags, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    at = [0, 0.0]

    def read():
        for line in run.stdout:
            if "] {\"step\"" in line:
                at[:] = [json.loads(line.split("] ", 1)[1])["step"], time.monotonic()]

    threading.Thread(target=read, daemon=True).start()
    until = time.monotonic() + 60
    while at[0] < 50 and time.monotonic() < until:
        time.sleep(0.02)
    pids = trainers(run.pid)
    begin, cpu, waited = list(at), cpu_seconds(pids), waits(pids)
    time.sleep(options.seconds)
    end, used, waited, memory = list(at), cpu_seconds(pids) - cpu, waits(pids) - waited, most_memory(pids)
    run.send_signal(signal.SIGINT)
    run.wait(timeout=60)
    steps = max(end[0] - begin[0], 1)
    return steps / (end[1] - begin[1]), used / steps, memory, waited / steps


variants = {
    "plain": ([], [f"--batch-size={options.batch}"]),
    "shards": ([], [f"--batch-size={options.batch}", f"--virtual-shards={ranks}"]),
    "shards_x4": ([], [f"--batch-size={options.batch // 4}", f"--virtual-shards={4 * ranks}"]),
    "elastic": ([f"--elastic=1:{ranks}"], [f"--batch-size={options.batch}", f"--virtual-shards={ranks}"]),
    "elastic_x4": ([f"--elastic=1:{4 * ranks}"], [f"--batch-size={options.batch // 4}", f"--virtual-shards={4 * ranks}"]),
}
pairs = [("elastic", "shards"), ("elastic_x4", "shards_x4")]
rows = {name: [] for name in variants}
if options.together:
    del variants["plain"]
for _ in range(options.rounds):
    for names in pairs if options.together else [[name] for name in variants]:
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            for name, row in zip(names, pool.map(lambda name: measure(*variants[name]), names)):
                rows[name].append(row)


def ratio(name, base, of):
    ratios = sorted(row[of] / other[of] for row, other in zip(rows[name], rows[base]))
    return {"median": round(ratios[len(ratios) // 2], 3), "range": [round(ratios[0], 3), round(ratios[-1], 3)]}


first = next(iter(variants))
result = {"rounds": options.rounds, "ranks": ranks,
          first: {"steps_per_s": round(sorted(r[0] for r in rows[first])[options.rounds // 2], 1),
                  "cpu_ms_a_step": round(1e3 * sorted(r[1] for r in rows[first])[options.rounds // 2], 2),
                  "MiB": round(sorted(r[2] for r in rows[first])[options.rounds // 2], 1)}}
for name, base in ([] if options.together else [("shards", "plain"), ("shards_x4", "plain")]) + pairs:
    result[f"{name}:{base}"] = {"steps_per_s": ratio(name, base, 0), "cpu_a_step": ratio(name, base, 1),
                                "memory": ratio(name, base, 2), "waits_a_step": ratio(name, base, 3)}
print(json.dumps(result))
