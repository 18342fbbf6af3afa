"""The rows of the demo shop: a pure function of the seed.

Only `random.Random` methods whose results Python keeps stable between versions are used, dates are
counted from a fixed day and no clock is read, so that one seed gives the same rows everywhere.
"""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from hexprefect.demo.shop_names import (
    CAFES,
    CATEGORIES,
    CITIES,
    COMMENTS,
    FAMILY,
    GIVEN,
    PRODUCTS,
    SUPPLIERS,
)

Row = dict[str, Any]
Rows = dict[str, list[Row]]

FIRST_DAY = date(2022, 1, 1)
LAST_DAY = date(2024, 12, 31)
CUSTOMERS = 400
ORDERS = 1200
REVIEWS = 700


def shop_rows(seed: int = 7) -> Rows:
    """Every row of the shop, by table, in an order that satisfies the foreign keys."""
    draw = random.Random(seed)
    rows: Rows = {}
    rows["city"] = [
        {"id": n, "name": name, "country": country, "population": population}
        for n, (name, country, population) in enumerate(CITIES, start=1)
    ]
    rows["customer"] = _customers(draw)
    rows["category"] = _categories()
    rows["supplier"] = [
        {"id": n, "name": name, "country": country, "lead_time_days": days}
        for n, (name, country, days) in enumerate(SUPPLIERS, start=1)
    ]
    rows["product"] = _products(draw, rows["category"])
    rows["café"] = _cafes(rows["city"])
    rows["employee"] = _employees(draw, rows["café"])
    rows["order"] = _orders(draw, rows["customer"], rows["café"])
    rows["order_item"] = _order_items(draw, rows["order"], rows["product"])
    rows["payment"] = _payments(draw, rows["order"], rows["order_item"])
    rows["review"] = _reviews(draw, rows["product"])
    rows["stock"] = _stock(draw, rows["product"], rows["café"])
    return rows


def _name(draw: random.Random) -> str:
    return f"{draw.choice(GIVEN)} {draw.choice(FAMILY)}"


def _day(draw: random.Random, first: date, last: date) -> date:
    return first + timedelta(days=draw.randint(0, (last - first).days))


def _moment(draw: random.Random, first: date, last: date) -> datetime:
    day = _day(draw, first, last)
    opening = datetime(day.year, day.month, day.day, 7)
    return opening + timedelta(seconds=draw.randint(0, 15 * 3600))


def _euro(draw: random.Random, low: int, high: int) -> Decimal:
    return Decimal(draw.randint(low, high - 1)) + Decimal(draw.choice(["0.00", "0.50", "0.90"]))


def _customers(draw: random.Random) -> list[Row]:
    rows = []
    for n in range(1, CUSTOMERS + 1):
        name = _name(draw)
        local = "".join(letter for letter in name.lower() if letter.isascii() and letter.isalpha())
        rows.append(
            {
                "id": n,
                "full_name": name,
                "email": f"{local}{n}@example.org",
                # The first cities of the list are the larger markets.
                "city_id": min(draw.randint(1, 14), draw.randint(1, 14)),
                "born_on": None
                if draw.random() < 0.25
                else _day(draw, date(1950, 1, 1), date(2005, 12, 31)),
                "loyalty_level": draw.choice(
                    [None, None, None, "bronze", "bronze", "silver", "gold"]
                ),
                "newsletter": draw.random() < 0.4,
                "registered_at": _moment(draw, FIRST_DAY, date(2024, 6, 30)),
            }
        )
    return rows


def _categories() -> list[Row]:
    ids = {name: n for n, (name, _) in enumerate(CATEGORIES, start=1)}
    return [
        {"id": ids[name], "name": name, "parent_id": ids[parent] if parent else None}
        for name, parent in CATEGORIES
    ]


def _products(draw: random.Random, categories: list[Row]) -> list[Row]:
    ids = {row["name"]: row["id"] for row in categories}
    rows: list[Row] = []
    for category, ((low, high), names) in PRODUCTS.items():
        for name in names:
            rows.append(
                {
                    "id": len(rows) + 1,
                    "name": name,
                    "category_id": ids[category],
                    "supplier_id": draw.randint(1, len(SUPPLIERS) - 1),
                    "price": _euro(draw, low, high),
                    "weight_grams": None
                    if category in ("Vouchers", "Courses")
                    else draw.randint(2, 60) * 25,
                    "launched_on": _day(draw, date(2018, 1, 1), date(2023, 6, 30)),
                    "discontinued_on": _day(draw, date(2024, 3, 1), LAST_DAY)
                    if draw.random() < 0.15
                    else None,
                }
            )
    return rows


def _cafes(cities: list[Row]) -> list[Row]:
    ids = {row["name"]: row["id"] for row in cities}
    return [
        {"id": n, "name": name, "city_id": ids[city], "opened_on": opened, "Sitzplätze": seats}
        for n, (name, city, opened, seats) in enumerate(CAFES, start=1)
    ]


def _employees(draw: random.Random, cafes: list[Row]) -> list[Row]:
    rows: list[Row] = []

    def hire(job: str, cafe: int | None, manager: int | None, salary: tuple[int, int]) -> int:
        rows.append(
            {
                "id": len(rows) + 1,
                "full_name": _name(draw),
                "café_id": cafe,
                "manager_id": manager,
                "job": job,
                "hired_on": _day(draw, date(2015, 1, 1), date(2024, 6, 30)),
                "monthly_salary": Decimal(draw.randint(*salary) * 50),
            }
        )
        return len(rows)

    director = hire("managing director", None, None, (150, 180))
    for job in ("accountant", "buyer", "developer"):
        hire(job, None, director, (70, 110))
    for cafe in cafes:
        lead = hire("café manager", cafe["id"], director, (64, 84))
        for _ in range(draw.randint(3, 6)):
            hire(draw.choice(["barista", "barista", "cook"]), cafe["id"], lead, (44, 62))
    return rows


def _orders(draw: random.Random, customers: list[Row], cafes: list[Row]) -> list[Row]:
    # A fifth of the customers never orders, and a few order often.
    buyers = [row for row in customers if draw.random() < 0.8]
    drafts = []
    for _ in range(ORDERS):
        buyer = buyers[min(draw.randrange(len(buyers)), draw.randrange(len(buyers)))]
        drafts.append((_moment(draw, buyer["registered_at"].date(), LAST_DAY), buyer["id"]))
    rows = []
    for n, (ordered_at, customer_id) in enumerate(sorted(drafts), start=1):
        cafe = draw.choice(cafes) if draw.random() < 0.3 else None
        if cafe is not None and cafe["opened_on"] > ordered_at.date():
            cafe = None
        recent = ordered_at.date() > LAST_DAY - timedelta(days=30)
        rows.append(
            {
                "id": n,
                "customer_id": customer_id,
                "ordered_at": ordered_at,
                "status": draw.choice(["open", "open", "shipped", "cancelled"])
                if recent
                else draw.choice(["delivered"] * 12 + ["cancelled"]),
                "café_id": cafe["id"] if cafe else None,
                "shipping_fee": Decimal("0.00")
                if cafe
                else draw.choice([Decimal("3.90"), Decimal("4.90"), Decimal("7.50")]),
                "Coupon Code": draw.choice(["SPRING22", "TEATIME", "WELCOME10", "Ümlaut5"])
                if draw.random() < 0.18
                else None,
            }
        )
    return rows


def _order_items(draw: random.Random, orders: list[Row], products: list[Row]) -> list[Row]:
    rows = []
    for order in orders:
        day = order["ordered_at"].date()
        on_sale = [
            product
            for product in products
            if product["launched_on"] <= day
            and (product["discontinued_on"] is None or product["discontinued_on"] > day)
        ]
        for line, product in enumerate(draw.sample(on_sale, draw.choice([1, 1, 2, 2, 3, 4, 5])), 1):
            early = day < date(2023, 7, 1)
            rows.append(
                {
                    "order_id": order["id"],
                    "line": line,
                    "product_id": product["id"],
                    "quantity": draw.choice([1, 1, 1, 2, 2, 3, 6]),
                    # Prices went up by a twentieth in July 2023.
                    "unit_price": (
                        product["price"] * (Decimal("0.95") if early else Decimal(1))
                    ).quantize(Decimal("0.01")),
                    "discount": Decimal("0.10")
                    if order["Coupon Code"] == "WELCOME10"
                    else draw.choice([Decimal("0.00")] * 9 + [Decimal("0.25")]),
                }
            )
    return rows


def _payments(draw: random.Random, orders: list[Row], items: list[Row]) -> list[Row]:
    totals = {order["id"]: order["shipping_fee"] for order in orders}
    for item in items:
        totals[item["order_id"]] += item["quantity"] * item["unit_price"] * (1 - item["discount"])
    rows: list[Row] = []

    def pay(order: Row, method: str, amount: Decimal, paid_at: datetime | None) -> None:
        rows.append(
            {
                "id": len(rows) + 1,
                "order_id": order["id"],
                "method": method,
                "amount": amount.quantize(Decimal("0.01")),
                "paid_at": paid_at,
            }
        )

    for order in orders:
        method = draw.choice(["card"] * 5 + ["transfer", "transfer", "invoice", "voucher"])
        delay = timedelta(hours=draw.randint(1, 240)) if method in ("transfer", "invoice") else None
        paid_at = order["ordered_at"] + (delay or timedelta(minutes=2))
        unpaid = method == "invoice" and draw.random() < 0.3
        total = Decimal(totals[order["id"]])
        pay(order, method, total, None if unpaid else paid_at)
        if order["status"] == "cancelled" and not unpaid:
            pay(order, method, -total, paid_at + timedelta(days=draw.randint(1, 9)))
    return rows


def _reviews(draw: random.Random, products: list[Row]) -> list[Row]:
    pairs: dict[tuple[int, int], None] = {}
    while len(pairs) < REVIEWS:
        # The last product is never reviewed, so that outer joins have something to find.
        pairs[(draw.randint(1, len(products) - 1), draw.randint(1, CUSTOMERS))] = None
    rows = []
    for n, (product_id, customer_id) in enumerate(pairs, start=1):
        first = max(products[product_id - 1]["launched_on"], FIRST_DAY)
        rows.append(
            {
                "id": n,
                "product_id": product_id,
                "customer_id": customer_id,
                "rating": draw.choice([1, 2, 3, 3, 4, 4, 4, 5, 5, 5]),
                "text": None if draw.random() < 0.45 else draw.choice(COMMENTS),
                "written_on": _day(draw, first, LAST_DAY),
            }
        )
    return rows


def _stock(draw: random.Random, products: list[Row], cafes: list[Row]) -> list[Row]:
    return [
        {
            "product_id": product["id"],
            "café_id": cafe["id"],
            "Größe": size,
            "quantity": max(0, draw.randint(-6, 40)),
            "last_counted_on": None
            if draw.random() < 0.1
            else _day(draw, date(2024, 9, 1), LAST_DAY),
        }
        for product in products
        if product["weight_grams"] is not None
        for cafe in cafes
        if draw.random() < 0.6
        for size in draw.sample(["S", "M", "L"], draw.randint(1, 3))
    ]
