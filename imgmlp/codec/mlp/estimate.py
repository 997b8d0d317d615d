"""Estimates the work of training for a target by the size of the picture alone."""

from __future__ import annotations

from imgmlp.codec.mlp import buckets, rate_model
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.qat_step import BATCH
from imgmlp.codec.mlp.rounding_search import paid_weights
from imgmlp.codec.mlp.size_search import MAX_PILOTS, neighbours_to_try, pilot_weights
from imgmlp.codec.training.target import Goal, Kind, Workload
from imgmlp.codec.training.time_estimate import Work
from imgmlp.engine import AnyDevice, NumpyDevice
from imgmlp.image import Picture

USUAL_ATTEMPTS = 4  # towards a PSNR; more only if none came near it
STEPS_PER_PILOT_STEP = 10  # an attempt's steps for each step of a pilot, which measures the picture
MIN_PILOT_STEPS = 1_500  # fewer say little about long runs
MIN_PIXELS_PER_WEIGHT = 55  # that training sees; with fewer, weights are not worth their time
SMALL_NETWORK_WEIGHTS = 2_000.0  # networks of fewer take hardly less time
# Attempts of up to this many operations, about 10 s of two cores, are followed by rivals, which are
# networks of slightly more or fewer weights: chance makes one of them up to 0.5 dB better.
MAX_BRIEF_OPERATIONS = 1e12
MAX_RIVALS: dict[Kind, int] = {"bytes": 2, "lambda": 2, "psnr": 10}
# The same for attempts that take only a moment, with the smallest networks.
MAX_MOMENT_OPERATIONS = 2.5e10
MAX_MOMENT_RIVALS = 4
# Seconds per step that NumPy takes for any network: 1.1 to 2 ms were measured for 123 to 963
# weights on an AMD EPYC, family 25, at 2.4 GHz.
INTERPRETED_STEP_SECONDS = 1.8e-3
FILE_CHECKS = 2  # times that files are usually decoded after training


def work(picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice) -> Work:
    """The estimated work of training for a target and of checking files."""
    samples, channels = picture.width * picture.height, picture.channels
    weights, batch_factor = usual_weights(picture, wanted, workload), workload.batch_factor
    steps = workload.steps * batch_factor  # of BATCH pixels
    shape = rate_model.network_shape(weights, channels)
    shapes, runs = [shape], 1.0
    is_limited = workload.seconds is not None
    max_rivals = 0 if is_limited else rivals(wanted.kind, operations(weights, steps))
    if max_rivals:
        shapes = neighbours_to_try(shape, wanted.kind)[: 1 + max_rivals]
        runs += max_rivals
    elif wanted.kind == "psnr":
        runs += USUAL_ATTEMPTS / 2 - 1
    bucket_steps = 0 if is_limited else workload.steps
    programs = [step_program(shape, batch_factor, device, bucket_steps) for shape in shapes]
    if wanted.kind != "bytes":
        runs += MAX_PILOTS / 2 * 1.5 * pilot_steps(workload.steps) / max(workload.steps, 1)
        pilot = rate_model.network_shape(pilot_weights(samples), channels)
        programs.append(step_program(pilot, batch_factor, device, pilot_steps(bucket_steps)))
    programs += [decoding_program(shape, device, samples) for shape in shapes]
    batch = BATCH * batch_factor
    bucket = buckets.training_shape(shape, device, bucket_steps, batch)
    if buckets.opening_steps(shape, device, bucket_steps, batch):
        bucket = shape  # most steps run in the network's own program
    decoded = buckets.decoding_shape(shape, device, samples).parameters * samples
    computed = operations(bucket.parameters, runs * steps) + 2 * FILE_CHECKS * decoded
    trained = runs * workload.steps
    fixed = INTERPRETED_STEP_SECONDS * trained if isinstance(device, NumpyDevice) else 0.0
    return Work(trained, computed, tuple(dict.fromkeys(programs)), fixed)


def usual_weights(picture: Picture, wanted: Goal, workload: Workload) -> float:
    """How many weights a typical picture needs for a target, and training can make use of."""
    most = 8 * picture.pixels.nbytes / rate_model.BITS_PER_WEIGHT
    if wanted.kind == "bytes":
        return min(paid_weights(picture, wanted.value), most)
    seen_pixels = workload.steps * workload.batch_factor * BATCH
    trainable = max(SMALL_NETWORK_WEIGHTS, seen_pixels / MIN_PIXELS_PER_WEIGHT)
    usual = rate_model.usual_weights(wanted, picture.width * picture.height)
    return min(usual, most, trainable)


def pilot_steps(steps: int) -> int:
    """Steps of a pilot before an attempt of `steps`."""
    return max(steps // STEPS_PER_PILOT_STEP, min(MIN_PILOT_STEPS, steps // 2))


def step_program(shape: Shape, batch_factor: int, device: AnyDevice, steps: int) -> str:
    """The name in compile_times.py of the program that a run begins with; its `steps` are 0 with a
    time limit."""
    batch = BATCH * batch_factor
    return f"mlp step: {buckets.training_shape(shape, device, steps, batch)} {batch}"


def decoding_program(shape: Shape, device: AnyDevice, pixels: int) -> str:
    """The name of the program that decodes a picture of this many pixels."""
    return f"mlp decoding: {buckets.decoding_shape(shape, device, pixels)}"


def rivals(kind: Kind, computed: float) -> int:
    """The most rivals that follow an attempt of `computed` operations."""
    least = MAX_MOMENT_RIVALS if computed <= MAX_MOMENT_OPERATIONS else 0
    return max(MAX_RIVALS[kind], least) if computed <= MAX_BRIEF_OPERATIONS else 0


def operations(weights: float, steps: float) -> float:
    """Operations of `steps` training steps of a network."""
    return 6 * weights * steps * BATCH
