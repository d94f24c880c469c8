#!/usr/bin/env python3
"""Makes forward_<name>.gguf and forward_<name>.bin: small random models and what transformers computes with them.

The weights are drawn once, rounded to what the GGUF stores, and given to transformers' DeepseekV32ForCausalLM (float32,
eager attention, CPU); its logits and stage activations are the golden data. forward_reference.py, checked against it
here, adds the logits with fp8 and bf16 storage. The tokens are chosen so that no selection of positions or experts lies
near a tie, hence a correct program must agree on every row. Formats and the exact command: README.md beside this file.
"""

import argparse
import math
import pathlib
import struct
import time

import gguf
import numpy as np
import torch

from forward_reference import FP8_MISTAKES, MISTAKES, STAGES, Reference, rope_frequencies
from forward_transformers import StageHooks, transformers_model

ARCH = "deepseek32"
# fmt: off
BASE = dict(vocab=288, dim=64, inter=96, moe_inter=16, n_layers=2, n_dense_layers=1, n_heads=3, q_rank=32,
            kv_rank=32, nope=16, rope=16, v=16, index_heads=16, index_dim=32, index_topk=16, n_experts=8,
            n_active_experts=2, n_groups=1, n_limited_groups=1, route_scale=2.5, rope_theta=10000.0,
            rope_factor=40.0, rope_original=4096, n_tokens=120, stages=False, min_gap=1e-3,
            n_draft_layers=0, draft_own=False)
CONFIGS = {
    # Every size its own; values narrower than the rope-less keys.
    "small": dict(seed=1, q_rank=40, kv_rank=48, nope=32, v=24, index_topk=8, stages=True),
    # Eight groups of eight experts, of which four groups and eight experts count; latents of a tile and a part.
    "groups": dict(seed=2, n_layers=3, n_heads=5, kv_rank=160, rope=32, index_dim=64, n_experts=64,
                   n_active_experts=8, n_groups=8, n_limited_groups=4, moe_inter=8, n_tokens=160, stages=True),
    # The head geometry of the 671B model: latents 512 + 64, heads 128 + 64 and 128, index heads of 128.
    "wide": dict(seed=3, n_heads=1, kv_rank=512, nope=128, rope=64, v=128, index_dim=128, index_topk=64,
                 q_rank=24, n_experts=16, n_active_experts=4, n_groups=4, n_limited_groups=2, n_tokens=200),
    # Odd counts, two dense layers, and another YaRN: its ramp lies elsewhere and its scale is another.
    "odd": dict(seed=4, dim=72, n_layers=3, n_dense_layers=2, n_heads=7, q_rank=40, kv_rank=192, nope=24, v=20,
                index_heads=20, index_topk=33, n_experts=21, n_active_experts=3, rope_theta=5000.0,
                rope_factor=8.0, rope_original=256, n_tokens=220),
    # Positions past 4096; index heads that are rotated whole.
    "long": dict(seed=5, rope=32, index_topk=64, n_groups=2, n_tokens=4700, min_gap=2e-4),
}
# fmt: on

# The mistakes that a long context is there to show; the short configurations try all.
LONG_MISTAKES = ("dense", "last_positions", "index_rope_interleaved", "main_rope_half_split", "no_yarn")


def tensor_shapes(cfg):
    """name -> (shape outermost first, inverse variance of a matrix's values), in the order of the file. The variances
    keep every stage near 1: nothing is flat, and no layer drowns the others."""
    dim, heads, qk = cfg["dim"], cfg["n_heads"], cfg["nope"] + cfg["rope"]
    rank, q_rank, moe, n_exp = cfg["kv_rank"], cfg["q_rank"], cfg["moe_inter"], cfg["n_experts"]
    shapes = {
        "token_embd.weight": ((cfg["vocab"], dim), 1),
        "output_norm.weight": ((dim,), 0),
        "output.weight": ((cfg["vocab"], dim), dim),
    }
    for layer in range(n_all_layers(cfg)):
        block = {
            "attn_norm.weight": ((dim,), 0),
            "attn_q_a.weight": ((q_rank, dim), dim),
            "attn_q_a_norm.weight": ((q_rank,), 0),
            "attn_q_b.weight": ((heads * qk, q_rank), q_rank * 2),
            "attn_kv_a_mqa.weight": ((rank + cfg["rope"], dim), dim),
            "attn_kv_a_norm.weight": ((rank,), 0),
            "attn_k_b.weight": ((heads, rank, cfg["nope"]), rank),
            "attn_v_b.weight": ((heads, cfg["v"], rank), rank),
            "attn_output.weight": ((dim, heads * cfg["v"]), heads * cfg["v"]),
            "ffn_norm.weight": ((dim,), 0),
            "indexer.k_norm.weight": ((cfg["index_dim"],), 0),
            "indexer.k_norm.bias": ((cfg["index_dim"],), 0),
            "indexer.proj.weight": ((cfg["index_heads"], dim), dim),
            "indexer.attn_k.weight": ((cfg["index_dim"], dim), dim),
            "indexer.attn_q_b.weight": ((cfg["index_heads"] * cfg["index_dim"], q_rank), q_rank),
        }
        if layer < cfg["n_dense_layers"]:
            inter = cfg["inter"]
            block |= {
                "ffn_gate.weight": ((inter, dim), dim),
                "ffn_up.weight": ((inter, dim), dim),
                "ffn_down.weight": ((dim, inter), inter / 2),
            }
        else:
            block |= {
                "ffn_gate_inp.weight": ((n_exp, dim), dim),
                "exp_probs_b.bias": ((n_exp,), 0),
                "ffn_gate_exps.weight": ((n_exp, moe, dim), dim),
                "ffn_up_exps.weight": ((n_exp, moe, dim), dim),
                "ffn_down_exps.weight": ((n_exp, dim, moe), moe),
                "ffn_gate_shexp.weight": ((moe, dim), dim),
                "ffn_up_shexp.weight": ((moe, dim), dim),
                "ffn_down_shexp.weight": ((dim, moe), moe / 2),
            }
        if layer >= cfg["n_layers"]:
            block |= draft_shapes(cfg)
        shapes |= {f"blk.{layer}.{name}": value for name, value in block.items()}
    return shapes


def n_all_layers(cfg):
    return cfg["n_layers"] + cfg["n_draft_layers"]


def draft_shapes(cfg):
    """What a block for drafts has beside its layer. With draft_own nothing is the model's."""
    dim, vocab = cfg["dim"], cfg["vocab"]
    shapes = {
        "nextn.eh_proj.weight": ((dim, 2 * dim), 2 * dim),
        "nextn.enorm.weight": ((dim,), 0),
        "nextn.hnorm.weight": ((dim,), 0),
    }
    own = {
        "nextn.embed_tokens.weight": ((vocab, dim), 1),
        "nextn.shared_head_norm.weight": ((dim,), 0),
        "nextn.shared_head_head.weight": ((vocab, dim), dim),
    }
    return shapes | own if cfg["draft_own"] else shapes


def stored_as_f32(name, array):
    return array.ndim == 1 or name.endswith(("ffn_gate_inp.weight", "indexer.proj.weight"))


def draw_weights(cfg, rng):
    """name -> float32 array that the GGUF stores without loss."""
    weights = {}
    for name, (shape, precision) in tensor_shapes(cfg).items():
        if name.endswith("k_norm.bias"):
            array = rng.normal(0, 0.5, shape)
        elif name.endswith("exp_probs_b.bias"):
            array = rng.uniform(-0.3, 0.3, shape)
        elif len(shape) == 1:
            array = rng.uniform(0.6, 1.4, shape)
        else:
            array = rng.normal(0, precision**-0.5, shape)
        array = array.astype(np.float32)
        if not stored_as_f32(name, array):
            array = torch.from_numpy(array).to(torch.bfloat16).float().numpy()
        weights[name] = array
    for layer in range(n_all_layers(cfg)):
        shrink_odd_tiles(weights, f"blk.{layer}.")
    return weights


def shrink_odd_tiles(weights, at):
    """Makes every second tile of the latents 2^14 times smaller and what reads it as much larger. Nothing else changes,
    but e4m3 then needs a scale of its own for each tile (it is a float: a scale twice too large costs nothing).
    """
    for begin in range(128, len(weights[at + "attn_kv_a_norm.weight"]), 256):
        tile = slice(begin, begin + 128)
        weights[at + "attn_kv_a_norm.weight"][tile] *= 2.0**-14
        weights[at + "attn_k_b.weight"][:, tile] *= 2.0**14
        weights[at + "attn_v_b.weight"][:, :, tile] *= 2.0**14


def vocabulary(n_tokens):
    """(tokens, types, merges): specials, the 256 bytes in byte-level form, a few merged pieces, fillers."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    letter = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    merges = ["Ġ t", "h e", "Ġt he", "i n", "e r", "Ġ a", "o n", "Ġ s"]
    tokens = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
    types = [3, 3, 3]
    tokens += [letter[b] for b in range(256)] + [merge.replace(" ", "") for merge in merges]
    types += [1] * (256 + len(merges))
    specials = {"<think>": 4, "</think>": 4, "<｜User｜>": 3, "<｜Assistant｜>": 3, "｜DSML｜": 4}
    tokens += specials
    types += specials.values()
    types += [5] * (n_tokens - len(tokens))
    tokens += [f"[PAD{i}]" for i in range(len(tokens), n_tokens)]
    return tokens, types, merges


def write_gguf(path, name, cfg, weights):
    """Writes the file and checks that the package's reader gives the same weights."""
    w = gguf.GGUFWriter(str(path), ARCH)
    w.add_name(f"random weights, configuration '{name}'")
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    w.add_quantization_version(2)
    integers = {
        "block_count": n_all_layers(cfg),
        "context_length": 8192,
        "embedding_length": cfg["dim"],
        "feed_forward_length": cfg["inter"],
        "vocab_size": cfg["vocab"],
        "attention.head_count": cfg["n_heads"],
        "attention.head_count_kv": 1,
        "attention.key_length": cfg["kv_rank"] + cfg["rope"],
        "attention.value_length": cfg["kv_rank"],
        "attention.key_length_mla": cfg["nope"] + cfg["rope"],
        "attention.value_length_mla": cfg["v"],
        "attention.q_lora_rank": cfg["q_rank"],
        "attention.kv_lora_rank": cfg["kv_rank"],
        "attention.indexer.head_count": cfg["index_heads"],
        "attention.indexer.key_length": cfg["index_dim"],
        "attention.indexer.top_k": cfg["index_topk"],
        "rope.dimension_count": cfg["rope"],
        "rope.scaling.original_context_length": cfg["rope_original"],
        "leading_dense_block_count": cfg["n_dense_layers"],
        "expert_count": cfg["n_experts"],
        "expert_used_count": cfg["n_active_experts"],
        "expert_shared_count": 1,
        "expert_feed_forward_length": cfg["moe_inter"],
        "expert_group_count": cfg["n_groups"],
        "expert_group_used_count": cfg["n_limited_groups"],
        "expert_gating_func": 2,
    }
    floats = {
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": cfg["rope_theta"],
        "rope.scaling.factor": cfg["rope_factor"],
        "rope.scaling.yarn_log_multiplier": 0.1,
        "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_beta_slow": 1.0,
        "expert_weights_scale": cfg["route_scale"],
    }
    if cfg["n_draft_layers"]:
        integers["nextn_predict_layers"] = cfg["n_draft_layers"]
    for key, value in integers.items():
        w.add_uint32(f"{ARCH}.{key}", value)
    for key, value in floats.items():
        w.add_float32(f"{ARCH}.{key}", value)
    w.add_string(f"{ARCH}.rope.scaling.type", "yarn")
    w.add_bool(f"{ARCH}.expert_weights_norm", True)
    tokens, types, merges = vocabulary(cfg["vocab"])
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("deepseek-v3")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_bos_token_id(0)
    w.add_eos_token_id(1)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    for tensor, array in weights.items():
        if stored_as_f32(tensor, array):
            w.add_tensor(tensor, array)
        else:
            halves = (array.view(np.uint32) >> 16).astype(np.uint16)
            w.add_tensor(tensor, halves.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    stored = read_gguf(path)
    same = [np.array_equal(stored[t], a) and stored[t].shape == a.shape for t, a in weights.items()]
    check(all(same) and len(stored) == len(same), "GGUF round trip")


def read_gguf(path):
    """name -> float32 array, outermost dimension first: what the file says, by the gguf package's own reader."""
    return {
        t.name: gguf.dequantize(t.data, t.tensor_type).reshape([int(n) for n in t.shape[::-1]])
        for t in gguf.GGUFReader(path).tensors
    }


def write_records(path, records):
    """The format of tests/support/golden.h."""
    with open(path, "wb") as f:
        f.write(b"DSVGOLD1" + struct.pack("<I", len(records)))
        for name, array in records.items():
            array = np.ascontiguousarray(array)
            is_float = array.dtype.kind == "f"
            f.write(struct.pack("<I", len(name)) + name.encode())
            f.write(struct.pack(f"<II{array.ndim}Q", 0 if is_float else 1, array.ndim, *array.shape))
            f.write(array.astype("<f4" if is_float else "<i4").tobytes())


def choose_tokens(cfg, weights, rng):
    """Random tokens such that in every kind of storage no choice (positions, experts, groups) is nearer to a tie than
    min_gap. A position whose choice is too near gets another token; positions before it do not depend on it.
    """
    tokens = rng.integers(3, cfg["vocab"], cfg["n_tokens"])
    tokens[0] = 0
    references = [Reference(cfg, weights, cfg["n_tokens"], kv) for kv in ("f32", "fp8", "bf16")]
    n_done = n_changed = 0
    while n_done < len(tokens):
        chunk = tokens[n_done : n_done + 24]
        gap = torch.stack([r.forward(chunk)[1] for r in references]).amin(0)
        near = (gap < cfg["min_gap"]).nonzero()
        n_good = int(near[0]) if len(near) else len(chunk)
        n_done += n_good
        for r in references:
            r.truncate(n_done)
        if len(near):
            tokens[n_done] = rng.integers(3, cfg["vocab"])
            n_changed += 1
    return tokens, n_changed


def run_reference(cfg, weights, tokens, **options):
    """Logits [n_tokens, vocab] and stages of the whole sequence, computed in chunks."""
    reference = Reference(cfg, weights, len(tokens), **options)
    logits, stages = [], []
    for begin in range(0, len(tokens), 128):
        out, _, chunk_stages = reference.forward(tokens[begin : begin + 128])
        logits.append(out)
        stages.append(chunk_stages)
    return torch.cat(logits), {name: torch.cat([s[name] for s in stages]) for name in stages[0]}


def check_decode(model, tokens, logits):
    """transformers' own cache, a prefill and then token by token, against its single prefill."""
    begin = len(tokens) // 2 if len(tokens) < 1000 else len(tokens) - 40
    ids = torch.from_numpy(tokens)[None]
    out = model(ids[:, :begin], use_cache=True, logits_to_keep=1)
    worst = relative(out.logits[0, -1], logits[begin - 1])
    for i in range(begin, len(tokens)):
        out = model(ids[:, i : i + 1], past_key_values=out.past_key_values, use_cache=True)
        worst = max(worst, relative(out.logits[0, -1], logits[i]))
    return worst


def relative(a, b):
    """Largest difference relative to the largest magnitude of b."""
    return ((a - b).abs().max() / b.abs().max()).item()


def check(condition, what):
    if not condition:
        raise SystemExit(f"check failed: {what}")


def positions_kept(cfg):
    """Where logits are stored: the beginning, around index_topk, around 4096, the end."""
    n, k = cfg["n_tokens"], cfg["index_topk"]
    n_ends = (32, 64) if n > 4096 else (12, 32)
    kept = {*range(n_ends[0]), *range(k - 4, k + 12), *range(n - n_ends[1], n)}
    return sorted(kept | (set(range(4088, 4104)) if n > 4096 else set()))


def compare_stages(name, stages, reference_stages):
    # An angle of n radians is good to n * 6e-8 in float32, and the two compute the frequencies in different ways.
    tolerance = 1e-5 + 1e-7 * len(stages["final_norm"])
    for stage, expected in stages.items():
        got = reference_stages[stage]
        if expected.dtype.is_floating_point:
            check(
                relative(got, expected) < tolerance,
                f"{name}: stage {stage} differs by {relative(got, expected):.1e}",
            )
        else:
            check(torch.equal(got, expected.long()), f"{name}: stage {stage} is another choice")


def report_mistakes(cfg, weights, tokens, logits, kept):
    """How far each deliberate mistake moves the logits that are stored. Those that cannot matter here are left out."""
    moved = {}
    for mistake in MISTAKES:
        if (
            (mistake == "no_expert_groups" and cfg["n_groups"] == 1)
            or (mistake == "index_rope_on_last_dims" and cfg["rope"] == cfg["index_dim"])
            or (cfg["n_tokens"] > 4096 and mistake not in LONG_MISTAKES)
        ):
            continue
        wrong, _ = run_reference(cfg, weights, tokens, wrong=mistake)
        moved[mistake] = relative(wrong[kept], logits[kept])
        check(
            moved[mistake] > 0.01,
            f"the stored logits hardly notice the mistake {mistake}: {moved[mistake]:.1e}",
        )
    print("  mistakes move the stored logits by: " + ", ".join(f"{m} {d:.2f}" for m, d in moved.items()))


def report_fp8_mistakes(cfg, weights, tokens, logits, kept):
    """The same for mistakes in the rounding, against the fp8 logits: the median row, and how many arg-max stay."""
    moved = []
    for mistake in FP8_MISTAKES:
        if mistake == "one_latent_tile" and cfg["kv_rank"] <= 128:
            continue
        wrong, _ = run_reference(cfg, weights, tokens, kv="fp8", wrong=mistake)
        median = ((wrong[kept] - logits[kept]).abs().amax(-1) / logits[kept].abs().max()).median()
        same = (wrong.argmax(-1) == logits.argmax(-1)).float().mean()
        moved.append(f"{mistake} {median:.1e} {same:.1%}")
        check(median > 1e-3, f"the fp8 logits hardly notice the mistake {mistake}: {median:.1e}")
    print("  mistakes in the rounding move the fp8 logits by: " + ", ".join(moved))


def report_noise(cfg, weights, tokens, kept, results):
    """What rounding inside the arithmetic does: the same in float64, whose errors are nothing beside float32's."""
    for kv, logits in results.items():
        exact, _ = run_reference(cfg, weights, tokens, kv=kv, dtype=torch.float64)
        rows = (exact[kept] - logits[kept]).abs().amax(-1) / logits[kept].abs().max()
        same = (exact.argmax(-1) == logits.argmax(-1)).float().mean()
        unrounded = (logits[kept] - results["f32"][kept]).abs().amax(-1) / results["f32"][kept].abs().max()
        print(
            f"  {kv}: from f32 storage median {unrounded.median():.1e} max {unrounded.max():.1e}, arg-max equal "
            f"{(logits.argmax(-1) == results['f32'].argmax(-1)).float().mean():.2%}; float64 differs by "
            f"median {rows.median():.1e} max {rows.max():.1e}, arg-max equal {same:.2%}"
        )


def check_against_transformers(name, cfg, weights, tokens, model, logits, stages):
    """The GGUF's layouts, the reference and transformers' own decode must all give the logits of its prefill."""
    ours, our_stages = run_reference(cfg, weights, tokens)
    check(relative(ours, logits) < 1e-5, f"the reference is {relative(ours, logits):.1e} from transformers")
    compare_stages(name, stages, our_stages)
    decode = check_decode(model, tokens, logits)
    check(decode < 1e-5, f"transformers' decode differs from its prefill by {decode:.1e}")
    rope, attention = model.model.rotary_emb, model.model.layers[0].self_attn
    scale = (1 + 0.1 * math.log(cfg["rope_factor"])) ** 2 * (cfg["nope"] + cfg["rope"]) ** -0.5
    check(abs(attention.scaling / scale - 1) < 1e-12 and rope.attention_scaling == 1.0, "YaRN scale")
    frequencies = (rope.inv_freq / rope_frequencies(cfg, torch.float32) - 1).abs().max()
    print(
        f"  from transformers' prefill: reference {relative(ours, logits):.1e}, its decode {decode:.1e}, "
        f"frequencies {frequencies:.1e}; logits rms {logits.pow(2).mean().sqrt():.2f}, "
        f"largest {logits.abs().max():.2f}"
    )


def make(name, folder):
    began = time.time()
    cfg = BASE | CONFIGS[name]
    rng = np.random.Generator(np.random.PCG64(cfg["seed"]))
    weights = draw_weights(cfg, rng)
    gguf_path, bin_path = folder / f"forward_{name}.gguf", folder / f"forward_{name}.bin"
    write_gguf(gguf_path, name, cfg, weights)
    tokens, n_changed = choose_tokens(cfg, weights, rng)
    print(f"{name}: {n_changed} of {len(tokens)} tokens changed to avoid ties")

    model = transformers_model(cfg, weights)
    hooks = StageHooks(model, cfg)
    logits = model(torch.from_numpy(tokens)[None], use_cache=False).logits[0]
    stages = hooks.finish()
    check_against_transformers(name, cfg, weights, tokens, model, logits, stages)
    results = {"f32": logits}
    results |= {kv: run_reference(cfg, weights, tokens, kv=kv)[0] for kv in ("fp8", "bf16")}
    kept = positions_kept(cfg)
    report_mistakes(cfg, weights, tokens, logits, kept)
    if cfg["n_tokens"] < 4096:
        report_fp8_mistakes(cfg, weights, tokens, results["fp8"], kept)
    report_noise(cfg, weights, tokens, kept, results)

    records = {"tokens": tokens, "positions": np.array(kept), "inv_freq": model.model.rotary_emb.inv_freq}
    for kv, values in results.items():
        suffix = "" if kv == "f32" else "." + kv
        records |= {"logits" + suffix: values[kept], "argmax" + suffix: values.argmax(-1)}
    if cfg["stages"]:
        k, n = cfg["index_topk"], len(tokens)
        shown = [0, k - 1, k, k + 1, n // 2, n - 1]
        records["stage_positions"] = np.array(shown)
        order = [f"layer.{i}.{s}" for i in range(cfg["n_layers"]) for s in STAGES] + ["final_norm"]
        records |= {stage: stages[stage][shown] for stage in order if stage in stages}
    write_records(bin_path, records)
    print(
        f"  {gguf_path.stat().st_size} bytes of model, {bin_path.stat().st_size} of records, "
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
