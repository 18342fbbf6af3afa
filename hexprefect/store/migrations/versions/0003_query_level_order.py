"""Laxity of the whole query, a queue delay that runs down, and depth by slowdown

New columns have defaults of the database's own: SQLite can then add them in place.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SLOWDOWN = 6.5
"""What α was chosen without, and is used with from now on."""


def _columns() -> tuple[tuple[str, sa.Column[object]], ...]:
    zero = sa.text("0")
    return (
        ("requests", sa.Column("deadline", sa.Double(), nullable=False, server_default=zero)),
        ("requests", sa.Column("remaining_s", sa.Double(), nullable=False, server_default=zero)),
        ("requests", sa.Column("work_us", sa.BigInteger(), nullable=False, server_default=zero)),
        ("requests", sa.Column("late", sa.Boolean(), nullable=False, server_default=sa.false())),
        ("instances", sa.Column("busy_until", sa.Double(), nullable=False, server_default=zero)),
        ("instances", sa.Column("queued_us", sa.BigInteger(), nullable=False, server_default=zero)),
        (
            "instances",
            sa.Column("promised_until", sa.Double(), nullable=False, server_default=zero),
        ),
        ("instances", sa.Column("mean_uncached", sa.Double(), nullable=False, server_default=zero)),
        ("instances", sa.Column("mean_output", sa.Double(), nullable=False, server_default=zero)),
        ("instances", sa.Column("measured", sa.Integer(), nullable=False, server_default=zero)),
        ("instances", sa.Column("learned_depth", sa.Integer(), nullable=True)),
        (
            "alpha_history",
            sa.Column("queue_order", sa.String(length=16), nullable=False, server_default="laxity"),
        ),
        ("alpha_history", sa.Column("slowdown", sa.Double(), nullable=True)),
        ("alpha_history", sa.Column("late_penalty", sa.Double(), nullable=True)),
        ("alpha_history", sa.Column("stretch", sa.Double(), nullable=False, server_default="1")),
    )


def upgrade() -> None:
    for table, column in _columns():
        op.add_column(table, column)
    op.execute(
        "UPDATE requests SET deadline = "
        "(SELECT q.deadline FROM queries q WHERE q.id = requests.query_id)"
    )
    op.execute(f"UPDATE alpha_history SET slowdown = {SLOWDOWN}")
    op.create_table(
        "remaining_history",
        sa.Column("stage", sa.String(length=100), nullable=False),
        sa.Column("visit", sa.Integer(), nullable=False),
        sa.Column("queries", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("stage", "visit", name=op.f("pk_remaining_history")),
    )


def downgrade() -> None:
    op.drop_table("remaining_history")
    for table, column in reversed(_columns()):
        op.drop_column(table, column.name)
