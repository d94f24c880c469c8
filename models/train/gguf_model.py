"""Reads the demonstration model's file back into PyTorch: the weights that the engine computes with, and the vocabulary.

The other direction is export.py, whose names and sizes are used here. A block for drafts that the file may have is left
out.
"""

from pathlib import Path

import gguf
import torch
from gguf.quants import dequantize
from torch import Tensor

from export import name_in_file
from model import ModelArgs, Transformer
from vocabulary import Vocabulary


def tensor_of(tensor: gguf.ReaderTensor) -> Tensor:
    """f32, in the model's layout."""
    values = dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(values.copy()).view(*map(int, reversed(tensor.shape)))


def model_of(reader: gguf.GGUFReader) -> Transformer:
    """Its sizes are ModelArgs's defaults; raises RuntimeError where the file has others, KeyError where a tensor is missing."""
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    model = Transformer(ModelArgs())
    model.load_state_dict({name: tensor_of(tensors[name_in_file(name)]) for name in model.state_dict()})
    return model.requires_grad_(False)


def vocabulary_of(reader: gguf.GGUFReader) -> Vocabulary:
    parts = (reader.fields[f"tokenizer.ggml.{what}"].contents() for what in ("tokens", "merges", "token_type"))
    return Vocabulary(*parts)


def read(path: Path) -> tuple[gguf.GGUFReader, Transformer, Vocabulary]:
    reader = gguf.GGUFReader(path)
    return reader, model_of(reader), vocabulary_of(reader)
