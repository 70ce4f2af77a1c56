#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does `nibble eval` say what lm-eval-harness says about the same model and tasks?

lm-eval reads the model folder with transformers in FP32 on the CPU and the tasks by their lm_eval/*.yaml; nibble
reads both itself, with --precision fp32. Every example's continuation text and greedy flag must be equal, its
log-likelihood within --bound (nats), and every metric that both have within 1e-3 of its size.

    check_lm_eval.py MODEL_DIR [--tasks data/tasks] [--nibble build/release/nibble] [--limit 100] [--backend cpu]
"""

import argparse
import json
import logging
import math
import os
import subprocess
import sys
import tempfile

def harness_samples(model, yamls, names, limit, with_tokens=False):
    """{task: {"metrics": {...}, "examples": [{"continuations", "resps", ("tokens")}]}} by lm-eval."""
    os.environ.update(TQDM_DISABLE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
    import lm_eval
    import torch
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it says of every long context that it was cut
    torch.set_grad_enabled(False)
    # Without its cache of logits: in batches that (0.4.13) gives a window of a text another score when two texts begin
    # with the same window. With batch_size=1 both ways agree.
    lm = HFLM(pretrained=model, dtype="float32", device="cpu", batch_size=8, logits_cache=False)
    if with_tokens:
        seen = {}
        inner = lm._loglikelihood_tokens

        def watched(requests, *args, **kwargs):
            for text, context, continuation in requests:
                if text is not None:
                    seen[text] = ((context + continuation)[-(lm.max_length + 1):], len(continuation))
            return inner(requests, *args, **kwargs)
        lm._loglikelihood_tokens = watched
    out = lm_eval.simple_evaluate(model=lm, tasks=names, limit=limit, log_samples=True, bootstrap_iters=0,
                                  task_manager=TaskManager(include_path=yamls, include_defaults=False))
    result = {}
    for name in names:
        examples = []
        for sample in sorted(out["samples"][name], key=lambda s: s["doc_id"]):
            arguments = [list(a.values()) if isinstance(a, dict) else list(a) for a in (
                sample["arguments"].values() if isinstance(sample["arguments"], dict) else sample["arguments"])]
            resps = [r[0] if isinstance(r[0], (list, tuple)) else [r[0], None] for r in sample["resps"]]
            example = {"arguments": [a[:2] for a in arguments],
                       "resps": [[float(ll), None if g is None else str(g) == "True"] for ll, g in resps]}
            if with_tokens and len(example["arguments"][0]) == 2:
                example["tokens"] = [seen[tuple(a)] for a in example["arguments"]]
            examples.append(example)
        metrics = {k.split(",")[0]: v for k, v in out["results"][name].items()
                   if isinstance(v, float) and "_stderr" not in k}
        result[name] = {"metrics": metrics, "examples": examples}
    return result


def ours(args, names):
    with tempfile.TemporaryDirectory() as scratch:
        samples, results = os.path.join(scratch, "samples.jsonl"), os.path.join(scratch, "results.json")
        subprocess.run([args.nibble, "eval", args.model, "--tasks", args.tasks, "--precision", "fp32", "--limit",
                        str(args.limit), "--backend", args.backend, "--samples", samples, "--json", results],
                       check=True)
        values = json.load(open(results, encoding="utf-8"))["results"]
        out = {n: {"metrics": {k.split(",")[0]: v for k, v in values[n].items() if isinstance(v, float)},
                   "examples": []} for n in names}
        for line in open(samples, encoding="utf-8"):
            row = json.loads(line)
            out[row["task"]]["examples"].append(row)
    return out


def compare(name, harness, nibble, bound):
    """(sentences about what differs, largest difference of a log-likelihood)."""
    problems, worst = [], 0.0
    if len(harness["examples"]) != len(nibble["examples"]):
        return [f"{len(harness['examples'])} and {len(nibble['examples'])} examples"], math.inf
    for i, (a, b) in enumerate(zip(harness["examples"], nibble["examples"])):
        if [x[-1] for x in a["arguments"]] != [x[-1] for x in b["arguments"]] or a["arguments"] != b["arguments"]:
            problems.append(f"example {i}: lm-eval scores {a['arguments']}, nibble {b['arguments']}")
            continue
        for (ll, greedy), (our_ll, our_greedy) in zip(a["resps"], b["resps"]):
            worst = max(worst, abs(ll - our_ll))
            if abs(ll - our_ll) > bound:
                problems.append(f"example {i}: log-likelihood {ll} and {our_ll}")
            if greedy is not None and greedy != our_greedy:
                problems.append(f"example {i}: greedy {greedy} and {our_greedy}")
    for metric, value in harness["metrics"].items():
        our = nibble["metrics"].get(metric)
        if our is None or abs(value - our) > 1e-3 * max(1.0, abs(value)):
            problems.append(f"{metric}: {value} and {our}")
    return problems, worst


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("model")
    ap.add_argument("--tasks", default="data/tasks")
    ap.add_argument("--nibble", default="build/release/nibble")
    ap.add_argument("--backend", default="cpu")
    ap.add_argument("--limit", type=int, default=100)
    ap.add_argument("--bound", type=float, default=1e-3)
    args = ap.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with open(os.path.join(args.tasks, "tasks.jsonl"), encoding="utf-8") as f:
        names = [json.loads(line)["task"] for line in f]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["HF_DATASETS_CACHE"] = cache
        harness = harness_samples(args.model, os.path.join(args.tasks, "lm_eval"), names, args.limit)
    nibble = ours(args, names)
    good = True
    for name in names:
        problems, worst = compare(name, harness[name], nibble[name], args.bound)
        for problem in problems[:5]:
            print(f"  {name}: {problem}")
        metrics = ", ".join(f"{k} {v:.4f}" for k, v in harness[name]["metrics"].items())
        print(f"{name}: {len(harness[name]['examples'])} examples, {metrics}; largest difference of a "
              f"log-likelihood {worst:.1e}: {'ok' if not problems else f'{len(problems)} DIFFER'}")
        good = good and not problems
    print("lm-eval: ok" if good else "lm-eval: FAILED")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
