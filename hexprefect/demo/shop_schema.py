"""The tables of the demo shop: an invented online shop for tea and coffee gear with pick-up cafés.

The names are chosen to be as awkward as real ones: a table called `order`, a table and columns with
non-ASCII letters, a column with a space, two columns whose values are coded in another language.
One definition serves every engine: PostgreSQL gets the comments as `COMMENT ON`, SQLite (which has
no such statement) as SQL comments inside the stored DDL.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Date,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

metadata = MetaData()


def _id() -> Column[Any]:
    return Column("id", Integer, primary_key=True, autoincrement=False)


city = Table(
    "city",
    metadata,
    _id(),
    Column("name", String(60), nullable=False),
    Column("country", String(2), nullable=False, comment="ISO 3166 code: DE, AT, CH, NL or FR"),
    Column("population", Integer, comment="NULL where no census is known"),
)

customer = Table(
    "customer",
    metadata,
    _id(),
    Column("full_name", String(80), nullable=False),
    Column("email", String(120), nullable=False, unique=True),
    Column("city_id", ForeignKey("city.id"), nullable=False),
    Column("born_on", Date, comment="NULL where the customer did not say"),
    Column("loyalty_level", String(10), comment="bronze, silver or gold; NULL for non-members"),
    Column("newsletter", Boolean, nullable=False, comment="agreed to receive the newsletter"),
    Column("registered_at", DateTime, nullable=False),
)

category = Table(
    "category",
    metadata,
    _id(),
    Column("name", String(40), nullable=False, unique=True),
    Column("parent_id", ForeignKey("category.id"), comment="NULL for a top-level category"),
)

supplier = Table(
    "supplier",
    metadata,
    _id(),
    Column("name", String(60), nullable=False),
    Column("country", String(2), nullable=False, comment="ISO 3166 code of the head office"),
    Column("lead_time_days", Integer, comment="days from order to delivery; NULL if not agreed"),
)

product = Table(
    "product",
    metadata,
    _id(),
    Column("name", String(80), nullable=False, unique=True),
    Column("category_id", ForeignKey("category.id"), nullable=False),
    Column("supplier_id", ForeignKey("supplier.id"), nullable=False),
    Column("price", Numeric(10, 2), nullable=False, comment="list price in euro, VAT included"),
    Column("weight_grams", Integer, comment="NULL for vouchers and courses, which weigh nothing"),
    Column("launched_on", Date, nullable=False),
    Column("discontinued_on", Date, comment="NULL while the product is on sale"),
)

cafe = Table(
    "café",
    metadata,
    _id(),
    Column("name", String(60), nullable=False, unique=True),
    Column("city_id", ForeignKey("city.id"), nullable=False),
    Column("opened_on", Date, nullable=False),
    Column("Sitzplätze", Integer, nullable=False, comment="number of seats"),
)

employee = Table(
    "employee",
    metadata,
    _id(),
    Column("full_name", String(80), nullable=False),
    Column("café_id", ForeignKey("café.id"), comment="NULL for the head office"),
    Column("manager_id", ForeignKey("employee.id"), comment="NULL for the managing director"),
    Column("job", String(30), nullable=False),
    Column("hired_on", Date, nullable=False),
    Column("monthly_salary", Numeric(8, 2), nullable=False, comment="gross, in euro"),
)

order = Table(
    "order",
    metadata,
    _id(),
    Column("customer_id", ForeignKey("customer.id"), nullable=False),
    Column("ordered_at", DateTime, nullable=False),
    Column("status", String(10), nullable=False, comment="open, shipped, delivered or cancelled"),
    Column("café_id", ForeignKey("café.id"), comment="where it is picked up; NULL when shipped"),
    Column("shipping_fee", Numeric(6, 2), nullable=False, comment="euro; 0 for pick-up"),
    Column("Coupon Code", String(20), comment="NULL when none was used"),
)

order_item = Table(
    "order_item",
    metadata,
    Column("order_id", ForeignKey("order.id"), primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("product_id", ForeignKey("product.id"), nullable=False),
    Column("quantity", Integer, nullable=False),
    Column("unit_price", Numeric(10, 2), nullable=False, comment="euro, as charged that day"),
    Column("discount", Numeric(3, 2), nullable=False, comment="fraction of the price, 0.10 = 10 %"),
)

payment = Table(
    "payment",
    metadata,
    _id(),
    Column("order_id", ForeignKey("order.id"), nullable=False),
    Column("method", String(12), nullable=False, comment="card, transfer, invoice or voucher"),
    Column("amount", Numeric(10, 2), nullable=False, comment="euro; negative for a refund"),
    Column("paid_at", DateTime, comment="NULL while an invoice is unpaid"),
)

review = Table(
    "review",
    metadata,
    _id(),
    Column("product_id", ForeignKey("product.id"), nullable=False),
    Column("customer_id", ForeignKey("customer.id"), nullable=False),
    Column("rating", Integer, nullable=False, comment="1 (bad) to 5 (very good)"),
    Column("text", Text, comment="NULL when only stars were given"),
    Column("written_on", Date, nullable=False),
    UniqueConstraint("product_id", "customer_id"),
)

stock = Table(
    "stock",
    metadata,
    Column("product_id", Integer, primary_key=True),
    Column("café_id", Integer, primary_key=True),
    Column("Größe", String(2), primary_key=True, comment="pack size: S, M or L"),
    Column("quantity", Integer, nullable=False),
    Column("last_counted_on", Date, comment="NULL if never counted"),
    ForeignKeyConstraint(["product_id"], ["product.id"]),
    ForeignKeyConstraint(["café_id"], ["café.id"]),
)

ORDER_TOTAL_VIEW = """\
CREATE VIEW order_total AS
-- what each order comes to in euro, discounts taken off and shipping included
SELECT o.id AS order_id,
       o.customer_id,
       ROUND(SUM(i.quantity * i.unit_price * (1 - i.discount)), 2) AS goods,
       ROUND(SUM(i.quantity * i.unit_price * (1 - i.discount)) + o.shipping_fee, 2) AS total
FROM "order" AS o
JOIN order_item AS i ON i.order_id = o.id
GROUP BY o.id, o.customer_id, o.shipping_fee
"""


def sqlite_ddl() -> list[str]:
    """The statements that create every table and the view on SQLite, in dependency order.

    Column comments follow their column as `-- …`, because SQLite keeps the text of a statement and
    has no other place for them.
    """
    return [*(_commented(table) for table in metadata.sorted_tables), ORDER_TOTAL_VIEW]


def _commented(table: Table) -> str:
    dialect = sqlite.dialect()
    preparer = dialect.identifier_preparer
    comments = {
        preparer.format_column(column): column.comment for column in table.columns if column.comment
    }
    lines = []
    for line in str(CreateTable(table).compile(dialect=dialect)).strip().splitlines():
        # SQLAlchemy writes one column a line; the key constraint behind the last one means that
        # each of them ends with its comma, so that a comment can follow.
        comment = next(
            (text for name, text in comments.items() if line.startswith(f"\t{name} ")), None
        )
        lines.append(f"{line.rstrip()} -- {comment}" if comment else line.rstrip())
    return "\n".join(lines)
