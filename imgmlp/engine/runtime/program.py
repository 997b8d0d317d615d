"""Programs: a step compiled once, its launches bound once, replayed thousands of times.

Only where another page of a Tensor has its turn are arguments set anew.

While a Program replays, Python allocates, builds and uploads nothing. On the NumPy device
interpreted.py runs the same step instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from time import thread_time
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from imgmlp.engine.device.base import Allocation, Form, KernelHandle, Launch, Pending
from imgmlp.engine.device.discover import AnyDevice, told_apart
from imgmlp.engine.device.numpy_device import NumpyDevice
from imgmlp.engine.device.opencl import Device
from imgmlp.engine.ir.dtype import Array
from imgmlp.engine.ir.graph import Buffer, Node, toposort
from imgmlp.engine.ir.kernel import Update
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.target import NARROW, ON_MATRIX_UNITS, TURNS, Precision, Target
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
from imgmlp.engine.runtime.buffers import read_buffer, upload
from imgmlp.engine.runtime.dry_run import DryRun
from imgmlp.engine.runtime.executable import Executable, functions, parts
from imgmlp.engine.runtime.index_checks import index_checks, refuse
from imgmlp.engine.runtime.interpreted import Interpreted, run_lowered
from imgmlp.engine.runtime.outline import Outline, Traceable, Traced
from imgmlp.errors import DeviceError, ImgmlpWarning, OutOfMemoryError

if TYPE_CHECKING:
    from imgmlp.engine.compiler import Stages

LEAST_TILE = 8  # rows of a tile that is not halved any more
MANY_NODES = 400  # of a graph whose kernels a driver takes seconds for


class Program:
    """One step: named outputs and state updates, all computed from the state before it.

    Raises ValueError if the graph reads a Buffer of another device, DeviceError if the
    driver refuses a kernel, OutOfMemoryError if the intermediates do not fit, or a kernel needs
    more local memory or registers than there are, also after tiles got smaller with a warning.
    What is `traceable` has neither outputs nor updates yet. One that is ready `later`, when it is
    first run or has to `get_ready`, may be built by other processes meanwhile.

    One thread at a time runs it, or any other that changes the same state: steps of several
    threads at once mix, and some are lost without a word.
    """

    def __init__(
        self,
        device: AnyDevice,
        outputs: Mapping[str, Node],
        updates: Sequence[Update],
        general: bool = False,
        precision: Precision = "float32",
        checked: bool = True,
        beside: Program | None = None,
        traceable: Traceable | None = None,
        later: bool = False,
        once: bool = False,
    ) -> None:
        if precision not in get_args(Precision):
            known = " or ".join(map(repr, get_args(Precision)))
            raise misuse(ValueError, f"precision is {precision!r}; use {known}")
        self.device = device
        self.general = general  # leave out the block program
        self._beside = beside  # whose memory for intermediates and kernels serve this one as well
        self._counted: Allocation | None = None
        rounded = precision == "half" and not device.has_matrix_units
        self.precision: Precision = "float32" if rounded else precision  # that of products here
        self._target = _target(device, self.precision)
        self.outputs: dict[str, Buffer] = {}
        self.inputs: set[Buffer] = set()  # everything that is read, states included
        self._unset: set[Buffer] = set()  # what no step has given a value yet
        self._assigned: list[Buffer]  # whose values are not what the host put there, once it ran
        self._traceable = traceable
        if traceable is None:
            self.updates = self._named((outputs, updates))
            self._adopt_buffers()
        elif not self._outlined(traceable):
            with separate_bounds(traceable.states):
                for state, value in self.updates:
                    check_assigned(state, value, self)
                limits = export_bounds(traceable.states)
            self._adopt_buffers()
            self._keep_outline(traceable, limits)
        if isinstance(device, Device | DryRun):
            self.arena = self._reserved(device)
        self._memory: list[Allocation] | None = None  # that launches are bound to, once there are
        if not later:
            self.get_ready()
        elif isinstance(device, Device) and device.builds_in_parts:
            device.begin_parts(parts(self._own()[0]))
        depth = debug.level()
        self._show_times = depth > 0
        watched = once and not isinstance(device, DryRun)
        self._checks = self._index_checks(depth > 0) if checked and (depth or watched) else None
        if depth:
            debug.tell(debug.report(self.stages, depth, device.usage))

    def get_ready(self) -> None:
        """Have the kernels, and what launches them, if they are not there yet."""
        device = self.device
        if not isinstance(device, Device) or self._memory is not None:
            return
        if self._beside is not None:
            self._beside.get_ready()
        self._handles = self._build(device)
        self.launches = self._bind(device)
        self.sequence = [self.launches[i] for i in self.executable.order]
        self._several = {1: self.launches}  # by steps that they do, if they can do several
        self._memory = [b.data for b in self._identity[1]]

    @cached_property
    def updates(self) -> list[Update]:
        """What the step assigns, outputs too; traced now if it was not so far."""
        assert self._traceable is not None
        return self._named(self._traceable.trace())

    def _named(self, traced: Traced) -> list[Update]:
        """All that is assigned, and Buffers for the outputs that have none yet."""
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

    def _outlined(self, step: Traceable) -> bool:
        """Whether an earlier process has left all that there is to know of a step."""
        if not isinstance(self.device, Device) or debug.level():
            return False
        outline = program_cache.load(self._outline_key(step), Outline.parse)
        if outline is None:
            return False
        key = program_cache.key(outline.graph, self._target, self.general)
        found = program_cache.load(key, Executable.parse)
        assigned = [step.states[number] for number in outline.assigns]
        if found is None or not import_bounds(outline.limits, step.states, assigned, self):
            return False
        self.executable = found
        given, self.outputs = outline.bound(step.states, self.device)
        self._identity = outline.graph, given
        self.inputs = {step.states[number] for number in outline.reads}
        self._assigned = [*assigned, *self.outputs.values()]
        self._adopt([*given, *self.outputs.values()])
        return True

    def _keep_outline(self, step: Traceable, limits: list[list[Any]] | None) -> None:
        if isinstance(self.device, Device) and not debug.level():
            assigned = {state for state, _ in self.updates}
            given = self.outputs, self.inputs, assigned, limits, step.states
            outline = Outline.of(self._identity, *given)
            if outline is not None:
                program_cache.store(self._outline_key(step), outline.text())

    def _outline_key(self, step: Traceable) -> str:
        return program_cache.key(step.told(), self._target, self.general)

    def _adopt_buffers(self) -> None:
        """Everything that is read or written stands on this device."""
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
        for storage in storages:
            if storage.device is None:
                storage.device = self.device
            if storage.device is not self.device:
                place, here = told_apart(storage.device, self.device)
                text = f"{storage!r} is on device {place}, the program on {here}"
                raise misuse(ValueError, text)
            if storage.data is None and storage.host is None and storage.size:
                self._unset.add(storage)
            upload(storage)

    @cached_property
    def stages(self) -> Stages:
        """Every form of the step on its way to the device; on NumPy's, what a CPU would run."""
        from imgmlp.engine.compiler import lower  # which a step that is kept does without

        return lower(self.updates, self._target, self.general)

    @cached_property
    def executable(self) -> Executable:
        """What runs of it: what an earlier process has kept, or what `stages` give."""
        graph, given = self._identity
        if debug.level():
            return Executable.of(self.stages, given)
        key = program_cache.key(graph, self._target, self.general)
        found = program_cache.load(key, Executable.parse)
        if found is None:
            if isinstance(self.device, Device) and len(self._nodes()) > MANY_NODES:
                self.device.expect_programs()
            began = thread_time()
            found = Executable.of(self.stages, given)
            self.device.lowering += thread_time() - began
            program_cache.store(key, found.text())
        return found

    def _nodes(self) -> list[Node]:
        return toposort(v for _, v in self.updates)

    @cached_property
    def _identity(self) -> tuple[str, list[Buffer]]:
        return program_cache.identify(self.updates)

    def _build(self, device: Device) -> dict[str, KernelHandle]:
        """The kernels, with smaller tiles where the device has not enough memory for them."""
        while True:
            calls = self.executable.calls
            source, lent = self._own()
            theirs = {} if self._beside is None else self._beside._handles
            handles = {name: theirs[found] for name, found in lent.items()}
            names = [n for n in dict.fromkeys(c.function for c in calls) if n not in handles]
            if names and device.builds_in_parts:
                handles |= device.build_parts(parts(source))
            elif names:
                handles |= device.build(source, names)
            short = (device.shortage(handles[c.function], c.local_size) for c in calls)
            problem = next(filter(None, short), None)
            if problem is None:
                return handles
            self._shrink(device, problem)

    def _own(self) -> tuple[str, dict[str, str]]:
        """The source, but for kernels that the program beside this one lends, and what these are
        called there."""
        source = self.executable.source
        if self._beside is None:
            return source, {}
        (head, mine), (other, theirs) = map(functions, (source, self._beside.executable.source))
        built = {text.replace(name, "", 1): name for name, text in theirs.items()}
        same = {name: built.get(text.replace(name, "", 1)) for name, text in mine.items()}
        if head != other or not any(same.values()):
            return source, {}
        lent = {name: found for name, found in same.items() if found}
        return head + "".join(text for name, text in mine.items() if name not in lent), lent

    def _shrink(self, device: Device, problem: str) -> None:
        """Plan the step anew for less local memory or fewer registers. Raises OutOfMemoryError."""
        rows = self.executable.block_rows // 2
        if rows >= LEAST_TILE:
            instead = f"tiles of {rows} rows instead of {2 * rows}"
            self._target = replace(self._target, block_rows=rows)
        elif self._target.joins:
            instead = "kernels one by one instead of several in a launch"
            self._target = replace(self._target, joins=False)
        else:
            raise OutOfMemoryError(problem, hint="use a smaller network, or another device")
        warn(f"{problem}: {instead}", ImgmlpWarning)
        for known in ("stages", "_identity"):  # which is that of the updates from now on
            self.__dict__.pop(known, None)
        del self.executable, self.arena
        self.arena = self._reserved(device)

    def _reserved(self, device: Device | DryRun) -> list[Allocation]:
        """Memory for intermediates, which no step leaves anything in for the next."""
        sizes = self.executable.allocations
        lent = [] if self._beside is None else self._beside.arena
        if len(lent) >= len(sizes) and all(
            a.nbytes >= n for a, n in zip(lent, sizes, strict=False)
        ):
            return lent[: len(sizes)]
        return [device.alloc(nbytes) for nbytes in sizes]

    def _bind(self, device: Device, steps: int = 1) -> list[Launch]:
        """The launches of a step, or of so many where one launch may do several."""
        memory = [*(b.data for b in self._identity[1]), *self._intermediates(device)]
        launches = []
        for call in self.executable.calls:
            turns = [self._turns(device), np.int32(steps)] if call.turns else []
            args = [*turns, *(memory[n] for n in call.arguments)]
            sizes = (call.global_size,), (call.local_size,)
            launches.append(device.bind(self._handles[call.function], args, *sizes))
        return launches

    def _follow(self, device: Device) -> None:
        """Have the launches take what the Buffers have by now: another page may have its turn."""
        assert self._memory is not None
        now = [b.data for b in self._identity[1]]
        moved = {
            n for n, (old, new) in enumerate(zip(self._memory, now, strict=True)) if old is not new
        }
        if not moved:
            return
        for launches in self._several.values():
            for call, launch in zip(self.executable.calls, launches, strict=True):
                before = 2 if call.turns else 0
                for number, n in enumerate(call.arguments, before):
                    if n in moved:
                        device.bind_again(launch, number, now[n])
        self._memory = now

    def _turns(self, device: Device) -> Allocation:
        """What work-groups that stay count in: zero between two launches."""
        if self._counted is None:
            self._counted = device.alloc(TURNS * 4)
            device.write(self._counted, np.zeros(TURNS, np.uint32))
        return self._counted

    def _intermediates(self, device: Device) -> list[Allocation]:
        """Each one's part of the arena."""
        if not device.can_slice:
            return [self.arena[n] for n, _, _ in self.executable.places]
        return [device.slice(self.arena[n], *part) for n, *part in self.executable.places]

    def run(self, times: int = 1) -> None:
        """Enqueue the step so many times; does not wait for the device.

        Under DEBUG it does, and raises OutOfBoundsError where a computed index is out of bounds;
        otherwise what such an index takes is undefined, and may end the process.
        Raises ValueError for fewer than 0, TypeError for no whole number.
        """
        if not isinstance(times, int | np.integer):
            raise misuse(TypeError, f"run: takes a whole number of steps, not {times!r}")
        if times < 0:
            raise misuse(ValueError, f"run: {times} steps; the number must not be negative")
        if isinstance(self.device, DryRun):
            self._unset.clear()  # as what is read of it is zero
            return
        if self._checks is not None:
            for _ in range(times):
                self._checks.run()
                for node, *ends in self._checked:
                    refuse(node, *(int(read_buffer(self.device, b)) for b in ends))
                self._run(1)
            return
        self._run(times)

    def _index_checks(self, every: bool) -> Program | None:
        """What finds the indices that the step gathers by, before it does; None if it does not.

        Those that the user computes, or `every` one.
        """
        found = index_checks(self.updates, None if every else has_computed_index)
        self._checked = [check for check, _ in found]
        updates = [update for _, several in found for update in several]
        if not updates:
            return None
        # products as the step has them: another precision might give another index
        return Program(self.device, {}, updates, self.general, self.precision, checked=False)

    def _run(self, times: int) -> None:
        if times:
            self._unset.clear()
            for state in self._assigned:
                state.given = False
        if isinstance(self.device, NumpyDevice):
            for _ in range(times):
                self._interpret(self.device.form)
            return
        self.get_ready()
        self._follow(self.device)
        if self._show_times and times:
            self._show_times = False
            measured = self._time_once(self.device)
            debug.tell(debug.render_times(self.stages, measured, "in the first run") + "\n")
            times -= 1
        self._enqueue(self.device, times)

    def _enqueue(self, device: Device, times: int) -> None:
        """Enqueue so many steps, several in a launch if its work-groups may stay for them."""
        most, side = self.executable.steps, self.executable.side
        if not most:
            for _ in range(times):
                if side:
                    device.launch_beside(self.sequence, *side)
                else:
                    device.launch_all(self.sequence)
            return
        while times:
            steps = min(times, most)
            if steps not in self._several:
                self._several[steps] = self._bind(device, steps)
            device.launch_all(self._several[steps])
            times -= steps

    def time(self, runs: int = 20) -> list[float]:
        """Run the step so often; microseconds that each kernel takes on the device, medians.

        Raises DeviceError on NumPy's device, which launches nothing, ValueError for no runs.
        """
        check_runs("time", runs)
        if isinstance(self.device, NumpyDevice):
            raise DeviceError(
                "NumPy's interpreter launches no kernels that could be timed",
                hint="choose another device; `imgmlp devices` shows what there is",
            )
        self.run()  # what is slow only once
        measured = [self._time_once(self.device) for _ in range(runs)]
        return [float(t) for t in np.median(measured, axis=0)]

    def _time_once(self, device: Device) -> list[float]:
        """Run the step, launch by launch; microseconds of each kernel, iterations together."""
        found = [0.0] * len(self.launches)
        for i, time in zip(self.executable.order, device.time_launches(self.sequence), strict=True):
            found[i] += time
        return found

    def render_times(self, runs: int = 20) -> str:
        """What `time` finds, as text."""
        return debug.render_times(self.stages, self.time(runs), f"medians of {runs} runs")

    @cached_property
    def _interpreted(self) -> Interpreted:
        return Interpreted(self.updates)

    def _interpret(self, form: Form) -> None:
        """Run one form of the step in place. Raises OutOfMemoryError."""
        if form == "nodes":
            self._interpreted.run()
        else:
            run_lowered(self.stages, form)

    def read(self, name: str) -> Array:
        """An output as it is once all enqueued steps are done.

        One that the step assigns as well is read from the state, with whatever was written there
        since. Raises ValueError for another, and before the first step for one that is no state.
        """
        return read_buffer(self.device, self.computed(name))

    def computed(self, name: str) -> Buffer:
        """Where an output stands that has a value. Raises ValueError as `read` does."""
        storage = self.storage(name)
        if storage in self._unset:
            raise misuse(ValueError, f"{name!r} has no value before the first run of the program")
        return storage

    def storage(self, name: str) -> Buffer:
        """Where an output stands. Raises ValueError if there is none of this name."""
        if name not in self.outputs:
            known = ", ".join(self.outputs) or "none"
            raise misuse(ValueError, f"{name!r} is no output of the program, which has {known}")
        return self.outputs[name]

    def wait(self) -> None:
        """Block until all enqueued steps are done."""
        self.device.finish()

    def marker(self) -> Pending:
        """Done once all steps enqueued so far are: bounds how far the host runs ahead."""
        return self.device.marker()


def _target(device: AnyDevice, precision: Precision) -> Target:
    """A device as the compiler sees it."""
    return Target(
        lanes=device.lanes,
        units=device.info.compute_units,
        vector=device.vector_width if device.lanes == "one" else NARROW,
        align=device.align,
        slices=device.can_slice,
        joins=device.joins_kernels,
        stays=device.keeps_groups,
        queues=device.has_queues,
        multiply=ON_MATRIX_UNITS[precision] if device.has_matrix_units else "float32",
    )


def check_runs(where: str, runs: int) -> None:
    """Refuse what is no number of runs to time: a TypeError, or a ValueError for fewer than 1."""
    if not isinstance(runs, int | np.integer):
        raise misuse(TypeError, f"{where}: takes a whole number of runs, not {runs!r}")
    if runs < 1:
        raise misuse(ValueError, f"{where}: a time is of 1 run at least, not of {runs!r}")


def run_once(device: AnyDevice, updates: Sequence[Update]) -> None:
    """Compute some Buffers now. Raises OutOfBoundsError for a computed index out of bounds, except
    within loops."""
    program = Program(device, {}, updates, once=True)
    given = [is_from_host(value) for _, value in updates]  # before states change
    program.run()
    for (state, _), known in zip(updates, given, strict=True):
        state.given = known
