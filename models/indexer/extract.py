"""Writes a model's indexer into a GGUF file of its own, for `dsv32 --with`.

    pip install gguf numpy huggingface_hub
    python3 models/indexer/extract.py deepseek-ai/DeepSeek-V3.2 --out models/DeepSeek-V3.2-indexer.gguf

The source is a folder or a repository of Hugging Face in DeepSeek's layout (*.safetensors and config.json), or a GGUF
file with an indexer (of a split one its first part, or its repository with --include). Only the headers and the
indexer are read: of V3.2's 690 GB about 1. From GGUF the tensors are copied as they are.
"""

import argparse
import fnmatch
import os
import re
import sys
from pathlib import Path

import gguf
import numpy as np

import deepseek
import gguf_parts

from files import files_of

ARCHITECTURE = "deepseek32"
PARTS = {f"{part}.weight" for part in ("attn_q_b", "attn_k", "proj", "k_norm")} | {"k_norm.bias"}
TYPES = {kind.name.lower(): kind for kind in map(gguf.GGMLQuantizationType, (0, 1, 30, 8))}  # F32, F16, BF16, Q8_0


def stored(name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType):
    """Norms and the heads' weights stay in F32, as llama.cpp's converter has them."""
    if values.ndim == 1 or name.endswith(".proj.weight"):
        kind = gguf.GGMLQuantizationType.F32
    if not np.isfinite(values).all():
        raise ValueError(f"{name} has values that are no numbers")
    return gguf.quants.quantize(np.ascontiguousarray(values), kind), kind


def check(tensors: dict, n_layers: int) -> None:
    """Every layer of the model has its five tensors; the block for drafts may have them too."""
    if not tensors:
        raise ValueError("the source has no indexer")
    layers = {int(name.split(".")[1]) for name in tensors}
    for layer in sorted(layers | set(range(n_layers))):
        missing = {part for part in PARTS if f"blk.{layer}.indexer.{part}" not in tensors}
        if missing:
            raise ValueError(f"layer {layer} lacks {', '.join(sorted(missing))}")


def add_keys(writer: gguf.GGUFWriter, keys: dict, name: str) -> None:
    writer.add_name(name)
    for key, value in keys.items():
        if isinstance(value, bool):
            writer.add_bool(f"{ARCHITECTURE}.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{ARCHITECTURE}.{key}", value)
        elif isinstance(value, str):
            writer.add_string(f"{ARCHITECTURE}.{key}", value)
        else:
            writer.add_array(f"{ARCHITECTURE}.{key}", value)


def read(files, names: list[str], kind: gguf.GGMLQuantizationType):
    """The keys, name -> a function that gives bytes and type, and the model's name if the source says it."""
    if not names:
        keys, values = deepseek.indexer_of(files)
        return keys, {n: lambda n=n: stored(n, values[n](), kind) for n in values}, None
    keys, tensors = gguf_parts.indexer_of(files, names)
    own = {key.split(".", 1)[1]: value for key, value in keys.items() if key.startswith(ARCHITECTURE + ".")}
    if not own:
        raise ValueError(f"general.architecture is {keys.get('general.architecture')}, expected {ARCHITECTURE}")
    return own, tensors, keys.get("general.name")


def parts_of(files, source: str, pattern: str | None) -> list[str]:
    """The GGUF files to read; none where there are safetensors."""
    if pattern:
        return [name for name in files.names() if name.endswith(".gguf") and fnmatch.fnmatch(name, pattern)]
    if not source.endswith(".gguf"):
        return []
    first = Path(source).name
    split = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", first)
    return [first] if not split else [f"{split[1]}-{i:05}-of-{split[2]}.gguf" for i in range(1, int(split[2]) + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a folder, OWNER/NAME on Hugging Face, or a GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="named *indexer*.gguf, dsv32 finds it beside the model")
    parser.add_argument("--include", metavar="PATTERN", help="the GGUF files of a repository, such as 'Q8_0/*'")
    parser.add_argument("--type", choices=sorted(TYPES), default="q8_0", help="of matrices from safetensors (q8_0)")
    parser.add_argument("--name", help="of the model (the source's)")
    args = parser.parse_args()

    files = files_of(args.source)
    keys, tensors, name = read(files, parts_of(files, args.source, args.include), TYPES[args.type])
    check(tensors, keys["block_count"] - keys.get("nextn_predict_layers", 0))
    written = args.out.with_name(args.out.name + ".part")
    writer = gguf.GGUFWriter(written, ARCHITECTURE)
    add_keys(writer, keys, args.name or name or files.name)
    for number, tensor in enumerate(sorted(tensors, key=lambda n: (int(n.split(".")[1]), n)), 1):
        data, kind = tensors[tensor]()
        writer.add_tensor(tensor, data, raw_dtype=kind)
        print(f"\r{number} of {len(tensors)} tensors, {files.n_read / 1e6:.0f} MB read", end="", file=sys.stderr)
    print(file=sys.stderr)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(written, args.out)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"extract.py: {error}")
