"""A compiled step on an OpenCL device: its launches, with all arguments bound, replayed.

Enqueueing a step allocates, builds and uploads nothing. Only after a Tensor has turned to another
page (frontend/pages.py) are arguments bound again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from imgmlp.engine.device.base import Allocation, KernelHandle, Launch
from imgmlp.engine.device.opencl import Device
from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.target import PHASE_COUNTER_WORDS
from imgmlp.engine.runtime.executable import Executable


class BoundLaunches:
    """The launches of an Executable for these Buffers and this arena.

    `buffers` are the graph's, in the order in which calls number them. Buffers that are turned to
    another page are followed; everything else stays for good.
    """

    def __init__(
        self,
        device: Device,
        executable: Executable,
        handles: Mapping[str, KernelHandle],
        buffers: Sequence[Buffer],
        arena: Sequence[Allocation],
    ) -> None:
        self._device, self._executable, self._handles = device, executable, handles
        self._buffers, self._arena = buffers, arena
        self._phase_counters: Allocation | None = None
        self._bound_to = self._current_allocations()
        self.launches = self._bind()  # one for each call
        self.sequence = [self.launches[i] for i in executable.order]  # as one step runs them
        self._by_steps = {1: self.launches}  # by the number of steps that one launch does

    def enqueue(self, steps: int) -> None:
        """Enqueue a number of steps, several in one launch if its work-groups can stay for them."""
        self._rebind_moved_buffers()
        max_steps, side = self._executable.steps, self._executable.side
        if not max_steps:
            for _ in range(steps):
                if side:
                    self._device.launch_beside(self.sequence, *side)
                else:
                    self._device.launch_all(self.sequence)
            return
        while steps:
            at_once = min(steps, max_steps)
            if at_once not in self._by_steps:
                self._by_steps[at_once] = self._bind(at_once)
            self._device.launch_all(self._by_steps[at_once])
            steps -= at_once

    def time_step(self) -> list[float]:
        """Run one step launch by launch; microseconds of each call, all its iterations together."""
        self._rebind_moved_buffers()
        microseconds = [0.0] * len(self.launches)
        times = self._device.time_launches(self.sequence)
        for i, time in zip(self._executable.order, times, strict=True):
            microseconds[i] += time
        return microseconds

    def _bind(self, steps: int = 1) -> list[Launch]:
        """A launch of each call; `steps` is for kernels that can do several steps in a launch."""
        memory = [*self._bound_to, *self._intermediates()]
        launches = []
        for call in self._executable.calls:
            args: list[Allocation | np.generic] = [memory[n] for n in call.arguments]
            if call.is_persistent:
                args = [self._counters(), np.int32(steps), *args]
            sizes = (call.global_size,), (call.local_size,)
            launches.append(self._device.bind(self._handles[call.function], args, *sizes))
        return launches

    def _intermediates(self) -> list[Allocation]:
        """The part of the arena that each intermediate has."""
        places = self._executable.places
        if not self._device.can_slice:
            return [self._arena[n] for n, _, _ in places]
        return [self._device.slice(self._arena[n], *part) for n, *part in places]

    def _counters(self) -> Allocation:
        """Where work-groups that stay count finished phases: zeros between two launches."""
        if self._phase_counters is None:
            self._phase_counters = self._device.alloc(PHASE_COUNTER_WORDS * 4)
            self._device.write(self._phase_counters, np.zeros(PHASE_COUNTER_WORDS, np.uint32))
        return self._phase_counters

    def _current_allocations(self) -> list[Allocation]:
        return [b.data for b in self._buffers]

    def _rebind_moved_buffers(self) -> None:
        """Bind the allocations that Buffers have by now, where they differ from the bound ones."""
        current = self._current_allocations()
        pairs = zip(self._bound_to, current, strict=True)
        moved = {n for n, (old, new) in enumerate(pairs) if old is not new}
        if not moved:
            return
        for launches in self._by_steps.values():
            for call, launch in zip(self._executable.calls, launches, strict=True):
                leading = 2 if call.is_persistent else 0
                for position, n in enumerate(call.arguments, leading):
                    if n in moved:
                        self._device.bind_again(launch, position, current[n])
        self._bound_to = current
