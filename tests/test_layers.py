"""Imports point one way, heavy or dangerous modules stay where they belong: read with `ast`.

Engine and codec are folders, and BELOW says for each which of the others it may import. Everything
else stands in ORDER, where a module imports only what comes before it. Of the engine others import
its public names alone. Inside of a folder modules import each other in no circle. Everybody may
import `errors`. What a folder may import its own `__init__` says as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "imgmlp"
# Folders, and the engine's compiler.py: what each may import beside itself.
BELOW = {
    "engine.ir": "",
    "engine.device": "child engine.ir.target",
    "engine.oracle": "engine.ir",
    "engine.passes": "engine.ir engine.oracle",
    "engine.tiling": "engine.ir engine.passes",
    "engine.lowering": "engine.ir engine.passes",
    "engine.codegen": "engine.ir",
    "engine.compiler": "engine.ir engine.passes engine.tiling engine.lowering engine.codegen",
    "engine.runtime": "source_digest engine.ir engine.device engine.oracle engine.compiler",
    "engine.operations": "engine.ir engine.device engine.oracle",
    "engine.frontend": "engine.ir engine.device engine.runtime engine.operations",
    "codec.bitstream": "metadata",
    "codec.training": "child output_files source_digest text image engine codec.bitstream",
    "codec.float_mlp": "image engine codec.training",
    "codec.mlp": "child image engine codec.bitstream codec.training",
    "codec.latent": "image engine codec.bitstream codec.training",
    "codec.latent.step": "image engine codec.bitstream codec.training codec.latent",
    "codec.latent.training": "child text image engine codec.bitstream codec.training codec.latent "
    "codec.latent.step",
}
# Each stands for a module, or for a folder with all that is in it.
ORDER = """
    errors text kernels child source_digest engine output_files metadata image_io image
    codec codec.decoder codec.encoder codec.kinds
    interrupt ending facts report batch terminal bench
    api pil imgmlp cli __main__
""".split()  # noqa: SIM905
# Other people's packages, and the modules or folders that may import them; others are free.
RESERVED = {
    "pyopencl": "engine.device.driver",
    "distributed": "batch.cluster",
    "fsspec": "batch.store",
    "platformdirs": "engine.device.kernel_cache",
    "typer": "cli",
    "rich": "terminal",
    "PIL": "image_io.png image_io.claimed_size image_io.completeness image_io.colours "
    "image_io.bit_depth image_io.frames image_io.pillow_faults image_io.tiff_exif "
    "image_io.refusals image_io.files image_io.conversion image report api pil",
    "numpy": "engine codec bench report image_io.colours image_io.conversion image api",
}
UNSAFE = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
LAZY = {  # keep --help and a look at a file quick
    *(("__main__", f"imgmlp.{name}") for name in ["cli", "errors", "facts", "terminal", "text"]),
    ("__main__", "pathlib"),
    ("__main__", "gc"),
    ("imgmlp", "importlib"),
    ("cli", "imgmlp.cli.typer_runner"),  # a simple decode runs without Typer
    *(("cli.fast_decode", f"imgmlp.cli.{name}") for name in ("decode", "folders")),
    *(("cli.commands", f"imgmlp.bench.{name}") for name in ("report", "kernels_report")),
    *(
        ("cli.commands", f"imgmlp.cli.{name}")
        for name in [
            *("parsing", "train", "encode", "compare", "decode", "info", "verify", "devices"),
            *("graph", "folders", "prepare"),
        ]
    ),
    ("cli.commands", "imgmlp.batch.encode_options"),
    ("cli.folders", "imgmlp.batch.cluster"),  # Dask is there for those who want it only
    ("batch.store", "fsspec"),  # likewise
    ("codec.decoder", "imgmlp.codec.float_mlp.npz"),
    ("codec.decoder", "imgmlp.codec.float_mlp.pipeline"),
    ("codec.decoder", "imgmlp.codec.latent.decode"),
    ("codec.decoder", "imgmlp.codec.mlp.decode"),
    ("pil", "imgmlp.api"),
    ("pil", "imgmlp.engine"),
    ("engine.runtime.program", "imgmlp.engine.compiler"),
    ("engine.runtime.interpreted", "imgmlp.engine.oracle.emulate_kernels"),
    ("engine.runtime.interpreted", "imgmlp.engine.oracle.emulate_uops"),
}
# The public names are loaded when they are used, others' packages if they are there and wanted.
DYNAMIC = {"imgmlp", "bench.pytorch", "bench.kernels", "bench.plot"}
DYNAMIC |= {"report.classic", "report.metrics"}
IMPORT_CALLS = {"import_module", "__import__"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "imgmlp"


SOURCES = {module_name(path): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
FOLDERS = {module_name(path) for path in PACKAGE.rglob("*/__init__.py")} - {"imgmlp"}


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
        yield full if full.removeprefix("imgmlp.") in SOURCES else source


def faults(module: str, source: str) -> list[str]:
    """What a module's imports and calls do against the rules."""
    tree = ast.parse(source)
    found: list[str] = []
    if not place(module) or place(module) == "engine" != module:
        return [f"{module} has no place in the order"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in imported(module, node):
                found += import_faults(module, name)
        elif isinstance(node, ast.Call):
            found += call_faults(module, node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            found += lazy_faults(module, node)
    return found


def is_within(module: str, places: str) -> bool:
    """Whether a module is one of some modules, or in one of some folders."""
    return any(module == place or module.startswith(f"{place}.") for place in places.split())


def place(module: str) -> str:
    """The part of the engine, or the longest name in ORDER, that a module belongs to."""
    return max((p for p in (*BELOW, *ORDER) if is_within(module, p)), key=len, default="")


def import_faults(module: str, name: str) -> list[str]:
    root = name.partition(".")[0]
    if root in UNSAFE:
        return [f"{module} imports {name}, which can run what a file says"]
    if root != "imgmlp":
        allowed = RESERVED.get(root)
        return [] if allowed is None or is_within(module, allowed) else [f"{module} imports {name}"]
    target = name.removeprefix("imgmlp.")
    here, there = place(module), place(target)
    if target not in SOURCES:
        return [f"{module} imports {target}, which does not exist"]
    # A package's own __init__ may gather what is inside it.
    if target.startswith(f"{module}.") or (module, target) == ("imgmlp", "api"):
        return []
    if is_within(there, "engine") and not is_within(here, "engine") and there != "engine":
        return [f"{module} imports {target}, an inner part of the engine"]
    if here in BELOW:
        good = is_within(target, f"errors {here} {BELOW[here]}")
        return [] if good else [f"{module} imports {target}, which is not below {here}"]
    there = there.partition(".")[0] if there in BELOW else there
    if ORDER.index(there) > ORDER.index(here):
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


def circles(sources: dict[str, str]) -> list[str]:
    """The modules of a circle of imports, if there is one."""
    graph = {
        module: {
            name.removeprefix("imgmlp.")
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in imported(module, node)
        }
        for module, source in sources.items()
        if module not in ("imgmlp", "pil")  # `import imgmlp` loads what is used of it
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(SOURCES) == []


@pytest.mark.parametrize(
    ("module", "other", "name"),
    [
        ("engine.ir.op", "engine.ir.graph", "Node"),
        ("codec.float_mlp.config", "codec.float_mlp.pipeline", "train"),
        ("cli.train", "cli.commands", "app"),
    ],
)
def test_a_circle_inside_of_a_folder_is_noticed(module: str, other: str, name: str) -> None:
    changed = SOURCES[module] + f"\nfrom imgmlp.{other} import {name}\n"
    assert not faults(module, changed)  # no arrow of a folder's
    assert {module, other} <= set(circles(SOURCES | {module: changed}))


def test_what_the_order_names_is_there_once() -> None:
    named = [*BELOW, *ORDER]
    assert len(named) == len(set(named))
    assert set(named) <= set(SOURCES)


def said(folder: str) -> set[str]:
    """What a folder's `__init__` says that it may import."""
    text = " ".join((ast.get_docstring(ast.parse(SOURCES[folder])) or "").split())
    (names,) = re.findall(r"May import ([\w/., ]+)\.$", text)
    return set() if names == "nothing" else set(names.split(", "))


def beside(folder: str) -> set[str]:
    """The names in ORDER that the modules of a folder import, but for itself and `errors`."""
    statements = (
        (module, node)
        for module, source in SOURCES.items()
        if is_within(module, folder)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    names = {name for module, node in statements for name in imported(module, node)}
    places = {place(n.removeprefix("imgmlp.")).partition(".")[0] for n in names}
    return places & set(ORDER) - {folder, "errors"}


@pytest.mark.parametrize("folder", [f for f in BELOW if f != "engine.compiler"])
def test_a_folder_says_what_it_may_import(folder: str) -> None:
    allowed = {name.removeprefix(folder.partition(".")[0] + ".") for name in BELOW[folder].split()}
    assert {name.removesuffix(".py").replace("/", ".") for name in said(folder)} == allowed


@pytest.mark.parametrize("folder", sorted(f for f in FOLDERS if f not in BELOW))
def test_a_folder_in_the_order_says_all_that_it_imports(folder: str) -> None:
    assert beside(folder) <= said(folder) <= set(ORDER[: ORDER.index(folder)])


@pytest.mark.parametrize("folder", [f for f in (*BELOW, "image_io") if f != "engine.compiler"])
def test_a_folder_says_what_it_holds_and_nothing_else(folder: str) -> None:
    """Its `__init__` imports nothing: to look into one module loads no other."""
    (only,) = ast.parse(SOURCES[folder]).body
    assert isinstance(only, ast.Expr)
    modules = [m for m in SOURCES if m.rpartition(".")[0] == folder]
    assert 4 <= len(modules) <= 16


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("engine.ir.view", "from imgmlp.engine.oracle.interpret import evaluate"),
        ("engine.ir.view", "from imgmlp.engine import Tensor"),
        ("engine.ir.view", "from ..frontend import tensor"),
        ("engine.ir.view", "from ..frontend.tensor import Tensor"),
        ("engine.ir.target", "from imgmlp.engine.device.base import Kind"),
        ("engine.device.base", "from imgmlp.engine.ir.graph import Node"),
        ("engine.oracle.interpret", "from imgmlp.engine.device import opencl"),
        ("engine.passes.schedule", "from imgmlp.engine.tiling.block import block_procedure"),
        ("engine.tiling.staging", "from imgmlp.engine.lowering.linearize import linearize"),
        ("engine.lowering.linearize", "from imgmlp.engine.tiling.block import block_procedure"),
        ("engine.codegen.matrix_units", "from imgmlp.engine.tiling.staging import SLICES"),
        (
            "engine.codegen.render",
            "if TYPE_CHECKING:\n    from imgmlp.engine.device.opencl import Device",
        ),
        ("engine.compiler", "from imgmlp.engine.device.opencl import Device"),
        ("engine.runtime.program", "from imgmlp.engine.passes.schedule import schedule"),
        ("engine.runtime.program", "import imgmlp.engine.frontend.tensor"),
        ("engine.frontend.tensor", "from imgmlp.engine import compiler"),
        ("engine.frontend.tensor", "import pyopencl as cl"),
        ("engine.frontend.tensor", "from imgmlp.codec.float_mlp.config import Settings"),
        ("engine.frontend.tensor", "from imgmlp.image import psnr"),
        ("codec.float_mlp.fit", "from imgmlp.engine.frontend.tensor import Tensor"),
        ("codec.float_mlp.fit", "from imgmlp.engine.frontend import tensor"),
        ("codec.float_mlp.fit", "import pyopencl"),
        ("codec.float_mlp.pipeline", "from imgmlp.terminal import Terminal"),
        ("codec.bitstream.quantize", "from imgmlp.engine import Tensor"),
        ("codec.training.run", "from imgmlp.codec.mlp.network import Shape"),
        ("codec.mlp.encode", "from imgmlp.codec.float_mlp.fit import fit"),
        ("codec.mlp.encode", "from imgmlp.codec import decoder"),
        ("image", "from imgmlp.codec.float_mlp.config import MAX_PIXELS"),
        ("cli.train", "from imgmlp.engine.device.discover import diagnose"),
        ("cli.commands", "import numpy as np"),
        ("cli.commands", "from imgmlp import image\ndef f():\n    import json"),
        ("cli.commands", "def f():\n    from imgmlp.codec.float_mlp import pipeline"),
        ("errors", "import rich"),
        ("cli.train", "def f():\n    import json"),
        ("cli.train", "import pickle"),
        ("cli.train", "from marshal import loads"),
        ("cli.train", "import_module('pyopencl')"),
        ("cli.train", "importlib.import_module('pyopencl')"),
        ("cli.train", "__import__('pyopencl')"),
        ("codec.float_mlp.npz", "np.load(path)"),
        ("codec.float_mlp.npz", "np.load(path, allow_pickle=True)"),
        ("codec.float_mlp.npz", "numpy.lib.format.read_array(stream, allow_pickle=flag)"),
        ("engine.unheard_of", "import math"),
        ("unheard_of", "import math"),
        ("engine.ir.graph", "from imgmlp.engine.ir.unheard_of import thing"),
        ("cli.train", "from imgmlp.unheard_of import thing"),
    ],
)
def test_a_wrong_arrow_is_noticed(module: str, source: str) -> None:
    assert faults(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "engine.frontend.tensor",
            "from imgmlp.engine.operations.autograd import gradient\nimport numpy as np",
        ),
        ("engine.frontend.tensor", "from imgmlp.engine.ir import dtype as dt, graph"),
        ("engine.passes.simplify", "from imgmlp.engine.oracle.interpret import evaluate"),
        ("engine.device.driver", "import pyopencl"),
        ("engine", "from imgmlp.engine.frontend import nn"),
        ("codec.float_mlp.fit", "from imgmlp.engine import Tensor, dtype, optim"),
        ("cli.commands", "def f():\n    from imgmlp.cli import parsing"),
        ("codec.mlp.decode", "from imgmlp.codec.training import chunked"),
        ("codec.float_mlp.npz", "np.load(path, allow_pickle=False)\njson.load(stream)"),
    ],
)
def test_a_right_arrow_is_not(module: str, source: str) -> None:
    assert faults(module, source) == []
