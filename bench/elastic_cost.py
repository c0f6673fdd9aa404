#!/usr/bin/env python3
"""elastic_cost.py [--rounds=5] [--seconds=6] [--ranks=2] [--batch=64] [--data=DIR] [--turns]: what virtual shards and elastic mode cost a
job that nobody disturbs.

Trains the trainer's model on Fashion-MNIST by `weft run`, by turns: data-parallel as it is; with as many virtual shards as
there are ranks; with four times as many of a quarter of the batch, which is what an elastic job has that is to grow; and
each of these in an elastic job, the second without and with room for more ranks. All take as many samples a step. For each the steps a
second, the seconds of processor that the trainers use for a step (which other programs on the machine disturb less), how often
they wait for something in a step (voluntary context switches), and the most memory of a trainer, as
ratios to the one named; medians of the rounds. --turns: the elastic jobs beside the same jobs without it, of which one trains
for half a second while the others are stopped, again and again, so that they do not disturb each other, and the machine's own
changes of speed disturb all alike; --rounds times --seconds of each, and in place of the range what 95 of 100 samples of the turns
give. The last line is JSON. Needs bin/ (tools/build.sh).
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--seconds", type=float, default=6.0)
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--turns", action="store_true")
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


class Job:
    """A job that trains, and the last step of which it has told."""

    def __init__(self, flags, trainer_flags):
        command = [f"{bin_dir}/weft", "run", f"--nproc-per-node={ranks}"] + flags + [
            f"{bin_dir}/trainer", f"--data={options.data}", "--strategy=ddp", "--epochs=1000", "--json", "--loss-every=1"]
        self.run = subprocess.Popen(command + trainer_flags, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.at = [0, time.monotonic()]
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.run.stdout:
            if "] {\"step\"" in line:
                self.at = [json.loads(line.split("] ", 1)[1])["step"], time.monotonic()]

    def begin(self):
        until = time.monotonic() + 60
        while self.at[0] < 50 and time.monotonic() < until:
            time.sleep(0.02)
        self.pids = trainers(self.run.pid)

    def counts(self):
        return cpu_seconds(self.pids), waits(self.pids)

    def send(self, to_trainers):
        for pid in self.pids:
            os.kill(pid, to_trainers)

    def end(self):
        self.run.send_signal(signal.SIGINT)
        self.run.wait(timeout=60)


def measure(name):
    """Steps a second, processor seconds a step, MiB of the largest trainer, and waits a step."""
    job = Job(*variants[name])
    job.begin()
    begin, before = job.at, job.counts()
    time.sleep(options.seconds)
    end, after, memory = job.at, job.counts(), most_memory(job.pids)
    job.end()
    steps = max(end[0] - begin[0], 1)
    return steps / (end[1] - begin[1]), (after[0] - before[0]) / steps, memory, (after[1] - before[1]) / steps


def take_turns(names):
    """By name: the steps a second of each turn, then what `measure` returns, of all turns."""
    jobs = {name: Job(*variants[name]) for name in names}
    for job in jobs.values():
        job.begin()
    for job in jobs.values():
        job.send(signal.SIGSTOP)
    time.sleep(0.5)
    before = {name: (job.at[0], *job.counts()) for name, job in jobs.items()}
    turns = {name: [] for name in names}
    for _ in range(int(options.rounds * options.seconds / TURN)):
        for name in random.sample(names, len(names)):
            job, begin, since = jobs[name], jobs[name].at[0], time.monotonic()
            job.send(signal.SIGCONT)
            time.sleep(TURN)
            job.send(signal.SIGSTOP)
            lasted = time.monotonic() - since
            time.sleep(0.05)  # what it has told is on its way
            turns[name].append((job.at[0] - begin) / lasted)
    rows = {}
    for name, job in jobs.items():
        steps = max(job.at[0] - before[name][0], 1)
        cpu, waited = job.counts()
        rows[name] = (sum(turns[name]) / len(turns[name]), (cpu - before[name][1]) / steps, most_memory(job.pids),
                      (waited - before[name][2]) / steps)
    for job in jobs.values():
        job.send(signal.SIGCONT)
        job.end()
    return turns, rows


def ratio_of_turns(turns, base):
    """Of all steps, and what 95 of 100 samples of the turns give."""
    def of(picks):
        return sum(turns[i] for i in picks) / max(sum(base[i] for i in picks), 1e-9)

    count = len(turns)
    samples = sorted(of(random.choices(range(count), k=count)) for _ in range(1000))
    return {"all": round(of(range(count)), 3), "range": [round(samples[25], 3), round(samples[975], 3)]}


TURN = 0.5
variants = {
    "plain": ([], [f"--batch-size={options.batch}"]),
    "shards": ([], [f"--batch-size={options.batch}", f"--virtual-shards={ranks}"]),
    "shards_x4": ([], [f"--batch-size={options.batch // 4}", f"--virtual-shards={4 * ranks}"]),
    "elastic": ([f"--elastic=1:{ranks}"], [f"--batch-size={options.batch}", f"--virtual-shards={ranks}"]),
    "elastic_x4": ([f"--elastic=1:{ranks}"], [f"--batch-size={options.batch // 4}", f"--virtual-shards={4 * ranks}"]),
    "elastic_room": ([f"--elastic=1:{4 * ranks}"], [f"--batch-size={options.batch // 4}", f"--virtual-shards={4 * ranks}"]),
}
pairs = [("elastic", "shards"), ("elastic_x4", "shards_x4"), ("elastic_room", "shards_x4"), ("elastic_room", "elastic_x4")]
if options.turns:
    result = {"turns": int(options.rounds * options.seconds / TURN), "ranks": ranks}
    for group in (["shards", "elastic"], ["shards_x4", "elastic_x4", "elastic_room"]):
        turns, rows = take_turns(group)
        result[group[0]] = {"steps_per_s": round(rows[group[0]][0], 1), "cpu_ms_a_step": round(1e3 * rows[group[0]][1], 2)}
        for name, base in pairs:
            if name in group and base in group:
                result[f"{name}:{base}"] = {
                    "steps_per_s": ratio_of_turns(turns[name], turns[base]),
                    **{what: round(rows[name][of] / rows[base][of], 3)
                       for what, of in (("cpu_a_step", 1), ("memory", 2), ("waits_a_step", 3))}}
    print(json.dumps(result))
    sys.exit()
rows = {name: [] for name in variants}
for _ in range(options.rounds):
    for name in variants:
        rows[name].append(measure(name))


def ratio(name, base, of):
    ratios = sorted(row[of] / other[of] for row, other in zip(rows[name], rows[base]))
    return {"median": round(ratios[len(ratios) // 2], 3), "range": [round(ratios[0], 3), round(ratios[-1], 3)]}


result = {"rounds": options.rounds, "ranks": ranks,
          "plain": {"steps_per_s": round(sorted(r[0] for r in rows["plain"])[options.rounds // 2], 1),
                    "cpu_ms_a_step": round(1e3 * sorted(r[1] for r in rows["plain"])[options.rounds // 2], 2),
                    "MiB": round(sorted(r[2] for r in rows["plain"])[options.rounds // 2], 1)}}
for name, base in [("shards", "plain"), ("shards_x4", "plain")] + pairs:
    result[f"{name}:{base}"] = {"steps_per_s": ratio(name, base, 0), "cpu_a_step": ratio(name, base, 1),
                                "memory": ratio(name, base, 2), "waits_a_step": ratio(name, base, 3)}
print(json.dumps(result))
