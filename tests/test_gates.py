"""--fail-on conditions: what they mean, what they refuse, what they print."""

from __future__ import annotations

import math

import pytest

from ortconv.errors import GateError, UsageError
from ortconv.gates import BASELINES, METRICS, check_gates, failed_gates, metrics_of, parse_gates
from tests.batches import batched

VALUES = {"partitions": 9.0, "coverage": 61.25, "work_coverage": math.nan}


@batched
@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("partitions>3", True), ("partitions>9", False), ("partitions>=9", True), ("partitions<9", False),
        ("partitions<=9", True), ("partitions==9", True), ("partitions!=9", False), ("coverage<80%", True),
        ("coverage < 80", True), ("coverage<61.25%", False), (" partitions > 3 , coverage < 10 % ", True),
        ("partitions>1e1", False), ("work_coverage>0", False), ("work-coverage<0", False), ("work_coverage!=0", False),
        ("coverage<.5%", False), ("coverage>6.1e1 %", True),
    ],
)  # fmt: skip
def test_conditions(text: str, fails: bool) -> None:
    conditions = parse_gates(text, "partition")
    if not fails:
        check_gates(conditions, VALUES)
        return
    with pytest.raises(GateError) as caught:
        check_gates(conditions, VALUES)
    assert caught.value.exit_code == 5


NOW = {
    "size": 5e6,
    "partitions": 3,
    "coverage": 80.0,
    "latency": 0.022,
    "onnxruntime": 1017,
    "max_abs": 0.0,
    "snr": math.inf,
}
THEN = {
    "size": 4e6,
    "partitions": 2,
    "coverage": 90.0,
    "latency": 0.02,
    "onnxruntime": 1009,
    "max_abs": 0.0,
    "snr": 80.0,
}


@batched
@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("size>5MB", False), ("size>4.9MB", True), ("size>=5000000", True), ("size>4MiB", True), ("size>5MiB", False),
        ("size>+24%", True), ("size>+25%", False), ("size>=+25%", True), ("size>+1MB", False), ("size>+999kB", True),
        ("size>1.2x", True), ("size>1.25x", False), ("size < 2 x", True), ("size>-25%", True), ("size<-1%", False),
        ("partitions>+0", True), ("partitions>+1", False), ("partitions==+1", True), ("partitions>+49%", True),
        ("coverage<-9%", True), ("coverage<-10%", False), ("coverage<-9", True), ("coverage<0.9x", True), ("coverage<90%", True),
        ("latency>20ms", True), ("latency>22ms", False), ("latency>21999us", True), ("latency>0.03s", False),
        ("latency>+9%", True), ("latency>+11%", False), ("latency>+1ms", True), ("latency>1.05x", True),
        ("onnxruntime>1.9", True), ("onnxruntime>1.17", False), ("onnxruntime>1.17.1", False), ("onnxruntime>1.2", True),
        ("max_abs>+0%", False), ("max_abs>1.5x", False), ("max_abs==1x", True), ("snr<70dB", False), ("snr>100", True),
        ("snr>+0", True),
    ],
)  # fmt: skip
def test_units_and_baselines(text: str, fails: bool) -> None:
    assert bool(failed_gates(parse_gates(text, "check"), NOW, THEN)) == fails


def test_from_nothing_to_something_is_infinitely_more() -> None:
    (failed,) = failed_gates(
        parse_gates("missing>+5%,missing>1.1x,missing<2x", "check")[:1], {"missing": 2}, {"missing": 0}
    )
    assert str(failed) == "missing is 2, 0 in the baseline (missing>+5%)"


def test_the_message_has_the_actual_values() -> None:
    with pytest.raises(GateError) as caught:
        check_gates(parse_gates("partitions>3,coverage<80%,partitions>20", "partition"), VALUES)
    assert caught.value.message == (
        "2 of 3 conditions of --fail-on hold: partitions is 9 (partitions>3); coverage is 61.25% (coverage<80%)"
    )
    failed = failed_gates(
        parse_gates(["size>+5%,latency>1.05x", "coverage < -2%", "onnxruntime>+0"], "check"), NOW, THEN
    )
    assert [str(one) for one in failed] == [
        "size is 5.0 MB, 4.0 MB in the baseline, +25.0% (size>+5%)",
        "latency is 22 ms, 20 ms in the baseline, +10.0% (latency>1.05x)",
        "coverage is 80%, 90% in the baseline (coverage<-2%)",
        "onnxruntime is 1.17, 1.9 in the baseline (onnxruntime>+0)",
    ]


@pytest.mark.parametrize(
    ("verb", "text", "message", "hint"),
    [
        ("partition", "", "does not understand ''", "write METRIC"),
        ("partition", "partitions", "does not understand 'partitions'", "write METRIC"),
        ("partition", "partitions>3,", "does not understand ''", "write METRIC"),
        ("partition", "partitions=3", "does not understand 'partitions=3'", "write METRIC"),
        ("partition", "3<partitions", "does not understand '3<partitions'", "write METRIC"),
        ("partition", "coverage<0.8", "the limit of 'coverage<0.8'", "such as coverage<80%"),
        ("partition", "partitions>3 coverage<80", "does not understand", "write METRIC"),
        ("partition", "partitions>three", "the limit of 'partitions>three'", "partitions>3"),
        ("partition", "partitions>3%", "the limit of 'partitions>3%'", "partitions>3"),
        ("partition", "partitions>-1", "needs a baseline, and partition has none of partitions", "give a value"),
        ("partition", "partitions>2x", "needs a baseline", "check compares with a baseline"),
        ("convert", "partitions>+1", "convert has none of partitions", "give a value"),
        ("partition", "partitons>3", "knows no metric 'partitons'", "did you mean partitions?"),
        ("partition", "frobs>3", "knows no metric 'frobs'", "coverage (nodes in partitions, in percent)"),
        ("partition", "latency>20ms", "partition has no metric 'latency'", "it is one of run, check, tune"),
        ("run", "latency>20", "the limit of 'latency>20'", "latency>20ms"),
        ("run", "memory>2 chairs", "the limit of", "memory>5MB"),
        ("check", "size>+5y%", "the limit of", "size>5MB"),
        ("check", "onnxruntime>new", "the limit of", "onnxruntime>1.17"),
        ("check", "onnxruntime>1", "the limit of", "onnxruntime>1.17"),
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong_and_what_to_write(verb: str, text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_gates(text, verb)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_gate_that_cannot_be_checked_does_not_pass() -> None:
    with pytest.raises(UsageError, match="'partitions>3' cannot be checked: partitions is not known"):
        check_gates(parse_gates("partitions>3", "convert"), {"nodes": 3})
    with pytest.raises(UsageError, match="partitions of the baseline is not known"):
        check_gates(parse_gates("partitions>+3", "check"), {"partitions": 3}, {})


@pytest.mark.parametrize("metric", METRICS.values(), ids=list(METRICS))
def test_the_example_of_every_metric_is_a_condition(metric: str) -> None:
    for verb in metric.verbs:
        parse_gates(metric.name + metric.example, verb)


def test_baselines_are_of_metrics_that_the_verb_has() -> None:
    for verb, names in BASELINES.items():
        assert set(names) <= set(metrics_of(verb))
