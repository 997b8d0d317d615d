"""The errors that imgmlp raises on purpose, each with an exit code and advice.

Any other exception that reaches the user is a bug in imgmlp. This module imports no other one.
"""


class ImgmlpError(Exception):
    """An error with a message of one line; `hint` advises what to do about it."""

    exit_code: int = 1

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint

    def facts(self) -> dict[str, str | int]:
        """Message, hint and exit code, for JSON output."""
        return {"problem": str(self), "hint": self.hint, "exit_code": self.exit_code}


class ImgmlpWarning(UserWarning):
    """The work continues in another way than requested, with an equivalent result."""


class TrainingError(ImgmlpError):
    """Training cannot go on: the loss is not finite."""

    exit_code = 1


class UsageError(ImgmlpError):
    """An option or argument is not acceptable."""

    exit_code = 2


class PictureError(ImgmlpError):
    """A file is not a picture, or one that is damaged or not supported."""

    exit_code = 3


DAMAGED = "the file is damaged or was not written by imgmlp; get it again"


class FormatError(ImgmlpError):
    """A compressed file is damaged, truncated, foreign or too new."""

    exit_code = 4

    def __init__(self, message: str, hint: str = DAMAGED):
        super().__init__(message, hint)


def check_format(good: bool, problem: str, hint: str = DAMAGED) -> None:
    """Raise FormatError unless a property that a file must have is `good`."""
    if not good:
        raise FormatError(problem, hint)


class TargetError(ImgmlpError):
    """The target size or quality was not reached; the best file was written."""

    exit_code = 5


class DeviceError(ImgmlpError):
    """There is no such device, or its driver or compiler failed."""

    exit_code = 6


class OutOfMemoryError(ImgmlpError):
    """The device has less memory than the work needs."""

    exit_code = 7


def problem_of(error: BaseException) -> ImgmlpError:
    """The ImgmlpError with which an exception is reported.

    Exceptions that are neither ours nor expected become one that calls them a bug in imgmlp.
    """
    if isinstance(error, ImgmlpError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted", hint="no file was left half-written; start it again")
    if isinstance(error, MemoryError) or _is_import_without_memory(error):
        return OutOfMemoryError("out of memory", hint="use a smaller picture, batch or size")
    if lacks_working_folder(error):
        return OutputError("the current folder was removed", hint="change to one that exists")
    reason = (str(error) or "no message").splitlines()[0]
    hint = "this is a bug in imgmlp; please report it with the output of -vv"
    problem = ImgmlpError(f"unexpected {type(error).__name__}: {reason}", hint=hint)
    problem.__cause__ = error
    return problem


def lacks_working_folder(error: BaseException) -> bool:
    """Whether os.getcwd raised the error: unlike others, it has an errno and no file name."""
    if not isinstance(error, FileNotFoundError):
        return False
    return error.filename is None and error.errno is not None


def _is_import_without_memory(error: BaseException) -> bool:
    """Whether a module could not be loaded for lack of memory."""
    message = str(error).lower()
    reasons = ("failed to map segment", "cannot allocate memory")
    return isinstance(error, ImportError) and any(reason in message for reason in reasons)


class OutputError(ImgmlpError):
    """An output exists already or cannot be written."""

    exit_code = 8


class Interrupted(ImgmlpError):
    """The user interrupted the work; its state so far is saved."""

    exit_code = 130
