"""Rows reach rank 0 and its answer reaches all, between real processes; who never comes does not hold the others."""

import pytest

from tests.jobs import run_job

pytestmark = [pytest.mark.fabric, pytest.mark.timeout(120)]


@pytest.mark.parametrize("size", [1, 5])
def test_rank_0_has_every_row_in_rank_order_and_all_have_its_answer(tmp_path, size):
    body = """
    import torch
    from preflight.probe.gather import ROW_BYTES, Exchange, gpu_of_this_process
    def too_long(exchange):
        try:
            exchange.gather(bytes(ROW_BYTES))
        except ValueError as error:
            return str(error)
    def main(rank):
        exchange = Exchange(30, 5)
        refused = too_long(exchange)
        rows = exchange.gather(b"row %d" % rank * (rank + 1))
        exchange.along_rings = True  # what NCCL would do
        assert exchange.gather(b"row %d" % rank * (rank + 1)) == rows
        answer = exchange.answer(b"go" if rank == 0 else b"x").decode()
        gpu = [gpu_of_this_process(), torch.cuda.is_initialized()]
        return [None if rows is None else [row.decode() for row in rows], answer, refused, gpu]
    """
    said = run_job(size, tmp_path, body)
    rows = [f"row {rank}" * (rank + 1) for rank in range(size)]
    # what does not fit is refused before anything is sent; asking for a GPU that is not in use takes none
    rest = ["go", "1024 bytes, at most 1020 fit", [None, False]]
    assert [one["value"] for one in said] == [[rows, *rest], *[[None, *rest]] * (size - 1)]


def test_a_rank_that_comes_late_costs_the_others_no_more_than_the_deadline(tmp_path):
    body = """
    from preflight.probe.gather import Exchange
    def main(rank):
        if rank == 2:
            time.sleep(4)
        exchange = Exchange(1, 1)
        exchange.gather(b"")
        exchange.answer(b"")
    """
    said = run_job(3, tmp_path, body)
    assert said[0]["error"] == said[1]["error"] == "RanksApart"
    assert 0.9 < said[0]["seconds"] < 4
    assert said[1]["seconds"] < 6  # it would wait a second longer, so that rank 0's answer could still reach it


def test_a_rank_that_dies_is_told_as_ranks_apart(tmp_path):
    body = """
    from preflight.probe.gather import Exchange
    def main(rank):
        if rank == 1:
            os._exit(0)
        Exchange(5, 1).gather(b"")
    """
    [said] = run_job(2, tmp_path, body)
    assert said["error"] == "RanksApart"
    assert said["seconds"] < 8
