"""Checks docs/rpc_features.md: all rows, in order, each with tests that exist or a word on what lacks."""

import pathlib
import re
import subprocess
import sys

PAGE = "docs/rpc_features.md"
# F33 (scripted functions) and F77 (device futures) are for later.
ROWS = [f"F{n}" for n in [*range(1, 33), *range(34, 77), *range(132, 139)]]
PROBES = [f"PROBE-P{n}" for n in [2, 4, 5, 6, 9, 11, 16, 17, 18, 19, 20, 21]]

CASE = re.compile(r"\bT(?:EST|EST_F|EST_P|YPED_TEST|YPED_TEST_P)\(\s*(\w+),\s*(\w+)\s*\)")
LINE = re.compile(r"\| (F\d+|PROBE-P\d+) \|(.*)\|(.*)\|")


def test_cases(root):
    """The `Suite.Name` of every GoogleTest case in the sources."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.cc", "*.h"],
        cwd=root, capture_output=True, text=True, check=True)
    cases = set()
    for name in listed.stdout.split():
        source = root / name
        if source.exists():
            cases.update(".".join(case) for case in CASE.findall(source.read_text()))
    return cases


def check(root):
    """Returns what is wrong, and the rows that are open."""
    cases = test_cases(root)
    wrong, open_rows, seen = [], [], []
    for line in (root / PAGE).read_text().splitlines():
        match = LINE.fullmatch(line)
        if match is None:
            if re.match(r"\| *(F\d|PROBE)", line):
                wrong.append(f"not three columns: {line}")
            continue
        row, says, tests = (part.strip() for part in match.groups())
        seen.append(row)
        names = re.findall(r"`([^`]+)`", tests)
        if tests.startswith("open: "):
            open_rows.append(f"{row}: {tests[6:]}")
        elif not names or not says.strip():
            wrong.append(f"{row}: neither a test nor 'open: what lacks'")
        else:
            wrong += [f"{row}: there is no test {name}" for name in names
                      if name not in cases and not (root / name).is_file()]
    if seen != ROWS + PROBES:
        wanted = set(ROWS + PROBES)
        wrong += [f"{row}: has no line" for row in ROWS + PROBES if row not in seen]
        wrong += [f"{row}: unknown, twice, or out of order" for i, row in enumerate(seen)
                  if row not in wanted or row in seen[:i]]
        if not wrong:
            wrong.append("the rows are not in order")
    return wrong, open_rows


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    wrong, open_rows = check(root)
    for what in open_rows:
        print("open:", what)
    for what in wrong:
        print("wrong:", what)
    print(f"{PAGE}: {len(ROWS) + len(PROBES)} rows, {len(open_rows)} open, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
