"""--fail-on expressions: what they mean, what they refuse, what they say."""

from __future__ import annotations

import pytest

from ortconv.errors import GateError, UsageError
from ortconv.report.gates import Metric, check_gates, parse_gates
from tests.batches import batched

METRICS = {"partitions": Metric(9), "coverage": Metric(61.25, "%", "nodes in partitions"), "gap": Metric(float("nan"))}


@batched
@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("partitions>3", True), ("partitions>9", False), ("partitions>=9", True), ("partitions<9", False),
        ("partitions<=9", True), ("partitions==9", True), ("partitions!=9", False), ("coverage<80%", True),
        ("coverage < 80", True), ("coverage<61.25%", False), (" partitions > 3 , coverage < 10 % ", True),
        ("partitions>1e1", False), ("gap>0", False), ("gap<0", False), ("gap!=0", False), ("coverage<.5", False),
    ],
)  # fmt: skip
def test_conditions(text, fails):
    conditions = parse_gates(text, METRICS)
    if not fails:
        check_gates(conditions, METRICS)
        return
    with pytest.raises(GateError) as caught:
        check_gates(conditions, METRICS)
    assert caught.value.exit_code == 5


def test_message_has_the_actual_values():
    with pytest.raises(GateError) as caught:
        check_gates(parse_gates("partitions>3,coverage<80%,partitions>20", METRICS), METRICS)
    assert caught.value.message == (
        "2 of 3 conditions of --fail-on hold: partitions is 9 (partitions>3); coverage is 61.25% (coverage<80%)"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not understand ''"),
        ("partitions", "does not understand 'partitions'"),
        ("partitions>3,", "does not understand ''"),
        ("partitions=3", "does not understand 'partitions=3'"),
        ("3<partitions", "does not understand '3<partitions'"),
        ("partitions>three", "does not understand"),
        ("partitions>-1", "does not understand"),
        ("partitions>3 coverage<80", "does not understand"),
        ("parts>3", "knows no 'parts'"),
        ("partitions>3%", "partitions is no percentage"),
    ],
)
def test_errors(text, message):
    with pytest.raises(UsageError) as caught:
        parse_gates(text, METRICS)
    assert message in caught.value.message


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(UsageError) as caught:
        parse_gates("parts>3", METRICS)
    assert "coverage (nodes in partitions)" in (caught.value.hint or "")
