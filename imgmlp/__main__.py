"""The command `imgmlp`, which is also `python -m imgmlp`.

`imgmlp info FILE` is answered here, because loading the command line takes several times as long.
Everything else, errors included, goes to `cli`. Before the handler for Ctrl-C is installed, only
modules are imported that Python has loaded by itself: `signal` alone would load ten more.
"""

import _signal  # type: ignore[import-not-found]
import os
import sys
import time

# Environment variable that a shell sets when it asks for completions.
COMPLETION_VARIABLE = "_IMGMLP_COMPLETE"
EXIT_INTERRUPTED = 130
# What `errors.problem_of(KeyboardInterrupt())` gives as JSON, without importing it.
INTERRUPTED_AS_JSON = """{
  "problem": "interrupted",
  "hint": "no file was left half-written; start it again",
  "exit_code": 130
}
"""
# New objects between two runs of the garbage collector. Python's usual 700 slows down the loading
# of modules, and the collector finds next to nothing then and later.
OBJECTS_BETWEEN_COLLECTIONS = 50_000


def main() -> None:
    """Run the command line and leave with its exit code."""
    began = time.perf_counter() - time.process_time()  # includes the start of Python itself
    _signal.signal(_signal.SIGINT, _exit_at_once)
    import gc

    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    text = info_output(sys.argv[1:])
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


def info_output(arguments: list[str]) -> str | None:
    """The output of `info FILE [--json]`; None for other arguments, or if FILE cannot be read."""
    command = arguments[:1]
    files = [argument for argument in arguments[1:] if argument != "--json"]
    is_simple = command == ["info"] and len(files) == 1 and not files[0].startswith("-")
    if not is_simple or len(arguments) > 3 or COMPLETION_VARIABLE in os.environ:
        return None
    from pathlib import Path

    from imgmlp import facts

    try:
        return facts.text(Path(files[0]), "--json" in arguments)
    except Exception:  # the command line repeats this and reports the error
        return None


def _exit_at_once(_number: int, _frame: object) -> None:
    """Handle Ctrl-C while modules load: there is nothing to save, and half-loaded modules would
    only print tracebacks."""
    try:
        if "--json" in sys.argv:
            os.write(1, INTERRUPTED_AS_JSON.encode())
    finally:
        os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
