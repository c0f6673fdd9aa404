"""Prints which part of each parser's lines was run, from what `llvm-cov export` wrote; fails under 80 %."""

import collections
import json
import re
import sys

LEAST = 80.0

# The parsers: files, and of a file that does more than read the functions that do.
PARSERS = {
    "base/io/record_frames.cc": "TakeFrame|IsAllZeros|CheckOf",
    "checkpoint/manifest.cc": "Parse|Read|Check|Take",
    "checkpoint/safetensors_header.cc": "",
    "collectives/core/frame.cc": "",
    "collectives/backends/device/transfer_handshake.cc": "Decode|OnNotice",
    "collectives/backends/nccl/nccl_meeting.cc": "Decode|Encode",
    "collectives/core/group_core.cc": "Receive|4TakeE|TakeAnnouncement|TakeLeave|TakeAck|Record",
    "collectives/core/inbox.cc": "Add",
    "input/criteo.cc": "^(?!.*Dataset)",
    "input/csv.cc": "^(?!.*Dataset)",
    "input/idx.cc": "^(?!.*(Dataset|ReadIdx|CheckPair))",
    "input/libsvm.cc": "^(?!.*Dataset)",
    "launch/commands/json_value.cc": "",
    "launch/commands/question.cc": "ParseMembers",
    "memory/segment.cc": "FromFd|CheckSealed",
    "net/address.cc": "",
    "net/tls/certificates.cc": "ReadCertificate|ParseCertificate|IdentityOf|TimeOf",
    "net/health.cc": "ServiceIn|OnMessage|Encode|StatusOf",
    "net/tls/identity.cc": "",
    "net/edge/frame_guard.cc": "",
    "net/local/local_frames.cc": "",
    "net/edge/local_socket.cc": "Take|Receive|ReadControl",
    "net/loop/memory_queue.cc": "FromDescriptor",
    "net/reflection.cc": "",
    "ps/core/replication/partition_clocks.cc": "FaultOf|Load|Save",
    "ps/core/replication/partition_map_encoding.cc": "Decode|Read|NoMap",
    "ps/core/rate_changes.cc": "Parse|Format|Check",
    "ps/core/table_layout.cc": "Check",
    "ps/wire/wire_values.cc": "ReadInt8|FaultOfPushed",
    "ps/export/exported_table.cc": "Read|Check|Index|Find|Parse|Damaged",
    "ps/export/table_file.cc": "",
    "ps/replicated/batch.cc": "Decode|CheckColumns|Unfit",
    "ps/replicated/frame.cc": "Decode|CheckK|Unfit|Aligned|FloatsOf|ClocksOf|IsOfClock",
    "ps/replicated/logged_tables.cc": "^(?!.*OwnerRecord)",
    "ps/shard/shard_requests.cc": "",
    "rendezvous/coordinator.cc": "Handle|Parse|Read|Answer",
    "rendezvous/client/coordinator_call.h": "CallUntil",
    "rendezvous/journal/etcd_journal.cc": "",
    "rendezvous/init_url.cc": "",
    "rendezvous/journal/journal.cc": "",
    "rendezvous/discovery/rendezvous_file.cc": "ParseRendezvousFile",
    "rendezvous/core/member_core.cc": "Parse|On(Join|Heartbeat|Watch|Leave)Reply|TakeView|LoseBy",
    "rendezvous/core/roll_call_core.cc": "Decode|Read(Entry|Terms|Roll)|FindOwn|OnRead|OnGiveUp",
    "rendezvous/client/barrier_client.cc": "Meet|Gather",
    "rendezvous/membership.cc": "CheckNobodyIsThere",
    "rendezvous/client/store_client.cc": "^(?!.*(Change|WaitReports|KeyText))",
    "rendezvous/wire.cc": "FromWire|Check|ReadView|BadAnswer",
    "rpc/codec/codec.cc": "Decoder|Decode",
    "rpc/codec/codec.h": "Decode",
    "rpc/gateway/description.cc": "",
    "rpc/session/failure.cc": "DetailsOf|FailuresOf|Bound|Checked|PutInFront|ReceiveFailure|NameOf",
    "rpc/connection/link.cc": "OnMessage|TakeFrame|Begin|Fill|OnMemoryMessage|OnOffer|OnWanted|AskForMemory|CopyChunk",
    "transport/shm/memory_exchange.cc": "Take",
    "transport/shm/message_ring.cc": "",
    "transport/shm/payload_ring.cc": "PayloadReader|Release",
    "rpc/gateway/untyped_value.cc": "",
    "transport/shm/ring_connection.cc": "^(?!.*(Proven|memory_role|Memory))",
    "rpc/codec/signature.cc": "",
    "rpc/codec/tensor_codec.cc": "Decode|CheckElements",
    "rpc/diagnostics/waits_for.cc": "",
    "rpc/connection/wire_reader.cc": "",
    "telemetry/trace_context.cc": "Parse",
    "tensor/codec.cc": "",
}


def count_lines(regions):
    """The count of each line: of what starts there, else of what it lies in."""
    starts = collections.defaultdict(list)
    for first, _, last, _, count, _, _, kind in regions:
        if kind == 0:
            starts[first].append(count)
    counts = {}
    for first, _, last, _, count, _, _, kind in sorted(regions, key=lambda r: (r[0], r[1])):
        if kind == 0:
            for line in range(first, last + 1):
                counts[line] = count
    for line, here in starts.items():
        counts[line] = max(here)
    return counts


def main(path):
    with open(path) as file:
        functions = json.load(file)["data"][0]["functions"]
    lines = {name: {} for name in PARSERS}
    for function in functions:
        source = function["filenames"][0]
        for name, pattern in PARSERS.items():
            if source.endswith("/" + name) or source == name:
                if re.search(pattern, function["name"]):
                    # A template is there once for each of its types.
                    for line, count in count_lines([r for r in function["regions"] if r[5] == 0]).items():
                        lines[name][line] = max(lines[name].get(line, 0), count)
    poor = []
    for name, counts in lines.items():
        if not counts:
            print(f"{name:34} not there")
            poor.append(name)
            continue
        share = 100.0 * sum(1 for c in counts.values() if c > 0) / len(counts)
        print(f"{name:34} {share:5.1f} % of {len(counts)} lines")
        if share < LEAST:
            missed = sorted(line for line, count in counts.items() if count == 0)
            print("    not reached:", ", ".join(map(str, missed)))
            poor.append(name)
    if poor:
        print(f"under {LEAST:g} %: {', '.join(poor)}")
    return 1 if poor else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
