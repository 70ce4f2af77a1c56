#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts the full file of Transformer Engine vectors down to what the tests read.

    python3 tools/golden/trim_te_vectors.py FULL.safetensors tests/golden/nvfp4_te.safetensors
    python3 tools/golden/trim_te_vectors.py --variants FULL.safetensors tests/golden/te_variants.safetensors

The first file has every tensor of the two block-scale rules; the second the variants (46.* four-over-six, row.*
row-scaled, fp8 blk* block scaling) with their sources. Dropped from both: the nan_* cases (the reference's own
behaviour, which the CUDA kernels do not share). Kept bytes are copied unchanged; the metadata stays, with source and
licence added.
"""

import json
import struct
import sys


def is_variant(group, field):
    return field.startswith(("46.", "row.") if group == "q" else "blk") and group in ("q", "fp8")


def keep(key):
    group, case, *rest = key.split("/")
    return not (group == "q" and case.startswith("nan_")) and not is_variant(group, rest[0] if rest else "")


def keep_variants(keys):
    kept = {k for k in keys if is_variant(k.split("/")[0], k.split("/")[-1])}
    return kept | {k.rsplit("/", 1)[0] + "/x" for k in kept}


def trim_manifest(text):
    manifest = json.loads(text)
    manifest["cases"] = [c for c in manifest["cases"] if keep("q/" + c["name"] + "/x")]
    for group, cases in (("q", manifest["cases"]), ("fp8", manifest["fp8"])):
        for c in cases:
            c["variants"] = [v for v in c["variants"] if keep(f"{group}/{c['name']}/{v}.")]
    return json.dumps(manifest, separators=(",", ":"))


def main():
    variants = "--variants" in sys.argv[1:]
    source, target = [a for a in sys.argv[1:] if a != "--variants"]
    with open(source, "rb") as fh:
        header = json.loads(fh.read(struct.unpack("<Q", fh.read(8))[0]))
        data = fh.read()
    metadata = header.pop("__metadata__")
    if variants:
        del metadata["manifest"]
        chosen = keep_variants(header)
    else:
        metadata["manifest"] = trim_manifest(metadata["manifest"])
        chosen = {k for k in header if keep(k)}
    metadata["source"] = "the PyTorch reference quantisers of NVIDIA Transformer Engine, run unchanged; see te"
    metadata["licence"] = "Apache-2.0 (Transformer Engine)"
    out, blob = {"__metadata__": metadata}, bytearray()
    for key in sorted(chosen):
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
