#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does a checkpoint's model folder mean to transformers what it means to nibble?

1. transformers loads the folder as it is: no missing, unexpected or reshaped tensor.
2. It computes logits, loss and gradients of random tokens in FP32, which become a golden file; `nibble verify-model` must
   reproduce them within its FP32 bounds (logits within 5e-5 of the largest) on every backend asked for.
3. tokenizers loads tokenizer.json; with --shard every document that nibble tokenised is decoded and encoded again by the
   library: the ids must be the same.

    check_transformers.py MODEL_DIR [--nibble build/release/nibble] [--backends cpu,ref] [--shard FILE.bin ...]
"""

import argparse
import os
import struct
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer


def load(directory):
    model, report = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    found = {k: v for k, v in report.items() if v}
    if found:
        sys.exit(f"{directory}: transformers does not load it as it is: {found}")
    return model.eval()


def golden(model, sequences, tokens):
    torch.manual_seed(1)
    ids = torch.randint(0, model.config.vocab_size, (sequences, tokens))
    logits = model(input_ids=ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    tensors = {"input_ids": ids, "logits": logits.detach().contiguous(), "loss": loss.detach().reshape(1)}
    for name, p in model.named_parameters():
        if p.grad is not None:
            tensors["grad." + name] = p.grad.contiguous()
    return tensors


def check_logits(args):
    model = load(args.model)
    print(f"{args.model}: {type(model).__name__}, {sum(p.numel() for p in model.parameters())} parameters", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "golden.safetensors")
        save_file(golden(model, args.sequences, args.tokens), path)
        outcomes = [subprocess.run([args.nibble, "verify-model", args.model, "--golden", path, "--backend", b],
                                   check=False).returncode for b in args.backends.split(",")]
    return all(code == 0 for code in outcomes)


def documents(shard):
    """(ids of each document) of a token shard; the layout is in src/data/token_shard.h."""
    with open(shard, "rb") as f:
        raw = f.read()
    magic, _, width, count, docs = struct.unpack_from("<8sIIQQ", raw)
    if magic != b"NIBTOK1\n":
        sys.exit(f"{shard}: not a token shard")
    ids = struct.unpack_from(f"<{count}{'H' if width == 2 else 'I'}", raw, 64)
    starts = struct.unpack_from(f"<{docs}Q", raw, 64 + (count * width + 7) // 8 * 8)
    return [list(ids[a:b]) for a, b in zip(starts, starts[1:] + (count,))]


def check_tokenizer(args):
    path = os.path.join(args.model, "tokenizer.json")
    if not os.path.isfile(path):
        print("no tokenizer.json")
        return not args.shard
    library, auto = Tokenizer.from_file(path), AutoTokenizer.from_pretrained(args.model)
    sample = "It is a truth universally acknowledged,\n\n  that 42 naïve cafés don't…\t☕\r\n"
    good = library.decode(library.encode(sample).ids) == sample and auto(sample)["input_ids"] == library.encode(sample).ids
    print(f"tokenizer.json: {library.get_vocab_size()} tokens, round trip of a sample {'ok' if good else 'DIFFERS'}")
    special = {i for i, t in library.get_added_tokens_decoder().items() if t.special}
    for shard in args.shard:
        same = total = 0
        for ids in documents(shard):
            body = [i for i in ids if i not in special]
            total += len(body)
            same += len(body) if library.encode(library.decode(body), add_special_tokens=False).ids == body else 0
        print(f"{shard}: {same} of {total} ids in documents that the library encodes alike")
        good = good and same == total > 0
    return good


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("model")
    ap.add_argument("--nibble", default="build/release/nibble")
    ap.add_argument("--backends", default="cpu,ref")
    ap.add_argument("--sequences", type=int, default=2)
    ap.add_argument("--tokens", type=int, default=48)
    ap.add_argument("--shard", action="append", default=[])
    args = ap.parse_args()
    good = check_logits(args)
    good = check_tokenizer(args) and good
    print("interop: ok" if good else "interop: FAILED")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
