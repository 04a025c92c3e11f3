"""What scontrol prints, read: of Slurm 22.05.8 as recorded on a real one (shortened; spaces at the ends of lines left out), with hostile texts that a real one printed just so; of newer versions by scontrol(1)."""

import pytest

from preflight.errors import SlurmError
from preflight.slurm.jobs import parse_job
from preflight.slurm.nodes import parse_nodes, parse_partitions, parse_time

NODE = """NodeName=n1 Arch=x86_64 CoresPerSocket=1
   CPUAlloc=3 CPUEfctv=8 CPUTot=8 CPULoad=4.83
   AvailableFeatures=(null)
   ActiveFeatures=(null)
   Gres=gpu:8
   NodeAddr=10.77.0.1 NodeHostName=host1 Port=17301 Version=22.05.8
   OS=Linux 6.1.0-18 #1 SMP PREEMPT_DYNAMIC @0 State=DOWN
   RealMemory=1000 AllocMem=0 FreeMem=18413 Sockets=8 Boards=1
   State=MIXED+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=all,gpu
   BootTime=2026-11-30T08:29:06 SlurmdStartTime=2026-11-30T18:28:21
   LastBusyTime=2026-11-30T18:28:22
   CfgTRES=cpu=8,mem=1000M,billing=8
   AllocTRES=cpu=3
   CapWatts=n/a
   CurrentWatts=0 AveWatts=0
   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s
   Reason=preflight:xid GPU 3: State=IDLE Reason=x [a@b]; look [root@2026-11-30T18:15:34]
   Comment=cm=1 Reason=zz [a@b]
   Extra=e f

"""
PLAIN = """NodeName=n2 Arch=x86_64 CoresPerSocket=1
   Gres=(null)
   NodeAddr=10.77.0.2 NodeHostName=host2 Port=17302 Version=22.05.8
   State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=all
   BootTime=Unknown SlurmdStartTime=Unknown

"""
JOB = """JobId=6 JobName=evil NodeList=n7 UserId=a(1)
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   Priority=4294901754 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   Partition=all AllocNode:Sid=localhost:3848
   ReqNodeList=n[1-3] ExcNodeList=(null)
   NodeList=n[1-3]
   BatchHost=n1
   NumNodes=3 NumCPUs=4 NumTasks=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   JOB_GRES=gpu:13
     Nodes=n[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:h100:6(IDX:0-3,6-7)
     Nodes=n3 CPU_IDs=0 Mem=0 GRES=gpu:a100:1(IDX:4),nic:1(IDX:0)
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
   Features=gpu&ib DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)
   Command=(null)
   Comment=preflight=on x=y
   StdErr=/dev/null
   Power=

"""


def test_a_node_with_hostile_texts_is_read_as_it_is():
    node = parse_nodes(NODE)[0]
    assert (node.name, node.states, node.drained, node.absent) == ("n1", {"mixed", "drain"}, True, False)
    assert node.reason == "preflight:xid GPU 3: State=IDLE Reason=x [a@b]; look"
    assert (node.reason_by, node.reason_at_s, node.boot_at_s) == ("root", 1796062534.0, 1796027346.0)
    assert (node.comment, node.extra, node.gres) == ("cm=1 Reason=zz [a@b]", "e f", "gpu:8")
    assert (node.address, node.hostname, node.partitions) == ("10.77.0.1", "host1", ("all", "gpu"))


def test_what_slurm_does_not_tell_is_none():
    node = parse_nodes(PLAIN)[0]
    assert [node.reason, node.reason_by, node.reason_at_s, node.boot_at_s, node.comment, node.extra, node.gres] == [
        None
    ] * 7


def test_several_nodes_are_told_apart_also_behind_a_comment_of_several_lines():
    said = NODE.replace("   Extra=", "line2\nNodeName=n9 State=DOWN\n   State=DOWN\n   Extra=") + PLAIN
    assert [(node.name, "idle" in node.states) for node in parse_nodes(said)] == [("n1", False), ("n2", True)]


def test_a_reason_of_several_lines_is_its_first():
    said = NODE.replace("look [root", "[root").replace("18:15:34]", "18:15:34]\n          State=IDLE\n")
    assert parse_nodes(said)[0].states == {"mixed", "drain"}


@pytest.mark.parametrize(
    ("state", "drained", "absent"),
    [
        ("IDLE", False, False),
        ("IDLE*+DRAIN", True, False),
        ("DOWN*", False, True),
        ("IDLE+POWERED_DOWN", False, True),
        ("IDLE+NOT_RESPONDING", False, False),
        ("ALLOCATED+REBOOT_REQUESTED", False, True),
        ("IDLE+FAIL", True, False),
        ("UNKNOWN", False, True),
    ],
)
def test_states(state, drained, absent):
    node = parse_nodes(PLAIN.replace("State=IDLE", f"State={state}"))[0]
    assert (node.drained, node.absent) == (drained, absent)


def test_a_node_as_newer_versions_print_it():
    """24.11 and later: other lines between, and a comment behind the reason; scontrol(1), "show node"."""
    said = PLAIN.replace(
        "   BootTime", "   InstanceId= InstanceType=\n   Topology=default:leaf1\n   Reason=Not responding\n   BootTime"
    ) + ("\n")
    node = parse_nodes(said.replace("Reason=Not responding", "Reason=Not responding [slurm@2026-11-30T18:15:34]"))[0]
    assert (node.reason, node.reason_by) == ("Not responding", "slurm")


def test_partitions():
    said = (
        "PartitionName=all\n   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL\n   AllocNodes=ALL Default=YES QoS=N/A\n"
        "   Nodes=n[1-3,7]\n   State=UP TotalCPUs=32 TotalNodes=4 SelectTypeParameters=NONE\n\n"
        "PartitionName=empty\n   AllocNodes=ALL Default=NO QoS=N/A\n   Nodes=(null)\n   State=INACTIVE TotalCPUs=0\n\n"
    )
    first, second = parse_partitions(said)
    assert (first.name, first.nodes, first.state, first.default) == ("all", ("n1", "n2", "n3", "n7"), "up", True)
    assert (second.name, second.nodes, second.state, second.default) == ("empty", (), "inactive", False)


def test_a_job_whose_name_holds_keys_is_read_as_it_is():
    job = parse_job(JOB, "6")
    assert (job.user, job.uid, job.state, job.restarts, job.partition) == ("alice", 1000, "RUNNING", 2, "all")
    assert (job.nodes, job.comment, job.features) == (("n1", "n2", "n3"), "preflight=on x=y", "gpu&ib")
    assert job.gpu_numbers == {"n1": (0, 1, 2, 3, 6, 7), "n2": (0, 1, 2, 3, 6, 7), "n3": (4,)}


def test_the_nodes_where_a_waiting_job_might_run_are_not_its_nodes():
    said = JOB.replace("   NodeList=n[1-3]", "   NodeList= SchedNodeList=n[1-3]").replace("RUNNING", "PENDING")
    assert parse_job(said, "6").nodes == ()


@pytest.mark.parametrize("key", ["UserId=root(0) GroupId=root(0)", "NodeList=n9", "JobState=PENDING Reason=x"])
def test_a_job_whose_comment_imitates_a_fact_is_not_believed(key):
    with pytest.raises(SlurmError, match="has 2 lines"):
        parse_job(JOB.replace("on x=y", f"on\n   {key}"), "6")


def test_numbers_of_gpus_that_a_comment_imitates_are_unknown():
    said = JOB.replace("on x=y", "on\n   JOB_GRES=(null)\n     Nodes=n9 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:3)")
    assert parse_job(said, "6").gpu_numbers is None


def test_a_job_without_gpus_has_none_and_numbers_that_slurm_does_not_know_are_unknown():
    assert parse_job(JOB.replace("GRES=gpu:h100:6(IDX:0-3,6-7)", "GRES=").replace("gpu:a100:1(IDX:4),", ""), "6") == (
        parse_job(JOB, "6").__class__(
            id="6",
            state="RUNNING",
            uid=1000,
            user="alice",
            nodes=("n1", "n2", "n3"),
            restarts=2,
            partition="all",
            comment="preflight=on x=y",
            features="gpu&ib",
            gpu_numbers={},
        )
    )
    assert parse_job(JOB.replace("IDX:4", "IDX:N/A"), "6").gpu_numbers is None


@pytest.mark.parametrize("said", ["", "slurm_load_jobs error", "JobId=6", "JobId=6\n   UserId=x"])
def test_an_answer_that_is_none_is_an_error(said):
    with pytest.raises(SlurmError):
        parse_job(said, "6")


@pytest.mark.parametrize("text", ["Unknown", "", "None", "2026-13-01T00:00:00", "18:15:34", "1796062745"])
def test_what_is_no_time_is_unknown(text):
    assert parse_time(text) is None
