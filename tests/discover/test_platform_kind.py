"""Virtual machines, containers and boards, by the marks that they leave; what leaves none is unknown, not none."""

import pytest

from preflight.discover.platform_kind import read_platform
from tests.trees import Tree


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def dmi(tree, vendor, product, bios=""):
    for name, text in (("sys_vendor", vendor), ("product_name", product), ("bios_vendor", bios)):
        tree.write(f"sys/class/dmi/id/{name}", f"{text}\n")


def cpu(tree, flags):
    tree.write("proc/cpuinfo", f"processor\t: 0\nflags\t\t: {flags}\n\n")


def systemd(tree):
    tree.write("proc/1/comm", "systemd\n")
    tree.folder("run/systemd/system")


def test_a_bare_machine_is_known_to_be_one(tree):
    dmi(tree, "NVIDIA", "DGXH100")
    systemd(tree)
    platform = read_platform(tree.root, {})
    assert (platform.virtual_machine, platform.container, platform.machine) == ("none", "none", "NVIDIA DGXH100")


@pytest.mark.parametrize(
    ("vendor", "product", "kind"),
    [
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "qemu"),
        ("Red Hat", "KVM", "kvm"),
        ("Amazon EC2", "p5.48xlarge", "amazon"),
        ("Google", "Google Compute Engine", "google"),
        ("Microsoft Corporation", "Virtual Machine", "microsoft"),
        ("VMware, Inc.", "VMware7,1", "vmware"),
        ("Example", "Example", "other"),
    ],
)
def test_a_virtual_machine_is_named_by_its_firmware(tree, vendor, product, kind):
    cpu(tree, "fpu hypervisor lahf_lm")
    dmi(tree, vendor, product)
    assert read_platform(tree.root, {}).virtual_machine == kind


def test_a_clouds_bare_machine_is_not_taken_for_a_virtual_one(tree):
    cpu(tree, "fpu lahf_lm")
    dmi(tree, "Amazon EC2", "p5.metal")
    assert read_platform(tree.root, {}).virtual_machine == "none"


def test_a_cpu_without_the_flag_leaves_it_open(tree):
    tree.write("proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 2000\nFeatures\t: fp asimd\n\n")
    assert read_platform(tree.root, {}).virtual_machine is None
    dmi(tree, "Amazon EC2", "g5g.metal")
    assert read_platform(tree.root, {}).virtual_machine is None
    dmi(tree, "QEMU", "KVM Virtual Machine")
    assert read_platform(tree.root, {}).virtual_machine == "kvm"


def test_windows_subsystem_is_told_by_its_kernel(tree):
    tree.write("proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n")
    assert read_platform(tree.root, {}).virtual_machine == "wsl"


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": 'engine="podman"\n'}, {}, "podman"),
        ({"run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({"proc/1/environ": "PATH=/bin\0container=lxc\0"}, {}, "lxc"),
        ({"proc/1/cgroup": "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope\n"}, {}, "kubernetes"),
        ({"proc/1/cgroup": "12:devices:/docker/0123abcd\n"}, {}, "docker"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({".dockerenv": "", "run/secrets/kubernetes.io/serviceaccount/namespace": "x"}, {}, "kubernetes"),
        ({".singularity.d/runscript": ""}, {}, "apptainer"),
        ({}, {"APPTAINER_CONTAINER": "/images/a.sif"}, "apptainer"),
    ],
)
def test_containers_are_named_by_their_engines_marks(tree, files, environ, kind):
    for path, text in files.items():
        tree.write(path, text)
    assert read_platform(tree.root, environ).container == kind


def test_without_marks_and_without_systemd_it_is_unknown(tree):
    assert read_platform(tree.root, {}).container is None
    tree.write("proc/1/comm", "sleep\n")
    assert read_platform(tree.root, {}).container is None


def test_a_mark_with_odd_text_becomes_one_word(tree):
    tree.write("run/systemd/container", b"a b\xff\x1b[31m\n" + b"x" * 100)
    assert read_platform(tree.root, {}).container == ("ab31m" + "x" * 100)[:32]


def test_a_board_whose_maker_left_the_names_blank_has_none(tree):
    dmi(tree, "To Be Filled By O.E.M.", "Default string")
    assert read_platform(tree.root, {}).machine is None


def test_an_empty_root_leaves_all_unknown(tmp_path):
    platform = read_platform(tmp_path, {})
    assert (platform.virtual_machine, platform.container, platform.machine) == (None, None, None)
