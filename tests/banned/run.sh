#!/usr/bin/env bash
# No bytes from a peer or a file may become code: no source of the product starts a shell, a program or a library by name.
# Programs are started by launch/ alone. Tests and benches may start what they compare with.
set -euo pipefail
cd "$(dirname "$0")/../.."
shells='\b(std::)?(system|popen|wordexp)[[:space:]]*\('
programs='\b(execl|execle|execlp|execv|execve|execvp|execvpe|fexecve|posix_spawnp?)[[:space:]]*\('
libraries='\b(dlopen|dlmopen|dlsym)[[:space:]]*\('
product=(':*.cc' ':*.h' ':*.cu' ':!tests/**' ':!bench/**' ':!*_test.cc')

# find_banned WHAT PATTERN [PATHS...]: prints the hits and fails if there are any.
find_banned() {
  local what=$1 pattern=$2
  shift 2
  if git grep -nE "$pattern" -- "${product[@]}" "$@"; then
    echo "banned: $what" >&2
    return 1
  fi
}
# The check itself must find something where there is something.
git grep -qE "$programs" -- launch/run/child.cc || { echo "banned: the pattern finds nothing" >&2; exit 1; }

failed=0
find_banned "a shell" "$shells" || failed=1
find_banned "a program started outside launch/" "$programs" ':!launch/**' || failed=1
# CUDA's libraries and NCCL are found where there is a GPU; their names are constants.
find_banned "a library loaded by name" "$libraries" ':!tensor/cuda/libraries/library.cc' \
  ':!collectives/backends/nccl/nccl_functions.cc' || failed=1
[ $failed = 0 ] && echo "banned: 0 hits"
exit $failed
