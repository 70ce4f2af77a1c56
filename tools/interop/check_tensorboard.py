#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does TensorBoard read from a run's event files what metrics.jsonl and telemetry.jsonl hold?

    check_tensorboard.py RUN

Every step's loss and every evaluation must come back with its step and, as a 32-bit float, its value; a histogram of
block scales must come back with as many blocks as the log counts.
"""

import json
import struct
import sys
from collections import defaultdict

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

UNLIMITED = {"scalars": 0, "histograms": 0}


def single(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def expected(run):
    scalars, blocks = defaultdict(dict), {}
    for line in open(f"{run}/metrics.jsonl", encoding="utf-8"):
        row = json.loads(line)
        if row["type"] == "train":
            scalars["train/loss"][row["step"]] = single(row["loss"])
            scalars["train/grad_norm"][row["step"]] = single(row["grad_norm"])
        elif row["type"] == "val":
            scalars["val/loss"][row["step"]] = single(row["loss"])
    for line in open(f"{run}/telemetry.jsonl", encoding="utf-8"):
        row = json.loads(line)
        if row["type"] == "tensor":
            tag = "/".join((row["layer"], row["gemm"], row["operand"], "scale_log2"))
            blocks[tag, row["step"]] = sum(row["scale_log2"])
    return scalars, blocks


def main():
    run = sys.argv[1]
    events = EventAccumulator(f"{run}/tensorboard", size_guidance=UNLIMITED)
    events.Reload()
    scalars, blocks = expected(run)
    for tag, values in scalars.items():
        read = {e.step: single(e.value) for e in events.Scalars(tag)}
        if read != values:
            sys.exit(f"{tag}: TensorBoard reads {read}, the log has {values}")
    for (tag, step), count in blocks.items():
        read = {e.step: e.histogram_value.num for e in events.Histograms(tag)}
        if read.get(step) != count:
            sys.exit(f"{tag} step {step}: TensorBoard reads {read.get(step)} blocks, the log has {count}")
    if not scalars or not blocks:
        sys.exit(f"{run}: the logs are empty, so nothing was compared")
    print(f"{run}: TensorBoard reads {sum(map(len, scalars.values()))} scalars and {len(blocks)} histograms as logged")


if __name__ == "__main__":
    main()
