"""Trains the block for drafts of the demonstration model on the frozen rest, and writes it into the model's file.

    python3 models/train/draft.py --model models/demo.gguf --rows RUN/rows --out RUN [--minutes 20]

The block learns what the model itself would say: at each token of an answer its guess of the token after the next shall
be the model's distribution there, given the true text (the model's logits come from the rows' h). It learns with
weights, latents and index keys rounded as file and cache keep them. First it attends densely and its indexer learns
where, then to what the indexer selects; the last stage learns the second guess too.
"""

import argparse
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import gguf_model
from draft_block import DraftBlock, Guess, after_one
from draft_file import block_format, write
from model import Pass, Transformer
from muon import make_optimizers, set_rate
from train import World


@dataclass(frozen=True)
class Stage:
    name: str
    share: float  # of the time
    is_sparse: bool
    is_rounded: bool  # weights, as the file will hold them
    n_guesses: int
    rates: tuple[float, float]  # learning rate at the beginning and the end


STAGES = (Stage("dense", 0.4, False, False, 1, (6e-3, 4e-3)),
          Stage("sparse", 0.45, True, True, 1, (12e-3, 1e-3)),
          Stage("second", 0.15, True, True, 2, (6e-4, 1e-4)))
STEP_QUERIES = 1024
ROW_QUERIES = 768  # at most, of a row at a time
WARM_UP_STEPS = 5
BALANCE_RATE = 2e-3
LARGEST_GRADIENT = 1.0
HELD_OUT_EVERY = 15  # rows
SAVE_EVERY = 25  # steps
N_BEGIN_ROWS, N_HELD_OUT = 12, 24


@dataclass
class Row:
    ids: Tensor  # [n] int64
    h: Tensor  # [n, dim] f32
    is_answer: Tensor  # [n]: the model says this token
    at: Tensor  # positions of such tokens that another follows: the block guesses that one

    @staticmethod
    def load(path: Path, device: torch.device) -> "Row":
        stored = np.load(path)
        ids = torch.from_numpy(stored["ids"].astype(np.int64)).to(device)
        is_answer = torch.from_numpy(stored["weights"] > 0.5).to(device)
        return Row(ids, torch.from_numpy(stored["h"].astype(np.float32)).to(device), is_answer,
                   torch.nonzero(is_answer[:-1] & is_answer[1:]).flatten())


class Rounded:
    """While entered, the block's weights are what the file will hold; gradients apply to the true ones."""

    def __init__(self, block: DraftBlock):
        self.forms = [(p, form) for name, p in block.named_parameters() if (form := block_format(name))]

    @torch.no_grad()
    def __enter__(self) -> None:
        self.kept = [p.clone() for p, _ in self.forms]
        for p, form in self.forms:
            p.copy_(form.round(p))

    @torch.no_grad()
    def __exit__(self, *_) -> None:
        for (p, _), kept in zip(self.forms, self.kept):
            p.copy_(kept)


def compare(block: DraftBlock, row: Row, at: Tensor, nth: int, guess: Guess) -> tuple[Tensor, Tensor, Tensor]:
    """-> the model's own logits where the nth guess of each stands, whether that is the guess's likeliest token, and
    whether the answer is so long."""
    wanted = F.linear(row.h[at + nth], block.head)
    return wanted, guess.logits.argmax(-1) == wanted.argmax(-1), row.is_answer[at + nth + 1]


def loss_of(block: DraftBlock, row: Row, at: Tensor, stage: Stage) -> tuple[Tensor, list[Guess], list[float]]:
    """-> mean loss, the guesses, the share of each that was right."""
    guesses = block.guesses(row.ids, row.h, at, stage.n_guesses, stage.is_sparse)
    loss, right = 0.0, []
    for nth, guess in enumerate(guesses):
        wanted, is_right, is_there = compare(block, row, at, nth, guess)
        h = row.h[at + nth][is_there]
        distance = (guess.out[is_there] - h).square().sum() / h.square().sum()
        entropy = F.cross_entropy(guess.logits[is_there], wanted[is_there].softmax(-1))
        loss = loss + entropy + distance + guess.kl
        right.append(is_right[is_there].float().mean().item())
    return loss / stage.n_guesses, guesses, right


class Trainer:
    def __init__(self, block: DraftBlock, world: World, seed: int):
        self.block, self.world, self.random = block, world, Random(seed)
        self.optimizers = make_optimizers(block)
        self.rounded = Rounded(block)

    def pick(self, row: Row, n_guesses: int) -> Tensor:
        at = row.at[row.at + n_guesses <= len(row.ids) - 1]
        if len(at) <= ROW_QUERIES:
            return at
        first = self.random.randrange(len(at) - ROW_QUERIES + 1)
        return at[first : first + ROW_QUERIES]

    def step(self, rows: list[Row], stage: Stage, rate: float) -> tuple[float, list[float]]:
        """One update -> mean loss, share of right guesses."""
        picked = [(row, at) for row in rows if len(at := self.pick(row, stage.n_guesses))]
        n = sum(len(at) for _, at in picked)
        total, right, load = 0.0, np.zeros(stage.n_guesses), 0
        with self.rounded if stage.is_rounded else nullcontext():
            for row, at in picked:
                loss, guesses, of_row = loss_of(self.block, row, at, stage)
                share = len(at) / n
                (loss * share).backward()
                total, right = total + loss.item() * share, right + np.array(of_row) * share
                load = load + sum(guess.load for guess in guesses).detach()
        self.world.average([load, *(p.grad for p in self.block.parameters())])
        torch.nn.utils.clip_grad_norm_(self.block.parameters(), LARGEST_GRADIENT)
        set_rate(self.optimizers, rate)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.block.layer.experts.balance(load, BALANCE_RATE)
        return total, right.tolist()

    @torch.no_grad()
    def measure(self, rows: list[Row], n_guesses: int, is_sparse: bool, is_before_norm: bool = False) -> list[float]:
        """Share of right guesses; of the second and third those behind right ones count alone."""
        n, n_right = np.zeros(n_guesses), np.zeros(n_guesses)
        with self.rounded:
            for row in rows:
                at = self.pick(row, n_guesses)
                is_behind_right = torch.ones(len(at), dtype=torch.bool, device=at.device)
                for nth, guess in enumerate(self.block.guesses(row.ids, row.h, at, n_guesses, is_sparse, is_before_norm)):
                    _, is_right, is_there = compare(self.block, row, at, nth, guess)
                    n[nth] += (is_behind_right & is_there).sum().item()
                    is_behind_right &= is_right & is_there
                    n_right[nth] += is_behind_right.sum().item()
        return (n_right / n.clip(1)).tolist()


def number_of(path: Path) -> int:
    return int(path.name.split(".")[1])


def paths_of_rows(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("draft.*.npz")) if "partial" not in path.name]


def batches(folder: Path, world: World, rng: Random):
    """Endless: this rank's rows, with its share of STEP_QUERIES queries together, in a new order each time. Files that
    have come since are seen then."""
    known, rows = set(), []
    while True:
        for path in paths_of_rows(folder):
            is_own = number_of(path) // 2 % world.n_ranks == world.rank
            if path not in known and number_of(path) % HELD_OUT_EVERY and is_own:
                known.add(path)
                rows.append(Row.load(path, world.device))
        rng.shuffle(rows)
        print(f"{len(rows)} rows, {sum(len(row.at) for row in rows)} guesses", flush=True)
        step, n = [], 0
        for row in rows:
            step.append(row)
            n += min(len(row.at), ROW_QUERIES)
            if n >= STEP_QUERIES // world.n_ranks:
                yield step
                step, n = [], 0


@torch.no_grad()
def begin(model: Transformer, block: DraftBlock, rows: list[Row]) -> None:
    """The block is the model's last layer: lets it see what comes nearest to what that layer sees."""
    before_last = Transformer(replace(model.args, n_layers=model.args.n_layers - 1)).to(model.embed.device)
    before_last.load_state_dict(model.state_dict(), strict=False)
    halves, wanted = [], []
    for row in rows:
        is_real = torch.ones(1, len(row.ids), device=row.h.device)
        wanted.append(before_last(row.ids.unsqueeze(0), is_real, Pass("dense", round_cache=True)).h)
        halves.append(block.halves(row.ids, after_one(row.h)))
    block.begin_at(torch.cat(halves), torch.cat(wanted))


def train(trainer: Trainer, stages: list[Stage], feed, held_out: list[Row], seconds: float, checkpoint: Path) -> None:
    begin, n_steps, before, world = time.monotonic(), 0, 0.0, trainer.world
    for stage in stages:
        done = 0.0
        while done < 1:
            clock = torch.tensor((time.monotonic() - begin) / seconds)
            world.average([clock])
            done = min(1.0, (clock.item() - before) / stage.share)
            first, last = stage.rates
            rate = min(1.0, (n_steps + 1) / WARM_UP_STEPS) * (first + (last - first) * done)
            loss, right = trainer.step(next(feed), stage, rate)
            n_steps += 1
            if n_steps % 5 == 0 and world.rank == 0:
                print(f"{stage.name} step {n_steps} minute {(time.monotonic() - begin) / 60:.1f} loss {loss:.3f} right "
                      + " ".join(f"{r:.3f}" for r in right), flush=True)
            if n_steps % SAVE_EVERY == 0 and world.rank == 0:
                torch.save(trainer.block.state_dict(), checkpoint)
        before += stage.share
        if world.rank == 0 and stage.is_sparse:
            print(f"{stage.name}: held out {trainer.measure(held_out, 2, stage.is_sparse)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the block for drafts and writes it into the model's file.")
    parser.add_argument("--model", type=Path, default=Path("models/demo.gguf"))
    parser.add_argument("--rows", type=Path, required=True, help="folder that draft_rows.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for draft.pt and demo.gguf")
    parser.add_argument("--resume", type=Path, help="a draft.pt to begin with")
    parser.add_argument("--minutes", type=float, default=20, help="of all stages together")
    parser.add_argument("--stages", default=",".join(stage.name for stage in STAGES), help="to go on with --resume")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    world = World.join()
    reader, model, _ = gguf_model.read(options.model)
    block = DraftBlock(model.to(world.device)).to(world.device)
    paths = paths_of_rows(options.rows)
    held_out_paths = [path for path in paths if number_of(path) % HELD_OUT_EVERY == 0]
    held_out = [Row.load(path, world.device) for path in held_out_paths[:N_HELD_OUT]]
    if options.resume:
        block.load_state_dict(torch.load(options.resume, map_location=world.device, weights_only=True))
    else:
        begin(model, block, [Row.load(path, world.device) for path in paths[1 : 1 + N_BEGIN_ROWS]])
    trainer = Trainer(block, world, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = options.out / "draft.pt"
    stages = [stage for stage in STAGES if stage.name in options.stages.split(",")]
    train(trainer, stages, batches(options.rows, world, Random(options.seed)), held_out, 60 * options.minutes, checkpoint)
    if world.rank:
        return
    torch.save(block.state_dict(), checkpoint)
    write(reader, block, options.out / "demo.gguf")
    for is_sparse in (True, False):
        for is_before_norm in (False, True):
            print(f"sparse {is_sparse}, before the norm {is_before_norm}: "
                  f"{trainer.measure(held_out, 3, is_sparse, is_before_norm)}", flush=True)


if __name__ == "__main__":
    main()
