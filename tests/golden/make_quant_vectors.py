#!/usr/bin/env python3
"""Makes quant_vectors.bin, and with --tables prints the grids of src/gguf/quant_tables.h.

Needs numpy and the package `gguf` (made with gguf 0.19). For each type: four rows of random codes under chosen f16
scales (ordinary, negative, zero, denormal, large), a row of all-zero bytes' codes and one of all-one bits, with the values
that gguf.quants.dequantize gives.

File, little-endian: per type  u32 type, u32 n_bytes, u32 n_values, bytes, f32 values.  Ends with u32 0xffffffff.
"""
import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES

# Offsets of the f16 fields in a block. IQ1_M's scale is scattered, see below; FP4 blocks have scales of eight bits.
SCALES = {
    Type.Q4_0: [0], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0], Type.Q2_K: [80, 82], Type.Q3_K: [108],
    Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.IQ2_XXS: [0], Type.IQ3_XXS: [0], Type.IQ4_NL: [0],
    Type.IQ4_XS: [0], Type.IQ2_XS: [0], Type.IQ2_S: [0], Type.IQ3_S: [0], Type.IQ1_S: [0], Type.IQ1_M: [], Type.MXFP4: [],
    Type.NVFP4: [], Type.Q4_1: [0, 2],
}
EIGHT_BIT_SCALES = {Type.MXFP4: 1, Type.NVFP4: 4}  # how many lead a block
FLOATS = {Type.F32: np.float32, Type.F16: np.float16, Type.BF16: np.uint16}


def scale_values(rng, n):
    """n f16 bit patterns: mostly of ordinary size and either sign, and every special case among them."""
    ordinary = (rng.normal(size=n) * 0.02).astype(np.float16).view(np.uint16)
    special = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x5640, 0xd640], np.uint16)
    mixed = np.where(np.arange(n) % 3 == 1, special[np.arange(n) // 3 % len(special)], ordinary)
    return mixed.astype(np.uint16)


def block_rows(rng, type_, n_blocks):
    block_bytes = GGML_QUANT_SIZES[type_][1]
    blocks = rng.integers(0, 256, size=(n_blocks, block_bytes), dtype=np.uint8)
    blocks[-1] = 0
    blocks[-2] = 0xFF
    for offset in SCALES[type_]:
        bits = scale_values(rng, n_blocks)
        rng.shuffle(bits)
        bits[-2:] = 0x2E66, 0xAE66  # 0.1 and -0.1
        blocks[:, offset:offset + 2] = bits.view(np.uint8).reshape(-1, 2)
    if type_ == Type.IQ1_M:  # its nibbles, lowest first, are the upper ones of four u16 from byte 48 on
        bits = scale_values(rng, n_blocks)
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 0x0F | ((bits >> (4 * i) & 15) << 4).astype(np.uint8)
    if type_ in EIGHT_BIT_SCALES:  # every scale there is
        n_scales = EIGHT_BIT_SCALES[type_]
        blocks[:256 // n_scales, :n_scales] = rng.permutation(np.arange(256, dtype=np.uint8)).reshape(-1, n_scales)
    return blocks.reshape(-1)


def float_row(rng, type_):
    values = np.concatenate([rng.normal(size=24), [0.0, -0.0, 6e-8, -3e-5, 65504.0, -65504.0, 1 / 3]]).astype(np.float32)
    if type_ == Type.BF16:
        return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    return values.astype(FLOATS[type_]).view(np.uint8)


def write_vectors(path):
    rng = np.random.default_rng(20250929)
    with open(path, "wb") as out:
        for type_ in [*FLOATS, *SCALES]:
            small = GGML_QUANT_SIZES[type_][0] == 32
            n_blocks = 256 // EIGHT_BIT_SCALES[type_] + 2 if type_ in EIGHT_BIT_SCALES else 32 if small else 8
            raw = float_row(rng, type_) if type_ in FLOATS else block_rows(rng, type_, n_blocks)
            with np.errstate(over="ignore"):  # the largest scale of MXFP4
                values = quants.dequantize(raw.reshape(1, -1), type_).reshape(-1).astype("<f4")
            out.write(struct.pack("<3I", type_, raw.size, values.size) + raw.tobytes() + values.tobytes())
        out.write(struct.pack("<I", 0xFFFFFFFF))


def print_grid(name, type_):
    """The grid as a set of numbers, bit i of word w for 64 w + i: a point's digits are indices into grid_map."""
    cls = quants._type_traits[type_]
    cls.init_grid()
    n_points, n_digits = cls.grid_shape
    base = len(cls.grid_map)
    digits = np.searchsorted(cls.grid_map, cls.grid.reshape(cls.grid_shape))
    points = (digits * base ** np.arange(n_digits)).sum(axis=1)
    assert (np.diff(points) > 0).all()  # the order of the numbers is that of the points
    is_point = np.zeros(-(-base**n_digits // 64) * 64, np.uint8)
    is_point[points] = 1
    words = np.packbits(is_point, bitorder="little").view("<u8")
    print(f"inline constexpr auto {name} = grid_codes<{n_points}, {n_digits}>({{")
    for i in range(0, len(words), 5):
        print("    " + " ".join(f"{word:#018x}," for word in words[i:i + 5]))
    print("});")


if __name__ == "__main__":
    if sys.argv[1:] == ["--tables"]:
        print_grid("kIq1Codes", Type.IQ1_S)
        print_grid("kIq2xxsCodes", Type.IQ2_XXS)
        print_grid("kIq2xsCodes", Type.IQ2_XS)
        print_grid("kIq2sCodes", Type.IQ2_S)
        print_grid("kIq3xxsCodes", Type.IQ3_XXS)
        print_grid("kIq3sCodes", Type.IQ3_S)
    else:
        write_vectors(Path(__file__).with_name("quant_vectors.bin"))
