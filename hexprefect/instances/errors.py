"""What can go wrong between a request and its instance, sorted by what to do about it.

`InstanceUnavailable` and `InstanceTimeout` speak of the instance: the request is sound and may move
to another. `PromptRejected` speaks of the request: it would fail everywhere, unless it was too long
and another instance is larger. `InstanceRefused` speaks of the operator's configuration of this one
instance. Each names its instance and none carries a secret.
"""

from __future__ import annotations

from typing import Literal

from hexprefect.errors import CallerMistake, HexprefectError

FailureKind = Literal[
    "refused", "died", "unavailable", "overloaded", "timeout", "rejected", "unauthorised"
]
"""The sort of evidence a failure is, as `hexprefect.instances.health` weighs it.

`refused`: nothing listens. `died`: the connection broke while it was in use. `unavailable`: the
server says that it, or its engine, cannot serve. `overloaded`: it sheds load. `timeout`: no answer
in time. `rejected` and `unauthorised`: the server is alive and said no.
"""


class InstanceError(HexprefectError):
    """Base of all failures of one call to one instance.

    Args:
        problem: what went wrong, without secrets.
        instance: the name of the instance.
        kind: the sort of evidence this is about the instance's health.
        status: the HTTP status, where an answer came.
        remedy: what the reader can do.
        retry_after_s: seconds until it wants to be asked again, where it said so.
    """

    default_kind: FailureKind = "unavailable"
    movable = False
    """Whether the same request may succeed on another instance."""

    def __init__(
        self,
        problem: str,
        *,
        instance: str,
        kind: FailureKind | None = None,
        status: int | None = None,
        remedy: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"Instance {instance!r}: {problem}", remedy=remedy)
        self.instance = instance
        self.kind: FailureKind = kind or self.default_kind
        self.status = status
        self.retry_after_s = retry_after_s


class InstanceUnavailable(InstanceError):
    """Nothing listens, the connection died, or the engine behind the server did."""

    movable = True


class InstanceTimeout(InstanceError):
    """The instance did not answer within the time that the request had left."""

    default_kind = "timeout"
    movable = True


class PromptRejected(InstanceError):
    """The instance is well and the request is at fault: malformed, unknown model, or too long.

    Args:
        n_prompt_tokens: the prompt's length as the server counted it, where it told.
        n_ctx: the server's context length in tokens, where it told.
    """

    default_kind = "rejected"

    def __init__(
        self,
        problem: str,
        *,
        instance: str,
        status: int | None = None,
        remedy: str | None = None,
        n_prompt_tokens: int | None = None,
        n_ctx: int | None = None,
        too_long: bool = False,
    ) -> None:
        super().__init__(problem, instance=instance, status=status, remedy=remedy)
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx
        self.too_long = too_long


class InstanceRefused(InstanceError):
    """The instance does not accept our key, or we have none; another has a key of its own."""

    default_kind = "unauthorised"
    movable = True


class InstanceStartFailed(InstanceError):
    """A server that we launch ourselves did not come up."""


class ModelUnavailable(HexprefectError):
    """A model file could not be obtained, or its bytes are not the ones they should be."""


class UnknownModel(ModelUnavailable, CallerMistake):
    """There is no local model of that name."""
