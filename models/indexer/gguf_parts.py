"""The indexer of a model in GGUF, in one file or in parts. Headers are read from their beginning, piece by piece, and of
the tensors only the indexer's.
"""

import struct

import gguf
import numpy as np

PIECE = 1 << 22  # bytes
FORMATS = ["B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d"]  # by the number of a value's type
STRING, ARRAY = 8, 9


class Cursor:
    """Goes through a file from its beginning."""

    def __init__(self, files, name: str):
        self.files, self.name, self.at, self.data = files, name, 0, b""

    def take(self, n: int) -> bytes:
        while len(self.data) < self.at + n:
            more = self.files.read(self.name, len(self.data), len(self.data) + max(PIECE, n))
            if not more:
                raise ValueError(f"{self.name} ends in its header")
            self.data += more
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, form: str):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind: int):
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner = self.number("I")
            return [self.value(inner) for _ in range(self.number("Q"))]
        return self.number(FORMATS[kind])


class Part:
    """One file: its keys, and of each tensor shape (rows last), type, and where its bytes are."""

    def __init__(self, files, name: str):
        cursor = Cursor(files, name)
        if cursor.take(4) != b"GGUF" or cursor.number("I") != 3:
            raise ValueError(f"{name} is no GGUF file of version 3")
        n_tensors, n_keys = cursor.number("Q"), cursor.number("Q")
        self.keys, self.tensors = {}, {}
        for _ in range(n_keys):
            key = cursor.text()
            self.keys[key] = cursor.value(cursor.number("I"))
        for _ in range(n_tensors):
            tensor = cursor.text()
            shape = [cursor.number("Q") for _ in range(cursor.number("I"))]
            kind, offset = gguf.GGMLQuantizationType(cursor.number("I")), cursor.number("Q")
            self.tensors[tensor] = (shape, kind, offset)
        alignment = self.keys.get("general.alignment", 32)
        self.begin = -(-cursor.at // alignment) * alignment


def bytes_of(files, name: str, part: Part, tensor: str):
    """[rows, bytes of a row], and the type."""
    shape, kind, offset = part.tensors[tensor]
    n_values, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    row = shape[0] // n_values * n_bytes
    n_rows = int(np.prod(shape[1:], dtype=np.int64))
    first = part.begin + offset
    data = np.frombuffer(files.read(name, first, first + n_rows * row), np.uint8)
    return (data.reshape(n_rows, row) if len(shape) > 1 else data), kind


def indexer_of(files, names: list[str]):
    """The keys (all of them), and name -> a function that gives bytes and type."""
    keys, tensors = {}, {}
    for name in names:
        part = Part(files, name)
        keys = {**part.keys, **keys}
        for tensor in part.tensors:
            if ".indexer." in tensor:
                tensors[tensor] = lambda name=name, part=part, tensor=tensor: bytes_of(files, name, part, tensor)
    return keys, tensors
