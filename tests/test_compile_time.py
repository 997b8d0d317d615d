"""benchmarks/compile_time.py replaces functions by name: they must be there under these names."""

from __future__ import annotations

from benchmarks import compile_time
from imgmlp.codec.float_mlp import fit
from imgmlp.engine import compiler
from imgmlp.engine.device import driver
from imgmlp.engine.runtime import program_cache


def test_functions_that_the_benchmark_replaces_exist() -> None:
    replaced = [(compiler, name) for name in compile_time.PASSES]
    replaced += [(fit, "compile"), (compile_time.transformer, "compile")]
    replaced += [(program_cache, "cache_folder"), (driver.cl, "enqueue_nd_range_kernel")]
    assert [name for module, name in replaced if not callable(getattr(module, name, None))] == []
