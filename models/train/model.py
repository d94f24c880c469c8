"""DeepSeek-V3.2's architecture in PyTorch, for training small models of it.

Owns the forward pass: MLA, the lightning indexer with its selection and its loss, the expert layers, YaRN. Names
are those of the paper's `model.py`; tensors have the layout of the GGUF file, so that the export only renames.

The one idea: everything that works on single tokens takes a flat list of them, [n_tokens, ...], and is compiled once
for all sequence lengths; only attention (attention.py) sees the rows of a batch. Dense attention takes the keys and
values of every head, sparse attention the latents themselves (the absorbed form): the same numbers.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import Attention
from quantize import round_e4m3


@dataclass(frozen=True)
class ModelArgs:
    """The sizes, by the names of the paper's `model.py`; the defaults are those of the demonstration model."""

    vocab_size: int = 4096
    dim: int = 256
    inter_dim: int = 768
    moe_inter_dim: int = 256
    n_layers: int = 5
    n_dense_layers: int = 1
    n_heads: int = 8
    n_routed_experts: int = 8
    n_shared_experts: int = 1
    n_activated_experts: int = 2
    n_expert_groups: int = 4
    n_limited_groups: int = 2
    route_scale: float = 2.5
    q_lora_rank: int = 256
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    index_n_heads: int = 8
    index_head_dim: int = 128
    index_topk: int = 256
    rope_theta: float = 10000.0
    rope_factor: float = 8.0
    original_seq_len: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    norm_eps: float = 1e-6

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def max_seq_len(self) -> int:
        return int(self.original_seq_len * self.rope_factor)

    @property
    def softmax_scale(self) -> float:
        mscale = 1.0 + 0.1 * math.log(self.rope_factor)
        return mscale * mscale / math.sqrt(self.qk_head_dim)


@dataclass(frozen=True)
class Pass:
    """How a forward pass attends."""

    attention: str = "dense"  # or "sparse": each query sees the index_topk positions that the indexer scores highest
    kl_queries: int = 0  # queries of each row, in each layer, on which the indexer's loss is taken; 0: no such loss
    round_cache: bool = False  # latents, index keys and index queries as the engine stores them (e4m3)
    train_main: bool = True  # False: the indexer's loss is the only one with a gradient


# ---------------------------------------------------------------- positions


def rope_frequencies(args: ModelArgs) -> Tensor:
    """YaRN's angle per position of each of the qk_rope_head_dim / 2 pairs, f32."""
    dim, theta = args.qk_rope_head_dim, args.rope_theta

    def pair_of(n_turns: float) -> float:  # the pair that turns so often over the original context
        return dim * math.log(args.original_seq_len / (n_turns * 2 * math.pi)) / (2 * math.log(theta))

    base = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if args.rope_factor == 1.0:
        return base
    low = max(math.floor(pair_of(args.beta_fast)), 0)
    high = min(math.ceil(pair_of(args.beta_slow)), dim - 1)
    ramp = ((torch.arange(dim // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
    return base / args.rope_factor * ramp + base * (1 - ramp)


def turn_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Main attention: pair i is (2i, 2i + 1). x [n_tokens, n_heads, dim]; cos, sin [n_tokens, dim / 2]."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


def turn_half_split(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Indexer: pair i is (i, i + dim / 2), over the first 2 * cos.shape[-1] values. x [n_tokens, n_heads, head_dim]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos, rest), -1)


def hadamard_matrix(width: int) -> Tensor:
    """Orthonormal, Sylvester order, [width, width]; width is a power of two."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < width:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / math.sqrt(width)


# ---------------------------------------------------------------- parts of a layer


def matrix(*shape: int, gain: float = 1.0) -> nn.Parameter:
    """A weight [..., n_out, n_in] whose outputs are `gain` times as large as its inputs."""
    return nn.Parameter(torch.randn(*shape) * gain / math.sqrt(shape[-1]))


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Indexer(nn.Module):
    """Scores every earlier position for a query; learns only from its own loss, so its inputs come detached."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.n_heads, self.head_dim = args.index_n_heads, args.index_head_dim
        self.wq_b = matrix(args.index_n_heads * args.index_head_dim, args.q_lora_rank)
        self.wk = matrix(args.index_head_dim, args.dim)
        self.weights_proj = matrix(args.index_n_heads, args.dim)
        self.k_norm = nn.Parameter(torch.ones(args.index_head_dim))
        self.k_norm_bias = nn.Parameter(torch.zeros(args.index_head_dim))
        self.register_buffer("hadamard", hadamard_matrix(args.index_head_dim), persistent=False)

    def forward(self, x: Tensor, qr: Tensor, cos: Tensor, sin: Tensor, is_rounded: bool):
        """x [n, dim], qr [n, q_lora_rank] -> q [n, index_n_heads, head_dim], k [n, head_dim], w [n, index_n_heads].

        w is f32 and carries the factor index_n_heads^-0.5 * index_head_dim^-0.5.
        """
        q = F.linear(qr, self.wq_b).unflatten(-1, (self.n_heads, self.head_dim)).float()
        k = F.layer_norm(F.linear(x, self.wk).float(), (self.head_dim,), self.k_norm, self.k_norm_bias, 1e-6)
        with torch.autocast(x.device.type, enabled=False):
            w = F.linear(x.float(), self.weights_proj) * (self.n_heads * self.head_dim) ** -0.5
        q = turn_half_split(q, cos, sin) @ self.hadamard
        k = turn_half_split(k.unsqueeze(1), cos, sin).squeeze(1) @ self.hadamard
        if is_rounded:
            q, k = round_e4m3(q), round_e4m3(k)
        return q, k, w


class Mlp(nn.Module):
    def __init__(self, dim: int, inter_dim: int, out_gain: float):
        super().__init__()
        self.w1, self.w3 = matrix(inter_dim, dim), matrix(inter_dim, dim)
        self.w2 = matrix(dim, inter_dim, gain=out_gain)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, self.w1).float()) * F.linear(x, self.w3), self.w2)


def is_among_best(scores: Tensor, n_best: int) -> Tensor:
    """Which of the last dimension's few values are among its n_best largest; the lower index wins a tie."""
    mine, other = scores.unsqueeze(-1), scores.unsqueeze(-2)
    index = torch.arange(scores.shape[-1], device=scores.device)
    is_before = (other > mine) | ((other == mine) & (index.unsqueeze(0) < index.unsqueeze(1)))
    return is_before.sum(-1) < n_best


class Experts(nn.Module):
    """Routed experts and a shared one. At these sizes every expert computes every token: the routed ones are one
    wide MLP whose hidden values are multiplied by the token's gate weights, most of which are zero."""

    def __init__(self, args: ModelArgs, out_gain: float):
        super().__init__()
        self.args = args
        n, dim, inter_dim = args.n_routed_experts, args.dim, args.moe_inter_dim
        self.gate = matrix(n, dim)
        self.register_buffer("bias", torch.zeros(n))  # only for the choice; moved by balance(), not by gradients
        self.w1, self.w3 = matrix(n, inter_dim, dim), matrix(n, inter_dim, dim)
        self.w2 = matrix(n, dim, inter_dim, gain=out_gain)
        self.shared = Mlp(dim, args.n_shared_experts * inter_dim, out_gain)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [n, dim] -> weights [n, n_routed_experts], zero for the others, and whether each expert was chosen."""
        args = self.args
        with torch.autocast(x.device.type, enabled=False):
            p = F.linear(x.float(), self.gate).sigmoid()
        s = p.detach() + self.bias
        groups = s.unflatten(-1, (args.n_expert_groups, -1))
        group_score = groups.topk(2, -1).values.sum(-1) if groups.shape[-1] > 2 else groups.sum(-1)
        is_open = is_among_best(group_score, args.n_limited_groups)
        s = torch.where(is_open.unsqueeze(-1), groups, -torch.inf).flatten(-2)
        is_chosen = is_among_best(s, args.n_activated_experts)
        p = p * is_chosen
        return p / p.sum(-1, keepdim=True) * args.route_scale, is_chosen

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [n, dim] -> y [n, dim], is_chosen [n, n_routed_experts]."""
        weights, is_chosen = self.route(x)
        gate, up = F.linear(x, self.w1.flatten(0, 1)), F.linear(x, self.w3.flatten(0, 1))
        hidden = (F.silu(gate.float()) * up).unflatten(-1, (self.args.n_routed_experts, -1)) * weights.unsqueeze(-1)
        y = F.linear(hidden.flatten(-2), self.w2.transpose(0, 1).flatten(1))
        return y + self.shared(x), is_chosen

    @torch.no_grad()
    def balance(self, load: Tensor, rate: float) -> None:
        """load [n_routed_experts]: tokens of a step each expert had. Busy ones become less attractive."""
        self.bias += rate * torch.sign(load.mean() - load)


class Block(nn.Module):
    """One layer. project() and finish() work on tokens and are compiled; attention lies between them."""

    def __init__(self, args: ModelArgs, is_dense: bool):
        super().__init__()
        self.args = args
        heads, rank, out_gain = args.n_heads, args.kv_lora_rank, 1 / math.sqrt(2 * args.n_layers)
        self.attn_norm, self.ffn_norm = RMSNorm(args.dim, args.norm_eps), RMSNorm(args.dim, args.norm_eps)
        self.q_norm, self.kv_norm = RMSNorm(args.q_lora_rank, args.norm_eps), RMSNorm(rank, args.norm_eps)
        self.wq_a = matrix(args.q_lora_rank, args.dim)
        self.wq_b = matrix(heads * args.qk_head_dim, args.q_lora_rank)
        self.wkv_a = matrix(rank + args.qk_rope_head_dim, args.dim)
        # As in the file [n_heads, kv_lora_rank, qk_nope_head_dim]: its input is the query, but its size is that of a
        # projection of the latent.
        self.w_uk = nn.Parameter(torch.randn(heads, rank, args.qk_nope_head_dim) / math.sqrt(rank))
        self.w_uv = matrix(heads, args.v_head_dim, rank)
        self.wo = matrix(args.dim, heads * args.v_head_dim, gain=out_gain)
        self.indexer = Indexer(args)
        self.mlp = Mlp(args.dim, args.inter_dim, out_gain) if is_dense else None
        self.experts = None if is_dense else Experts(args, out_gain)

    def latents(self, h: Tensor, cos: Tensor, sin: Tensor, is_rounded: bool):
        """-> x [n, dim], qr [n, q_lora_rank], q_nope and q_pe [n, n_heads, .], c [n, kv_lora_rank], k_pe [n, 1, .]."""
        args = self.args
        x = self.attn_norm(h)
        qr = self.q_norm(F.linear(x, self.wq_a))
        q = F.linear(qr, self.wq_b).unflatten(-1, (args.n_heads, args.qk_head_dim))
        q_nope, q_pe = q.split((args.qk_nope_head_dim, args.qk_rope_head_dim), -1)
        c, k_pe = F.linear(x, self.wkv_a).split((args.kv_lora_rank, args.qk_rope_head_dim), -1)
        c, q_pe, k_pe = self.kv_norm(c), turn_interleaved(q_pe, cos, sin), turn_interleaved(k_pe.unsqueeze(1), cos, sin)
        if is_rounded:
            c, k_pe = round_e4m3(c), k_pe.bfloat16().to(k_pe.dtype)
        return x, qr, q_nope, q_pe, c.to(q.dtype), k_pe

    def project_dense(self, h: Tensor, cos: Tensor, sin: Tensor, is_rounded: bool):
        """h [n, dim] -> q, k, v [n, n_heads, qk_head_dim], and for the indexer x [n, dim], qr [n, q_lora_rank].

        v is padded with zeros to the width of q and k, which the fused kernels ask for.
        """
        args = self.args
        x, qr, q_nope, q_pe, c, k_pe = self.latents(h, cos, sin, is_rounded)
        k_nope = F.linear(c, self.w_uk.transpose(1, 2).flatten(0, 1)).unflatten(-1, (args.n_heads, -1))
        v = F.linear(c, self.w_uv.flatten(0, 1)).unflatten(-1, (args.n_heads, -1))
        q, k = torch.cat((q_nope, q_pe), -1), torch.cat((k_nope, k_pe.expand(-1, args.n_heads, -1)), -1)
        return q, k, F.pad(v, (0, args.qk_head_dim - args.v_head_dim)), x.detach(), qr.detach()

    def project_sparse(self, h: Tensor, cos: Tensor, sin: Tensor, is_rounded: bool):
        """h [n, dim] -> q [n, n_heads, kv_lora_rank + qk_rope_head_dim], kv likewise without heads, x, qr as above."""
        x, qr, q_nope, q_pe, c, k_pe = self.latents(h, cos, sin, is_rounded)
        q_c = (q_nope.transpose(0, 1) @ self.w_uk.to(q_nope.dtype).transpose(1, 2)).transpose(0, 1)
        return torch.cat((q_c, q_pe), -1), torch.cat((c, k_pe.squeeze(1)), -1), x.detach(), qr.detach()

    def values_of(self, o_c: Tensor) -> Tensor:
        """Sums of latents [n, n_heads, kv_lora_rank] -> of values [n, n_heads, v_head_dim]."""
        return (o_c.transpose(0, 1) @ self.w_uv.to(o_c.dtype).transpose(1, 2)).transpose(0, 1)

    def finish(self, h: Tensor, o: Tensor, is_real: Tensor, is_sparse: bool) -> tuple[Tensor, Tensor]:
        """h [n, dim]; o [n, n_heads, .], values (padded) from dense attention and latents from sparse; is_real [n] f32,
        0 for padding -> h, load [n_routed_experts]: tokens each expert had."""
        o = self.values_of(o) if is_sparse else o[..., : self.args.v_head_dim]
        h = h + F.linear(o.flatten(1), self.wo)
        x = self.ffn_norm(h)
        if self.mlp is not None:
            return h + self.mlp(x), is_real.new_zeros(0)
        y, is_chosen = self.experts(x)
        return h + y, (is_chosen * is_real.unsqueeze(-1)).sum(0)


# ---------------------------------------------------------------- the model


@dataclass(frozen=True)
class Place:
    """Of a batch's tokens: their rotations [n_tokens, qk_rope_head_dim / 2], rows and columns, and the columns of the
    queries that the indexer's loss takes."""

    cos: Tensor
    sin: Tensor
    shape: tuple[int, int]
    kl_begin: int
    kl_end: int


@dataclass
class Hidden:
    h: Tensor  # [n_tokens, dim] f32, before the last norm
    kl: Tensor  # the indexer's loss, mean over the layers
    loads: list[Tensor]  # of each expert layer [n_routed_experts]: tokens each expert had


class Transformer(nn.Module):
    def __init__(self, args: ModelArgs, is_compiled: bool = False):
        super().__init__()
        self.args = args
        self.embed = nn.Parameter(torch.randn(args.vocab_size, args.dim) * 0.5)
        self.layers = nn.ModuleList(Block(args, i < args.n_dense_layers) for i in range(args.n_layers))
        self.norm = RMSNorm(args.dim, args.norm_eps)
        self.head = matrix(args.vocab_size, args.dim, gain=0.5)
        self.register_buffer("frequencies", rope_frequencies(args), persistent=False)
        self.attention = Attention(args, is_compiled)
        wrap = (lambda f: torch.compile(f, dynamic=False, fullgraph=True)) if is_compiled else (lambda f: f)
        self.project_dense, self.project_sparse = wrap(Block.project_dense), wrap(Block.project_sparse)
        self.index, self.finish, self.score = wrap(Indexer.forward), wrap(Block.finish), wrap(self.score_tokens)

    def forward(self, ids: Tensor, is_real: Tensor, how: Pass, kl_begin: int = 0) -> Hidden:
        """ids [batch, seq_len], is_real likewise f32. kl_begin: first of the queries that the indexer's loss takes."""
        batch, seq_len = ids.shape
        angle = torch.arange(seq_len, device=ids.device).unsqueeze(-1) * self.frequencies
        place = Place(angle.cos().repeat(batch, 1), angle.sin().repeat(batch, 1), (batch, seq_len),
                      kl_begin, min(kl_begin + how.kl_queries, seq_len))
        run_layer = self.run_dense if how.attention == "dense" else self.run_sparse
        kl, loads = torch.zeros((), device=ids.device), []
        with self.main_gradient(how):
            h = F.embedding(ids.flatten(), self.embed)
        for layer in self.layers:
            h, load, layer_kl = run_layer(layer, h, is_real.flatten(), how, place)
            kl = kl + layer_kl / self.args.n_layers
            if layer.experts is not None:
                loads.append(load)
        return Hidden(h, kl, loads)

    @staticmethod
    def main_gradient(how: Pass) -> torch.set_grad_enabled:
        return torch.set_grad_enabled(how.train_main and torch.is_grad_enabled())

    def indexes(self, layer: Block, x: Tensor, qr: Tensor, how: Pass, place: Place) -> tuple:
        parts = self.index(layer.indexer, x, qr, place.cos, place.sin, how.round_cache)
        return tuple(part.unflatten(0, place.shape) for part in parts)

    def run_dense(self, layer: Block, h: Tensor, is_real: Tensor, how: Pass, place: Place):
        """-> h, load, the indexer's loss"""
        with self.main_gradient(how):
            q, k, v, x, qr = self.project_dense(layer, h, place.cos, place.sin, how.round_cache)
            q, k, v = (t.unflatten(0, place.shape).transpose(1, 2) for t in (q, k, v))
            o = self.attention.dense(q, k, v).transpose(1, 2).flatten(0, 1)
            h, load = self.finish(layer, h, o, is_real, False)
        if not how.kl_queries:
            return h, load, 0.0
        index = self.indexes(layer, x, qr, how, place)
        return h, load, self.attention.dense_loss(q.detach(), k.detach(), index, place.kl_begin, place.kl_end)

    def run_sparse(self, layer: Block, h: Tensor, is_real: Tensor, how: Pass, place: Place):
        """-> h, load, the indexer's loss"""
        with self.main_gradient(how):
            q, kv, x, qr = self.project_sparse(layer, h, place.cos, place.sin, how.round_cache)
        index = self.indexes(layer, x, qr, how, place)
        positions = self.attention.select(index)
        with self.main_gradient(how):
            o_c = self.attention.sparse(q, kv, positions)
            h, load = self.finish(layer, h, o_c, is_real, True)
        if not how.kl_queries:
            return h, load, 0.0
        loss = self.attention.sparse_loss(q.detach(), kv.detach(), index, positions, place.kl_begin, place.kl_end)
        return h, load, loss

    def logits(self, h: Tensor) -> Tensor:
        """h [n, dim] -> [n, vocab_size]"""
        return F.linear(self.norm(h), self.head)

    def score_tokens(self, h: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """h [n, dim], targets [n] -> the loss of each target, f32 [n], and whether it was the likeliest, [n]."""
        logits = self.logits(h).float()
        return F.cross_entropy(logits, targets, reduction="none"), logits.argmax(-1) == targets
