"""Trains a transformer encoder of one to four layers to sort short sequences of digits.

    python examples/transformer.py --layers 2

The input is eight digits; at each position the network predicts the digit that is there after
sorting. A training step (choice of the batch, forward, cross-entropy, gradients, AdamW) is one
compiled program that the host only replays. Before the training, the first steps also run on NumPy,
and the losses are compared.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from imgmlp.engine import AnyDevice, Program, Tensor, compile, dtype, nn, open_device, optim

BATCHES = 64  # different ones, taken in turn
COMPARED = 20  # steps that are also run on NumPy
TOLERANCE = 1e-4  # by which float32 may round the loss differently in so many steps
LEAST_RIGHT = 0.8  # share of digits of unseen sequences that must be right after training


@dataclass(frozen=True)
class Sizes:
    """Sizes of network and data, so small that launches and memory matter more than products."""

    layers: int = 1
    batch: int = 32  # sequences
    time: int = 8  # digits in a sequence
    digits: int = 10
    features: int = 32
    heads: int = 4
    hidden: int = 64


class Sorter:
    """Embeddings of digits and positions, encoder layers, and a score per digit and position."""

    def __init__(self, sizes: Sizes, device: AnyDevice) -> None:
        digits, places = (sizes.digits, sizes.features), (sizes.time, sizes.features)
        self.digits = Tensor.normal(digits, seed=1, device=device).realize("digits")
        self.places = Tensor.normal(places, seed=2, device=device).realize("places")
        self.encoders = [
            nn.TransformerEncoder(sizes.features, sizes.heads, sizes.hidden, 10 * i, device)
            for i in range(1, sizes.layers + 1)
        ]
        self.scores = nn.Linear.random(sizes.features, sizes.digits, 3, device)
        self.layers = nn.Sequential(*self.encoders, self.scores)

    def __call__(self, sequences: Tensor) -> Tensor:
        """Int [batch, time] -> [batch, time, digits]."""
        return self.layers(self.digits.gather(sequences) + self.places)

    def parameters(self) -> list[Tensor]:
        return [self.digits, self.places, *self.layers.parameters()]


def draw(sizes: Sizes, batches: int, seed: int) -> np.ndarray:
    """Random digits, int32 [batches, batch, time]."""
    shape = (batches, sizes.batch, sizes.time)
    return np.random.default_rng(seed).integers(0, sizes.digits, shape).astype(np.int32)


def loss_of(net: Sorter, sequences: Tensor, expected: Tensor) -> Tensor:
    """Mean cross-entropy over all positions: int [batch, time] twice -> one number."""
    scores = net(sequences)
    return nn.cross_entropy(scores.reshape(-1, scores.shape[-1]), expected.reshape(-1))


def compile_step(net: Sorter, sizes: Sizes, device: AnyDevice, lr: float = 3e-3) -> Program:
    """A step on the next batch; its output `loss` is the loss before the step."""
    drawn = draw(sizes, BATCHES, seed=0)
    sequences = Tensor(drawn, device, name="sequences")
    expected = Tensor(np.sort(drawn, axis=-1), device, name="expected")
    count = Tensor(np.uint32(0), device, name="count")
    optimizer = optim.AdamW(net.parameters(), lr)

    def step() -> dict[str, Tensor]:
        turn = (count % BATCHES).cast(dtype.i32)
        loss = loss_of(net, sequences.gather(turn), expected.gather(turn))
        optimizer.step(loss)
        count.assign(count + 1)
        return {"loss": loss}

    return compile(step, device)


def losses(sizes: Sizes, device: AnyDevice, steps: int) -> np.ndarray:
    """The loss of each of the first steps, from the same initial weights on every device."""
    program = compile_step(Sorter(sizes, device), sizes, device)
    found = []
    for _ in range(steps):
        program.run()
        found.append(program.read("loss").item())
    return np.array(found, np.float32)


def share_right(net: Sorter, sizes: Sizes, device: AnyDevice) -> float:
    """Fraction of correctly predicted digits in sequences that were not trained on."""
    unseen = draw(sizes, 1, seed=1)[0]
    named = net(Tensor(unseen, device)).numpy().argmax(-1)
    return float((named == np.sort(unseen, axis=-1)).mean())


def train(sizes: Sizes, device: AnyDevice, steps: int) -> float:
    """Train, print the loss regularly, and return the fraction of correct digits."""
    net = Sorter(sizes, device)
    begin = time.perf_counter()
    program = compile_step(net, sizes, device)
    program.run()  # the driver compiles a kernel when it is launched for the first time
    print(f"step     1  loss {program.read('loss').item():.4f}")
    compiled = time.perf_counter()
    for done in range(2, steps + 1):
        program.run()
        if done % (steps // 8 or 1) == 0:
            print(f"step {done:5d}  loss {program.read('loss').item():.4f}")
    program.wait()
    seconds = time.perf_counter() - compiled
    print(f"compiled in {compiled - begin:.2f} s; {steps - 1} more steps in {seconds:.2f} s")
    figures = program.stages.figures()
    print(
        f"{figures['launches']} launches a step; intermediates take {figures['arena_bytes']:,} of"
        f" {figures['intermediate_bytes']:,} bytes, which saves {figures['saved']:.1%}"
    )
    right = share_right(net, sizes, device)
    print(f"{right:.1%} of the digits of unseen sequences are sorted right")
    return right


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=1, choices=range(1, 5))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--device", default="auto", help="as `imgmlp devices` lists them")
    options = parser.parse_args(arguments)
    device = open_device(options.device)
    print(f"{options.layers} encoder layers on {device.info.describe()}")

    small = Sizes(options.layers, batch=4, features=12, heads=3, hidden=20)
    apart = losses(small, device, COMPARED) - losses(small, open_device("numpy"), COMPARED)
    furthest = float(np.abs(apart).max())
    print(f"the losses of {COMPARED} steps differ from NumPy's by {furthest:.1e} at most")
    right = train(Sizes(options.layers), device, options.steps)
    agrees, learned = furthest <= TOLERANCE, right >= LEAST_RIGHT
    if not agrees:
        print(f"wrong: the losses should not differ by more than {TOLERANCE}", file=sys.stderr)
    if not learned:
        print(f"wrong: at least {LEAST_RIGHT:.0%} should be right", file=sys.stderr)
    return 0 if agrees and learned else 1


if __name__ == "__main__":
    sys.exit(main())
