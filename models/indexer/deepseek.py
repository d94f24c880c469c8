"""The indexer of a model in DeepSeek's layout: *.safetensors and config.json.

Matrices are bf16, f16, f32, or fp8 (e4m3) with a factor for each square of 128 x 128 values, `NAME_scale_inv`.
"""

import json
import re

import numpy as np

SQUARE = 128
NAME = re.compile(r"model\.layers\.(\d+)\.self_attn\.indexer\.(wq_b|wk|weights_proj|k_norm)\.(weight|bias)")
NAMES_IN_GGUF = {"wq_b": "attn_q_b", "wk": "attn_k", "weights_proj": "proj", "k_norm": "k_norm"}


def e4m3_values() -> np.ndarray:
    """[256] float32: what each code stands for; S.1111.111 is no number."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    values = np.where(codes & 128, -size, size)
    values[[0x7F, 0xFF]] = np.nan
    return values.astype(np.float32)


def with_scales(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """[rows, columns] times the factor of its square, of which those at the edges are smaller."""
    rows, columns = values.shape
    wanted = (-(-rows // SQUARE), -(-columns // SQUARE))
    if scales.shape != wanted:
        raise ValueError(f"the factors of a matrix {values.shape} have the shape {scales.shape}, expected {wanted}")
    return values * scales.repeat(SQUARE, 0)[:rows].repeat(SQUARE, 1)[:, :columns]


class Safetensors:
    """All files' tensors by name. Only their headers are read; values when they are asked for."""

    def __init__(self, files):
        self.files = files
        self.entries = {}  # name -> (file, where its data begin, entry of the header)
        for name in self._names():
            n_header = int.from_bytes(files.read(name, 0, 8), "little")
            header = json.loads(files.read(name, 8, 8 + n_header))
            for tensor, entry in header.items():
                if tensor != "__metadata__":
                    self.entries[tensor] = (name, 8 + n_header, entry)

    def _names(self) -> list[str]:
        """The files that have the indexer, by the index; without one all."""
        index = "model.safetensors.index.json"
        names = self.files.names()
        if index not in names:
            return [name for name in names if name.endswith(".safetensors")]
        weights = json.loads(self.files.read(index))["weight_map"]
        return sorted({file for tensor, file in weights.items() if ".indexer." in tensor})

    def values(self, name: str) -> np.ndarray:
        """As float32."""
        file, begin, entry = self.entries[name]
        first, end = entry["data_offsets"]
        data = self.files.read(file, begin + first, begin + end)
        kind, shape = entry["dtype"], entry["shape"]
        if kind == "BF16":
            return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
        if kind in ("F32", "F16"):
            return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[kind]).astype(np.float32).reshape(shape)
        if kind == "F8_E4M3":
            codes = np.frombuffer(data, np.uint8).reshape(shape)
            return with_scales(e4m3_values()[codes], self.values(name + "_scale_inv"))
        raise ValueError(f"{name} has the type {kind}, expected F8_E4M3, BF16, F16 or F32")


def keys_of(config: dict) -> dict:
    """The sizes that tell whether a model's file and the indexer belong together."""
    rope, n_drafts = config["qk_rope_head_dim"], config.get("num_nextn_predict_layers", 0)
    return {
        "block_count": config["num_hidden_layers"] + n_drafts,
        "nextn_predict_layers": n_drafts,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": 1,
        "attention.key_length": config["kv_lora_rank"] + rope,
        "attention.value_length": config["kv_lora_rank"],
        "attention.key_length_mla": config["qk_nope_head_dim"] + rope,
        "attention.value_length_mla": config["v_head_dim"],
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
        "rope.dimension_count": rope,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
    }


def indexer_of(files):
    """The keys, without the architecture before them, and name in GGUF -> a function that gives float32 values."""
    keys = keys_of(json.loads(files.read("config.json")))
    tensors, source = {}, Safetensors(files)
    for name in source.entries:
        if match := NAME.fullmatch(name):
            layer, part, kind = match.groups()
            tensors[f"blk.{layer}.indexer.{NAMES_IN_GGUF[part]}.{kind}"] = lambda name=name: source.values(name)
    return keys, tensors
