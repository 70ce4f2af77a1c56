#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/lm_eval: a tiny random Llama model, tasks with every oddity of the encoding (white space at a
context's end, no context, contexts and texts longer than the model, characters of several bytes, solved examples in
front), and what lm-eval-harness says about them: tokens, log-likelihoods, greedy flags, metrics.

    make_lm_eval.py      # a Python with torch, transformers, lm-eval[hf]
"""

import json
import os
import shutil
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
HERE = os.path.join(ROOT, "tests", "golden", "lm_eval")
TOKENIZER = os.path.join(ROOT, "tests", "golden", "tokenizers", "tok_gpt2", "tokenizer.json")
sys.path[:0] = [os.path.join(ROOT, "tools", "interop"), os.path.join(ROOT, "tools", "eval_tasks")]
from check_lm_eval import harness_samples  # noqa: E402
from lm_eval_yaml import yaml_of  # noqa: E402

LONG = " ".join(f"the {n} of the house said that it was so" for n in ("master", "lady", "guest", "cook", "son"))
TASKS = [
    ({"task": "choices", "kind": "multiple_choice"}, [
        {"query": "The cat sat on the", "choices": ["mat", "house of cards", "é", "naïve café"], "gold": 1},
        {"query": "A query with a space at its end ", "choices": ["one", "two"], "gold": 0},
        {"query": "A query that ends in line feeds\n\n", "choices": ["one", "twenty-two"], "gold": 1},
        {"query": "", "choices": ["no context at all", "none"], "gold": 0},
        {"query": LONG, "choices": ["and then", "but never in the summer of that year"], "gold": 1},
        {"query": "日本語の\u3000", "choices": ["東京", "x"], "gold": 0}]),
    ({"task": "shots", "kind": "multiple_choice", "shots": 2, "shots_file": "shots_shots.jsonl"}, [
        {"query": f"{a} and {b} make", "choices": [str(a + b), str(a * b + 7)], "gold": a % 2}
        for a in range(1, 4) for b in range(2)]),
    ({"task": "no_delimiter", "kind": "multiple_choice", "delimiter": ""}, [
        {"query": "un", "choices": ["happy", "aware of it"], "gold": 0},
        {"query": "Answer:", "choices": [" yes", " no"], "gold": 1}]),
    ({"task": "last", "kind": "last_word"}, [
        {"context": "It is a truth universally acknowledged, that a single man must be in want of a", "word": "wife"},
        {"context": LONG + " ", "word": "unaccountably"},
        {"context": "", "word": "alone"},
        {"context": "She went to the", "word": "the"}]),
    ({"task": "pairs", "kind": "minimal_pairs"}, [
        {"good": "He was there.", "bad": "He were there."}, {"good": "An apple fell.", "bad": "A apple fell."},
        {"good": "<|endoftext|>She saw them.", "bad": "<|endoftext|>She saw they."}]),
    ({"task": "texts", "kind": "text"}, [
        {"text": "Short."}, {"text": " leading and  double spaces\nand a line "}, {"text": LONG},
        {"text": " ".join([LONG] * 3)}, {"text": "ünïcödé ☕ 日本"}]),
]


def write_rows(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)


def make_model(folder):
    torch.manual_seed(7)
    config = LlamaConfig(vocab_size=2048, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=64,
                         rms_norm_eps=1e-5, tie_word_embeddings=True, initializer_range=0.25, bos_token_id=0,
                         eos_token_id=0)
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)


def greedy_words(folder):
    """Two last-word examples that the model gets right: it is asked what it would say."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=TOKENIZER)
    found, words = [], (LONG + " when a truth is known by all and no man or woman will say why").split()
    for i in range(len(words)):
        context = " ".join(words[i:] + words[:i])[:60].rstrip()
        ids = tokenizer.encode(context)
        with torch.no_grad():
            said = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        text = tokenizer.decode([said])
        if text.startswith(" ") and text[1:].isalpha() and tokenizer.encode(context + text) == ids + [said]:
            found.append({"context": context, "word": text[1:]})
    return found[:2]


def main():
    folder = os.path.join(HERE, "tasks")
    os.makedirs(folder, exist_ok=True)
    make_model(os.path.join(HERE, "model"))
    rows = next(rows for task, rows in TASKS if task["kind"] == "last_word")
    rows += greedy_words(os.path.join(HERE, "model"))
    write_rows(os.path.join(folder, "tasks.jsonl"), [t for t, _ in TASKS])
    for task, rows in TASKS:
        write_rows(os.path.join(folder, task["task"] + ".jsonl"), rows)
    write_rows(os.path.join(folder, "shots_shots.jsonl"), [
        {"query": "7 and 1 make", "choices": ["8", "14"], "gold": 0},
        {"query": "2 and 2 make", "choices": ["5", "4"], "gold": 1}])
    with tempfile.TemporaryDirectory() as scratch:
        model = os.path.join(scratch, "model")
        shutil.copytree(os.path.join(HERE, "model"), model)
        PreTrainedTokenizerFast(tokenizer_file=TOKENIZER, eos_token="<|endoftext|>").save_pretrained(model)
        yamls = os.path.join(scratch, "yaml")
        os.makedirs(yamls)
        for task, _ in TASKS:
            with open(os.path.join(yamls, task["task"] + ".yaml"), "w", encoding="ascii") as f:
                f.write(yaml_of(task, folder))
        golden = harness_samples(model, yamls, [t["task"] for t, _ in TASKS], None, with_tokens=True)
    with open(os.path.join(HERE, "golden.json"), "w", encoding="ascii") as f:
        json.dump(golden, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
