"""Synthetic tables with the columns, types and quirks of well-known files.

All values are generated; only column names and formats are those of the files. The target depends
on the columns, so that a model can be evaluated.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

Made = tuple[pd.DataFrame, str]  # a table, and the name of its target


class MessyTable(NamedTuple):
    """A type of table."""

    make: Callable[[np.random.Generator, int], Made]
    numbers: tuple[str, ...]  # columns with numbers, possibly inside text
    names: tuple[str, ...]  # columns that only identify rows
    bad: str  # invalid value for a cell of the first column in `numbers`


def some_missing(random, values, share):
    """Set a share of the values to missing."""
    values = np.asarray(values, dtype=object)
    return np.where(random.random(len(values)) < share, None, values)


def titanic(random: np.random.Generator, n: int) -> Made:
    """Generate passengers: names, tickets, cabins (mostly missing), and row numbers."""
    sex, pclass = random.choice(["male", "female"], n, p=[0.65, 0.35]), random.integers(1, 4, n)
    odds = np.where(sex == "female", 1.5, -1.5) - 0.8 * (pclass - 2)
    surnames = random.choice(["Braund", "Cumings", "Kelly", "Futrelle", "Allen", "Moran"], n)
    tickets = random.integers(1000, 400_000, n)
    frame = pd.DataFrame(
        {
            "PassengerId": np.arange(1, n + 1),
            "Survived": (random.logistic(size=n) < odds).astype(int),
            "Pclass": pclass,
            "Name": [f"{s}, Mr. {chr(65 + k % 26)}. {k // 7}" for k, s in enumerate(surnames)],
            "Sex": sex,
            "Age": some_missing(random, random.gamma(6, 5, n).round(1), 0.2),
            "SibSp": random.poisson(0.5, n),
            "Parch": random.poisson(0.4, n),
            "Ticket": [f"A/5 {t}" if t % 4 == 0 else str(t) for t in tickets // 3],
            "Fare": (random.gamma(1, 10, n) * (4 - pclass)).round(4),
            "Cabin": some_missing(random, [f"C{k}" for k in random.integers(1, 140, n)], 0.77),
            "Embarked": some_missing(random, random.choice(["S", "C", "Q"], n), 0.01),
        }
    )
    return frame, "Survived"


def ames(random: np.random.Generator, n: int) -> Made:
    """Generate houses: NA for absent features, numeric codes, and an integer price."""
    area, quality = random.gamma(9, 165, n).round(), random.integers(1, 11, n)
    year = random.integers(1900, 2011, n)
    garage = some_missing(random, random.choice(["Attchd", "Detchd", "BuiltIn"], n), 0.05)
    price = area * 60 * 1.15 ** (quality - 5) + 300 * (year - 1900) + random.normal(0, 9000, n)
    frame = pd.DataFrame(
        {
            "Order": np.arange(1, n + 1),
            "PID": 526_301_100 + random.permutation(10**6)[:n] * 7,
            "MS SubClass": random.choice(["020", "060", "120"], n),
            "MS Zoning": random.choice(["RL", "RM", "FV"], n),
            "Lot Frontage": some_missing(random, random.gamma(9, 8, n).round(), 0.17),
            "Lot Area": random.gamma(4, 2500, n).round().astype(int),
            "Alley": some_missing(random, random.choice(["Pave", "Grvl"], n), 0.93),
            "Overall Qual": quality,
            "Year Built": year,
            "Gr Liv Area": area.astype(int),
            "Garage Type": garage,
            "Garage Yr Blt": np.where([g is None for g in garage], None, year),
            "Pool QC": some_missing(random, random.choice(["Gd", "Ex"], n), 0.995),
            "SalePrice": price.clip(20_000).round(-2).astype(int),
        }
    )
    return frame, "SalePrice"


def telco(random: np.random.Generator, n: int) -> Made:
    """Generate customers: an id, and a numeric column that is blank for new customers."""
    tenure = random.integers(0, 73, n)
    contract = random.choice(["Month-to-month", "One year", "Two year"], n)
    monthly = random.uniform(18, 119, n).round(2)
    odds = 1.5 * (contract == "Month-to-month") - 0.05 * tenure + 0.02 * monthly - 1.5
    total = [" " if t == 0 else f"{t * m:.2f}" for t, m in zip(tenure, monthly, strict=True)]
    frame = pd.DataFrame(
        {
            "customerID": [f"{k:04d}-{random.bytes(3).hex().upper()}" for k in range(n)],
            "gender": random.choice(["Male", "Female"], n),
            "SeniorCitizen": random.integers(0, 2, n),
            "Partner": random.choice(["Yes", "No"], n),
            "tenure": tenure,
            "InternetService": random.choice(["DSL", "Fiber optic", "No"], n),
            "Contract": contract,
            "MonthlyCharges": monthly,
            "TotalCharges": total,
            "Churn": np.where(random.logistic(size=n) < odds, "Yes", "No"),
        }
    )
    return frame, "Churn"


def used_cars(random: np.random.Generator, n: int) -> Made:
    """Generate cars: numbers with units, words for missing values, and a nearly empty column."""
    year, engine = random.integers(1998, 2020, n), random.choice([998, 1197, 1248, 1582, 2179], n)
    power = (engine / 18 + random.normal(0, 5, n)).round(2)
    mileage = (30 - engine / 150 + random.normal(0, 1.5, n)).round(2)
    gas = random.random(n) < 0.02
    price = power**1.6 * 0.9 ** (2020 - year) / 200 * np.exp(random.normal(0, 0.1, n))
    frame = pd.DataFrame(
        {
            "": np.arange(n),
            "Name": [
                f"{brand} {model} {trim}"
                for brand, model, trim in zip(
                    random.choice(["Maruti", "Hyundai", "Honda", "Toyota"], n),
                    random.integers(100, 130, n),
                    random.choice(["LXI", "VXI", "SX"], n),
                    strict=True,
                )
            ],
            "Location": random.choice(["Mumbai", "Pune", "Kochi", "Delhi"], n),
            "Year": year,
            "Kilometers_Driven": [f"{k:,}" for k in random.integers(1000, 150_000, n)],
            "Fuel_Type": np.where(gas, "CNG", random.choice(["Petrol", "Diesel"], n)),
            "Mileage": [
                f"{m} {'km/kg' if g else 'kmpl'}" for m, g in zip(mileage, gas, strict=True)
            ],
            "Engine": [f"{e} CC" for e in engine],
            "Power": np.where(random.random(n) < 0.02, "null bhp", [f"{p} bhp" for p in power]),
            "Seats": some_missing(random, random.choice([4.0, 5.0, 7.0], n), 0.01),
            "New_Price": some_missing(random, [f"{p:.2f} Lakh" for p in price * 2], 0.86),
            "Price": price.round(2),
        }
    )
    return frame, "Price"


def bengaluru(random: np.random.Generator, n: int) -> Made:
    """Generate flats: areas, of which a few are ranges or have a different unit, and free text."""
    area, bath = random.gamma(6, 220, n).round(), random.integers(1, 5, n)
    place = random.integers(0, 40, n)
    price = area * (0.04 + 0.002 * place) * np.exp(random.normal(0, 0.1, n))
    texts = [f"{a:.0f}" for a in area]
    for k in random.permutation(n)[: n // 50]:
        texts[k] = f"{area[k] - 100:.0f} - {area[k] + 100:.0f}"
    for k in random.permutation(n)[: n // 200]:
        texts[k] = f"{area[k] / 10.76:.2f}Sq. Meter"
    frame = pd.DataFrame(
        {
            "area_type": random.choice(["Super built-up  Area", "Plot  Area"], n),
            "availability": random.choice(["Ready To Move", "18-Dec", "19-Jan"], n),
            "location": [f"Layout {k}" for k in place],
            "size": some_missing(
                random, [f"{b} BHK" if b < 4 else "4 Bedroom" for b in bath], 0.01
            ),
            "society": some_missing(random, [f"So{k}ty" for k in random.integers(0, n, n)], 0.4),
            "total_sqft": texts,
            "bath": some_missing(random, bath.astype(float), 0.01),
            "balcony": some_missing(random, random.integers(0, 4, n).astype(float), 0.05),
            "price": price.round(2),
        }
    )
    return frame, "price"


MESSY_TABLES = {
    "titanic": MessyTable(titanic, ("Age", "Fare"), ("PassengerId", "Name"), "about 30"),
    "ames": MessyTable(ames, ("Lot Area", "Lot Frontage", "Garage Yr Blt"), ("Order",), "see plan"),
    "telco": MessyTable(telco, ("TotalCharges",), ("customerID",), "too much"),
    "used_cars": MessyTable(
        used_cars, ("Engine", "Mileage", "Power", "Kilometers_Driven"), ("Unnamed: 0",), "one litre"
    ),
    "bengaluru": MessyTable(bengaluru, ("total_sqft", "bath"), (), "on request"),
}
