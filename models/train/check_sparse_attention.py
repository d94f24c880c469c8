"""Shows that the kernels of sparse_attention.py and plain gathering give the same output and gradients.

    python3 models/train/check_sparse_attention.py

With a GPU in bf16 and the real sizes, with the time a query takes; without one set TRITON_INTERPRET=1, and the kernels
run small and in f32 in Triton's interpreter.
"""

import time

import torch
from torch import Tensor

from sparse_attention import SparseMla, attend_by_gathering

N_HEADS, SCALE = 8, 0.105
LARGEST_ERROR = {torch.bfloat16: 2e-2, torch.float32: 1e-5}


def relative_error(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).norm() / b.float().norm())


def random_positions(n: int, n_rows: int, topk: int) -> Tensor:
    """Different rows for each query; the first queries see fewer than topk, as at the beginning of a text."""
    positions = torch.rand(n, n_rows).topk(topk, 1).indices.int()
    for t in range(topk - 1):
        positions[t, torch.randperm(topk)[t + 1 :]] = -1
    return positions


def run(attend, q: Tensor, kv: Tensor, positions: Tensor, rank: int, d_o: Tensor) -> list[Tensor]:
    q, kv = q.clone().requires_grad_(), kv.clone().requires_grad_()
    o = attend(q, kv, positions, rank, SCALE)
    o.backward(d_o)
    return [o.detach(), q.grad, kv.grad]


def main() -> None:
    torch.manual_seed(1)
    on_gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    n, n_rows, rank, rope_dim, topk = (8192, 16384, 512, 64, 256) if on_gpu else (80, 160, 128, 64, 64)
    q, kv = torch.randn(n, N_HEADS, rank + rope_dim) / 4, torch.randn(n_rows, rank + rope_dim)
    inputs = [t.to(device, dtype) for t in (q, kv)]
    positions, d_o = random_positions(n, n_rows, topk).to(device), torch.randn(n, N_HEADS, rank).to(device, dtype)
    expected = run(attend_by_gathering, *inputs, positions, rank, d_o)
    errors = [relative_error(a, b) for a, b in zip(run(SparseMla.apply, *inputs, positions, rank, d_o), expected)]
    print("relative errors of o, d_q, d_kv: " + ", ".join(f"{e:.1e}" for e in errors))
    if on_gpu:
        torch.cuda.synchronize()
        begin = time.monotonic()
        for _ in range(10):
            run(SparseMla.apply, *inputs, positions, rank, d_o)
        torch.cuda.synchronize()
        print(f"forward and backward: {(time.monotonic() - begin) / 10 / n * 1e6:.3f} us for each query")
    if max(errors) > LARGEST_ERROR[dtype]:
        raise SystemExit("the kernels and gathering differ")


if __name__ == "__main__":
    main()
