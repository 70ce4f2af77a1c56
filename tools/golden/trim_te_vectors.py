#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts the full file of Transformer Engine vectors down to what the tests read.

    python3 tools/golden/trim_te_vectors.py FULL.safetensors tests/golden/nvfp4_te.safetensors

Dropped: variants this project does not build (46.* four-over-six, row.* row-scaled, fp8 blk* block scaling) and the
nan_* cases (the reference's own behaviour, which the CUDA kernels do not share). Every tensor of the two block-scale
rules stays. Kept bytes are copied unchanged; the metadata stays, with source and licence added.
"""

import json
import struct
import sys


def keep(key):
    group, case, *rest = key.split("/")
    field = rest[0] if rest else ""
    if group == "q":
        if case.startswith("nan_"):
            return False
        return not field.startswith(("46.", "row."))
    if group == "fp8":
        return not field.startswith("blk")
    return True


def trim_manifest(text):
    manifest = json.loads(text)
    manifest["cases"] = [c for c in manifest["cases"] if keep("q/" + c["name"] + "/x")]
    for group, cases in (("q", manifest["cases"]), ("fp8", manifest["fp8"])):
        for c in cases:
            c["variants"] = [v for v in c["variants"] if keep(f"{group}/{c['name']}/{v}.")]
    return json.dumps(manifest, separators=(",", ":"))


def main():
    source, target = sys.argv[1:]
    with open(source, "rb") as fh:
        header = json.loads(fh.read(struct.unpack("<Q", fh.read(8))[0]))
        data = fh.read()
    metadata = header.pop("__metadata__")
    metadata["manifest"] = trim_manifest(metadata["manifest"])
    metadata["source"] = "the PyTorch reference quantisers of NVIDIA Transformer Engine, run unchanged; see te"
    metadata["licence"] = "Apache-2.0 (Transformer Engine)"
    out, blob = {"__metadata__": metadata}, bytearray()
    for key in sorted(k for k in header if keep(k)):
        begin, end = header[key]["data_offsets"]
        out[key] = dict(header[key], data_offsets=[len(blob), len(blob) + end - begin])
        blob += data[begin:end]
    text = json.dumps(out, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as fh:
        fh.write(struct.pack("<Q", len(text)) + text + blob)
    print(f"{target}: {len(out) - 1} tensors, {(8 + len(text) + len(blob)) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
