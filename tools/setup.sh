#!/usr/bin/env bash
# setup.sh: installs what Weft needs from Debian 12 and is missing; says what; does nothing when all is there. Says whether the
# build has CUDA, too, and where the toolkit is; it does not install that.
#
#   tools/setup.sh            what building and testing needs
#   tools/setup.sh --fuzz     also clang, for tests/fuzz/run.sh
#   tools/setup.sh --dev      also that, the formatter and the linter
#   tools/setup.sh --bench    also the rivals that the benchmarks run beside Weft
set -euo pipefail
cd "$(dirname "$0")/.."

groups="build"
for arg in "$@"; do
  case "$arg" in
    --fuzz) groups="$groups fuzz" ;;
    --dev) groups="$groups fuzz dev" ;;
    --bench) groups="$groups bench" ;;
    *) echo "setup.sh: unknown argument '$arg'; known: --fuzz, --dev, --bench" >&2; exit 2 ;;
  esac
done

if cuda=$(tools/find_cuda.sh); then
  echo "setup: builds with the CUDA toolkit in $cuda"
else
  echo "setup: builds without CUDA: $cuda"
fi

missing=()
while read -r group package _; do
  case " $groups " in *" $group "*) ;; *) continue ;; esac
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done < <(grep -v '^#' tools/packages.txt)

if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: everything is installed"
  exit 0
fi

. /etc/os-release
if [ "${ID:-}" != debian ] || [ "${VERSION_ID:-}" != 12 ]; then
  echo "setup: wanted Debian 12, found ${PRETTY_NAME:-an unknown system}; package names may differ" >&2
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: ${missing[*]} are missing; run this as root, or install sudo" >&2; exit 1; }
  sudo=(sudo)
fi
echo "setup: installing ${missing[*]}"
log=$(mktemp)
if ! { "${sudo[@]}" apt-get update && "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
       apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "setup: apt-get failed; its whole output is in $log" >&2
  exit 1
fi
rm -f "$log"
echo "setup: done"
