"""docs/reliability.md lists these attacks, each with its test."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "reliability.md"
SECTION = "## Known attacks on others"


def test_the_table_names_every_attack_and_its_test() -> None:
    section = DOCS.read_text("utf-8").partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if "CVE-" in line and line.startswith("|")]
    there = {
        name for path in HERE.glob("test_*.py") for name in re.findall(r"def (test_cve_\w+)", path.read_text("utf-8"))
    }
    listed = set()
    for cells in rows:
        tests = re.findall(r"`(test_\w+)`", cells[-1])
        for number in re.findall(r"CVE-\d{4}-\d+", cells[0]):
            own = f"test_{number.lower().replace('-', '_')}"
            assert own in tests, f"{number}: {tests}"
            listed.add(own)
        assert all(cell.strip() for cell in cells), cells
    assert len(rows) > 20
    assert listed == {name for name in there if re.fullmatch(r"test_cve_\d+_\d+", name)}, listed ^ there
