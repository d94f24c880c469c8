"""The optimizer: Muon for matrices, AdamW for everything else (embedding, head, norms, biases, router).

Muon replaces the momentum of a matrix by the nearest matrix with equal singular values, found by a Newton-Schulz
iteration, and scales it so that its values are as large as an AdamW step's would be: both halves then share one
learning rate. Matrices of one shape, experts and heads of a stack included, are orthogonalised together.
"""

from collections import defaultdict
from typing import Iterable

import torch
from torch import Tensor, nn

# The quintic of K. Jordan's Muon: steep at 0, so that five rounds bring singular values near 1.
QUINTIC = (3.4445, -4.7750, 2.0315)
N_ROUNDS = 5
RMS_OF_STEP = 0.2  # root mean square of an AdamW step with learning rate 1, as seen in training


def orthogonalize(x: Tensor) -> Tensor:
    """x [n, rows, cols] -> each matrix with its singular values brought near 1."""
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = QUINTIC
    for _ in range(N_ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Parameters have two dimensions, or three: a stack of matrices."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            of_shape = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    of_shape[p.shape[-2:]].append(p)
            for params in of_shape.values():
                self.step_together(params, group)

    def step_together(self, params: list[Tensor], group: dict) -> None:
        grads = [p.grad for p in params]
        for p in params:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        kept = [self.state[p]["momentum"] for p in params]
        torch._foreach_lerp_(kept, grads, 1 - group["momentum"])
        ahead = torch._foreach_lerp(grads, kept, group["momentum"])  # Nesterov
        stack = torch.cat([g.reshape(-1, *g.shape[-2:]) for g in ahead])
        stack = stack.bfloat16() if stack.is_cuda else stack  # which CPUs without it are slow at
        size = RMS_OF_STEP * max(stack.shape[-2:]) ** 0.5
        steps = orthogonalize(stack).float().split([p.numel() // p[..., :, :].shape[-1] // p.shape[-2] for p in params])
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, [s.view_as(p) for s, p in zip(steps, params)], alpha=-group["lr"] * size)


# Of these matrices the values matter one by one (a row is a token, an expert, a head), not the map as a whole.
NOT_FOR_MUON = ("embed", "head", "gate", "weights_proj")


def make_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon and AdamW over all of the model's parameters. Learning rates are set before each step, see set_rate()."""
    named = list(model.named_parameters())
    is_for_muon = {n: p.dim() > 1 and n.rsplit(".", 1)[-1] not in NOT_FOR_MUON for n, p in named}
    others = [p for n, p in named if not is_for_muon[n]]
    adam = torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=others[0].is_cuda)
    return [Muon([p for n, p in named if is_for_muon[n]], lr=0.0), adam]


def set_rate(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
