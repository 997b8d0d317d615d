"""A self-test of a device against NumPy, with advice on how to mend what is wrong.

Each test is written twice, with Tensors and in plain NumPy. Tests are small, so that they take
seconds even if the driver compiles slowly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from imgmlp.engine.device.base import DeviceInfo
from imgmlp.engine.device.discover import INSTALL_HINT, ONLY_SIMULATOR, AnyDevice, diagnose
from imgmlp.engine.device.kernel_cache import is_private
from imgmlp.engine.device.opencl import Device
from imgmlp.engine.device.pocl import unsupported_reason
from imgmlp.engine.frontend.optim import SGD
from imgmlp.engine.frontend.tensor import Tensor
from imgmlp.engine.frontend.tracing import compile
from imgmlp.engine.ir.dtype import Array, f32, u8
from imgmlp.engine.operations import operands
from imgmlp.engine.runtime.program import Program
from imgmlp.errors import ImgmlpError

Cases = Mapping[str, tuple[Tensor, Array]]  # by name: what is computed, and the same by NumPy

TOLERANCE = 1e-5  # relative to the largest value; a hundred roundings of float32
NVIDIA_VERSION_FILE = Path("/proc/driver/nvidia/version")
RENDER_NODE_FOLDER = Path("/dev/dri")
PROBE_SOURCE = """__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void imgmlp_probe(__global int *x) { x[0] = 6 * 7; }"""


@dataclass(frozen=True)
class Finding:
    """The result of one test. A test may pass and still have a `problem`, which only costs time."""

    name: str
    passed: bool = True
    problem: str = ""
    hint: str = ""


def check_device(device: AnyDevice) -> list[Finding]:
    """Test a device. Problems are returned, not raised; if nothing compiles, that is the only one.

    Raises TypeError if `device` is no device, but for example a name of one.
    """
    operands.check_device("check_device", device)
    problem = unsupported_reason(device.info.platform, device.info.compiled_for)
    if problem:  # the tests might crash
        return [Finding("processor", False, problem, _update(device.info))]
    checks = [_run_test("build", _build, device)]
    if checks[0].passed:
        checks += [_run_test(name, test, device) for name, test in TESTS.items()]
        if isinstance(device, Device) and is_private():
            checks.append(_NO_CACHE)
    return checks


_NO_CACHE = Finding(
    "kernel cache",
    problem="there is no folder to keep compiled kernels in, so every start compiles them again",
    hint="set POCL_CACHE_DIR or XDG_CACHE_HOME to a folder that can be written",
)


def _run_test(name: str, test: Callable[[AnyDevice], str], device: AnyDevice) -> Finding:
    info = device.info
    try:
        problem = test(device)
    except ImgmlpError as error:
        return Finding(name, False, str(error), f"{_update(info)}\n{error.hint}".strip())
    except Exception as error:
        return Finding(name, False, f"{type(error).__name__}: {error}", _update(info))
    return Finding(name, not problem, problem, _update(info) if problem else "")


def _update(info: DeviceInfo) -> str:
    if info.kind == "numpy":
        return "reinstall NumPy and imgmlp"
    return f"update or reinstall {info.platform}'s driver ({info.driver}), or use another device"


# The tests; each returns what is wrong, or ""


def _build(device: AnyDevice) -> str:
    """Test that a kernel compiles and runs, and that its result can be read."""
    answer = np.array([42], np.int32)
    allocation = device.alloc(answer.nbytes)
    if isinstance(device, Device):
        kernel = device.build(PROBE_SOURCE, ["imgmlp_probe"])["imgmlp_probe"]
        device.launch_all([device.bind(kernel, [allocation], (1,), (1,))])
    else:
        device.write(allocation, answer)
    result = np.zeros_like(answer)
    device.read(allocation, result)
    return _difference("a kernel's result", result, answer)


def _elementwise(device: AnyDevice) -> str:
    x = np.linspace(-3, 3, 1003, dtype=np.float32)
    n = np.arange(-500, 503, dtype=np.int32)
    a, k = Tensor(x, device), Tensor(n, device)
    return _compared(
        device,
        {
            "functions": (
                a.exp() * a.sin() + (a.square() + 1).sqrt() / 3,
                np.exp(x) * np.sin(x) + np.sqrt(x * x + 1) / 3,
            ),
            "choices": (Tensor.where(a < 1, a.abs(), -a), np.where(x < 1, np.abs(x), -x)),
            "integers": ((k * 7 ^ (k >> 2)) % 13, (n * 7 ^ (n >> 2)) % 13),
            "bytes": (k.cast(u8).cast(f32), n.astype(np.uint8).astype(np.float32)),
        },
    )


def _reduction(device: AnyDevice) -> str:
    n = np.arange(70 * 301, dtype=np.int32).reshape(70, 301) % 1001
    k = Tensor(n, device)
    x = k.cast(f32) * (1 / 1001)
    return _compared(
        device,
        {
            "sum of all": (k.sum(), n.sum(dtype=np.int32)),
            "sum of rows": (x.sum(1), (n / 1001).sum(1)),
            "sum of columns": (x.sum(0), (n / 1001).sum(0)),
            "maximum": (k.max(1), n.max(1)),
        },
    )


def _product(device: AnyDevice) -> str:
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((67, 130), (130, 35)))
    x, y = Tensor(a, device), Tensor(b, device)
    return _compared(
        device,
        {
            "product": (x @ y, a @ b),
            "product of transposes": (y.transpose() @ x.transpose(), (a @ b).T),
        },
    )


def _gather(device: AnyDevice) -> str:
    table = np.arange(50 * 6, dtype=np.float32).reshape(50, 6)
    index = np.arange(200, dtype=np.int32) * 7 % 50
    return _compared(
        device, {"rows": (Tensor(table, device).gather(Tensor(index, device)), table[index])}
    )


def _random_numbers(device: AnyDevice) -> str:
    def hashed(x: Array) -> Array:  # lowbias32
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = (x ^ (x >> shift)) * np.uint32(factor)
        return np.asarray(x ^ (x >> 16))

    seed = hashed(np.array([5 + 0x9E3779B9], np.uint32))
    bits = hashed(hashed(np.arange(1000, dtype=np.uint32)) + seed)
    return _compared(
        device,
        {
            "bits": (Tensor.random_bits((1000,), 5, device), bits),
            "uniform": (Tensor.uniform((1000,), 5, device), (bits >> 8) * 2.0**-24),
        },
    )


def _training_step(device: AnyDevice) -> str:
    """Test three steps of gradient descent of two layers against hand-written gradients."""
    rng = np.random.default_rng(1)
    x, t, w, v = (  # [rows, 7], [rows, 3], [7, 9], [9, 3]
        rng.uniform(-1, 1, s).astype(np.float32) for s in ((40, 7), (40, 3), (7, 9), (9, 3))
    )
    inputs, targets = Tensor(x, device), Tensor(t, device)
    first, second = Tensor(w, device), Tensor(v, device)
    optimizer = SGD([first, second], lr=0.01)

    def step() -> dict[str, Tensor]:
        error = ((inputs @ first).relu() @ second - targets).square().sum()
        optimizer.step(error)
        return {"first": first, "second": second, "error": error}

    program = compile(step, device)
    program.run(3)
    for _ in range(3):
        hidden = np.maximum(x @ w, 0)
        error = hidden @ v - t
        slope = 2 * error @ v.T * (hidden > 0)
        w, v = w - 0.01 * x.T @ slope, v - 0.01 * hidden.T @ (2 * error)
    return _first_difference(program, {"first": w, "second": v, "error": np.square(error).sum()})


TESTS: dict[str, Callable[[AnyDevice], str]] = {
    "elementwise": _elementwise,
    "reduction": _reduction,
    "product": _product,
    "gather": _gather,
    "random numbers": _random_numbers,
    "training step": _training_step,
}


# Comparison


def _compared(device: AnyDevice, cases: Cases) -> str:
    program = compile(lambda: {name: tensor for name, (tensor, _) in cases.items()}, device)
    program.run()
    return _first_difference(program, {name: wanted for name, (_, wanted) in cases.items()})


def _first_difference(program: Program, wanted: Mapping[str, Array]) -> str:
    differences = (_difference(name, program.read(name), array) for name, array in wanted.items())
    return next(filter(None, differences), "")


def _difference(name: str, result: Array, wanted: Array) -> str:
    """What is wrong with an array, or "". Integers must be equal, floats within TOLERANCE."""
    if result.dtype.kind != "f":
        wrong = int((result != wanted).sum())
        return f"{name}: {wrong} of {result.size} values are wrong" if wrong else ""
    error = float(np.abs(result - wanted).max() / np.abs(wanted).max())
    if error <= TOLERANCE:  # false for NaN
        return ""
    return f"{name}: off by {error:.2g} of the largest value, at most {TOLERANCE:g} is rounding"


# Missing drivers


def missing_drivers(devices: Sequence[DeviceInfo]) -> list[str]:
    """Advice for devices of this machine that seem to lack a driver."""
    advice = []
    vendors = os.environ.get("OCL_ICD_VENDORS")
    if vendors and not Path(vendors).exists():
        advice.append(f"OCL_ICD_VENDORS names {vendors}, which is not there; unset or correct it")
    platforms = {d.platform for d in devices}
    if NVIDIA_VERSION_FILE.exists() and "NVIDIA CUDA" not in platforms:
        advice.append(
            "there is an NVIDIA driver, but OpenCL does not know it; install its OpenCL library "
            "and write libnvidia-opencl.so.1 into /etc/OpenCL/vendors/nvidia.icd"
        )
    nodes = [path for path in RENDER_NODE_FOLDER.glob("renderD*") if not os.access(path, os.R_OK)]
    advice += [f"{path} cannot be opened; join the group that may (often render)" for path in nodes]
    if all(d.kind in ("numpy", "simulator") for d in devices):
        reason = diagnose() or ONLY_SIMULATOR
        advice.append(f"no OpenCL device: {reason}; {INSTALL_HINT}")
    return advice
