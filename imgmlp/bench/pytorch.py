"""The benchmark job in PyTorch, eager or compiled, if PyTorch is installed.

It runs on a GPU if imgmlp does and PyTorch can. There, training steps are captured in CUDA
graphs, so that launches from Python take no time.
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
CPU_DECODE_PIXELS = 8192  # decoded at once on a CPU, so that they fit in its cache
STEPS_BEFORE_CAPTURE = 3  # warm-up that PyTorch needs before it captures a CUDA graph


def is_installed() -> bool:
    """Whether PyTorch can be imported. It is not imported here, which would take seconds."""
    return find_spec("torch") is not None


class PyTorch:
    """A network of PyTorch's own layers, trained with its fused AdamW."""

    def __init__(self, job: Job, compiled: bool, gpu: bool) -> None:
        self.torch: Any = import_module("torch")
        torch = self.torch
        self.cuda = gpu and bool(torch.cuda.is_available())
        self.compiled = compiled
        device = "cuda" if self.cuda else "cpu"
        height, width, channels = job.pixels.shape
        x, y = tables(job.encoding, width, height)
        rows, columns = np.divmod(np.arange(height * width), width)
        features = np.concatenate([x[columns], y[rows]], axis=1)
        self.features = torch.from_numpy(features).to(device)  # [pixels, features]
        targets = (job.pixels.reshape(-1, channels) / 255).astype(np.float32)
        self.targets = torch.from_numpy(targets).to(device)
        self.net = self._network(job).to(device)
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
        self._step_functions: dict[int, Callable[[], None]] = {}

    def _network(self, job: Job) -> Any:
        nn, sizes = self.torch.nn, job.architecture.sizes
        layers: list[Any] = []
        for inputs, outputs in pairwise(sizes[:-1]):
            layers += [nn.Linear(inputs, outputs), nn.LeakyReLU(job.architecture.slope)]
        return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1], bias=False))

    def _loss_of(self, chosen: Any) -> Any:
        return (self.net(self.features[chosen]) - self.targets[chosen]).square().sum()

    def _step(self, batch: int) -> None:
        torch, device = self.torch, self.features.device
        chosen = torch.randint(0, len(self.features), (batch,), device=device)
        self.optimizer.zero_grad(set_to_none=not self.cuda)
        self._loss(chosen).backward()
        self.optimizer.step()

    def _step_function(self, batch: int) -> Callable[[], None]:
        """A function that does a step of `batch` rows; on a GPU, a captured CUDA graph."""
        if batch not in self._step_functions:
            if self.cuda:
                self._step_functions[batch] = self._capture(batch)
            else:
                self._step_functions[batch] = lambda: self._step(batch)
        return self._step_functions[batch]

    def _capture(self, batch: int) -> Callable[[], None]:
        cuda = self.torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(STEPS_BEFORE_CAPTURE):
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
        step = self._step_function(batch)
        for _ in range(count):
            step()
        self._wait()

    def decode(self) -> Array:
        torch = self.torch
        size = len(self.features) if self.cuda else CPU_DECODE_PIXELS
        with torch.no_grad():
            parts = [self._forward(rows) for rows in self.features.split(size)]
            levels = [(p.clamp(0, 1) * 255 + 0.5).to(torch.uint8) for p in parts]
            pixels: Array = torch.cat(levels).cpu().numpy()
        return pixels
