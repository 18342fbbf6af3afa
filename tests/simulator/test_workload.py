"""Workloads: both formats, the generator, the facts they come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.simulator import Call, Generator, Query, read_workload, write_workload
from hexprefect.simulator.facts import expected_output_tokens, profiles, stage_statistics
from hexprefect.simulator.generator import Lengths, UnknownWorkload, named_workload
from hexprefect.simulator.workload import BadWorkload, query_from_steps
from hexprefect.text2sql.options import AgentOptions


def steps(*stages: str, tokens: int = 12_000) -> list[dict[str, object]]:
    return [{"step": s, "input_length": tokens, "output_length": 10} for s in stages]


def test_consecutive_candidates_and_judgements_are_parallel_and_all_else_follows() -> None:
    query = query_from_steps(
        steps(
            "extract_keywords",
            "generate_candidate_llama-agent",
            "generate_candidate_llama-agent",
            "revise",
            "revise",
            "evaluate",
            "evaluate",
            "unit_tester",
        )
    )
    needs = [call.needs for call in query.calls]
    assert needs == [(), (0,), (0,), (1, 2), (3,), (4,), (4,), (5, 6)]
    assert query.visits == (0, 0, 1, 0, 1, 0, 1, 0)
    assert query.followers[0] == (1, 2)


def test_candidates_use_two_templates_and_share_each_with_their_like() -> None:
    query = query_from_steps(steps(*["generate_candidate_llama-agent"] * 2))
    first, second = (call.prefix[0] for call in query.calls)
    assert (first[1], second[1]) == (9158, 5292)
    assert first[0] != second[0]


def test_the_published_traces_are_read_whole(published_trace: tuple[Query, ...]) -> None:
    sizes = {90: 1732, 29: 504}
    assert sum(len(query.calls) for query in published_trace) == sizes[len(published_trace)]
    for query in published_trace:
        assert all(call.prefix for call in query.calls)


@st.composite
def any_query(draw: st.DrawFn) -> Query:
    calls: list[Call] = []
    for index in range(draw(st.integers(1, 5))):
        needs = draw(st.sets(st.integers(0, index - 1)) if index else st.just(set()))
        tokens = draw(st.integers(1, 500))
        prefix = draw(st.sampled_from([(), (("static:x", 1),)]))
        calls.append(Call("s", tokens, draw(st.integers(0, 99)), tuple(sorted(needs)), prefix))
    return Query(
        tuple(calls),
        tenant=draw(st.sampled_from(["", "a"])),
        database=draw(st.sampled_from(["", "größe"])),
        arrived_at=draw(st.none() | st.floats(0, 1e9)),
        slo_s=draw(st.none() | st.floats(0.1, 1e4)),
    )


@given(queries=st.lists(any_query(), min_size=1, max_size=5))
def test_our_own_format_comes_back_as_it_was(
    queries: list[Query], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("w") / "w.jsonl"
    write_workload(queries, path)
    assert read_workload(path) == tuple(queries)


def a_call(**fields: str) -> str:
    written = {"stage": '"x"', "input_tokens": "50", "output_tokens": "1", **fields}
    inside = ", ".join(f'"{name}": {value}' for name, value in written.items())
    return f'{{"calls": [{{{inside}}}]}}'


def a_query(**fields: str) -> str:
    inside = ", ".join(f'"{name}": {value}' for name, value in fields.items())
    return a_call().replace("{", f"{{{inside}, ", 1)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "no query"),
        ('[{"Text2SQLRequest": [{"step": "x"}]}]', "query 1"),
        ('{"calls": []}', "line 1"),
        ('{"calls": [{"stage": "x", "input_tokens": 0, "output_tokens": 1}]}', "line 1"),
        (
            '{"calls": [{"stage": "x", "input_tokens": 5, "output_tokens": 1, "needs": [0]}]}',
            "line 1",
        ),
        ("not json", "line 1"),
        ('["no query"]', "query 1"),
        (a_call(input_tokens="1e400"), "line 1"),
        (a_call(input_tokens="1e300"), "1,000,000,000"),
        (a_call(output_tokens="NaN"), "line 1"),
        (a_call(prefix='[["k", -9000], ["l", 9000]]'), "at least 0"),
        (a_query(slo_s="NaN"), "line 1: a query has an SLO of nan"),
        (a_query(slo_s="-1"), "SLO"),
        (a_query(slo_s="Infinity"), "SLO"),
        (a_query(arrived_at="Infinity"), "line 1: a query arrives at inf"),
        (a_query(arrived_at="NaN"), "seconds"),
    ],
)
def test_a_bad_trace_is_refused_with_its_place(text: str, names: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(BadWorkload, match=names):
        read_workload(path)


def test_a_trace_that_is_not_text_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(a_query(tenant='"größe"').encode("latin-1"))
    with pytest.raises(BadWorkload, match=r"trace\.jsonl.* in UTF-8"):
        read_workload(path)


def test_lines_end_with_a_line_feed_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = (
        '{"database": "a\u2028b", "calls": [{"stage": "s", "input_tokens": 1, "output_tokens": 1}]}'
    )
    path.write_text(f"{line}\r\n{line}\n", encoding="utf-8", newline="")
    assert [query.database for query in read_workload(path)] == ["a\u2028b"] * 2


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadWorkload, match=r"gone\.json"):
        read_workload(tmp_path / "gone.json")


@given(st.integers(0, 10_000))
def test_the_generator_repeats_itself_and_makes_valid_queries(seed: int) -> None:
    for shape in ("reference", "ours"):
        generator = Generator(shape=shape, seed=seed)  # type: ignore[arg-type]
        assert generator.some(3) == generator.some(3)


def test_generated_lengths_have_the_published_mean() -> None:
    import random

    facts = stage_statistics()["traces"]["trace1"]["stages"]
    rng = random.Random(1)
    for stage in ("generate_candidate_llama-agent", "revise", "generate_unit_test"):
        lengths = Lengths.of(facts[stage]["output_tokens"])
        drawn = [lengths.draw(rng) for _ in range(20_000)]
        assert sum(drawn) / len(drawn) == pytest.approx(lengths.mean, rel=0.12)
        assert max(drawn) <= lengths.most
        assert sorted(drawn)[10_000] == pytest.approx(lengths.p50, rel=0.05)


def test_generated_queries_cost_about_what_the_published_ones_do() -> None:
    queries = Generator(family="bird").some(400)
    traces = stage_statistics()["traces"].values()
    published = sum(t["requests"] for t in traces) / sum(t["queries"] for t in traces)
    assert sum(len(query.calls) for query in queries) / 400 == pytest.approx(published, rel=0.1)
    bird, spider = (
        sum(call.input_tokens for query in Generator(family=f).some(200) for call in query.calls)
        for f in ("bird", "spider")
    )
    assert spider < 0.75 * bird


def test_our_workflow_has_no_routing_and_judges_only_on_disagreement() -> None:
    ours = Generator(shape="ours", disagreement=0.3, seed=3).some(500)
    stages = {call.stage for query in ours for call in query.calls}
    assert stages == {
        "schema_linking",
        "candidate_generation",
        "self_correction",
        "unit_test_generation",
        "judge",
    }
    judged = sum(any(call.stage == "judge" for call in query.calls) for query in ours) / 500
    assert judged == pytest.approx(0.3, abs=0.07)


def test_our_workflow_links_and_corrects_as_our_agent_does() -> None:
    """The simulator may not import the agent; its defaults are the agent's all the same."""
    options, generator = AgentOptions(), Generator(shape="ours", seed=3)
    assert generator.max_corrections == options.max_corrections
    assert options.linking_from_tables == 8
    queries = generator.some(500)
    for query in queries:
        corrections = sum(call.stage == "self_correction" for call in query.calls)
        assert corrections <= 2 * options.max_corrections
    linked = {
        query.database
        for query in queries
        if any(call.stage == "schema_linking" for call in query.calls)
    }
    assert len(linked) == 5
    assert all(
        (query.database in linked) == (query.calls[0].stage == "schema_linking")
        for query in queries
    )
    unbounded = Generator(shape="ours", max_corrections=None, seed=3).some(500)
    reference = Generator(seed=3).some(500)
    assert sum(call.stage == "self_correction" for query in unbounded for call in query.calls) == (
        sum(call.stage == "revise" for query in reference for call in query.calls)
    )


def test_a_layout_for_prefix_caching_shares_the_schema_too() -> None:
    static, schema = (
        Generator(shape="ours", layout=layout, seed=5).some(5)  # type: ignore[arg-type]
        for layout in ("static", "schema")
    )
    for before, after in zip(static, schema, strict=True):
        for plain, shared in zip(before.calls, after.calls, strict=True):
            assert plain.input_tokens == shared.input_tokens
            assert len(shared.prefix) >= len(plain.prefix)
    assert any(len(call.prefix) == 2 for query in schema for call in query.calls)


def test_names_of_workloads() -> None:
    assert len(named_workload("spider-ours", number=5)) == 5
    for name in ("bard", "bird-theirs"):
        with pytest.raises(UnknownWorkload, match=name):
            named_workload(name)


def test_the_facts_are_there_with_their_source() -> None:
    assert "Vidur" in str(__import__("hexprefect.simulator.facts").simulator.facts.cost_facts())
    assert profiles()["a100"].output_s_per_token == 0.0215
    for name, profile in profiles("qwen3-30b-a3b").items():
        assert profile.output_s_per_token < profiles()[name].output_s_per_token
    assert 600 < expected_output_tokens()["generate_candidate_llama-agent"] < 750
    json.dumps(stage_statistics())
