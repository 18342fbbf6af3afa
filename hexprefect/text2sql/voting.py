"""Voting by result: candidates whose statements return the same rows stand together.

A vote among n candidates is decided as soon as those that are missing can no longer change it, so
most questions need about half of them: with three, the third is only written when the first two
differ. Stopping there is exact: it takes the cluster that all n would have taken, whatever the
missing ones had returned.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hexprefect.text2sql.candidates import Candidate
from hexprefect.text2sql.rows import Rows


@dataclass(frozen=True, slots=True)
class Cluster:
    """Candidates whose statements return the same rows; the first of them speaks for all."""

    candidates: tuple[Candidate, ...]

    @property
    def representative(self) -> Candidate:
        """The candidate with the lowest number."""
        return self.candidates[0]

    @property
    def is_empty(self) -> bool:
        """Whether the statements found nothing: no row, or only NULLs."""
        rows = self.representative.rows
        return rows is None or rows.is_empty


def cluster_by_rows(candidates: Sequence[Candidate]) -> tuple[Cluster, ...]:
    """Group candidates by what they return; the largest group first, ties by candidate number.

    Rows count as a bag: without knowing that the question asks for an order, an order is no
    difference. Column names do not count.

    Args:
        candidates: in order of their numbers; those that did not run are in no cluster.
    """
    groups: dict[tuple[str, ...], list[Candidate]] = {}
    for candidate in candidates:
        if candidate.rows is not None:
            groups.setdefault(_signature(candidate.rows), []).append(candidate)
    clusters = [Cluster(tuple(group)) for group in groups.values()]
    return tuple(sorted(clusters, key=lambda item: -len(item.candidates)))


def contenders(clusters: Sequence[Cluster]) -> tuple[Cluster, ...]:
    """Clusters worth choosing from: those with rows, if there are any.

    Of 805 verified statements on Spider and defog databases 763 return rows. When one candidate
    found some and another none, the other has most likely misspelt a value.
    """
    with_rows = tuple(item for item in clusters if not item.is_empty)
    return with_rows or tuple(clusters)


def first_round(candidates: int) -> int:
    """How many of `candidates` must be written before the vote can be decided: half of them."""
    return (candidates + 1) // 2


def is_decided(candidates: Sequence[Candidate], *, outstanding: int) -> bool:
    """Whether `outstanding` further candidates, with higher numbers, cannot change the vote.

    A result without rows decides nothing while others may find some.

    Args:
        candidates: those that have ended, in order of their numbers.
        outstanding: how many have not been begun.
    """
    if outstanding == 0:
        return True
    clusters = contenders(cluster_by_rows(candidates))
    if not clusters or clusters[0].is_empty:
        return False
    leader, *others = clusters
    votes = len(leader.candidates)
    # A tie goes to the lower number: a cluster that is yet to come loses it, one that stands with
    # an earlier candidate wins it.
    position = {candidate.branch: index for index, candidate in enumerate(candidates)}
    first = position[leader.representative.branch]
    return outstanding <= votes and all(
        (len(other.candidates) + outstanding, -position[other.representative.branch])
        < (votes, -first)
        for other in others
    )


def _signature(rows: Rows) -> tuple[str, ...]:
    encoded = sorted(
        json.dumps([_rounded(value) for value in row], sort_keys=True, default=str)
        for row in rows.rows
    )
    # The width tells two empty results apart that answer differently shaped questions.
    return (str(len(rows.columns)), *encoded)


def _rounded(value: object) -> object:
    """Floats to nine digits: a sum in another order is the same sum."""
    return float(f"{value:.9g}") if isinstance(value, float) else value
