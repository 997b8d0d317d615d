"""Runs a device's first kernel, in a process that may crash.

    python -m imgmlp.engine.device.trial DEVICE

writes as its last line that the device works, or what is wrong. It exits with TEMPORARY_FAILURE if
the problem may be gone the next time. probe.py starts it.
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine.device.discover import find
from imgmlp.engine.device.driver_errors import LastingError
from imgmlp.engine.device.opencl import Device
from imgmlp.engine.device.probe import TEMPORARY_FAILURE, WORKS
from imgmlp.errors import DeviceError, ImgmlpError

SIZE = 64  # floats
# It has vectors as wide as those of all kernels, and calls the driver's own library. So it fails if
# the compiler assumes a better processor or does not support such vectors. With vectors of 16
# floats LLVM uses AVX-512 registers, which it sometimes avoids otherwise.
SOURCE = """__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void imgmlp_probe(__global float *x, const int n) {
  for (int i = 0; i < n; i += WIDTH) {
    __global VECTOR *p = (__global VECTOR *)(x + i);
    *p = sqrt(*p) * *p + 1.0f;
  }
}"""


def use(spec: str) -> None:
    """Compile and run a kernel on a device. Raises DeviceError or OutOfMemoryError."""
    pairs = [pair for pair in find()[0] if pair[1].spec == spec]
    if not pairs:
        raise DeviceError(f"{spec} is not there any more")
    opened = Device(*pairs[0])
    x = np.arange(SIZE, dtype=np.float32)
    memory = opened.alloc(x.nbytes)
    opened.write(memory, x)
    width = opened.vector_width
    options = [f"-DWIDTH={width}", f"-DVECTOR=float{width}"]
    kernel = opened.build(SOURCE, ["imgmlp_probe"], options)["imgmlp_probe"]
    opened.launch_all([opened.bind(kernel, [memory, np.int32(SIZE)], (1,), (1,))])
    result = np.empty_like(x)
    opened.read(memory, result)
    if not np.allclose(result, np.sqrt(x) * x + 1, rtol=1e-5):
        raise LastingError("it computes wrong numbers")


def main(spec: str) -> int:
    """Try a device; returns the exit code."""
    try:
        use(spec)
        print(WORKS)
    except ImgmlpError as error:
        print(_line(error))
        return 0 if isinstance(error, LastingError) else TEMPORARY_FAILURE
    return 0


def _line(error: ImgmlpError) -> str:
    """An error with the compiler's message from its hint, or else the hint's first line."""
    lines = error.hint.splitlines()
    detail = next((line for line in lines if "error:" in line), lines[0] if lines else "")
    return f"{error} ({detail.strip()})" if detail else str(error)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
