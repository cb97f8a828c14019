# SPDX-License-Identifier: Apache-2.0
"""The picture of a report in README.md and docs/: made again from the bundled detector, so that it shows what there is.

A script, not a test: see README.md here. Needs the extras cpu, images and browser, and a Chromium. The detector is
quantized, its report opened, its graph brought to where boxes can be read, and what the window shows is stored.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import qdqtool

PROJECT = Path(__file__).resolve().parents[2]
MODELS = PROJECT / "models"
PICTURE = PROJECT / "docs" / "images" / "report.png"
_WIDE, _HIGH = 1240, 1270


def write_report(folder: Path) -> Path:
    """The report of the bundled detector of digits, with data."""
    shutil.copy(MODELS / "digits_detector.onnx", folder / "detector.onnx")
    data = str(MODELS / "digits_calib.npz")
    qdqtool.insert(folder / "detector.onnx", data=data, output=folder / "detector.qdq.onnx")
    options = qdqtool.ReportOptions(
        reference=folder / "detector.onnx", data=data, parser=None, data_options=qdqtool.DataOptions(limit=16)
    )
    qdqtool.report(folder / "detector.qdq.onnx", folder / "report.html", options)
    return folder / "report.html"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--browser", default=shutil.which("chromium"), help="the program")
    parser.add_argument("--output", type=Path, default=PICTURE)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        page_file = write_report(Path(name))
        browser = playwright.chromium.launch(executable_path=args.browser, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _WIDE, "height": _HIGH})
        page.goto(page_file.as_uri())
        page.locator("#graph .b.kept").first.click()
        part = {"x": 0, "y": 0, "width": _WIDE, "height": _HIGH}
        page.screenshot(path=str(args.output), full_page=True, clip=part)
        browser.close()


if __name__ == "__main__":
    main()
