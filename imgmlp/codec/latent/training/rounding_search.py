"""Rounds a trained step to the file that comes nearest to a target.

Networks and latents are first rounded for the least D + lambda R. If that file misses a target of
bytes or dB, latents are shrunk or networks rounded at other lambdas until it is met.
"""

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

# How far latents may be moved towards zero before they are rounded, in quantisation steps. Moving
# them further makes files larger, except after a short run; the last resort applies if no file is
# small enough.
MAX_SHRINKAGE = 0.04
MAX_LAST_RESORT_SHRINKAGE = 0.5
MAX_LMBDA_DOUBLINGS = 6.0  # up or down; networks are rounded at these lambdas to meet a target
MAX_FILES = 4  # that are written to learn their exact size and quality
# Fractions of the time for rounding after which a stage must be over:
MAX_TIME_BEFORE_REPEAT = 0.3  # progressive quantisation, if it is to be repeated in the same time
MAX_REFINEMENT_TIME = 0.65  # refining weights and latents, if a target is to be approached then
MAX_SHAVING_TIME = 0.93
# Shaving moves single weights at ever higher lambdas, to save the bytes that are too many.
SHAVING_TRIALS = 400  # of single weights at each lambda, at most
SHAVING_LMBDA_DOUBLINGS = (2, 4, 6)


@dataclass(frozen=True)
class Refining:
    """How much effort rounding is worth after a run or a pass."""

    trials: int = MAX_WEIGHT_TRIALS  # of single weights, at most
    quantisation_steps: int = 0  # of progressive quantisation
    searching: bool = True  # whether step sizes are searched for before progressive quantisation
    # Whether to save bytes by moving single weights before networks are rounded more coarsely: this
    # loses what moving weights has gained. For runs that may have no other pass.
    shaving: bool = False
    budget: Budget = NO_BUDGET  # for optimising latents, both before and after single weights


@dataclass(frozen=True, eq=False)
class Trial:
    """A model that could be the result; its figures are estimates."""

    networks: dict[str, Quantized] = field(repr=False)
    shrinkage: float  # by which latents are moved towards zero, in quantisation steps
    size: int  # bytes of the whole file
    psnr: float
    shaved: int = 0  # doublings of lambda at which single weights were moved to save bytes


@dataclass(frozen=True, eq=False)
class Written:
    """A model as it is coded in a file; its figures are exact."""

    model: LatentModel = field(repr=False)
    sections: tuple[Section, ...] = field(repr=False)
    pixels: Array = field(repr=False)  # uint8 [height, width, channels]
    size: int
    psnr: float

    def read_back(self, device: AnyDevice, file: Container) -> Array:
        """The pixels of the file `found`, after checking that it holds this model.

        Pixels follow from the model alone, so comparing models finds every fault in coding or
        writing. Faults of a driver are found in the picture's lower right corner, which NumPy
        synthesizes as well. Decoding the whole picture once more would find only intermittent
        faults of the device. Raises FormatError.
        """
        if not _are_equal(decode.read(file, device), self.model):
            raise FormatError("it holds another model than was coded")
        ours = corner(self.model)
        if not np.array_equal(self.pixels[-ours.shape[0] :, -ours.shape[1] :], ours):
            raise FormatError("its pixels are not NumPy's")
        return self.pixels


class Rounding:
    """The rounding of a trained step for one target. It changes the step's grids and networks.

    `over`, given a fraction, says whether that much of the time for rounding is over. It is asked
    before every trial, and the search ends with what has been found when it says so.
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
        self._is_over = partial(over, 1.0)
        self._is_shaving_over = partial(over, MAX_SHAVING_TIME) if refining.shaving else None
        self._is_too_late_to_repeat = partial(over, MAX_TIME_BEFORE_REPEAT)
        self._is_refinement_over = partial(
            over, 1.0 if wanted.kind == "lambda" else MAX_REFINEMENT_TIME
        )
        self._grids = [grid.copy() for grid in step.grids()]
        self._search = Search(step, exponents, self._is_over)
        self._overhead = draft.size(picture, "latent", _empty())
        # What corrects estimates: a factor of the bytes beyond the overhead, and dB to add.
        self._bytes_factor, self._psnr_offset = 1.0, 0.0

    def best(self, lmbda: float) -> tuple[Written, Written]:
        """(the file nearest to the target, the file of the least D + lambda R).

        If the latter is too large, latents are shrunk, then networks are rounded to coarser steps,
        then latents are shrunk further. If it may be larger, networks are rounded to finer steps.
        """
        self._write_rounded(0.0)
        how = self._refining
        networks = self._search.best_networks(
            lmbda, how.quantisation_steps, how.searching, self._is_too_late_to_repeat
        )
        self._optimise_latents(networks, lmbda)
        networks = self._search.refined(networks, lmbda, self._is_refinement_over, how.trials)
        self._optimise_latents(networks, lmbda)
        trial = self._trial(networks, 0.0)
        files = [self._written(trial)]
        while len(files) < MAX_FILES and self.wanted.kind != "lambda" and not self._is_over():
            if self.wanted.hit_by(files[-1].size, files[-1].psnr):
                break
            self._calibrate(trial, files[-1])
            before, trial = trial, self._nearest(networks, lmbda)
            if _settings_of(trial) == _settings_of(before):
                break
            files.append(self._written(trial))
        return min(files, key=lambda file: self.wanted.distance(file.size, file.psnr)), files[0]

    def _optimise_latents(self, networks: Mapping[str, Quantized], lmbda: float) -> None:
        """Move single latents by one where that lowers D + lambda R."""
        before = self._write_rounded(0.0)
        self._search.optimise_latents(
            networks, lmbda, self._refining.budget, self._is_refinement_over
        )
        for grid, old, new in zip(self._grids, before, self.step.grids(), strict=True):
            np.copyto(grid, new, where=new != old)

    def _nearest(self, networks: dict[str, Quantized], lmbda: float) -> Trial:
        wanted, first = self.wanted, {n: q.exponent for n, q in networks.items()}

        def at_lmbda(halvings: float) -> Trial:
            self._write_rounded(0.0)
            self._search.exponents = dict(first)
            return self._trial(self._search.run(lmbda / 2**halvings, rounds=1), 0.0)

        def shrunk(networks: dict[str, Quantized], negative_shrinkage: float) -> Trial:
            return self._trial(networks, -negative_shrinkage)

        tried = [self._trial(networks, 0.0)]
        too_large = is_too_much(wanted, tried[0])
        if too_large:
            ends = (-MAX_SHRINKAGE, 0.0)
            tried += approached(wanted, tried[0], ends, partial(shrunk, networks), self._is_over)
        if too_large and not self._meets_target(tried) and self._is_shaving_over is not None:
            tried += self._shaved(networks, lmbda, self._is_shaving_over)
        if not self._meets_target(tried):
            ends = (-MAX_LMBDA_DOUBLINGS, 0.0) if too_large else (0.0, MAX_LMBDA_DOUBLINGS)
            tried += approached(wanted, tried[0], ends, at_lmbda, self._is_over)
        if wanted.kind != "psnr" and all(is_too_much(wanted, trial) for trial in tried):
            coarsest, ends = tried[-1].networks, (-MAX_LAST_RESORT_SHRINKAGE, 0.0)
            further = partial(shrunk, coarsest)
            tried += approached(wanted, tried[-1], ends, further, self._is_over)
        return nearest(wanted, tried)

    def _meets_target(self, tried: list[Trial]) -> bool:
        return any(self.wanted.hit_by(trial.size, trial.psnr) for trial in tried)

    def _shaved(
        self, networks: dict[str, Quantized], lmbda: float, enough: Callable[[], bool]
    ) -> list[Trial]:
        """Move single weights at ever higher lambdas, until the file is small enough."""
        tried = list[Trial]()
        for doublings in SHAVING_LMBDA_DOUBLINGS:
            self._write_rounded(0.0)
            higher_lmbda = lmbda * 2**doublings
            trials = min(SHAVING_TRIALS, self._refining.trials)
            networks = self._search.refined(networks, higher_lmbda, enough, trials)
            tried.append(replace(self._trial(networks, 0.0), shaved=doublings))
            if (
                self._meets_target(tried[-1:])
                or not is_too_much(self.wanted, tried[-1])
                or enough()
            ):
                break
        return tried

    def _trial(self, networks: dict[str, Quantized], shrinkage: float) -> Trial:
        self._write_rounded(shrinkage)
        figures = self._search.figures(networks)
        size = math.ceil(self._overhead + figures.bits / 8 * self._bytes_factor)
        return Trial(networks, shrinkage, size, figures.psnr + self._psnr_offset)

    def _calibrate(self, trial: Trial, written: Written) -> None:
        """Correct later estimates by how those of a trial differ from its file."""
        self._bytes_factor *= (written.size - self._overhead) / max(trial.size - self._overhead, 1)
        if math.isfinite(written.psnr):  # a lossless file says nothing about estimates
            self._psnr_offset += written.psnr - trial.psnr

    def _write_rounded(self, shrinkage: float) -> list[Array]:
        """Write shrunk and rounded latents to the step, and return them as int8."""
        found = []
        for grid in self._grids:
            moved = np.sign(grid) * np.maximum(np.abs(grid) - np.float32(shrinkage), 0)
            whole = np.clip(np.floor(moved + np.float32(0.5)), MIN_LATENT, MAX_LATENT)
            found.append(whole.astype(np.int8))
        self.step.write_grids(found)
        return found

    def _written(self, trial: Trial) -> Written:
        grids = tuple(self._write_rounded(trial.shrinkage))
        model = LatentModel(self.step.shape, grids, trial.networks, self.step.pretrained.number)
        with ThreadPoolExecutor(1) as other:  # coding keeps only one core busy
            coded = other.submit(sections.write, model, self.device)
            pixels = synthesize(model, self.device)
            parts = _sections(*coded.result())
        size = draft.size(self.picture, "latent", parts)
        return Written(model, parts, pixels, size, psnr(self.picture.pixels, pixels))


def _are_equal(one: LatentModel, other: LatentModel) -> bool:
    if (one.shape, one.pretrained) != (other.shape, other.pretrained):
        return False
    networks = one.networks.keys() == other.networks.keys() and all(
        tensor.exponent == other.networks[name].exponent
        and np.array_equal(tensor.values, other.networks[name].values)
        for name, tensor in one.networks.items()
    )
    return networks and all(map(np.array_equal, one.latents, other.latents))


def _settings_of(trial: Trial) -> tuple[float, int, list[int]]:
    """What distinguishes trials for a target from each other."""
    return trial.shrinkage, trial.shaved, [one.exponent for one in trial.networks.values()]


def _sections(network: bytes, weights: bytes, latents: bytes) -> tuple[Section, ...]:
    kinds = container.NETWORK, container.WEIGHTS, container.LATENTS
    return tuple(map(Section, kinds, (network, weights, latents)))


def _empty() -> tuple[Section, ...]:
    """Sections without weights and latents. Estimates of networks include their step sizes."""
    return _sections(bytes(6), bytes(2), bytes(2))
