from __future__ import annotations

from decimal import Decimal

import pytest

from trimtab.devcluster.quantity import InvalidQuantity, parsed_capacity, quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", "0"),
        (2, "2"),
        ("500m", "0.5"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("100n", "0.0000001"),
        ("1k", "1000"),
        ("1Ki", "1024"),
        ("2Gi", "2147483648"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("1E", "1000000000000000000"),
        ("1Ei", "1152921504606846976"),
    ],
)
def test_quantities(text: str | int, amount: str) -> None:
    assert quantity(text) == Decimal(amount)


@pytest.mark.parametrize("text", ["", "many", "1K", "1 Gi", "Gi", "1ki", "--1", "1e"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuantity, match="is no quantity"):
        quantity(text)


def test_capacity_of_a_command_line() -> None:
    assert parsed_capacity(["cpu=64", "nvidia.com/gpu=8"]) == {"cpu": "64", "nvidia.com/gpu": "8"}
    for wrong in ("cpu", "=4", "cpu=x"):
        with pytest.raises(InvalidQuantity):
            parsed_capacity([wrong])
