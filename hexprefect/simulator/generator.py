"""Generated workloads: what the project ships in place of traces.

`bird` follows the stage lengths and counts of the published BIRD traces, pooled
(`facts/stage_statistics.json`). `spider` is an assumption on top of it, for want of a published
trace: schemas a sixth as long (about five tables instead of eleven, with shorter descriptions),
answers half as long, a third of the corrections. Prompts are built from their parts, static text,
schema, question, so that prefixes are shared as they would be.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hexprefect.errors import HexprefectError
from hexprefect.simulator.facts import stage_statistics
from hexprefect.simulator.workload import Call, Query

WorkflowShape = Literal["reference", "ours"]
Layout = Literal["static", "schema"]

_WITH_LINKING = {"bird": 5 / 11, "spider": 2 / 20}
"""Share of the databases with the eight tables from which on the agent makes a linking call, in the
development sets of BIRD and Spider."""

_ROUTING = 4, 3
"""Calls in which a reference query chooses its next tool: before candidates, and in testing."""


class UnknownWorkload(HexprefectError):
    """A generated workload that does not exist."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts with the published mean, median, 95th percentile and maximum:
    linear between its quantiles, its minimum chosen so that the mean is right."""

    mean: float
    p50: float
    p95: float
    most: float

    @classmethod
    def of(cls, facts: Mapping[str, float]) -> Lengths:
        """From an entry of the stage statistics."""
        return cls(facts["mean"], facts["p50"], facts["p95"], facts["max"])

    @property
    def least(self) -> float:
        """The minimum that gives the mean, between 1 and the median."""
        rest = 0.45 * (self.p50 + self.p95) / 2 + 0.05 * (self.p95 + self.most) / 2
        return min(self.p50, max(1.0, 4 * (self.mean - rest) - self.p50))

    def draw(self, rng: random.Random, scale: float = 1.0) -> int:
        """One length, at least 1."""
        place = rng.random()
        if place < 0.5:
            length = self.least + (self.p50 - self.least) * place / 0.5
        elif place < 0.95:
            length = self.p50 + (self.p95 - self.p50) * (place - 0.5) / 0.45
        else:
            length = self.p95 + (self.most - self.p95) * (place - 0.95) / 0.05
        return max(1, round(scale * length))


@dataclass(frozen=True, slots=True)
class _Question:
    """What one question needs, before a workflow makes calls of it."""

    database: str
    schema_tokens: int
    question_tokens: int
    keywords: bool
    """The reference has its keywords extracted."""
    linking: bool
    """Its database has so many tables that our agent has the schema linked by a call."""
    candidate_tokens: tuple[int, int]
    corrections: tuple[int, ...]
    """Output tokens of each self-correction."""
    unit_test_tokens: int
    evaluations: tuple[tuple[int, int], ...]
    """Input and output tokens of each judgement."""
    routing: tuple[int, ...]
    disagree: bool


@dataclass(frozen=True, kw_only=True)
class Generator:
    """A source of queries that resemble the published ones; one seed, one sequence."""

    family: str = "bird"
    """`bird` or `spider`."""
    shape: WorkflowShape = "reference"
    """`reference`: the published sequence with its routing calls. `ours`: a graph without them."""
    layout: Layout = "static"
    """What prompts share: static text only, or static text and then the database's schema."""
    databases: int = 11
    """BIRD's development set has eleven."""
    disagreement: float = 0.19
    """Share of queries whose candidates return different rows, so that the judge is called: that of
    28 of 150 questions of Spider, with Qwen2.5-Coder-1.5B (docs/accuracy.md)."""
    max_corrections: int | None = 2
    """How often our agent corrects one candidate at most; None: as often as the reference."""
    seed: int = 0
    _static: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.family not in ("bird", "spider"):
            raise UnknownWorkload(
                f"there is no generated workload {self.family!r}.", remedy="Use bird or spider."
            )
        object.__setattr__(self, "_static", stage_statistics()["static_prompt_tokens"])

    @property
    def _small(self) -> bool:
        return self.family == "spider"

    def queries(self) -> Iterator[Query]:
        """Queries without end."""
        rng = random.Random(f"{self.family} {self.seed}")
        facts = stage_statistics()["traces"]
        names = list(facts)
        weights = [facts[name]["queries"] for name in names]
        schemas = [self._schema_tokens(rng, facts) for _ in range(self.databases)]
        by_size = sorted(range(self.databases), key=schemas.__getitem__, reverse=True)
        linked = by_size[: round(_WITH_LINKING[self.family] * self.databases)]
        while True:
            stages = facts[rng.choices(names, weights)[0]]["stages"]
            database = rng.randrange(self.databases)
            question = self._question(
                rng,
                stages,
                f"{self.family}-{database}",
                schemas[database],
                linking=database in linked,
            )
            yield self._sequence(question) if self.shape == "reference" else self._graph(question)

    def some(self, number: int) -> tuple[Query, ...]:
        """The first queries."""
        source = self.queries()
        return tuple(next(source) for _ in range(number))

    # -- what is asked -------------------------------------------------------------------------

    def _schema_tokens(self, rng: random.Random, facts: Mapping[str, Any]) -> int:
        stages = facts[rng.choice(list(facts))]["stages"]
        prompt = Lengths.of(stages["generate_candidate_llama-agent"]["input_tokens"])
        schema = prompt.p50 - self._static["generate_candidate (first template)"]
        schema *= rng.uniform(0.8, 1.2)
        return round(schema / 6 if self._small else schema)

    def _question(
        self,
        rng: random.Random,
        stages: Mapping[str, Any],
        database: str,
        schema_tokens: int,
        *,
        linking: bool,
    ) -> _Question:
        answers = 0.5 if self._small else 1.0

        def output(stage: str, scale: float = 1.0) -> int:
            return Lengths.of(stages[stage]["output_tokens"]).draw(rng, scale)

        revise, evaluate = stages["revise"], stages["evaluate"]
        corrections = _draw_count(
            rng,
            revise["calls_per_query_mean"] / (3 if self._small else 1),
            revise["calls_max"],
        )
        judgements = _draw_count(rng, evaluate["calls_per_query_mean"], evaluate["calls_max"])
        judged = Lengths.of(evaluate["input_tokens"])
        return _Question(
            database=database,
            schema_tokens=schema_tokens,
            question_tokens=rng.randint(20, 120),
            keywords=rng.random() < stages["extract_keywords"]["calls_per_query_mean"],
            linking=linking,
            candidate_tokens=(
                output("generate_candidate_llama-agent", answers),
                output("generate_candidate_llama-agent", answers),
            ),
            corrections=tuple(output("revise", answers) for _ in range(corrections)),
            unit_test_tokens=output("generate_unit_test"),
            evaluations=tuple(
                (max(300, judged.draw(rng)), output("evaluate")) for _ in range(max(1, judgements))
            ),
            routing=tuple(output("Information Retriever") for _ in range(_ROUTING[0]))
            + tuple(output("unit_tester") for _ in range(_ROUTING[1])),
            disagree=rng.random() < self.disagreement,
        )

    # -- what calls it takes -------------------------------------------------------------------

    def _call(
        self,
        stage: str,
        template: str,
        question: _Question,
        output_tokens: int,
        needs: tuple[int, ...],
        *,
        schema: bool = False,
        own_tokens: int | None = None,
    ) -> Call:
        static = self._static[template]
        prefix: tuple[tuple[str, int], ...] = ((f"static:{template}", static),)
        tokens = static
        if schema:
            tokens += question.schema_tokens
            if self.layout == "schema":
                prefix += ((f"schema:{question.database}", question.schema_tokens),)
        tokens += question.question_tokens if own_tokens is None else own_tokens
        return Call(stage, tokens, output_tokens, needs, prefix)

    def _sequence(self, question: _Question) -> Query:
        """The published workflow: stage after stage, with a routing call before each tool."""
        calls: list[Call] = []
        last: tuple[int, ...] = ()

        def then(*parallel: Call) -> None:
            nonlocal last
            first = len(calls)
            calls.extend(parallel)
            last = tuple(range(first, len(calls)))

        route = iter(question.routing)
        for place in range(_ROUTING[0]):
            then(
                self._call(
                    "Information Retriever", "Information Retriever", question, next(route), last
                )
            )
            if place == 0 and question.keywords:
                then(self._call("extract_keywords", "extract_keywords", question, 45, last))
        then(
            *(
                self._call(
                    "generate_candidate",
                    f"generate_candidate ({template} template)",
                    question,
                    tokens,
                    last,
                    schema=True,
                )
                for template, tokens in zip(
                    ("first", "second"), question.candidate_tokens, strict=True
                )
            )
        )
        for tokens in question.corrections:
            then(
                self._call("revise", "revise", question, tokens, last, schema=True, own_tokens=200)
            )
        then(self._call("unit_tester", "unit_tester", question, next(route), last))
        then(
            self._call(
                "generate_unit_test",
                "generate_unit_test",
                question,
                question.unit_test_tokens,
                last,
                own_tokens=700,
            )
        )
        then(self._call("unit_tester", "unit_tester", question, next(route), last))
        then(
            *(
                self._call("evaluate", "evaluate", question, output, last, own_tokens=tokens - 261)
                for tokens, output in question.evaluations
            )
        )
        then(self._call("unit_tester", "unit_tester", question, next(route), last))
        return Query(calls=tuple(calls), database=question.database)

    def _graph(self, question: _Question) -> Query:
        """Our workflow: no routing calls, linking for large schemas only, a branch with a bounded
        number of corrections for each candidate, and unit tests and the judge where they disagree
        only."""
        calls: list[Call] = []
        linked: tuple[int, ...] = ()
        if question.linking:
            calls.append(self._call("schema_linking", "extract_keywords", question, 45, ()))
            linked = (0,)
        ends: list[int] = []
        for place, template in enumerate(("first", "second")):
            calls.append(
                self._call(
                    "candidate_generation",
                    f"generate_candidate ({template} template)",
                    question,
                    question.candidate_tokens[place],
                    linked,
                    schema=True,
                )
            )
            for tokens in question.corrections[place::2][: self.max_corrections]:
                needs = (len(calls) - 1,)
                calls.append(
                    self._call(
                        "self_correction",
                        "revise",
                        question,
                        tokens,
                        needs,
                        schema=True,
                        own_tokens=200,
                    )
                )
            ends.append(len(calls) - 1)
        if question.disagree:
            calls.append(
                self._call(
                    "unit_test_generation",
                    "generate_unit_test",
                    question,
                    question.unit_test_tokens,
                    tuple(ends),
                    own_tokens=700,
                )
            )
            judged = (len(calls) - 1,)
            for tokens, output in question.evaluations:
                calls.append(
                    self._call(
                        "judge", "evaluate", question, output, judged, own_tokens=tokens - 261
                    )
                )
        return Query(calls=tuple(calls), database=question.database)


def _draw_count(rng: random.Random, mean: float, most: int) -> int:
    """How many calls of a stage: binomial, with the published mean and maximum."""
    return sum(rng.random() < mean / most for _ in range(most))


def named_workload(name: str, *, number: int = 300) -> tuple[Query, ...]:
    """`bird`, `spider`, `bird-ours` or `spider-ours`: what may be given in place of a trace.

    Raises:
        UnknownWorkload: for another name.
    """
    family, _, shape = name.partition("-")
    if shape not in ("", "ours"):
        raise UnknownWorkload(
            f"there is no generated workload {name!r}.",
            remedy="Use bird, spider, bird-ours, spider-ours or the path of a trace.",
        )
    if shape:
        return Generator(family=family, shape="ours", layout="schema").some(number)
    return Generator(family=family).some(number)
