"""Learned profiles with their history, and the load that others put on an instance

The new columns of `instances` have defaults of the database's own: SQLite can then add them in
place, without copying a table that others refer to.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _instance_columns() -> tuple[sa.Column[object], ...]:
    return (
        sa.Column("learn_profile", sa.Boolean(), nullable=False, server_default=sa.true()),
        sa.Column("profile_pinned", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("learned_profile", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("profile_since", sa.Double(), nullable=True),
        sa.Column("foreign_running", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("foreign_waiting", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("foreign_us", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("foreign_seen_at", sa.Double(), nullable=True),
    )


def upgrade() -> None:
    for column in _instance_columns():
        op.add_column("instances", column)
    op.create_table(
        "profile_history",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("instance", sa.String(length=200), nullable=False),
        sa.Column("learned_at", sa.Double(), nullable=False),
        sa.Column("change", sa.String(length=16), nullable=False),
        sa.Column("fixed_s", sa.Double(), nullable=False),
        sa.Column("input_s_per_token", sa.Double(), nullable=False),
        sa.Column("output_s_per_token", sa.Double(), nullable=False),
        sa.Column("batch_growth", sa.Double(), nullable=False),
        sa.Column("sample", sa.Integer(), nullable=False),
        sa.Column("rejected", sa.Integer(), nullable=False),
        sa.Column("median_error_before", sa.Double(), nullable=True),
        sa.Column("p95_error_before", sa.Double(), nullable=True),
        sa.Column("median_error_after", sa.Double(), nullable=True),
        sa.Column("p95_error_after", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "change IN ('learned', 'reset', 'pinned', 'released')",
            name=op.f("ck_profile_history_change"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profile_history")),
    )
    op.create_index("ix_profile_history_instance_id", "profile_history", ["instance", "id"])


def downgrade() -> None:
    op.drop_index("ix_profile_history_instance_id", table_name="profile_history")
    op.drop_table("profile_history")
    for column in reversed(_instance_columns()):
        op.drop_column("instances", column.name)
