"""The tables: what is true about tenants, queries, requests, attempts and instances.

Times are seconds since the epoch (UTC) as doubles, so that the scheduling functions take them as
they are. Work is kept in whole microseconds: sums of integers come back to exactly 0 (law 8).
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    false,
    text,
    true,
)

from hexprefect.scheduling.order import Order
from hexprefect.store.words import ShortWords, Words

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

AutoKey = BigInteger().with_variant(Integer, "sqlite")

REQUEST_STATES = ("waiting", "admitted", "running", "finished", "failed", "cancelled")
OPEN_STATES = ("waiting", "admitted", "running")
HOLDING_STATES = ("admitted", "running")
LIVE_ORDERS: tuple[Order, ...] = ("arrival", "urgency", "deadline", "laxity")
QUERY_STATES = ("running", "answered", "failed", "cancelled")
INSTANCE_STATES = ("alive", "suspect", "draining", "dead")
PROFILE_CHANGES = ("learned", "reset", "pinned", "released")


def _one_of(column: str, values: tuple[str, ...]) -> str:
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


tenants = Table(
    "tenants",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("enabled", Boolean, nullable=False, default=True),
    Column("default_slo_s", Double),
    Column("created_at", Double, nullable=False),
)

processes = Table(
    "processes",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("joined_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False, index=True),
)

queries = Table(
    "queries",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(100), ForeignKey("tenants.name"), nullable=False),
    Column("database", ShortWords(200), nullable=False, default=""),
    Column("question", Words()),
    Column("owner", String(64), nullable=False),
    Column("slo_s", Double, nullable=False),
    Column("arrived_at", Double, nullable=False),
    Column("deadline", Double, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Words()),
    Column("sql", Words()),
    Column("dropped_work", JSON, nullable=False, default=list),
    Column("answer", JSON),
    Column("ended_at", Double),
    CheckConstraint(_one_of("state", QUERY_STATES), name="state"),
    Index("ix_queries_state_deadline", "state", "deadline"),
    Index("ix_queries_ended_at", "ended_at"),
    Index("ix_queries_owner_state", "owner", "state"),
)

instances = Table(
    "instances",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("pool", String(200), nullable=False, default=""),
    Column("url", Text, nullable=False),
    Column("model", String(300), nullable=False, default=""),
    Column("speaks", String(16), nullable=False, default="openai"),
    Column("api_key_block", String(200)),
    Column("profile", JSON, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("admission_depth", Integer),
    Column("context_tokens", Integer),
    Column("state", String(16), nullable=False, default="alive"),
    Column("reason", Words()),
    Column("changed_at", Double, nullable=False),
    Column("backlog_us", BigInteger, nullable=False, default=0),
    Column("waiting", Integer, nullable=False, default=0),
    Column("occupied", Integer, nullable=False, default=0),
    Column("reserved_kv_tokens", BigInteger, nullable=False, default=0),
    Column("held_prefixes", JSON, nullable=False, default=list),
    Column("busy_until", Double, nullable=False, server_default=text("0")),
    Column("queued_us", BigInteger, nullable=False, server_default=text("0")),
    Column("promised_until", Double, nullable=False, server_default=text("0")),
    Column("mean_uncached", Double, nullable=False, server_default=text("0")),
    Column("mean_output", Double, nullable=False, server_default=text("0")),
    Column("measured", Integer, nullable=False, server_default=text("0")),
    Column("learned_depth", Integer),
    Column("learn_profile", Boolean, nullable=False, server_default=true()),
    Column("profile_pinned", Boolean, nullable=False, server_default=false()),
    Column("learned_profile", JSON(none_as_null=True)),
    Column("profile_since", Double),
    Column("foreign_running", Integer, nullable=False, server_default=text("0")),
    Column("foreign_waiting", Integer, nullable=False, server_default=text("0")),
    Column("foreign_us", BigInteger, nullable=False, server_default=text("0")),
    Column("foreign_seen_at", Double),
    CheckConstraint(_one_of("state", INSTANCE_STATES), name="state"),
    CheckConstraint("backlog_us >= 0", name="backlog_us"),
    CheckConstraint("waiting >= 0", name="waiting"),
    CheckConstraint("occupied >= 0", name="occupied"),
    CheckConstraint("reserved_kv_tokens >= 0", name="reserved_kv_tokens"),
)

requests = Table(
    "requests",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("query_id", String(64), ForeignKey("queries.id"), nullable=False, index=True),
    Column("stage", String(100), nullable=False),
    Column("branch", String(100)),
    Column("needs", JSON, nullable=False, default=list),
    Column("fingerprint", String(64), nullable=False, default=""),
    Column("state", String(16), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("instance", String(200), ForeignKey("instances.name")),
    Column("input_tokens", Integer, nullable=False),
    Column("predicted_output_tokens", Double, nullable=False),
    Column("kv_tokens", Integer, nullable=False),
    Column("prefix", JSON, nullable=False, default=list),
    Column("submitted_at", Double, nullable=False),
    Column("ready_at", Double, nullable=False),
    Column("budget_s", Double, nullable=False),
    Column("completion_us", BigInteger, nullable=False, default=0),
    Column("latest_start", Double, nullable=False),
    Column("order_key", Double, nullable=False),
    Column("passed_over", Integer, nullable=False, default=0),
    Column("attempt", Integer, nullable=False, default=0),
    Column("admitted_at", Double),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("actual_input_tokens", Integer),
    Column("actual_output_tokens", Integer),
    Column("cached_tokens", Integer),
    Column("result", JSON),
    Column("error", Words()),
    Column("deadline", Double, nullable=False, server_default=text("0")),
    Column("remaining_s", Double, nullable=False, server_default=text("0")),
    Column("work_us", BigInteger, nullable=False, server_default=text("0")),
    Column("late", Boolean, nullable=False, server_default=false()),
    CheckConstraint(_one_of("state", REQUEST_STATES), name="state"),
    Index("ix_requests_queue", "instance", "state", "order_key", "ready_at", "id"),
    Index("ix_requests_owner_state", "owner", "state"),
    Index("ix_requests_ended_at", "ended_at"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", AutoKey, primary_key=True, autoincrement=True),
    Column("request_id", String(64), ForeignKey("requests.id"), nullable=False, index=True),
    Column("number", Integer, nullable=False),
    Column("instance", String(200)),
    Column("owner", String(64), nullable=False),
    Column("admitted_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("error", Words()),
    CheckConstraint(
        _one_of("outcome", ("finished", "failed", "moved", "cancelled", "lost")), name="outcome"
    ),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", AutoKey, primary_key=True, autoincrement=True),
    Column("request_id", String(64), ForeignKey("requests.id"), nullable=False, index=True),
    Column("made_at", Double, nullable=False),
    Column("why", ShortWords(200), nullable=False),
    Column("record", JSON, nullable=False),
)

alpha_history = Table(
    "alpha_history",
    metadata,
    Column("id", AutoKey, primary_key=True, autoincrement=True),
    Column("alpha", Double, nullable=False),
    Column("policy", String(16), nullable=False, default="normalised"),
    Column("beta", Double, nullable=False, default=1.0),
    Column("chosen_at", Double, nullable=False),
    Column("reason", Words(), nullable=False),
    Column("evidence", JSON, nullable=False, default=dict),
    Column("queue_order", String(16), nullable=False, server_default="laxity"),
    Column("slowdown", Double),
    Column("late_penalty", Double),
    Column("stretch", Double, nullable=False, server_default="1"),
    CheckConstraint("alpha >= 0 AND alpha <= 1", name="alpha"),
    CheckConstraint(_one_of("policy", ("paper", "normalised")), name="policy"),
)

stage_history = Table(
    "stage_history",
    metadata,
    Column("stage", String(100), primary_key=True),
    Column("database", ShortWords(200), primary_key=True),
    Column("count", BigInteger, nullable=False),
    Column("input_tokens", Double, nullable=False),
    Column("output_tokens", Double, nullable=False),
)

remaining_history = Table(
    "remaining_history",
    metadata,
    Column("stage", String(100), primary_key=True),
    Column("visit", Integer, primary_key=True),
    Column("queries", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
)

profile_history = Table(
    "profile_history",
    metadata,
    Column("id", AutoKey, primary_key=True, autoincrement=True),
    Column("instance", String(200), nullable=False),
    Column("learned_at", Double, nullable=False),
    Column("change", String(16), nullable=False),
    Column("fixed_s", Double, nullable=False),
    Column("input_s_per_token", Double, nullable=False),
    Column("output_s_per_token", Double, nullable=False),
    Column("batch_growth", Double, nullable=False),
    Column("sample", Integer, nullable=False, default=0),
    Column("rejected", Integer, nullable=False, default=0),
    Column("median_error_before", Double),
    Column("p95_error_before", Double),
    Column("median_error_after", Double),
    Column("p95_error_after", Double),
    CheckConstraint(_one_of("change", PROFILE_CHANGES), name="change"),
    Index("ix_profile_history_instance_id", "instance", "id"),
)
