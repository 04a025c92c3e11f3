/* A library in the place of NVIDIA's for cold processes: GPUS healthy GPUs of LINKS links, to switches (or, with DIRECT, to each other), all calls answered.
 * One fault can be compiled in: HANG_INIT, HANG_COUNT, HANG_GPU (one call of one GPU never returns), CRASH (one call of one GPU kills the process),
 * LATE (the library's initialising takes a while but ends), REMAP_FAILED (a row of one GPU could not be remapped). PROCESSES names a file of processes on GPUs. Numbers and structures: nvml.h.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef GPUS
#define GPUS 8
#endif
#ifndef LINKS
#define LINKS 18
#endif
#define SICK (GPUS - 1)
#define NOT_SUPPORTED 3
#define TOO_SMALL 7
#define OTHER_VERSION 25

typedef void *device;
typedef unsigned int u32;
typedef unsigned long long u64;

struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };
struct memory { u64 total, free, used; };
struct memory_v2 { u32 version; u64 total, reserved, free, used; };
struct field { u32 id, scope; int64_t at, latency; u32 type, code; u64 value; };
struct fabric { u32 version; uint8_t uuid[16]; u32 status, clique, state, mask; uint8_t summary; };
struct sram { u32 version; u64 counts[11]; u32 exceeded; };
struct pair { u32 version; int value; };
struct temperature { u32 version, sensor; int value; };
struct process { u32 pid; u64 memory; u32 gpu_instance, compute_instance; };
struct confidential { u32 environment, feature, tools; };

static char gpus[GPUS];

static int index_of(device gpu) { return (int)((char *)gpu - gpus); }
static int word(u32 *out, u32 value) { *out = value; return 0; }
static int text(char *out, u32 size, const char *value) { snprintf(out, size, "%s", value); return 0; }
static inline void hang(void) { for (;;) pause(); }

int nvmlInitWithFlags(u32 flags)
{
    (void)flags;
#ifdef HANG_INIT
    hang();
#endif
#ifdef LATE
    struct timespec a_while = {0, 300000000};
    nanosleep(&a_while, 0);
#endif
    return 0;
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code ? "some error" : "Success"; }
int nvmlSystemGetDriverVersion(char *out, u32 size) { return text(out, size, "570.1"); }
int nvmlSystemGetNVMLVersion(char *out, u32 size) { return text(out, size, "12.570.1"); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 12080; return 0; }
int nvmlSystemGetConfComputeState(struct confidential *out) { memset(out, 0, sizeof *out); return 0; }
int nvmlDeviceGetCount_v2(u32 *count)
{
#ifdef HANG_COUNT
    hang();
#endif
    return word(count, GPUS);
}
int nvmlDeviceGetHandleByIndex_v2(u32 i, device *gpu) { *gpu = gpus + i; return 0; }

int nvmlDeviceGetUUID(device gpu, char *out, u32 size)
{
#ifdef CRASH
    if (index_of(gpu) == SICK) raise(SIGSEGV);
#endif
#ifdef HANG_GPU
    if (index_of(gpu) == SICK) hang();
#endif
    if (index_of(gpu) == 0) printf("a library that prints must not spoil the answer\n");
    snprintf(out, size, "GPU-c-%d", index_of(gpu));
    return 0;
}
int nvmlDeviceGetName(device gpu, char *out, u32 size) { (void)gpu; return text(out, size, "NVIDIA H100 80GB HBM3"); }
int nvmlDeviceGetSerial(device gpu, char *out, u32 size) { snprintf(out, size, "16500000000%02d", index_of(gpu)); return 0; }
int nvmlDeviceGetVbiosVersion(device gpu, char *out, u32 size) { (void)gpu; return text(out, size, "96.00.89.00.01"); }
int nvmlDeviceGetInforomImageVersion(device gpu, char *out, u32 size) { (void)gpu; return text(out, size, "G520.0200.00.05"); }
int nvmlDeviceGetGspFirmwareVersion(device gpu, char *out) { (void)gpu; return text(out, 64, "570.1"); }
int nvmlDeviceGetMinorNumber(device gpu, u32 *out) { return word(out, (u32)index_of(gpu)); }
int nvmlDeviceGetModuleId(device gpu, u32 *out) { return word(out, (u32)index_of(gpu) + 1); }
int nvmlDeviceGetPersistenceMode(device gpu, u32 *out) { (void)gpu; return word(out, 1); }
int nvmlDeviceGetNumaNodeId(device gpu, u32 *out) { (void)gpu; (void)out; return NOT_SUPPORTED; }
static int two(u32 *now, u32 *pending, u32 value) { *pending = value; return word(now, value); }
int nvmlDeviceGetMigMode(device gpu, u32 *now, u32 *pending) { (void)gpu; return two(now, pending, 0); }
int nvmlDeviceGetEccMode(device gpu, u32 *now, u32 *pending) { (void)gpu; return two(now, pending, 1); }
static void bus_id(struct pci *out, const char *format, int number)
{
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, format, number);
}
int nvmlDeviceGetPciInfo_v3(device gpu, struct pci *out) { bus_id(out, "00000000:1%d:00.0", index_of(gpu) + 1); return 0; }
int nvmlDeviceGetMemoryInfo(device gpu, struct memory *out) { (void)gpu; out->total = 1ull << 36; out->used = 1 << 29; return 0; }
int nvmlDeviceGetMemoryInfo_v2(device gpu, struct memory_v2 *out) { (void)gpu; out->total = 1ull << 36; out->used = 1 << 20; return 0; }
int nvmlDeviceGetCpuAffinity(device gpu, u32 words, u64 *out)
{
    memset(out, 0, words * sizeof *out);
    out[index_of(gpu) >= GPUS / 2] = ~0ull;
    return 0;
}
int nvmlDeviceGetMemoryAffinity(device gpu, u32 words, u64 *out, u32 scope)
{
    (void)scope;
    memset(out, 0, words * sizeof *out);
    out[0] = index_of(gpu) >= GPUS / 2 ? 2 : 1;
    return 0;
}

int nvmlDeviceGetTotalEccErrors(device gpu, u32 kind, u32 counter, u64 *out) { (void)gpu; (void)kind; (void)counter; *out = 0; return 0; }
int nvmlDeviceGetSramEccErrorStatus(device gpu, struct sram *out) { (void)gpu; out->exceeded = 0; return 0; }
int nvmlDeviceGetRemappedRows(device gpu, u32 *a, u32 *b, u32 *c, u32 *d)
{
    *a = *b = *c = *d = 0;
#ifdef REMAP_FAILED
    *d = index_of(gpu) == SICK;
#else
    (void)gpu;
#endif
    return 0;
}
int nvmlDeviceGetRetiredPages(device gpu, u32 cause, u32 *count, u64 *out) { (void)gpu; (void)cause; (void)count; (void)out; return NOT_SUPPORTED; }
int nvmlDeviceGetRetiredPagesPendingStatus(device gpu, u32 *out) { (void)gpu; (void)out; return NOT_SUPPORTED; }
int nvmlDeviceGetCurrPcieLinkGeneration(device gpu, u32 *out) { (void)gpu; return word(out, 5); }
int nvmlDeviceGetMaxPcieLinkGeneration(device gpu, u32 *out) { (void)gpu; return word(out, 5); }
int nvmlDeviceGetGpuMaxPcieLinkGeneration(device gpu, u32 *out) { (void)gpu; return word(out, 5); }
int nvmlDeviceGetCurrPcieLinkWidth(device gpu, u32 *out) { (void)gpu; return word(out, 16); }
int nvmlDeviceGetMaxPcieLinkWidth(device gpu, u32 *out) { (void)gpu; return word(out, 16); }
int nvmlDeviceGetPcieReplayCounter(device gpu, u32 *out) { (void)gpu; return word(out, 0); }
int nvmlDeviceGetClockInfo(device gpu, u32 kind, u32 *out) { (void)gpu; return word(out, kind == 2 ? 2619 : 345); }
int nvmlDeviceGetMaxClockInfo(device gpu, u32 kind, u32 *out) { (void)gpu; return word(out, kind == 2 ? 2619 : 1980); }
int nvmlDeviceGetApplicationsClock(device gpu, u32 kind, u32 *out) { (void)gpu; (void)kind; return word(out, 1980); }
int nvmlDeviceGetCurrentClocksEventReasons(device gpu, u64 *out) { (void)gpu; *out = 1; return 0; }
int nvmlDeviceGetPowerUsage(device gpu, u32 *out) { (void)gpu; return word(out, 71320); }
int nvmlDeviceGetPowerManagementLimit(device gpu, u32 *out) { (void)gpu; return word(out, 700000); }
int nvmlDeviceGetPowerManagementDefaultLimit(device gpu, u32 *out) { (void)gpu; return word(out, 700000); }
int nvmlDeviceGetEnforcedPowerLimit(device gpu, u32 *out) { (void)gpu; return word(out, 700000); }
int nvmlDeviceGetPowerManagementLimitConstraints(device gpu, u32 *least, u32 *most) { (void)gpu; *least = 200000; return word(most, 700000); }
int nvmlDeviceGetTemperatureV(device gpu, struct temperature *out) { (void)gpu; out->value = 31; return 0; }
int nvmlDeviceGetMarginTemperature(device gpu, struct pair *out) { (void)gpu; out->value = 56; return 0; }
int nvmlDeviceGetTemperatureThreshold(device gpu, u32 kind, u32 *out) { (void)gpu; (void)kind; (void)out; return NOT_SUPPORTED; }
#ifdef PROCESSES
/* Lines "GPU PID" of the file of that name: each is a process of 1 GiB. */
int nvmlDeviceGetComputeRunningProcesses_v3(device gpu, u32 *count, struct process *out)
{
    u32 found = 0, room = *count, pid;
    int index;
    FILE *file = fopen(PROCESSES, "r");
    while (file && fscanf(file, "%d %u", &index, &pid) == 2) {
        if (index != index_of(gpu)) continue;
        if (found < room) out[found] = (struct process){pid, 1u << 30, ~0u, ~0u};
        found++;
    }
    if (file) fclose(file);
    *count = found;
    return found > room ? TOO_SMALL : 0;
}
#else
int nvmlDeviceGetComputeRunningProcesses_v3(device gpu, u32 *count, void *out) { (void)gpu; (void)out; return word(count, 0); }
#endif
int nvmlDeviceGetGraphicsRunningProcesses_v3(device gpu, u32 *count, void *out) { (void)gpu; (void)out; return word(count, 0); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(device gpu, u32 *count, void *out) { (void)gpu; (void)out; return word(count, 0); }

int nvmlDeviceGetNvLinkState(device gpu, u32 link, u32 *on) { (void)gpu; return link < LINKS ? word(on, 1) : 2; }
int nvmlDeviceGetNvLinkVersion(device gpu, u32 link, u32 *out) { (void)gpu; return link < LINKS ? word(out, 6) : 2; }
int nvmlDeviceGetNvLinkRemoteDeviceType(device gpu, u32 link, u32 *kind)
{
    (void)gpu; (void)link;
#ifdef DIRECT
    return word(kind, 0);
#else
    return word(kind, 2);
#endif
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(device gpu, u32 link, struct pci *out)
{
#ifdef DIRECT
    (void)link;
    bus_id(out, "00000000:1%d:00.0", (index_of(gpu) ^ 1) + 1);
#else
    (void)gpu;
    bus_id(out, "00000000:C%d:00.0", (int)link % 4);
#endif
    return 0;
}
static u32 field_value(const struct field *field, u64 *value)
{
    static const u32 of_gpu[][2] = {{91, LINKS}, {147, LINKS}, {230, 0}, {82, 40}, {74, 0}, {75, 0}, {76, 0}, {77, 0}, {78, 0}, {79, 0}, {80, 0}, {81, 0}};
    static const u32 of_link[][2] = {{164, 26562}, {165, 1}, {166, 6}, {146, 0}, {161, 0}, {162, 0}, {163, 0}};
    for (u32 i = 0; i < sizeof of_gpu / sizeof *of_gpu; i++)
        if (field->id == of_gpu[i][0]) { *value = of_gpu[i][1]; return 0; }
    for (u32 i = 0; i < sizeof of_link / sizeof *of_link; i++)
        if (field->id == of_link[i][0] && field->scope < LINKS) { *value = of_link[i][1]; return 0; }
    return NOT_SUPPORTED;
}
int nvmlDeviceGetFieldValues(device gpu, int count, struct field *fields)
{
    (void)gpu;
    for (int i = 0; i < count; i++) {
        fields[i].type = 1;
        fields[i].code = field_value(fields + i, &fields[i].value);
    }
    return 0;
}
int nvmlDeviceGetGpuFabricInfoV(device gpu, struct fabric *out)
{
    (void)gpu;
    if (out->version >> 24 != 3) return OTHER_VERSION;
    memset(out->uuid, 0, sizeof out->uuid);
    out->status = out->clique = 0;
    out->state = 3;
    out->mask = 0x1AA;
    out->summary = 1;
    return 0;
}
int nvmlDeviceGetP2PStatus(device a, device b, u32 kind, u32 *status) { (void)a; (void)b; (void)kind; return word(status, 0); }
int nvmlDeviceGetTopologyCommonAncestor(device a, device b, u32 *level) { (void)a; (void)b; return word(level, 50); }
