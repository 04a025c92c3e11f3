"""What anybody would write to read the same facts: the yardstick of test_node.py. Prints how many answers it got."""

import ctypes

import pynvml as nvml

TEXTS = ("UUID", "Name", "Serial", "VbiosVersion", "InforomImageVersion", "GspFirmwareVersion")
NUMBERS = (
    *("PciInfo_v3", "MinorNumber", "ModuleId", "MemoryInfo", "MigMode", "EccMode", "PersistenceMode", "NumaNodeId"),
    *("RemappedRows", "RetiredPagesPendingStatus", "CurrPcieLinkGeneration", "CurrPcieLinkWidth", "PcieReplayCounter"),
    *("MaxPcieLinkGeneration", "MaxPcieLinkWidth", "GpuMaxPcieLinkGeneration", "CurrentClocksEventReasons"),
    *("PowerUsage", "PowerManagementLimit", "PowerManagementDefaultLimit", "EnforcedPowerLimit", "MarginTemperature"),
    *("PowerManagementLimitConstraints", "ComputeRunningProcesses_v3", "GraphicsRunningProcesses_v3"),
    "MPSComputeRunningProcesses_v3",
)
ONE_ARGUMENT = (
    *(("ClockInfo", kind) for kind in (1, 2)),
    *(("MaxClockInfo", kind) for kind in (1, 2)),
    *(("ApplicationsClock", 1), ("TemperatureV", 0), ("CpuAffinity", 128), ("RetiredPages", 0), ("RetiredPages", 1)),
    *(("TemperatureThreshold", kind) for kind in (0, 1)),
)
TWO_ARGUMENTS = (("MemoryAffinity", 16, 0), *(("TotalEccErrors", kind, age) for kind in (0, 1) for age in (0, 1)))
GPU_FIELDS = [91, 147, 230, 29, 30, 31, 82, 193, 194, *range(74, 82), 269, 270, 271]
LINK_FIELDS = (165, 166, 164, 146, 161, 162, 163)

answers = 0


def ask(name, *arguments):
    global answers  # noqa: PLW0603
    try:
        answer = getattr(nvml, name)(*arguments)
    except nvml.NVMLError:
        return None
    answers += 1
    return answer


nvml.nvmlInitWithFlags(nvml.NVML_INIT_FLAG_NO_GPUS)
for name in ("DriverVersion", "NVMLVersion", "CudaDriverVersion_v2", "ConfComputeState"):
    ask(f"nvmlSystemGet{name}")
handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
for handle in handles:
    for name in (*TEXTS, *NUMBERS):
        ask(f"nvmlDeviceGet{name}", handle)
    for name, *arguments in (*ONE_ARGUMENT, *TWO_ARGUMENTS):
        ask(f"nvmlDeviceGet{name}", handle, *arguments)
    ask("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(nvml.c_nvmlEccSramErrorStatus_v1_t()))
    ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(nvml.c_nvmlGpuFabricInfo_v3_t()))
    told = {value.fieldId: value.value.uiVal for value in ask("nvmlDeviceGetFieldValues", handle, GPU_FIELDS)}
    links = range(told[91])
    values = ask("nvmlDeviceGetFieldValues", handle, [(field, link) for link in links for field in LINK_FIELDS])
    answers += sum(value.nvmlReturn == 0 and value.value.uiVal >= 0 for value in values)
    for link in links:
        ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    for other in handles:
        if other is not handle:
            ask("nvmlDeviceGetTopologyCommonAncestor", handle, other)
            for kind in range(5):
                ask("nvmlDeviceGetP2PStatus", handle, other, kind)
nvml.nvmlShutdown()
print(answers)
