#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a user would write instead: nibble's BF16 training step in PyTorch on the CPU. Prints one JSON line.

The model is described by the same fields as a [model] section, in JSON (a file or the text itself); with `pattern` it is a
hybrid (M Mamba-2, * attention, - MLP), without it Llama-like with `blocks` blocks of attention and MLP. Weights are FP32
masters cast to BF16 for the products, activations BF16, loss in FP32, AdamW and clipping included: the same work a step.
The scan is the chunked form in plain PyTorch, FP32 inside, as no fused kernel exists for the CPU.
"""

import argparse
import json
import math
import os
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def linear(x, w):
    """BF16 product of BF16 activations with an FP32 master weight."""
    return F.linear(x, w.to(torch.bfloat16))


class RmsNorm(nn.Module):
    def __init__(self, width, groups=1, eps=1e-5):
        super().__init__()
        self.weight, self.groups, self.eps = nn.Parameter(torch.ones(width)), groups, eps

    def forward(self, x):
        shape = x.shape
        y = x.float().view(*shape[:-1], self.groups, -1)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y.view(shape) * self.weight).to(torch.bfloat16)


def matrix(rows, columns, sigma=0.02):
    return nn.Parameter(torch.randn(rows, columns) * sigma)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.g, self.p = c["heads"], c["kv_heads"], c["head_dim"]
        self.qkv = matrix((self.h + 2 * self.g) * self.p, c["hidden"])
        self.out = matrix(c["hidden"], self.h * self.p)
        self.angles = None
        if c.get("rope_theta"):
            f = c["rope_theta"] ** (-torch.arange(0, self.p, 2).float() / self.p)
            angle = torch.arange(c["sequence"])[:, None] * f[None]
            self.angles = angle.cos(), angle.sin()

    def turn(self, x):
        if self.angles is None:
            return x
        cos, sin = self.angles
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(torch.bfloat16)

    def forward(self, x):
        batch, s, _ = x.shape
        q, k, v = linear(x, self.qkv).split([self.h * self.p, self.g * self.p, self.g * self.p], -1)
        q, k, v = (t.view(batch, s, -1, self.p).transpose(1, 2) for t in (q, k, v))
        q, k = self.turn(q), self.turn(k)
        if self.h != self.g:
            k, v = (t.repeat_interleave(self.h // self.g, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return linear(y.transpose(1, 2).reshape(batch, s, -1), self.out)


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gated = c.get("activation", "swiglu") == "swiglu"
        self.up = matrix(c["ffn"] * (2 if self.gated else 1), c["hidden"])
        self.down = matrix(c["hidden"], c["ffn"])

    def forward(self, x):
        u = linear(x, self.up)
        if self.gated:
            gate, up = u.chunk(2, -1)
            return linear(F.silu(gate) * up, self.down)
        return linear(F.relu(u).square(), self.down)


def chunked_scan(x, dt, a, b, c, chunk):
    """y[t] = C[t] S[t], S[t] = exp(dt[t] a) S[t-1] + dt[t] x[t] B[t]^T, in chunks (SSD).

    x [B, S, H, P], dt [B, S, H], a [H], b and c [B, S, G, N]; FP32; S a multiple of the chunk. Returns y as x.
    """
    batch, s, heads, p = x.shape
    groups, n = b.shape[2:]
    k, ratio = s // chunk, heads // groups
    x = (x * dt[..., None]).view(batch, k, chunk, groups, ratio, p)
    b, c = b.view(batch, k, chunk, groups, n), c.view(batch, k, chunk, groups, n)
    log = (dt * a).view(batch, k, chunk, heads).permute(0, 1, 3, 2).view(batch, k, groups, ratio, chunk)
    running = log.cumsum(-1)
    # Decay from s to t. A difference of sums inside one chunk is accurate enough, and twice as fast as masked sums.
    lower = torch.ones(chunk, chunk, dtype=torch.bool).tril()
    decay = (running[..., :, None] - running[..., None, :]).masked_fill(~lower, -math.inf).exp()
    x, b, c = x.permute(0, 1, 3, 4, 2, 5), b.permute(0, 1, 3, 2, 4), c.permute(0, 1, 3, 2, 4)  # token axis next to last
    # Inside a chunk: a masked product, like attention without softmax.
    y = ((c @ b.transpose(-1, -2))[:, :, :, None] * decay) @ x
    # What a chunk adds to the state, and the states before each chunk.
    added = (x * (running[..., -1:] - running).exp()[..., None]).transpose(-1, -2) @ b[:, :, :, None]
    whole = running[..., -1].exp()
    state, before = torch.zeros_like(added[:, 0]), []
    for i in range(k):
        before.append(state)
        state = state * whole[:, i, ..., None, None] + added[:, i]
    states = torch.stack(before, 1)
    y = y + (c[:, :, :, None] @ states.transpose(-1, -2)) * running.exp()[..., None]
    y = y.permute(0, 1, 4, 2, 3, 5)
    return y.reshape(batch, s, heads, p)


class Mamba2(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.p, self.g, self.n = c["mamba_heads"], c["mamba_head_dim"], c["mamba_groups"], c["mamba_state"]
        self.chunk = c.get("mamba_chunk", 128)
        inner, taps = self.h * self.p, c.get("mamba_conv", 4)
        self.channels = inner + 2 * self.g * self.n
        self.into = matrix(inner + self.channels + self.h, c["hidden"])
        self.conv = nn.Parameter(torch.empty(self.channels, 1, taps).uniform_(-0.5, 0.5))
        self.conv_bias = nn.Parameter(torch.zeros(self.channels))
        dt = torch.exp(torch.rand(self.h) * (math.log(0.1) - math.log(1e-3)) + math.log(1e-3))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.a_log = nn.Parameter(torch.empty(self.h).uniform_(1, 16).log())
        self.skip = nn.Parameter(torch.ones(self.h))
        self.norm = RmsNorm(inner, groups=self.g)
        self.out = matrix(c["hidden"], inner)

    def forward(self, u):
        batch, s, _ = u.shape
        inner = self.h * self.p
        z, xbc, dt = linear(u, self.into).split([inner, self.channels, self.h], -1)
        taps = self.conv.shape[-1]
        xbc = F.pad(xbc.float().transpose(1, 2), (taps - 1, 0))
        xbc = F.silu(F.conv1d(xbc, self.conv, self.conv_bias, groups=self.channels)).transpose(1, 2)
        x, b, c = xbc.to(torch.bfloat16).float().split([inner, self.g * self.n, self.g * self.n], -1)
        x = x.reshape(batch, s, self.h, self.p)
        dt = F.softplus(dt.float() + self.dt_bias)
        y = chunked_scan(x, dt, -self.a_log.exp(), b.reshape(batch, s, self.g, self.n),
                         c.reshape(batch, s, self.g, self.n), min(self.chunk, s))
        y = (y + x * self.skip[:, None]).reshape(batch, s, inner).to(torch.bfloat16)
        return linear(self.norm(y.float() * F.silu(z.float())), self.out)


MIXERS = {"M": Mamba2, "*": Attention, "-": Mlp}


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        kinds = c.get("pattern") or "*-" * c["blocks"]
        self.embedding = nn.Embedding(c["vocab_size"], c["hidden"])
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.norms = nn.ModuleList(RmsNorm(c["hidden"]) for _ in kinds)
        self.mixers = nn.ModuleList(MIXERS[k](c) for k in kinds)
        self.norm = RmsNorm(c["hidden"])
        self.head = matrix(c["vocab_size"], c["hidden"])

    def forward(self, ids, targets):
        x = self.embedding(ids).to(torch.bfloat16)
        for norm, mixer in zip(self.norms, self.mixers):
            x = x + mixer(norm(x))
        logits = linear(self.norm(x), self.head).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def check_scan():
    """The chunked scan against the recurrence, so that the peer is a correct one."""
    torch.manual_seed(0)
    batch, s, h, p, g, n = 2, 32, 4, 8, 2, 16
    x, dt, a = torch.randn(batch, s, h, p), torch.rand(batch, s, h), -torch.rand(h) * 4
    b, c = torch.randn(batch, s, g, n), torch.randn(batch, s, g, n)
    state, ys = torch.zeros(batch, h, p, n), []
    for t in range(s):
        bt, ct = (v[:, t].repeat_interleave(h // g, 1) for v in (b, c))
        state = state * (dt[:, t] * a).exp()[..., None, None] + torch.einsum("bh,bhp,bhn->bhpn", dt[:, t], x[:, t], bt)
        ys.append(torch.einsum("bhpn,bhn->bhp", state, ct))
    want, got = torch.stack(ys, 1), chunked_scan(x, dt, a, b, c, 8)
    error = (want - got).norm() / want.norm()
    assert error < 1e-5, f"chunked scan differs from the recurrence by {error:.2e}"


def measure(c, args):
    torch.manual_seed(1)
    model = Decoder(c)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    forward = torch.compile(model) if args.compile else model
    ids = torch.randint(0, c["vocab_size"], (args.batch, args.sequence + 1))
    seconds, loss = [], None
    for _ in range(args.warmup + args.steps):
        start = time.perf_counter()
        loss = forward(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    kept = sorted(seconds[args.warmup:])
    median, tokens = kept[len(kept) // 2], args.batch * args.sequence
    return {"peer": "pytorch", "version": torch.__version__, "compiled": args.compile, "threads": torch.get_num_threads(),
            "parameters": sum(p.numel() for p in model.parameters()), "tokens_a_step": tokens,
            "ms_a_step": round(median * 1e3, 2), "tokens_per_s": round(tokens / median), "loss": round(loss.item(), 4)}


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("model", help="JSON text or file with the fields of [model]")
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--sequence", type=int, default=256)
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--warmup", type=int, default=3)
    ap.add_argument("--steps", type=int, default=15)
    ap.add_argument("--compile", action="store_true", help="torch.compile (needs a C++ compiler)")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    text = args.model
    if os.path.isfile(text):
        with open(text, encoding="utf-8") as f:
            text = f.read()
    c = json.loads(text)
    c["sequence"] = args.sequence
    if "M" in c.get("pattern", ""):
        check_scan()
        if args.sequence % min(c.get("mamba_chunk", 128), args.sequence):
            sys.exit("torch_cpu: the sequence must be a multiple of mamba_chunk")
    print(json.dumps(measure(c, args)))


if __name__ == "__main__":
    main()
