"""The NumPy device keeps freed array memory in its process for later arrays."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import environment

# Creates arrays of 4 MB one after the other, and prints the number of page faults meanwhile.
PROGRAM = """
import resource
import numpy as np
from imgmlp.engine import open_device
open_device("numpy")
ones, begun = np.ones(1 << 20, np.float32), 0
for turn in range(40):
    if turn == 10:
        begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    product = (ones + turn) * (ones - turn)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun)
"""


def faults(**changes: str) -> int:
    command, decided = [sys.executable, "-c", PROGRAM], ("MALLOC_", "GLIBC_")
    # Dask sets some of these for its workers, also in a process that only starts them.
    kept = {name: v for name, v in environment().items() if not name.startswith(decided)}
    done = subprocess.run(command, env=kept | changes, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told")
def test_freed_array_memory_is_reused_unless_malloc_is_configured() -> None:
    usual = faults(MALLOC_TRIM_THRESHOLD_="131072")
    if usual < 1000:
        pytest.skip("this C library keeps it in any case")
    assert faults() < usual / 10
