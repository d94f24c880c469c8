"""A second implementation of the DeepSeek-V3.2 forward pass, in torch, for make_forward_golden.py.

It shares nothing with transformers' classes: it reads the arrays in their GGUF layout, computes attention in the absorbed
form, and works on a growing cache, so agreement between the two says something about both. On top it can do what
transformers cannot: keep the remembered values in fp8 or bf16, report how near a choice was to a tie, work in float64,
and make one chosen mistake (`wrong`) to show that the golden data would notice it.
"""

import math

import torch
import torch.nn.functional as F

STAGES = (
    "attn_norm",
    "qr",
    "q",
    "latent_row",
    "index_q",
    "index_k",
    "index_weights",
    "selected",
    "attention_out",
    "ffn_norm",
    "experts",
    "expert_weights",
    "ffn_out",
    "h",
)

MISTAKES = (
    "dense",
    "last_positions",
    "index_rope_interleaved",
    "index_rope_on_last_dims",
    "main_rope_half_split",
    "no_yarn",
    "yarn_magnitude",
    "no_mscale",
    "no_index_norm_bias",
    "unsigned_index_weights",
    "no_relu",
    "biased_expert_weights",
    "no_expert_bias",
    "no_expert_groups",
    "no_route_scale",
)


# Mistakes in the rounding, which only fp8 storage shows.
FP8_MISTAKES = (
    "scale_not_power_of_two",
    "unrounded_latent",
    "one_latent_tile",
    "no_hadamard",
    "unrounded_index_q",
)


def rope_frequencies(cfg, dtype, yarn=True):
    """[rope / 2] angular frequencies: YaRN with the correction range for 32 and 1 rotations."""
    n = cfg["rope"]
    theta = cfg["rope_theta"] ** (-torch.arange(0, n, 2, dtype=torch.float64) / n)
    if not yarn:
        return theta.to(dtype)

    def dim_of(rotations):
        return (
            n * math.log(cfg["rope_original"] / (rotations * 2 * math.pi)) / (2 * math.log(cfg["rope_theta"]))
        )

    low, high = max(math.floor(dim_of(32)), 0), min(math.ceil(dim_of(1)), n - 1)
    ramp = ((torch.arange(n // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    return (theta / cfg["rope_factor"] * ramp + theta * (1 - ramp)).to(dtype)


def e4m3_rounded(x, tile_size=128, power_of_two=True):
    """Each run of 128 values of the last axis through e4m3 under one power-of-two scale; the last may be shorter."""
    tiles = []
    for tile in x.split(tile_size, dim=-1):
        scale = tile.abs().amax(-1, keepdim=True).float().clamp_min(1e-4) / 448
        if power_of_two:  # up to the next one, on the bits
            bits = scale.view(torch.int32)
            scale = (((bits >> 23) + ((bits & 0x7FFFFF) != 0)) << 23).to(torch.int32).view(torch.float32)
        codes = (tile.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        tiles.append((codes.float() * scale).to(x.dtype))
    return torch.cat(tiles, dim=-1)


def bf16_rounded(x):
    return x.float().to(torch.bfloat16).to(x.dtype)


def hadamard(n, dtype):
    """The orthonormal n x n matrix in Sylvester order."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < n:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return (matrix * n**-0.5).to(dtype)


def rotate_pairs(x, cos, sin):
    """Rotates (2i, 2i+1) of the last axis; cos and sin are [n_tokens, n/2]."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)


def rotate_halves(x, cos, sin):
    """Rotates (i, i + n/2) of the last axis."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def selected_positions(chosen, k):
    """[n, k] ascending positions, -1 after the last."""
    positions = torch.where(chosen, torch.arange(chosen.shape[1]), chosen.shape[1]).sort(-1)[0][:, :k]
    positions = F.pad(positions, (0, k - positions.shape[1]), value=chosen.shape[1])
    return torch.where(positions < chosen.shape[1], positions, -1)


class Reference:
    """Weights: name -> array as in the GGUF file, outermost dimension first. kv: "f32", "fp8" or "bf16"."""

    def __init__(self, cfg, weights, capacity, kv="f32", dtype=torch.float32, wrong=""):
        self.cfg, self.kv, self.dtype, self.wrong = cfg, kv, dtype, wrong
        self.w = {name: torch.from_numpy(array).to(dtype) for name, array in weights.items()}
        self.n = 0
        self.first_position = 0  # of the first token
        zeros = lambda width: [torch.zeros(capacity, width, dtype=dtype) for _ in range(cfg["n_layers"])]
        self.latents, self.k_pes, self.index_keys = (
            zeros(cfg["kv_rank"]),
            zeros(cfg["rope"]),
            zeros(cfg["index_dim"]),
        )
        self.hadamard = hadamard(cfg["index_dim"], dtype)

    def truncate(self, n):
        self.n = n

    def forward(self, tokens):
        """Appends tokens [n]. Returns logits [n, vocab], gap [n] (distance of the nearest choice from a tie), stages."""
        self._begin(len(tokens))
        h = self.w["token_embd.weight"][torch.as_tensor(tokens, dtype=torch.long)]
        for layer in range(self.cfg["n_layers"]):
            h = self._run_layer(layer, h)
        final = self._rms(h, self.w["output_norm.weight"])
        self.stages["final_norm"] = final
        self.n = self.end
        return final @ self.w["output.weight"].T, self.gap, self.stages

    def _begin(self, n_new):
        positions = torch.arange(self.n, self.n + n_new)
        self.begin, self.end = self.n, self.n + n_new
        frequencies = rope_frequencies(self.cfg, self.dtype, self.wrong != "no_yarn")
        angles = (positions + self.first_position).to(self.dtype)[:, None] * frequencies
        magnitude = self._mscale() if self.wrong == "yarn_magnitude" else 1.0
        self.cos, self.sin = angles.cos() * magnitude, angles.sin() * magnitude
        self.visible = torch.arange(self.end)[None, :] <= positions[:, None]
        self.gap = torch.full((n_new,), math.inf)
        self.stages = {}

    def _run_layer(self, layer, h):
        h = h + self._attention(layer, self._norm(layer, "attn_norm", h))
        h = h + self._ffn(layer, self._norm(layer, "ffn_norm", h))
        return self._keep(layer, "h", h)

    def _keep(self, layer, stage, value):
        self.stages[f"layer.{layer}.{stage}"] = value.reshape(len(self.gap), -1)
        return value

    def _layer(self, layer, name):
        return self.w[f"blk.{layer}.{name}"]

    @staticmethod
    def _rms(x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight

    def _norm(self, layer, name, h):
        return self._keep(layer, name, self._rms(h, self._layer(layer, name + ".weight")))

    def _mscale(self):
        return 1 + 0.1 * math.log(self.cfg["rope_factor"])

    def _note_gap(self, gap):
        self.gap = torch.minimum(self.gap, gap.float())

    def _attention(self, layer, x):
        cfg, n = self.cfg, len(x)
        nope, rope, rank = cfg["nope"], cfg["rope"], cfg["kv_rank"]
        rotate = rotate_halves if self.wrong == "main_rope_half_split" else rotate_pairs
        qr = self._rms(
            x @ self._layer(layer, "attn_q_a.weight").T, self._layer(layer, "attn_q_a_norm.weight")
        )
        self._keep(layer, "qr", qr)
        q = (qr @ self._layer(layer, "attn_q_b.weight").T).view(n, cfg["n_heads"], nope + rope)
        q_nope, q_pe = q[..., :nope], rotate(q[..., nope:], self.cos[:, None], self.sin[:, None])
        self._keep(layer, "q", torch.cat([q_nope, q_pe], -1))
        kv = x @ self._layer(layer, "attn_kv_a_mqa.weight").T
        c = self._rms(kv[:, :rank], self._layer(layer, "attn_kv_a_norm.weight"))
        k_pe = rotate(kv[:, rank:], self.cos, self.sin)
        self._keep(layer, "latent_row", torch.cat([c, k_pe], -1))
        latents, k_pes = self._remember(layer, c, k_pe)
        selected = self._select(layer, x, qr)

        scale = (nope + rope) ** -0.5 * (1.0 if self.wrong == "no_mscale" else self._mscale() ** 2)
        q_c = torch.einsum("thn,hrn->htr", q_nope, self._layer(layer, "attn_k_b.weight"))
        scores = (q_c @ latents.T + q_pe.transpose(0, 1) @ k_pes.T) * scale
        weights = scores.masked_fill(~selected, -math.inf).softmax(-1)
        o = torch.einsum("htr,hvr->thv", weights @ latents, self._layer(layer, "attn_v_b.weight"))
        return self._keep(
            layer, "attention_out", o.reshape(n, -1) @ self._layer(layer, "attn_output.weight").T
        )

    def _e4m3(self, x):
        return e4m3_rounded(x, power_of_two=self.wrong != "scale_not_power_of_two")

    def _remember(self, layer, c, k_pe):
        if self.kv == "fp8" and self.wrong != "unrounded_latent":
            c = e4m3_rounded(c, c.shape[-1]) if self.wrong == "one_latent_tile" else self._e4m3(c)
        if self.kv == "bf16":
            c = bf16_rounded(c)
        if self.kv != "f32":
            k_pe = bf16_rounded(k_pe)
        self.latents[layer][self.begin : self.end] = c
        self.k_pes[layer][self.begin : self.end] = k_pe
        return self.latents[layer][: self.end], self.k_pes[layer][: self.end]

    def _select(self, layer, x, qr):
        """[n, end] bool: which positions each token attends to."""
        scores, k = self._index_scores(layer, x, qr), self.cfg["index_topk"]
        if self.wrong == "last_positions":
            scores = torch.arange(self.end, dtype=self.dtype).expand_as(scores)
        scores = scores.masked_fill(~self.visible, -math.inf)
        ranked, order = scores.sort(
            dim=-1, descending=True, stable=True
        )  # stable: of equals the lower position
        chosen = torch.zeros_like(self.visible).scatter(-1, order[:, :k], True) & self.visible
        if k < self.end:
            size = torch.where(self.visible, scores, 0).pow(2).sum(-1).div(self.visible.sum(-1)).sqrt()
            self._note_gap(
                torch.where(self.visible.sum(-1) > k, (ranked[:, k - 1] - ranked[:, k]) / size, math.inf)
            )
        self._keep(layer, "selected", selected_positions(chosen, k))
        return self.visible if self.wrong == "dense" else chosen

    def _index_rope(self, x, cos, sin):
        rope = self.cfg["rope"]
        rotate = rotate_pairs if self.wrong == "index_rope_interleaved" else rotate_halves
        if self.wrong == "index_rope_on_last_dims":
            return torch.cat([x[..., :-rope], rotate(x[..., -rope:], cos, sin)], -1)
        return torch.cat([rotate(x[..., :rope], cos, sin), x[..., rope:]], -1)

    def _index_scores(self, layer, x, qr):
        cfg = self.cfg
        heads, dim = cfg["index_heads"], cfg["index_dim"]
        q = (qr @ self._layer(layer, "indexer.attn_q_b.weight").T).view(len(x), heads, dim)
        q = self._keep(layer, "index_q", self._index_rope(q, self.cos[:, None], self.sin[:, None]))
        bias = self._layer(layer, "indexer.k_norm.bias") * (0 if self.wrong == "no_index_norm_bias" else 1)
        k = x @ self._layer(layer, "indexer.attn_k.weight").T
        k = F.layer_norm(k, (dim,), self._layer(layer, "indexer.k_norm.weight"), bias, 1e-6)
        k = self._keep(layer, "index_k", self._index_rope(k, self.cos, self.sin))
        w = x @ self._layer(layer, "indexer.proj.weight").T * heads**-0.5 * dim**-0.5
        self._keep(layer, "index_weights", w)
        if self.kv != "f32":
            spread = torch.eye(dim, dtype=self.dtype) if self.wrong == "no_hadamard" else self.hadamard
            q = q @ spread if self.wrong == "unrounded_index_q" else self._e4m3(q @ spread)
            k = self._e4m3(k @ spread)
        self.index_keys[layer][self.begin : self.end] = k
        products = q @ self.index_keys[layer][: self.end].T  # [n, heads, end]
        products = products if self.wrong == "no_relu" else products.relu_()
        w = w.abs() if self.wrong == "unsigned_index_weights" else w
        return (w[:, None, :] @ products).squeeze(1)

    def _ffn(self, layer, x):
        if layer < self.cfg["n_dense_layers"]:
            return self._keep(layer, "ffn_out", self._mlp(x, layer, ""))
        chosen, weights = self._route(layer, x)
        dense = torch.zeros(len(x), self.cfg["n_experts"], dtype=self.dtype).scatter(-1, chosen, weights)
        gate = torch.einsum("td,efd->tef", x, self._layer(layer, "ffn_gate_exps.weight"))
        up = torch.einsum("td,efd->tef", x, self._layer(layer, "ffn_up_exps.weight"))
        y = torch.einsum("tef,edf->ted", F.silu(gate) * up, self._layer(layer, "ffn_down_exps.weight"))
        return self._keep(
            layer, "ffn_out", torch.einsum("te,ted->td", dense, y) + self._mlp(x, layer, "_shexp")
        )

    def _mlp(self, x, layer, suffix):
        gate = F.silu(x @ self._layer(layer, f"ffn_gate{suffix}.weight").T)
        return (gate * (x @ self._layer(layer, f"ffn_up{suffix}.weight").T)) @ self._layer(
            layer, f"ffn_down{suffix}.weight"
        ).T

    def _route(self, layer, x):
        """The chosen experts of every token, ascending, and their weights: [n, n_active] each."""
        cfg = self.cfg
        p = torch.sigmoid(x @ self._layer(layer, "ffn_gate_inp.weight").T)
        s = p if self.wrong == "no_expert_bias" else p + self._layer(layer, "exp_probs_b.bias")
        if cfg["n_groups"] > 1 and self.wrong != "no_expert_groups":
            groups = s.view(len(x), cfg["n_groups"], -1).topk(2, dim=-1)[0].sum(-1)
            ranked, order = groups.sort(dim=-1, descending=True, stable=True)
            kept = torch.zeros_like(groups, dtype=torch.bool).scatter(
                -1, order[:, : cfg["n_limited_groups"]], True
            )
            if cfg["n_limited_groups"] < cfg["n_groups"]:
                self._note_gap(ranked[:, cfg["n_limited_groups"] - 1] - ranked[:, cfg["n_limited_groups"]])
            s = s.masked_fill(~kept.repeat_interleave(cfg["n_experts"] // cfg["n_groups"], dim=-1), -math.inf)
        ranked, order = s.sort(dim=-1, descending=True, stable=True)
        n_active = cfg["n_active_experts"]
        if n_active < cfg["n_experts"]:
            self._note_gap(ranked[:, n_active - 1] - ranked[:, n_active])
        chosen = self._keep(layer, "experts", order[:, :n_active].sort(-1)[0])
        weights = (s if self.wrong == "biased_expert_weights" else p).gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        weights = weights * (1.0 if self.wrong == "no_route_scale" else cfg["route_scale"])
        return chosen, self._keep(layer, "expert_weights", weights)
