"""Programs that the documentation prints, run as printed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.cli.test_commands import SECONDS, serving

ROOT: Final = Path(__file__).resolve().parents[2]
DEFAULT: Final = "nnrp://127.0.0.1:7437"
"""The endpoint that the documentation names."""


def page(name: str) -> str:
    """The text of a page in docs/."""
    return (ROOT / "docs" / name).read_text()


def printed_by(source: str, folder: Path) -> str:
    """What a program prints when its endpoint is a scripted server's; `folder` is for its file."""
    with serving("--listen", "nnrp://127.0.0.1:0") as (_, ready):
        script = folder / "example.py"
        script.write_text(source.replace(DEFAULT, ready["endpoints"][0]))
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    return done.stdout


def printed_by_example(text: str, folder: Path) -> str:
    """What the one Python block of a page prints."""
    (source,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    return printed_by(source, folder)
