"""Sparse MLA in the absorbed form, with its gradient: every query attends to a list of positions of its own.

    s(h, j) = q[h] . kv[position j] * scale      o[h] = sum over j of softmax(s(h))(j) * kv[position j][:rank]

One program of the kernels computes one query: its heads (padded to 16) are the rows of the products, so a gathered row
is read once for all heads. The backward pass recomputes the scores from their logarithm of the sum and adds what a
query has to say about a row to it with atomic additions in f32. Without a GPU the same is computed by gathering.
"""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of PyTorch for the CPU alone
    triton = None

LOG2_E = 1.4426950408889634
N_CHUNK = 256  # queries gathered at a time without a GPU

if triton:

    @triton.jit
    def forward_kernel(q, kv, positions, o, lse, scale_log2, n_heads: tl.constexpr, rank: tl.constexpr,
                       rope_dim: tl.constexpr, topk: tl.constexpr, n_rows: tl.constexpr):
        t = tl.program_id(0).to(tl.int64)
        width: tl.constexpr = rank + rope_dim
        heads, c, r, j = tl.arange(0, 16), tl.arange(0, rank), tl.arange(0, rope_dim), tl.arange(0, n_rows)
        is_head = heads < n_heads
        q_row = q + (t * n_heads + heads)[:, None] * width
        q_c = tl.load(q_row + c[None, :], mask=is_head[:, None], other=0.0)
        q_pe = tl.load(q_row + rank + r[None, :], mask=is_head[:, None], other=0.0)
        largest = tl.full([16], -1e30, tl.float32)
        total = tl.zeros([16], tl.float32)
        sums = tl.zeros([16, rank], tl.float32)
        for first in range(0, topk, n_rows):
            at = tl.load(positions + t * topk + first + j)
            is_there = at >= 0
            row = kv + tl.where(is_there, at, 0).to(tl.int64)[:, None] * width
            k_c, k_pe = tl.load(row + c[None, :]), tl.load(row + rank + r[None, :])
            s = tl.dot(q_c, tl.trans(k_c)) + tl.dot(q_pe, tl.trans(k_pe))
            s = tl.where(is_there[None, :], s * scale_log2, -1e30)
            larger = tl.maximum(largest, tl.max(s, 1))
            p = tl.where(is_there[None, :], tl.exp2(s - larger[:, None]), 0.0)
            shrink = tl.exp2(largest - larger)
            total = total * shrink + tl.sum(p, 1)
            sums = sums * shrink[:, None] + tl.dot(p.to(k_c.dtype), k_c)
            largest = larger
        o_row = o + (t * n_heads + heads)[:, None] * rank
        tl.store(o_row + c[None, :], (sums / total[:, None]).to(o.dtype.element_ty), mask=is_head[:, None])
        tl.store(lse + t * n_heads + heads, largest + tl.log2(total), mask=is_head)

    @triton.jit
    def backward_kernel(q, kv, positions, lse, delta, d_o, d_q, d_kv, scale, scale_log2, n_heads: tl.constexpr,
                        rank: tl.constexpr, rope_dim: tl.constexpr, topk: tl.constexpr, n_rows: tl.constexpr):
        t = tl.program_id(0).to(tl.int64)
        width: tl.constexpr = rank + rope_dim
        heads, c, r, j = tl.arange(0, 16), tl.arange(0, rank), tl.arange(0, rope_dim), tl.arange(0, n_rows)
        is_head = heads < n_heads
        q_at = (t * n_heads + heads)[:, None] * width
        q_c = tl.load(q + q_at + c[None, :], mask=is_head[:, None], other=0.0)
        q_pe = tl.load(q + q_at + rank + r[None, :], mask=is_head[:, None], other=0.0)
        d_o_c = tl.load(d_o + (t * n_heads + heads)[:, None] * rank + c[None, :], mask=is_head[:, None], other=0.0)
        log_sum = tl.load(lse + t * n_heads + heads, mask=is_head, other=0.0)
        correction = tl.load(delta + t * n_heads + heads, mask=is_head, other=0.0)
        d_q_c = tl.zeros([16, rank], tl.float32)
        d_q_pe = tl.zeros([16, rope_dim], tl.float32)
        for first in range(0, topk, n_rows):
            at = tl.load(positions + t * topk + first + j)
            is_there = at >= 0
            row = tl.where(is_there, at, 0).to(tl.int64)[:, None] * width
            k_c, k_pe = tl.load(kv + row + c[None, :]), tl.load(kv + row + rank + r[None, :])
            s = tl.dot(q_c, tl.trans(k_c)) + tl.dot(q_pe, tl.trans(k_pe))
            is_used = is_there[None, :] & is_head[:, None]
            p = tl.where(is_used, tl.exp2(s * scale_log2 - log_sum[:, None]), 0.0)
            d_p = tl.dot(d_o_c, tl.trans(k_c))
            d_s = (p * (d_p - correction[:, None]) * scale).to(k_c.dtype)
            d_q_c += tl.dot(d_s, k_c)
            d_q_pe += tl.dot(d_s, k_pe)
            d_s_t = tl.trans(d_s)
            d_k_c = tl.dot(d_s_t, q_c) + tl.dot(tl.trans(p.to(k_c.dtype)), d_o_c)
            d_k_pe = tl.dot(d_s_t, q_pe)
            tl.atomic_add(d_kv + row + c[None, :], d_k_c, mask=is_there[:, None], sem="relaxed")
            tl.atomic_add(d_kv + row + rank + r[None, :], d_k_pe, mask=is_there[:, None], sem="relaxed")
        tl.store(d_q + q_at + c[None, :], d_q_c.to(d_q.dtype.element_ty), mask=is_head[:, None])
        tl.store(d_q + q_at + rank + r[None, :], d_q_pe.to(d_q.dtype.element_ty), mask=is_head[:, None])


class SparseMla(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, kv: Tensor, positions: Tensor, rank: int, scale: float) -> Tensor:
        q, kv = q.contiguous(), kv.contiguous()
        n, n_heads, width = q.shape
        o = q.new_empty(n, n_heads, rank)
        lse = q.new_empty(n, n_heads, dtype=torch.float32)
        sizes = {"n_heads": n_heads, "rank": rank, "rope_dim": width - rank, "topk": positions.shape[1]}
        forward_kernel[(n,)](q, kv, positions, o, lse, scale * LOG2_E, **sizes, n_rows=64, num_warps=4, num_stages=2)
        ctx.save_for_backward(q, kv, positions, o, lse)
        ctx.sizes, ctx.scale = sizes, scale
        return o

    @staticmethod
    def backward(ctx, d_o: Tensor):
        q, kv, positions, o, lse = ctx.saved_tensors
        d_o = d_o.contiguous()
        delta = (d_o.float() * o.float()).sum(-1)
        d_q, d_kv = torch.empty_like(q), torch.zeros_like(kv, dtype=torch.float32)
        backward_kernel[(len(q),)](q, kv, positions, lse, delta, d_o, d_q, d_kv, ctx.scale, ctx.scale * LOG2_E,
                                   **ctx.sizes, n_rows=32, num_warps=8, num_stages=1)
        return d_q, d_kv.to(kv.dtype), None, None, None


def gathered_scores(q: Tensor, rows: Tensor, positions: Tensor, scale: float) -> Tensor:
    """q [n, n_heads, width], rows [n, topk, width] gathered at positions [n, topk] -> [n, n_heads, topk] f32, -inf
    where a position is -1."""
    scores = (q @ rows.transpose(1, 2)).float() * scale
    return scores.masked_fill(positions.unsqueeze(1) < 0, -torch.inf)


def attend_by_gathering(q: Tensor, kv: Tensor, positions: Tensor, rank: int, scale: float) -> Tensor:
    outputs = []
    for q_part, at in zip(q.split(N_CHUNK), positions.split(N_CHUNK)):
        rows = kv[at.clamp_min(0)]
        p = gathered_scores(q_part, rows, at, scale).softmax(-1)
        outputs.append(p.to(rows.dtype) @ rows[..., :rank])
    return torch.cat(outputs)


def sparse_mla(q: Tensor, kv: Tensor, positions: Tensor, rank: int, scale: float) -> Tensor:
    """q [n, n_heads, width], kv [n, width] (rank latent values, then the rotated ones), positions [n, topk] int32 rows
    of kv, -1 for none, at least one per query -> o [n, n_heads, rank]."""
    if q.is_cuda:
        return SparseMla.apply(q, kv, positions, rank, scale)
    return attend_by_gathering(q, kv, positions, rank, scale)
