"""Runs a device's self-test in its own process, and formats the findings as JSON or text.

It needs its own process because a broken driver may end the process or never return.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from typing import Any

from imgmlp import child
from imgmlp.engine import DeviceInfo, Finding

TIMEOUT_SECONDS = 300.0  # with no kernel in the cache, compiling alone takes a few seconds


def examine(device: DeviceInfo) -> list[Finding]:
    """The findings of `imgmlp devices --check` on one device, or a finding that it failed."""
    options = ["devices", "--check", "--json", "--device", device.spec]
    try:
        done = child.run(TIMEOUT_SECONDS, "imgmlp", *options)
    except subprocess.TimeoutExpired:
        return [_failed(device, f"no answer within {TIMEOUT_SECONDS:.0f} s")]
    try:
        (report,) = json.loads(done.stdout)
        return [Finding(**check) for check in report["checks"]]
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines() or ["no output"]
        message = next((line for line in lines if line.startswith("error:")), lines[-1])
        ending = child.describe_exit(done.returncode)
        return [_failed(device, f"the test ended by {ending}: {message}")]


def _failed(device: DeviceInfo, problem: str) -> Finding:
    hint = f"update or remove {device.platform}'s driver ({device.driver}); --device numpy works"
    return Finding("driver", False, problem, hint)


def report(device: DeviceInfo, checks: list[Finding]) -> dict[str, Any]:
    """A device and its checks for JSON, which `examine` reads from the other process."""
    passed = all(check.passed for check in checks)
    return asdict(device) | {"passed": passed, "checks": [asdict(check) for check in checks]}


def render(device: DeviceInfo, checks: list[Finding]) -> str:
    """A device's name, then for each check a line with its verdict, and how to mend a failure."""
    lines = [f"{device.spec}  {device.describe()}"]
    for check in checks:
        verdict = (check.problem or "ok") if check.passed else f"FAILED: {check.problem}"
        lines.append(f"  {check.name:<16}{verdict}")
        lines += [f"  {'':<16}{line}" for line in check.hint.splitlines()]
    return "\n".join(lines)
