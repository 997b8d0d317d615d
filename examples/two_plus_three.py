"""2 + 3 through every stage: expression, Nodes, kernels, instructions, OpenCL C, and the result.

    python examples/two_plus_three.py [DEVICE]

docs/engine.md explains what is printed here.
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, Program, Tensor, compile, open_device

# NumPy runs each form by itself, so that one can see where an answer goes wrong.
INTERPRETED = ("numpy", "numpy:procedure", "numpy:uops", "numpy:uops-group")


def compile_sum(device: AnyDevice) -> Program:
    two, three = Tensor([2.0], device, name="two"), Tensor([3.0], device, name="three")
    return compile(lambda: {"sum": two + three}, device)


def show_forms(program: Program) -> None:
    """Print every form between the expression and the device."""
    for form in ("nodes", "procedure", "memory", "uops"):
        print(f"\n--- {form}\n{program.stages.show(form)}")
    source = program.stages.source
    print(f"\n--- source\n{source[source.index('__kernel') :]}")


def main(device: AnyDevice) -> None:
    total = Tensor([2.0], device) + Tensor([3.0], device)
    print(f"an expression: {total}")
    np.testing.assert_equal(total.realized, False)
    print(f"after realize(): {total.realize()}, which reads back as {total.numpy()}")
    np.testing.assert_equal(total.realized, True)
    np.testing.assert_array_equal(total.numpy(), np.add([2.0], [3.0]))

    program = compile_sum(device)
    show_forms(program)
    program.run()
    print(f"\nreplayed on {device.info.spec}: {program.read('sum')}")
    np.testing.assert_array_equal(program.read("sum"), [5.0])
    for name in INTERPRETED:
        interpreted = compile_sum(open_device(name))
        interpreted.run()
        print(f"{name:>16}: {interpreted.read('sum')}")
        np.testing.assert_array_equal(interpreted.read("sum"), [5.0])

    simplified(device)


def simplified(device: AnyDevice) -> None:
    """Constants, operations without effect and repeated expressions need no kernels."""
    x = Tensor([7.0], device, name="x")
    two, three = Tensor.full((1,), 2.0), Tensor.full((1,), 3.0)

    def step() -> dict[str, Tensor]:
        x.exp().sin()  # nobody asks for it
        once, again = (x + 1) * 2, (x + 1.0) * 2.0
        return {"five": two + three, "x": (x * 1 + 0) / 1, "none": x * 0, "same": once + again}

    program = compile(step, device)
    print("\n2 + 3 of constants, (x * 1 + 0) / 1, x * 0, and (x + 1) * 2 twice, simplified:")
    print(listing := program.stages.show("nodes"))
    np.testing.assert_equal([listing.count(op) for op in ("SIN", "MUL", "BUFFER")], [0, 1, 1])
    program.run()
    found = [program.read(name).item() for name in ("five", "x", "none", "same")]
    np.testing.assert_array_equal(found, [5.0, 7.0, 0.0, 32.0])


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
