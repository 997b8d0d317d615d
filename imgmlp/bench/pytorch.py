"""The job in PyTorch, if it is installed: eager, and compiled.

On a graphics card if imgmlp computes on one and PyTorch can too. There steps are captured in
CUDA graphs, so that launches from Python cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np

from imgmlp.bench.job import Job
from imgmlp.codec.float_mlp.features import tables

Array = np.ndarray[Any, Any]
AT_ONCE = 8192  # pixels decoded at once on a processor, whose cache they fit
WARM = 3  # steps before a capture


def is_installed() -> bool:
    """Whether PyTorch can be imported, without doing so: it takes seconds."""
    return find_spec("torch") is not None


class PyTorch:
    """A network of PyTorch's own layers and its fused AdamW."""

    def __init__(self, job: Job, compiled: bool, gpu: bool) -> None:
        self.torch: Any = import_module("torch")
        torch = self.torch
        self.cuda = gpu and bool(torch.cuda.is_available())
        self.compiled = compiled
        place = "cuda" if self.cuda else "cpu"
        height, width, channels = job.pixels.shape
        x, y = tables(job.encoding, width, height)
        rows, columns = np.divmod(np.arange(height * width), width)
        features = np.concatenate([x[columns], y[rows]], axis=1)
        self.features = torch.from_numpy(features).to(place)  # [pixels, features]
        targets = (job.pixels.reshape(-1, channels) / 255).astype(np.float32)
        self.targets = torch.from_numpy(targets).to(place)
        self.net = self._network(job).to(place)
        settings = job.settings
        self.optimizer = torch.optim.AdamW(
            self.net.parameters(),
            settings.lr,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=self.cuda,
        )
        self._loss = torch.compile(self._loss_of, dynamic=False) if compiled else self._loss_of
        self._forward = torch.compile(self.net, dynamic=False) if compiled else self.net
        self._ready: dict[int, Callable[[], None]] = {}

    def _network(self, job: Job) -> Any:
        nn, sizes = self.torch.nn, job.architecture.sizes
        layers: list[Any] = []
        for inputs, outputs in pairwise(sizes[:-1]):
            layers += [nn.Linear(inputs, outputs), nn.LeakyReLU(job.architecture.slope)]
        return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1], bias=False))

    def _loss_of(self, chosen: Any) -> Any:
        return (self.net(self.features[chosen]) - self.targets[chosen]).square().sum()

    def _step(self, batch: int) -> None:
        torch, place = self.torch, self.features.device
        chosen = torch.randint(0, len(self.features), (batch,), device=place)
        self.optimizer.zero_grad(set_to_none=not self.cuda)
        self._loss(chosen).backward()
        self.optimizer.step()

    def _prepared(self, batch: int) -> Callable[[], None]:
        """What does a step of so many rows, once whatever is compiled or captured is."""
        if batch not in self._ready:
            if self.cuda:
                self._ready[batch] = self._captured(batch)
            else:
                self._ready[batch] = lambda: self._step(batch)
        return self._ready[batch]

    def _captured(self, batch: int) -> Callable[[], None]:
        cuda = self.torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(WARM):
                self._step(batch)
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self._step(batch)
        replay: Callable[[], None] = graph.replay
        return replay

    def _wait(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def steps(self, batch: int, count: int) -> None:
        step = self._prepared(batch)
        for _ in range(count):
            step()
        self._wait()

    def decode(self) -> Array:
        torch = self.torch
        size = len(self.features) if self.cuda else AT_ONCE
        with torch.no_grad():
            parts = [self._forward(rows) for rows in self.features.split(size)]
            levels = [(p.clamp(0, 1) * 255 + 0.5).to(torch.uint8) for p in parts]
            pixels: Array = torch.cat(levels).cpu().numpy()
        return pixels
