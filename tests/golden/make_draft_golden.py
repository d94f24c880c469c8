#!/usr/bin/env python3
"""Makes draft_<name>.gguf and draft_<name>.bin: small random models with a block for drafts, and what it guesses.

The block (MTP, deepseek's "nextn") makes its row of position t from the model's h_t and from token t + 1:

    x = eh_proj [RMSNorm_e(embed(token t + 1)); RMSNorm_h(h_t)]     h_t after the model's output norm
    out = RMSNorm(layer(x)),  logits = head(out)                    which guess token t + 2

and its layer sees the rows of positions 0 to t. The second guess takes (token t + 2, out), the third goes on so. The
layer, the norm and the head are computed by transformers as a model of one layer that is given x; the rest is the formula
above. The reference, checked against that, adds fp8 storage. As in make_forward_golden.py no choice lies near a tie.
"""

import argparse
import pathlib
import time

import numpy as np
import torch

from forward_reference import Reference
from forward_transformers import transformers_model
from make_forward_golden import BASE, check, draw_weights, relative, write_gguf, write_records

# fmt: off
SMALL = BASE | dict(vocab=272, dim=48, q_rank=24, index_heads=8, moe_inter=8, n_draft_layers=1, n_tokens=100)
CONFIGS = {
    # Embedding, norm and head are the model's; the model's layers are a dense and a sparse one.
    "shared": SMALL | dict(seed=11, kv_rank=48, nope=32, v=24, index_topk=12),
    # All of them are the block's own; latents of a tile and a part; groups of experts.
    "own": SMALL | dict(seed=13, n_layers=1, n_dense_layers=0, kv_rank=160, rope=32, index_topk=20,
                        n_groups=4, n_limited_groups=2, n_experts=16, draft_own=True),
}
# fmt: on
N_GUESSES = 3

MISTAKES = (
    "halves_swapped",
    "no_enorm",
    "no_hnorm",
    "h_before_norm",
    "out_before_norm",
    "same_token",
    "dense",
    "models_embedding",
    "models_norm",
    "models_head",
)


class Block(Reference):
    """The block over rows of its own, as the layer behind the model's."""

    def __init__(self, cfg, weights, capacity, **options):
        self.layer = cfg["n_layers"]
        super().__init__(cfg | {"n_layers": self.layer + 1}, weights, capacity, **options)
        # The C++ program keeps the row of h_t at position t + 1. Only rounding in storage can tell.
        self.first_position = 0 if self.kv == "f32" else 1

    def _own(self, name, models):
        name = f"blk.{self.layer}.nextn.{name}.weight"
        return self.w[name if name in self.w and self.wrong != "models_" + models else MODELS[models]]

    def input(self, tokens, h):
        embedding = self._own("embed_tokens", "embedding")[torch.as_tensor(tokens, dtype=torch.long)]
        if self.wrong != "no_enorm":
            embedding = self._rms(embedding, self._layer(self.layer, "nextn.enorm.weight"))
        if self.wrong != "no_hnorm":
            h = self._rms(h, self._layer(self.layer, "nextn.hnorm.weight"))
        halves = [h, embedding] if self.wrong == "halves_swapped" else [embedding, h]
        return torch.cat(halves, -1) @ self._layer(self.layer, "nextn.eh_proj.weight").T

    def forward(self, tokens, h):
        """Appends the rows of (tokens [n], h [n, dim]). Returns logits [n, vocab], what takes h's place, gap [n]."""
        self._begin(len(tokens))
        x = self._run_layer(self.layer, self.input(tokens, h))
        self.n = self.end
        out = self._rms(x, self._own("shared_head_norm", "norm"))
        logits = out @ self._own("shared_head_head", "head").T
        return logits, x if self.wrong == "out_before_norm" else out, self.gap


MODELS = {"embedding": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}


class Drafts:
    """A model and its block, token by token."""

    def __init__(self, cfg, weights, **options):
        self.cfg, self.block = cfg, Block(cfg, weights, cfg["n_tokens"], **options)
        self.model = Reference(cfg, weights, cfg["n_tokens"], kv=self.block.kv)

    def model_step(self, token):
        """Appends a token. Returns what the block reads of it, and the gap."""
        _, gap, stages = self.model.forward(np.array([token]))
        last = f"layer.{self.cfg['n_layers'] - 1}.h"
        return stages[last if self.block.wrong == "h_before_norm" else "final_norm"], gap

    def guess(self, tokens, t, h):
        """Logits [N_GUESSES, vocab] of the guesses behind position t, when the rows before it are there, and the gap.
        tokens[t] is the token of position t + 1, and so on. The block's row t stays.
        """
        self.block.truncate(t)
        rows, gaps = [], []
        for token in tokens:
            logits, h, gap = self.block.forward(np.array([token]), h)
            rows.append(logits)
            gaps.append(gap)
        self.block.truncate(t + 1)
        return torch.cat(rows), torch.cat(gaps).min()


def guess_tokens(tokens, t, wrong=""):
    return tokens[t : t + N_GUESSES] if wrong == "same_token" else tokens[t + 1 : t + 1 + N_GUESSES]


def choose_tokens(cfg, weights, rng):
    """Random tokens such that no choice of the model or of the block, with f32 or fp8 storage, is near a tie. Behind a
    bad position the tokens are drawn anew."""
    both = [Drafts(cfg, weights, kv=kv) for kv in ("f32", "fp8")]
    tokens, hs, n_drawn = [], [], 0
    while len(tokens) < cfg["n_tokens"]:
        tokens.append(int(rng.integers(3, cfg["vocab"])) if tokens else 0)
        n_drawn += 1
        steps = [drafts.model_step(tokens[-1]) for drafts in both]
        hs.append([h for h, _ in steps])
        gap, n_good = min(gap for _, gap in steps), len(tokens) - 1
        t = len(tokens) - 1 - N_GUESSES
        if gap >= cfg["min_gap"] and t >= 0:
            guesses = [d.guess(guess_tokens(tokens, t), t, h) for d, h in zip(both, hs[t])]
            gap, n_good = min(gap for _, gap in guesses), t + 1
        if gap < cfg["min_gap"]:
            check(n_good > 0, "the first token's choices are near a tie: the weights need another seed")
            del tokens[n_good:], hs[n_good:]
            for drafts in both:
                drafts.model.truncate(n_good)
    return np.array(tokens), n_drawn


def run_reference(cfg, weights, tokens, wrong="", **options):
    """Logits of all guesses [n_tokens - N_GUESSES, N_GUESSES, vocab]."""
    drafts = Drafts(cfg, weights, wrong=wrong, **options)
    rows = []
    for t in range(len(tokens) - N_GUESSES):
        h, _ = drafts.model_step(tokens[t])
        rows.append(drafts.guess(guess_tokens(tokens, t, wrong), t, h)[0])
    return torch.stack(rows)


def run_transformers(cfg, weights, tokens):
    """The same, where transformers computes the model's h and the block's layer, norm and head."""
    model = transformers_model(cfg, weights)
    hs = model.model(torch.from_numpy(tokens)[None], use_cache=False).last_hidden_state[0]
    formula = Block(cfg, weights, 0)
    at = f"blk.{cfg['n_layers']}."
    alone = {
        name.replace(at, "blk.0."): array
        for name, array in weights.items()
        if name.startswith(at) and ".nextn." not in name
    }
    alone |= {
        MODELS["embedding"]: weights[MODELS["embedding"]],
        MODELS["norm"]: formula._own("shared_head_norm", "norm").numpy(),
        MODELS["head"]: formula._own("shared_head_head", "head").numpy(),
    }
    block = transformers_model(cfg | dict(n_layers=1, n_dense_layers=0), alone)
    rows = []
    for t in range(len(tokens) - N_GUESSES):
        x, logits = formula.input(tokens[1 : t + 2], hs[: t + 1]), []
        for token in tokens[t + 2 : t + 1 + N_GUESSES]:
            out = block.model(inputs_embeds=x[None], use_cache=False).last_hidden_state[0, -1:]
            logits.append(block.lm_head(out))
            x = torch.cat([x, formula.input([token], out)])
        out = block.model(inputs_embeds=x[None], use_cache=False).last_hidden_state[0, -1:]
        rows.append(torch.cat(logits + [block.lm_head(out)]))
    return torch.stack(rows)


def report_mistakes(cfg, weights, tokens, logits, kept):
    """How far each deliberate mistake moves the logits that are stored."""
    moved = {}
    for mistake in MISTAKES:
        if mistake.startswith("models_") and not cfg["draft_own"]:
            continue
        wrong = run_reference(cfg, weights, tokens, wrong=mistake)[kept]
        moved[mistake] = relative(wrong, logits[kept])
        check(
            moved[mistake] > 0.01,
            f"the stored logits hardly notice the mistake {mistake}: {moved[mistake]:.1e}",
        )
    print("  mistakes move the stored logits by: " + ", ".join(f"{m} {d:.2f}" for m, d in moved.items()))


def make(name, folder):
    began = time.time()
    cfg = CONFIGS[name]
    rng = np.random.Generator(np.random.PCG64(cfg["seed"]))
    weights = draw_weights(cfg, rng)
    gguf_path, bin_path = folder / f"draft_{name}.gguf", folder / f"draft_{name}.bin"
    write_gguf(gguf_path, "draft " + name, cfg, weights)
    tokens, n_drawn = choose_tokens(cfg, weights, rng)
    print(f"{name}: {n_drawn} tokens drawn for {len(tokens)}, to avoid ties")

    results = {"": run_transformers(cfg, weights, tokens)}
    ours = run_reference(cfg, weights, tokens)
    check(relative(ours, results[""]) < 1e-5, f"the reference is {relative(ours, results['']):.1e} away")
    results[".fp8"] = run_reference(cfg, weights, tokens, kv="fp8")
    n, k = len(results[""]), cfg["index_topk"]
    kept = sorted({*range(4), *range(k - 3, k + 5), *range(n - 8, n)})
    report_mistakes(cfg, weights, tokens, results[""], kept)

    records = {"tokens": tokens, "positions": np.array(kept)}
    for suffix, logits in results.items():
        records |= {"logits" + suffix: logits[kept], "argmax" + suffix: logits.argmax(-1)}
    write_records(bin_path, records)
    rounding = (results[".fp8"] - results[""]).abs().amax(-1) / results[""].abs().max()
    print(
        f"  the reference is {relative(ours, results['']):.1e} from transformers; fp8 storage moves the median row by "
        f"{rounding.median():.1e}; {gguf_path.stat().st_size} bytes of model, {bin_path.stat().st_size} of records, "
        f"{time.time() - began:.0f} s",
        flush=True,
    )


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(CONFIGS), help="configurations (default: all)")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path(__file__).parent, help="folder to write to"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.names:
        make(name, args.out)


if __name__ == "__main__":
    main()
