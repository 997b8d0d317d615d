"""Try the program on processors that are not at hand, as qemu-user emulates them.

    apt-get install qemu-user && python tools/processors.py

Each processor trains a small network on a small picture, for so few steps that it ends, and
encodes, verifies and decodes that picture; most of the time goes into compiling. All of them and
this machine's own share one home directory, so that machine code which was compiled for one would
meet the others; and every file must decode here to the pixels that it decoded to there, and this
machine's file there to the pixels that it decoded to here. Prints a row for each processor, and
fails if one does.

An emulated processor has no AVX-512. What a step of it takes says nothing about a real one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "assets" / "mandrill.png"
QEMU = "qemu-x86_64"
HERE = "this machine"
PROCESSORS = {
    HERE: "",
    "AVX2, of AMD's family 26": "EPYC-Rome,family=26,model=68",
    "no AVX": "Nehalem",
    "AVX2": "Haswell",
    "AVX2, but of a family with AVX-512": "Skylake-Server",
    "AVX, no FMA": "SandyBridge",
}
# So that processes which the program starts are emulated too, as qemu leaves them to the machine.
EMULATE_CHILDREN = """import os, sys
sys.executable = os.environ["EMULATED_PYTHON"]
"""
SMALL = ("--steps", "4", "--batch", "64", "--hidden", "8", "--layers", "1", "--features", "8")
COMMANDS = {
    "train": ("train", "small.png", *SMALL, "--force"),
    "encode": ("encode", "small.png", "--time", "2s", "--force"),
    "verify": ("verify", "small.imlp"),
    "decode": ("decode", "small.imlp", "-o", "small.decoded.png", "--force"),
}
TELL = """
import numpy as np
from imgmlp.engine import open_device
from imgmlp.engine.device.pocl import compiled_for
info = open_device("cpu").info
print(compiled_for(info.version) or "?", "|", info.compiled_for or "?")
"""
LIMIT = 1800  # seconds a command may take; emulated, they take some hundred


def run(processor: str, arguments: tuple[str, ...], folder: Path) -> str:
    """What the command printed. Raises subprocess.CalledProcessError."""
    model = PROCESSORS[processor]
    python = emulated_python(model, folder / "bin") if model else sys.executable
    paths = [str(folder / "bin")] * bool(model) + [str(ROOT), os.environ.get("PYTHONPATH", "")]
    changes = {
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "EMULATED_PYTHON": python,
    }
    done = subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=os.environ | changes,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    # qemu tells, for every thread, what of a processor it does not emulate.
    lines = [x for x in done.stdout.splitlines() if "TCG doesn't support" not in x]
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, arguments, "\n".join(lines))
    return "\n".join(lines)


def emulated_python(model: str, folder: Path) -> str:
    """A command that runs Python on another processor, and the processes that it starts."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(EMULATE_CHILDREN)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {QEMU} -cpu "{model}" "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return str(python)


def trial(processor: str, folder: Path) -> str:
    """All commands on a processor: its names, and the seconds that each took."""
    names, row = run(processor, ("-c", TELL), folder).splitlines()[-1], []
    for name, arguments in COMMANDS.items():
        started = time.perf_counter()
        shown = run(processor, ("-m", "imgmlp", *arguments), folder)
        row.append(f"{time.perf_counter() - started:.0f}")
        if name == "train" and "PoCL:" not in shown:
            raise subprocess.CalledProcessError(0, arguments, f"PoCL was not taken:\n{shown}")
    there = pixels(folder, "small")
    run(HERE, ("-m", "imgmlp", *COMMANDS["decode"]), folder)
    if pixels(folder, "small") != there:
        raise subprocess.CalledProcessError(0, COMMANDS["decode"], "decodes to other pixels here")
    if processor == HERE:
        for ending in (".imlp", ".decoded.png"):
            shutil.copy(folder / f"small{ending}", folder / f"here{ending}")
    here = "decode", "here.imlp", "-o", "there.decoded.png", "--force"
    run(processor, ("-m", "imgmlp", *here), folder)
    if pixels(folder, "there") != pixels(folder, "here"):
        raise subprocess.CalledProcessError(0, here, "this machine's file decodes to other pixels")
    return " | ".join([names, *row])


def pixels(folder: Path, name: str) -> bytes:
    return Image.open(folder / f"{name}.decoded.png").tobytes()


def main() -> int:
    if not shutil.which(QEMU):
        print(f"{QEMU} is not there: apt-get install qemu-user", file=sys.stderr)
        return 2
    failed = 0
    seconds = " | ".join(f"{name}, s" for name in COMMANDS)
    print(f"| processor | qemu's name | PoCL's name | given | {seconds} |")
    print("|---" * (4 + len(COMMANDS)) + "|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Image.open(PICTURE).convert("RGB").resize((32, 32)).save(folder / "small.png")
        for processor, model in PROCESSORS.items():
            try:
                print(f"| {processor} | {model} | {trial(processor, folder)} |", flush=True)
            except (subprocess.SubprocessError, OSError) as error:
                failed += 1
                print(f"| {processor} | {model} | failed |{' |' * (1 + len(COMMANDS))}", flush=True)
                said = getattr(error, "stdout", None) or ""
                print(f"{processor}: {error}\n{said}", file=sys.stderr, flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())
