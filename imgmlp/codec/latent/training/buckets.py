"""Which compiled program trains a picture: one for its exact size, for a bucket, or for windows.

A program is compiled for fixed rows and columns. So that a new size of picture compiles nothing,
sizes share programs in two ways. A bucket is a padded shape: it trains any picture that fits into
it. Windows cut a large picture into pieces of one shape, which are trained one after the other.

On CPUs, where compiling takes long, short runs use programs that serve many sizes: windows (thin
pictures have narrow ones) or, for small pictures, a few square buckets. On GPUs, where compiling
takes as long as thousands of training steps, short runs use a few coarse buckets. Long runs open in
such a shared program as well, while another process compiles the program of the picture's own
bucket, where a step takes less time; then they switch to it.

    python -m imgmlp.codec.latent.training.buckets DEVICE REQUEST

is that process. The request is JSON: the picture's shape, the seed, the architecture, and the
bucket, or null for the picture's exact size.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from imgmlp import child
from imgmlp.codec.latent.plane import MAX_POWER_OF_TWO_SIDE, bucket_side
from imgmlp.codec.latent.step.architecture import Architecture, levels_of
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.engine import AnyDevice, open_device

Sides = tuple[int, int]  # rows and columns
Bucket = Sides | None  # None: a program for the exact size of the picture


class DeviceLimits(NamedTuple):
    """What decides between programs on one kind of device."""

    # Usual rows and columns of a window, multiples of 2^(levels - 1).
    window_size: Sides
    # Pixels up to which a picture is trained as a whole; larger ones are in windows. A step and its
    # evaluation take some 310 bytes for each. CPUs count the picture's pixels, GPUs its bucket's.
    max_whole_pixels: int
    # Operations that a long run spends in its opening, so that the number of steps there depends on
    # the picture alone. They are wasted only if the other program was compiled before.
    opening_operations: float
    # Operations, about as long as compiling takes, that a program for its own bucket must save a
    # run to be worth it.
    min_saved_operations: float


# A CPU's caches hold a small window, which makes up for its halo. The opening takes 10 s of two
# cores; beside it, compiling takes some 20 s.
CPU = DeviceLimits((256, 256), 3 * 2**20, 1e12, 2e12)
# A GPU is not busy with a small window, and sending windows' data to it takes long, so it trains
# buckets of up to 4 GB as a whole. The opening takes an H200 2 s, compiling some 5 s. The last
# limit is 1 s of an H200, as the speeds of GPUs differ more than those of CPUs.
GPU = DeviceLimits((512, 512), 12_900_000, 5e13, 3e13)

# The window of photographs on CPUs that would need six usual ones: with a single window latents
# need not be exchanged with the host.
SINGLE_WINDOW = 512, 768
# Rows and columns of windows on CPUs for pictures that would fill too little of the usual ones. The
# short side holds the whole picture, so there are several windows along the long side only.
THIN_WINDOWS: tuple[Sides, ...] = (64, 256), (32, 512), (128, 256)
# Buckets of short runs on GPUs, for pictures no higher than wide; others have them transposed.
COARSE_BUCKETS: tuple[Sides, ...] = (
    (128, 256), (256, 256), (256, 384), (512, 512), (512, 768), (1024, 1024), (1024, 1536),
    (1536, 2048), (2048, 3072), (3072, 4096),
)  # fmt: skip
# How many times the picture's pixels its windows, or its coarse bucket, may have.
MAX_PADDING_FACTOR = 4
EXTRA_GRID_MEMORY = 0.3  # memory of an extra grid, as a fraction of that of the step without any
# A run opens in a shared program only if it has this many times the steps of the opening; shorter
# ones stay in the shared program from beginning to end.
MIN_RUN_PER_OPENING = 4
HALO_TIME = 0.06  # fraction of a step's time that the halo takes where there is a single window


@dataclass(frozen=True)
class TrainingSetup:
    """A picture's shape, the device, and the kind of run: they determine the program."""

    shape: tuple[int, ...]  # of the pixels: height, width, channels
    device: AnyDevice
    # Whether compiling would take a large part of the run. CPUs, which are slow to compile and to
    # compute, then use programs that serve many sizes.
    is_short: bool = False
    extra_grids: int = 0  # grids of latents at the picture's size, beside the finest

    @property
    def limits(self) -> DeviceLimits:
        return GPU if is_gpu(self.device) else CPU

    @property
    def for_short_run(self) -> TrainingSetup:
        return replace(self, is_short=True)

    # --- windows ---

    @property
    def can_use_windows(self) -> bool:
        """Whether the picture fills enough of its windows to be trained in them."""
        pixels = self.shape[0] * self.shape[1]
        return self.window_pixels <= MAX_PADDING_FACTOR * pixels or self.has_thin_windows

    @property
    def has_thin_windows(self) -> bool:
        """Whether its windows are narrow ones, as it would fill too little of the usual ones."""
        return self.window_size in (*THIN_WINDOWS, *(sides[::-1] for sides in THIN_WINDOWS))

    @property
    def window_size(self) -> Sides:
        """Rows and columns of its windows."""
        usual = self.limits.window_size
        height, width = self.shape[:2]
        if is_gpu(self.device) or max(height, width) <= MAX_POWER_OF_TWO_SIDE:
            return usual
        oriented = partial(_oriented, self.shape)
        if self._padded_pixels(usual) <= MAX_PADDING_FACTOR * height * width:
            single = oriented(SINGLE_WINDOW)
            wastes_nothing = (
                self._padded_pixels(usual) == self._padded_pixels(single) == math.prod(single)
            )
            return single if wastes_nothing else usual
        thin = [sides for sides in map(oriented, THIN_WINDOWS) if min(sides) >= min(height, width)]
        return min(thin, key=self._padded_pixels, default=usual)

    @property
    def window_pixels(self) -> int:
        """Pixels of all its windows, those beyond the picture's edges included."""
        return self._padded_pixels(self.window_size)

    def _padded_pixels(self, window: Sides) -> int:
        sides = zip(self.shape[:2], window, strict=True)
        return math.prod(-(-side // of) * of for side, of in sides)

    @property
    def window_count(self) -> int:
        return self.window_pixels // math.prod(self.window_size)

    @property
    def uses_windows(self) -> bool:
        """Whether it is trained in windows: as a whole it would need too much memory, or a short
        run needs a program that serves any size."""
        pixels, most = float(self.shape[0] * self.shape[1]), self.limits.max_whole_pixels
        if is_gpu(self.device):
            pixels = self._bucket_pixels * self._extra_memory
        elif (
            self.is_short
            and compiles_slowly(self.device)
            and max(self.shape[:2]) > MAX_POWER_OF_TWO_SIDE
        ):
            most = 0
        elif self.has_thin_windows:  # a bucket has up to 32 times the pixels of a thin picture
            pixels = self._bucket_pixels
        return pixels > most and self.can_use_windows

    @property
    def starts_in_windows(self) -> bool:
        """Whether at least the opening of a run is in windows."""
        return replace(self, is_short=True, extra_grids=0).uses_windows

    @property
    def _extra_memory(self) -> float:
        """The factor by which extra grids increase the memory of a step."""
        return 1 + EXTRA_GRID_MEMORY * self.extra_grids

    # --- buckets ---

    @property
    def bucket(self) -> Bucket:
        """Rows and columns that the program is compiled for; None for the picture's exact size.

        An exact size saves 3% of a step's time on CPUs and nothing on GPUs.
        """
        sides = bucket_side(self.shape[0]), bucket_side(self.shape[1])
        if not _compiles(self.device):
            return None
        if self.is_short and max(sides) <= MAX_POWER_OF_TWO_SIDE:
            return max(sides), max(sides)
        if is_gpu(self.device):
            return (self._coarse_bucket if self.is_short else None) or sides
        return None if self._has_exact_program(sides) else sides

    @property
    def _coarse_bucket(self) -> Bucket:
        """The smallest of COARSE_BUCKETS that the picture fits into; None if it would fill too
        little of that, or fits into none."""
        height, width = self.shape[:2]
        for rows, columns in map(partial(_oriented, self.shape), COARSE_BUCKETS):
            if rows >= height and columns >= width:
                fills = rows * columns <= MAX_PADDING_FACTOR * height * width
                return (rows, columns) if fills else None
        return None

    def _has_exact_program(self, sides: Sides) -> bool:
        """Whether the picture fills its bucket and is worth compiling for: small ones take less
        time to train than to compile."""
        return self.shape[:2] == sides and max(sides) > MAX_POWER_OF_TWO_SIDE

    @property
    def _bucket_pixels(self) -> int:
        return math.prod(self.bucket or self.shape[:2])

    # --- the opening of a long run, in a shared program ---

    @property
    def has_opening(self) -> bool:
        """Whether a run starts in a program that serves more sizes than the one it may switch
        to."""
        if self.is_short or not _compiles(self.device) or self.uses_windows:
            return False
        own, shared = self.bucket, self.for_short_run.bucket
        if is_gpu(self.device):
            # Both are in memory for a moment, in this process and in the one that compiles.
            both = self.opening_pixels + self.final_pixels
            return own != shared and both * self._extra_memory <= self.limits.max_whole_pixels
        return self.starts_in_windows or own != shared

    def opening_steps(self, operations: int) -> int:
        """Training steps of the opening, with so many operations a pixel; 0 if there is none."""
        if not self.has_opening:
            return 0
        return math.ceil(self.limits.opening_operations / (self.opening_pixels * operations))

    @property
    def opening_pixels(self) -> int:
        """Pixels that a step of the opening computes."""
        return self.window_pixels if self.starts_in_windows else self.for_short_run._bucket_pixels

    @property
    def final_pixels(self) -> int:
        """Pixels that a step computes after the opening, about."""
        if self.starts_in_windows and not self.has_thin_windows:
            return self.shape[0] * self.shape[1]
        return replace(self, is_short=False)._bucket_pixels

    def own_bucket_pays(self, steps: float, operations: int) -> bool:
        """Whether a program for its own bucket saves a run of so many steps, with so many
        operations a pixel, more than compiling it costs, in comparison with a single window or a
        coarse bucket."""
        saved: float = self.opening_pixels - self.final_pixels
        if self.starts_in_windows:
            saved += HALO_TIME * self.window_pixels
        return steps * saved * operations >= self.limits.min_saved_operations

    def switches_program(self, steps: int, opening_steps: int, operations: int) -> bool:
        """Whether a run of so many steps leaves the shared program after its opening.

        From several windows it always does if it is long enough, as networks are updated by every
        window of a step.
        """
        single = self.starts_in_windows and self.window_count == 1
        must_pay = (single and not self.has_thin_windows) or is_gpu(self.device)
        pays = not must_pay or self.own_bucket_pays(steps, operations)
        return pays and 0 < MIN_RUN_PER_OPENING * opening_steps <= steps

    def step_program(self, widths: tuple[int, int], has_hyperlatents: bool = False) -> str:
        """The name in compile_times.py of the program that a run starts in."""
        height, width, channels = self.shape
        first = replace(self, is_short=self.is_short or self.has_opening)
        if first.uses_windows:
            sizes = "windows of {}x{}".format(*first.window_size)
        elif first.bucket:
            sizes = "{}x{}".format(*first.bucket)
        else:
            sizes = f"{height}x{width} alone"
        levels = levels_of(height, width, first.bucket)
        extra = f", {self.extra_grids} extra" * (self.extra_grids > 0)
        kind = f"widths {widths}" + ", hyperlatents" * has_hyperlatents + extra
        return f"latent step: {sizes} x{channels}, {levels} levels, {kind}"


def _oriented(shape: tuple[int, ...], sides: Sides) -> Sides:
    """Sides of a window or bucket no higher than wide, transposed for pictures higher than wide."""
    return sides if shape[0] <= shape[1] else sides[::-1]


def bucket_compiler(like: LatentStep, bucket: Bucket) -> child.Helper:
    """A process that compiles, for a bucket, the programs that train the picture of a step."""
    request = {
        "shape": (like.height, like.width, like.channels),
        "seed": like.seed,
        "architecture": asdict(like.architecture),
        "bucket": bucket,
    }
    return child.Helper(
        "imgmlp.codec.latent.training.buckets",
        like.device.info.spec,
        json.dumps(request),
        # A run on a GPU leaves CPU cores to further processes that help compiling.
        may_have_helpers=is_gpu(like.device),
    )


def compile_bucket(spec: str, request: str) -> None:
    """Compile what `bucket_compiler` asks for; runs in its process."""
    wanted = json.loads(request)
    step = LatentStep(
        np.zeros(wanted["shape"], np.uint8),
        wanted["seed"],
        open_device(spec),
        Architecture(**wanted["architecture"]),
        wanted["bucket"] and tuple(wanted["bucket"]),
    )
    step.judge(step.flat.numpy())
    step.run(1)


def is_gpu(device: AnyDevice) -> bool:
    """Whether it is a GPU, or a dry run of one; NumPy is none, whatever lanes it stands in for."""
    return _compiles(device) and device.lanes == "group"


def _compiles(device: AnyDevice) -> bool:
    return device.info.kind != "numpy"


def compiles_slowly(device: AnyDevice) -> bool:
    """Whether compiling takes seconds where training takes seconds too, as on CPUs."""
    return _compiles(device) and not is_gpu(device)


if __name__ == "__main__":
    child.end_with_parent()
    compile_bucket(*sys.argv[1:])
