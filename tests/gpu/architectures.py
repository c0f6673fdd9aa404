#!/usr/bin/python3
"""Prints the architectures of the kernels in each file: machine code as "sm_80", PTX as "compute_90".

architectures.py FILE...               object files or programs
architectures.py --want=LIST FILE...   fails where a file with kernels has others than LIST, with commas, or none has any

What `cuobjdump --list-elf --list-ptx` tells, without that program. nvcc puts kernels of a source into one "fat binary": a
header of 16 bytes with its own size and that of what follows, and for each architecture an entry, whose header begins with
its kind (1: PTX, 2: machine code), 16 bits of version, its own size and that of what follows, and has the architecture at byte 28.
"""
import struct
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)
KINDS = {1: "compute_", 2: "sm_"}


def fat_binaries(data):
    """The architectures of each fat binary, in order."""
    at = data.find(MAGIC)
    while at >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, at + 4)
        begin, end = at + header, at + header + size
        names = []
        # The number may stand in a program by chance, or in code that looks for it.
        if version == 1 and header == 16 and end <= len(data):
            while begin + 32 <= end:
                kind, _, entry, payload = struct.unpack_from("<HHIQ", data, begin)
                if kind not in KINDS:
                    break
                names.append(KINDS[kind] + str(struct.unpack_from("<I", data, begin + 28)[0]))
                begin += entry + payload
        if names:
            yield sorted(names)
        at = data.find(MAGIC, end if names else at + 1)


def main(arguments):
    wanted = None
    if arguments and arguments[0].startswith("--want="):
        wanted = sorted(arguments.pop(0)[len("--want="):].split(","))
    code, total = 0, 0
    for path in arguments:
        with open(path, "rb") as file:
            found = list(fat_binaries(file.read()))
        total += len(found)
        sets = sorted({" ".join(names) for names in found})
        print(f"{path}: {len(found)} fat binaries: {'; '.join(sets) or 'none'}")
        if wanted is not None and any(names != wanted for names in found):
            print(f"{path}: wanted {' '.join(wanted)}", file=sys.stderr)
            code = 1
    if wanted is not None and total == 0:
        print(f"no file has kernels, wanted {' '.join(wanted)}", file=sys.stderr)
        code = 1
    return code


sys.exit(main(sys.argv[1:]))
