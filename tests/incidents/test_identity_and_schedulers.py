"""Incidents of who is who: device masks, schedulers, names, odd texts."""

from dataclasses import replace

import pytest

from preflight.model import OutsideVerdict, Verdict
from tests import fake_gpus
from tests.fakes import NOT_SUPPORTED
from tests.incidents.boxes import BOXES, TWO_SOCKETS, changed, healthy
from tests.incidents.live import Box, discovered, judge_file, judged, kinds, plant
from tests.topology_texts import load, render
from tests.trees import Tree

UUID_2, UUID_5 = "GPU-2222aaaa-0000-0000-0000-000000000002", "GPU-5555bbbb-0000-0000-0000-000000000005"


def eight():
    gpus = fake_gpus.h100_sxm()
    return [*gpus[:2], replace(gpus[2], uuid=UUID_2), *gpus[3:5], replace(gpus[5], uuid=UUID_5), *gpus[6:]]


def masked(tmp_path, monkeypatch, *, shown=None, container=False, **environ):
    box = Box(eight(), TWO_SOCKETS, shown=shown, container=container, environ=environ)
    return discovered(box, tmp_path, monkeypatch)


@pytest.mark.parametrize("mask", [f"{UUID_2},{UUID_5}", "GPU-2222aaaa,GPU-5555bbbb"])
def test_uuids_in_place_of_numbers_are_the_gpus_that_bear_them(mask, tmp_path, monkeypatch):
    """SlinkyProject/slurm-operator pull request 112 (Slurm 25.11), whole UUIDs and their beginnings."""
    node = masked(tmp_path, monkeypatch, CUDA_VISIBLE_DEVICES=mask, SLURM_JOB_GPUS="2,5")
    found = judged(node)
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert f"2 GPUs: {UUID_2} (physical 2), {UUID_5} (physical 5)" in found.said("gpu_mask")


def test_a_cgroup_that_renumbers_is_resolved_to_the_machine_s_numbers(tmp_path, monkeypatch):
    """The same: CUDA_VISIBLE_DEVICES=0,1 inside a cgroup that shows two, SLURM_JOB_GPUS=4,5."""
    node = masked(tmp_path, monkeypatch, shown=(4, 5), CUDA_VISIBLE_DEVICES="0,1", SLURM_JOB_GPUS="4,5")
    found = judged(node)
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert f"GPU-h100-4 (physical 4), {UUID_5} (physical 5)" in found.said("gpu_mask")


def test_numbers_of_the_host_in_a_container_are_a_fault_of_the_mask(tmp_path, monkeypatch):
    """The same: CUDA_VISIBLE_DEVICES=4,5 where two GPUs are visible, as 0 and 1. On GPUs 0 and 1 of the host the job would have worked: it looks like a flaky node."""
    node = masked(tmp_path, monkeypatch, shown=(4, 5), container=True, CUDA_VISIBLE_DEVICES="4,5")
    found = judged(node)
    assert found.answer == "no-go"
    assert found.blamed == {("environment", "CUDA_VISIBLE_DEVICES on node1")}
    said = found.said("gpu_mask")
    assert "4" in said
    assert f"this process sees 2 GPUs: GPU-h100-4, {UUID_5}" in said


def test_a_gpu_that_is_lost_under_a_right_mask_is_blamed_and_the_mask_is_not(tmp_path, monkeypatch):
    """Seven of the eight GPUs that Slurm gave: not a mask for another machine."""
    environ = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "SLURM_JOB_GPUS": "0-7", "SLURM_GPUS_ON_NODE": "8"}
    found = judged(masked(tmp_path, monkeypatch, shown=(0, 1, 2, 3, 4, 5, 6), **environ))
    assert found.answer == "no-go"
    assert found.blamed == {("gpu", "node1 GPU at 0000:47:00.0")}


def test_the_order_of_cuda_is_not_guessed(tmp_path, monkeypatch):
    """gpuopenanalytics/pynvml issue 28, dask-cuda 777, tensorflow 32881: CUDA orders fastest first, NVML by PCI. Among two products number 0 may be either."""
    box = replace(BOXES["two T4 and two L40S"](), environ={"CUDA_VISIBLE_DEVICES": "0"})
    found = judged(discovered(box, tmp_path, monkeypatch))
    assert found.text(Verdict.FAIL) == []
    assert {finding.verdict for finding in found.of("gpu_mask")} == {Verdict.UNKNOWN}
    certain = replace(box, environ={"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    found = judged(discovered(certain, tmp_path / "2", monkeypatch))
    assert "1 GPU: GPU-t4-0" in found.said("gpu_mask")


@pytest.mark.parametrize("name", [b"NVIDIA H100 80GB HBM3", b"NVIDIA \xff\xfe H100"])
def test_a_name_may_be_of_bytes_that_are_no_text(name, tmp_path, monkeypatch):
    """gpuopenanalytics/pynvml issue 53, dask/distributed 7563, vllm 7649: names as bytes, invalid ones under WSL."""
    box = BOXES["HGX H100"]()
    node = discovered(replace(box, gpus=[replace(gpu, name=name) for gpu in box.gpus]), tmp_path, monkeypatch)
    found = judged(node)
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    known = b"\xff" not in name
    assert [finding.verdict is Verdict.PASS for finding in found.of("product_known")] == [known]


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetCurrPcieLinkWidth",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetGpuFabricInfoV",
    ],
)
def test_one_call_that_is_not_supported_costs_its_own_fact_and_blames_nobody(call, tmp_path, monkeypatch):
    """NVIDIA/gpu-monitoring-tools issue 35, dcgm-exporter issue 82, BugRoger 3."""
    box = BOXES["HGX H100"]()
    gpus = [replace(gpu, errors={call: NOT_SUPPORTED}) for gpu in box.gpus]
    found = judged(discovered(replace(box, gpus=gpus), tmp_path, monkeypatch))
    assert found.text(Verdict.FAIL) == []
    assert found.answer == "go", found.text(Verdict.UNKNOWN)
    assert len(found.with_verdict(Verdict.PASS)) > 20


def test_peer_access_that_the_driver_does_not_tell_is_unknown_for_that_reason(tmp_path, monkeypatch):
    """The same for nvmlDeviceGetP2PStatus, on which NVLink through switches rests."""
    box = BOXES["HGX H100"]()
    gpus = [replace(gpu, errors={"nvmlDeviceGetP2PStatus": NOT_SUPPORTED}) for gpu in box.gpus]
    found = judged(discovered(replace(box, gpus=gpus), tmp_path, monkeypatch))
    assert found.answer == "undecided"
    assert found.text(Verdict.FAIL) == []
    assert {finding.check for finding in found.with_verdict(Verdict.UNKNOWN)} == {"nvlink_pairs", "p2p_access"}
    assert "the driver tells nothing" in found.said("p2p_access")
    assert "the driver tells nothing of peer access over them" in found.said("nvlink_pairs")


def test_a_kernel_that_knows_no_numa_node_costs_nothing_else(tmp_path, monkeypatch):
    """NVIDIA/cuCascade issue 119, HAMi pull request 99: NUMA node -1, or N/A."""
    box = replace(BOXES["L40S"](), sockets=(-1,) * 8, cards=False)
    gpus = [replace(gpu, node=None, cpus=None) for gpu in box.gpus]
    found = judged(discovered(replace(box, gpus=gpus), tmp_path, monkeypatch))
    assert found.answer == "go", found.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert found.text(Verdict.FAIL) == []


GRES = "gres/gpu count reported lower than configured (0 < 8)"


def test_a_slurmd_without_nvml_is_told_from_lost_gpus(tmp_path, monkeypatch):
    """awsome-distributed-ai issue 195, SlinkyProject/containers 14, crusoecloud/slurm 13: all GPUs are fine in two of three."""
    said = OutsideVerdict(origin="slurmd", name="gres", verdict="WARN", text=GRES)
    found = judged(changed(healthy("HGX H100"), verdicts=(said,)))
    assert found.answer == "go"
    assert "8 GPUs are here by every count" in found.said("gpu_census")
    assert kinds(found.suspected) == {"environment"}
    box, tree = replace(BOXES["HGX H100"](), shown=(0, 1, 2, 3, 4, 5, 6)), Tree(tmp_path / "root")
    plant(tree, box)
    lost = changed(discovered(box, tmp_path, monkeypatch, tree=tree), verdicts=(said,))
    found = judged(lost)
    assert found.answer == "no-go"
    assert {name for _, name in found.blamed} == {"node1 GPU at 0000:47:00.0"}


def test_tasks_that_are_bound_to_gpus_of_their_own_lose_nvlink(tmp_path, monkeypatch):
    """NVIDIA/nccl issues 1066 and 1647: --gpus-per-task puts each task into a device cgroup of its own."""
    from tests.builders import make_plan

    box = replace(
        BOXES["HGX H100"](),
        shown=(3,),
        environ={
            "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
            "SLURM_GPUS_ON_NODE": "8",
            "SLURM_STEP_GPUS": "3",
            "SLURM_GTIDS": "0,1,2,3,4,5,6,7",
            "SLURM_GPUS_PER_TASK": "1",
            "CUDA_VISIBLE_DEVICES": "0",
        },
    )
    node = discovered(box, tmp_path, monkeypatch)
    alone = judged(node)
    assert alone.answer == "go", alone.text(Verdict.FAIL, Verdict.UNKNOWN)
    assert "this one sees 1 of the step's 8 GPUs" in alone.said("gpu_isolation")
    plan = make_plan(tp=8, pp=1, dp=1, nodes=1, node_names=["node1"])
    found = judged(node, plan=plan)
    assert found.failed == {"gpu_isolation": {"node1"}}
    assert kinds(found.blamed) == {"environment"}
    assert "--gpu-bind=none" in found.said("gpu_isolation")


def test_no_work_is_no_fault():
    """slurm-gcp issue 223: zero utilisation was taken for one."""
    node = healthy("HGX H100")
    assert all(gpu.processes == () for gpu in node.gpus)
    assert judged(node).answer == "go"


def test_a_text_that_leaves_nics_out_says_nothing_of_nics(tmp_path, capsys):
    """vllm-project/vllm issue 14537: "76 NICs found, only displaying 56"."""
    text = render(load("h100-sxm-8gpu-10nic-permuted"))
    (tmp_path / "topo.txt").write_text("76 NICs found, only displaying 56\n" + text)
    _, found = judge_file(tmp_path / "topo.txt", capsys, "--product", "NVIDIA H100 80GB HBM3")
    assert found.text(Verdict.FAIL) == []
    assert "NV18 on all 28 pairs" in found.said("nvlink_pairs")
    assert {finding.verdict for finding in found.of("nic_affinity")} == {Verdict.UNKNOWN}, found.said("nic_affinity")


def test_names_in_a_legend_are_names(tmp_path, capsys):
    """NVIDIA/DCGM issue 149, nccl-tests issues 78 and 29: NICs as NIC0 with a legend, or by name."""
    text = render(load("h100-8gpu-6nic-two-storage"))
    legend = "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: mlx5_{i + 3}\n" for i in range(6))
    (tmp_path / "topo.txt").write_text(text + legend)
    _, found = judge_file(tmp_path / "topo.txt", capsys, "--product", "NVIDIA H100 80GB HBM3")
    assert "GPU 0: mlx5_3" in found.said("nic_affinity")
    assert "nobody's: mlx5_5, mlx5_6" in found.said("nic_affinity")


def test_a_refused_command_is_one_message_and_no_node(tmp_path, capsys):
    """cfregly 8: `nvidia-smi topo -m -i 0` is refused."""
    from preflight.cli.main import run_command_line

    (tmp_path / "topo.txt").write_text("Option -i can not be used with -m. Please run 'nvidia-smi topo -h' for help.\n")
    assert run_command_line(["node", "--from", str(tmp_path / "topo.txt")]) == 78
    assert "tells of no GPUs" in capsys.readouterr().err


def test_one_failing_gpu_of_a_diagnostic_does_not_fail_its_group(tmp_path, capsys):
    """NVIDIA/DCGM issue 145: one failing GPU made all of the group failed."""
    import json

    from preflight.model import to_json

    def result(gpu, status, **more):
        return {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": status, **more}

    reason = [{"error_id": 1, "warning": "GPU 3 has uncorrectable memory errors"}]
    results = [result(gpu, "Fail", **({"warnings": reason} if gpu == 3 else {})) for gpu in range(8)]
    diagnostic = {
        "DCGM Diagnostic": {
            "test_categories": [{"category": "Hardware", "tests": [{"name": "memory", "results": results}]}]
        }
    }
    (tmp_path / "diag.json").write_text(json.dumps(diagnostic))
    (tmp_path / "node.json").write_bytes(to_json(healthy("HGX H100")))
    code, found = judge_file(tmp_path / "node.json", capsys, "--import", str(tmp_path / "diag.json"))
    assert code == 10
    assert found.failed == {"outside_verdicts": {"node1 GPU 3 (GPU-h100-3)"}}
    assert {finding.origin for finding in found.of("outside_verdicts")} == {"dcgmi diag"}
