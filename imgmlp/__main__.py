"""The command `imgmlp`, which is also `python -m imgmlp`.

A plain look at a file is answered here: loading the command line takes several times as long.
Whatever is not quite plain goes there, also to have an error told. Nothing that Python has not
loaded by itself is, before Ctrl-C ends this process quietly: `signal` alone loads ten modules.
"""

import _signal  # type: ignore[import-not-found]
import os
import sys
import time

COMPLETION = "_IMGMLP_COMPLETE"  # set by a shell that asks what could be typed
INTERRUPTED = 130
# The same as JSON, as later on.
ANSWER = """{
  "problem": "interrupted",
  "hint": "no file was left half-written; start it again",
  "exit_code": 130
}
"""
# New objects after which garbage is looked for. With the 700 of many Pythons that takes a part of
# the time in which modules are loaded, and finds next to nothing then and later.
SELDOM = 50_000


def main() -> None:
    """Run the command line and leave with its exit code."""
    began = time.perf_counter() - time.process_time()  # Python's own start counts as well
    _signal.signal(_signal.SIGINT, _leave)
    import gc

    gc.set_threshold(SELDOM)
    text = looked_at(sys.argv[1:])
    if text is None:
        from imgmlp import cli

        cli.main(began)
        return
    from imgmlp.errors import OutputError
    from imgmlp.text import guard_streams, print_data

    guard_streams()
    try:
        print_data(text)
    except OutputError as error:
        from imgmlp.terminal import Terminal

        sys.exit(Terminal().fail(error))


def looked_at(arguments: list[str]) -> str | None:
    """What there is to print if these are `info FILE [--json]` and the file is sound."""
    command, rest = arguments[:1], [word for word in arguments[1:] if word != "--json"]
    plain = command == ["info"] and len(rest) == 1 and not rest[0].startswith("-")
    if not plain or len(arguments) > 3 or COMPLETION in os.environ:
        return None
    from pathlib import Path

    from imgmlp import facts

    try:
        return facts.text(Path(rest[0]), "--json" in arguments)
    except Exception:  # the command line says what is wrong
        return None


def _leave(_number: int, _frame: object) -> None:
    """At once: there is nothing to save yet, and modules half loaded would only complain."""
    try:
        if "--json" in sys.argv:
            os.write(1, ANSWER.encode())
    finally:
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
