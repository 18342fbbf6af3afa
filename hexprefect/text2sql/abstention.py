"""Abstaining: telling a question that this schema cannot answer from one that was answered badly.

A small model writes a statement for anything. What gives an unanswerable question away is what its
candidates do: none of them runs, or they all invent names that the catalogue does not have. Only
then, and only where words of the question occur nowhere in the schema, the model is asked which of
exactly these words are missing. It cannot name any other, so that no answerable question is lost to
a word that is there. An empty result is an answer: that of 6 % of the questions of Spider's
development set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field
from rapidfuzz import fuzz, process

from hexprefect.completion import Complete, Prompt
from hexprefect.text2sql.candidates import Candidate
from hexprefect.text2sql.correction import unknown_name
from hexprefect.text2sql.linking import Links, stem
from hexprefect.text2sql.names import words_of
from hexprefect.text2sql.prompting import PromptBook, json_answer, read_json
from hexprefect.text2sql.schema import Schema
from hexprefect.text2sql.values import COMMON_WORDS
from hexprefect.text2sql.voting import Cluster

STAGE = "judge"
BRANCH = "answerability"
_WORDS_ASKED = 6
_SAME_WORD = 85.0
"""rapidfuzz's ratio: `nationality` and `nation` are farther apart, `theatre` and `theater` not."""
_SAME_STEM_LETTERS = 4
_WORDS_OF_ASKING = frozenset(
    {
        "show", "display", "compute", "calculate", "determine", "whether", "please", "want",
        "know", "sort", "sorted", "order", "ordered", "ordering", "rank", "ranked", "ascending",
        "descending", "alphabetical", "alphabetically", "lexicographical", "group", "grouped",
        "sum", "minimum", "maximum", "min", "max", "mean", "median", "percentage", "percent",
        "ratio", "share", "amount", "quantity", "distinct", "unique", "duplicates", "top",
        "bottom", "highest", "lowest", "largest", "smallest", "greatest", "biggest", "oldest",
        "youngest", "longest", "shortest", "earliest", "latest", "newest", "recent", "recently",
        "higher", "lower", "larger", "smaller", "greater", "bigger", "older", "younger", "longer",
        "shorter", "above", "below", "over", "under", "after", "before", "during", "since",
        "until", "within", "exactly", "equal", "except", "without", "never", "ever", "not",
        "along", "together", "corresponding", "respective", "respectively", "associated",
        "related", "information", "details", "detail", "record", "records", "entry", "entries",
        "table", "database", "data", "value", "values", "common", "popular", "frequent",
        "frequently", "often", "times", "time", "one", "two", "three", "four", "five", "six",
        "seven", "eight", "nine", "ten", "second", "third", "single", "several", "some", "few",
        "multiple", "whole", "overall", "everything", "belong", "belongs", "contain", "contains",
        "containing", "include", "including", "made", "make", "makes", "using", "used", "use",
        "uses", "called", "named", "whatever", "they", "he", "she", "his", "her", "you", "can",
        "could", "would", "should", "will", "must", "may", "fewer", "fewest", "if", "so", "then",
        "up", "down", "out", "off", "into", "onto", "about", "against", "across", "such", "own",
        "been", "being", "live", "lives", "living", "exist", "exists", "occur", "occurred",
        "happen", "happened", "given", "gave", "round", "rounded", "leave", "leaving", "left",
        "take", "taken", "best", "worst", "cost", "costs", "people", "person", "still", "exclude",
        "excluded", "excluding", "place", "placed", "places", "letter", "letters", "substring",
        "string", "word", "words", "numbers", "owns", "owned", "shows", "showing", "expensive",
        "cheap", "cheapest", "decimal", "decimals", "cents", "produced", "whose", "while", "start",
        "starts", "started", "starting", "end", "ends", "ended", "ending", "arranged", "sold",
        "spent", "among", "amongst", "between", "ones", "either", "neither", "both", "other",
        "others", "another", "same", "different", "any", "anything", "something", "someone",
        "everyone", "each", "every", "there", "here", "also", "too", "only", "just", "even", "per",
        "according", "based", "whom", "whichever", "less", "more", "than", "these", "those", "its",
        "itself", "themselves", "do", "does", "did", "done", "has", "have", "had", "having",
    }
)  # fmt: skip
"""Words that say what to do with data, not which: no schema need hold them."""

_NEVER_MISSING = COMMON_WORDS | _WORDS_OF_ASKING

_ENGLISH = frozenset(
    {
        "the", "of", "what", "which", "who", "how", "many", "much", "is", "are", "does", "do",
        "and", "that", "with", "for", "each", "all",
    }
)  # fmt: skip
"""Words that nearly every English question holds, and no other language's."""

_vocabularies: WeakKeyDictionary[Schema, frozenset[str]] = WeakKeyDictionary()


class _Written(BaseModel):
    model_config = ConfigDict(extra="ignore")

    missing: list[str] = Field(default_factory=list)


def unmatched_words(question: str, evidence: str, schema: Schema, links: Links) -> tuple[str, ...]:
    """Words of a question that no name, comment, example or linked value of the schema resembles.

    Words that the evidence explains count as matched. None for a question that is not in English:
    which of its words are names of data is not known here. Takes milliseconds; the schema's words
    are kept with it.
    """
    asked = re.findall(r"[^\W\d_]+", question.casefold())
    if not _ENGLISH & set(asked):
        return ()
    known = _schema_words(schema) | _words(evidence)
    for match in links.values:
        known |= _words(match.value)
    found: dict[str, None] = {}
    for word in re.findall(r"[^\W\d_]+", question.casefold()):
        if (
            len(word) > 2
            and word not in COMMON_WORDS | _WORDS_OF_ASKING
            and not _is_in(word, known)
        ):
            found[word] = None
    return tuple(found)


def is_doubtful(
    candidates: Sequence[Candidate], clusters: Sequence[Cluster], schema: Schema
) -> bool:
    """Whether the candidates look as those of an unanswerable question do.

    Nothing ran, or every one of them invented a name. That they differ, or find no row, says
    little: those of a small model differ on questions that they could answer, and "none" is often
    right. A column that another table has is misplaced, not invented.
    """
    return not clusters or all(_invents(candidate, schema) for candidate in candidates)


def _invents(candidate: Candidate, schema: Schema) -> bool:
    names = (unknown_name(draft.error) for draft in candidate.drafts if draft.error is not None)
    return any(name is not None and name.casefold() not in schema.spellings for name in names)


def missing_words_prompt(book: PromptBook, words: Sequence[str]) -> Prompt:
    """The call that asks which of these words stand for data that is not there."""
    shown = list(words[:_WORDS_ASKED])
    answer_format = json_answer(
        "missing_words",
        {
            "type": "object",
            "properties": {
                "missing": {
                    "type": "array",
                    "items": {"type": "string", "enum": shown},
                    "maxItems": len(shown),
                }
            },
            "required": ["missing"],
            "additionalProperties": False,
        },
    )
    return book.prompt(
        STAGE,
        "missing_words",
        {"words": ", ".join(f'"{word}"' for word in shown)},
        branch=BRANCH,
        max_output_tokens=60,
        response_format=answer_format,
    )


async def missing_words(
    book: PromptBook, words: Sequence[str], complete: Complete
) -> tuple[str, ...]:
    """Those of `words` that the model says are nowhere in the tables; none if it cannot be read."""
    completion = await complete(missing_words_prompt(book, words))
    written = read_json(completion.text, _Written) or _Written()
    named = {word.casefold() for word in written.missing}
    return tuple(word for word in words if word in named)


def _schema_words(schema: Schema) -> frozenset[str]:
    if schema not in _vocabularies:
        texts: list[str] = []
        for table in schema.tables:
            texts += [*words_of(table.name), table.comment or ""]
            for column in table.columns:
                texts += [*words_of(column.name), column.comment or "", *column.samples]
        for word, meaning in schema.vocabulary.glossary:
            texts += [word, meaning]
        _vocabularies[schema] = frozenset(_words(" ".join(texts)))
    return _vocabularies[schema]


def _words(text: str) -> frozenset[str]:
    return frozenset(stem(word) for word in re.findall(r"[^\W\d_]+", text.casefold()))


def _is_in(word: str, known: frozenset[str]) -> bool:
    base = stem(word)
    if base in known:
        return True
    start = base[:_SAME_STEM_LETTERS]
    if len(start) == _SAME_STEM_LETTERS and any(
        len(other) >= _SAME_STEM_LETTERS and (base.startswith(other) or other.startswith(base))
        for other in known
    ):
        return True
    return process.extractOne(base, known, scorer=fuzz.ratio, score_cutoff=_SAME_WORD) is not None
