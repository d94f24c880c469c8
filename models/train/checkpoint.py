"""What a training run leaves behind, and what it goes on from.

state.pt    weights and optimizers as they are, and how far the run is: for going on on the same machine
weights.NN  the weights alone as f16, one file cut into parts that are easy to move: for going on elsewhere, and for
            the export
Either is enough for load(); state.pt is preferred.
"""

import io
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from model import ModelArgs


@dataclass
class Progress:
    stage: int = 0  # in the table of stages
    step: int = 0  # done of that stage
    n_tokens: int = 0  # read so far


@dataclass
class Checkpoint:
    args: ModelArgs
    weights: dict[str, Tensor]  # f32
    progress: Progress
    optimizers: list[dict] | None  # None where only the weights were kept


def save(folder: Path, checkpoint: Checkpoint, part_mib: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"args": asdict(checkpoint.args), "progress": asdict(checkpoint.progress)}
    state = folder / "state.pt.partial"
    torch.save({**content, "weights": checkpoint.weights, "optimizers": checkpoint.optimizers}, state)
    state.rename(folder / "state.pt")
    buffer = io.BytesIO()
    torch.save({**content, "weights": {n: w.half() for n, w in checkpoint.weights.items()}, "optimizers": None}, buffer)
    for old in folder.glob("weights.[0-9][0-9]"):
        old.unlink()
    data, part_bytes = buffer.getvalue(), int(part_mib * 2**20)
    for i, begin in enumerate(range(0, len(data), part_bytes)):
        (folder / f"weights.{i:02}").write_bytes(data[begin : begin + part_bytes])


def load(folder: Path, device: str = "cpu") -> Checkpoint:
    """Raises FileNotFoundError when the folder holds neither form."""
    if (folder / "state.pt").exists():
        content = torch.load(folder / "state.pt", map_location=device, weights_only=True)
    else:
        parts = sorted(folder.glob("weights.[0-9][0-9]"))
        if not parts:
            raise FileNotFoundError(f"{folder} holds neither state.pt nor weights.00")
        joined = io.BytesIO(b"".join(part.read_bytes() for part in parts))
        content = torch.load(joined, map_location=device, weights_only=True)
    weights = {n: w.float() for n, w in content["weights"].items()}
    return Checkpoint(ModelArgs(**content["args"]), weights, Progress(**content["progress"]), content["optimizers"])
