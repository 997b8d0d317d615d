"""Oclgrind, a simulator that checks every memory access, reports no error in any kernel.

It runs the source that every device gets, without optimisation, so that no access is removed. It
reports accesses outside of a Buffer, races between work-items, and reads of uninitialised memory.
Size thresholds of the engine are lowered, so that small programs take the paths of large ones.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from graph_check import expected, faults_on
from networks import small_latent_model
from random_graphs import Maker
from reference import close
from simulated import OTHERS, PRODUCTS, STEPS, Make, draw, programs

from imgmlp.codec.float_mlp import pipeline
from imgmlp.codec.float_mlp.config import Architecture, Encoding, Weights
from imgmlp.codec.latent import sections
from imgmlp.codec.training import chunked
from imgmlp.engine import Device, NumpyDevice
from imgmlp.engine.codegen.render import building_block
from imgmlp.engine.compiler import Stages
from imgmlp.engine.device import driver
from imgmlp.engine.device.base import Allocation, KernelHandle
from imgmlp.engine.device.discover import find
from imgmlp.engine.ir.op import ELEMENTWISE
from imgmlp.engine.ir.target import MIN_VECTOR_WIDTH, Lanes
from imgmlp.engine.ir.uops import U
from imgmlp.engine.lowering import map_kernels, reduce_kernels
from imgmlp.engine.passes import schedule

Mapping = tuple[Lanes, int]  # lanes, and the elements of the widest vectors
MAPPINGS: tuple[Mapping, ...] = (
    ("one", MIN_VECTOR_WIDTH),
    ("one", 2 * MIN_VECTOR_WIDTH),
    ("group", MIN_VECTOR_WIDTH),
)
COMPUTE_UNITS = 3  # compute units that kernels are written for: shares that divide little
CHECKS = {
    "OCLGRIND_DATA_RACES": "1",
    "OCLGRIND_UNIFORM_WRITES": "1",  # two of the same value are a race too
    "OCLGRIND_NUM_THREADS": "1",
    "OCLGRIND_MAX_ERRORS": "1000000000",  # all contexts of a process count together
}
SIMULATOR = next((pair for pair in find()[0] if pair[1].kind == "simulator"), None)
simulated = pytest.mark.skipif(
    SIMULATOR is None, reason="Oclgrind is not installed; the `test` extra brings it"
)


class CheckingSimulator(Device):
    """The simulator as a device. Every Buffer has an allocation of its own, so that overruns show.

    With `arena` intermediates share bytes by the memory plan, so that two of a kernel could race.
    """

    def __init__(
        self, mapping: Mapping, log: Path, thorough: bool = True, arena: bool = False
    ) -> None:
        assert SIMULATOR is not None
        handle, info = SIMULATOR
        super().__init__(handle, replace(info, compute_units=COMPUTE_UNITS))
        self.lanes, self.vector_width = mapping
        self.log, self.thorough, self.arena = log, thorough, arena
        self.align = self.align if arena else 1
        # Oclgrind 21.10 forgets what is written to an address that was in use before.
        self.kept: list[Allocation] = []

    @property
    def keeps_groups(self) -> bool:
        return self.lanes == "one"

    def alloc(self, nbytes: int) -> Allocation:
        self.kept.append(super().alloc(nbytes))
        return self.kept[-1]

    def slice(self, allocation: Allocation, offset: int, nbytes: int) -> Allocation:
        return super().slice(allocation, offset, nbytes) if self.arena else self.alloc(nbytes)

    def build(
        self, source: str, names: Sequence[str], options: Sequence[str] = ()
    ) -> dict[str, KernelHandle]:
        plain = ["-cl-opt-disable"] if self.thorough else []
        return super().build(source, names, [*options, *plain])

    def report(self) -> str:
        """The errors that the simulator has reported so far."""
        self.finish()
        return self.log.read_text("utf-8").strip()[:4000]


OpenSimulator = Callable[..., CheckingSimulator]


@pytest.fixture
def open_simulator(
    small_thresholds: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> OpenSimulator:
    """Opens a CheckingSimulator.

    If it is not thorough, kernels are optimised and may read uninitialised memory.
    """

    def opened(mapping: Mapping, thorough: bool = True, arena: bool = False) -> CheckingSimulator:
        monkeypatch.setattr(driver, "_contexts", {})  # a new context reads these variables:
        checks = CHECKS | ({"OCLGRIND_UNINITIALIZED": "1"} if thorough else {})
        for name, value in {**checks, "OCLGRIND_LOG": str(tmp_path / "log")}.items():
            monkeypatch.setenv(name, value)
        return CheckingSimulator(mapping, tmp_path / "log", thorough, arena)

    return opened


@pytest.fixture
def small_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small work is divided among work-groups like large work."""
    monkeypatch.setattr(reduce_kernels, "MIN_ELEMENTS_PER_GROUP", 1)
    monkeypatch.setattr(map_kernels, "MIN_ELEMENTS_FOR_SEVERAL_PER_LANE", 1)
    monkeypatch.setattr(schedule, "MIN_TERMS_PER_PART", 4)


def check(make: Make, device: CheckingSimulator) -> None:
    """Asserts that a program runs without reported errors and equals NumPy."""
    program, wanted = make(device), make(NumpyDevice())
    program.run()
    assert device.report() == ""
    wanted.run()
    for name in program.outputs:
        actual, truth = program.read(name), wanted.read(name)
        assert close(actual, truth, roundings=1024), name


def mapping_id(mapping: Mapping) -> str:
    return f"{mapping[0]} {mapping[1]}"


def programs_of(mapping: Mapping) -> dict[str, Make]:
    """The small programs for a mapping; for wider vectors only those that they may change."""
    lanes, vector = mapping
    return programs(lanes) if vector == MIN_VECTOR_WIDTH else PRODUCTS | OTHERS


CASES = [
    pytest.param(m, name, id=f"{mapping_id(m)}-{name}") for m in MAPPINGS for name in programs_of(m)
]


@simulated
@pytest.mark.parametrize(("mapping", "name"), CASES)
def test_simulator_reports_no_error_in_small_programs(
    mapping: Mapping, name: str, open_simulator: OpenSimulator
) -> None:
    check(programs_of(mapping)[name], open_simulator(mapping))


@simulated
@pytest.mark.parametrize("arena", [False, True], ids=["apart", "arena"])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("mapping", MAPPINGS, ids=mapping_id)
def test_simulator_reports_no_error_in_whole_steps(
    mapping: Mapping, name: str, arena: bool, open_simulator: OpenSimulator
) -> None:
    """With an arena, overlapping intermediates of a kernel would race."""
    check(STEPS[name], open_simulator(mapping, mapping[0] == "one" and not arena, arena))


@simulated
@pytest.mark.parametrize("mapping", MAPPINGS, ids=mapping_id)
def test_simulator_reports_no_error_in_random_graphs(
    mapping: Mapping, open_simulator: OpenSimulator
) -> None:
    """They contain more operations than the programs above; values are compared as well."""
    for seed in (200, 201):
        graph, device = Maker(seed).graph(), open_simulator(mapping, mapping[0] == "one")
        assert not faults_on([graph], [expected(graph)], device)[0]
        assert device.report() == ""


@simulated
@pytest.mark.parametrize("mapping", MAPPINGS, ids=mapping_id)
def test_simulator_reports_no_error_in_decoding(
    mapping: Mapping, open_simulator: OpenSimulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "DECODED_PIXELS", 5)
    monkeypatch.setattr(chunked, "GPU_PIECE_FACTOR", 1)
    shape = Architecture((8, 5, 3), float(np.float32(0.1)))
    flat = draw(shape.parameters)
    weights = Weights(shape, Encoding((1.0, 2.0), (1.0, 3.0), 0.5), 7, 2, flat)
    device = open_simulator(mapping, mapping[0] == "one")
    actual = pipeline.decode(weights, device)
    assert device.report() == ""
    wanted = pipeline.decode(weights, NumpyDevice())
    assert np.abs(actual.astype(int) - wanted).max() <= 1


@simulated
def test_simulator_reports_no_error_in_reading_latents(open_simulator: OpenSimulator) -> None:
    """kernels/latents.cl handles neighbours beyond the edges of a grid."""
    model, device = small_latent_model(6, 9), open_simulator(("one", MIN_VECTOR_WIDTH))
    shape = model.shape
    actual = sections.read(sections.write(model), (9, 6), shape.channels, device)
    assert device.report() == ""
    for grid, wanted in zip(actual.latents, model.latents, strict=True):
        assert np.array_equal(grid, wanted)


# --- deliberate faults ---

FAULTS = {
    "Invalid write": "out[i] = 1.f;",
    "Invalid read": "out[0] = i == 7 ? in[i] : 0.f;",
    "Write-write data race": "out[i / 2] = i;",
    "Read-write data race": "part[l] = i; if (i < 7) out[i] = part[l ^ 1];",
    "Uninitialized value": "float x[2]; x[0] = 1.f; if (i < 7) out[i] = x[i % 2];",
}


@simulated
@pytest.mark.parametrize("fault", FAULTS)
def test_simulator_reports_a_deliberate_fault(fault: str, open_simulator: OpenSimulator) -> None:
    """Eight work-items in groups of four read and write seven numbers."""
    device = open_simulator(("group", MIN_VECTOR_WIDTH))
    source = f"""__kernel void t_fault(__global float *out, __global const float *in) {{
        __local float part[4]; const int i = get_global_id(0), l = get_local_id(0);
        {FAULTS[fault]} }}"""
    args = [device.alloc(28), device.alloc(28)]
    for allocation in args:
        device.write(allocation, np.ones(7, np.float32))
    kernel = device.build(source, ["t_fault"])["t_fault"]
    device.launch_all([device.bind(kernel, args, (8,), (4,))])
    assert fault in device.report()


# --- coverage of instructions and building blocks ---


def all_stages(lanes: Lanes) -> list[Stages]:
    """The Stages of all simulated programs in the mappings with these lanes."""
    stages = []
    for mapping in (m for m in MAPPINGS if m[0] == lanes):
        device = NumpyDevice()
        device.lanes, device.vector_width = mapping
        device.info = replace(device.info, compute_units=COMPUTE_UNITS)
        device.keeps_groups = lanes == "one"
        stages += [make(device).stages for make in (programs_of(mapping) | STEPS).values()]
    return stages


DEFINITION = re.compile(r"^(?:static \w+ |#define |([A-Z_]+)\()([a-z]\w*)\b", re.MULTILINE)


def functions(block: str) -> dict[str, str]:
    """The functions that kernels/`block`.cl defines directly or by a macro, with their text."""
    text = building_block(block)
    definitions = list(DEFINITION.finditer(text))
    ends = [m.start() for m in definitions[1:]] + [len(text)]
    texts = {m[2]: text[m.start() : end] for m, end in zip(definitions, ends, strict=True)}
    macros = {m[1]: m[0] for m in re.finditer(r"^#define (\w+)\((?:.*\\\n)+.*", text, re.MULTILINE)}
    return texts | {m[2]: macros[m[1]] for m in definitions if m[1]}


@pytest.mark.parametrize("lanes", typing.get_args(Lanes))
def test_every_instruction_and_operation_is_simulated(lanes: Lanes, small_thresholds: None) -> None:
    uops = [u for stages in all_stages(lanes) for code in stages.codes for u in code.uops]
    shared = {U.BARRIER, U.GROUP_REDUCE, U.LOCAL_ARRAY, U.LOCAL_BUFFER, U.TILE, U.SHARE_TILE}
    only = {"one": {U.PANEL, U.PREFETCH}, "group": shared}
    other = set().union(*(ops for mapping, ops in only.items() if mapping != lanes))
    assert {u.op for u in uops} == set(U) - other
    assert {u.arg for u in uops if u.op is U.ALU} == ELEMENTWISE


def test_every_building_block_is_simulated(small_thresholds: None) -> None:
    """Every OpenCL C function of kernels/*.cl is called in the mapping that it belongs to."""
    files = resources.files("imgmlp.kernels").iterdir()
    blocks = {f.name.removesuffix(".cl") for f in files if f.name.endswith(".cl")}
    blocks.remove("product_matrix")  # PTX, which only NVIDIA's compiler accepts
    blocks.remove("latents")  # a kernel by itself, which reading latents launches
    blocks.remove("declarations")  # declarations of driver functions
    blocks.remove("vectors")  # types, and a macro: of "sums of every other one"
    of_lanes = {"one": {"product_one"}, "group": {"factor", "product_group", "reduce"}}
    shared = blocks - of_lanes["one"] - of_lanes["group"]
    left = {name for block in shared for name in functions(block)}
    for lanes in typing.get_args(Lanes):
        own = {k: v for block in of_lanes[lanes] | shared for k, v in functions(block).items()}
        called: set[str] = set()
        new = words(s.source[s.source.index("__kernel") :] for s in all_stages(lanes))
        while new := (new & own.keys()) - called:
            called |= new
            new = words(own[name] for name in new)
        missing = own.keys() - called - {name for block in shared for name in functions(block)}
        assert not missing, lanes
        left -= called
    assert not left


def words(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in re.findall(r"\w+", text)}
