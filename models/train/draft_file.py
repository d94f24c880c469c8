"""The block for drafts in the model's file: its tensors' names and formats, and a copy of the file with the block.

Everything else of the file stays as it is, byte by byte, but block_count and nextn_predict_layers. The block is at 4.5
bits a weight: below 4 bits guesses go wrong, says the experience with blocks that are rounded after their training.
"""

from pathlib import Path

import gguf
from torch import nn

from draft_block import EH_SCALE
from export import ARCHITECTURE, LAYER_NAMES
from quantize import Q4_0, Q4_K, Format

BLOCK_NAMES = {"eh_proj": "nextn.eh_proj.weight", "enorm.weight": "nextn.enorm.weight",
               "hnorm.weight": "nextn.hnorm.weight", "norm.weight": "nextn.shared_head_norm.weight"}
NOT_ROUNDED = ("gate", "weights_proj", "bias")


def block_format(name: str) -> Format | None:
    """Of a parameter, by its name in DraftBlock; None: f32."""
    last = name.rsplit(".", 1)[-1]
    if last in NOT_ROUNDED or "norm" in name:
        return None
    return Q4_0 if last == "w_uk" else Q4_K  # its rows of 128 values are too short for a block of 256


def name_in_file(name: str, layer: int) -> str:
    own = BLOCK_NAMES.get(name) or LAYER_NAMES[name.removeprefix("layer.")]
    return f"blk.{layer}.{own}"


def copy_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, n_layers: int) -> None:
    block_count, n_draft = f"{ARCHITECTURE}.block_count", f"{ARCHITECTURE}.nextn_predict_layers"
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in (gguf.Keys.General.ARCHITECTURE, n_draft):
            continue
        kind = field.types[0]
        of_items = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        if field.name == block_count:
            writer.add_uint32(block_count, n_layers + 1)
            writer.add_uint32(n_draft, 1)
        else:
            writer.add_key_value(field.name, field.contents(), kind, of_items)


def write(reader: gguf.GGUFReader, block: nn.Module, path: Path) -> None:
    """block: a DraftBlock. A block that the file has already is replaced."""
    n_layers = block.args.n_layers
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    copy_fields(reader, writer, n_layers)
    for tensor in reader.tensors:
        if not tensor.name.startswith(f"blk.{n_layers}."):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, weight in block.state_dict().items():
        weight = weight.float().cpu() * (EH_SCALE if name == "eh_proj" else 1)
        form = block_format(name)
        if form is None:
            writer.add_tensor(name_in_file(name, n_layers), weight.numpy())
        else:
            writer.add_tensor(name_in_file(name, n_layers), form.encode(weight).numpy(),
                              raw_dtype=gguf.GGMLQuantizationType[form.name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
