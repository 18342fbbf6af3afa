"""Candidates are grouped by what they return, whatever their statements look like."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hexprefect.text2sql.candidates import Candidate
from hexprefect.text2sql.rows import Rows
from hexprefect.text2sql.voting import cluster_by_rows, contenders, first_round, is_decided

cells = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from(["a", "b"]), st.floats(0, 1))
results = st.lists(st.tuples(cells, cells), max_size=5)


def candidate(number: int, rows: list[Any], columns: int = 2) -> Candidate:
    names = tuple(f"column {index} of {number}" for index in range(columns))
    return Candidate(f"candidate-{number}", f"SELECT {number}", Rows(names, tuple(rows)))


@given(rows=results, order=st.randoms())
def test_the_order_of_rows_and_the_names_of_columns_do_not_count(rows: Any, order: Any) -> None:
    shuffled = list(rows)
    order.shuffle(shuffled)
    assert len(cluster_by_rows([candidate(1, rows), candidate(2, shuffled)])) == 1


@given(st.lists(results, max_size=6))
def test_every_candidate_is_in_exactly_one_cluster(several: list[Any]) -> None:
    candidates = [candidate(number, rows) for number, rows in enumerate(several, start=1)]
    clusters = cluster_by_rows(candidates)
    found = [item.branch for cluster in clusters for item in cluster.candidates]
    assert sorted(found) == sorted(item.branch for item in candidates)
    sizes = [len(cluster.candidates) for cluster in clusters]
    assert sizes == sorted(sizes, reverse=True)


def test_how_often_a_row_occurs_counts() -> None:
    assert len(cluster_by_rows([candidate(1, [(1, 2)]), candidate(2, [(1, 2), (1, 2)])])) == 2


def test_a_sum_in_another_order_is_the_same_sum() -> None:
    first, second = 0.1 + 0.2, 0.3
    assert first != second
    one, two = candidate(1, [(first,)], 1), candidate(2, [(second,)], 1)
    assert len(cluster_by_rows([one, two])) == 1


def test_a_number_is_not_the_text_of_it() -> None:
    assert len(cluster_by_rows([candidate(1, [(1,)], 1), candidate(2, [("1",)], 1)])) == 2


def test_candidates_that_did_not_run_are_in_no_cluster() -> None:
    assert cluster_by_rows([Candidate("candidate-1", "SELECT 1", error="no")]) == ()


def test_empty_results_are_judged_only_among_themselves() -> None:
    empty, found = candidate(1, []), candidate(2, [(1, 2)])
    assert [item.representative for item in contenders(cluster_by_rows([empty, found]))] == [found]
    assert len(contenders(cluster_by_rows([empty, candidate(2, [], columns=1)]))) == 2


outcomes = st.lists(st.sampled_from([None, (), (1,), (2,), (3,)]), min_size=1, max_size=8)


def ended(values: list[tuple[int, ...] | None]) -> list[Candidate]:
    """Candidates that failed (None), found nothing, or found one row of one value."""
    return [
        Candidate(
            f"candidate-{number}",
            "SELECT",
            None if value is None else Rows(("n",), tuple((item,) for item in value)),
        )
        for number, value in enumerate(values, start=1)
    ]


def winner(candidates: list[Candidate]) -> Rows | None:
    clusters = contenders(cluster_by_rows(candidates))
    return clusters[0].representative.rows if clusters else None


@given(outcomes, st.data())
def test_what_is_decided_is_what_all_of_them_would_have_chosen(
    values: list[tuple[int, ...] | None], data: Any
) -> None:
    written = data.draw(st.integers(0, len(values)))
    everyone = ended(values)
    begun = everyone[:written]
    if is_decided(begun, outstanding=len(values) - written):
        assert winner(begun) == winner(everyone)


@given(outcomes)
def test_an_end_without_rows_is_never_decided_early(values: list[tuple[int, ...] | None]) -> None:
    begun = ended([value and None for value in values])
    assert not is_decided(begun, outstanding=1)
    assert is_decided(begun, outstanding=0)


@given(st.integers(1, 8))
def test_a_unanimous_first_round_decides_and_one_less_would_not(candidates: int) -> None:
    opening = first_round(candidates)
    assert is_decided(ended([(1,)] * opening), outstanding=candidates - opening)
    less = opening - 1
    assert not is_decided(ended([(1,)] * less), outstanding=candidates - less)


def test_a_tie_that_the_missing_could_win_is_not_decided() -> None:
    one, two = (1,), (2,)
    # 1 2 2, one missing: a vote for 1 would tie, and 1 came first.
    assert not is_decided(ended([one, two, two]), outstanding=1)
    assert is_decided(ended([two, one, two]), outstanding=1)
