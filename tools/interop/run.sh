#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains a few steps of a small hybrid and of a small Llama-like model and checks their checkpoints against transformers
# and tokenizers from PyPI, their event files against tensorboard, and the Llama-like model's scores on data/tasks against
# lm-eval-harness. These are installed into build/interop (PyPI's torch is a large CUDA build, about 3 GB). A Python that
# has them already can be named:
# INTEROP_PYTHON=python3 make interop
set -euo pipefail
cd "$(dirname "$0")/../.."
make build

python=${INTEROP_PYTHON:-build/interop/bin/python}
needs='import torch, transformers, tokenizers, safetensors, tensorboard, lm_eval, accelerate'
if [ -z "${INTEROP_PYTHON:-}" ] && ! "$python" -c "$needs" 2>/dev/null; then
  python3 -m venv build/interop || { echo "interop: python3 -m venv failed; install python3-venv" >&2; exit 1; }
  build/interop/bin/pip install -q torch transformers tokenizers safetensors numpy tensorboard setuptools 'lm-eval[hf]'
fi

for preset in hybrid-tiny llama-tiny mamba-tiny; do
  name=interop-$preset
  echo "=== $preset"
  build/release/nibble train configs/quickstart.toml --set model.preset=$preset --set training.name=$name \
    --set data.cache=build/interop_data --set training.steps=10 --set schedule.warmup_steps=2 --set eval.sequences=2 \
    --set metrics.tensorboard=true
  checkpoint=$(find "runs/$name/checkpoints" -name COMPLETE | sort | tail -n 1)
  shards=()
  while IFS= read -r shard; do shards+=(--shard "$shard"); done < <(find build/interop_data -name '*.bin' | sort)
  "$python" tools/interop/check_transformers.py "$(dirname "$checkpoint")/model" "${shards[@]}"
  if [ "$preset" = llama-tiny ]; then scored=$(dirname "$checkpoint")/model; fi
  "$python" tools/interop/check_tensorboard.py "runs/$name"
done

echo "=== lm-eval-harness on $scored"
"$python" tools/interop/check_lm_eval.py "$scored"
