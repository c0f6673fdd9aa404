#!/usr/bin/env bash
# format.sh: lays out every C++ file of the project; with --check it changes nothing and fails where it would.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-format-14 >/dev/null || { echo "format: clang-format-14 is missing; run tools/setup.sh --dev" >&2; exit 1; }
mode=(-i)
[ "${1:-}" = --check ] && mode=(--dry-run --Werror)
git ls-files '*.h' '*.cc' '*.cu' | xargs -r clang-format-14 "${mode[@]}"
