"""Run the program on CPUs that qemu-user emulates.

    apt-get install qemu-user && python tools/processors.py
    python tools/processors.py --readme

Each emulated CPU trains a small network on a small picture for a few steps, and encodes, verifies
and decodes that picture; most of the time goes into compilation. All of them and this machine
share one home directory, so that machine code that was cached by one would be found by the others.
Every file must decode here to the same pixels as there, and this machine's file there to the same
pixels as here. Prints a row for each CPU, and fails if one fails.

With `--readme`, each CPU runs the README's first command instead, in a fresh clone with an empty
home directory. Its 10,000 steps would take an emulated CPU a day or more, so it is interrupted
after some steps, and must leave both of its files.

Emulated CPUs have no AVX-512, and their times say nothing about real ones.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
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
# Makes processes that the program starts run in qemu too; it does not emulate them by itself.
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
STEPS_BEFORE_INTERRUPT = 8  # of the README's command
MAX_COMMAND_SECONDS = 1800  # emulated commands take a few hundred


def run(processor: str, arguments: tuple[str, ...], folder: Path) -> str:
    """Run a command and return its output. Raises subprocess.CalledProcessError."""
    python, env = place(processor, folder)
    done = subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=env | {"PYTHONPATH": os.pathsep.join([env["PYTHONPATH"], str(ROOT)])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=MAX_COMMAND_SECONDS,
        check=False,
    )
    # qemu reports for every thread which features of the processor it does not emulate.
    lines = [x for x in done.stdout.splitlines() if "TCG doesn't support" not in x]
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, arguments, "\n".join(lines))
    return "\n".join(lines)


def place(processor: str, folder: Path, python: str = sys.executable) -> tuple[str, dict[str, str]]:
    """The command that runs Python on a processor, and its environment."""
    model = PROCESSORS[processor]
    if model:
        python = emulated_python(model, folder / "bin", python)
    home = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    paths = {"PYTHONPATH": str(folder / "bin"), "EMULATED_PYTHON": python}
    return python, os.environ | home | paths


def emulated_python(model: str, folder: Path, python: str) -> str:
    """Write a command that runs Python and its child processes on an emulated processor."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(EMULATE_CHILDREN)
    command = folder / "python"
    command.write_text(f'#!/bin/sh\nexec {QEMU} -cpu "{model}" "{python}" "$@"\n')
    command.chmod(0o755)
    return str(command)


def trial(processor: str, folder: Path) -> str:
    """Run all commands on a processor; returns its names and the seconds of each command."""
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


def readme(processor: str, folder: Path) -> str:
    """Run the README's first command; returns seconds to install, steps, and their seconds."""
    started = time.perf_counter()
    clone = folder / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    python, env = place(processor, folder)
    options = {"cwd": clone, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    subprocess.run([python, "-m", "venv", ".venv"], env=env, check=True, **options)
    python, env = place(processor, folder, str(clone / ".venv" / "bin" / "python"))
    subprocess.run([python, "-m", "pip", "install", "."], env=env, check=True, **options)
    row = [f"{time.perf_counter() - started:.0f}"]
    started = time.perf_counter()
    command = [python, ".venv/bin/imgmlp", "train", "assets/mandrill.png"]
    said, steps, told = [], 0, False
    with subprocess.Popen(command, env=env, **options) as training:
        for line in training.stdout or ():
            said.append(line)
            found = re.match(r"training +([\d,]+)/", line)
            steps = int(found[1].replace(",", "")) if found else steps
            if steps >= STEPS_BEFORE_INTERRUPT and not told:
                told = True
                training.send_signal(signal.SIGINT)
    row += [str(steps), f"{time.perf_counter() - started:.0f}"]
    interrupted = any("the best weights so far are in weights.npz" in line for line in said)
    if not (interrupted and any("PoCL:" in line for line in said)):
        raise subprocess.CalledProcessError(training.returncode, command, "".join(said))
    shown = run(HERE, ("-m", "imgmlp", "verify", str(clone / "weights.npz")), folder)
    if not (clone / "reconstruction.png").exists():
        raise subprocess.CalledProcessError(0, command, f"no picture was left\n{shown}")
    return " | ".join(row)


def pixels(folder: Path, name: str) -> bytes:
    return Image.open(folder / f"{name}.decoded.png").tobytes()


def main() -> int:
    parser = argparse.ArgumentParser(description="Try the program on emulated processors.")
    parser.add_argument("--readme", action="store_true", help="its first command instead")
    options = parser.parse_args()
    if not shutil.which(QEMU):
        print(f"{QEMU} is not there: apt-get install qemu-user", file=sys.stderr)
        return 2
    if options.readme:
        columns = ["installed, s", "steps", "these, s"]
    else:
        columns = ["PoCL's name", "given", *(f"{name}, s" for name in COMMANDS)]
    failed = 0
    print(f"| processor | qemu's name | {' | '.join(columns)} |")
    print("|---" * (2 + len(columns)) + "|")
    with tempfile.TemporaryDirectory() as name:
        for number, (processor, model) in enumerate(PROCESSORS.items()):
            if options.readme and processor == HERE:
                continue
            # commands share a home directory; --readme needs an empty one for each processor
            folder = Path(name) / (str(number) if options.readme else "shared")
            folder.mkdir(exist_ok=True)
            Image.open(PICTURE).convert("RGB").resize((32, 32)).save(folder / "small.png")
            try:
                row = (readme if options.readme else trial)(processor, folder)
            except (subprocess.SubprocessError, OSError) as error:
                failed += 1
                row = f"failed |{' |' * (len(columns) - 2)}"
                said = getattr(error, "stdout", None) or ""
                print(f"{processor}: {error}\n{said}", file=sys.stderr, flush=True)
            print(f"| {processor} | {model} | {row} |", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())
