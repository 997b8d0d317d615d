"""Of all files that a trained step can be rounded to, the one that is nearest to a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Container, Section
from imgmlp.codec.latent import decode, sections
from imgmlp.codec.latent.model import MAX_LATENT, MIN_LATENT, LatentModel, Quantized
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.synthesis import corner, synthesize
from imgmlp.codec.latent.training.bit_allocation import MAX_WEIGHT_TRIALS, Search
from imgmlp.codec.latent.training.rdoq import NO_BUDGET, Budget
from imgmlp.codec.training import draft
from imgmlp.codec.training.search import approached, is_too_much, nearest
from imgmlp.codec.training.target import Goal
from imgmlp.engine import AnyDevice
from imgmlp.errors import FormatError
from imgmlp.image import Picture, psnr

Array = np.ndarray[Any, Any]

# How far latents may be moved towards zero before they are rounded, in quantisation steps. Beyond
# the first bits grow, except after a short run; the second applies where no file is small enough.
MAX_SHRINKAGE = 0.04
MAX_LAST_RESORT_SHRINKAGE = 0.5
MAX_LMBDA_DOUBLINGS = 6.0  # of lambda, up or down, at which networks are rounded to meet a target
MAX_FILES = 4  # that are written to see their exact size and quality
# Fractions of the time left for rounding: after the first, progressive quantisation is not
# repeated, which takes as long again; the second is for single weights and latents before a target
# is approached; the third is until when weights are shaved.
MAX_TIME_BEFORE_REPEAT = 0.3
MAX_REFINEMENT_TIME = 0.65
MAX_SHAVING_TIME = 0.93
# Shaving moves single weights at ever higher lambdas, to save bytes that are too many.
SHAVING_TRIALS = 400  # at each of these lambdas
SHAVING_LMBDA_DOUBLINGS = (2, 4, 6)


@dataclass(frozen=True)
class Refining:
    """How much is done for rounded networks and latents after a run or a pass."""

    trials: int = MAX_WEIGHT_TRIALS  # of single weights, at most
    quantisation_steps: int = 0  # of progressive quantisation
    searching: bool = True  # whether step sizes are searched for before that
    # Whether single weights save bytes for a target: in runs that may have no other pass, where
    # networks would get coarser at once, which loses what moving single weights brought.
    shaving: bool = False
    budget: Budget = NO_BUDGET  # for better latents, before single weights and after them


@dataclass(frozen=True, eq=False)
class Trial:
    """A model that could be the result; its figures are estimates."""

    networks: dict[str, Quantized] = field(repr=False)
    inwards: float  # of a step, by which latents are nearer to zero
    size: int  # bytes of the whole file
    psnr: float
    shaved: int = 0  # times that single weights were moved to save bytes


@dataclass(frozen=True, eq=False)
class Written:
    """A model as a file has it; its figures are the file's."""

    model: LatentModel = field(repr=False)
    sections: tuple[Section, ...] = field(repr=False)
    pixels: Array = field(repr=False)  # uint8 [height, width, channels]
    size: int
    psnr: float

    def read_back(self, device: AnyDevice, found: Container) -> Array:
        """The pixels, once the bytes of a file are seen to hold this model.

        They follow from the model alone: what coding or writing got wrong shows here even where it
        changes no pixel, and what a driver gets wrong in a corner that NumPy makes as well. To make
        all of them once more would show only faults of a device that come and go. Raises
        FormatError.
        """
        if not _alike(decode.read(found, device), self.model):
            raise FormatError("it holds another model than was coded")
        ours = corner(self.model)
        if not np.array_equal(self.pixels[-ours.shape[0] :, -ours.shape[1] :], ours):
            raise FormatError("its pixels are not NumPy's")
        return self.pixels


class Rounding:
    """What a trained step becomes for one target; the step's grids and networks are used for it.

    `over` is asked before every trial whether such a share of the time that there was is over, so
    that what was found must do.
    """

    def __init__(
        self,
        picture: Picture,
        wanted: Goal,
        step: LatentStep,
        device: AnyDevice,
        exponents: Mapping[str, int],
        over: Callable[[float], bool] = lambda _: False,
        refining: Refining = Refining(),
    ) -> None:
        self._refining = refining
        self.picture, self.wanted, self.step, self.device = picture, wanted, step, device
        self._enough = partial(over, 1.0)
        self._shaving = partial(over, MAX_SHAVING_TIME) if refining.shaving else None
        self._hurried = partial(over, MAX_TIME_BEFORE_REPEAT)
        self._refined = partial(over, 1.0 if wanted.kind == "lambda" else MAX_REFINEMENT_TIME)
        self._grids = [grid.copy() for grid in step.grids()]
        self._search = Search(step, exponents, self._enough)
        self._overhead = draft.size(picture, "latent", _empty())
        self._bytes, self._decibels = 1.0, 0.0  # what estimates are multiplied by, what is added

    def best(self, lmbda: float) -> tuple[Written, Written]:
        """The file of the least D + lambda R, or of another lambda if that is nearer to the target.

        And the first of these. Where there is too much, latents are rounded towards zero, then
        networks to coarser steps, then latents further; where there is room, networks are rounded
        to finer steps.
        """
        self._decided(0.0)
        how = self._refining
        networks = self._search.best_networks(
            lmbda, how.quantisation_steps, how.searching, self._hurried
        )
        self._optimise_latents(networks, lmbda)
        networks = self._search.refined(networks, lmbda, self._refined, how.trials)
        self._optimise_latents(networks, lmbda)
        trial = self._trial(networks, 0.0)
        files = [self._written(trial)]
        while len(files) < MAX_FILES and self.wanted.kind != "lambda" and not self._enough():
            if self.wanted.hit_by(files[-1].size, files[-1].psnr):
                break
            self._learn(trial, files[-1])
            before, trial = trial, self._nearest(networks, lmbda)
            if _way(trial) == _way(before):
                break
            files.append(self._written(trial))
        return min(files, key=lambda file: self.wanted.distance(file.size, file.psnr)), files[0]

    def _optimise_latents(self, networks: Mapping[str, Quantized], lmbda: float) -> None:
        """Have other whole latents where these are better."""
        before = self._decided(0.0)
        self._search.optimise_latents(networks, lmbda, self._refining.budget, self._refined)
        for grid, old, new in zip(self._grids, before, self.step.grids(), strict=True):
            np.copyto(grid, new, where=new != old)

    def _nearest(self, networks: dict[str, Quantized], lmbda: float) -> Trial:
        wanted, first = self.wanted, {n: q.exponent for n, q in networks.items()}

        def at_lmbda(halvings: float) -> Trial:
            self._decided(0.0)
            self._search.exponents = dict(first)
            return self._trial(self._search.run(lmbda / 2**halvings, rounds=1), 0.0)

        def inner(networks: dict[str, Quantized], share: float) -> Trial:
            return self._trial(networks, -share)

        tried = [self._trial(networks, 0.0)]
        over = is_too_much(wanted, tried[0])
        if over:
            ends = (-MAX_SHRINKAGE, 0.0)
            tried += approached(wanted, tried[0], ends, partial(inner, networks), self._enough)
        if over and not self._hit(tried) and self._shaving is not None:
            tried += self._shaved(networks, lmbda, self._shaving)
        if not self._hit(tried):
            ends = (-MAX_LMBDA_DOUBLINGS, 0.0) if over else (0.0, MAX_LMBDA_DOUBLINGS)
            tried += approached(wanted, tried[0], ends, at_lmbda, self._enough)
        if wanted.kind != "psnr" and all(is_too_much(wanted, trial) for trial in tried):
            coarsest, ends = tried[-1].networks, (-MAX_LAST_RESORT_SHRINKAGE, 0.0)
            further = partial(inner, coarsest)
            tried += approached(wanted, tried[-1], ends, further, self._enough)
        return nearest(wanted, tried)

    def _hit(self, tried: list[Trial]) -> bool:
        return any(self.wanted.hit_by(trial.size, trial.psnr) for trial in tried)

    def _shaved(
        self, networks: dict[str, Quantized], lmbda: float, enough: Callable[[], bool]
    ) -> list[Trial]:
        """Single weights moved at ever higher lambdas, until that is few enough bytes."""
        tried = list[Trial]()
        for doublings in SHAVING_LMBDA_DOUBLINGS:
            self._decided(0.0)
            dearer = lmbda * 2**doublings
            networks = self._search.refined(networks, dearer, enough, SHAVING_TRIALS)
            tried.append(replace(self._trial(networks, 0.0), shaved=doublings))
            if self._hit(tried[-1:]) or not is_too_much(self.wanted, tried[-1]) or enough():
                break
        return tried

    def _trial(self, networks: dict[str, Quantized], inwards: float) -> Trial:
        self._decided(inwards)
        figures = self._search.figures(networks)
        size = math.ceil(self._overhead + figures.bits / 8 * self._bytes)
        return Trial(networks, inwards, size, figures.psnr + self._decibels)

    def _learn(self, trial: Trial, written: Written) -> None:
        """How estimates differ from a file."""
        self._bytes *= (written.size - self._overhead) / max(trial.size - self._overhead, 1)
        if math.isfinite(written.psnr):  # of what gives all back no estimate could be wrong
            self._decibels += written.psnr - trial.psnr

    def _decided(self, inwards: float) -> list[Array]:
        """int8: whole latents, each so much of a step nearer to zero, which the step now has."""
        found = []
        for grid in self._grids:
            moved = np.sign(grid) * np.maximum(np.abs(grid) - np.float32(inwards), 0)
            whole = np.clip(np.floor(moved + np.float32(0.5)), MIN_LATENT, MAX_LATENT)
            found.append(whole.astype(np.int8))
        self.step.write_grids(found)
        return found

    def _written(self, trial: Trial) -> Written:
        grids = tuple(self._decided(trial.inwards))
        model = LatentModel(self.step.shape, grids, trial.networks, self.step.start.number)
        with ThreadPoolExecutor(1) as other:  # as coding keeps one core busy
            coded = other.submit(sections.write, model, self.device)
            pixels = synthesize(model, self.device)
            parts = _sections(*coded.result())
        size = draft.size(self.picture, "latent", parts)
        return Written(model, parts, pixels, size, psnr(self.picture.pixels, pixels))


def _alike(one: LatentModel, other: LatentModel) -> bool:
    if (one.shape, one.pretrained) != (other.shape, other.pretrained):
        return False
    networks = one.networks.keys() == other.networks.keys() and all(
        tensor.exponent == other.networks[name].exponent
        and np.array_equal(tensor.values, other.networks[name].values)
        for name, tensor in one.networks.items()
    )
    return networks and all(map(np.array_equal, one.latents, other.latents))


def _way(trial: Trial) -> tuple[float, int, list[int]]:
    """What was changed for the target."""
    return trial.inwards, trial.shaved, [one.exponent for one in trial.networks.values()]


def _sections(network: bytes, weights: bytes, latents: bytes) -> tuple[Section, ...]:
    kinds = container.NETWORK, container.WEIGHTS, container.LATENTS
    return tuple(map(Section, kinds, (network, weights, latents)))


def _empty() -> tuple[Section, ...]:
    """Sections without any weight or latent; estimates of networks count the steps of tensors."""
    return _sections(bytes(6), bytes(2), bytes(2))
