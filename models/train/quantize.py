"""The number formats of the file and of the cache, in PyTorch: rounding to e4m3, and the block formats of GGUF.

A format has one function that finds the codes of all blocks of a tensor at once; from the codes come both the values
that the engine will read (for training with the rounding in mind) and the bytes (for the export). Block layouts are
those of src/gguf/quant.h; scales are chosen from the extremes of a block.
"""

from dataclasses import dataclass
from typing import Callable

import torch
from torch import Tensor

TILE_VALUES = 128  # values that share a scale in the cache


def tile_scale(amax: Tensor) -> Tensor:
    """2^ceil(log2(max(amax, 1e-4) / 448)), on the bits as the engine does it."""
    bits = (amax.clamp_min(1e-4) / 448.0).view(torch.int32)
    return ((bits + 0x7FFFFF) & 0x7F800000).view(torch.float32)


def round_e4m3(x: Tensor) -> Tensor:
    """x [..., n] as the cache keeps it, a power-of-two scale per tile of 128; the gradient passes unchanged."""
    with torch.no_grad():
        tiles = x.detach().float().unflatten(-1, (-1, min(TILE_VALUES, x.shape[-1])))
        scale = tile_scale(tiles.abs().amax(-1, keepdim=True))
        rounded = ((tiles / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2).to(x.dtype)
    return rounded + (x - x.detach())


# ---------------------------------------------------------------- block formats


def half(x: Tensor) -> Tensor:
    """x rounded to f16, as f32."""
    return x.half().float()


def divide(x: Tensor, by: Tensor) -> Tensor:
    """x / by, and 0 where by is 0."""
    return torch.where(by == 0, torch.zeros_like(x), x / torch.where(by == 0, torch.ones_like(by), by))


@dataclass
class Codes:
    """Of n blocks. The fields that a format has not are None."""

    q: Tensor  # [n, groups, group_values] integers as f32
    d: Tensor  # [n, 1, 1] f16 as f32
    scale: Tensor | None = None  # [n, groups, 1] integers as f32
    dmin: Tensor | None = None  # as d
    min: Tensor | None = None  # as scale

    def values(self) -> Tensor:
        """[n, block_values] f32, computed as the engine does."""
        d = self.d if self.scale is None else self.d * self.scale
        values = d * self.q
        if self.min is not None:
            values = values - self.dmin * self.min
        return values.flatten(1)


def codes_q8_0(x: Tensor) -> Codes:
    """x [n, 32]"""
    x = x.unsqueeze(1)
    d = half(x.abs().amax(-1, keepdim=True) / 127)
    return Codes(divide(x, d).round().clamp(-127, 127), d)


def codes_q4_0(x: Tensor) -> Codes:
    """x [n, 32]. The value farthest from zero gets the code -8."""
    x = x.unsqueeze(1)
    d = half(x.gather(-1, x.abs().argmax(-1, keepdim=True)) / -8)
    return Codes(divide(x, d).round().clamp(-8, 7), d)


def codes_q6_k(x: Tensor) -> Codes:
    """x [n, 256], 16 groups of 16. The value farthest from zero gets the code -32, the one with the longer reach."""
    x = x.unflatten(-1, (16, 16))
    farthest = x.gather(-1, x.abs().argmax(-1, keepdim=True))
    wanted = farthest / -32
    d = half(wanted.abs().amax(1, keepdim=True) / 127)
    scale = divide(wanted, d).round().clamp(-128, 127)
    return Codes(divide(x, d * scale).round().clamp(-32, 31), d, scale)


def codes_with_min(x: Tensor, most: int) -> Codes:
    """x [n, 256], 8 groups of 32: value = d scale q - dmin min, q up to `most` (15 in Q4_K, 31 in Q5_K)."""
    x = x.unflatten(-1, (8, 32))
    low = x.amin(-1, keepdim=True).clamp_max(0)
    wanted = (x.amax(-1, keepdim=True) - low).clamp_min(0) / most
    d, dmin = half(wanted.amax(1, keepdim=True) / 63), half(-low.amin(1, keepdim=True) / 63)
    scale, minimum = divide(wanted, d).round().clamp(0, 63), divide(-low, dmin).round().clamp(0, 63)
    q = divide(x + dmin * minimum, d * scale).round().clamp(0, most)
    return Codes(q, d, scale, dmin, minimum)


def bytes_of_half(x: Tensor) -> Tensor:
    """[n, 1, 1] -> [n, 2] uint8"""
    return x.flatten().half().unsqueeze(-1).view(torch.uint8)


def pack_q8_0(codes: Codes) -> Tensor:
    return torch.cat((bytes_of_half(codes.d), codes.q.flatten(1).to(torch.int8).view(torch.uint8)), 1)


def pack_q4_0(codes: Codes) -> Tensor:
    q = (codes.q.flatten(1).to(torch.int32) + 8).view(-1, 2, 16)  # value 16 s + i
    return torch.cat((bytes_of_half(codes.d), (q[:, 0] | q[:, 1] << 4).to(torch.uint8)), 1)


def pack_q6_k(codes: Codes) -> Tensor:
    q = (codes.q.flatten(1).to(torch.int32) + 32).view(-1, 2, 4, 32)  # value 128 h + 32 s + i
    low, high = q & 15, q >> 4
    ql = low[:, :, :2] | low[:, :, 2:] << 4  # byte 64 h + i: value 128 h + i below, 128 h + 64 + i above
    qh = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    scales = codes.scale.flatten(1).to(torch.int8).view(torch.uint8)
    return torch.cat((ql.flatten(1).to(torch.uint8), qh.flatten(1).to(torch.uint8), scales, bytes_of_half(codes.d)), 1)


def pack_k_scales(scale: Tensor, minimum: Tensor) -> Tensor:
    """8 scales and 8 mins of six bits in 12 bytes: 0-3 and 4-7 whole with the upper two bits of the later four on top,
    8-11 the lower four bits of those."""
    scale, minimum = scale.flatten(1).to(torch.int32), minimum.flatten(1).to(torch.int32)
    first, second = scale[:, :4] | scale[:, 4:] >> 4 << 6, minimum[:, :4] | minimum[:, 4:] >> 4 << 6
    third = (scale[:, 4:] & 15) | (minimum[:, 4:] & 15) << 4
    return torch.cat((first, second, third), 1).to(torch.uint8)


def pack_q4_k(codes: Codes) -> Tensor:
    q = codes.q.flatten(1).to(torch.int32).view(-1, 4, 2, 32)  # value 64 g + 32 s + i
    nibbles = (q[:, :, 0] | q[:, :, 1] << 4).flatten(1).to(torch.uint8)
    scales = pack_k_scales(codes.scale, codes.min)
    return torch.cat((bytes_of_half(codes.d), bytes_of_half(codes.dmin), scales, nibbles), 1)


def pack_q5_k(codes: Codes) -> Tensor:
    q = codes.q.flatten(1).to(torch.int32)
    fifth = (q >> 4).view(-1, 8, 32) << torch.arange(8, device=q.device).view(1, 8, 1)  # bit k: value 32 k + i
    low = pack_q4_k(Codes((q & 15).float().view_as(codes.q), codes.d, codes.scale, codes.dmin, codes.min))
    return torch.cat((low[:, :16], fifth.sum(1).to(torch.uint8), low[:, 16:]), 1)


@dataclass(frozen=True)
class Format:
    name: str  # as gguf.GGMLQuantizationType spells it
    block_values: int
    find_codes: Callable[[Tensor], Codes]
    pack: Callable[[Codes], Tensor]  # -> [n, block_bytes] uint8

    def blocks(self, x: Tensor) -> Tensor:
        if x.shape[-1] % self.block_values:
            raise ValueError(f"rows of {x.shape[-1]} values do not divide into blocks of {self.name}")
        return x.detach().float().reshape(-1, self.block_values)

    def round(self, x: Tensor) -> Tensor:
        """x of any shape, rows last -> the values that the engine reads, f32, same shape."""
        return self.find_codes(self.blocks(x)).values().view(x.shape)

    def encode(self, x: Tensor) -> Tensor:
        """x [..., n] -> the rows' bytes [..., row_bytes] uint8."""
        return self.pack(self.find_codes(self.blocks(x))).reshape(*x.shape[:-1], -1)


Q8_0 = Format("Q8_0", 32, codes_q8_0, pack_q8_0)
Q4_0 = Format("Q4_0", 32, codes_q4_0, pack_q4_0)
Q6_K = Format("Q6_K", 256, codes_q6_k, pack_q6_k)
Q5_K = Format("Q5_K", 256, lambda x: codes_with_min(x, 31), pack_q5_k)
Q4_K = Format("Q4_K", 256, lambda x: codes_with_min(x, 15), pack_q4_k)


def format_of(name: str) -> Format | None:
    """The file's format of a parameter, by its name in the model; None: f32 (norms, biases, the router, the
    indexer's head weights). Formats with more bits go where an error reaches further."""
    last = name.rsplit(".", 1)[-1]
    if ".indexer." in name:
        return Q8_0 if last in ("wq_b", "wk") else None
    if ".experts." in name:
        return Q4_K if last in ("w1", "w2", "w3") else None
    if last == "w_uk":  # rows of 128 values: too short for a block of 256
        return Q8_0
    if last in ("wq_b", "w_uv", "wo"):
        return Q5_K
    return Q6_K if last in ("wq_a", "wkv_a", "w1", "w2", "w3", "embed", "head") else None
