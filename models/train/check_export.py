"""Shows that the engine computes what was trained: logits of a model in PyTorch beside those of the exported file.

    python3 models/train/check_export.py --vocabulary vocabulary.json [--checkpoint RUN] [--program build/dsv32]

Without a checkpoint the model is random. The weights in PyTorch are those of the file, and the text is longer than
index_topk, so that the selection matters. With an unrounded cache (f32) both must agree to rounding errors. With the
cache in fp8 a value near the middle of two may be rounded either way, which a random model amplifies from layer to
layer, and a near tie in a selection shifts whole rows; so only the typical row is judged.
"""

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import checkpoint as checkpoints
import export
from model import ModelArgs, Pass, Transformer
from quantize import format_of

LARGEST_MEDIAN = {"f32": 1e-3, "fp8": 5e-2}  # by cache type: of a row's error relative to its deviation from its mean


def random_model(args: ModelArgs) -> Transformer:
    """Norms and biases away from their beginnings; attention scores of random queries deviate by 1.5, far from flat."""
    model = Transformer(args)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p += 0.1 * torch.randn_like(p)
        for layer in model.layers:
            if layer.experts is not None:
                layer.experts.bias += 0.1 * torch.randn_like(layer.experts.bias)
    return model


def round_weights(model: Transformer) -> None:
    with torch.no_grad():
        for name, p in model.named_parameters():
            if form := format_of(name):
                p.copy_(form.round(p))


@torch.no_grad()
def logits_of_model(model: Transformer, ids: Tensor, how: Pass) -> np.ndarray:
    hidden = model(ids.unsqueeze(0), torch.ones(1, len(ids)), how)
    return model.logits(hidden.h).numpy()


def logits_of_engine(program: Path, path: Path, ids: Tensor, kv_type: str) -> np.ndarray:
    out = path.with_suffix(".logits")
    tokens = ",".join(str(i) for i in ids.tolist())
    subprocess.run([program, "inspect", "logits", "-q", "-m", path, "--backend", "cpu", "--kv-type", kv_type,
                    "-c", str(len(ids)), "--tokens", tokens, "--out", out], check=True)
    return np.fromfile(out, np.float32).reshape(len(ids), -1)


def row_errors(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of each row: |a - b| relative to b's deviation from its mean."""
    return np.linalg.norm(a - b, axis=1) / np.linalg.norm(b - b.mean(1, keepdims=True), axis=1)


def compare(model: Transformer, ids: Tensor, kv_type: str, of_engine: np.ndarray) -> bool:
    """Prints how far apart the logits are -> whether they agree."""
    is_rounded = kv_type == "fp8"
    of_model = logits_of_model(model, ids, Pass("sparse", round_cache=is_rounded))
    of_dense = logits_of_model(model, ids, Pass("dense", round_cache=is_rounded))
    errors, of_selection = row_errors(of_engine, of_model), row_errors(of_dense, of_model)
    topk = model.args.index_topk
    for what, rows in (("every position visible", slice(0, topk)), ("top-k selected", slice(topk, None))):
        print(f"{kv_type} cache, {what}: relative error median {np.median(errors[rows]):.1e}, 90 % below "
              f"{np.quantile(errors[rows], 0.9):.1e} (dense attention is {np.median(of_selection[rows]):.1e} away)")
    same = (of_engine.argmax(1) == of_model.argmax(1)).mean()
    print(f"{kv_type} cache: the same likeliest token in {same:.1%} of {len(ids)} rows")
    return bool(np.median(errors) <= LARGEST_MEDIAN[kv_type])


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares an exported model's logits with PyTorch's.")
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--program", type=Path, default=Path("build/dsv32"))
    parser.add_argument("--tokens", type=int, default=1000)
    options = parser.parse_args()
    from vocabulary import Vocabulary

    torch.manual_seed(1)
    torch.set_num_threads(os.cpu_count() or 1)
    if options.checkpoint:
        kept = checkpoints.load(options.checkpoint)
        model = Transformer(kept.args)
        model.load_state_dict(kept.weights)
    else:
        model = random_model(ModelArgs())
    ids = torch.randint(3, model.args.vocab_size - 8, (options.tokens,))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        export.write(path, model.args, model.state_dict(), Vocabulary.load(options.vocabulary))
        print(f"file: {path.stat().st_size:,} bytes")
        of_engine = {kv_type: logits_of_engine(options.program, path, ids, kv_type) for kv_type in LARGEST_MEDIAN}
    round_weights(model)
    is_equal = [compare(model, ids, kv_type, logits) for kv_type, logits in of_engine.items()]
    if not all(is_equal):
        raise SystemExit("the engine and the model differ")


if __name__ == "__main__":
    main()
