#!/usr/bin/env bash
# Counts the instructions of one decision on 1,000 hot keys, by kind: the difference between runs of
# the same program with more and with fewer decisions. The count hardly depends on the machine or on
# its load, so it shows changes that are too small for times.
#
#   benchmarks/cpp/callgrind.sh [HIT_LOOP] [KIND...]
set -euo pipefail

program=${1:-$(dirname "$0")/../../build/release/benchmarks/cpp/hit_loop}
shift || true
kinds=("$@")
if [ ${#kinds[@]} -eq 0 ]; then
  kinds=(token-bucket allow refused leaky-bucket fixed-window sliding-window sliding-log
    concurrency token-bucket/system-clock token-bucket/cost token-bucket/shm allow/shm
    fixed-window/shm)
fi

fewer=20000
more=120000

instructions() { # KIND TIMES
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
    sed -nE 's/.*Collected : ([0-9]+).*/\1/p'
}

for kind in "${kinds[@]}"; do
  base=$(instructions "$kind" "$fewer")
  all=$(instructions "$kind" "$more")
  if [ -z "$base" ] || [ -z "$all" ]; then
    echo "$kind: valgrind counted nothing; is $program there?" >&2
    exit 1
  fi
  awk -v kind="$kind" -v n=$((all - base)) -v times=$((more - fewer)) \
    'BEGIN { printf "%-28s %7.1f instructions\n", kind, n / times }'
done
