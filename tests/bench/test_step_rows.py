"""Every published step beside its estimate, with the share of each term."""

import pytest

from tests.plan.step_rows import table

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("which", ["korthikanti", "sc21", "megascale", "bigscience", "llama3", "bridge", "torchtitan"])
def test_published_steps_beside_their_estimates(which):
    lines = list(table(which))
    print()
    print("\n".join(lines))
    assert len(lines) > 3
