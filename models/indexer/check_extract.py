"""Checks extract.py without a network: the indexer of a small model, from DeepSeek's layout and from GGUF.

    pip install gguf numpy ml_dtypes
    python3 models/indexer/check_extract.py --model models/demo.gguf --dsv32 build/dsv32

Of the model it writes: *.safetensors in fp8, and in bf16, beside weights that nobody may read; a GGUF file with the same
indexer inside, by ml_dtypes' arithmetic; the same in parts; and one of the architecture deepseek2 without it. Extracted
tensors must have the bytes of those inside, and the file without an indexer must give the log-probabilities of the one
with it once --with names what was extracted.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np

HERE = Path(__file__).parent
SQUARE = 128
NAMES = {"attn_q_b": "wq_b", "attn_k": "wk", "proj": "weights_proj", "k_norm": "k_norm"}
Q8_0, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32


def in_fp8(values: np.ndarray):
    """[rows, columns] as codes and factors, and what they stand for, square by square."""
    rows, columns = values.shape
    codes = np.empty(values.shape, ml_dtypes.float8_e4m3fn)
    scales = np.empty((-(-rows // SQUARE), -(-columns // SQUARE)), np.float32)
    meant = np.empty(values.shape, np.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            square = np.s_[i * SQUARE : (i + 1) * SQUARE, j * SQUARE : (j + 1) * SQUARE]
            scales[i, j] = np.float32(max(np.abs(values[square]).max(), 1e-8) / 448)
            codes[square] = (values[square] / scales[i, j]).astype(ml_dtypes.float8_e4m3fn)
            meant[square] = codes[square].astype(np.float32) * scales[i, j]
    return codes, scales, meant


def write_safetensors(path: Path, tensors: dict) -> None:
    kinds = {"uint16": "BF16", "float32": "F32", "float8_e4m3fn": "F8_E4M3"}
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, data in tensors.items():
        header[name] = {
            "dtype": kinds[str(data.dtype)],
            "shape": list(data.shape),
            "data_offsets": [at, at + data.nbytes],
        }
        at += data.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for data in tensors.values():
            file.write(data.tobytes())


def write_config(folder: Path, keys: dict) -> None:
    def size(key):
        return int(keys["deepseek32." + key].contents())

    rope = size("rope.dimension_count")
    config = {
        "num_hidden_layers": size("block_count") - size("nextn_predict_layers"),
        "num_nextn_predict_layers": size("nextn_predict_layers"),
        "max_position_embeddings": size("context_length"),
        "hidden_size": size("embedding_length"),
        "intermediate_size": size("feed_forward_length"),
        "num_attention_heads": size("attention.head_count"),
        "kv_lora_rank": size("attention.kv_lora_rank"),
        "q_lora_rank": size("attention.q_lora_rank"),
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": size("attention.key_length_mla") - rope,
        "v_head_dim": size("attention.value_length_mla"),
        "index_n_heads": size("attention.indexer.head_count"),
        "index_head_dim": size("attention.indexer.key_length"),
        "index_topk": size("attention.indexer.top_k"),
        "first_k_dense_replace": size("leading_dense_block_count"),
        "n_routed_experts": size("expert_count"),
        "num_experts_per_tok": size("expert_used_count"),
        "n_shared_experts": size("expert_shared_count"),
        "moe_intermediate_size": size("expert_feed_forward_length"),
        "n_group": size("expert_group_count"),
        "topk_group": size("expert_group_used_count"),
    }
    (folder / "config.json").write_text(json.dumps(config))


def write_folder(folder: Path, model: gguf.GGUFReader, is_fp8: bool) -> dict:
    """In two files with an index, and a third without an indexer. Returns name in GGUF -> the values meant."""
    folder.mkdir()
    write_config(folder, model.fields)
    meant, files, places = {}, [{}, {}], {}
    for tensor in model.tensors:
        if ".indexer." not in tensor.name:
            continue
        _, layer, _, part, kind = tensor.name.split(".")
        name = f"model.layers.{layer}.self_attn.indexer.{NAMES[part]}.{kind}"
        file = files[int(layer) % 2]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim == 1:
            file[name], meant[tensor.name] = values, values
        elif is_fp8 and part != "proj":
            file[name], file[name + "_scale_inv"], meant[tensor.name] = in_fp8(values)
        else:
            half = values.astype(ml_dtypes.bfloat16)
            file[name], meant[tensor.name] = half.view(np.uint16), half.astype(np.float32)
    files.append({"model.embed_tokens.weight": np.zeros((4096, 4096), np.float32)})
    for i, file in enumerate(files):
        name = f"model-{i + 1:05}-of-00003.safetensors"
        write_safetensors(folder / name, file)
        places |= {tensor: name for tensor in file}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return meant


def stored(name: str, values: np.ndarray):
    kind = F32 if values.ndim == 1 or name.endswith(".proj.weight") else Q8_0
    return gguf.quants.quantize(values, kind), kind


def write_model(path: Path, model: gguf.GGUFReader, architecture: str, indexer: dict, most: int = 0) -> None:
    """The model with this indexer; where it is empty without one."""
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=most)
    for key, field in model.fields.items():
        is_of_indexer = ".indexer." in key and not indexer
        if key.startswith("GGUF.") or key == "general.architecture" or is_of_indexer:
            continue
        inner = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(key.replace("deepseek32.", architecture + "."), field.contents(), field.types[0], inner)
    for tensor in model.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if ".indexer." in tensor.name:
            if not indexer:
                continue
            data, kind = stored(tensor.name, indexer[tensor.name])
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def extract(source: Path, out: Path, *flags: str) -> int:
    """Returns how many bytes were read, in MB."""
    command = [sys.executable, HERE / "extract.py", source, "--out", out, *flags]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return int(told.strip().split(" MB read")[-2].split()[-1])


def check(what: str, is_so: bool) -> None:
    print(("passed  " if is_so else "FAILED  ") + what)
    check.failed = getattr(check, "failed", 0) + (not is_so)


def same_tensors(extracted: Path, inside: Path) -> bool:
    wanted = {t.name: t for t in gguf.GGUFReader(inside).tensors if ".indexer." in t.name}
    found = {t.name: t for t in gguf.GGUFReader(extracted).tensors}
    return wanted.keys() == found.keys() and all(
        found[n].tensor_type == t.tensor_type
        and list(found[n].shape) == list(t.shape)
        and found[n].data.tobytes() == t.data.tobytes()
        for n, t in wanted.items()
    )


def logits(dsv32: Path, *files: str | Path) -> str:
    town = (HERE.parent.parent / "prompts/town.txt").read_text()[:4000]
    flags = "--no-think --no-cache --temp 0 -n 8 -c 2048 --backend cpu --logprobs 5 --json --warm never".split()
    command = [dsv32, "run", "-q", *flags, "-m", *files, town + " Who is the baker?"]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout
    return json.dumps(json.loads(told)["choices"][0]["logprobs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/demo.gguf"))
    parser.add_argument("--dsv32", type=Path, default=Path("build/dsv32"))
    args = parser.parse_args()
    model = gguf.GGUFReader(args.model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dense = folder / "dense.gguf"
        write_model(dense, model, "deepseek2", {})
        for kind in ("fp8", "bf16"):
            source, inside, out = folder / kind, folder / f"{kind}.gguf", folder / f"{kind}-indexer.gguf"
            meant = write_folder(source, model, kind == "fp8")
            write_model(inside, model, "deepseek32", meant)
            n_read = extract(source, out)
            check(f"{kind}: the tensors have the bytes of those inside", same_tensors(out, inside))
            check(f"{kind}: {n_read} MB read of {sum(f.stat().st_size for f in source.iterdir()) >> 20}", n_read < 30)
            wanted = logits(args.dsv32, inside)
            check(f"{kind}: the same log-probabilities", logits(args.dsv32, dense, "--with", out) == wanted)
            check(f"{kind}: the dense model has others", logits(args.dsv32, dense) != wanted)
        extract(inside, folder / "copied.gguf")
        check("from GGUF: the same tensors", same_tensors(folder / "copied.gguf", inside))
        check(
            "from GGUF: the same log-probabilities",
            logits(args.dsv32, dense, "--with", folder / "copied.gguf") == wanted,
        )
        write_model(folder / "parts.gguf", model, "deepseek32", meant, most=40)
        first = next(folder.glob("parts-00001-of-*.gguf"))
        extract(first, folder / "joined.gguf")
        check("from GGUF in parts: the same tensors", same_tensors(folder / "joined.gguf", inside))
        for wrong in (dense, folder):
            told = subprocess.run(
                [sys.executable, HERE / "extract.py", wrong, "--out", folder / "no.gguf"], capture_output=True
            )
            check(f"refused: {wrong.name}", told.returncode == 1 and told.stderr.startswith(b"extract.py: "))
    sys.exit(check.failed > 0)


if __name__ == "__main__":
    main()
