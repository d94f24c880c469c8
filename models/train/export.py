"""Writes a checkpoint as a GGUF file of the architecture `deepseek32`.

    python3 models/train/export.py --checkpoint RUN --vocabulary vocabulary.json --out models/demo.gguf

Parameters have the file's layout already, so the export names them, quantises them (quantize.format_of says how) and
adds the sizes and the tokenizer.
"""

import argparse
import math
from pathlib import Path

import gguf
from torch import Tensor

import checkpoint as checkpoints
from model import ModelArgs
from quantize import format_of

ARCHITECTURE = "deepseek32"

GLOBAL_NAMES = {"embed": "token_embd.weight", "norm.weight": "output_norm.weight", "head": "output.weight"}
LAYER_NAMES = {
    "attn_norm.weight": "attn_norm.weight",
    "wq_a": "attn_q_a.weight",
    "q_norm.weight": "attn_q_a_norm.weight",
    "wq_b": "attn_q_b.weight",
    "wkv_a": "attn_kv_a_mqa.weight",
    "kv_norm.weight": "attn_kv_a_norm.weight",
    "w_uk": "attn_k_b.weight",
    "w_uv": "attn_v_b.weight",
    "wo": "attn_output.weight",
    "indexer.wq_b": "indexer.attn_q_b.weight",
    "indexer.wk": "indexer.attn_k.weight",
    "indexer.weights_proj": "indexer.proj.weight",
    "indexer.k_norm": "indexer.k_norm.weight",
    "indexer.k_norm_bias": "indexer.k_norm.bias",
    "ffn_norm.weight": "ffn_norm.weight",
    "mlp.w1": "ffn_gate.weight",
    "mlp.w2": "ffn_down.weight",
    "mlp.w3": "ffn_up.weight",
    "experts.gate": "ffn_gate_inp.weight",
    "experts.bias": "exp_probs_b.bias",
    "experts.w1": "ffn_gate_exps.weight",
    "experts.w2": "ffn_down_exps.weight",
    "experts.w3": "ffn_up_exps.weight",
    "experts.shared.w1": "ffn_gate_shexp.weight",
    "experts.shared.w2": "ffn_down_shexp.weight",
    "experts.shared.w3": "ffn_up_shexp.weight",
}


def name_in_file(name: str) -> str:
    """layers.3.wq_a -> blk.3.attn_q_a.weight. Raises KeyError for a name that the file does not know."""
    if name in GLOBAL_NAMES:
        return GLOBAL_NAMES[name]
    _, layer, rest = name.split(".", 2)
    return f"blk.{layer}.{LAYER_NAMES[rest]}"


def add_sizes(writer: gguf.GGUFWriter, args: ModelArgs) -> None:
    sizes = {
        "block_count": args.n_layers,
        "context_length": args.max_seq_len,
        "embedding_length": args.dim,
        "feed_forward_length": args.inter_dim,
        "vocab_size": args.vocab_size,
        "attention.head_count": args.n_heads,
        "attention.head_count_kv": 1,
        "attention.key_length": args.kv_lora_rank + args.qk_rope_head_dim,
        "attention.value_length": args.kv_lora_rank,
        "attention.key_length_mla": args.qk_head_dim,
        "attention.value_length_mla": args.v_head_dim,
        "attention.q_lora_rank": args.q_lora_rank,
        "attention.kv_lora_rank": args.kv_lora_rank,
        "attention.indexer.head_count": args.index_n_heads,
        "attention.indexer.key_length": args.index_head_dim,
        "attention.indexer.top_k": args.index_topk,
        "rope.dimension_count": args.qk_rope_head_dim,
        "rope.scaling.original_context_length": args.original_seq_len,
        "leading_dense_block_count": args.n_dense_layers,
        "expert_count": args.n_routed_experts,
        "expert_used_count": args.n_activated_experts,
        "expert_shared_count": args.n_shared_experts,
        "expert_feed_forward_length": args.moe_inter_dim,
        "expert_group_count": args.n_expert_groups,
        "expert_group_used_count": args.n_limited_groups,
        "expert_gating_func": 2,  # sigmoid
    }
    numbers = {
        "attention.layer_norm_rms_epsilon": args.norm_eps,
        "rope.freq_base": args.rope_theta,
        "rope.scaling.factor": args.rope_factor,
        "rope.scaling.yarn_log_multiplier": 0.1,
        "rope.scaling.yarn_beta_fast": args.beta_fast,
        "rope.scaling.yarn_beta_slow": args.beta_slow,
        "expert_weights_scale": args.route_scale,
    }
    for key, value in sizes.items():
        writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
    for key, value in numbers.items():
        writer.add_float32(f"{ARCHITECTURE}.{key}", value)
    writer.add_string(f"{ARCHITECTURE}.rope.scaling.type", "yarn")
    writer.add_bool(f"{ARCHITECTURE}.expert_weights_norm", True)


def add_tokenizer(writer: gguf.GGUFWriter, vocabulary) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("deepseek-v3")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(vocabulary.bos)
    writer.add_eos_token_id(vocabulary.eos)
    writer.add_pad_token_id(vocabulary.pad)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


def add_tensor(writer: gguf.GGUFWriter, name: str, weight: Tensor) -> None:
    form = format_of(name)
    if form is None:
        writer.add_tensor(name_in_file(name), weight.float().numpy())
        return
    rows = form.encode(weight).numpy()
    writer.add_tensor(name_in_file(name), rows, raw_dtype=gguf.GGMLQuantizationType[form.name])


def write(path: Path, args: ModelArgs, weights: dict[str, Tensor], vocabulary) -> None:
    """weights by the model's names, f32, on the CPU."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_type("model")
    writer.add_name("dsv32 demo")
    writer.add_description("A small model of DeepSeek-V3.2's architecture, trained from nothing on generated text; "
                           "it finds facts in long passages.")
    writer.add_license("mit")
    writer.add_sampling_temp(0.0)  # it has one right answer to each question
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q4_K_M))
    add_sizes(writer, args)
    add_tokenizer(writer, vocabulary)
    for name, weight in weights.items():
        add_tensor(writer, name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes a checkpoint as GGUF.")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder that train.py wrote")
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    from vocabulary import Vocabulary

    kept = checkpoints.load(options.checkpoint)
    write(options.out, kept.args, kept.weights, Vocabulary.load(options.vocabulary))
    n_weights = sum(math.prod(w.shape) for w in kept.weights.values())
    print(f"{options.out}: {options.out.stat().st_size:,} bytes, {n_weights:,} weights")


if __name__ == "__main__":
    main()
