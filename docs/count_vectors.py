"""Count for each NNAPI operation how many of Android's conformance records use it and how many of those pass.

python docs/count_vectors.py SHARED     (the folder that holds checks/ and nnapi_vectors/; writes docs/nnapi_vectors.json)
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import defaultdict
from pathlib import Path

from ortconv import nnapi

if __name__ == "__main__":
    shared = Path(sys.argv[1])
    sys.path[:0] = [str(shared / "checks"), str(shared / "nnapi_vectors")]
    check = importlib.import_module("nnapi_vectors")
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path in check.nnvec.files():
        spec = check.nnvec.Spec(path)
        for record in spec.records:
            passed = check.check(nnapi, spec, record, "sync", False) is None
            graphs = [record["model"], *record["subgraphs"]]
            for name in {operation["type"] for graph in graphs for operation in graph["operations"]}:
                counts[name][0] += passed
                counts[name][1] += 1
    target = Path(__file__).with_name("nnapi_vectors.json")
    lines = ",\n".join(f" {json.dumps(name)}: {count}" for name, count in sorted(counts.items()))
    target.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
