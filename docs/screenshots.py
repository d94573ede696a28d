"""Take the pictures of docs/guide.md with headless Chromium: `PYTHONPATH=. python docs/screenshots.py`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from ortconv.cli import main
from tests.report.browser import Browser, browser

FOLDER = Path(__file__).parent
MODEL = str(FOLDER.parent / "sample_models/bert_tiny.onnx")
SHAPES = ("--fix-dim", "batch=1", "--fix-dim", "sequence=16")


def shoot(chromium: Browser, page: Path, name: str, width: int, height: int, action: str, *, dark: bool) -> None:
    """Open a page, do something in it, and write what the window shows."""
    chromium.open(page, width, height=height, dark=dark)
    chromium.evaluate(f"{action}; 0")
    chromium.settle()
    chromium.picture(FOLDER / "pictures" / f"{name}.png")


def take() -> None:
    """All pictures."""
    with TemporaryDirectory() as folder, browser() as chromium:
        partition, story = Path(folder) / "partition.html", Path(folder) / "story.html"
        assert main(["partition", MODEL, *SHAPES, "-q", "--html", str(partition)]) == 0
        options = [
            *SHAPES,
            "-q",
            "--use-nnapi",
            "--maximize-offload",
            "-o",
            f"{folder}/model.ort",
            "--html",
            str(story),
        ]
        assert main(["convert", MODEL, *options]) == 0
        shoot(chromium, partition, "guide-partition", 1200, 720, "", dark=False)
        chosen = "const p = pictures[0]; search('erf operator:'); p.enter(p.chosen)"
        shoot(chromium, partition, "guide-phone", 390, 780, chosen, dark=True)
        rewrite = "document.querySelector('[data-rule=MatMulToRows]').click()"
        shoot(chromium, story, "guide-story", 1200, 720, rewrite, dark=False)


if __name__ == "__main__":
    take()
