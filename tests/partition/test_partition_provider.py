"""Partitions equal those of ONNX Runtime's NNAPI provider.

Each line of provider_verdicts.jsonl has a random graph and, by feature level, the partitions that GetCapability of the provider
finds in it, as names of the nodes' first outputs. The provider was that of ONNX Runtime 1.21, built for Linux with two changes: it
accepts operator versions up to 27, as later releases do, and it converts floats to int32 as Arm does. The graphs are a choice from
15,000 that covers all verdicts and objections, without those where ortconv refuses nodes because NNAPI itself would.
"""

from __future__ import annotations

import json
from pathlib import Path

import onnx.parser
import pytest

from ortconv.onnxio.load import from_proto
from ortconv.partition import Target, partition
from tests.batches import sampled

CASES = [json.loads(line) for line in Path(__file__).with_name("provider_verdicts.jsonl").read_text().splitlines()]


@sampled(4)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_partitions_equal_those_of_the_provider(number: int) -> None:
    case = CASES[number]
    graph = from_proto(onnx.parser.parse_model(case["graph"])).graph
    for level in (27, 28, 29, 31):
        found = partition(graph, Target(feature_level=level)).partitions
        assert sorted(sorted(n.outputs[0].name for n in p.nodes) for p in found) == sorted(
            sorted(names.split()) for names in case[str(level)]
        )
