"""Everything that Loopwright refuses, as one tree. Each `code` is stable; each message names the cure."""

from __future__ import annotations

from typing import Any, ClassVar, Final


class LoopwrightError(Exception):
    """Something was refused; `code` says what, the text what to change."""

    code: ClassVar[str] = "error"


class InvalidRequest(LoopwrightError):
    """The request is well-formed JSON but no valid request; `errors` names each field."""

    code = "invalid_request"

    def __init__(self, message: str, errors: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.errors = errors or []


class ModelNotAllowed(InvalidRequest):
    """The operator's settings do not let a request name this model."""

    code = "model_not_allowed"


class NotFound(LoopwrightError):
    """No such execution; also said of one that belongs to somebody else."""

    code = "not_found"

    def __init__(self, cure: str = "") -> None:
        super().__init__(f"No such execution: check its id. {cure}".rstrip())


class TooDeep(LoopwrightError):
    """An agent called an agent that called an agent …: most likely itself, for ever."""

    code = "too_deep"

    def __init__(self, deepest: int) -> None:
        super().__init__(
            f"More than {deepest} agents call each other: leave out the tool server that leads back here."
        )


class SessionBusy(LoopwrightError):
    """Another run of this session is unfinished; `execution_id` names it."""

    code = "session_busy"

    def __init__(self, execution_id: str) -> None:
        super().__init__(
            f"Execution {execution_id} of this session is still running: wait for it or cancel it."
        )
        self.execution_id = execution_id


class IdempotencyMismatch(LoopwrightError):
    """The idempotency key was used before with another body."""

    code = "idempotency_mismatch"

    def __init__(self) -> None:
        super().__init__("This idempotency key belongs to a different request: use a new key.")


class StillRunning(LoopwrightError):
    """Only a finished execution can be deleted."""

    code = "still_running"

    def __init__(self) -> None:
        super().__init__("The execution is still running: cancel it first.")


class AlreadyDecided(LoopwrightError):
    """The call has no open question (any more)."""

    code = "already_decided"

    def __init__(self) -> None:
        super().__init__("This call waits for no decision: it was decided, or never asked about.")


class BeyondTheLog(LoopwrightError):
    """A reader asked to go on after an event that does not exist; `last_seq` is the newest."""

    code = "beyond_the_log"

    def __init__(self, last_seq: int) -> None:
        super().__init__(
            f"The last event of this execution is {last_seq}: ask for events after that or less."
        )
        self.last_seq = last_seq


class Overloaded(LoopwrightError):
    """As many executions run and wait as this process takes; try again after `retry_after` seconds."""

    code = "overloaded"

    def __init__(self, retry_after: int = 5) -> None:
        super().__init__(f"The server has no room for another execution: try again in {retry_after} s.")
        self.retry_after = retry_after


class Stopping(LoopwrightError):
    """The server is stopping and takes no new executions."""

    code = "stopping"

    def __init__(self) -> None:
        super().__init__("The server is stopping: try again when it is back.")


class StorageUnavailable(LoopwrightError):
    """The log cannot be written (locked for long, disk full, I/O error)."""

    code = "storage_unavailable"


class DatabaseRefused(LoopwrightError):
    """The database is not ours, damaged, or of a newer version of Loopwright."""

    code = "database_refused"


class NewerFormat(LoopwrightError):
    """The execution was written by a newer Loopwright: its events can be shown, but not understood here."""

    code = "newer_format"

    def __init__(self, execution_id: str) -> None:
        super().__init__(
            f"Execution {execution_id} was written by a newer version of Loopwright: upgrade this one, or ask the "
            "newer one."
        )


DAMAGE: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading events raises that are none of ours, or that do not follow from those before them."""


class DamagedLog(LoopwrightError):
    """What is on record of the execution cannot be understood: nothing can follow from it but its end."""

    code = "damaged_log"

    def __init__(self, execution_id: str) -> None:
        super().__init__(
            f"The log of execution {execution_id} cannot be read: cancel it, and start the task again."
        )


class Conflict(LoopwrightError):
    """Another append came first: read the tail, apply it, decide again. Never leaves the executor."""

    code = "conflict"


class LeaseLost(LoopwrightError):
    """Another driver owns the execution: stop at once, write nothing. Never leaves the executor."""

    code = "lease_lost"
