// SPDX-License-Identifier: MIT
// Copyright (c) 2026 mori_gemm_ar contributors
// A stand-in for libamdhip64.so: host memory is device memory, and every call that matters is logged as one line.
// A test may run what is launched (`fake_on_launch`), let a call fail (`fake_fail`) and choose the pinned memory.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define UNKNOWN_ERROR 999

typedef int (*launch_callback)(const char *kernel, const unsigned *grid_and_block, const void *arguments, size_t bytes,
                               void *stream);
typedef int (*wait_callback)(void *stream);

static char *log_text;
static size_t log_bytes;
static launch_callback on_launch;
static wait_callback on_wait;
static char failing_call[64];
static int failing_code;
static void *next_host;
static char arch[256] = "gfx950:sramecc+:xnack-";

static void record(const char *format, ...) {
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    log_text = realloc(log_text, log_bytes + bytes + 2);
    memcpy(log_text + log_bytes, line, bytes);
    log_bytes += bytes;
    log_text[log_bytes++] = '\n';
    log_text[log_bytes] = 0;
}

static int fails(const char *call) {
    if (strcmp(call, failing_call)) return 0;
    failing_call[0] = 0;
    return failing_code;
}
#define MAY_FAIL do { int code = fails(__func__); if (code) return code; } while (0)

// --- for the test ---

EXPORT const char *fake_log(void) { return log_text ? log_text : ""; }
EXPORT void fake_clear(void) { log_bytes = 0; if (log_text) log_text[0] = 0; }
EXPORT void fake_on_launch(launch_callback callback) { on_launch = callback; }
EXPORT void fake_on_wait(wait_callback callback) { on_wait = callback; }
EXPORT void fake_next_host(void *address) { next_host = address; }
EXPORT void fake_arch(const char *name) { memset(arch, 0, sizeof arch); strncpy(arch, name, sizeof arch - 1); }
EXPORT void fake_fail(const char *call, int code) {
    strncpy(failing_call, call, sizeof failing_call - 1);
    failing_code = code;
}

// --- hip ---

EXPORT const char *hipGetErrorString(int code) {
    return code == 2 ? "out of memory" : code == 209 ? "no kernel image is available for execution on the device"
                                                     : "unknown error";
}
EXPORT int hipInit(unsigned flags) { MAY_FAIL; record("init %u", flags); return 0; }
EXPORT int hipRuntimeGetVersion(int *version) { MAY_FAIL; *version = 71460850; return 0; }
EXPORT int hipGetDeviceCount(int *count) { MAY_FAIL; *count = 8; return 0; }
EXPORT int hipGetDevicePropertiesR0600(char *properties, int device) {
    MAY_FAIL;
    memset(properties, 0xff, 1472);
    strcpy(properties, "fake GPU");
    memcpy(properties + 1160, arch, sizeof arch);
    return 0;
}
// What was launched has run before a wait fails, so that the caller may let go of its tensors.
EXPORT int hipDeviceSynchronize(void) {
    record("device_synchronize");
    int code = on_wait ? on_wait(0) : 0;
    MAY_FAIL;
    return code;
}
EXPORT int hipStreamSynchronize(void *stream) {
    record("stream_synchronize %p", stream);
    int code = on_wait ? on_wait(stream) : 0;
    MAY_FAIL;
    return code;
}

// An image ends with its section table, as linkers write it.
static size_t elf_bytes(const unsigned char *image) {
    uint64_t table;
    uint16_t size, count;
    if (memcmp(image, "\x7f" "ELF", 4)) return 0;
    memcpy(&table, image + 40, 8);
    memcpy(&size, image + 58, 2);
    memcpy(&count, image + 60, 2);
    return table + (size_t)size * count;
}
EXPORT int hipModuleLoadData(void **module, const void *image) {
    MAY_FAIL;
    size_t bytes = elf_bytes(image);
    if (!bytes) return 209;
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const unsigned char *)image)[i]) * 0x100000001b3u;
    *module = malloc(1);
    record("module %zu %016llx", bytes, (unsigned long long)hash);
    return 0;
}
EXPORT int hipModuleGetFunction(void **function, void *module, const char *name) {
    MAY_FAIL;
    *function = strdup(name);
    record("function %s", name);
    return 0;
}
EXPORT int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
    MAY_FAIL;
    if (parameters || !extra || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != (void *)3)
        return UNKNOWN_ERROR;
    const unsigned char *arguments = extra[1];
    size_t bytes = *(size_t *)extra[3];
    unsigned shape[6] = {gx, gy, gz, bx, by, bz};
    char hex[2048] = "";
    if (2 * bytes >= sizeof hex) return UNKNOWN_ERROR;
    for (size_t i = 0; i < bytes; i++) sprintf(hex + 2 * i, "%02x", arguments[i]);
    record("launch %s %u,%u,%u %u,%u,%u %u %p %s", (char *)function, gx, gy, gz, bx, by, bz, shared, stream, hex);
    return on_launch ? on_launch(function, shape, arguments, bytes, stream) : 0;
}
EXPORT int hipEventCreateWithFlags(void **event, unsigned flags) {
    MAY_FAIL;
    *event = malloc(1);
    record("event_create %p", *event);
    return 0;
}
EXPORT int hipEventDestroy(void *event) { MAY_FAIL; record("event_destroy %p", event); free(event); return 0; }
EXPORT int hipEventRecord(void *event, void *stream) { MAY_FAIL; record("event_record %p", stream); return 0; }
EXPORT int hipStreamWaitEvent(void *stream, void *event, unsigned flags) {
    MAY_FAIL;
    record("stream_wait %p", stream);
    return 0;
}
EXPORT int hipMemsetAsync(void *address, int value, size_t bytes, void *stream) {
    MAY_FAIL;
    record("memset %zu", bytes);
    memset(address, value, bytes);
    return 0;
}
EXPORT int hipMemcpy(void *to, const void *from, size_t bytes, int kind) {
    MAY_FAIL;
    record("memcpy %zu kind %d", bytes, kind);
    memmove(to, from, bytes);
    return 0;
}
// A test that names the memory keeps it; the other blocks carry a mark before them.
EXPORT int hipHostMalloc(void **host, size_t bytes, unsigned flags) {
    MAY_FAIL;
    *host = next_host;
    next_host = 0;
    if (!*host) {
        char *block = aligned_alloc(64, 64 + (bytes + 63) / 64 * 64);
        memcpy(block + 56, "FAKEHOST", 8);
        *host = block + 64;
    }
    record("host_malloc %zu %#x", bytes, flags);
    return 0;
}
EXPORT int hipHostGetDevicePointer(void **device, void *host, unsigned flags) { MAY_FAIL; *device = host; return 0; }
EXPORT int hipHostFree(void *host) {
    MAY_FAIL;
    record("host_free");
    if (!memcmp((char *)host - 8, "FAKEHOST", 8)) free((char *)host - 64);
    return 0;
}
