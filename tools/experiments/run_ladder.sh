#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the arms of an ablation in several processes that share its folder: one a GPU, or --workers on the CPU. Arms that
# have ended are skipped and an arm that was stopped is continued, so the same command finishes what an earlier one began.
#
#   tools/experiments/run_ladder.sh CONFIG.toml [--backend cuda|cpu] [--workers N] [--threads T] [--limit SECONDS]
#                                   [--nibble BINARY] [--logs DIR] [--drop-checkpoints] [-- OPTIONS OF nibble ablate]
#
# --workers   processes a GPU (default 1), or in all on the CPU (default: cores / threads)
# --drop-checkpoints   deletes those of arms that have ended: no other arm reads them, and they are 12 bytes a parameter
# --limit     after so many seconds the workers are told to save and stop; what has ended is judged
# Every worker writes LOGS/worker_N.log; the table of what has ended goes to LOGS/table.txt and to the screen.
set -euo pipefail
usage() { sed -n '6,12p' "$0" >&2; exit 2; }

config=${1:-}
if [ ! -f "$config" ]; then usage; fi
shift
backend=cuda workers=0 threads=2 limit=0 nibble=build/release/nibble logs='' drop=0
while [ $# -gt 0 ]; do
  case $1 in
    --backend) backend=$2; shift 2 ;;
    --workers) workers=$2; shift 2 ;;
    --threads) threads=$2; shift 2 ;;
    --limit) limit=$2; shift 2 ;;
    --nibble) nibble=$2; shift 2 ;;
    --logs) logs=$2; shift 2 ;;
    --drop-checkpoints) drop=1; shift ;;
    --) shift; break ;;
    *) usage ;;
  esac
done
started=$SECONDS
name=$(sed -n 's/^name *= *"\(.*\)".*/\1/p' "$config" | head -1)
runs=runs
# What `data` and the folder depend on, out of the options of `ablate`.
sets=()
previous=''
for option in "$@"; do
  if [ "$previous" = --set ]; then
    sets+=(--set "$option")
    case $option in
      training.name=*) name=$(echo "${option#*=}" | tr -d '"') ;;
      training.runs=*) runs=$(echo "${option#*=}" | tr -d '"') ;;
    esac
  fi
  previous=$option
done
logs=${logs:-$runs/$name-logs}
mkdir -p "$logs"

# A device a worker: "" on the CPU.
devices=()
if [ "$backend" = cuda ]; then
  visible=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | paste -sd, - || true)}
  [ -n "$visible" ] || { echo "no GPU is visible" >&2; exit 1; }
  for _ in $(seq "$((workers > 0 ? workers : 1))"); do
    for device in ${visible//,/ }; do devices+=("$device"); done
  done
else
  cores=$(nproc)
  [ "$workers" -gt 0 ] || workers=$((cores / threads > 0 ? cores / threads : 1))
  for _ in $(seq "$workers"); do devices+=(""); done
fi

common=("$config" --set "training.backend=\"$backend\"" --set "training.threads=$threads")
for option in "$@"; do common+=("$option"); done

# One process writes the token shards before many read them.
"$nibble" data "$config" --set "training.backend=\"$backend\"" "${sets[@]}" | tee "$logs/data.txt"

pids=()
for i in "${!devices[@]}"; do
  if [ -n "${devices[$i]}" ]; then export CUDA_VISIBLE_DEVICES=${devices[$i]}; fi
  "$nibble" ablate "${common[@]}" --join >"$logs/worker_$i.log" 2>&1 &
  pids+=($!)
done
echo "${#pids[@]} workers on $backend, logs in $logs"

# Stops the workers, once: they save their state between two steps. A second signal would kill them.
stopped=0
stop_workers() {
  [ "$stopped" = 0 ] || return 0
  stopped=1
  kill -TERM "${pids[@]}" 2>/dev/null || true
}
trap stop_workers INT TERM
drop_checkpoints() {
  [ "$drop" = 1 ] && [ -d "$runs/$name" ] || return 0
  find "$runs/$name" -name ended.json | while read -r mark; do rm -rf "$(dirname "$mark")/checkpoints"; done
}
alive() { for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null && return 0; done; return 1; }
while alive; do
  if [ "$limit" -gt 0 ] && [ $((SECONDS - started)) -ge "$limit" ]; then stop_workers; fi
  drop_checkpoints
  sleep 1
done
failed=0
for i in "${!pids[@]}"; do
  code=0
  wait "${pids[$i]}" || code=$?
  # 128 + 15: told to stop, state saved.
  if [ "$code" != 0 ] && [ "$code" != 143 ]; then
    failed=1
    echo "worker $i ended with $code: $(tail -1 "$logs/worker_$i.log")" >&2
  fi
done

"$nibble" ablate "${common[@]}" --judge >"$logs/table.txt" 2>&1 || failed=1
cat "$logs/table.txt"
drop_checkpoints
echo "$((SECONDS - started)) s"
exit "$failed"
