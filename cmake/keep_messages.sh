#!/usr/bin/env bash
# Compiler launcher: runs the compiler and saves its messages in OBJECT.messages next to the object, for tests
# (tests/kernels/wgmma_overlaps.sh).
#
#   cmake/keep_messages.sh COMPILER... -o OBJECT ...
set -uo pipefail

object=""
previous=""
for word in "$@"; do
  if [[ "$previous" == "-o" ]]; then object="$word"; fi
  previous="$word"
done
if [[ -z "$object" ]]; then exec "$@"; fi
"$@" 2>"$object.messages"
status=$?
cat "$object.messages" >&2
exit "$status"
