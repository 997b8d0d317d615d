"""What each ingredient of the latent codec is worth: the same training without it.

    python benchmarks/latent_ablation.py PICTURE... --steps 3000 --lambda 1e-3 4e-3

For each variant, prints D + lambda R relative to training with all ingredients, in percent, for
every picture and lambda and in the mean; below 0, the variant is better. D is the squared error on
[0, 1], R the bits of latents and networks. A variant replaces constants of the training; an
ingredient of the networks is disabled by freezing its weights at their initial values. All
graphics cards of the machine share the work, each with `--processes` processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from imgmlp import image
from imgmlp.codec.latent.model import BICUBIC_TAPS, NEIGHBOUR_OFFSETS
from imgmlp.codec.latent.pretrained import newest_pretrained
from imgmlp.codec.latent.step import architecture, control, latent_step, operations
from imgmlp.codec.latent.step.architecture import SYNTHESIS_WIDTH, Architecture
from imgmlp.codec.latent.step.control import Control
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.step.parameters import Networks, trained_order
from imgmlp.codec.latent.training import (
    bit_allocation,
    forms,
    initialisation,
    latent_trainer,
    schedule,
)
from imgmlp.codec.latent.training.effort import (
    MAX_QUANTISATION_STEPS,
    QUANTISATION_FRACTION,
    rdoq_budget,
)
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer
from imgmlp.codec.latent.training.rdoq import NO_BUDGET, Budget
from imgmlp.codec.training.run import Progress
from imgmlp.engine import AnyDevice, Tensor, list_devices, open_device, optim

NOT_QUANTISED = "no progressive quantisation, no moves of single weights"
NEAREST = 14  # neighbours of those that see fewer
SHAMPOO_BETA = 0.95  # decay of the running means that SOAP computes its bases from
AVERAGED = 0.01  # share of a run, by which the mean of networks forgets


class Without(LatentStep):
    """A step whose networks lack something, or that moves in another way."""

    lacks = ""
    refreshed = 0  # steps between looks for SOAP's bases; 0 is Adam
    kept = 0.0  # of the mean of networks in a step

    def _optimizers(self) -> tuple[optim.Adam, Any]:
        latents, networks = super()._optimizers()
        if self.refreshed:
            betas = control.NETWORK_BETA1, latent_step.BETA2
            rest = betas, SHAMPOO_BETA, control.ADAM_EPSILON, self.parameter_shapes.tensors
            return latents, optim.SOAP([self.flat], self.steering.network_lr, *rest)
        return latents, networks

    def _step(self) -> dict[str, Tensor]:
        found = super()._step()
        if self.kept:
            self.averaged = Tensor(self.flat.numpy(), self.device, name="averaged")
            self.averaged.assign(self.averaged * self.kept + self.flat * (1 - self.kept))
        return found

    def finish(self) -> None:
        """What comes after the last step."""
        if self.kept:
            self.flat.write(self.averaged.numpy())

    def _networks(self, flat: Tensor) -> Networks[Tensor]:
        synthesis, convolutions, entropy, taps = super()._networks(flat)
        if self.lacks == "upsampling":
            own = Tensor(np.array(BICUBIC_TAPS, np.float32), self.device, name="bicubic")
            taps[: self.levels - 1] = [own] * (self.levels - 1)
        if self.lacks == "convolutions":
            convolutions = [self._zeros(t, f"{n}") for n, t in enumerate(convolutions)]
        if self.lacks == "a convolution":
            convolutions[2:] = [self._zeros(t, f"{n}") for n, t in enumerate(convolutions[2:])]
        if self.lacks == "neighbours":
            rows = entropy[0].shape[0]
            order = trained_order(rows)
            seen = np.zeros((rows, 1), np.float32)
            seen[[*order[:NEAREST], *order[len(NEIGHBOUR_OFFSETS) :]]] = 1
            entropy[0] = entropy[0] * Tensor(seen, self.device, name="near")
        return Networks(synthesis, convolutions, entropy, taps)

    def _noise(self, share: Tensor) -> Tensor:
        if self.lacks != "mirrored noise":
            return super()._noise(share)
        bits = Tensor.random_bits(self.latents.shape, (self.seed, self.count))
        return operations.noise(bits, share)

    def _zeros(self, like: Tensor, name: str) -> Tensor:
        return Tensor(np.zeros(like.shape, np.float32), self.device, name=f"nothing {name}")


class Refreshing(LatentTrainer):
    """Also looks for SOAP's bases."""

    def _check(self, on_progress: Callable[[Progress], None] | None) -> bool:
        going = super()._check(on_progress)
        step = self.step
        every = getattr(step, "refreshed", 0)
        if every and self.done // every > (self.done - self.check_interval) // every:
            step.adam.refresh()
        return going


@dataclass(frozen=True)
class Variant:
    """Constants by module and name, what is other of the step, and how the end goes."""

    name: str
    constants: dict[tuple[Any, str], Any] = field(default_factory=dict)
    step: dict[str, Any] = field(default_factory=dict)  # attributes of Without
    averaged: bool = False  # networks, in the end
    has_hyperlatents: bool = False
    pretrained: bool = True
    predicted: bool = True  # initial latents
    searched: bool = True  # the networks' step sizes
    quantised: bool = True
    refined: bool = True  # single weights moved
    budget: Budget | None = None  # instead of what a run of so many steps has


def _steered(change: Callable[[Control, Control], Control]) -> dict[tuple[Any, str], Any]:
    """Another schedule: `change` makes it of the usual Control of a step and of the first step.

    It replaces the name by which the trainer calls it.
    """
    usual = schedule.control
    return {(latent_trainer, "control"): lambda *at: change(usual(*at), usual(0, *at[1:]))}


def _constant(found: Control, first: Control) -> Control:
    if found.hard_rounding:
        return found
    return replace(found, latent_lr=first.latent_lr, network_lr=first.network_lr)


def variants() -> list[Variant]:
    step = latent_step
    soap = [
        Variant(
            f"SOAP for the networks, learning rate {rate:g}, bases every {every} steps",
            {(schedule, "NETWORK_LR"): rate},
            {"refreshed": every},
        )
        for every, rate in ((10, 3e-3), (10, 7e-3), (10, 1.5e-2), (50, 7e-3))
    ]
    return [
        Variant("all ingredients"),
        Variant("no moves of single weights", refined=False),
        Variant("no rate-distortion optimised quantisation of latents", budget=NO_BUDGET),
        Variant(
            "rate-distortion optimised quantisation of latents in 6 sweeps of 12 checks",
            budget=Budget(6, 12),
        ),
        Variant("no progressive quantisation", quantised=False),
        Variant(NOT_QUANTISED, quantised=False, refined=False),
        Variant(
            f"{NOT_QUANTISED}, no search of quantisation steps",
            searched=False,
            quantised=False,
            refined=False,
        ),
        Variant(
            "no last phase with rounded latents",
            {(module, "ROUNDED_FROM"): 1.0 for module in (schedule, latent_trainer)},
        ),
        Variant("no noise", _steered(lambda c, _: replace(c, noise_scale=0.0))),
        Variant("uniform noise", {(schedule, "NOISE_SHAPES"): (1.0, 1.0)}),
        Variant("new noise in every step", step={"lacks": "mirrored noise"}),
        Variant("rounding temperature of 0.3 to the end", {(schedule, "TEMPERATURES"): (0.3, 0.3)}),
        Variant(
            "rounding temperature of 0.15 from the beginning",
            {(schedule, "TEMPERATURES"): (0.15,) * 2},
        ),
        Variant("constant learning rates", _steered(_constant)),
        Variant("no rate of the weights in the loss", {(step, "DIFFERENCE_RATE_FACTOR"): 0.0}),
        Variant(
            "Adam's beta2 of 0.999",
            {(step, "BETA2"): 0.999, (schedule, "NETWORK_BETA2S"): (0.999, 0.999)},
        ),
        Variant("no gradient clipping", {(control, "MAX_GRADIENT_NORM"): 1e9}),
        Variant("random instead of pretrained networks", pretrained=False),
        Variant("initial latents of zero", predicted=False),
        Variant("bicubic upsampling", step={"lacks": "upsampling"}),
        Variant(
            "no filter of the finest grid",
            {(architecture, "FILTERED_FROM_WIDTH"): SYNTHESIS_WIDTH + 1},
        ),
        Variant("one convolution of 3×3 instead of two", step={"lacks": "a convolution"}),
        Variant("no convolution", step={"lacks": "convolutions"}),
        Variant(
            f"context of {NEAREST} neighbours instead of {len(NEIGHBOUR_OFFSETS)}",
            step={"lacks": "neighbours"},
        ),
        Variant("another seed", {(forms, "SEED"): forms.SEED + 1}),  # how far chance goes
        *soap,
        Variant("latent learning rate times 1.5", {(schedule, "LATENT_LR"): 0.3}),
        Variant("beta1 = 0.9, beta2 = 0.98 for the latents", {(schedule, "LATENT_BETA1"): 0.9}),
        Variant("beta1 = 0.8, beta2 = 0.95 for the latents", {(step, "BETA2"): 0.95}),
        Variant("beta1 = 0.8, beta2 = 0.99 for the latents", {(step, "BETA2"): 0.99}),
        Variant("weight averaging over the last networks", averaged=True),
        Variant("hyperlatents", has_hyperlatents=True),
    ]


@contextmanager
def changed(constants: dict[tuple[Any, str], Any]) -> Iterator[None]:
    before = {key: getattr(*key) for key in constants}
    try:
        for key, value in constants.items():
            setattr(*key, value)
        yield
    finally:
        for key, value in before.items():
            setattr(*key, value)


def cost(
    variant: Variant, pixels: np.ndarray, lmbda: float, steps: int, device: AnyDevice
) -> float:
    """D + lambda R of a file."""
    with changed(variant.constants):
        widths = forms.widths(pixels.shape, np.inf)
        start = newest_pretrained(widths) if variant.pretrained else 0
        kept = 1 - 1 / max(1, AVERAGED * steps) if variant.averaged else 0.0
        kind = type("Step", (Without,), {**variant.step, "kept": kept})
        step = kind(
            pixels, forms.SEED, device, Architecture(*widths, start, variant.has_hyperlatents)
        )
        if variant.predicted:
            initialisation.initialise(step, pixels, lmbda, steps)
        trainer = Refreshing(step, latent_trainer.LatentTrainerState(steps, lmbda))
        trainer.rescale()
        trainer.run()
        step.finish()
        search = bit_allocation.Search(step)
        networks = search.run(lmbda) if variant.searched else search._rounded(search.exponents)
        if variant.quantised:
            count = min(round(QUANTISATION_FRACTION * steps), MAX_QUANTISATION_STEPS)
            networks = search.quantised(networks, lmbda, count)
        budget = rdoq_budget(steps, device.lanes) if variant.budget is None else variant.budget
        search.optimise_latents(networks, lmbda, budget)
        if variant.refined:
            networks = search.refined(networks, lmbda)
        search.optimise_latents(networks, lmbda, budget)
        figures = search.figures(networks)
        return figures.error * step.visible_fraction + lmbda * figures.bits / step.pixels


Case = tuple[Path, float]  # picture, lambda
own: list[AnyDevice] = []  # a process's device


def begin(specs: multiprocessing.Queue[str]) -> None:
    own.append(open_device(specs.get()))


def measured(task: tuple[int, Case], steps: int) -> float:
    """The D + lambda R of one of the variants."""
    number, (path, lmbda) = task
    return cost(variants()[number], image.load(path).pixels, lmbda, steps, own[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--lambda", dest="lmbda", type=float, nargs="+", default=[1e-3, 4e-3])
    parser.add_argument("--only", nargs="*", help="variants with these words in their names")
    parser.add_argument("--processes", type=int, default=1, help="on each card")
    options = parser.parse_args()
    cases = list(product(options.pictures, options.lmbda))
    names = [variant.name for variant in variants()]
    wanted = [n for n, name in enumerate(names) if any(w in name for w in options.only or [""])]
    tasks = list(product(sorted({0, *wanted}), cases))
    print(f"| | {' | '.join(f'{path.stem}, {lmbda:g}' for path, lmbda in cases)} | mean |")
    print("|---" * (len(cases) + 2) + "|")
    usual: list[float] = []
    row: list[float] = []
    cards = [found.spec for found in list_devices() if found.kind == "gpu"] or ["auto"]
    context = multiprocessing.get_context("spawn")
    specs = context.Queue()
    for spec in cards * options.processes:
        specs.put(spec)
    with context.Pool(len(cards) * options.processes, begin, (specs,)) as pool:
        results = pool.imap(partial(measured, steps=options.steps), tasks)
        for (number, _), found in zip(tasks, results, strict=True):
            row.append(found)
            if len(row) < len(cases):
                continue
            usual = usual or row
            shares = [100 * (each / all_of - 1) for each, all_of in zip(row, usual, strict=True)]
            shown = [f"{share:+.1f}%" for share in (*shares, statistics.fmean(shares))]
            if row is usual:
                shown = [f"{1e4 * each:.3f}e-4" for each in row] + [""]
            print(f"| {names[number]} | {' | '.join(shown)} |", flush=True)
            row = []


if __name__ == "__main__":
    main()
