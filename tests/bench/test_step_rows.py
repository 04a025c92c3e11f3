"""Every published step beside its estimate, with the share of each term."""

import pytest

from tests.plan.step_rows import table

pytestmark = pytest.mark.bench


WHICH = (
    "korthikanti",
    "sc21",
    "sc21_table2",
    "megascale",
    "megascale_own",
    "bigscience",
    "bridge",
    "deepseek",
    "llama3",
    "torchtitan",
)


@pytest.mark.parametrize("which", WHICH)
def test_published_steps_beside_their_estimates(which):
    lines = list(table(which))
    print()
    print("\n".join(lines))
    assert len(lines) > 1
