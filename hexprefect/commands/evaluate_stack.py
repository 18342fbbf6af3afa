"""An evaluation through the running system: every question is a flow run of the deployment."""

from __future__ import annotations

from typing import Any

from hexprefect.commands.ask import ask_deployment
from hexprefect.errors import NoAnswer
from hexprefect.evaluation.questions import GoldQuestion
from hexprefect.evaluation.records import CallRecord
from hexprefect.evaluation.sources import Attempt


class Stack:
    """The deployment `text2sql/ask` of the configured Prefect server.

    It tells of an answer what its record holds: the statement, the calls and the confidence, but
    not the drafts of the candidates. The workers must see the databases at the same paths.

    Args:
        store_url: of the deployment's store; by default that of the settings.
        tenant: whose questions these are.
        slo_s: seconds to each deadline; by default what the deployment has.
    """

    def __init__(self, *, store_url: str | None, tenant: str, slo_s: float | None) -> None:
        self.store_url = store_url
        self.tenant = tenant
        self.slo_s = slo_s

    async def answer(self, question: GoldQuestion, url: str) -> Attempt:
        """Ask through the deployment.

        Raises:
            CallerMistake: there is no such deployment, or the URL holds a secret.
        """
        asked = {
            "question": question.question,
            "database": url,
            "tenant": self.tenant,
            "slo_s": self.slo_s,
            "evidence": question.evidence,
        }
        try:
            record = await ask_deployment(asked, self.store_url)
        except NoAnswer as error:
            return Attempt("failed", reason=str(error))
        return attempt_of(record)


def attempt_of(record: dict[str, Any]) -> Attempt:
    """What an answer record tells."""
    return Attempt(
        state=record["state"],
        sql=record["sql"] if record["state"] == "answered" else None,
        reason=record["error"],
        seconds=record["elapsed_s"],
        confidence=record["confidence"],
        calls=tuple(
            CallRecord(
                stage=stage["stage"],
                branch=stage["branch"],
                input_tokens=stage["input_tokens"] or 0,
                cached_tokens=stage["cached_tokens"] or 0,
                output_tokens=stage["output_tokens"] or 0,
                seconds=stage["ran_s"] or 0.0,
            )
            for stage in record["stages"]
        ),
        warnings=tuple(record["warnings"]),
    )
