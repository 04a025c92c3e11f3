"""CUDA_VISIBLE_DEVICES is resolved as CUDA does it, and what doesn't do what it seems to say is reported."""

import msgspec
import pytest

from preflight.model import Problem
from preflight.model.devices import Visible, own_device, resolve_devices
from tests.builders import make_gpu


def uuid_of(number):
    return f"GPU-{number:08x}-1111-2222-3333-444444444444"


def gpus(count=4, **changes):
    return [make_gpu("n", i, uuid=uuid_of(i + 0x10), **changes) for i in range(count)]


def numbers(visible):
    """GPU numbers of what is visible; None stays."""
    known = {gpu.uuid: gpu.index for gpu in gpus(16)}
    return [known.get(uuid, uuid) for uuid in visible.uuids]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("0,1,2,3", [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        (" 1 , 3", [1, 3]),
        ("3", [3]),
        (uuid_of(0x12), [2]),
        ("GPU-00000013,GPU-00000010", [3, 0]),
        (f"{uuid_of(0x11)},GPU-00000010", [1, 0]),
    ],
)
def test_what_is_right_is_resolved_without_a_word(text, expected):
    visible = resolve_devices(text, gpus())
    assert numbers(visible) == expected
    assert visible.problems == ()


@pytest.mark.parametrize(
    ("text", "expected", "words"),
    [
        ("", [], "hides every GPU"),
        ("-1", [], "'-1' is negative; CUDA stops there and ignores it"),
        ("0,1,-1,2", [0, 1], "ignores it and the 1 after it"),
        ("0,4,1", [0], "'4' is no index of 4 GPUs"),
        ("0,,1", [0], "'' is no index"),
        ("none", [], "'none' is no index"),
        ("1,1", [], "'1' is there twice, and CUDA then shows no GPU"),
        ("0,1,0", [], "'0' is there twice"),
        ("0,99999999999", [0], "is no index"),
        ("GPU-0000", [], "begins the UUIDs of 4 GPUs"),
        (
            "GPU-ffffffff,GPU-00000010",
            [],
            "is the UUID of no GPU here; CUDA stops there and ignores it and the 1 after it",
        ),
        (f"GPU-00000010,{uuid_of(0x10)}", [], "is there twice"),
        ("GPU-00000010,1", [0], "'1' does not begin with GPU- as the first entry does"),
        ("1,GPU-00000010", [1], "is no index"),
        ("MIG-GPU-00000010", [], "is not MIG-GPU-<UUID>/<GPU instance>/<compute instance>"),
    ],
)
def test_what_cuda_stops_at_or_refuses_is_said(text, expected, words):
    visible = resolve_devices(text, gpus())
    assert numbers(visible) == expected
    assert len(visible.problems) == 1
    assert words in visible.problems[0]


def test_a_number_with_letters_after_it_counts_as_the_number_as_strtoul_reads_it():
    assert numbers(resolve_devices("1gpu,+2", gpus())) == [1, 2]


def test_mig_devices_stand_for_themselves():
    mig = "MIG-aaaaaaaa-1111-2222-3333-444444444444"
    older = f"MIG-{uuid_of(0x10)}/1/0"
    assert resolve_devices(f"{mig},{mig[:-1]}5", gpus(mig_enabled=True)).uuids == (mig, f"{mig[:-1]}5")
    assert resolve_devices(older, gpus(mig_enabled=True)).uuids == (older,)
    assert "is there twice" in resolve_devices(f"{mig},{mig}", gpus()).problems[0]
    assert "not in MIG mode" in resolve_devices(older, gpus()).problems[0]
    assert "on no GPU here" in resolve_devices(f"MIG-{uuid_of(0xFF)}/1/0", gpus(mig_enabled=True)).problems[0]


def test_indices_of_a_node_with_a_gpu_in_mig_mode_are_not_guessed():
    mixed = [*gpus(2), make_gpu("n", 2, uuid=uuid_of(0x12), mig_enabled=True)]
    visible = resolve_devices("0,1", mixed)
    assert visible.uuids == (None, None)
    assert "MIG mode" in visible.problems[0]
    assert numbers(resolve_devices(uuid_of(0x11), mixed)) == [1]


def test_gpus_of_different_kinds_are_numbered_by_cuda_unless_the_order_is_pci():
    mixed = [*gpus(2), make_gpu("n", 2, uuid=uuid_of(0x12), name="NVIDIA T400")]
    assert resolve_devices("0", mixed).uuids == (None,)
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in resolve_devices("0", mixed).problems[0]
    assert resolve_devices("0", mixed, order="FASTEST_FIRST").uuids == (None,)
    assert numbers(resolve_devices("0,2", mixed, order="PCI_BUS_ID")) == [0, 2]
    assert numbers(resolve_devices("0", gpus(), order="FASTEST_FIRST")) == [0]
    assert "neither PCI_BUS_ID nor FASTEST_FIRST" in resolve_devices("0", gpus(), order="PCI").problems[0]


def test_a_gpu_that_is_kept_from_the_job_has_no_number_and_one_that_is_lost_makes_numbers_uncertain():
    def without_uuid(text):
        broken = make_gpu("n", 1, uuid=None, problems=(Problem(source="nvmlDeviceGetHandleByIndex", text=text),))
        return [gpu if gpu.index != 1 else broken for gpu in gpus()]

    kept = resolve_devices("0,1", without_uuid("Insufficient Permissions (NVML 4)"))
    assert numbers(kept) == [0, 2]
    lost = resolve_devices("0,1", without_uuid("GPU is lost (NVML 15)"))
    assert lost.uuids == (None, None)
    assert "GPU 1 can't be opened" in lost.problems[0]


def test_without_a_known_node_only_uuids_in_full_are_known():
    assert resolve_devices("0,1", None).uuids == (None, None)
    assert resolve_devices(f"{uuid_of(1)},GPU-00", None).uuids == (uuid_of(1), None)
    assert resolve_devices(None, None) == Visible(
        (), ("CUDA_VISIBLE_DEVICES is not set, and the GPUs of the node are not known",)
    )


def test_a_rank_takes_the_device_of_its_local_rank_or_the_only_one():
    four = resolve_devices("3,2,1,0", gpus())
    assert own_device(four, 1).uuid == gpus()[2].uuid
    assert tuple(own_device(resolve_devices("2", gpus()), 3)) == (gpus()[2].uuid, None)
    assert tuple(own_device(resolve_devices(None, []), 0)) == (None, None)


def test_gaps_are_said():
    two = resolve_devices("0,1", gpus())
    assert tuple(own_device(two, 2)) == (None, "local rank 2 has no GPU: only 2 are visible")
    assert "no local rank says which" in own_device(two, None).problem
    assert own_device(resolve_devices("", gpus()), 0).problem == "this rank sees no GPU"


def test_the_result_can_be_saved():
    assert msgspec.json.encode(resolve_devices("0,0", gpus()))


def lost_gpu_1():
    broken = make_gpu("n", 1, uuid=None, problems=(Problem(source="nvml", text="GPU is lost (NVML 15)"),))
    return [gpu if gpu.index != 1 else broken for gpu in gpus()]


def test_a_mask_that_was_right_before_a_gpu_was_lost_is_in_doubt_and_not_wrong():
    for text in ("0,1,2,3", "3", uuid_of(0x11)):
        visible = resolve_devices(text, lost_gpu_1())
        assert visible.problems == visible.doubts
        assert "GPU 1 can't be opened" in visible.doubts[0]
    wrong = resolve_devices("4", lost_gpu_1())
    assert "is no index" in wrong.problems[0]


def test_what_is_wrong_and_what_is_undetermined_are_told_apart():
    mixed = [*gpus(2), make_gpu("n", 2, uuid=uuid_of(0x12), name="NVIDIA T400")]
    visible = resolve_devices("0,7", mixed)
    assert len(visible.problems) == 2
    assert visible.doubts == visible.problems[1:]
    assert resolve_devices("0,7", gpus()).doubts == ()
