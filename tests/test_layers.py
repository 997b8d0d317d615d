"""Imports point one way, heavy or dangerous modules stay where they belong: read with `ast`.

The order of the rooms is that of ORDER: a module imports only what stands before it. A new
module gets its place there. Nothing before engine.device.base knows what it will run on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "imgmlp"
ORDER = """
    errors kernels child
    engine.ir.usage_errors engine.ir.dtype engine.ir.target engine.ir.op engine.ir.symbolic engine.ir.view engine.ir.access
    engine.ir.graph engine.ir.printer engine.ir.control_flow engine.frontend.autograd engine.oracle.interpret
    engine.passes.simplify engine.ir.local_memory engine.ir.kernel engine.ir.index_values engine.passes.materialize engine.passes.in_place
    engine.passes.merge engine.passes.row_fusion engine.passes.schedule engine.ir.uops engine.tiling.batch_axis engine.tiling.prologue engine.tiling.tile_memory
    engine.tiling.staging engine.tiling.tile engine.tiling.partial_sums engine.tiling.block engine.passes.horizontal_fusion engine.passes.persistent
    engine.lowering.expressions engine.lowering.map_kernels engine.lowering.row_kernels engine.lowering.matmul_kernels engine.lowering.linearize engine.passes.memory_plan
    engine.codegen.matrix_units engine.codegen.matmul_calls engine.codegen.vector_access
    engine.codegen.register_vectors engine.codegen.c_syntax engine.codegen.render engine.compiler engine.oracle.sanitizer engine.oracle.emulate_kernels
    engine.oracle.emulate_loops engine.oracle.emulate_matmul engine.oracle.emulate_uops
    engine.device.base engine.runtime.debug engine.device.pocl engine.device.kernel_cache engine.device.driver_errors engine.device.launch engine.device.opencl
    engine.device.probe engine.device.trial
    engine.device.discover engine.runtime.dry_run engine.runtime.interpreted engine.runtime.program engine.frontend.operands
    engine.frontend.elementwise engine.frontend.movement engine.frontend.reduction engine.frontend.random engine.frontend.tracing
    engine.frontend.tensor engine.frontend.raw_kernel engine.frontend.control engine.frontend.function engine.frontend.transfer engine.frontend.nn engine.frontend.optim
    engine.runtime.poison engine.frontend.device_check engine
    files image
    codec codec.checkpoint codec.config codec.features codec.distribution codec.entropy
    codec.container codec.quantize codec.network codec.settle codec.npz codec.model codec.capacity
    codec.latent codec.latent.model codec.latent.tables codec.latent.context codec.latent.latents
    codec.latent.kernel codec.latent.sections
    codec.pieces codec.integer codec.latent.upsampling codec.latent.synthesis codec.latent.decode
    codec.latent.plane codec.latent.parts codec.latent.train
    codec.fit codec.learn codec.render codec.compact codec.target codec.course
    codec.latent.course codec.latent.settle
    codec.rounding codec.encode codec.pipeline
    interrupt text terminal facts verify selftest
    bench bench.job bench.by_hand bench.pytorch bench.peak bench.start bench.speed bench.report
    bench.kernels bench.plot bench.kernels_report
    commands encoding api pil imgmlp cli __main__
""".split()  # noqa: SIM905
# Modules that are among the engine's public names.
ENGINE_PARTS = {"engine.ir.dtype", "engine.frontend.nn", "engine.frontend.optim"}
# Other people's packages, and the modules that may import them; those not named are free.
RESERVED = {
    "pyopencl": {"engine.device.opencl"},
    "platformdirs": {"engine.device.kernel_cache"},
    "typer": {"cli"},
    "rich": {"terminal"},
    "PIL": {"image", "api", "pil"},
    "numpy": {name for name in ORDER if name.startswith(("engine", "codec", "bench"))}
    | {"image", "commands", "api"},
}
UNSAFE = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
LAZY = {  # keep --help and a look at a file quick
    ("__main__", "imgmlp.cli"),
    ("__main__", "imgmlp.terminal"),
    ("cli", "imgmlp.bench.report"),
    ("cli", "imgmlp.bench.kernels_report"),
    ("cli", "imgmlp.commands"),
    ("cli", "imgmlp.encoding"),
    ("cli", "imgmlp.facts"),
    ("cli", "imgmlp.verify"),
    ("facts", "imgmlp.codec.npz"),
    ("pil", "imgmlp.api"),
}
# The public names are loaded when they are used, PyTorch if it is there and wanted.
DYNAMIC = {"imgmlp", "bench.pytorch", "bench.kernels", "bench.plot"}
IMPORT_CALLS = {"import_module", "__import__"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "imgmlp"


SOURCES = {module_name(path): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def imported(module: str, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Full names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    source = node.module or ""
    if node.level:
        parts = ["imgmlp", *module.split(".")][: -node.level]
        source = ".".join([*parts, *filter(None, [node.module])])
    for alias in node.names:
        full = f"{source}.{alias.name}"
        yield full if full.removeprefix("imgmlp.") in {*SOURCES, *ORDER} else source


def faults(module: str, source: str) -> list[str]:
    """What a module's imports and calls do against the rules."""
    tree = ast.parse(source)
    found: list[str] = []
    if module not in ORDER:
        found.append(f"{module} has no place in the order")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in imported(module, node):
                found += import_faults(module, name)
        elif isinstance(node, ast.Call):
            found += call_faults(module, node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            found += lazy_faults(module, node)
    return found


def import_faults(module: str, name: str) -> list[str]:
    root = name.partition(".")[0]
    if root in UNSAFE:
        return [f"{module} imports {name}, which can run what a file says"]
    if root != "imgmlp":
        allowed = RESERVED.get(root)
        return [] if allowed is None or module in allowed else [f"{module} imports {name}"]
    target = name.removeprefix("imgmlp.")
    if target not in ORDER or module not in ORDER:
        return [f"{module} imports {target}, which has no place in the order"]
    own = module.partition(".")[0]
    if target.startswith("engine.") and own != "engine" and target not in ENGINE_PARTS:
        return [f"{module} imports {target}, an inner part of the engine"]
    # A package's own __init__ may gather what is inside it.
    if target.startswith(f"{module}."):
        return []
    if module == "imgmlp" and target == "api":
        return []
    if ORDER.index(target) >= ORDER.index(module):
        return [f"{module} imports {target}, which stands above it"]
    return []


def lazy_faults(module: str, function: ast.AST) -> list[str]:
    inner = (n for n in ast.walk(function) if isinstance(n, ast.Import | ast.ImportFrom))
    names = (name for node in inner for name in imported(module, node))
    return [
        f"{module} imports {name} inside a function" for name in names if (module, name) not in LAZY
    ]


def call_faults(module: str, call: ast.Call) -> list[str]:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    allowed = keywords.get("allow_pickle")
    refused = isinstance(allowed, ast.Constant) and allowed.value is False
    of_numpy = isinstance(function, ast.Attribute) and ast.unparse(function.value) in (
        "np",
        "numpy",
    )
    if (allowed is not None and not refused) or (of_numpy and name == "load" and not refused):
        return [f"{module} may unpickle in line {call.lineno}"]
    if name in IMPORT_CALLS and module not in DYNAMIC:
        return [f"{module} imports dynamically in line {call.lineno}"]
    return []


@pytest.mark.parametrize("module", SOURCES)
def test_a_module_imports_only_what_stands_before_it(module: str) -> None:
    assert faults(module, SOURCES[module]) == []


def test_the_order_names_no_module_twice() -> None:
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("engine.ir.dtype", "from imgmlp.engine.ir.graph import Node"),
        ("engine.ir.view", "from imgmlp.engine import graph"),
        ("engine.ir.view", "from ..frontend import tensor"),
        ("engine.ir.view", "from ..frontend.tensor import Tensor"),
        ("engine.frontend.autograd", "import imgmlp.engine.frontend.tensor"),
        ("engine.passes.schedule", "from imgmlp.engine.device.opencl import Device"),
        ("engine.device.base", "from imgmlp.engine.device.opencl import Device"),
        ("engine.oracle.interpret", "from imgmlp.engine import device"),
        (
            "engine.codegen.render",
            "if TYPE_CHECKING:\n    from imgmlp.engine.device.opencl import Device",
        ),
        ("engine.frontend.tensor", "import pyopencl as cl"),
        ("engine.frontend.tensor", "from imgmlp.codec.config import Settings"),
        ("engine.frontend.tensor", "from imgmlp.image import psnr"),
        ("codec.fit", "from imgmlp.engine.frontend.tensor import Tensor"),
        ("codec.fit", "from imgmlp.engine import tensor"),
        ("codec.fit", "import pyopencl"),
        ("codec.config", "from imgmlp.codec.pipeline import train"),
        ("codec.pipeline", "from imgmlp.terminal import Terminal"),
        ("image", "from imgmlp.codec.config import MAX_PIXELS"),
        ("commands", "from imgmlp.engine.device.discover import diagnose"),
        ("commands", "from imgmlp.cli import app"),
        ("cli", "import numpy as np"),
        ("cli", "from imgmlp import commands, image\ndef f():\n    import json"),
        ("cli", "def f():\n    from imgmlp.codec import pipeline"),
        ("errors", "import rich"),
        ("commands", "def f():\n    import json"),
        ("commands", "import pickle"),
        ("commands", "from marshal import loads"),
        ("commands", "import_module('pyopencl')"),
        ("commands", "importlib.import_module('pyopencl')"),
        ("commands", "__import__('pyopencl')"),
        ("codec.npz", "np.load(path)"),
        ("codec.npz", "np.load(path, allow_pickle=True)"),
        ("codec.npz", "numpy.lib.format.read_array(stream, allow_pickle=flag)"),
        ("engine.unheard_of", "import math"),
        ("commands", "from imgmlp.unheard_of import thing"),
    ],
)
def test_a_wrong_arrow_is_noticed(module: str, source: str) -> None:
    assert faults(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "engine.frontend.tensor",
            "from imgmlp.engine.frontend.autograd import gradient\nimport numpy as np",
        ),
        ("engine.frontend.tensor", "from imgmlp.engine import dtype as dt, graph"),
        ("engine.device.opencl", "import pyopencl"),
        ("engine", "from imgmlp.engine import nn"),
        ("codec.fit", "from imgmlp.engine import Tensor, dtype, optim"),
        ("cli", "def f():\n    from imgmlp import commands"),
        ("codec.npz", "np.load(path, allow_pickle=False)\njson.load(stream)"),
    ],
)
def test_a_right_arrow_is_not(module: str, source: str) -> None:
    assert faults(module, source) == []
