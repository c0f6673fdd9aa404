"""Checks tests/features/rpc_features.md: all rows, in order, each with tests that exist or a word on what lacks.

A row names the codes of the errors that it promises, and one of its tests expects each of them.
"""

import pathlib
import re
import subprocess
import sys

PAGE = "tests/features/rpc_features.md"
# F33 (scripted functions) and F77 (device futures) are for later.
ROWS = [f"F{n}" for n in [*range(1, 33), *range(34, 77), *range(132, 139)]]
PROBES = [f"PROBE-P{n}" for n in [2, 4, 5, 6, 9, 11, 16, 17, 18, 19, 20, 21]]

# The errors that the plan of calls gives a row.
ERRORS = {
    "F2": ["INVALID_ARGUMENT", "ALREADY_EXISTS"],
    "F6": ["ALREADY_EXISTS"],
    "F8": ["NOT_FOUND"],
    "F11": ["FAILED_PRECONDITION"],
    "F14": ["UNAVAILABLE", "ABORTED"],
    "F16": ["INVALID_ARGUMENT"],
    "F18": ["UNAVAILABLE"],
    "F19": ["DEADLINE_EXCEEDED"],
    "F20": ["DEADLINE_EXCEEDED"],
    "F21": ["FAILED_PRECONDITION", "UNAVAILABLE"],
    "F22": ["FAILED_PRECONDITION"],
    "F23": ["RESOURCE_EXHAUSTED"],
    "F24": ["DEADLINE_EXCEEDED", "UNAVAILABLE", "FAILED_PRECONDITION", "INVALID_ARGUMENT"],
    "F26": ["FAILED_PRECONDITION"],
    "F28": ["INVALID_ARGUMENT"],
    "F29": ["INVALID_ARGUMENT", "NOT_FOUND"],
    "F31": ["FAILED_PRECONDITION", "INVALID_ARGUMENT"],
    "F32": ["UNIMPLEMENTED"],
    "F34": ["INVALID_ARGUMENT"],
    "F36": ["NOT_FOUND"],
    "F39": ["DATA_LOSS"],
    "F45": ["INVALID_ARGUMENT"],
    "F48": ["INVALID_ARGUMENT"],
    "F49": ["DEADLINE_EXCEEDED"],
    "F50": ["CANCELLED"],
    "F51": ["DEADLINE_EXCEEDED"],
    "F54": ["INVALID_ARGUMENT"],
    "F56": ["RESOURCE_EXHAUSTED"],
    "F57": ["DEADLINE_EXCEEDED"],
    "F60": ["INVALID_ARGUMENT", "INTERNAL", "RESOURCE_EXHAUSTED"],
    "F61": ["INTERNAL"],
    "F63": ["UNAVAILABLE"],
    "F67": ["DEADLINE_EXCEEDED"],
    "F76": ["CANCELLED"],
    "PROBE-P6": ["DEADLINE_EXCEEDED"],
    "PROBE-P9": ["UNAVAILABLE"],
    "PROBE-P18": ["INTERNAL"],
    "PROBE-P20": ["NOT_FOUND", "INVALID_ARGUMENT"],
}
CODES = [
    "CANCELLED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
]

CASE = re.compile(
    r"\bT(?:EST|EST_F|EST_P|YPED_TEST|YPED_TEST_P)\(\s*(\w+),\s*(\w+)\s*\)(.*?)^}", re.S | re.M)
LINE = re.compile(r"\| (F\d+|PROBE-P\d+) \|(.*)\|(.*)\|")


def test_cases(root):
    """The body of every GoogleTest case in the sources, by its `Suite.Name`."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.cc", "*.h"],
        cwd=root, capture_output=True, text=True, check=True)
    cases = {}
    for name in listed.stdout.split():
        source = root / name
        if source.exists():
            for suite, case, body in CASE.findall(source.read_text()):
                cases[f"{suite}.{case}"] = cases.get(f"{suite}.{case}", "") + body
    return cases


def lacking_errors(row, says, bodies):
    """What is wrong with the errors of a row whose tests have these bodies."""
    wrong = [f"{row}: does not say {code}" for code in ERRORS.get(row, []) if code not in says]
    for code in CODES:
        name = "".join(part.capitalize() for part in code.split("_"))
        if re.search(rf"\b{code}\b", says) and not re.search(rf"\bStatusCode::k{name}\b|\bIs{name}\b", bodies):
            wrong.append(f"{row}: none of its tests expects {code}")
    return wrong


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
            wrong += lacking_errors(row, says, "".join(cases.get(name, "") for name in names))
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
