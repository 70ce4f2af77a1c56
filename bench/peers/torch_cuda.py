#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training step of nibble's speed rows in PyTorch with torch.compile, on one GPU: what a user would write
instead. BF16 compute, FP32 master weights, fused AdamW, clipping at 1. Run it in the same run as

    nibble bench --backend cuda --no-quantizers --no-products --model llama-124m --batch 32 --sequence 1024

    python3 bench/peers/torch_cuda.py --model llama-124m [--steps 30]
"""
import argparse
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

MODELS = {
    "llama-124m": dict(width=768, blocks=12, heads=12, kv=12, hidden=3072, vocab=50304, length=1024, batch=32),
    "llama-1.2b": dict(width=2048, blocks=20, heads=16, kv=8, hidden=8192, vocab=50304, length=4096, batch=4),
}


class Cast(nn.Module):
    """A linear with an FP32 weight that multiplies in BF16."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * 0.02)

    def forward(self, x):
        return F.linear(x, self.weight.to(torch.bfloat16))


def turned(x, cos, sin):
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, low * sin + high * cos], -1)


class Block(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.heads, self.kv, self.d = m["heads"], m["kv"], m["width"] // m["heads"]
        self.norm_a, self.norm_m = nn.RMSNorm(m["width"]), nn.RMSNorm(m["width"])
        self.qkv = Cast(m["width"], (self.heads + 2 * self.kv) * self.d)
        self.out = Cast(m["width"], m["width"])
        self.up, self.down = Cast(m["width"], m["hidden"]), Cast(m["hidden"], m["width"])

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        parts = self.qkv(self.norm_a(x).to(torch.bfloat16)).view(batch, length, -1, self.d).transpose(1, 2)
        q, k, v = parts.split([self.heads, self.kv, self.kv], 1)
        mixed = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True,
                                               enable_gqa=self.heads != self.kv)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.relu(self.up(self.norm_m(x).to(torch.bfloat16))).square())


class Model(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.embedding = nn.Embedding(m["vocab"], m["width"])
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(m) for _ in range(m["blocks"]))
        self.norm, self.head = nn.RMSNorm(m["width"]), Cast(m["width"], m["vocab"])
        half = m["width"] // m["heads"] // 2
        angle = torch.arange(m["length"])[:, None] * 10000.0 ** (-torch.arange(half) / half)[None]
        self.register_buffer("cos", angle.cos().to(torch.bfloat16))
        self.register_buffer("sin", angle.sin().to(torch.bfloat16))

    def forward(self, ids, targets):
        x = self.embedding(ids).to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x).to(torch.bfloat16))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="llama-124m")
    parser.add_argument("--steps", type=int, default=30)
    o = parser.parse_args()
    m = MODELS[o.model]
    torch.manual_seed(0)
    model = Model(m).cuda()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    times = []
    for step in range(10 + o.steps):
        tokens = torch.randint(m["vocab"], (m["batch"], m["length"] + 1), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        compiled(tokens[:, :-1], tokens[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step >= 10:
            times.append(time.perf_counter() - start)
    median = statistics.median(times)
    print(f"PyTorch {torch.__version__} compile, {o.model} bf16: {median * 1e3:.2f} ms, "
          f"{m['batch'] * m['length'] / median:,.0f} tokens/s, {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, "
          f"{torch.cuda.get_device_name()}")


if __name__ == "__main__":
    main()
