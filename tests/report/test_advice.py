"""Advice as text: what to paste stands on lines of its own, partial repairs are labelled, nothing from elsewhere steers the terminal."""

from preflight.model import Advice, Change, LayoutAdvice, Parallel, Tally, Training
from preflight.report.advice import advice_text, layouts_text

BLOCK = Change(
    kind="distribution",
    title="let consecutive ranks fill a node",
    paste="srun --distribution=block",
    keys={"launch.distribution": '"block"', "launch.hostfile": None},
)


def test_a_repair_shows_what_to_paste_and_the_verdicts_before_and_after():
    advice = Advice(
        changes=(BLOCK,),
        before=Tally(fail=8, split_groups=8),
        after=Tally(),
        complete=True,
        step_before_s=105.0,
        step_after_s=6.2,
    )
    lines = advice_text([advice]).splitlines()
    assert "       srun --distribution=block" in lines
    assert '     in the plan file: launch.distribution = "block", no launch.hostfile' in lines
    assert lines[-1] == "     before: 8 FAIL, 0 WARN, 8 groups apart; after: 0 FAIL, 0 WARN; step 1 min 45 s -> 6.20 s"
    assert "PARTIAL" not in "".join(lines)


def test_a_partial_repair_is_labelled_and_says_what_is_left():
    left = tuple(f"WARN tp_in_nvlink_domain: tp{i}" for i in range(6))
    text = advice_text([Advice(changes=(BLOCK,), before=Tally(fail=8), after=Tally(warn=6), complete=False, left=left)])
    assert "1. PARTIAL: let consecutive ranks fill a node" in text
    assert "tp3; and 2 more" in text


def test_a_long_file_is_shown_by_its_first_lines():
    content = "".join(f"n{i}\n" for i in range(100))
    change = Change(kind="node_order", title="order", paste="srun", filename="hosts.txt", content=content)
    text = advice_text([Advice(changes=(change,), before=Tally(), after=Tally(), complete=True)])
    assert "hosts.txt (100 lines):" in text
    assert "n5\n         ...\n" in text
    assert "n6" not in text


def test_no_advice_says_so():
    assert "none" in advice_text(())
    assert "none" in layouts_text(())


def test_names_from_elsewhere_cannot_steer_the_terminal():
    change = Change(kind="node_order", title="a\x1b[2J", paste="b\x1b[2J", filename="f\x1b", content="n\x1b[2J\n")
    text = advice_text([Advice(changes=(change,), before=Tally(), after=Tally(), complete=True, left=("c\x1b",))])
    assert "\x1b" not in text


def layout(**changes):
    facts = {
        "parallel": Parallel(tp=8, pp=4, dp=2, zero_stage=1, sequence_parallel=True, order=("tp", "dp", "pp")),
        "training": Training(micro_batch_size=1, global_batch_size=64, recompute="full"),
        "degrees": {"tp": 8, "cp": 1, "ep": 1, "dp": 2, "pp": 4},
        "memory_bytes": 40 * 10**9,
        "gpu_memory_bytes": 80 * 10**9,
        "fits": True,
        "micro_batches": 32,
        "global_batch_size": 64,
        "idle_share": 0.0857,
        "strength": "fits with 40.0 GB to spare",
    }
    return LayoutAdvice(**{**facts, **changes})


def test_layouts_are_a_table_with_the_reason_of_each_place():
    known = layout(step_s=6.0, tokens_per_s=43690.6, mfu=0.451)
    loses = layout(fits=False, why_behind="memory: needs 93.0 GB of 80.0 GB", left=("FAIL memory_fit: memory",))
    lines = layouts_text([known, loses]).splitlines()
    assert " ".join(lines[1].split()) == "tp dp pp recompute micro-batch batch memory idle step tokens/s MFU"
    assert " ".join(lines[2].split()) == "1 8 2 4 full 32 x 1 64 40.0 GB 8.6% 6.00 s 43691 45.1%"
    assert lines[3].endswith("?         ?      ?  does not fit, FAIL memory_fit")
    assert "  1  fits with 40.0 GB to spare" in lines
    assert "  2  memory: needs 93.0 GB of 80.0 GB" in lines


def test_the_first_layout_is_given_as_sections_of_a_plan_file():
    text = layouts_text([layout()])
    for line in ('framework = "megatron"', 'order = "tp-dp-pp"', "sequence_parallel = true", 'recompute = "full"'):
        assert f"  {line}\n" in text
    assert "cp = 1" not in text
    assert "moment_bytes" not in text
