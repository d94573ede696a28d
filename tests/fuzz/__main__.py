"""Examine random graphs or damaged files, one for each seed.

python -m tests.fuzz graphs|settings|levels|onnx|ort|inputs [FIRST] [COUNT]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def main() -> None:
    from tests.fuzz import campaign, damaged, graphs, inputs

    campaigns = {
        "graphs": graphs.examine,
        "settings": graphs.examine_settings,
        "levels": graphs.examine_levels,
        "onnx": damaged.examine_onnx,
        "ort": damaged.examine_ort,
        "inputs": inputs.examine,
    }
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Examine random graphs or damaged files.")
    parser.add_argument(
        "campaign",
        choices=campaigns,
        help="random graphs by conversion, with other settings, or at each level, or damaged files: .onnx, .ort, or other inputs",
    )
    parser.add_argument("first", nargs="?", type=int, default=0, help="the first seed")
    parser.add_argument("count", nargs="?", type=int, default=1000, help="the number of seeds")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--log", type=Path, help="a file to which faults are appended, as lines of JSON")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.count)
    warm = ("tests.fuzz.graphs:warm_up",)
    print(campaign.summary(campaign.run(campaigns[options.campaign], seeds, options.jobs, options.log, warm)))


if __name__ == "__main__":
    main()
