"""The block for drafts (MTP) in PyTorch: one more layer, which guesses the token after the next.

Its row at position p is made of token p and of h, the model's output after its norm, at p - 1:

    x_p = eh_proj [RMSNorm_e(embed(token p)); RMSNorm_h(h of p - 1)]

At position p it guesses token p + 1; for a further guess its own output, after its norm, takes h's place. Position 0
has no h before it and is never seen. Embedding and head are the model's and stay as they are. Only positions with
something to learn are queries; everything else is a row that they may see.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import UNSEEN, index_scores
from model import Block, ModelArgs, RMSNorm, Transformer, matrix, turn_half_split, turn_interleaved
from quantize import round_e4m3


EH_SCALE = 32.0  # of eh_proj in the file: here its values are as large as other weights, and learn as fast


def after_one(h: Tensor) -> Tensor:
    """h [n, dim] of a sequence's positions -> what stands before each: of the first, zeros."""
    return F.pad(h, (0, 0, 1, 0))[:-1]


@dataclass
class Rows:
    """What queries see of n positions, as the cache keeps it."""

    k: Tensor  # [n_heads, n, qk_head_dim]
    v: Tensor  # [n_heads, n, v_head_dim]
    index_k: Tensor  # [n, index_head_dim]


@dataclass
class Guess:
    h: Tensor  # [n, dim] before the block's norm
    out: Tensor  # [n, dim] after it
    logits: Tensor  # [n, vocab_size]
    kl: Tensor  # the indexer's loss
    load: Tensor  # [n_routed_experts]: tokens each expert had


class DraftBlock(nn.Module):
    def __init__(self, model: Transformer):
        """Begins as the model's last layer; begin_at() lets it see what that layer sees."""
        super().__init__()
        args = self.args = model.args
        self.eh_proj = matrix(args.dim, 2 * args.dim)
        self.enorm, self.hnorm = RMSNorm(args.dim, args.norm_eps), RMSNorm(args.dim, args.norm_eps)
        self.norm = RMSNorm(args.dim, args.norm_eps)
        self.layer = Block(args, is_dense=False)
        self.layer.load_state_dict(model.layers[-1].state_dict())
        self.norm.load_state_dict(model.norm.state_dict())
        self.frequencies = model.frequencies
        self.embed, self.head = model.embed.detach(), model.head.detach()  # not parameters: they are the model's

    # ---------------------------------------------------------------- its parts

    def halves(self, ids: Tensor, h: Tensor) -> Tensor:
        return torch.cat((self.enorm(F.embedding(ids, self.embed)), self.hnorm(h)), -1)

    def inputs(self, ids: Tensor, h: Tensor) -> Tensor:
        return EH_SCALE * F.linear(self.halves(ids, h), self.eh_proj)

    @torch.no_grad()
    def begin_at(self, halves: Tensor, wanted: Tensor) -> None:
        """eh_proj becomes what brings halves [n, 2 dim] nearest to `wanted` [n, dim] (ridge regression)."""
        squares = halves.T @ halves
        squares.diagonal().add_(1e-3 * len(halves))
        self.eh_proj.copy_(torch.linalg.solve(squares, halves.T @ wanted).T / EH_SCALE)

    def turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angle = positions.unsqueeze(-1) * self.frequencies
        return angle.cos(), angle.sin()

    def rows(self, x: Tensor, positions: Tensor) -> Rows:
        """x [n, dim] of `positions` [n]"""
        layer, args, (cos, sin) = self.layer, self.args, self.turns(positions)
        n = layer.attn_norm(x)
        c, k_pe = F.linear(n, layer.wkv_a).split((args.kv_lora_rank, args.qk_rope_head_dim), -1)
        c, k_pe = round_e4m3(layer.kv_norm(c)), turn_interleaved(k_pe.unsqueeze(1), cos, sin).squeeze(1)
        k_pe = k_pe + (k_pe.bfloat16().float() - k_pe).detach()
        k_nope, v = c @ layer.w_uk, c @ layer.w_uv.transpose(1, 2)
        own = layer.indexer
        index_k = F.layer_norm(F.linear(n.detach(), own.wk), (own.head_dim,), own.k_norm, own.k_norm_bias, 1e-6)
        index_k = turn_half_split(index_k.unsqueeze(1), cos, sin).squeeze(1) @ own.hadamard
        return Rows(torch.cat((k_nope, k_pe.expand(args.n_heads, -1, -1)), -1), v, round_e4m3(index_k))

    def queries(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """-> q [n_heads, n, qk_head_dim], and the indexer's [n, index_n_heads, index_head_dim] with weights."""
        layer, args, (cos, sin) = self.layer, self.args, self.turns(positions)
        n = layer.attn_norm(x)
        qr = layer.q_norm(F.linear(n, layer.wq_a))
        q_nope, q_pe = (F.linear(qr, layer.wq_b).unflatten(-1, (args.n_heads, args.qk_head_dim))
                        .split((args.qk_nope_head_dim, args.qk_rope_head_dim), -1))
        q = torch.cat((q_nope, turn_interleaved(q_pe, cos, sin)), -1).transpose(0, 1)
        index_q, _, index_w = layer.indexer(n.detach(), qr.detach(), cos, sin, True)
        return q, index_q, index_w

    # ---------------------------------------------------------------- guesses

    def guess(self, x: Tensor, positions: Tensor, last_seen: Tensor, seen: Rows, guessed: list[Rows],
              is_sparse: bool) -> Guess:
        """x [n, dim] at `positions`; each sees the rows of `seen` from 1 to `last_seen` and its own ones of `guessed`."""
        q, index_q, index_w = self.queries(x, positions)
        s = [q @ seen.k.transpose(1, 2)]
        ranks = [index_scores(index_q[None], seen.index_k[None], index_w[None])[0]]
        key = torch.arange(seen.k.shape[1], device=x.device)
        is_hidden = F.pad((key > last_seen.unsqueeze(-1)) | (key == 0), (0, len(guessed)))
        for rows in guessed:
            s.append((q * rows.k).sum(-1, keepdim=True))
            products = (index_q @ rows.index_k.unsqueeze(-1)).squeeze(-1)
            ranks.append((products.relu() * index_w).sum(-1, keepdim=True))
        s, ranks = torch.cat(s, -1), torch.cat(ranks, -1)
        if is_sparse and ranks.shape[-1] > self.args.index_topk:
            with torch.no_grad():
                best = ranks.masked_fill(is_hidden, -torch.inf).topk(self.args.index_topk, sorted=False).indices
                is_hidden = is_hidden | torch.ones_like(is_hidden).scatter(1, best, False)
        bias = is_hidden.float() * UNSEEN
        p = (s * self.args.softmax_scale + bias).softmax(-1)
        o = p[..., : len(key)] @ seen.v
        for i, rows in enumerate(guessed):
            o = o + p[..., len(key) + i].unsqueeze(-1) * rows.v
        with torch.no_grad():
            target = p.mean(0)
        kl = (target * (target.clamp_min(1e-30).log() - (ranks + bias).log_softmax(-1))).sum(-1).mean()
        h, load = self.layer.finish(x, o.transpose(0, 1), torch.ones(len(x), device=x.device), False)
        out = self.norm(h)
        return Guess(h, out, F.linear(out, self.head), kl, load)

    def guesses(self, ids: Tensor, h: Tensor, at: Tensor, n_guesses: int, is_sparse: bool = True,
                is_before_norm: bool = False) -> list[Guess]:
        """ids [n], h [n, dim] of a sequence. Of the positions `at`: the guesses of tokens at + 1, at + 2, ..., each
        with the true token before it. is_before_norm: what takes h's place is the block's output before its norm."""
        x = self.inputs(ids, after_one(h))
        seen = self.rows(x, torch.arange(len(ids), device=h.device))
        guessed: list[Rows] = []
        found = [self.guess(x[at], at, at, seen, guessed, is_sparse)]
        for nth in range(1, n_guesses):
            positions = at + nth
            x = self.inputs(ids[positions], found[-1].h if is_before_norm else found[-1].out)
            guessed.append(self.rows(x, positions))
            found.append(self.guess(x, positions, at, seen, guessed, is_sparse))
        return found
