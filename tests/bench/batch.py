"""Batches at length: troubles, kills, workers and clusters. Prints figures, and exits with 1 if something is lost.

python tests/bench/batch.py troubles [--models 2000] [--jobs 2]    a twentieth of each kind of trouble; memory of the parent
python tests/bench/batch.py kills [--models 300] [--kills 50]      SIGKILL of the batch or of a worker, then --resume
python tests/bench/batch.py tool FOLDER                            CPU and wall time against onnxruntime's own tool
python tests/bench/batch.py cluster [--models 300] [--jobs 2]      time per model on a local Dask cluster and without it
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.batch_models import REASONS, custom_ops, folder_of

CONVERT = [sys.executable, "-m", "ortconv", "convert"]
TOOL = [sys.executable, "-m", "onnxruntime.tools.convert_onnx_models_to_ort", "--optimization_style", "Fixed"]


def timed(command: list[str]) -> tuple[int, float, float, str]:
    """Exit code, wall and CPU seconds of a command with all its processes, and what it prints."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.returncode, wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.ort")}


def left_behind(folder: Path) -> list[str]:
    """Drafts in the folder, and processes of batches."""
    drafts = [str(path) for path in folder.glob(".ortconv-[0-9a-f]*")]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "ortconv.workers.worker" in words or ("ortconv" in words and str(folder) in words):
            drafts.append(" ".join(words))
    return drafts


def troubles(folder: Path, models: int, jobs: int) -> bool:
    share = models // 20
    found = folder_of(folder / "in", models, [trouble for trouble in REASONS for _ in range(share)])
    library = custom_ops(folder)
    command = [*CONVERT, str(folder / "in"), "--output-dir", str(folder / "out"), "--jobs", str(jobs), "--timeout", "5"]
    command += ["--json", *(["--custom-op-library", str(library)] if library else [])]
    start, peaks, lines = time.perf_counter(), [], []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(json.loads(line))
        if len(lines) % (models // 10) == 0:
            peaks.append(resident(process.pid))
    code, document = process.wait(), lines.pop()
    print(f"{models} models, {jobs} jobs: exit {code}, {time.perf_counter() - start:.0f} s")
    print(f"converted {document['converted']}, failed {document['failed']}")
    print(f"memory of the batch's process at each tenth, MiB: {[peak >> 20 for peak in peaks]}")
    bad = {Path(line["source"]).name: line["error"] for line in lines if line["status"] == "failed"}
    wrong = {
        name for name, trouble in found.items() if REASONS[trouble].replace("4096", "8192") not in bad.get(name, "")
    }
    print("named:", dict(Counter(found[name] for name in bad if name in found)), "not named so:", sorted(wrong)[:5])
    return (
        code == 7 and bad.keys() == found.keys() and not wrong and len(outputs(folder / "out")) == models - len(found)
    )


def resident(parent: int) -> int:
    """The resident memory of the process that runs the batch: the child of the one that was started."""
    child = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0]
    return int(Path(f"/proc/{child}/statm").read_text().split()[1]) * resource.getpagesize()


def kills(folder: Path, models: int, times: int, jobs: int) -> bool:
    folder_of(folder / "in", models, [])
    common = ["--jobs", str(jobs), "--no-validate", "-q"]
    subprocess.run([*CONVERT, str(folder / "in"), "--output-dir", str(folder / "whole"), *common], check=True)
    command = [*CONVERT, str(folder / "in"), "--output-dir", str(folder / "out"), "--resume", *common]
    draw, killed, rounds, fine = random.Random(20), Counter[str](), 0, True
    while sum(killed.values()) < times:
        rounds += 1
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.5, 0.6 + models * 0.003))
        workers = workers_of(process.pid)
        if process.poll() is None and workers and draw.random() < 0.4:
            end(draw.choice(workers))
            killed["worker"] += 1
            time.sleep(0.2)
        if process.poll() is None:
            process.kill()
            killed["parent"] += 1
        process.wait()
        time.sleep(0.3)
        if len(outputs(folder / "out")) == models:
            fine = check(folder, models) and fine
            for path in (folder / "out").iterdir():
                path.unlink()
    subprocess.run(command, check=True)
    time.sleep(0.5)
    print(f"{dict(killed)} killed in {rounds} rounds; left behind: {left_behind(folder / 'out')}")
    return check(folder, models) and fine and not left_behind(folder / "out")


def check(folder: Path, models: int) -> bool:
    """Whether the files are those of an undisturbed run. Prints the lines of the journal: more than files were done twice."""
    lines = [json.loads(line) for line in (folder / "out" / ".ortconv-journal.jsonl").read_bytes().splitlines() if line]
    same = outputs(folder / "out") == outputs(folder / "whole")
    print(
        f"{len(outputs(folder / 'out'))} files of {models}, same bytes: {same}; {len(lines)} lines in the journal",
        flush=True,
    )
    return same


def workers_of(ancestor: int) -> list[int]:
    """The workers of a batch, and their server."""
    found, below = [], [ancestor]
    for process in below:
        with contextlib.suppress(OSError):
            tasks = Path(f"/proc/{process}/task").iterdir()
            below += [int(child) for task in tasks for child in (task / "children").read_text().split()]
            if b"ortconv.workers.worker" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
    return found


def end(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def tool(folder: Path, source: Path) -> bool:
    models = len(list(source.rglob("*.onnx")))
    runs = {"tool": [*TOOL, "--output_dir", str(folder / "tool"), str(source)]}
    for jobs in ("1", "2"):
        place = ["--output-dir", str(folder / f"jobs{jobs}"), "--jobs", jobs]
        runs[f"{jobs} jobs"] = [*CONVERT, str(source), *place, "--no-validate", "-q"]
    found = {}
    for name, command in runs.items():
        code, wall, cpu, _ = timed(command)
        found[name] = (wall, cpu)
        print(f"{name:8} exit {code}: {wall:.1f} s, CPU {cpu / models:.3f} s per model", flush=True)
    ratio, speedup = found["1 jobs"][1] / found["tool"][1], found["1 jobs"][0] / found["2 jobs"][0]
    print(f"CPU over the tool's: {ratio:.2f}; two jobs are {speedup:.2f} times as fast as one")
    return ratio <= 0.8 and speedup >= 1.7


def cluster(folder: Path, models: int, jobs: int) -> bool:
    folder_of(folder / "in", models, [])
    times = {}
    for name, more in {"pool": ["--jobs", str(jobs)], "cluster": ["--cluster", f"local:{jobs}"]}.items():
        command = [*CONVERT, str(folder / "in"), "--output-dir", str(folder / name), "--no-validate", "--json", *more]
        code, _, cpu, printed = timed(command)
        times[name] = json.loads(printed.splitlines()[-1])["seconds"]
        print(f"{name:8} exit {code}: {1e3 * times[name] / models:.1f} ms per model, CPU {1e3 * cpu / models:.1f} ms")
    print(f"overhead of the cluster: {1e3 * (times['cluster'] - times['pool']) / models:.1f} ms per model")
    return outputs(folder / "pool") == outputs(folder / "cluster")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["troubles", "kills", "tool", "cluster"])
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--models", type=int)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fine = {
            "troubles": lambda: troubles(folder, given.models or 2000, given.jobs),
            "kills": lambda: kills(folder, given.models or 300, given.kills, given.jobs),
            "tool": lambda: tool(folder, given.source),
            "cluster": lambda: cluster(folder, given.models or 300, given.jobs),
        }[given.what]()
    print("fine" if fine else "NOT AS IT SHOULD BE")
    sys.exit(not fine)


if __name__ == "__main__":
    main()
