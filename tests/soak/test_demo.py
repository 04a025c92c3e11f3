"""The demo's verdict does not depend on luck: twenty runs, twenty times go."""

import pytest

from tests.fleet.runs import Run

pytestmark = [pytest.mark.soak, pytest.mark.fabric, pytest.mark.timeout(180)]


@pytest.mark.parametrize("time", range(20))
def test_the_demo_goes_every_time(tmp_path, time):
    run = Run(tmp_path, "--local", "2x4", nodes=2, per_node=4, tp=4)
    try:
        assert run.wait(170) == 0, run.stdout
        assert run.report().coverage.pairs_measured == 28
    finally:
        run.kill_all()
    run.gone()
