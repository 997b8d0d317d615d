"""The training step of a transformer encoder compared with the same step in PyTorch.

    python -m benchmarks.transformer

Sizes, initial weights, data and optimizer are those of examples/transformer.py. First the losses
of 20 steps are compared with PyTorch's in float64, because its float32 losses depend on the number
of threads. Then the step is timed here, in PyTorch eager and in PyTorch compiled, alternately in
one process, so that other programs affect all three. Needs PyTorch (`pip install torch`), which
imgmlp itself does not.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import nn

from examples.transformer import BATCHES, Sizes, Sorter, compile_step, draw, losses
from imgmlp.engine import AnyDevice, Tensor, open_device
from imgmlp.engine.frontend.nn import LayerNorm, Linear, TransformerEncoder

COMPARED = 20  # steps
TOLERANCE = 1e-4
LR = 3e-3  # as in the example


@dataclass(frozen=True)
class Result:
    """One line of the report; times in microseconds a step: the median and the least of all turns.

    Where other programs run too, the least is what a quiet machine would show.
    """

    layers: int
    difference: float  # largest of the losses of the compared steps, from PyTorch in float64
    torch_difference: float  # the same of PyTorch in float32
    launches: int
    ours: float
    ours_least: float
    eager: float
    eager_least: float
    compiled: float
    compiled_least: float


class TorchSorter(nn.Module):
    """The example's network with PyTorch's own encoder layers, and the weights of one of ours."""

    def __init__(self, net: Sorter, sizes: Sizes) -> None:
        super().__init__()
        self.digits, self.places = _parameter(net.digits), _parameter(net.places)
        self.layers = nn.Sequential(*(_encoder(e, sizes) for e in net.encoders))
        self.scores = nn.Linear(sizes.features, sizes.digits)
        _load(self.scores, net.scores)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        return self.scores(self.layers(self.digits[sequences] + self.places))


def _parameter(value: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(value.numpy()))


@torch.no_grad()
def _load(linear: nn.Linear, ours: Linear) -> None:
    assert ours.bias is not None
    linear.weight.copy_(torch.from_numpy(ours.weight.numpy()).T)  # ours are input-major
    linear.bias.copy_(torch.from_numpy(ours.bias.numpy()))


@torch.no_grad()
def _encoder(ours: TransformerEncoder, sizes: Sizes) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(
        sizes.features, sizes.heads, sizes.hidden, dropout=0.0, batch_first=True
    )
    into = ours.attention.projection_in
    assert into.bias is not None
    layer.self_attn.in_proj_weight.copy_(torch.from_numpy(into.weight.numpy()).T)
    layer.self_attn.in_proj_bias.copy_(torch.from_numpy(into.bias.numpy()))
    _load(layer.self_attn.out_proj, ours.attention.projection_out)
    _load(layer.linear1, ours.first)
    _load(layer.linear2, ours.second)
    for theirs, norm in zip((layer.norm1, layer.norm2), ours.norms, strict=True):
        _load_norm(theirs, norm)
    return layer


@torch.no_grad()
def _load_norm(theirs: nn.LayerNorm, ours: LayerNorm) -> None:
    theirs.weight.copy_(torch.from_numpy(ours.scale.numpy()))
    theirs.bias.copy_(torch.from_numpy(ours.shift.numpy()))


def torch_step(
    sizes: Sizes, device: AnyDevice, compiled: bool = False, wide: bool = False
) -> Callable[[], torch.Tensor]:
    """A function that does the next training step and returns the loss before it."""
    net = TorchSorter(Sorter(sizes, device), sizes)
    if wide:
        net = net.double()
    drawn = draw(sizes, BATCHES, seed=0)
    sequences = torch.from_numpy(drawn).long()
    wanted = torch.from_numpy(np.sort(drawn, axis=-1)).long()
    optimizer = torch.optim.AdamW(net.parameters(), LR, weight_decay=0.01, fused=True)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())

    forward = torch.compile(loss_of) if compiled else loss_of
    done = 0

    def step() -> torch.Tensor:
        nonlocal done
        turn = done % BATCHES
        done += 1
        optimizer.zero_grad(set_to_none=True)
        loss = forward(sequences[turn], wanted[turn])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def compare(sizes: Sizes, device: AnyDevice, steps: int = COMPARED) -> tuple[float, float]:
    """How far ours and PyTorch's losses in float32 get from PyTorch's in float64."""
    wide, narrow = (torch_step(sizes, device, wide=w) for w in (True, False))
    exact = np.array([wide().item() for _ in range(steps)])
    theirs = np.array([narrow().item() for _ in range(steps)])
    ours = losses(sizes, device, steps)
    return float(np.abs(ours - exact).max()), float(np.abs(theirs - exact).max())


def measure(sizes: Sizes, device: AnyDevice, turns: int, steps: int) -> Result:
    """Compare, then time `steps` steps of each, `turns` times in turn."""
    differences = compare(sizes, device)
    program = compile_step(Sorter(sizes, device), sizes, device, LR)
    eager, compiled = (torch_step(sizes, device, c) for c in (False, True))

    def ours() -> None:
        program.run(steps)
        program.wait()

    contenders = [ours, lambda: _repeat(eager, steps), lambda: _repeat(compiled, steps)]
    for contender in contenders:  # whatever is compiled at the first call
        contender()
    times = np.array([[_seconds(c) for c in contenders] for _ in range(turns)]) / steps * 1e6
    found = [f(column) for column in times.T for f in (np.median, np.min)]
    launches = int(program.stages.figures()["launches"])
    return Result(sizes.layers, *differences, launches, *map(float, found))


def _repeat(step: Callable[[], object], times: int) -> None:
    for _ in range(times):
        step()


def _seconds(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


HEADING = (
    "                  losses apart          median (least) of microseconds a step\n"
    "layers  launches   imgmlp  PyTorch            imgmlp     PyTorch eager  PyTorch compiled"
)


def line(r: Result) -> str:
    times = [(r.ours, r.ours_least), (r.eager, r.eager_least), (r.compiled, r.compiled_least)]
    columns = "".join(f"  {f'{m:,.0f} ({least:,.0f})':>16}" for m, least in times)
    return (
        f"{r.layers:6d}  {r.launches:8d}  {r.difference:7.1e}  {r.torch_difference:7.1e}{columns}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--batch", type=int, default=Sizes.batch, help="sequences in a step")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20, help="in a turn")
    parser.add_argument("--threads", type=int, help="of PyTorch; as many as the device's units")
    parser.add_argument("--device", default="cpu", help="as `imgmlp devices` lists them")
    parser.add_argument("--csv", help="also write the figures to this file")
    options = parser.parse_args()
    device = open_device(options.device)
    torch.set_num_threads(options.threads or device.info.compute_units)
    print(
        f"{device.info.describe()}; PyTorch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    print(HEADING, flush=True)
    results = []
    for layers in options.layers:
        sizes = Sizes(layers, options.batch)
        results.append(measure(sizes, device, options.turns, options.steps))
        print(line(results[-1]), flush=True)
    if options.csv:
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, asdict(results[0]).keys())
            writer.writeheader()
            writer.writerows(asdict(r) for r in results)
    wrong = [r.layers for r in results if not r.difference <= TOLERANCE]
    if wrong:
        print(f"wrong: losses differ by more than {TOLERANCE} with {wrong} layers", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
