"""What a model.py raises and returns when something is wrong, and what it may not use yet."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from naiad.protocol.errors import Code, InternalError, ModelError, NaiadError


class TritonModelException(Exception):
    """Raised by model.py, and by these objects when model.py uses them wrongly."""

    def __init__(self, msg: str = "") -> None:
        super().__init__(msg)
        self._message = msg

    def message(self) -> str:
        return self._message


class NotInThisRelease(TritonModelException):
    """A feature of Triton's Python backend that naiad does not serve yet."""


def not_in_this_release(feature: str, remedy: str) -> NoReturn:
    """Raises NotInThisRelease naming the feature and the way out."""
    raise NotInThisRelease(f"{feature} is not in this release of naiad; {remedy}")


class TritonError:
    """The error of one response. The codes are those of Triton's TRITONSERVER_Error_Code."""

    UNKNOWN: ClassVar[int] = 0
    INTERNAL: ClassVar[int] = 1
    NOT_FOUND: ClassVar[int] = 2
    INVALID_ARG: ClassVar[int] = 3
    UNAVAILABLE: ClassVar[int] = 4
    UNSUPPORTED: ClassVar[int] = 5
    ALREADY_EXISTS: ClassVar[int] = 6
    CANCELLED: ClassVar[int] = 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        if code not in _MEANING:
            raise TritonModelException(f"TritonError: expected a code 0 to 7, got {code!r}")
        self._message = str(message)
        self._code = code

    def code(self) -> int:
        return self._code

    def message(self) -> str:
        return self._message

    def __str__(self) -> str:
        return self._message


_MEANING: dict[int, Code] = {
    TritonError.UNKNOWN: Code.MODEL_ERROR,
    TritonError.INTERNAL: Code.MODEL_ERROR,
    TritonError.NOT_FOUND: Code.NOT_FOUND,
    TritonError.INVALID_ARG: Code.INVALID_ARGUMENT,
    TritonError.UNAVAILABLE: Code.UNAVAILABLE,
    TritonError.UNSUPPORTED: Code.UNSUPPORTED,
    TritonError.ALREADY_EXISTS: Code.ALREADY_EXISTS,
    TritonError.CANCELLED: Code.CANCELLED,
}


def to_naiad(error: object) -> NaiadError:
    """The error of a response: a ModelError whatever its code, as the text is the model's own."""
    if not isinstance(error, TritonError):
        return InternalError(f"expected a TritonError, got {type(error).__name__}")
    code = _MEANING[error.code()]
    return ModelError(str(error.message()), code=code, retryable=code == Code.UNAVAILABLE)
