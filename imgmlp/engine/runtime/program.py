"""Program: a step that is compiled once and replayed thousands of times.

On an OpenCL device a replay enqueues launches whose arguments are bound already
(bound_launches.py). On the NumPy device interpreted.py runs the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from threading import RLock
from time import thread_time
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from imgmlp.engine.device.base import Allocation, Form, KernelHandle, Launch, Pending
from imgmlp.engine.device.discover import AnyDevice, distinct_names
from imgmlp.engine.device.numpy_device import NumpyDevice
from imgmlp.engine.device.opencl import Device
from imgmlp.engine.ir.dtype import Array
from imgmlp.engine.ir.graph import Buffer, Node, toposort
from imgmlp.engine.ir.kernel import Update
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.target import MATRIX_UNIT_MODES, MIN_VECTOR_WIDTH, Precision, Target
from imgmlp.engine.ir.usage_errors import misuse, warn
from imgmlp.engine.oracle.index_bounds import (
    check_assigned,
    export_bounds,
    has_computed_index,
    import_bounds,
    is_from_host,
    separate_bounds,
)
from imgmlp.engine.runtime import debug, program_cache
from imgmlp.engine.runtime.bound_launches import BoundLaunches
from imgmlp.engine.runtime.buffers import read_buffer, upload
from imgmlp.engine.runtime.dry_run import DryRun
from imgmlp.engine.runtime.executable import Executable, functions, parts
from imgmlp.engine.runtime.index_checks import index_checks, refuse
from imgmlp.engine.runtime.interpreted import Interpreted, run_lowered
from imgmlp.engine.runtime.outline import Outline, Traceable, Traced
from imgmlp.errors import DeviceError, ImgmlpWarning, OutOfMemoryError

if TYPE_CHECKING:
    from imgmlp.engine.compiler import Stages

MIN_TILE_ROWS = 8  # a tile of a block is halved down to this when resources are short
MANY_NODES = 400  # a graph of as many has kernels that a driver builds for seconds

# Whether computed indices are checked before each step: under DEBUG only, always the indices that
# the user has computed (and under DEBUG all of them), or never.
IndexChecking = Literal["under_debug", "always", "never"]


class Program:
    """One step: named outputs and state updates, all computed from the state before the step.

    general: whether to keep to the general scheduler and leave out the block program.
    precision: of matrix products; "half" is only honoured by devices with matrix units, and the
        attribute `precision` tells what is in use.
    beside: another Program on the same device, whose arena and kernels this one shares where they
        fit; the two must not run at the same time.
    traceable: a step to be traced only if no earlier process has cached its outline. `outputs` and
        `updates` are then ignored.
    is_deferred: whether kernels are built at the first run, or by `get_ready`, so that other
        processes can build them meanwhile.

    Raises ValueError if the graph reads a Buffer of another device; DeviceError if the driver
    refuses a kernel; OutOfMemoryError if the intermediates do not fit, or if a kernel needs more
    local memory or registers than there are even with the smallest tiles (smaller ones than planned
    are a warning).

    Several threads may run it. Their steps follow one another, never interleaved; on an OpenCL
    device that also holds for different Programs. On the NumPy device, different Programs that
    change the same state must not be run by several threads at the same time.
    """

    def __init__(
        self,
        device: AnyDevice,
        outputs: Mapping[str, Node],
        updates: Sequence[Update],
        general: bool = False,
        precision: Precision = "float32",
        beside: Program | None = None,
        traceable: Traceable | None = None,
        is_deferred: bool = False,
        index_checking: IndexChecking = "under_debug",
    ) -> None:
        if precision not in get_args(Precision):
            choices = " or ".join(map(repr, get_args(Precision)))
            raise misuse(ValueError, f"precision is {precision!r}; use {choices}")
        self.device = device
        self.general = general
        self._beside = beside
        is_unsupported = precision == "half" and not device.has_matrix_units
        self.precision: Precision = "float32" if is_unsupported else precision
        self._target = _target(device, self.precision)
        self.outputs: dict[str, Buffer] = {}
        self.inputs: set[Buffer] = set()  # all Buffers that are read, states included
        self._unset: set[Buffer] = set()  # Buffers without a value until the first run
        self._assigned: list[Buffer]  # after a run their values are no longer the host's
        self._traceable = traceable
        self._bound: BoundLaunches | None = None
        self._run_lock = device.enqueue_lock if isinstance(device, Device) else RLock()
        if traceable is None:
            self.updates = self._with_outputs((outputs, updates))
            self._adopt_graph_buffers()
        elif not self._load_outline(traceable):
            self._trace(traceable)
        if isinstance(device, Device | DryRun):
            self.arena = self._reserve_arena(device)
        if not is_deferred:
            self.get_ready()
        elif isinstance(device, Device) and device.builds_in_parts:
            device.begin_parts(parts(self._source_and_shared_kernels()[0]))
        debug_level = debug.level()
        self._show_times = debug_level > 0
        self._checks = self._index_checks(index_checking, debug_level > 0)
        if debug_level:
            debug.tell(debug.report(self.stages, debug_level, device.usage))

    def _trace(self, traceable: Traceable) -> None:
        """Trace a step, check its assignments, and store its outline for later processes."""
        with separate_bounds(traceable.states):
            for state, value in self.updates:
                check_assigned(state, value, self)
            limits = export_bounds(traceable.states)
        self._adopt_graph_buffers()
        self._store_outline(traceable, limits)

    def get_ready(self) -> None:
        """Build the kernels and bind the launches, unless that is done already."""
        device = self.device
        if not isinstance(device, Device):
            return
        with self._run_lock:
            if self._bound is not None:
                return
            if self._beside is not None:
                self._beside.get_ready()
            self._handles = self._build(device)
            buffers = self._identity[1]
            self._bound = BoundLaunches(device, self.executable, self._handles, buffers, self.arena)

    @property
    def launches(self) -> list[Launch]:
        """One launch for each kernel of the step; on an OpenCL device, once it is ready."""
        assert self._bound is not None
        return self._bound.launches

    @property
    def sequence(self) -> list[Launch]:
        """The launches in the order in which one step runs them, repeated in loops."""
        assert self._bound is not None
        return self._bound.sequence

    @cached_property
    def updates(self) -> list[Update]:
        """All assignments of the step, including those to outputs. Traces the step if needed."""
        assert self._traceable is not None
        return self._with_outputs(self._traceable.trace())

    def _with_outputs(self, traced: Traced) -> list[Update]:
        """The updates, with an assignment to a new Buffer for each output that needs one."""
        outputs, updates = traced[0], list(traced[1])
        assigned = {value: state for state, value in updates}
        for name, node in outputs.items():
            if node.op is Op.BUFFER:
                self.outputs[name] = node.arg
            elif node.size and node in assigned:
                self.outputs[name] = assigned[node]
            else:
                if name not in self.outputs:
                    self.outputs[name] = Buffer(node.shape, node.dtype, self.device, name=name)
                if node.size:
                    updates.append((self.outputs[name], node))
        return updates

    def _load_outline(self, step: Traceable) -> bool:
        """Take over what an earlier process has cached of the step; False if it is incomplete."""
        if not isinstance(self.device, Device) or debug.level():
            return False
        outline = program_cache.load(self._outline_key(step), Outline.parse)
        if outline is None:
            return False
        key = program_cache.key(outline.graph, self._target, self.general)
        executable = program_cache.load(key, Executable.parse)
        assigned = [step.states[number] for number in outline.assigns]
        if executable is None or not import_bounds(outline.limits, step.states, assigned, self):
            return False
        self.executable = executable
        buffers, self.outputs = outline.bound(step.states, self.device)
        self._identity = outline.graph, buffers
        self.inputs = {step.states[number] for number in outline.reads}
        self._assigned = [*assigned, *self.outputs.values()]
        self._adopt([*buffers, *self.outputs.values()])
        return True

    def _store_outline(self, step: Traceable, limits: list[list[Any]] | None) -> None:
        if isinstance(self.device, Device) and not debug.level():
            assigned = {state for state, _ in self.updates}
            outline = Outline.of(
                self._identity, self.outputs, self.inputs, assigned, limits, step.states
            )
            if outline is not None:
                program_cache.store(self._outline_key(step), outline.text())

    def _outline_key(self, step: Traceable) -> str:
        return program_cache.key(step.identification(), self._target, self.general)

    def _adopt_graph_buffers(self) -> None:
        """Check the graph, and upload every Buffer that it reads or writes to this device."""
        nodes = self._nodes()
        if any(n.op is Op.PARAMETER for n in nodes):
            text = "a value inside of a loop has no value outside of it; return it from the body"
            raise misuse(ValueError, f"{text}, where numpy() has none either")
        leaves = [n.arg for n in nodes if n.op is Op.BUFFER]
        self.inputs.update(leaves)
        for state, value in self.updates:
            check_assigned(state, value, self)
        self._assigned = [state for state, _ in self.updates]
        self._adopt([*leaves, *(state for state, _ in self.updates), *self.outputs.values()])

    def _adopt(self, storages: Sequence[Buffer]) -> None:
        """Upload Buffers to this device. Raises ValueError for a Buffer of another device."""
        for storage in storages:
            if storage.device is None:
                storage.device = self.device
            if storage.device is not self.device:
                place, here = distinct_names(storage.device, self.device)
                text = f"{storage!r} is on device {place}, the program on {here}"
                raise misuse(ValueError, text)
            if storage.data is None and storage.host is None and storage.size:
                self._unset.add(storage)
            upload(storage)

    @cached_property
    def stages(self) -> Stages:
        """Every form of the step that the compiler makes; on NumPy's device, those for a CPU."""
        from imgmlp.engine.compiler import lower  # lazily: a cached step does not need it

        return lower(self.updates, self._target, self.general)

    @cached_property
    def executable(self) -> Executable:
        """The compiled step: from the cache of earlier processes, or else from `stages`."""
        graph, buffers = self._identity
        if debug.level():
            return Executable.of(self.stages, buffers)
        key = program_cache.key(graph, self._target, self.general)
        executable = program_cache.load(key, Executable.parse)
        if executable is None:
            if isinstance(self.device, Device) and len(self._nodes()) > MANY_NODES:
                self.device.expect_programs()
            began = thread_time()
            executable = Executable.of(self.stages, buffers)
            self.device.lowering += thread_time() - began
            program_cache.store(key, executable.text())
        return executable

    def _nodes(self) -> list[Node]:
        return toposort(v for _, v in self.updates)

    @cached_property
    def _identity(self) -> tuple[str, list[Buffer]]:
        """A digest of the graph, and its Buffers in the order in which the digest numbers them."""
        return program_cache.identify(self.updates)

    def _build(self, device: Device) -> dict[str, KernelHandle]:
        """The kernels by name. While one of them exceeds the device's resources, plan again."""
        while True:
            calls = self.executable.calls
            source, shared = self._source_and_shared_kernels()
            theirs = {} if self._beside is None else self._beside._handles
            handles = {name: theirs[their_name] for name, their_name in shared.items()}
            names = [n for n in dict.fromkeys(c.function for c in calls) if n not in handles]
            if names and device.builds_in_parts:
                handles |= device.build_parts(parts(source))
            elif names:
                handles |= device.build(source, names)
            shortages = (device.shortage(handles[c.function], c.local_size) for c in calls)
            shortage = next(filter(None, shortages), None)
            if shortage is None:
                return handles
            self._plan_for_less(device, shortage)

    def _source_and_shared_kernels(self) -> tuple[str, dict[str, str]]:
        """The source without the kernels that `beside` has as well, and their names there."""
        source = self.executable.source
        if self._beside is None:
            return source, {}
        (head, mine), (their_head, theirs) = map(
            functions, (source, self._beside.executable.source)
        )
        # Kernels are equal if their texts are, apart from the name itself.
        their_names = {text.replace(name, "", 1): name for name, text in theirs.items()}
        matches = {name: their_names.get(text.replace(name, "", 1)) for name, text in mine.items()}
        shared = {name: their_name for name, their_name in matches.items() if their_name}
        if head != their_head or not shared:
            return source, {}
        return head + "".join(text for name, text in mine.items() if name not in shared), shared

    def _plan_for_less(self, device: Device, shortage: str) -> None:
        """Compile again for less local memory or fewer registers. Raises OutOfMemoryError."""
        rows = self.executable.block_rows // 2
        if rows >= MIN_TILE_ROWS:
            change = f"tiles of {rows} rows instead of {2 * rows}"
            self._target = replace(self._target, max_tile_rows=rows)
        elif self._target.can_join_kernels:
            change = "kernels one by one instead of several in a launch"
            self._target = replace(self._target, can_join_kernels=False)
        else:
            raise OutOfMemoryError(shortage, hint="use a smaller network, or another device")
        warn(f"{shortage}: {change}", ImgmlpWarning)
        for name in ("stages", "_identity"):  # an outline's identity is replaced by the graph's
            self.__dict__.pop(name, None)
        del self.executable, self.arena
        self.arena = self._reserve_arena(device)

    def _reserve_arena(self, device: Device | DryRun) -> list[Allocation]:
        """Memory for intermediates: that of `beside` if it suffices, as no step reads another's."""
        sizes = self.executable.allocations
        theirs = [] if self._beside is None else self._beside.arena
        if len(theirs) >= len(sizes) and all(
            a.nbytes >= n for a, n in zip(theirs, sizes, strict=False)
        ):
            return theirs[: len(sizes)]
        return [device.alloc(nbytes) for nbytes in sizes]

    def run(self, times: int = 1) -> None:
        """Enqueue the step `times` times, without waiting for the device.

        Under DEBUG it waits, and raises OutOfBoundsError for a computed index that is out of
        bounds; otherwise reading by such an index is undefined and may end the process. Raises
        ValueError for a negative number, TypeError for another type.
        """
        if not isinstance(times, int | np.integer):
            raise misuse(TypeError, f"run: takes a whole number of steps, not {times!r}")
        if times < 0:
            raise misuse(ValueError, f"run: {times} steps; the number must not be negative")
        if isinstance(self.device, DryRun):
            self._unset.clear()  # everything that is read of a dry run is zero
            return
        with self._run_lock:
            self._run_checked(times)

    def _run_checked(self, times: int) -> None:
        """Enqueue steps; before each of them, check its indices if they are to be checked."""
        if self._checks is not None:
            for _ in range(times):
                self._checks.run()
                for node, *ends in self._checked:
                    refuse(node, *(int(read_buffer(self.device, b)) for b in ends))
                self._run(1)
            return
        self._run(times)

    def _index_checks(self, when: IndexChecking, is_debugging: bool) -> Program | None:
        """A Program that computes the range of each index that the step gathers by, or None.

        Under DEBUG it covers all indices, otherwise those that the user has computed.
        """
        is_always = when == "always" and not isinstance(self.device, DryRun)
        if when == "never" or not (is_always or is_debugging):
            return None
        checks = index_checks(self.updates, None if is_debugging else has_computed_index)
        self._checked = [check for check, _ in checks]
        updates = [update for _, several in checks for update in several]
        if not updates:
            return None
        # In the step's precision: an index that depends on products might differ in another.
        return Program(
            self.device, {}, updates, self.general, self.precision, index_checking="never"
        )

    def _run(self, times: int) -> None:
        if times:
            self._unset.clear()
            for state in self._assigned:
                state.is_from_host = False
        if isinstance(self.device, NumpyDevice):
            for _ in range(times):
                self._interpret(self.device.form)
            return
        self.get_ready()
        assert self._bound is not None
        if self._show_times and times:
            self._show_times = False
            measured = self._bound.time_step()
            debug.tell(debug.render_times(self.stages, measured, "in the first run") + "\n")
            times -= 1
        self._bound.enqueue(times)

    def time(self, runs: int = 20) -> list[float]:
        """Run the step `runs` times; the median microseconds of each kernel on the device.

        Raises DeviceError on NumPy's device, which launches no kernels; ValueError for no runs.
        """
        check_runs("time", runs)
        if isinstance(self.device, NumpyDevice):
            raise DeviceError(
                "NumPy's interpreter launches no kernels that could be timed",
                hint="choose another device; `imgmlp devices` shows what there is",
            )
        self.run()  # the first run compiles and may be slow
        assert self._bound is not None
        with self._run_lock:
            measured = [self._bound.time_step() for _ in range(runs)]
        return [float(t) for t in np.median(measured, axis=0)]

    def render_times(self, runs: int = 20) -> str:
        """The result of `time` as a table for people."""
        return debug.render_times(self.stages, self.time(runs), f"medians of {runs} runs")

    @cached_property
    def _interpreted(self) -> Interpreted:
        return Interpreted(self.updates)

    def _interpret(self, form: Form) -> None:
        """Run one form of the step on host memory. Raises OutOfMemoryError."""
        if form == "nodes":
            self._interpreted.run()
        else:
            run_lowered(self.stages, form)

    def read(self, name: str) -> Array:
        """The value of an output after all enqueued steps.

        An output that the step also assigns to a state is read from that state, including what was
        written there since. Raises ValueError for an unknown name, and before the first run for an
        output that is not a state.
        """
        return read_buffer(self.device, self.computed(name))

    def computed(self, name: str) -> Buffer:
        """The Buffer of an output that has a value. Raises ValueError as `read` does."""
        storage = self.storage(name)
        if storage in self._unset:
            raise misuse(ValueError, f"{name!r} has no value before the first run of the program")
        return storage

    def storage(self, name: str) -> Buffer:
        """The Buffer of an output. Raises ValueError if there is none of this name."""
        if name not in self.outputs:
            names = ", ".join(self.outputs) or "none"
            raise misuse(ValueError, f"{name!r} is no output of the program, which has {names}")
        return self.outputs[name]

    def wait(self) -> None:
        """Block until all enqueued steps are done."""
        self.device.finish()

    def marker(self) -> Pending:
        """A Pending that is done once all steps enqueued so far are.

        Waiting for it bounds how far the host runs ahead of the device.
        """
        return self.device.marker()


def _target(device: AnyDevice, precision: Precision) -> Target:
    """The properties of a device that the compiler decides by."""
    return Target(
        lanes=device.lanes,
        compute_units=device.info.compute_units,
        vector_width=device.vector_width if device.lanes == "one" else MIN_VECTOR_WIDTH,
        alignment=device.align,
        can_slice=device.can_slice,
        can_join_kernels=device.joins_kernels,
        keeps_groups=device.keeps_groups,
        has_queues=device.has_queues,
        product_mode=MATRIX_UNIT_MODES[precision] if device.has_matrix_units else "float32",
    )


def check_runs(where: str, runs: int) -> None:
    """Check a number of runs to time. Raises TypeError for another type, ValueError below 1."""
    if not isinstance(runs, int | np.integer):
        raise misuse(TypeError, f"{where}: takes a whole number of runs, not {runs!r}")
    if runs < 1:
        raise misuse(ValueError, f"{where}: a time is of 1 run at least, not of {runs!r}")


def run_once(device: AnyDevice, updates: Sequence[Update]) -> None:
    """Compute the updates now. Raises OutOfBoundsError for a computed index that is out of bounds,
    except inside of loops."""
    program = Program(device, {}, updates, index_checking="always")
    # Before the run: a state may be moved from Buffers of which the run changes what is known.
    are_from_host = [is_from_host(value) for _, value in updates]
    program.run()
    for (state, _), from_host in zip(updates, are_from_host, strict=True):
        state.is_from_host = from_host
