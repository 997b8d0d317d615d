"""A device's self-test in a process of its own, and what it found as JSON or for people.

A broken driver may end the process that it is in, or never answer.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from typing import Any

from imgmlp import child
from imgmlp.engine import DeviceInfo, Finding

TIMEOUT = 300.0  # seconds; a cold compiler needs a few


def examine(device: DeviceInfo) -> list[Finding]:
    """What `imgmlp devices --check` finds on one device, or how it failed to find anything."""
    options = ["devices", "--check", "--json", "--device", device.spec]
    try:
        done = child.run(TIMEOUT, "imgmlp", *options)
    except subprocess.TimeoutExpired:
        return [_failed(device, f"no answer within {TIMEOUT:.0f} s")]
    try:
        (report,) = json.loads(done.stdout)
        return [Finding(**check) for check in report["checks"]]
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines() or ["no output"]
        said = next((line for line in lines if line.startswith("error:")), lines[-1])
        return [
            _failed(device, f"the test ended by {child.describe_exit(done.returncode)}: {said}")
        ]


def _failed(device: DeviceInfo, problem: str) -> Finding:
    hint = f"update or remove {device.platform}'s driver ({device.driver}); --device numpy works"
    return Finding("driver", False, problem, hint)


def report(device: DeviceInfo, checks: list[Finding]) -> dict[str, Any]:
    """A device and its checks for JSON; `examine` reads it in turn."""
    passed = all(check.passed for check in checks)
    return asdict(device) | {"passed": passed, "checks": [asdict(check) for check in checks]}


def render(device: DeviceInfo, checks: list[Finding]) -> str:
    """A device's name, then a line a check with what is wrong, then how to mend it."""
    lines = [f"{device.spec}  {device.describe()}"]
    for check in checks:
        verdict = (check.problem or "ok") if check.passed else f"FAILED: {check.problem}"
        lines.append(f"  {check.name:<16}{verdict}")
        lines += [f"  {'':<16}{line}" for line in check.hint.splitlines()]
    return "\n".join(lines)
